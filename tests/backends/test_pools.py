"""Threads and processes: results with their places, mistakes as they were, deaths survived."""

import os
import signal
import time
from pathlib import Path

import pytest

from queuesmith.backends import BACKENDS, Backend, open_pool, spread
from queuesmith.errors import ConfigError, PolicyError

LOCAL = ("threading", "loky")


def refuse(task):
    if task == 2:
        raise PolicyError("policy 'mine' failed")
    return task


def break_down(task):
    return [][task]


def add(task, shared):
    return task + shared["one"]


def die(task):
    os.kill(os.getpid(), signal.SIGKILL)


def die_once(task):
    number, folder = task
    time.sleep(0.02)
    if number == 5:
        try:
            (Path(folder) / "died").touch(exist_ok=False)
        except FileExistsError:
            return number * number
        die(task)
    return number * number


def die_each_once(task):
    number, folder = task
    if number % 3 == 0 and not (folder / str(number)).exists():
        (folder / str(number)).touch()
        die(task)
    return number


def interrupt(task):
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.1)
    return task


@pytest.mark.parametrize("name", LOCAL)
def test_results_say_whose_they_are(name):
    done = list(spread(refuse, [5, 6, 7], Backend.choose(name, 2)))

    assert sorted(done) == [(0, 5), (1, 6), (2, 7)]


@pytest.mark.parametrize("name", LOCAL)
def test_a_mistake_comes_back_as_it_was(name):
    with pytest.raises(PolicyError, match="policy 'mine' failed"):
        list(spread(refuse, [0, 1, 2, 3], Backend.choose(name, 2)))


@pytest.mark.parametrize("name", LOCAL)
def test_a_fault_of_ours_is_not_hidden(name):
    with pytest.raises(IndexError):
        list(spread(break_down, [0, 1], Backend.choose(name, 2)))


@pytest.mark.parametrize("name", LOCAL)
def test_what_is_shared_comes_with_every_task(name):
    with open_pool(Backend.choose(name, 2)) as pool:
        first = sorted(pool.run(add, [1, 2, 3], {"one": 1}))
        again = sorted(pool.run(add, [1], {"one": 10}))

    assert first == [(0, 2), (1, 3), (2, 4)]
    assert again == [(0, 11)]


@pytest.mark.parametrize("name", BACKENDS)
def test_nothing_to_do_starts_nothing(name, monkeypatch):
    def refuse_to_open(backend):
        raise AssertionError

    monkeypatch.setattr("queuesmith.backends.open_pool", refuse_to_open)

    assert list(spread(abs, [], Backend(name, 2))) == []


def test_a_process_that_is_killed_costs_nothing_but_time(tmp_path):
    tasks = [(number, tmp_path) for number in range(20)]

    done = list(spread(die_once, tasks, Backend.choose("loky", 2)))

    assert (tmp_path / "died").exists()
    assert sorted(done) == [(number, number * number) for number in range(20)]


@pytest.mark.parametrize("name", ["loky", "dask"])
def test_an_interrupt_is_not_for_workers(name):
    if name == "dask":
        pytest.importorskip("distributed")
    with open_pool(Backend.choose(name, 2)) as pool:
        assert sorted(pool.run(interrupt, [3, 4, 5])) == [(0, 3), (1, 4), (2, 5)]


def test_a_long_run_may_lose_a_worker_now_and_then(tmp_path):
    tasks = [(number, tmp_path) for number in range(30)]

    done = sorted(spread(die_each_once, tasks, Backend.choose("loky", 2)))

    assert done == list(enumerate(range(30)))


def test_a_task_that_kills_its_process_every_time_is_given_up():
    with pytest.raises(ConfigError, match="killed several times, perhaps because memory ran out"):
        list(spread(die, [1, 2], Backend.choose("loky", 2)))


def test_what_cannot_run_is_refused(monkeypatch):
    with pytest.raises(ConfigError, match=r"no backend 'lokky'\. Did you mean 'loky'"):
        Backend.choose("lokky")
    with pytest.raises(ConfigError, match="num_workers must be at least 1, got 0"):
        Backend.choose("loky", 0)
    with pytest.raises(ConfigError, match="num_workers must be at most 10,000, got 10,001"):
        Backend.choose("loky", 10_001)
    for name in LOCAL:
        with pytest.raises(ConfigError, match=f"{name} runs on this machine and has no scheduler"):
            Backend.choose(name, 1, "tcp://10.0.0.1:8786")
    monkeypatch.setattr("queuesmith.backends.find_spec", lambda name: None)
    for name in ("dask", "ray"):
        with pytest.raises(ConfigError, match=rf"pip install 'queuesmith\[{name}\]'"):
            Backend.choose(name)


def test_all_cores_are_used_when_nothing_is_said():
    assert [Backend.choose(name).num_workers for name in LOCAL] == [os.cpu_count()] * 2


def test_the_address_of_a_cluster_may_be_in_the_environment(monkeypatch):
    monkeypatch.setattr("queuesmith.backends.find_spec", lambda name: object())
    monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", "tcp://10.0.0.1:8786")
    monkeypatch.setenv("RAY_ADDRESS", "auto")

    addresses = [Backend.choose(name).address for name in BACKENDS]

    assert addresses == ["", "", "tcp://10.0.0.1:8786", "auto"]
    assert Backend.choose("dask", None, "tcp://10.0.0.2:8786").address == "tcp://10.0.0.2:8786"

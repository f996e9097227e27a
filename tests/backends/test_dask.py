"""A Dask cluster whose workers die, vanish, or run other code; a scheduler that goes, or never was.

What runs on it are functions that every worker can import.
"""

import shutil
import socket
import threading
import time
from operator import methodcaller
from pathlib import Path

import pytest

import queuesmith
from dask_cluster import dask_cluster, kill
from queuesmith.backends import Backend, clusters, open_pool, spread
from queuesmith.errors import ConfigError

pytest.importorskip("distributed")

#: Seconds: on a busy machine an answer takes a while, and a hang takes longer.
LONG = 60
SOURCE = Path(queuesmith.__file__).parent


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with dask_cluster(tmp_path_factory.mktemp("dask")) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def _read_code_anew():
    """Let an edit of the code in the middle of the tests be no other version."""
    clusters.identity.cache_clear()


def on(cluster):
    return Backend.choose("dask", address=cluster.address)


def test_results_and_mistakes_come_back_from_other_processes(cluster):
    assert sorted(spread(abs, [-1, -2, -3], on(cluster))) == [(0, 1), (1, 2), (2, 3)]
    with pytest.raises(ConfigError, match="no backend 'none'"):
        list(spread(Backend.choose, ["none"], on(cluster)))
    with pytest.raises(TypeError, match="bad operand") as raised:
        list(spread(abs, ["text"], on(cluster)))
    assert "On a worker" in raised.value.__notes__[0]


def test_what_is_shared_survives_the_worker_that_holds_it(cluster):
    """Also what was sent ahead to it, and what it was at."""

    def count_slowly(task, shared):  # travels as it is, since no worker could import it
        time.sleep(0.02)
        return task + len(shared)

    victim = cluster.workers[0]
    shared = bytes(5_000_000)
    with open_pool(on(cluster)) as pool:
        done = []
        for one in pool.run(count_slowly, list(range(40)), shared):
            done.append(one)
            if len(done) == 3:
                kill(victim)

    cluster.add_worker()
    assert victim.returncode == -9
    assert sorted(done) == [(place, place + len(shared)) for place in range(40)]


def test_who_asks_no_more_leaves_nothing_running(cluster):
    import distributed

    with open_pool(on(cluster)) as pool:
        next(pool.run(time.sleep, [0.0] + [30.0] * 30))
        start = time.monotonic()
        assert sorted(pool.run(abs, [])) == []
    with distributed.Client(cluster.address) as client:
        waiting = client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks))

    assert waiting <= 2  # what a worker has begun, it ends
    assert time.monotonic() - start < LONG


def test_a_worker_that_runs_other_code_is_named(tmp_path):
    shutil.copytree(SOURCE, tmp_path / "queuesmith", ignore=shutil.ignore_patterns("*.nb?"))
    (tmp_path / "queuesmith" / "_version.py").write_text('__version__ = "0.0.7"\n')

    with dask_cluster(tmp_path, num_workers=0) as cluster:
        cluster.add_worker(PYTHONPATH=str(tmp_path))
        with pytest.raises(ConfigError, match=r"worker of the Dask cluster at .* runs 0\.0\.7 \("):
            list(spread(abs, [1], on(cluster)))


def test_a_worker_without_the_package_is_named(tmp_path):
    (tmp_path / "queuesmith").mkdir()
    (tmp_path / "queuesmith" / "__init__.py").write_text("")

    with dask_cluster(tmp_path, num_workers=0) as cluster:
        cluster.add_worker(PYTHONPATH=str(tmp_path))
        with pytest.raises(ConfigError, match=r"lacks what it needs .* install the same"):
            list(spread(abs, [1], on(cluster)))


def test_a_cluster_without_workers_is_given_up_after_a_while(tmp_path, monkeypatch):
    monkeypatch.setattr(clusters, "EMPTY_SECONDS", 1.0)
    monkeypatch.setattr(clusters, "LOOK_SECONDS", 0.2)
    with dask_cluster(tmp_path, num_workers=0) as cluster:
        start = time.monotonic()
        with pytest.raises(ConfigError, match=r"has had no worker for .* 3 of 3 tasks left"):
            list(spread(abs, [1, 2, 3], on(cluster)))

        assert 1.0 <= time.monotonic() - start < LONG


def test_workers_that_come_late_are_waited_for(tmp_path):
    with dask_cluster(tmp_path, num_workers=0) as cluster:
        later = threading.Timer(2.0, cluster.add_worker)
        later.start()
        done = list(spread(abs, [-1, -2], on(cluster)))
        later.join()

    assert sorted(done) == [(0, 1), (1, 2)]


def test_a_scheduler_that_goes_is_said_within_seconds(tmp_path, monkeypatch):
    monkeypatch.setattr(clusters, "CONNECT_SECONDS", 2.0)
    with dask_cluster(tmp_path, num_workers=1) as cluster:
        results = spread(time.sleep, [0.0] + [5.0] * 20, on(cluster))
        next(results)
        kill(cluster.scheduler)
        start = time.monotonic()
        with pytest.raises(ConfigError, match=r"the scheduler of the Dask cluster at .* has gone"):
            list(results)

        assert time.monotonic() - start < LONG


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:9", "nonsense", "tcp://no.such.host:1"])
def test_an_address_that_refuses_is_said_within_seconds(address, monkeypatch):
    monkeypatch.setattr(clusters, "CONNECT_SECONDS", 2.0)
    start = time.monotonic()

    with pytest.raises(ConfigError, match=r"no Dask cluster answers at .*--scheduler-address"):
        list(spread(abs, [1], Backend.choose("dask", 1, address)))

    assert time.monotonic() - start < LONG


def test_an_address_where_something_else_listens_is_said_within_seconds(monkeypatch):
    monkeypatch.setattr(clusters, "CONNECT_SECONDS", 2.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(ConfigError, match="no Dask cluster answers"):
            list(spread(abs, [1], Backend.choose("dask", 1, f"tcp://127.0.0.1:{port}")))


def test_workers_of_our_own_are_started_and_ended():
    backend = Backend.choose("dask", 1)
    with open_pool(backend) as pool:
        done = list(pool.run(methodcaller("upper"), ["a", "b"]))

    assert sorted(done) == [(0, "A"), (1, "B")]

"""The same study by threads, processes, Dask and Ray: the same bytes, and mistakes as they were."""

import os
import subprocess
import sys

import pytest

from queuesmith.errors import ConfigError, PolicyError
from queuesmith.study.backends import BACKENDS, check_backend, spread
from queuesmith.study.run import run_study

#: Run as a program, which ends its cluster with itself.
RUN = """
import sys
from queuesmith.study.design import Design
from queuesmith.study.run import run_study

if __name__ == "__main__":
    run_study(Design.load(sys.argv[1]), sys.argv[2], backend=sys.argv[3], num_workers=2)
"""


def bytes_in(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.*")}


@pytest.fixture
def expected(small, tmp_path):
    """Return every byte of the small study, run by one thread."""
    run_study(small(), tmp_path / "one_thread", backend="threading", num_workers=1)
    return bytes_in(tmp_path / "one_thread")


@pytest.mark.parametrize(("backend", "num_workers"), [("threading", 3), ("loky", 2)])
def test_workers_do_not_change_a_byte(small, tmp_path, expected, backend, num_workers):
    run_study(small(), tmp_path / "study", backend=backend, num_workers=num_workers)

    assert bytes_in(tmp_path / "study") == expected


@pytest.mark.parametrize("backend", ["dask", "ray"])
def test_a_cluster_does_not_change_a_byte(write_design, tmp_path, expected, backend):
    pytest.importorskip({"dask": "distributed"}.get(backend, backend))
    script = tmp_path / "run.py"
    script.write_text(RUN)
    ran = subprocess.run(
        [sys.executable, script, write_design(), tmp_path / "study", backend],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )

    assert ran.returncode == 0, ran.stderr
    assert bytes_in(tmp_path / "study") == expected


def test_dask_connects_to_a_cluster_that_is_there(small, tmp_path, expected, monkeypatch):
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None
    ) as cluster:
        monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", cluster.scheduler_address)
        run_study(small(), tmp_path / "study", backend="dask", num_workers=2)

    assert bytes_in(tmp_path / "study") == expected


def refuse(task):
    if task == 2:
        raise PolicyError("policy 'mine' failed")
    return task


def die(task):
    os._exit(9)


@pytest.mark.parametrize("backend", ["threading", "loky"])
def test_a_mistake_comes_back_as_it_was(backend):
    with pytest.raises(PolicyError, match="policy 'mine' failed"):
        list(spread(refuse, [0, 1, 2, 3], backend=backend, num_workers=2))


@pytest.mark.parametrize("backend", ["threading", "loky"])
def test_results_say_whose_they_are(backend):
    done = list(spread(refuse, [5, 6, 7], backend=backend, num_workers=2))

    assert sorted(done) == [(0, 5), (1, 6), (2, 7)]


def test_a_worker_that_dies_is_an_error_and_not_a_hang():
    with pytest.raises(ConfigError, match="a worker process was killed"):
        list(spread(die, [1, 2], backend="loky", num_workers=2))


def test_what_cannot_run_is_refused(monkeypatch):
    with pytest.raises(ConfigError, match=r"no backend 'lokky'\. Did you mean 'loky'"):
        check_backend("lokky", 1)
    with pytest.raises(ConfigError, match="workers must be from 1"):
        check_backend("loky", 0)
    monkeypatch.setattr("queuesmith.study.backends.find_spec", lambda name: None)
    for backend in ("dask", "ray"):
        with pytest.raises(ConfigError, match=rf"pip install 'queuesmith\[{backend}\]'"):
            check_backend(backend, 1)


def test_all_cores_are_used_when_nothing_is_said():
    assert [check_backend(name, None)[1] for name in BACKENDS[:2]] == [os.cpu_count()] * 2

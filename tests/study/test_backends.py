"""The same study by threads, processes, Dask and Ray: the same bytes, and mistakes as they were."""

import subprocess
import sys

import pytest

from dask_cluster import dask_cluster, kill
from queuesmith.backends import clusters
from queuesmith.errors import ConfigError
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


def test_a_killed_worker_of_a_cluster_does_not_change_a_byte(small, tmp_path, expected):
    """Of two workers one is killed as soon as a part is there, and does not come back."""
    pytest.importorskip("distributed")
    (tmp_path / "cluster").mkdir()
    with dask_cluster(tmp_path / "cluster") as cluster:

        def kill_one(done, planned):
            if done == 1:
                assert planned > 2
                kill(cluster.workers[0])

        run_study(
            small(),
            tmp_path / "study",
            backend="dask",
            scheduler_address=cluster.address,
            progress=kill_one,
        )
        assert cluster.workers[0].returncode == -9

    assert bytes_in(tmp_path / "study") == expected


def test_a_cluster_that_loses_all_workers_keeps_what_is_finished(
    small, tmp_path, expected, monkeypatch
):
    pytest.importorskip("distributed")

    def kill_it(done, planned):
        if done == 1:
            monkeypatch.setattr(clusters, "EMPTY_SECONDS", 1.0)
            kill(cluster.workers[0])

    (tmp_path / "cluster").mkdir()
    with (
        dask_cluster(tmp_path / "cluster", num_workers=1) as cluster,
        pytest.raises(ConfigError, match=r"(no worker for|all workers have).* is kept"),
    ):
        run_study(
            small(),
            tmp_path / "study",
            backend="dask",
            scheduler_address=cluster.address,
            progress=kill_it,
        )

    assert len(list((tmp_path / "study" / "parts").iterdir())) >= 1
    run_study(small(), tmp_path / "study", backend="threading", num_workers=1)
    assert bytes_in(tmp_path / "study") == expected

"""Candidates on the workers of a Dask cluster: fenced there, scored alike, whoever is killed."""

import os
import signal
import time
from pathlib import Path

import pytest

from dask_cluster import dask_cluster, kill
from queuesmith.backends import Backend, clusters
from queuesmith.errors import ConfigError
from queuesmith.evolve import run
from queuesmith.evolve.archive.archive import Archive
from queuesmith.evolve.sandbox import remote
from queuesmith.evolve.sandbox.child import Request, SimulationJob
from queuesmith.evolve.sandbox.remote import RemoteSandbox, end_idle, try_candidate
from queuesmith.evolve.sandbox.sandbox import Sandbox

from .hostile.cells import SLOW, crowded_cell, small_job
from .processes import children_of
from .toy import TEXT, read

pytest.importorskip("distributed")

#: One generation of search and control, six candidates each, in real child processes.
SHORT = (("generations = 3", "generations = 1"), ("islands = 2", "islands = 1"))
LIMITS = {"cpu_seconds": 1, "memory_mib": 16}
FAULT = "def waiting_key(request, engine):\n    return 1 // 0\n"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with dask_cluster(tmp_path_factory.mktemp("dask")) as cluster:
        yield cluster


def plain(outcome):
    """Leave out what may differ from run to run."""
    return outcome.status, outcome.reason, [times.tobytes() for times in outcome.values]


def test_candidates_are_fenced_on_a_worker_as_they_are_here(cluster):
    """Out of form, out of time, out of memory, at fault, or welcome."""
    job = SimulationJob((*small_job().cells, crowded_cell(1, num_requests=200_000)))
    small, large = list(range(len(job.cells) - 1)), [len(job.cells) - 1]
    texts = ["import os\n", SLOW, FAULT, *(TEXT.format(value=value) for value in (0.1, 0.001))]
    backend = Backend.choose("dask", address=cluster.address)
    outcomes = []
    for sandbox in (Sandbox(job, workers=2, **LIMITS), RemoteSandbox(job, backend, **LIMITS)):
        with sandbox:
            outcomes.append(
                [*sandbox.run(texts, cells=small), *sandbox.run(texts[-1:], cells=large)]
            )
    here, there = outcomes

    assert [plain(outcome) for outcome in there] == [plain(outcome) for outcome in here]
    statuses = [outcome.status for outcome in there]
    assert statuses == ["form", "timeout", "fault", "ok", "ok", "memory"]
    assert all(worker.poll() is None for worker in cluster.workers)


def test_a_run_is_the_same_though_a_worker_is_killed_in_a_generation(begin, cluster):
    here, there = begin("here", *SHORT), begin("there", *SHORT)
    run.go_on(here, workers=1)
    victim = cluster.workers[0]
    at_work = children_of(victim.pid)  # from the test before, if it ran

    def kill_one(now):
        if victim.poll() is None and 1 <= now.evaluations < 6:
            at_work.extend(children_of(victim.pid))
            kill(victim)

    run.go_on(there, backend="dask", scheduler_address=cluster.address, progress=kill_one)

    assert victim.returncode == -signal.SIGKILL
    assert at_work
    assert read(there) == read(here)
    deadline = time.monotonic() + 10  # what candidates ran in has gone with its worker
    while left := [pid for pid in at_work if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def test_a_run_whose_cluster_is_lost_goes_on_elsewhere(begin, tmp_path, monkeypatch):
    here, there = begin("here", *SHORT), begin("there", *SHORT)
    run.go_on(here, workers=1)
    (tmp_path / "cluster").mkdir()
    with dask_cluster(tmp_path / "cluster", num_workers=1) as cluster:
        worker = cluster.workers[0]

        def kill_it(now):
            if worker.poll() is None and now.evaluations == 2:
                monkeypatch.setattr(clusters, "EMPTY_SECONDS", 1.0)
                kill(worker)

        with pytest.raises(ConfigError, match="is kept"):
            run.go_on(there, backend="dask", scheduler_address=cluster.address, progress=kill_it)

    with Archive.read(there) as archive:
        assert archive.num_evaluated() >= 2
    run.go_on(there, workers=1)
    assert read(there) == read(here)


def new_children(before, number):
    """Return the children since `before`, when there are so many: others may come and go."""
    deadline = time.monotonic() + 30
    while len(found := set(children_of(os.getpid())) - set(before)) != number:
        assert time.monotonic() < deadline, (number, found)
        time.sleep(0.02)
    return found


def test_child_processes_of_a_worker_end_with_the_run_that_needs_them():
    job = small_job()
    shared = RemoteSandbox(job, Backend("dask", 1))._shared
    before = children_of(os.getpid())
    outcome = try_candidate(Request(TEXT.format(value=0.1), (0,)), shared)
    kept = new_children(before, 1)
    again = try_candidate(Request(TEXT.format(value=0.1), (0,)), shared)

    assert plain(outcome) == plain(again)
    assert new_children(before, 1) == kept
    end_idle(3600.0)
    assert new_children(before, 1) == kept
    end_idle(0.0)
    new_children(before, 0)
    assert remote._jobs == {}


def test_a_job_that_is_begun_again_while_a_candidate_runs_leaves_no_child_process():
    shared = RemoteSandbox(small_job(), Backend("dask", 1))._shared
    before = children_of(os.getpid())
    with remote._borrowed(shared):
        end_idle(0.0)  # as if it had been at work for long
        with remote._borrowed(shared):
            pass
    new_children(before, 2)
    end_idle(0.0)
    new_children(before, 0)


def test_limits_that_make_no_sense_are_refused_before_anything_is_sent():
    with pytest.raises(ConfigError, match="memory_mib must be a whole number"):
        RemoteSandbox(small_job(), Backend("dask", 1), memory_mib=0)

"""`queuesmith.compare` by threads, processes and clusters, one of which loses a worker: one answer.

What is compared is the whole document and every sample, not only who wins.
"""

import hashlib
import json
import subprocess
import sys

import numpy as np
import pytest

from dask_cluster import dask_cluster, kill
from queuesmith.comparison.compare import compare
from queuesmith.traces.trace import Trace

#: Run as a program, which ends its cluster with itself.
RUN = """
import sys
sys.path[:0] = sys.argv[2:]
from test_same_answer import digest, run

if __name__ == "__main__":
    print(digest(run(backend=sys.argv[1], num_workers=2)))
"""


def run(**options):
    rng = np.random.default_rng(7)
    lengths = [rng.integers(low, high, 120) for low, high in ((10, 3000), (1, 200))]
    trace = Trace(np.cumsum(rng.exponential(size=120)), *lengths)
    policies, loads = "fcfs,sjf,srpt", "knee,heavy"
    return compare(trace, policies, loads, num_windows=4, window_len=30, **options)


def digest(comparison):
    """Hash the document, the cells and the samples."""
    parts = [json.dumps(comparison.to_json(), sort_keys=True).encode()]
    parts += [repr(comparison.cells.to_pydict()).encode()]
    for (policy, load), samples in sorted(comparison.samples.items()):
        parts += [f"{policy} {load}".encode(), samples.ttft.tobytes(), samples.slowdown.tobytes()]
        parts += [samples.window.tobytes(), samples.output_len.tobytes()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


@pytest.fixture(scope="module")
def expected():
    return digest(run(num_workers=1))


@pytest.mark.parametrize(("backend", "num_workers"), [("threading", 3), ("loky", 1), ("loky", 3)])
def test_workers_do_not_change_the_answer(expected, backend, num_workers):
    assert digest(run(backend=backend, num_workers=num_workers)) == expected


def test_another_seed_does(expected):
    assert digest(run(seed=1)) != expected


def test_a_killed_worker_of_a_cluster_does_not_change_the_answer(expected, tmp_path):
    pytest.importorskip("distributed")
    with dask_cluster(tmp_path) as cluster:

        def kill_one(done, planned):
            if done == 1:
                assert planned == 3 * 2 * 4
                kill(cluster.workers[0])

        found = run(backend="dask", scheduler_address=cluster.address, progress=kill_one)
        assert cluster.workers[0].returncode == -9

    assert digest(found) == expected


@pytest.mark.parametrize("backend", ["dask", "ray"])
def test_a_cluster_of_our_own_does_not_change_the_answer(expected, tmp_path, backend, request):
    pytest.importorskip({"dask": "distributed"}.get(backend, backend))
    script = tmp_path / "run.py"
    script.write_text(RUN)
    ran = subprocess.run(
        [sys.executable, script, backend, request.path.parent, request.path.parents[1]],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == [expected]

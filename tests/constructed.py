"""Evaluations made by hand, so that a test says itself what came out of the runs."""

from pathlib import Path

import numpy as np
import pyarrow as pa

from queuesmith.evaluation.evaluate import Evaluation, Load, Samples
from queuesmith.leaderboard import judge, load_rows
from queuesmith.metrics import METRICS
from queuesmith.policies import Policy
from queuesmith.policies.policy import load_text

LIGHT = Load("light", 0.3)
KNEE = Load("knee", 0.95)
HEAVY = Load("heavy", 1.5)

#: Seconds that windows of 100 requests waited under FCFS: 1 s on the average, windows unlike.
FCFS = np.random.default_rng(0).lognormal(size=(8, 100)) * np.linspace(0.5, 1.5, 8)[:, None]
FCFS /= FCFS.mean()


def make_policy(name: str, *lines: str) -> Policy:
    """Build a policy that sorts by arrival, with further lines such as ``ORACLE = True``."""
    source = "\n".join([*lines, "def waiting_key(request, engine):", "    return 0.0"])
    return load_text(name, source, Path(f"{name}.py"))


def make_evaluation(ttft, loads, *, metrics=None, num_dropped=0, num_truncated=0):
    """Build an evaluation from seconds of ``ttft[policy][load]``, one list for each window.

    `metrics` maps a load's name to further values of its cells; they are 1.0 where nothing is said.
    """
    cells, samples = [], {}
    for policy, by_load in ttft.items():
        for load in loads:
            windows = [np.asarray(times, np.float64) for times in by_load[load.name]]
            pooled = np.concatenate(windows)
            window = np.repeat(np.arange(len(windows)), list(map(len, windows)))
            ones = np.ones(len(pooled), np.int64)
            samples[policy, load.name] = Samples(pooled, pooled, ones, ones, window)
            for place, row in enumerate(windows):
                cell = {"policy": policy, "load": load.name, "rho": load.rho, "window": place}
                cell |= dict.fromkeys(METRICS, 1.0) | {"ttft_mean": float(row.mean())}
                cells.append(cell | (metrics or {}).get(load.name, {}))
    return Evaluation(
        cells=pa.Table.from_pylist(cells),
        samples=samples,
        capacity=np.ones(len(windows)),
        num_dropped=num_dropped,
        num_truncated=num_truncated,
    )


def stand(ttft, loads=(KNEE,), policies=(), **options):
    """Judge policies by what their requests waited; return standings and rows per load.

    `policies` gives those of `ttft` that are more than a name.
    """
    evaluation = make_evaluation(ttft, loads, **options)
    special = {policy.name: policy for policy in policies}
    chosen = [special.get(name) or make_policy(name) for name in ttft]
    standings = judge(chosen, loads, evaluation, "traffic.csv", seed=0)
    return standings, load_rows(standings, loads, evaluation)

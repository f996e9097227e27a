"""Evaluations made by hand, so that a test says itself what came out of the runs."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from queuesmith.evaluation.evaluate import Evaluation, Offered
from queuesmith.evaluation.goals import GOALS, GUARDS
from queuesmith.evaluation.judge import judge
from queuesmith.evaluation.samples import Samples, Totals
from queuesmith.metrics import METRICS
from queuesmith.policies import Policy
from queuesmith.policies.policy import load_text

OWN = Offered("own", 0.2, 2.0)
KNEE = Offered("knee", 0.95, 9.5)
HEAVY = Offered("heavy", 1.5, 15.0)

#: Seconds that windows of 200 requests waited under FCFS: 1 s on the average, windows unlike.
FCFS = np.random.default_rng(0).lognormal(size=(8, 200)) * np.linspace(0.5, 1.5, 8)[:, None]
FCFS /= FCFS.mean()


def make_policy(name: str, *lines: str) -> Policy:
    """Build a policy that sorts by arrival, with further lines such as ``ORACLE = True``."""
    source = "\n".join([*lines, "def waiting_key(request, engine):", "    return 0.0"])
    return load_text(name, source, Path(f"{name}.py"))


def make_samples(ttft, **columns) -> Samples:
    """Build samples from seconds, one row per window; TPOT is 20 ms, everybody decodes 1 s."""
    windows = [np.asarray(times, np.float64) for times in ttft]
    pooled = np.concatenate(windows)
    ones = np.ones(len(pooled), np.int64)
    counts = np.zeros((len(windows), 1047), np.int64)
    counts[:, 380] = [50 * len(times) for times in windows]
    served = np.array([len(times) for times in windows], np.float64)
    samples = Samples(
        ttft=pooled,
        slowdown=pooled + 1.0,
        prompt_len=ones,
        output_len=51 * ones,
        window=np.repeat(np.arange(len(windows)), list(map(len, windows))),
        tpot=0.02 * ones,
        e2el=pooled + 1.0,
        met=pooled < 2.0,
        totals=Totals(
            span=100.0 * np.ones(len(windows)),
            num_output_tokens=51 * served,
            num_computed_tokens=1000.0 * served,
            num_recomputed_tokens=0.0 * served,
            itl_counts=counts,
        ),
    )
    return replace(samples, **columns)


def make_evaluation(samples, loads) -> Evaluation:
    """Build an evaluation from ``samples[policy][load]``."""
    cells = []
    for policy, by_load in samples.items():
        for load in loads:
            found = by_load[load.name]
            for window in found.windows:
                mine = found.ttft[found.window == window]
                cell = {"policy": policy, "load": load.name, "rho": load.rho, "window": int(window)}
                cell |= dict.fromkeys(METRICS, 1.0)
                cell |= {"ttft_mean": float(np.nanmean(mine)), "queued_time_mean": 1.0}
                cells.append(cell)
    pooled = {
        (policy, load): found for policy, each in samples.items() for load, found in each.items()
    }
    return Evaluation(
        cells=pa.Table.from_pylist(cells),
        samples=pooled,
        loads=tuple(loads),
        own=OWN,
        capacity=np.full(8, 10.0),
        num_dropped=0,
        num_truncated=0,
    )


def stand(samples, loads=(KNEE,), policies=(), goal="ttft", guards=GUARDS):
    """Judge policies by what their requests experienced; `policies` are more than a name."""
    special = {policy.name: policy for policy in policies}
    chosen = [special.get(name) or make_policy(name) for name in samples]
    evaluation = make_evaluation(samples, loads)
    standings = judge(
        chosen,
        [load.name for load in loads],
        evaluation.samples,
        goal=GOALS[goal],
        guards=guards,
        seed=0,
    )
    return standings, evaluation

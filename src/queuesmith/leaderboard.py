"""Every policy beside FCFS, over all loads and load by load."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from queuesmith.evaluate import Evaluation, Load
from queuesmith.metrics import METRICS, censored_quantiles
from queuesmith.policies import Policy
from queuesmith.score import (
    Configuration,
    Improvement,
    LoadTest,
    Sample,
    Score,
    Tail,
    Term,
    improvement,
    load_tests,
    score,
    tail_violation,
    window_wins,
)

REFERENCE = "fcfs"
DRAWS = 10_000


@dataclass(frozen=True, eq=False)
class Standing:
    """One policy beside FCFS; mappings are by load name.

    Attributes
    ----------
    policy : Policy
    score : Score
    terms, improvements, tails, tests : mapping of str to Term, Improvement, Tail, LoadTest
    lowest : mapping of str to float
        Lower end of the score of one load alone, or of all loads under ``""``, at a level at which
        not one in twenty comparisons calls any policy better by chance (Bonferroni over policies).
    counts : (int, int, int)
        Windows won, tied and lost, over all loads.
    """

    policy: Policy
    score: Score
    terms: Mapping[str, Term]
    improvements: Mapping[str, Improvement]
    tails: Mapping[str, Tail]
    tests: Mapping[str, LoadTest]
    lowest: Mapping[str, float]
    counts: tuple[int, int, int]

    @property
    def kind(self) -> str:
        """Return policy, or what sets it apart: bundle (own settings) or oracle (undeployable)."""
        if self.policy.oracle:
            return "oracle"
        return "bundle" if self.policy.is_bundle else "policy"

    @property
    def violations(self) -> list[str]:
        """Say for each load whose tail it violates how."""
        return [f"{load}: {tail.reason}" for load, tail in self.tails.items() if tail.violated]


def judge(
    policies: Sequence[Policy],
    loads: Sequence[Load],
    evaluation: Evaluation,
    source: str,
    seed: int,
) -> list[Standing]:
    """Judge every policy against FCFS, best score first."""

    def sample(policy: str, load: str) -> Sample:
        pooled = evaluation.samples[policy, load]
        return Sample(pooled.ttft, pooled.window)

    keys = {load.name: Configuration(source, load.name) for load in loads}
    reference = {key: sample(REFERENCE, load) for load, key in keys.items()}
    level = 1 - 0.05 / max(len(policies) - 1, 1)
    judged = []
    for policy in policies:
        samples = {key: sample(policy.name, load) for load, key in keys.items()}
        wins = [window_wins(samples[key], reference[key]) for key in keys.values()]
        tests = load_tests(samples, reference)
        scored = score(samples, reference, draws=DRAWS, seed=seed)
        judged.append(
            Standing(
                policy=policy,
                score=scored,
                terms={load: scored.terms[key] for load, key in keys.items()},
                improvements={
                    load: improvement(samples[key], reference[key], draws=DRAWS, seed=seed)
                    for load, key in keys.items()
                },
                tails={
                    load: tail_violation(samples[key], reference[key], draws=DRAWS, seed=seed)
                    for load, key in keys.items()
                },
                tests={load: tests[key] for load, key in keys.items()},
                lowest={
                    "": score(samples, reference, draws=DRAWS, seed=seed, level=level).low,
                }
                | {
                    load: score(
                        {key: samples[key]},
                        {key: reference[key]},
                        draws=DRAWS,
                        seed=seed,
                        level=level,
                    ).low
                    for load, key in keys.items()
                },
                counts=(
                    sum(won.wins for won in wins),
                    sum(won.ties for won in wins),
                    sum(won.losses for won in wins),
                ),
            )
        )
    return sorted(judged, key=lambda one: (-_finite(one.score.value), one.policy.name))


def _finite(value: float) -> float:
    return -math.inf if math.isnan(value) else value


def leaderboard(judged: Sequence[Standing]) -> list[dict[str, Any]]:
    """One row per policy; equal scores share a rank."""
    rows: list[dict[str, Any]] = []
    for place, one in enumerate(judged, start=1):
        tied = bool(rows) and rows[-1]["score"] == one.score.value
        rows.append(
            {
                "rank": rows[-1]["rank"] if tied else place,
                "policy": one.policy.name,
                "summary": one.policy.summary,
                "kind": one.kind,
                "score": one.score.value,
                "score_low": one.score.low,
                "score_high": one.score.high,
                "wins": one.counts[0],
                "ties": one.counts[1],
                "losses": one.counts[2],
                "tail_violations": len(one.violations),
                "tail_reasons": one.violations,
            }
        )
    return rows


#: Metrics of a load that add up over windows; the others are averaged.
_SUMS = ("num_preemptions", "num_unfinished", "num_requests", "num_dropped", "num_steps")


def load_rows(
    judged: Sequence[Standing], loads: Sequence[Load], evaluation: Evaluation
) -> list[dict[str, Any]]:
    """One row per policy and load: every metric, and the changes against FCFS.

    TTFT is pooled over windows, as the score is; counts add up and other metrics are means over
    windows. A window without a value leaves the mean without one: nothing is imputed.
    """
    names = evaluation.cells["policy"].to_numpy()
    regions = evaluation.cells["load"].to_numpy()
    columns = {name: evaluation.cells[name].to_numpy() for name in METRICS}
    rows = []
    for load in loads:
        for one in judged:
            mine = (names == one.policy.name) & (regions == load.name)
            row: dict[str, Any] = {"policy": one.policy.name, "load": load.name, "rho": load.rho}
            for name, values in columns.items():
                row[name] = float(values[mine].sum() if name in _SUMS else values[mine].mean())
            ttft = evaluation.samples[one.policy.name, load.name].ttft
            row["ttft_mean"] = float(ttft.mean())
            levels = {"ttft_p50": 0.5, "ttft_p90": 0.9, "ttft_p99": 0.99, "ttft_max": 1.0}
            pooled = censored_quantiles(ttft, list(levels.values()))
            row |= dict(zip(levels, pooled, strict=True))
            # Subtracted from 0, so that no change is 0 and not minus 0.
            change, test = one.improvements[load.name], one.tests[load.name]
            row |= {
                "mean_change": 0.0 - change.mean,
                "mean_change_low": 0.0 - change.mean_high,
                "mean_change_high": 0.0 - change.mean_low,
                "p99_change": 0.0 - change.p99,
                "p99_change_low": 0.0 - change.p99_high,
                "p99_change_high": 0.0 - change.p99_low,
                "tail_violated": one.tails[load.name].violated,
                "wins": test.wins,
                "ties": test.ties,
                "losses": test.losses,
                "p_value": test.p_holm,
            }
            rows.append(row)
    return rows

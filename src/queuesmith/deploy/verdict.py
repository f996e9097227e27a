"""What the runs of an A/B measurement say, with everything that speaks against believing it."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from queuesmith import numbers
from queuesmith.deploy.ab import STOCK, ArmLoad, Cell, Turn, ttft_of
from queuesmith.deploy.arms import Run
from queuesmith.deploy.machine import adjusted, machine_ratio, quotient, uneven_pairs, within
from queuesmith.evaluation.samples import Samples
from queuesmith.score import (
    MARGIN,
    MIN_WINDOWS,
    Configuration,
    LoadTest,
    Sample,
    improvement,
    load_tests,
    tail_violation,
)

DRAWS = 10_000
#: A client that sends later than this share of the mean TTFT measures itself.
LATE_SHARE = 0.1
#: Seconds of lateness that are nothing to speak of in any case.
LATE_AT_LEAST = 0.01

Runs = Mapping[tuple[int, int, str], Run]  # by cell, repeat and arm


@dataclass(frozen=True, eq=False)
class Outcome:
    """Everything measured, judged.

    Attributes
    ----------
    runs : list of dict
        One per load, window and repeat, in that order, with both arms.
    loads : list of dict
        One per load, with the verdict.
    failures : list of dict
        Every request that failed, with how.
    samples : mapping of (arm, load) to Samples
        Requests that every run of both arms served, less the pairs of runs on an uneven machine.
    """

    runs: list[dict[str, Any]]
    loads: list[dict[str, Any]]
    failures: list[dict[str, Any]]
    samples: dict[tuple[str, str], Samples]


def judge_runs(
    measured: Sequence[tuple[Turn, Run]],
    cells: Sequence[Cell],
    policy: str,
    *,
    source: str,
    margin: float,
    seed: int,
    virtual: bool = False,
    simulated: Mapping[tuple[str, str], float] | None = None,
) -> Outcome:
    """Judge the policy's arm against stock vLLM at every load.

    Parameters
    ----------
    measured : sequence of (Turn, Run)
    cells : sequence of Cell
    policy : str
        Name of its arm.
    source : str
        Of the traffic.
    margin : float
        Share by which the arms' steps may differ.
    seed : int
        Of the bootstrap.
    virtual : bool
        Whether the clock was virtual, so that there is no machine to speak of.
    simulated : mapping of (arm, load) to float, optional
        Mean TTFT that the simulator expects, to be laid beside what was measured.
    """
    runs: dict[tuple[int, int, str], Run] = {
        (turn.cell, turn.repeat, turn.arm): run for turn, run in measured
    }
    uneven = set() if virtual else uneven_pairs(runs, policy, margin)
    even = {key: run for key, run in runs.items() if key[:2] not in uneven}
    loads = list(dict.fromkeys(cell.load for cell in cells))
    samples: dict[tuple[str, str], Samples] = {}
    rows = []
    for load in loads:
        both = _samples(even, cells, load, policy)
        samples |= {(arm, load.name): sample for arm, sample in both.items()}
        rows.append(_load_row(runs, cells, load, policy, both, margin, seed, virtual, uneven))
    for row in rows:
        for arm, pooled in row["arms"].items():
            pooled["simulated_ttft_mean"] = (simulated or {}).get((arm, row["load"]), math.nan)
    for row, test in zip(rows, _tests(samples, loads, policy, source), strict=True):
        row |= {"wins": test.wins, "ties": test.ties, "losses": test.losses}
        row["p_value"] = test.p_holm
        row["verdict"], row["reason"] = _verdict(row)
    return Outcome(_run_rows(runs, cells, policy), rows, _failures(runs, cells), samples)


def _run_rows(runs: Runs, cells: Sequence[Cell], policy: str) -> list[dict[str, Any]]:
    rows = []
    for index, cell in enumerate(cells):
        for repeat in sorted({key[1] for key in runs if key[0] == index}):
            arms = {
                arm: _arm_row(runs[index, repeat, arm])
                for arm in (STOCK, policy)
                if (index, repeat, arm) in runs
            }
            row = {
                "load": cell.load.name,
                "rate": cell.rate,
                "window": cell.window.index,
                "repeat": repeat,
                "arms": arms,
                "mean_change": math.nan,
                "p99_change": math.nan,
            }
            if len(arms) == 2:
                for name in ("mean", "p99"):
                    base = arms[STOCK][f"ttft_{name}"]
                    row[f"{name}_change"] = arms[policy][f"ttft_{name}"] / base - 1
            rows.append(row)
    return rows


def _arm_row(run: Run) -> dict[str, Any]:
    times = ttft_of(run)
    times = times[np.isfinite(times)]
    late = _lateness([run])
    good = [one for one in run.served if not one.error]
    decodes = sum(one.num_output_tokens - 1 for one in good)
    return {
        "num_requests": len(run.served),
        "num_failed": len(run.served) - len(good),
        "ttft_mean": _mean(times),
        "ttft_p99": float(np.quantile(times, 0.99)) if len(times) else math.nan,
        "tpot": sum(one.last_token_ts - one.first_token_ts for one in good) / decodes
        if decodes
        else math.nan,
        "e2el_mean": _mean(np.array([one.last_token_ts - one.arrival_time for one in good])),
        "num_steps": run.num_steps,
        "ms_per_step": quotient(1e3 * run.step_seconds, run.num_steps),
        "slowness": quotient(run.step_seconds, run.expected_seconds),
        "lateness_p99": float(np.quantile(late, 0.99)) if len(late) else math.nan,
        "lateness_max": float(late.max()) if len(late) else math.nan,
        "notes": list(run.notes),
    }


def _samples(runs: Runs, cells: Sequence[Cell], load: ArmLoad, policy: str) -> dict[str, Samples]:
    """Pool, for each arm, the requests that all runs served, so that arms stay paired."""
    parts: dict[str, list[list[NDArray[Any]]]] = {STOCK: [], policy: []}
    for index, cell in enumerate(cells):
        if cell.load != load:
            continue
        repeats = [
            repeat
            for repeat in sorted({key[1] for key in runs if key[0] == index})
            if all((index, repeat, arm) in runs for arm in parts)
        ]
        if not repeats:
            continue
        times = {
            arm: np.array([ttft_of(runs[index, repeat, arm]) for repeat in repeats])
            for arm in parts
        }
        rows = np.flatnonzero(np.isfinite(np.concatenate(list(times.values()))).all(axis=0))
        trace = cell.workload.trace
        for arm, by_repeat in times.items():
            # All repeats of a window are one unit: the mean is that of the repeats' means.
            many = np.tile(rows, len(repeats))
            parts[arm].append(
                [
                    by_repeat[:, rows].reshape(-1),
                    trace.prompt_len[many],
                    cell.workload.output_len[many],
                    np.full(len(many), cell.window.index),
                ]
            )
    return {
        arm: Samples(
            ttft=ttft,
            slowdown=np.full(len(ttft), np.nan),
            prompt_len=prompt_len,
            output_len=output_len,
            window=window,
        )
        for arm, columns in parts.items()
        if columns
        for ttft, prompt_len, output_len, window in [
            [np.concatenate(column) for column in zip(*columns, strict=True)]
        ]
        if len(ttft)
    }


def _load_row(
    runs: Runs,
    cells: Sequence[Cell],
    load: ArmLoad,
    policy: str,
    both: Mapping[str, Samples],
    margin: float,
    seed: int,
    virtual: bool,
    uneven: set[tuple[int, int]],
) -> dict[str, Any]:
    pairs = {(cell, repeat) for cell, repeat, _ in runs if cells[cell].load == load}
    pairs = {pair for pair in pairs if {(*pair, STOCK), (*pair, policy)} <= runs.keys()}
    judged = {
        arm: [runs[*pair, arm] for pair in pairs - uneven or pairs] for arm in (STOCK, policy)
    }
    mine = {
        arm: [
            run for (cell, _, name), run in runs.items() if cells[cell].load == load and name == arm
        ]
        for arm in (STOCK, policy)
    }
    row: dict[str, Any] = {
        "load": load.name,
        "rho": load.rho,
        "num_windows": len(np.unique(both[STOCK].window)) if STOCK in both else 0,
        "num_paired": len(both[STOCK].ttft) if STOCK in both else 0,
        "num_failed": sum(
            bool(one.error) for of in mine.values() for run in of for one in run.served
        ),
        "arms": {arm: _pooled(of, both.get(arm)) for arm, of in judged.items()},
        "num_pairs": len(pairs),
        "num_uneven": len(pairs & uneven),
        "machine_ratio": 1.0 if virtual else machine_ratio(judged[policy], judged[STOCK]),
        "machine_margin": margin,
        "adjusted_for_work": virtual or adjusted(mine[policy] + mine[STOCK]),
    }
    names = [f"{name}_change{end}" for name in ("mean", "p99") for end in ("", "_low", "_high")]
    row |= dict.fromkeys(names, math.nan) | {"tail_violated": False, "tail_reason": ""}
    if len(both) == 2:
        stock = Sample(both[STOCK].ttft, both[STOCK].window)
        ours = Sample(both[policy].ttft, both[policy].window)
        change = improvement(ours, stock, draws=DRAWS, seed=seed)
        tail = tail_violation(ours, stock, draws=DRAWS, seed=seed)
        # Subtracted from 0, so that no change is 0 and not minus 0.
        for name in ("mean", "p99"):
            row[f"{name}_change"] = 0.0 - getattr(change, name)
            row[f"{name}_change_low"] = 0.0 - getattr(change, f"{name}_high")
            row[f"{name}_change_high"] = 0.0 - getattr(change, f"{name}_low")
        row["tail_violated"], row["tail_reason"] = tail.violated, tail.reason
    return row


def _pooled(of: Sequence[Run], sample: Samples | None) -> dict[str, float]:
    times = np.empty(0) if sample is None else sample.ttft
    late = _lateness(of)
    return {
        "ttft_mean": _mean(times),
        "ttft_p50": float(np.quantile(times, 0.5)) if len(times) else math.nan,
        "ttft_p99": float(np.quantile(times, 0.99)) if len(times) else math.nan,
        "ms_per_step": quotient(
            1e3 * sum(run.step_seconds for run in of), sum(run.num_steps for run in of)
        ),
        "slowness": quotient(
            sum(run.step_seconds for run in of), sum(run.expected_seconds for run in of)
        ),
        "lateness_p99": float(np.quantile(late, 0.99)) if len(late) else math.nan,
        "lateness_max": float(late.max()) if len(late) else math.nan,
    }


def _tests(
    samples: Mapping[tuple[str, str], Samples],
    loads: Sequence[ArmLoad],
    policy: str,
    source: str,
) -> list[LoadTest]:
    """Test every load that has windows; Holm counts those that could be tested."""
    keys = {load.name: Configuration(source, load.name) for load in loads}
    ours, stock = (
        {
            keys[load.name]: Sample(sample.ttft, sample.window)
            for load in loads
            if (sample := samples.get((arm, load.name))) is not None
        }
        for arm in (policy, STOCK)
    )
    tests = load_tests(ours, stock) if ours else {}
    nothing = LoadTest(0, 0, 0, math.nan, math.nan)
    return [tests.get(keys[load.name], nothing) for load in loads]


def _verdict(row: Mapping[str, Any]) -> tuple[str, str]:
    """Return better, worse, same, unsure or withheld, and why."""
    pairs, uneven = row["num_pairs"], row["num_uneven"]
    if row["num_failed"] or not (row["num_paired"] or uneven):
        return "withheld", f"{row['num_failed']:,} requests failed"
    ratio, margin = row["machine_ratio"], row["machine_margin"]
    if math.isnan(ratio):
        return "withheld", "nobody knows how fast the machine was for each arm"
    if uneven > pairs / 2 or not within(ratio, margin):
        what = "steps" if row["adjusted_for_work"] else "ms per step"
        return "withheld", (
            f"in {uneven} of {pairs} pairs of runs the arms did not see the same machine: their "
            f"{what} differ by more than the margin of {margin:.0%}"
        )
    for arm, pooled in row["arms"].items():
        allowed = max(LATE_AT_LEAST, LATE_SHARE * pooled["ttft_mean"])
        if pooled["lateness_p99"] > allowed:
            return "withheld", (
                f"the client sent requests late ({numbers.number(pooled['lateness_p99'], 1e3)} ms "
                f"at p99, arm {arm}); it needs a machine of its own"
            )
    if row["num_windows"] >= 2 and row["mean_change_high"] < -MARGIN:
        word = "better"
    elif row["num_windows"] >= 2 and row["mean_change_low"] > MARGIN:
        word = "worse"
    elif abs(row["mean_change"]) <= MARGIN:
        word = "same"
    else:
        word = "unsure"
    reasons = []
    if row["num_windows"] < MIN_WINDOWS and word != "same":
        reasons.append(f"a hint: {row['num_windows']} of the {MIN_WINDOWS} windows a test needs")
    if uneven:
        reasons.append(
            f"{uneven} of {pairs} pairs of runs are left out, in which the arms did not see the "
            "same machine"
        )
    if row["tail_violated"]:
        reasons.append(f"its tail is longer: {row['tail_reason']}")
    return word, "; ".join(reasons)


def _failures(runs: Runs, cells: Sequence[Cell]) -> list[dict[str, Any]]:
    return [
        {
            "load": cells[cell].load.name,
            "window": cells[cell].window.index,
            "repeat": repeat,
            "arm": arm,
            "row": one.row,
            "num_output_tokens": one.num_output_tokens,
            "error": one.error,
        }
        for (cell, repeat, arm), run in sorted(runs.items())
        for one in run.served
        if one.error
    ]


def failure_lines(failures: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return one line for each arm and kind of failure, the most frequent first."""
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for failure in failures:
        counts[failure["arm"], failure["error"]] += 1
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [f"{arm}: {count:,} requests: {error}" for (arm, error), count in ordered]


def _lateness(of: Sequence[Run]) -> NDArray[np.float64]:
    late = np.array([one.lateness for run in of for one in run.served], np.float64)
    return late[np.isfinite(late)]


def _mean(values: NDArray[np.float64]) -> float:
    return float(values.mean()) if len(values) else math.nan

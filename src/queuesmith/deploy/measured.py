"""What a replay measured, per run and pooled over windows so that both arms stay paired."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from queuesmith.config import Slo
from queuesmith.deploy.ab import STOCK, Cell
from queuesmith.deploy.arms import Run
from queuesmith.deploy.machine import quotient
from queuesmith.engine.result import ITL_EDGES
from queuesmith.evaluation.evaluate import Load
from queuesmith.evaluation.samples import Floats, Samples, Totals

Runs = Mapping[tuple[int, int, str], Run]  # by cell, repeat and arm


@dataclass(frozen=True, eq=False)
class Latencies:
    """Of each request, in seconds from when it was due; NaN where it failed.

    Attributes
    ----------
    ttft, tpot, e2el : (num_requests,) float64
        TPOT is NaN for one-token answers, too.
    """

    ttft: Floats
    tpot: Floats
    e2el: Floats

    @classmethod
    def of(cls, run: Run) -> "Latencies":
        """Return what the client saw in a run."""
        failed = np.array([bool(one.error) for one in run.served])
        due, first, last, tokens = (
            np.array([getattr(one, name) for one in run.served], np.float64)
            for name in ("arrival_time", "first_token_ts", "last_token_ts", "num_output_tokens")
        )
        gaps = np.where(tokens > 1, tokens - 1, math.nan)
        times = (first - due, (last - first) / gaps, last - due)
        return cls(*(np.where(failed, math.nan, each) for each in times))


@dataclass(frozen=True)
class ArmRun:
    """One arm serving one window at one load once; latencies in seconds.

    Attributes
    ----------
    num_requests, num_failed, num_steps : int
    ttft_mean, ttft_p99, tpot_mean, tpot_p99, e2el_mean, e2el_p99 : float
    output_throughput : float
        Tokens/s, from the first arrival to the last token.
    ms_per_step : float
    slowness : float
        Seconds of its steps over what the step-time model expects.
    lateness_p99, lateness_max : float
        Seconds between when requests were due and when the client sent them.
    notes : tuple of str
    """

    num_requests: int
    num_failed: int
    num_steps: int
    ttft_mean: float
    ttft_p99: float
    tpot_mean: float
    tpot_p99: float
    e2el_mean: float
    e2el_p99: float
    output_throughput: float
    ms_per_step: float
    slowness: float
    lateness_p99: float
    lateness_max: float
    notes: tuple[str, ...]

    @classmethod
    def of(cls, run: Run) -> "ArmRun":
        """Sum up a run."""
        seen, late = Latencies.of(run), lateness([run])
        good = [one for one in run.served if not one.error]
        numbers = {
            f"{name}_{statistic}": value
            for name in ("ttft", "tpot", "e2el")
            for statistic, value in zip(
                ("mean", "p99"), _mean_and_p99(getattr(seen, name)), strict=True
            )
        }
        return cls(
            num_requests=len(run.served),
            num_failed=len(run.served) - len(good),
            num_steps=run.num_steps,
            output_throughput=quotient(sum(one.num_output_tokens for one in good), _span(run)),
            ms_per_step=quotient(1e3 * run.step_seconds, run.num_steps),
            slowness=quotient(run.step_seconds, run.expected_seconds),
            lateness_p99=float(np.quantile(late, 0.99)) if len(late) else math.nan,
            lateness_max=float(late.max()) if len(late) else math.nan,
            notes=run.notes,
            **numbers,
        )


@dataclass(frozen=True)
class Failure:
    """A request that failed, with how."""

    load: str
    window: int
    repeat: int
    arm: str
    row: int
    num_output_tokens: int
    error: str


@dataclass(frozen=True)
class RunRow:
    """A window at a load in one repeat, under both arms.

    Attributes
    ----------
    load : str
    rate : float
        Offered, requests/s.
    window, repeat : int
    arms : mapping of str to ArmRun
    """

    load: str
    rate: float
    window: int
    repeat: int
    arms: Mapping[str, ArmRun]


def lateness(runs: Sequence[Run]) -> Floats:
    """Return by how many seconds the client was late, of each request that was sent."""
    late = np.array([one.lateness for run in runs for one in run.served], np.float64)
    return late[np.isfinite(late)]


def pool_arms(
    runs: Runs, cells: Sequence[Cell], load: Load, policy: str, slo: Slo | None
) -> dict[str, Samples]:
    """Pool, for each arm, the requests that every run of both arms served.

    All repeats of a window are one unit: its mean is that of the repeats' means. Gaps between
    single tokens and recomputed tokens are not measured.
    """
    parts: dict[str, list[_Part]] = {STOCK: [], policy: []}
    for index, cell in enumerate(cells):
        if cell.load != load:
            continue
        repeats = [
            repeat
            for repeat in sorted({key[1] for key in runs if key[0] == index})
            if all((index, repeat, arm) in runs for arm in parts)
        ]
        served = {arm: [runs[index, repeat, arm] for repeat in repeats] for arm in parts}
        seen = {arm: [Latencies.of(run) for run in each] for arm, each in served.items()}
        firsts = [each.ttft for of_arm in seen.values() for each in of_arm]
        rows = np.flatnonzero(np.isfinite(firsts).all(axis=0)) if firsts else np.empty(0, np.int64)
        if len(rows):
            for arm in parts:
                parts[arm].append(_Part(cell, rows, served[arm], seen[arm]))
    return {arm: _pool(each, slo) for arm, each in parts.items() if each}


@dataclass(frozen=True, eq=False)
class _Part:
    """The repeats of one window, and the rows that all of them served."""

    cell: Cell
    rows: NDArray[np.int64]
    runs: Sequence[Run]
    seen: Sequence[Latencies]


def _pool(parts: Sequence[_Part], slo: Slo | None) -> Samples:
    parts = sorted(parts, key=lambda part: part.cell.window.index)

    def latency(name: str) -> Floats:
        return np.concatenate(
            [getattr(each, name)[part.rows] for part in parts for each in part.seen]
        )

    def column(name: str) -> NDArray[np.int64] | None:
        values = [getattr(part.cell.workload.trace, name) for part in parts]
        if any(each is None for each in values):
            return None
        return np.concatenate([_tile(one, part) for one, part in zip(values, parts, strict=True)])

    ttft, tpot, e2el = latency("ttft"), latency("tpot"), latency("e2el")
    output_len = np.concatenate([_tile(part.cell.workload.output_len, part) for part in parts])
    sizes = [len(part.rows) * len(part.seen) for part in parts]
    unknown = np.full(len(parts), math.nan)
    return Samples(
        ttft=ttft,
        tpot=None if np.isnan(tpot).all() else tpot,
        e2el=e2el,
        slowdown=e2el / np.concatenate([_tile(part.cell.alone, part) for part in parts]),
        prompt_len=np.concatenate(
            [_tile(part.cell.workload.trace.prompt_len, part) for part in parts]
        ),
        output_len=output_len,
        window=np.repeat([part.cell.window.index for part in parts], sizes),
        met=None if slo is None else _met(slo, ttft, tpot, e2el),
        priority=column("priority"),
        client=column("client"),
        totals=Totals(
            span=np.array([sum(_span(run) for run in part.runs) for part in parts]),
            num_output_tokens=np.array([_num_tokens(part) for part in parts], np.float64),
            num_computed_tokens=unknown,
            num_recomputed_tokens=unknown,
            itl_counts=np.zeros((len(parts), len(ITL_EDGES) - 1), np.int64),
        ),
    )


def _tile(values: NDArray[np.generic], part: _Part) -> NDArray[np.generic]:
    return np.tile(values[part.rows], len(part.seen))


def _met(slo: Slo, ttft: Floats, tpot: Floats, e2el: Floats) -> NDArray[np.bool_]:
    """As `queuesmith.metrics.met_slo`: the TPOT of a one-token answer meets any limit."""
    met = np.isfinite(e2el)
    for times, limit in ((ttft, slo.ttft), (np.nan_to_num(tpot), slo.tpot), (e2el, slo.e2el)):
        if limit is not None:
            met &= times <= limit
    return met


def _num_tokens(part: _Part) -> int:
    return sum(one.num_output_tokens for run in part.runs for one in run.served if not one.error)


def _span(run: Run) -> float:
    """Seconds from the first arrival to the last token."""
    last = [one.last_token_ts for one in run.served if not one.error]
    return max(last) - min(one.arrival_time for one in run.served) if last else math.nan


def _mean_and_p99(values: Floats) -> tuple[float, float]:
    known = values[np.isfinite(values)]
    if not len(known):
        return math.nan, math.nan
    return float(known.mean()), float(np.quantile(known, 0.99))


def run_rows(runs: Runs, cells: Sequence[Cell], policy: str) -> tuple[RunRow, ...]:
    """Sum up every run, load by load, window by window."""
    rows = []
    for index, cell in enumerate(cells):
        for repeat in sorted({key[1] for key in runs if key[0] == index}):
            arms = {
                arm: ArmRun.of(runs[index, repeat, arm])
                for arm in (STOCK, policy)
                if (index, repeat, arm) in runs
            }
            rows.append(RunRow(cell.load.name, cell.rate, cell.window.index, repeat, arms))
    return tuple(rows)


def find_failures(runs: Runs, cells: Sequence[Cell]) -> tuple[Failure, ...]:
    """Return every request that failed."""
    return tuple(
        Failure(
            cells[cell].load.name,
            cells[cell].window.index,
            repeat,
            arm,
            one.row,
            one.num_output_tokens,
            one.error,
        )
        for (cell, repeat, arm), run in sorted(runs.items())
        for one in run.served
        if one.error
    )


def failure_lines(failures: Sequence[Failure]) -> list[str]:
    """Return one line for each arm and kind of failure, the most frequent first."""
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for failure in failures:
        counts[failure.arm, failure.error] += 1
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [f"{arm}: {count:,} requests: {error}" for (arm, error), count in ordered]

"""What the runs of an A/B measurement say, with everything that speaks against believing it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from queuesmith import numbers
from queuesmith._version import __version__
from queuesmith.config import Slo
from queuesmith.deploy.ab import STOCK, Cell, Turn
from queuesmith.deploy.arms import Run
from queuesmith.deploy.machine import adjusted, machine_ratio, quotient, uneven_pairs, within
from queuesmith.deploy.measured import (
    Failure,
    RunRow,
    Runs,
    find_failures,
    lateness,
    pool_arms,
    run_rows,
)
from queuesmith.documents import jsonable
from queuesmith.evaluation.evaluate import Load
from queuesmith.evaluation.goals import LEAST_FOR_P999, MARGIN, Goal, Guard
from queuesmith.evaluation.judge import MIN_WINDOWS, Beside, BrokenGuard, Change, beside
from queuesmith.evaluation.samples import Samples
from queuesmith.evaluation.statistics import STATISTICS, draw_weights
from queuesmith.stats import holm

SCHEMA = "queuesmith.ab/2"
#: A client that sends later than this share of the mean TTFT measures itself.
LATE_SHARE = 0.1
#: Seconds of lateness that are nothing to speak of in any case.
LATE_AT_LEAST = 0.01
#: Exit status of each verdict; the largest over all loads counts.
EXIT_STATUS = {"better": 0, "same": 0, "unsure": 0, "worse": 1, "mixed": 1, "withheld": 2}


@dataclass(frozen=True)
class ArmState:
    """The machine and the client under one arm at a load, over the runs that were judged.

    Attributes
    ----------
    ms_per_step : float
    slowness : float
        Seconds of its steps over what the step-time model expects.
    lateness_p99, lateness_max : float
        Seconds between when requests were due and when the client sent them.
    simulated_ttft_mean : float
        What the simulator expects, s; NaN where it was not simulated.
    """

    ms_per_step: float
    slowness: float
    lateness_p99: float
    lateness_max: float
    simulated_ttft_mean: float


@dataclass(frozen=True)
class LoadVerdict:
    """The policy beside stock vLLM at one load.

    Attributes
    ----------
    load : str
    rho, rate : float
        Offered rate over capacity (NaN where that is not known), and in requests/s.
    verdict : {"better", "mixed", "worse", "same", "unsure", "withheld"}
        Mixed: a guard is broken or the goal is worse, and something else is better.
    reason : str
        Why it is withheld, or what to know about it.
    changes : mapping of str to Change
        By statistic; those that could be measured.
    better, worse : tuple of str
        Statistics that are surely better, or worse, by more than 1 %.
    broken : tuple of BrokenGuard
    num_windows, num_paired, num_failed
        Windows and requests that were judged (each repeat counts), and requests that failed.
    num_pairs, num_uneven
        Pairs of runs, and those left out since the machine was not as fast for both arms.
    machine_ratio, machine_margin, adjusted_for_work
        How much slower the machine was for the policy, what is allowed, and whether that is for
        the same work and not per step.
    wins, ties, losses, p_value
        Windows, by the goal, and their two-sided sign test, adjusted over loads (Holm).
    arms : mapping of str to ArmState
    """

    load: str
    rho: float
    rate: float
    verdict: str
    reason: str
    changes: Mapping[str, Change]
    better: tuple[str, ...]
    worse: tuple[str, ...]
    broken: tuple[BrokenGuard, ...]
    num_windows: int
    num_paired: int
    num_failed: int
    num_pairs: int
    num_uneven: int
    machine_ratio: float
    machine_margin: float
    adjusted_for_work: bool
    wins: int
    ties: int
    losses: int
    p_value: float
    arms: Mapping[str, ArmState]


@dataclass(frozen=True, eq=False)
class Outcome:
    """Everything measured, judged.

    Attributes
    ----------
    runs, loads, failures : tuple of RunRow, LoadVerdict and Failure
        Runs by load, window and repeat.
    samples : mapping of (arm, load) to Samples
        Requests that every run of both arms served, less the pairs of runs on an uneven machine.
    """

    runs: tuple[RunRow, ...]
    loads: tuple[LoadVerdict, ...]
    failures: tuple[Failure, ...]
    samples: Mapping[tuple[str, str], Samples]

    @property
    def exit_status(self) -> int:
        """0 for better, same and unsure, 1 for worse and mixed, 2 without a verdict."""
        return max(EXIT_STATUS[row.verdict] for row in self.loads)


@dataclass(frozen=True, eq=False)
class Measurement:
    """An outcome, and how it came about.

    Attributes
    ----------
    outcome : Outcome
    goal : Goal
    guards : tuple of Guard
    config, origin : dict
        What was measured, and where the requests come from.
    warnings : tuple of str
    """

    outcome: Outcome
    goal: Goal
    guards: tuple[Guard, ...]
    config: dict[str, Any]
    origin: dict[str, Any]
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return what ``--json`` prints."""
        document: dict[str, Any] = jsonable(
            {
                "schema": SCHEMA,
                "version": __version__,
                "origin": self.origin,
                "config": self.config,
                "loads": self.outcome.loads,
                "runs": self.outcome.runs,
                "failures": self.outcome.failures,
                "warnings": self.warnings,
            }
        )
        return document


def judge_runs(
    measured: Sequence[tuple[Turn, Run]],
    cells: Sequence[Cell],
    policy: str,
    *,
    goal: Goal,
    guards: Sequence[Guard],
    slo: Slo | None,
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
    goal : Goal
    guards : sequence of Guard
    slo : Slo or None
    margin : float
        Share by which the arms' steps may differ.
    seed : int
        Of the draws of windows.
    virtual : bool
        Whether the clock was virtual, so that there is no machine to speak of.
    simulated : mapping of (arm, load) to float, optional
        Mean TTFT that the simulator expects, to be laid beside what was measured.
    """
    runs = {(turn.cell, turn.repeat, turn.arm): run for turn, run in measured}
    uneven = set() if virtual else uneven_pairs(runs, policy, margin)
    even = {key: run for key, run in runs.items() if key[:2] not in uneven}
    samples: dict[tuple[str, str], Samples] = {}
    rows = []
    for load in dict.fromkeys(cell.load for cell in cells):
        both = pool_arms(even, cells, load, policy, slo)
        samples |= {(arm, load.name): sample for arm, sample in both.items()}
        laid = None
        if len(both) == 2:
            weights = draw_weights(len(both[STOCK].windows), seed)
            laid = beside(
                both[policy],
                both[STOCK],
                load=load.name,
                goal=goal,
                guards=guards,
                weights=weights,
            )
        mine = _of_load(runs, cells, load, policy)
        row = _row(
            mine, load, cells, both.get(STOCK), laid, uneven, margin, virtual, simulated or {}
        )
        verdict, reason = _verdict(row, goal)
        rows.append(replace(row, verdict=verdict, reason=reason))
    return Outcome(
        runs=run_rows(runs, cells, policy),
        loads=tuple(_adjusted(rows)),
        failures=find_failures(runs, cells),
        samples=samples,
    )


def _of_load(runs: Runs, cells: Sequence[Cell], load: Load, policy: str) -> dict[str, Runs]:
    """Return the runs of each arm at a load."""
    return {
        arm: {key: run for key, run in runs.items() if cells[key[0]].load == load and key[2] == arm}
        for arm in (STOCK, policy)
    }


def _row(
    mine: Mapping[str, Runs],
    load: Load,
    cells: Sequence[Cell],
    stock: Samples | None,
    laid: Beside | None,
    uneven: set[tuple[int, int]],
    margin: float,
    virtual: bool,
    simulated: Mapping[tuple[str, str], float],
) -> LoadVerdict:
    """Return all of a load but its verdict."""
    pairs = set.intersection(*({key[:2] for key in of_arm} for of_arm in mine.values()))
    judged = {
        arm: [run for key, run in of_arm.items() if key[:2] in (pairs - uneven or pairs)]
        for arm, of_arm in mine.items()
    }
    changes = {} if laid is None or stock is None else _measured(laid, stock)
    own = [cell for cell in cells if cell.load == load]
    sizes = np.array([len(cell.workload.trace) for cell in own], np.float64)
    rate = float(sizes.sum() / sum(sizes / [cell.rate for cell in own]))
    carried = float(sizes.sum() / sum(sizes / [cell.carried for cell in own]))
    every = [run for of_arm in mine.values() for run in of_arm.values()]
    policy = next(arm for arm in mine if arm != STOCK)
    return LoadVerdict(
        load=load.name,
        rho=load.rho or rate / carried,
        rate=rate,
        verdict="",
        reason="",
        changes=changes,
        better=tuple(name for name, change in changes.items() if _surely(name, change, -1)),
        worse=tuple(name for name, change in changes.items() if _surely(name, change, 1)),
        broken=() if laid is None else laid.broken,
        num_windows=0 if stock is None else len(stock.windows),
        num_paired=0 if stock is None else len(stock.ttft),
        num_failed=sum(bool(one.error) for run in every for one in run.served),
        num_pairs=len(pairs),
        num_uneven=len(pairs & uneven),
        machine_ratio=1.0 if virtual else machine_ratio(judged[policy], judged[STOCK]),
        machine_margin=margin,
        adjusted_for_work=virtual or adjusted(every),
        wins=0 if laid is None else laid.wins,
        ties=0 if laid is None else laid.ties,
        losses=0 if laid is None else laid.losses,
        p_value=math.nan if laid is None else laid.p_value,
        arms={
            arm: _state(of_arm, simulated.get((arm, load.name), math.nan))
            for arm, of_arm in judged.items()
        },
    )


def _measured(laid: Beside, stock: Samples) -> dict[str, Change]:
    """Return the changes of what a client can see; requests that failed are not among them."""
    left_out = {"served"}
    if not np.isfinite(stock.slowdown).any():
        left_out.add("slowdown_max")
    if len(stock.ttft) < LEAST_FOR_P999:
        left_out.add("ttft_p999")
    return {
        name: change
        for name, change in laid.changes.items()
        if name not in left_out and math.isfinite(change.value) and math.isfinite(change.reference)
    }


def _surely(name: str, change: Change, sign: int) -> bool:
    """Tell whether a statistic is surely worse (1) or better (-1) by more than a tie."""
    worse = STATISTICS[name].worse
    ends = [sign * worse(end) for end in (change.low, change.high)]
    return min(ends) > MARGIN


def _state(of: Sequence[Run], simulated_ttft_mean: float) -> ArmState:
    late = lateness(of)
    return ArmState(
        ms_per_step=quotient(
            1e3 * sum(run.step_seconds for run in of), sum(run.num_steps for run in of)
        ),
        slowness=quotient(
            sum(run.step_seconds for run in of), sum(run.expected_seconds for run in of)
        ),
        lateness_p99=float(np.quantile(late, 0.99)) if len(late) else math.nan,
        lateness_max=float(late.max()) if len(late) else math.nan,
        simulated_ttft_mean=simulated_ttft_mean,
    )


def _verdict(row: LoadVerdict, goal: Goal) -> tuple[str, str]:
    withheld = _withheld(row)
    if withheld:
        return "withheld", withheld
    name = goal.statistic.name
    if name not in row.changes:
        return "withheld", f"no request has a {goal.statistic.label}"
    change = row.changes[name]
    if row.broken or name in row.worse:
        word = "mixed" if row.better else "worse"
    elif name in row.better:
        word = "better"
    elif abs(change.change) <= MARGIN:
        word = "same"
    else:
        word = "unsure"
    reasons = []
    if row.num_windows < MIN_WINDOWS and word != "same":
        reasons.append(f"a hint: {row.num_windows} of the {MIN_WINDOWS} windows a test needs")
    if row.num_uneven:
        reasons.append(
            f"{row.num_uneven} of {row.num_pairs} pairs of runs are left out, in which the arms "
            "did not see the same machine"
        )
    return word, "; ".join(reasons)


def _withheld(row: LoadVerdict) -> str:
    """Say why nothing can be concluded, or nothing."""
    pairs, uneven = row.num_pairs, row.num_uneven
    if row.num_failed or not (row.num_paired or uneven):
        return f"{row.num_failed:,} requests failed"
    if math.isnan(row.machine_ratio):
        return "the speed of the machine is not known for each arm"
    if uneven > pairs / 2 or not within(row.machine_ratio, row.machine_margin):
        what = "steps" if row.adjusted_for_work else "ms per step"
        return (
            f"in {uneven} of {pairs} pairs of runs the arms did not see the same machine: their "
            f"{what} differ by more than the margin of {row.machine_margin:.0%}"
        )
    mean = row.changes["ttft_mean"]
    waited = [mean.reference, mean.value]
    for (arm, state), ttft in zip(row.arms.items(), waited, strict=True):
        if state.lateness_p99 > max(LATE_AT_LEAST, LATE_SHARE * ttft):
            return (
                f"the client sent requests late ({numbers.number(state.lateness_p99, 1e3)} ms "
                f"at p99, arm {arm}); it needs a machine of its own"
            )
    return ""


def _adjusted(rows: Sequence[LoadVerdict]) -> list[LoadVerdict]:
    """Adjust the sign tests for the number of loads (Holm)."""
    tested = [place for place, row in enumerate(rows) if not math.isnan(row.p_value)]
    adjusted_rows = list(rows)
    for place, p_value in zip(tested, holm([rows[each].p_value for each in tested]), strict=True):
        adjusted_rows[place] = replace(rows[place], p_value=float(p_value))
    return adjusted_rows

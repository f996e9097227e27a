"""How policies stand beside the reference on the same windows: changes, guards, and who wins."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from queuesmith.evaluation.goals import GOALS, LEAST_FOR_P999, MARGIN, Goal, Guard
from queuesmith.evaluation.samples import Floats, Ints, Samples
from queuesmith.evaluation.statistics import (
    NUM_QUANTILE_DRAWS,
    STATISTICS,
    Statistic,
    class_means,
    draw_weights,
)
from queuesmith.policies import Policy
from queuesmith.stats import holm, sign_test
from queuesmith.stats.intervals import LEVEL, Draws, combine

REFERENCE = "fcfs"
#: Windows without ties that a sign test needs: with fewer even a clean sweep proves little.
MIN_WINDOWS = 8


@dataclass(frozen=True)
class Change:
    """A statistic beside the reference's.

    Attributes
    ----------
    value, reference : float
        In the statistic's unit.
    change, low, high : float
        Relative (0.1: 10 % more) or, of a share, the difference; with its 95 % interval, NaN
        for a single window.
    """

    value: float
    reference: float
    change: float
    low: float
    high: float


@dataclass(frozen=True)
class BrokenGuard:
    """A guard that a policy broke at one load.

    Attributes
    ----------
    guard, label : str
        The guard's name, and the statistic as sentences have it.
    load : str
    change : Change
    excess : float
        By how much the change is beyond the margin.
    relative : bool
    """

    guard: str
    label: str
    load: str
    change: Change
    excess: float
    relative: bool


@dataclass(frozen=True, eq=False)
class Beside:
    """A policy beside the reference at one load.

    Attributes
    ----------
    changes : mapping of str to Change
        By name of statistic.
    broken : tuple of BrokenGuard
    wins, ties, losses : int
        Windows, by the goal's statistic, outside and within 1 % of the reference's.
    p_value : float
        Exact two-sided sign test over windows; NaN with fewer than `MIN_WINDOWS` without ties.
    draws : mapping of str to Draws
        Of each goal, so that policies can be compared with each other.
    held : (1 + draws,) bool
        Whether the guards hold by point estimate in each of the first draws.
    """

    changes: Mapping[str, Change]
    broken: tuple[BrokenGuard, ...]
    wins: int
    ties: int
    losses: int
    p_value: float
    draws: Mapping[str, Draws] = field(repr=False)
    held: NDArray[np.bool_] = field(repr=False)


def beside(
    samples: Samples,
    reference: Samples,
    *,
    load: str,
    goal: Goal,
    guards: Sequence[Guard],
    weights: Ints,
    base: Mapping[str, Floats] | None = None,
) -> Beside:
    """Lay one policy beside the reference at one load.

    Parameters
    ----------
    samples, reference : Samples
        Of the same requests.
    load : str
        Its name.
    goal : Goal
    guards : sequence of Guard
    weights : (1 + draws, num_windows) int64
        From `draw_weights`, the same ones for every policy and load of these windows.
    base : mapping of str to (1 + draws,) float64, optional
        The reference's values by statistic, from `base_values`.
    """
    base = base_values(reference, weights) if base is None else base
    changes: dict[str, Change] = {}
    draws: dict[str, Draws] = {}
    for statistic in STATISTICS.values():
        contrast = statistic.contrast(samples, reference, weights, base[statistic.name])
        draws[statistic.name] = contrast
        changes[statistic.name] = _change(statistic, samples, weights, base, contrast)
    broken = []
    held = np.ones(min(len(weights), 1 + NUM_QUANTILE_DRAWS), np.bool_)
    for guard in guards:
        if guard.name in STATISTICS:
            if guard.name == "ttft_p999" and len(reference.ttft) < LEAST_FOR_P999:
                continue
            statistic = STATISTICS[guard.name]
            broken += _broken(guard, statistic, changes[guard.name], load)
            held &= ~_beyond(
                guard, statistic, draws[guard.name].values, base[guard.name], len(held)
            )
        else:
            broken += _broken_classes(guard, samples, reference, weights, load)
    wins, ties, losses = _window_counts(goal.statistic, samples, reference)
    enough = wins + losses >= MIN_WINDOWS
    return Beside(
        changes=changes,
        broken=tuple(broken),
        wins=wins,
        ties=ties,
        losses=losses,
        p_value=sign_test(wins, losses) if enough else math.nan,
        draws={one.name: draws[one.statistic.name] for one in GOALS.values()},
        held=held,
    )


def base_values(reference: Samples, weights: Ints) -> dict[str, Floats]:
    """Return the reference's values for every draw, by statistic."""
    return {name: one.values(reference, weights) for name, one in STATISTICS.items()}


def _change(
    statistic: Statistic,
    samples: Samples,
    weights: Ints,
    base: Mapping[str, Floats],
    contrast: Draws,
    level: float = LEVEL,
) -> Change:
    low, high = contrast.interval(level)
    change, low, high = _as_changes(statistic, (contrast.estimate, low, high))
    value = float(statistic.values(samples, weights[:1])[0])
    return Change(value, float(base[statistic.name][0]), change, low, high)


def _as_changes(statistic: Statistic, ends: Sequence[float]) -> list[float]:
    """Turn log ratios into relative changes; differences of shares stay what they are."""
    if not statistic.relative:
        return list(ends)
    with np.errstate(over="ignore"):
        return [float(end) for end in np.expm1(np.array(ends))]


def _broken(guard: Guard, statistic: Statistic, change: Change, load: str) -> list[BrokenGuard]:
    worse = statistic.worse(change.change)
    surely = statistic.worse(change.low if statistic.better == "lower" else change.high)
    gap = statistic.worse(change.value - change.reference)
    if not (worse > guard.margin and surely > 0 and gap > guard.least):
        return []
    return [
        BrokenGuard(
            guard.name, statistic.label, load, change, worse - guard.margin, statistic.relative
        )
    ]


def _beyond(
    guard: Guard, statistic: Statistic, change: Floats, base: Floats, num_draws: int
) -> NDArray[np.bool_]:
    """Tell in which draws a guard is broken by point estimate."""
    change, base = change[:num_draws], base[:num_draws]
    sign = 1.0 if statistic.better == "lower" else -1.0
    with np.errstate(over="ignore", invalid="ignore"):
        worse = sign * (np.expm1(change) if statistic.relative else change)
        gap = worse * base if statistic.relative else worse
        return np.asarray((worse > guard.margin) & (gap > guard.least))


def _broken_classes(
    guard: Guard, samples: Samples, reference: Samples, weights: Ints, load: str
) -> list[BrokenGuard]:
    """Return the class that is worst off, if the guard is broken for one (Bonferroni)."""
    column = guard.name.removesuffix("_ttft")
    classes = class_means(column, reference)  # type: ignore[arg-type]
    found: list[BrokenGuard] = []
    for statistic in classes:
        base = {statistic.name: statistic.values(reference, weights)}
        contrast = statistic.contrast(samples, reference, weights, base[statistic.name])
        level = 1 - (1 - LEVEL) / len(classes)
        change = _change(statistic, samples, weights, base, contrast, level)
        found += _broken(guard, statistic, change, load)
    return sorted(found, key=lambda one: -one.excess)[:1]


def _window_counts(
    statistic: Statistic, samples: Samples, reference: Samples
) -> tuple[int, int, int]:
    each = np.eye(len(samples.windows), dtype=np.int64)
    mine, other = statistic.values(samples, each), statistic.values(reference, each)
    bar = MARGIN * other if statistic.relative else MARGIN
    worse = (mine - other) * (1 if statistic.better == "lower" else -1)
    wins, losses = int((worse < -bar).sum()), int((worse > bar).sum())
    return wins, int((~np.isnan(worse)).sum()) - wins - losses, losses


@dataclass(frozen=True, eq=False)
class Standing:
    """One policy beside the reference over all loads.

    Attributes
    ----------
    policy : Policy
    kind : {"policy", "bundle", "oracle"}
        A bundle brings engine settings of its own; an oracle knows what no server does.
    gain : mapping of str to Change
        By goal: the mean change over loads (of ratios, the geometric mean).
    loads : mapping of str to Beside
        By name of load.
    """

    policy: Policy
    kind: str
    gain: Mapping[str, Change]
    loads: Mapping[str, Beside]

    @property
    def broken(self) -> list[BrokenGuard]:
        """Return every guard that is broken at any load."""
        return [one for each in self.loads.values() for one in each.broken]

    @property
    def eligible(self) -> bool:
        """Whether it may be recommended: an order that can be deployed and breaks no guard."""
        return self.kind == "policy" and not self.broken

    def better_at(self, goal: Goal, load: str) -> bool:
        """Tell whether the goal is surely better by more than a tie at a load."""
        change = self.loads[load].changes[goal.statistic.name]
        end = change.high if goal.statistic.better == "lower" else change.low
        return goal.statistic.worse(end) < -MARGIN

    def held_share(self, loads: Sequence[str]) -> float:
        """Return in which share of draws of windows all guards hold at these loads."""
        size = min(len(self.loads[load].held) for load in loads)
        held = np.all([self.loads[load].held[:size] for load in loads], axis=0)
        return float(held[1:].mean()) if size > 1 else float(held[0])

    def worth(self, goal: Goal) -> float:
        """Return the mean gain over loads, above 0 for the better; -inf where it is undefined."""
        gain = -goal.statistic.worse(self.gain[goal.name].change)
        return gain if math.isfinite(gain) else -math.inf


def kind_of(policy: Policy) -> str:
    """Return policy, or what sets it apart: bundle (own settings) or oracle (undeployable)."""
    if policy.oracle:
        return "oracle"
    return "bundle" if policy.is_bundle else "policy"


def judge(
    policies: Sequence[Policy],
    loads: Sequence[str],
    samples: Mapping[tuple[str, str], Samples],
    *,
    goal: Goal,
    guards: Sequence[Guard],
    seed: int,
) -> list[Standing]:
    """Judge every policy against the reference: those that may be recommended first, then by goal.

    Parameters
    ----------
    policies : sequence of Policy
        The reference, :data:`REFERENCE`, among them.
    loads : sequence of str
    samples : mapping of (policy, load) to Samples
        Of the same windows at every load.
    goal : Goal
    guards : sequence of Guard
    seed : int
        Of the draws of windows.
    """
    num_windows = len(samples[REFERENCE, loads[0]].windows)
    weights = draw_weights(num_windows, seed)
    base = {load: base_values(samples[REFERENCE, load], weights) for load in loads}
    standings = []
    for policy in policies:
        each = {
            load: beside(
                samples[policy.name, load],
                samples[REFERENCE, load],
                load=load,
                goal=goal,
                guards=guards,
                weights=weights,
                base=base[load],
            )
            for load in loads
        }
        gain = {one.name: gain_over(one, each) for one in GOALS.values()}
        standings.append(Standing(policy, kind_of(policy), gain, each))
    return sorted(
        _adjusted(standings),
        key=lambda one: (not one.eligible, -one.worth(goal), one.policy.name),
    )


def gain_over(goal: Goal, loads: Mapping[str, Beside]) -> Change:
    """Average a goal's change over loads."""
    combined = combine([each.draws[goal.name] for each in loads.values()])
    ends = (combined.estimate, *combined.interval())
    return Change(math.nan, math.nan, *_as_changes(goal.statistic, ends))


def _adjusted(standings: Sequence[Standing]) -> list[Standing]:
    """Adjust the sign tests of each policy for its number of loads (Holm)."""
    found = []
    for one in standings:
        tested = [load for load, each in one.loads.items() if not math.isnan(each.p_value)]
        adjusted = holm([one.loads[load].p_value for load in tested])
        loads = dict(one.loads)
        for load, p_value in zip(tested, adjusted.tolist(), strict=True):
            loads[load] = replace(loads[load], p_value=p_value)
        found.append(replace(one, loads=loads))
    return found

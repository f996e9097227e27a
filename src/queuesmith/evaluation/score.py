"""One number to search by: the goal's gain, less what guards are broken by."""

from collections.abc import Mapping, Sequence

import numpy as np

from queuesmith.evaluation.goals import LEAST_FOR_P999, Goal, Guard
from queuesmith.evaluation.samples import Floats, Ints, Samples
from queuesmith.evaluation.statistics import STATISTICS, change_of


def gain_and_excess(
    samples: Samples, reference: Samples, goal: Goal, guards: Sequence[Guard], weights: Ints
) -> tuple[Floats, Floats]:
    """Return the goal's gain and the worst excess over all guards, for each row of weights.

    Of the guards of single classes nothing is looked at: they are judged, not searched by.
    """
    names = {goal.statistic.name, *(guard.name for guard in guards)} & STATISTICS.keys()
    mine, other = (
        {name: STATISTICS[name].values(one, weights) for name in names}
        for one in (samples, reference)
    )
    num_requests = np.full(len(weights), len(reference.ttft))
    excess = np.zeros(len(weights))
    for each in excesses(guards, mine, other, num_requests).values():
        excess = np.maximum(excess, each)
    return goal_gain(goal, mine, other), excess


def goal_gain(goal: Goal, mine: Mapping[str, Floats], other: Mapping[str, Floats]) -> Floats:
    """Return the goal's gain over the reference: a log ratio, or of a share the difference.

    Parameters
    ----------
    goal : Goal
    mine, other : mapping of str to (n,) float64
        Values of statistics by name, and those of the reference.

    Returns
    -------
    (n,) float64
        Above 0 is better.
    """
    statistic = goal.statistic
    change = change_of(mine[statistic.name], other[statistic.name], statistic.relative)
    return 0.0 - change if statistic.better == "lower" else change


def excesses(
    guards: Sequence[Guard],
    mine: Mapping[str, Floats],
    other: Mapping[str, Floats],
    num_requests: Ints,
) -> dict[str, Floats]:
    """Return how far each guard's margin is used up: 0 up to half of it, 1 from the whole on.

    So a search is warned before a guard breaks. Point estimates decide: a search cannot afford
    intervals.

    Parameters
    ----------
    guards : sequence of Guard
    mine, other : mapping of str to (n,) float64
        Values of statistics by name, and those of the reference.
    num_requests : (n,) int64
        That they are about.
    """
    chosen = [guard for guard in guards if guard.name in STATISTICS]
    if not chosen:
        return {}
    statistics = [STATISTICS[guard.name] for guard in chosen]
    relative = np.array([[one.relative] for one in statistics])
    sign = np.array([[1.0 if one.better == "lower" else -1.0] for one in statistics])
    margin = np.array([[guard.margin] for guard in chosen])
    least = np.array([[guard.least] for guard in chosen])
    value, base = (np.array([of[guard.name] for guard in chosen]) for of in (mine, other))
    with np.errstate(divide="ignore", invalid="ignore"):
        gap = sign * (value - base)
        worse = np.where(relative, sign * (value / base - 1), gap)
        used = np.minimum(_ramp(worse, margin), np.where(least > 0, _ramp(gap, least), 1.0))
    used[np.isnan(used)] = 0.0
    for place, guard in enumerate(chosen):
        if guard.name == "ttft_p999":
            used[place, num_requests < LEAST_FOR_P999] = 0.0
    return {guard.name: row for guard, row in zip(chosen, used, strict=True)}


def _ramp(worse: Floats, margin: Floats) -> Floats:
    """Go from 0 at half of a margin to 1 at the whole; without a margin there is a step."""
    ramp = np.where(margin > 0, 2 * worse / margin - 1, np.where(worse > 0, 1.0, worse))
    return np.minimum(np.maximum(ramp, 0.0), 1.0)


def search_score(gain: Floats, excess: Floats) -> Floats:
    """Return ``G - (max(G, 0) + 1) min(1, V)``: continuous, and below 0 where a guard is broken.

    Parameters
    ----------
    gain, excess : float64
        From `gain_and_excess`, of one configuration or averaged and largest over several.
    """
    return gain - (np.maximum(gain, 0.0) + 1.0) * np.minimum(1.0, excess)

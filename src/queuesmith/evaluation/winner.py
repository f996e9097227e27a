"""Who wins for a goal: the best policy that breaks no guard, and what would do as well."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from queuesmith.evaluation.goals import MARGIN, Goal
from queuesmith.evaluation.judge import REFERENCE, Change, Standing, gain_over
from queuesmith.stats.intervals import Draws, combine, difference


@dataclass(frozen=True)
class Winner:
    """Who wins for one goal.

    Attributes
    ----------
    goal : str
    policy : str
        The reference where nothing is surely better.
    tied : tuple of str
        Others that would do as well, the reference among them: they win often when windows are
        drawn again, or their difference to it is not sure or a tie.
    gain : Change
        Over all loads.
    undecided : tuple of str
        Others that gain as much or more and break no guard surely, but whose guards hold in
        fewer draws of windows than what is recommended has to: more windows decide.
    """

    goal: str
    policy: str
    tied: tuple[str, ...]
    gain: Change
    undecided: tuple[str, ...] = ()


#: A policy that wins so often when windows are drawn again would do as well.
TIED_SHARE = 0.1
#: The guards of what is recommended hold, by point estimate, in so many draws of windows.
HELD_SHARE = 0.95
#: A policy whose guards hold in fewer draws than this is not considered.
UNDECIDED_SHARE = 0.5


def winner(
    standings: Sequence[Standing],
    goal: Goal,
    loads: Sequence[str] | None = None,
    *,
    others: Sequence[Standing] = (),
) -> Winner:
    """Name the best policy that breaks no guard and is surely better somewhere, and its ties.

    Parameters
    ----------
    standings : sequence of Standing
    goal : Goal
    loads : sequence of str, optional
        Only these: then only guards broken there count, too.
    others : sequence of Standing, optional
        Values of parameters that were not chosen: they may be undecided and never win.
    """
    names = list(standings[0].loads) if loads is None else list(loads)
    sign = 1 if goal.statistic.better == "lower" else -1
    reference = next(one for one in standings if one.policy.name == REFERENCE)

    def draws(one: Standing) -> Draws:
        return combine([one.loads[load].draws[goal.name] for load in names])

    gaining = [
        one
        for one in (*standings, *others)
        if one.kind == "policy"
        and one.policy.name != REFERENCE
        and all(not one.loads[load].broken for load in names)
        and any(one.better_at(goal, load) for load in names)
        and sign * draws(one).estimate < 0
    ]
    held = {one.policy.name: one.held_share(names) for one in gaining}
    safe = [one for one in gaining if held[one.policy.name] >= HELD_SHARE and one not in others]
    close = [one for one in gaining if one not in safe and held[one.policy.name] >= UNDECIDED_SHARE]

    def undecided(best: Draws, named: Sequence[str]) -> tuple[str, ...]:
        """Name what is as good, the largest gain first; of each policy one value at most."""
        told = {_base(name): name for name in named}
        for one in sorted(close, key=lambda one: (sign * draws(one).estimate, one.policy.name)):
            if _as_good(draws(one), best, sign):
                told.setdefault(_base(one.policy.name), one.policy.name)
        return tuple(name for name in told.values() if name not in named)

    if not safe:
        stays = draws(reference)
        return Winner(
            goal.name, REFERENCE, (), reference.gain[goal.name], undecided(stays, [REFERENCE])
        )
    shares = _win_shares(safe, goal, names)
    best, *rest = sorted(
        safe,
        key=lambda one: (-shares[one.policy.name], sign * draws(one).estimate, one.policy.name),
    )
    tied = tuple(
        one.policy.name
        for one in [*rest, reference]
        if shares.get(one.policy.name, 0.0) >= TIED_SHARE or _as_good(draws(one), draws(best), sign)
    )
    return Winner(
        goal.name,
        best.policy.name,
        tied,
        gain_over(goal, {load: best.loads[load] for load in names}),
        undecided(draws(best), [best.policy.name, *tied]),
    )


def _base(name: str) -> str:
    """Return a policy's name without the values of its parameters."""
    return name.partition("(")[0]


def _win_shares(safe: Sequence[Standing], goal: Goal, loads: Sequence[str]) -> dict[str, float]:
    """Return how often each policy wins, by point estimates, when windows are drawn again.

    What wins most often hangs less on the windows than what wins in the one draw that was seen.
    """
    sign = -1.0 if goal.statistic.better == "lower" else 1.0
    size = min(len(each.held) for one in safe for each in one.loads.values())
    gains = np.full((len(safe) + 1, size), 0.0)  # the first row: none of them
    for row, one in enumerate(safe, start=1):
        each = sign * np.array([one.loads[load].draws[goal.name].values[:size] for load in loads])
        held = np.all([one.loads[load].held[:size] for load in loads], axis=0)
        worth = held & (each.max(axis=0) > MARGIN)
        gains[row] = np.where(worth, each.mean(axis=0), -np.inf)
    won = np.nan_to_num(gains, nan=-np.inf).argmax(axis=0)[1:]
    count = max(len(won), 1)
    return {one.policy.name: float((won == row).sum()) / count for row, one in enumerate(safe, 1)}


def _as_good(one: Draws, best: Draws, sign: int) -> bool:
    """Tell whether a policy is not surely behind the best, or by no more than the margin."""
    behind = difference(one, best)
    low, high = behind.interval()
    least = low if sign > 0 else -high
    return not (sign * behind.estimate > MARGIN and least > 0)

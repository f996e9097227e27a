"""Which guards a policy breaks in a cell of a study, and what it loses to those that break none."""

from collections.abc import Mapping, Sequence
from typing import Any

from queuesmith.evaluation.goals import GUARDS, MARGIN
from queuesmith.evaluation.statistics import STATISTICS
from queuesmith.study.grid import better
from queuesmith.study.summary import best_set, deployable, relative_change

#: Shares of the cases in which advice was right, from which on it is expected to be right again,
#: and the fewest cases that can make anything likely.
LIKELY, UNSURE, FEWEST = 0.8, 0.5, 3


def broken_guards(summary: Mapping[str, Any], cell: Mapping[str, Any], row: int) -> list[str]:
    """Return the metrics that a policy makes worse than the reference by more than a guard allows.

    As `queuesmith compare` does, beyond the margin and surely so, by the means and intervals of
    the cell.
    """
    base = list(summary["policies"]).index(summary["reference"])
    found = []
    for guard in GUARDS:
        values = cell["metrics"].get(guard.name)
        if values is None or row == base:
            continue
        change = relative_change(values, row, base)
        low, high = values["low"][row], values["high"][row]
        if change is None or low is None or high is None:
            continue
        worse = STATISTICS[guard.name].worse
        gap = worse(values["mean"][row] - values["mean"][base])
        beyond = worse(change) if STATISTICS[guard.name].relative else gap
        if beyond > guard.margin and gap > guard.least and min(worse(low), worse(high)) > 0:
            found.append(guard.name)
    return found


def allowed(summary: Mapping[str, Any], cell: Mapping[str, Any]) -> Sequence[int]:
    """Return the rows of policies that only change order and break no guard in a cell."""
    return [
        row
        for row, kind in enumerate(summary["policies"].values())
        if deployable(kind) and not broken_guards(summary, cell, row)
    ]


def regret(
    summary: Mapping[str, Any], cell: Mapping[str, Any], row: int, metric: str
) -> float | None:
    """Return by what share a policy is worse than the best that breaks no guard; 0 is best.

    One that breaks a guard may beat that: below 0.
    """
    values, able = cell["metrics"][metric], allowed(summary, cell)
    means = [mean if place in able else None for place, mean in enumerate(values["mean"])]
    top = best_set(means, metric)
    mean, best = values["mean"][row], means[top[0]] if top else None
    if mean is None or best is None:
        return None
    if mean == best:
        return 0.0
    worse, base = (mean - best, best) if better(metric) == "lower" else (best - mean, best)
    return float(worse / base) if base else None


def is_right(summary: Mapping[str, Any], cell: Mapping[str, Any], row: int, metric: str) -> bool:
    """Tell whether a policy breaks no guard and is within 1 % of the best that breaks none."""
    loss = regret(summary, cell, row, metric)
    return loss is not None and loss <= MARGIN and row in allowed(summary, cell)


def surely(held: Sequence[bool]) -> str:
    """Say "likely", "unsure" or "no" by how often it held; "unknown" without cases.

    "likely" takes `LIKELY` of at least `FEWEST` cases, "unsure" takes `UNSURE` of them.
    """
    if not held:
        return "unknown"
    share = sum(held) / len(held)
    if share >= LIKELY and len(held) >= FEWEST:
        return "likely"
    return "unsure" if share >= UNSURE else "no"

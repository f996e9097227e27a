"""Which guards a policy breaks in a cell of a study, as far as a study measures them."""

from collections.abc import Mapping, Sequence
from typing import Any

from queuesmith.evaluation.goals import GUARDS
from queuesmith.evaluation.statistics import STATISTICS
from queuesmith.study.summary import deployable, relative_change


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

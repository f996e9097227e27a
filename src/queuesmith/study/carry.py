"""What carries over: how often something that one condition shows holds in the others too."""

from collections.abc import Mapping, Sequence
from typing import Any

from queuesmith.evaluation.goals import MARGIN
from queuesmith.study.grid import better
from queuesmith.study.guarding import allowed
from queuesmith.study.summary import best_set, deployable, surely_better, surely_worse

#: Shares of the cases in which a finding held, from which on it is expected to hold again, and the
#: fewest cases that can make anything likely.
LIKELY, UNSURE, FEWEST = 0.8, 0.5, 3


def regret(
    summary: Mapping[str, Any],
    cell: Mapping[str, Any],
    row: int,
    metric: str,
    *,
    guarded: bool = True,
) -> float | None:
    """Return by what share a policy is worse than the best that can be deployed; 0 is best.

    With `guarded` that is the best that breaks no guard, which others may beat: below 0.
    """
    values, kinds = cell["metrics"][metric], summary["policies"].values()
    able = (
        allowed(summary, cell)
        if guarded
        else [place for place, kind in enumerate(kinds) if deployable(kind)]
    )
    means = [mean if place in able else None for place, mean in enumerate(values["mean"])]
    top = best_set(means, metric)
    mean, best = values["mean"][row], means[top[0]] if top else None
    if mean is None or best is None:
        return None
    if mean == best:
        return 0.0
    worse, base = (mean - best, best) if better(metric) == "lower" else (best - mean, best)
    return float(worse / base) if base else None


def findings(
    summary: Mapping[str, Any],
    where: tuple[str, str, str],
    policy: str,
    metric: str,
    place: str,
) -> list[dict[str, Any]]:
    """Return what the nearest source shows, and in how many other conditions it holds as well.

    Conditions in which requests hardly queue, or the metric is undefined, are not counted.
    """
    engine, load, source = where
    names, reference = list(summary["policies"]), summary["reference"]
    cells = [
        cell
        for cell in summary["cells"]
        if not cell["idle"] and cell["metrics"][metric]["mean"][names.index(reference)] is not None
    ]
    along = {
        "sources": [c for c in cells if (c["engine"], c["load"]) == (engine, load)],
        "loads": [c for c in cells if (c["engine"], c["source"]) == (engine, source)],
        "engines": [c for c in cells if (c["load"], c["source"]) == (load, source)],
    }
    axis = {"sources": "source", "loads": "load", "engines": "engine"}
    here = dict(zip(("engine", "load", "source"), where, strict=True))
    found = []

    def add(finding: str, subject: str, over: str, holds: Any) -> None:
        others = [cell for cell in along[over] if cell[axis[over]] != here[axis[over]]]
        verdicts = [bool(holds(cell)) for cell in others]
        if verdicts:
            found.append(
                {
                    "finding": finding,
                    "policy": subject,
                    "over": over,
                    "holds": sum(verdicts),
                    "of": len(verdicts),
                    "fails": [
                        cell[axis[over]]
                        for cell, held in zip(others, verdicts, strict=True)
                        if not held
                    ],
                    "carries": surely(place, verdicts),
                }
            )

    if policy != reference:
        row = names.index(policy)
        for over in along:
            add("better", policy, over, _holds(surely_better, row, metric))
            add("best", policy, over, lambda cell: is_right(summary, cell, row, metric))
    nearest = [cell for cell in along["sources"] if cell["source"] == source]
    for values in [cell["metrics"][metric] for cell in nearest]:
        for row, name in enumerate(names):
            if surely_worse(values, row, metric):
                add("worse", name, "sources", _holds(surely_worse, row, metric))
    return found


def _holds(test: Any, row: int, metric: str) -> Any:
    return lambda cell: test(cell["metrics"][metric], row, metric)


def is_right(summary: Mapping[str, Any], cell: Mapping[str, Any], row: int, metric: str) -> bool:
    """Tell whether a policy breaks no guard and is within 1 % of the best that breaks none."""
    loss = regret(summary, cell, row, metric)
    return loss is not None and loss <= MARGIN and row in allowed(summary, cell)


def surely(place: str, held: Sequence[bool]) -> str:
    """Say "likely", "unsure" or "no" by how often it held; "unknown" far from all sources.

    "likely" takes `LIKELY` of at least `FEWEST` cases, "unsure" takes `UNSURE` of them.
    """
    if place == "outside" or not held:
        return "unknown"
    share = sum(held) / len(held)
    if share >= LIKELY and len(held) >= FEWEST:
        return "likely"
    return "unsure" if share >= UNSURE else "no"

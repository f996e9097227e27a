"""What carries over: how often something that one condition shows holds in the others too."""

from collections.abc import Mapping, Sequence
from typing import Any

from queuesmith.score import MARGIN
from queuesmith.study.grid import better
from queuesmith.study.summary import best_set, deployable, surely_better, surely_worse

#: Shares of the cases in which a finding held, from which on it is expected to hold again, and the
#: fewest cases that can make anything likely.
LIKELY, UNSURE, FEWEST = 0.8, 0.5, 3


def regret(
    summary: Mapping[str, Any], values: Mapping[str, Any], row: int, metric: str
) -> float | None:
    """Return by what share a policy is worse than the best that can be deployed; 0 is best."""
    means = [
        mean if deployable(kind) else None
        for mean, kind in zip(values["mean"], summary["policies"].values(), strict=True)
    ]
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
        verdicts = [bool(holds(cell["metrics"][metric])) for cell in others]
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
            add("better", policy, over, lambda values: surely_better(values, row, metric))
            add("best", policy, over, lambda values: _is_best(summary, values, row, metric))
    nearest = [cell for cell in along["sources"] if cell["source"] == source]
    for values in [cell["metrics"][metric] for cell in nearest]:
        for row, name in enumerate(names):
            if surely_worse(values, row, metric):
                add("worse", name, "sources", _worse_at(row, metric))
    return found


def _worse_at(row: int, metric: str) -> Any:
    return lambda values: surely_worse(values, row, metric)


def _is_best(summary: Mapping[str, Any], values: Mapping[str, Any], row: int, metric: str) -> bool:
    loss = regret(summary, values, row, metric)
    return loss is not None and loss <= MARGIN


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

"""Which policy to try first on a user's traffic, by a study, and how surely.

The traffic is placed among the study's sources (`queuesmith.study.placing`); what was best on the
nearest one is the policy to try. How surely is answered by the study itself: each of its sources
is left out in turn and advised from the others in the same way, and what that advice would have
been worth there is known.
"""

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from queuesmith.errors import ConfigError, did_you_mean
from queuesmith.evaluation.goals import GOALS
from queuesmith.evaluation.judge import MIN_WINDOWS
from queuesmith.study import placing
from queuesmith.study.advice_text import advice_sentences
from queuesmith.study.guarding import (
    LIKELY,
    UNSURE,
    allowed,
    broken_guards,
    is_right,
    regret,
    surely,
)
from queuesmith.study.summary import (
    best_set,
    main_engine,
    relative_change,
    surely_better,
    surely_worse,
)

SCHEMA = "queuesmith.advise/3"
#: Traffic is unlike all sources when some feature differs from the nearest one's by more scales.
FARTHEST = 2.0
#: How often advice by the study that comes with the package would have been right on traffic that
#: it has not seen and that is "between" its sources: right, of (``benchmarks/advice.py``).
UNSEEN_OF = "c659003d5cb301054938f4bd9c9d75ab54cf3ac3e06603524094bedfe17505f6"
UNSEEN = {
    "ttft_mean": (2, 4),
    "ttft_p99": (2, 4),
    "e2el_mean": (4, 4),
    "slo_attainment": (4, 4),
}
Cell = Mapping[str, Any]


def advise(
    summary: Mapping[str, Any],
    windows: Mapping[str, Any],
    *,
    metric: str,
    load: float | str = "knee",
    engine: str | None = None,
    trace: str = "TRACE",
) -> dict[str, Any]:
    """Say which policy to try first on some traffic, and how surely.

    Parameters
    ----------
    windows : mapping of str to sequence of float
        Features of the traffic's windows, by the columns of the study's windows table.
    load : float or str
        rho, of which the nearest load of the study is taken, or the name of one.
    engine : str, optional
        Of the study; its first one with a GPU when left out.
    trace : str
        Name of the traffic, for the command that measures it.

    Returns
    -------
    dict
        Of schema ``queuesmith.advise/3``; ``docs/guides/study.md`` says what each field means.
        `place` is "near" (as near to a source as its own windows typically are), "outside" (some
        feature differs from the nearest source's by more than `FARTHEST` scales), or "between".
        `policy` is None where there is no advice, with the reason in `no_advice`.
    """
    metric = _metric(summary, metric)
    engine = _engine(summary, engine)
    chosen = nearest_load(summary["loads"], load)
    sources = {name: one["features"] for name, one in summary["sources"].items()}
    scale = placing.scales(sources)
    own = placing.features_of(windows)
    distances = _distances(own, sources, scale)
    nearest = distances[0]["source"]
    neighbours = placing.nearest_others(sources, scale)
    radius = placing.radius(sources[nearest], scale)
    apart = max(map(abs, distances[0]["by_feature"].values()))
    place = "outside" if apart > FARTHEST else "between"
    if distances[0]["distance"] <= radius:
        place = "near"
    cells = {
        cell["source"]: cell
        for cell in summary["cells"]
        if cell["engine"] == engine and cell["load"] == chosen["name"]
    }
    if nearest not in cells:
        raise ConfigError(
            f"the study has no runs of {nearest} on {engine} at {chosen['name']}; finish it with "
            "`queuesmith study run`"
        )
    policy, alike, reason = to_try(
        summary,
        cells[nearest],
        metric,
        [cell for source, cell in cells.items() if source != nearest],
    )
    row = list(summary["policies"]).index(policy)
    evidence = [
        left_out
        for source, (other, gap) in neighbours.items()
        if source in cells and other in cells
        for left_out in [_left_out(summary, cells, source, other, metric, gap)]
        if left_out is not None
    ]
    right = [] if place == "outside" else [one["right"] for one in evidence]
    how_surely = _surely_near(cells[nearest], row, metric) if place == "near" else surely(right)
    reason_not = no_advice(summary, metric, place, how_surely, evidence)
    if policy == summary["reference"] and (cells[nearest]["idle"] or place == "near"):
        reason_not = ""
    advice = {
        "schema": SCHEMA,
        "study": {name: summary[name] for name in ("design", "sha256", "prediction", "reference")},
        "question": {
            "metric": metric,
            "engine": engine,
            "load": chosen["name"],
            "rho": chosen["rho"],
            "asked_load": load,
        },
        "traffic": {
            "features": {name: placing.shown(name, one["middle"]) for name, one in own.items()},
            "words": placing.describe_traffic(own),
        },
        "place": place,
        "nearest": nearest,
        "radius": radius,
        "farthest": FARTHEST,
        "distances": distances,
        "policy": None if reason_not else policy,
        "best_there": policy,
        "no_advice": reason_not,
        "command": compare_command(trace, metric, engine, load),
        "kind": summary["policies"][policy],
        "alike": alike,
        "reason": reason,
        "expected": [
            expected(summary, cells[one["source"]], policy, metric) | {"distance": one["distance"]}
            for one in distances
            if one["source"] in cells
        ],
        "costs": costs(summary, cells[nearest], policy, metric),
        "evidence": evidence,
        "surely": how_surely,
    }
    return advice | {"sentences": advice_sentences(advice)}


def no_advice(
    summary: Mapping[str, Any],
    metric: str,
    place: str,
    how_surely: str,
    evidence: Sequence[Mapping[str, Any]],
) -> str:
    """Say why nothing is advised; empty where something is."""
    if place == "outside":
        return "your traffic is unlike all sources of the study"
    if how_surely == "no" and place == "near":
        return "other policies are best in most windows of the nearest source"
    if how_surely == "no":
        right = sum(one["right"] for one in evidence)
        return (
            f"in this study such advice was right in {right} of {len(evidence)} cases, less often "
            "than wrong"
        )
    right, of = UNSEEN.get(metric, (0, 0)) if summary["sha256"] == UNSEEN_OF else (0, 0)
    if place == "between" and of and 2 * right <= of:
        return (
            f"on traffic that the study has not seen such advice was right in {right} of {of} "
            "cases, no more often than wrong"
        )
    return ""


def compare_command(trace: str, metric: str, engine: str, load: float | str) -> str:
    """Return the command that measures what advice would guess."""
    name = metric.partition("_")[0]
    goal = f" --goal {name}" if name in GOALS else ""
    return f"queuesmith compare {shlex.quote(trace)} --engine {engine} --loads own,{load}{goal}"


def nearest_load(loads: Sequence[Mapping[str, Any]], asked: float | str) -> Mapping[str, Any]:
    """Return the load of a study that is meant by a name, or is nearest to a rho.

    Examples
    --------
    >>> nearest_load([{"name": "busy", "rho": 0.8}, {"name": "knee", "rho": 0.95}], 0.9)["name"]
    'knee'
    """
    names = [load["name"] for load in loads]
    if asked in names:
        return loads[names.index(asked)]
    rated = [load for load in loads if load["rho"] is not None]
    try:
        rho = float(asked)
    except ValueError:
        rho = math.nan
    if not (rho > 0 and math.isfinite(rho)) or not rated:
        hint = did_you_mean(str(asked), names)
        raise ConfigError(
            f"load must be one of {', '.join(names)}"
            f"{', or a positive rho' if rated else ''}, got {asked!r}.{hint}"
        )
    return min(rated, key=lambda load: (abs(load["rho"] - rho), load["rho"]))


def to_try(
    summary: Mapping[str, Any], cell: Cell, metric: str, others: Sequence[Cell] = ()
) -> tuple[str, list[str], str]:
    """Name the policy to try first in a cell, those as good as it, and why.

    The best mean of all policies that only change order, can be deployed, break no guard there and
    are surely better than the reference; without any such the reference itself. Of several that
    tie, the one whose largest regret in the cells `others` is least: it is as good here, and safest
    elsewhere.
    """
    names, reference = list(summary["policies"]), summary["reference"]
    values = cell["metrics"][metric]
    if cell["idle"]:
        return reference, [], "requests hardly queue there, so that no order can matter"
    able = [
        row
        for row in allowed(summary, cell)
        if names[row] != reference and surely_better(values, row, metric)
    ]
    means = [mean if row in able else None for row, mean in enumerate(values["mean"])]
    top = best_set(means, metric)
    if not top:
        if values["mean"][names.index(reference)] is None:
            return reference, [], f"{metric} is undefined there"
        return (
            reference,
            [],
            f"no policy is surely better than {reference} there without breaking a guard",
        )

    def largest_regret(row: int) -> float:
        losses = [regret(summary, other, row, metric) for other in others if not other["idle"]]
        return max((math.inf if loss is None else loss for loss in losses), default=0.0)

    top.sort(key=largest_regret)
    return names[top[0]], [names[row] for row in top[1:]], f"best {metric} there"


def expected(summary: Mapping[str, Any], cell: Cell, policy: str, metric: str) -> dict[str, Any]:
    """Say what a policy did to a metric in a cell: its change, interval, wins, and regret."""
    names = list(summary["policies"])
    row, base = names.index(policy), names.index(summary["reference"])
    values = cell["metrics"][metric]
    return {
        "source": cell["source"],
        "num_real": cell["num_real"],
        "num_modelled": cell["num_modelled"],
        "idle": cell["idle"],
        "change": relative_change(values, row, base),
        "low": values["low"][row],
        "high": values["high"][row],
        "best": values["best"][row],
        "better": values["better"][row],
        "worse": values["worse"][row],
        "regret": regret(summary, cell, row, metric),
        "broken": broken_guards(summary, cell, row),
    }


def costs(summary: Mapping[str, Any], cell: Cell, policy: str, metric: str) -> list[dict[str, Any]]:
    """Return what a policy makes surely worse than the reference in a cell, worst first."""
    names = list(summary["policies"])
    row, base = names.index(policy), names.index(summary["reference"])
    found = []
    for other, values in cell["metrics"].items():
        change = relative_change(values, row, base)
        if other != metric and change is not None and surely_worse(values, row, other):
            low, high = values["low"][row], values["high"][row]
            found.append({"metric": other, "change": change, "low": low, "high": high})
    return sorted(found, key=lambda one: -abs(one["change"]))


def _left_out(
    summary: Mapping[str, Any],
    cells: Mapping[str, Cell],
    source: str,
    other: str,
    metric: str,
    gap: float,
) -> dict[str, Any] | None:
    """Say what advice from the nearest other source would have been worth at one source.

    None where there was nothing to advise on: requests hardly queue, or the metric is undefined.
    """
    if cells[source]["idle"]:
        return None
    rest = [cell for name, cell in cells.items() if name not in (source, other)]
    policy, _, _ = to_try(summary, cells[other], metric, rest)
    worth = expected(summary, cells[source], policy, metric)
    if worth["regret"] is None:
        return None
    return {
        "advised_from": other,
        "distance": gap,
        "policy": policy,
        **worth,
        "right": is_right(summary, cells[source], list(summary["policies"]).index(policy), metric),
    }


def _surely_near(cell: Cell, row: int, metric: str) -> str:
    """Say how surely a policy is among the best where the traffic is a source's own: by window."""
    num_windows = cell["num_real"] + cell["num_modelled"]
    share = cell["metrics"][metric]["best"][row] / num_windows
    if share >= LIKELY and num_windows >= MIN_WINDOWS:
        return "likely"
    return "unsure" if share >= UNSURE else "no"


def _distances(
    own: placing.Features, sources: Mapping[str, placing.Features], scale: Mapping[str, float]
) -> list[dict[str, Any]]:
    """Return the sources, nearest first, with the features that set the traffic apart."""
    found = [
        {
            "source": name,
            "distance": placing.distance(own, features, scale),
            "by_feature": placing.differences(own, features, scale),
        }
        for name, features in sources.items()
    ]
    known = [one for one in found if one["by_feature"]]
    if not known:
        raise ConfigError(
            "the traffic has no feature that the study's sources have too; give a trace of at "
            "least three requests"
        )
    return sorted(known, key=lambda one: (one["distance"], one["source"]))


def _metric(summary: Mapping[str, Any], metric: str) -> str:
    if metric in summary["metrics"]:
        return metric
    hint = did_you_mean(metric, summary["metrics"])
    raise ConfigError(
        f"the study has no metric {metric!r}.{hint} It has {', '.join(summary['metrics'])}"
    )


def _engine(summary: Mapping[str, Any], engine: str | None) -> str:
    """Return the engine of that name, or the only one whose GPU has that name."""
    engines: list[str] = summary["engines"]
    if engine is None:
        return main_engine(summary)
    meant = [one for one in engines if engine in (one, one.split("/")[-1])]
    if len(meant) == 1:
        return meant[0]
    hint = did_you_mean(engine, engines)
    raise ConfigError(f"the study has no engine {engine!r}.{hint} It has {', '.join(engines)}")

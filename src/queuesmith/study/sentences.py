"""What a study answers, in sentences with their uncertainty.

Each answer has a topic, a text, and how many windows of which kind it rests on where that is one
number. The summary (`queuesmith.study.summary`) says what each policy did in each cell; the
analysis (`queuesmith.study.portability`) says how conditions differ.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from queuesmith import numbers
from queuesmith.score import MARGIN, MIN_WINDOWS
from queuesmith.study.carry import regret
from queuesmith.study.placing import describe_traffic
from queuesmith.study.portability_text import portability_answers
from queuesmith.study.summary import (
    main_engine,
    main_load,
    relative_change,
    surely_better,
    winners,
)
from queuesmith.study.words import engine_words, listed, load_words, metric_words, windows_words

#: A policy that is worse than the best by more than this is not to be carried over.
LOSS = 0.10
#: Metrics told source by source; all are in the tables.
_NUM_TOLD = 2

Answer = dict[str, str]
Cell = Mapping[str, Any]


def answers(summary: Mapping[str, Any], analysis: Mapping[str, Any] | None = None) -> list[Answer]:
    """Say what was best where, where it must not be carried over to, and how far rankings carry.

    Parameters
    ----------
    summary : mapping
        From `queuesmith.study.summary.summarize_study`.
    analysis : mapping, optional
        From `queuesmith.study.portability.analyze`.

    Returns
    -------
    list of dict
        `topic` and `text`, and `metric` for what is said of one source; the first is the headline.
    """
    engine, load = main_engine(summary), main_load(summary)
    cells = [
        cell
        for cell in summary["cells"]
        if (cell["engine"], cell["load"]) == (engine, load["name"])
    ]
    where = f"{load_words(load)} on {engine_words(engine)}"
    told = summary["metrics"][:_NUM_TOLD]
    found = [{"topic": "headline", "text": _headline(summary, cells, told[0], where)}]
    for metric in told:
        found += [
            {
                "topic": "source",
                "metric": metric,
                "text": _source(summary, cell, cells, metric, where),
            }
            for cell in cells
        ]
    if len(summary["metrics"]) > 1:
        found.append({"topic": "metrics", "text": _metrics(summary, told)})
    for axis, names in (
        ("load", [one["name"] for one in summary["loads"]]),
        ("engine", summary["engines"]),
    ):
        if len(names) > 1:
            found.append({"topic": f"{axis}s", "text": _axis(summary, axis, told[0])})
    if analysis is not None:
        found += portability_answers(analysis, told[0], engine, load)
    return found


def _headline(summary: Mapping[str, Any], cells: Sequence[Cell], metric: str, where: str) -> str:
    """Say whether one policy is best on every source, at the load and engine told first."""
    sets = {
        cell["source"]: names
        for cell in cells
        if (names := winners(summary, cell, metric)) and _beaten(summary, cell, names[0], metric)
    }
    words = metric_words(metric)
    if not sets:
        return f"No policy is surely better than {summary['reference']} on {words}, {where}."
    common = [name for name in summary["policies"] if all(name in names for names in sets.values())]
    if len(sets) == 1:
        (source,) = sets
        rest = (
            f"; on the other sources no policy is surely better than {summary['reference']}"
            if len(cells) > 1
            else ""
        )
        return f"{_named(sets[source])} best on {words} {where}, on {source}{rest}."
    if common:
        return (
            f"{_named(common)} among the best on {words} on all {len(sets)} sources where a policy "
            f"beats {summary['reference']}, {where}."
        )
    counted = sorted(
        summary["policies"], key=lambda name: -sum(name in names for names in sets.values())
    )
    by_winner: list[str] = []
    left = dict(sets)
    for name in counted:
        mine = [source for source, names in left.items() if name in names]
        if mine:
            by_winner.append(f"{name} on {listed(mine)}")
            left = {source: names for source, names in left.items() if source not in mine}
    return f"No policy is best everywhere: {where}, {words} is won by {listed(by_winner)}."


def _source(
    summary: Mapping[str, Any], cell: Cell, cells: Sequence[Cell], metric: str, where: str
) -> str:
    """Say who is best on one source, how surely, and where to carry it and where not."""
    names, reference = list(summary["policies"]), summary["reference"]
    traffic = describe_traffic(summary["sources"][cell["source"]]["features"])
    lead = f"For {traffic} traffic ({cell['source']}) {where}"
    kinds = windows_words(cell["num_real"], cell["num_modelled"])
    words = metric_words(metric)
    if cell["idle"]:
        return f"{lead} requests hardly queue, so that no order can matter ({kinds})."
    values = cell["metrics"][metric]
    shown = winners(summary, cell, metric)
    if not shown:
        return f"{lead} all policies are tied on {words}, or it is undefined ({kinds})."
    row = names.index(shown[0])
    num_windows = cell["num_real"] + cell["num_modelled"]
    hint = "; few windows, so a hint" if num_windows < MIN_WINDOWS else ""
    kinds = f"; {kinds}" if cell["num_modelled"] else ""
    change = numbers.change(relative_change(values, row, names.index(reference)))
    ends = numbers.interval(values["low"][row], values["high"][row])
    against = f"{change}{f' [{ends}]' if ends else ''} against {reference}"
    if shown[0] == reference or not surely_better(values, row, metric):
        best = f": {shown[0]}, {against}" if shown[0] != reference else ""
        return (
            f"{lead} no policy is surely better than {reference} on {words} (the best mean"
            f"{best or ' is its own'}{kinds}{hint})."
        )
    carried = _carried(summary, cell["source"], shown[0], cells, metric)
    return (
        f"{lead}, {_named(shown)} best on {words}: {against}, and among the best in "
        f"{values['best'][row]} of {num_windows} windows{kinds}{hint}."
        f"{f' {carried}' if carried else ''}"
    )


def _carried(
    summary: Mapping[str, Any], source: str, policy: str, cells: Sequence[Cell], metric: str
) -> str:
    """Say on which other sources a policy is as good, and where it loses more than `LOSS`."""
    row = list(summary["policies"]).index(policy)
    good, bad = [], []
    for cell in cells:
        if cell["source"] == source or cell["idle"]:
            continue
        loss = regret(summary, cell["metrics"][metric], row, metric)
        if loss is not None and loss <= MARGIN:
            good.append(cell["source"])
        elif loss is not None and loss > LOSS:
            others = winners(summary, cell, metric)
            lost = f"{100 * loss:.0f} % worse than" if loss <= 2 else f"{1 + loss:.0f} times"
            bad.append(f"{cell['source']} ({lost} {others[0]})")
    parts = [f"It carries over to {listed(good)}"] if good else []
    if bad:
        parts.append(f"{'do' if parts else 'Do'} not carry it over to {listed(bad, 'or')}")
    return f"{'; '.join(parts)}." if parts else ""


def _metrics(summary: Mapping[str, Any], told: Sequence[str]) -> str:
    """Say in how many cells some policy is best on every metric, and on the two told first."""
    cells = [cell for cell in summary["cells"] if not cell["idle"]]
    everything = of = both = of_both = 0
    for cell in cells:
        sets = [winners(summary, cell, metric) for metric in summary["metrics"]]
        known = [set(names) for names in sets if names]
        if len(known) > 1:
            of += 1
            everything += bool(set.intersection(*known))
        pair = [set(winners(summary, cell, metric)) for metric in told]
        if all(pair):
            of_both += 1
            both += bool(set.intersection(*pair))
    text = (
        f"A policy that is among the best on every metric at once exists in {everything} of {of} "
        "cells where requests queue"
    )
    if len(told) == 2 and of_both:
        first, second = (metric_words(metric) for metric in told)
        text += f"; the best on {first} and the best on {second} meet in {both} of {of_both}"
    return f"{text}."


def _axis(summary: Mapping[str, Any], axis: str, metric: str) -> str:
    """Say how often the best set at two loads, or on two engines, has a policy in common."""
    others = [name for name in ("engine", "load", "source") if name != axis]
    groups: dict[tuple[str, ...], list[set[str]]] = {}
    for cell in summary["cells"]:
        names = set() if cell["idle"] else set(winners(summary, cell, metric))
        if names:
            groups.setdefault(tuple(cell[name] for name in others), []).append(names)
    pairs = [
        bool(first & second)
        for sets in groups.values()
        for place, first in enumerate(sets)
        for second in sets[place + 1 :]
    ]
    what = {"load": "loads", "engine": "engines, hence step times,"}[axis]
    if not pairs:
        return f"No two {what} can be compared on {metric_words(metric)}."
    share = sum(pairs) / len(pairs)
    return (
        f"Between two {what} the best policy on {metric_words(metric)} stays the best in "
        f"{sum(pairs)} of {len(pairs)} comparisons ({numbers.share(share)})."
    )


def _beaten(summary: Mapping[str, Any], cell: Cell, policy: str, metric: str) -> bool:
    row = list(summary["policies"]).index(policy)
    return not cell["idle"] and surely_better(cell["metrics"][metric], row, metric)


def _named(names: Sequence[str]) -> str:
    return f"{listed(names)} {'are' if len(names) > 1 else 'is'}"

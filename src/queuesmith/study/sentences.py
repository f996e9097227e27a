"""What a study answers, in sentences with their uncertainty.

Each answer has a topic, a text, and how many windows of which kind it rests on where that is one
number. The summary (`queuesmith.study.summary`) says what each policy did in each cell; the
analysis (`queuesmith.study.portability`) says how conditions differ.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

from queuesmith import numbers
from queuesmith.evaluation.goals import MARGIN
from queuesmith.evaluation.judge import MIN_WINDOWS
from queuesmith.study.carry import regret
from queuesmith.study.guarding import allowed
from queuesmith.study.placing import describe_traffic
from queuesmith.study.portability_text import portability_answers
from queuesmith.study.summary import (
    best_set,
    main_engine,
    main_load,
    relative_change,
    surely_better,
    winners,
)
from queuesmith.study.words import (
    engine_words,
    is_gpu,
    listed,
    load_words,
    metric_words,
    windows_words,
)

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
        ("source", list(summary["sources"])),
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
        loss = regret(summary, cell, row, metric, guarded=False)
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
    """Say how often the best policy at two loads, or on two engines, is the same.

    Sets within 1 % overlap more often than the one policy that an operator would run stays the
    same: the best of those that break no guard. Between engines GPUs are told apart from toys.
    """
    what = {
        "source": "sources",
        "load": "loads",
        "engine": "engines, hence step times,",
    }[axis]
    shared = _kept(summary, axis, lambda cell: set(winners(summary, cell, metric)))
    if not shared:
        return f"No two {what} can be compared on {metric_words(metric)}."
    text = (
        f"Between two {what} the best policy on {metric_words(metric)} stays the best in "
        f"{_share(shared)}"
    )
    gpus = {pair: kept for pair, kept in shared.items() if all(map(is_gpu, pair[1:]))}
    if axis == "engine" and gpus and len(gpus) < len(shared):
        text += f", between two GPUs in {_share(gpus)}"
    alone = _kept(summary, axis, lambda cell: _safe_best(summary, cell, metric))
    if alone:
        text += f"; the single best that breaks no guard is the same in {_share(alone)}"
        gpus = {pair: kept for pair, kept in alone.items() if all(map(is_gpu, pair[1:]))}
        if axis == "engine" and gpus and len(gpus) < len(alone):
            text += f", between two GPUs in {_share(gpus)}"
    return f"{text}."


def _kept(
    summary: Mapping[str, Any], axis: str, pick: Callable[[Cell], set[str]]
) -> dict[tuple[Any, ...], bool]:
    """Tell for any two cells that differ along an axis alone whether they share a pick."""
    others = [name for name in ("engine", "load", "source") if name != axis]
    groups: dict[tuple[str, ...], list[tuple[str, set[str]]]] = {}
    for cell in summary["cells"]:
        names = set() if cell["idle"] else pick(cell)
        if names:
            groups.setdefault(tuple(cell[name] for name in others), []).append((cell[axis], names))
    return {
        (place, one, other): bool(first & second)
        for place, picked in groups.items()
        for (one, first), (other, second) in combinations(picked, 2)
    }


def _share(kept: Mapping[Any, bool]) -> str:
    held = sum(kept.values())
    return f"{held} of {len(kept)} comparisons ({numbers.share(held / len(kept))})"


def _safe_best(summary: Mapping[str, Any], cell: Cell, metric: str) -> set[str]:
    """Return the policy of the best mean of those that break no guard; nothing where all tie."""
    if not winners(summary, cell, metric):
        return set()
    able = allowed(summary, cell)
    means = cell["metrics"][metric]["mean"]
    top = best_set([mean if row in able else None for row, mean in enumerate(means)], metric)
    return {list(summary["policies"])[row] for row in top[:1]}


def _beaten(summary: Mapping[str, Any], cell: Cell, policy: str, metric: str) -> bool:
    row = list(summary["policies"]).index(policy)
    return not cell["idle"] and surely_better(cell["metrics"][metric], row, metric)


def _named(names: Sequence[str]) -> str:
    return f"{listed(names)} {'are' if len(names) > 1 else 'is'}"

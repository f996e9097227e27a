"""What a study shows: a headline, a few facts, and how far the best policy carries over.

Everything that is summed over engines is given for those with a GPU alone and, apart, with toy
engines among them, whose steps take the same time whatever is in them.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import fmean, median
from typing import Any

from queuesmith import numbers
from queuesmith.study.guarding import allowed
from queuesmith.study.reversals import DEFINED
from queuesmith.study.summary import best_set, main_engine, main_load, surely_better, winners
from queuesmith.study.words import (
    engine_words,
    listed,
    load_words,
    loss_words,
    metric_words,
    scopes,
    within,
)

AXES = {"source": "sources", "load": "loads", "engine": "engines"}

Fact = dict[str, str]
Cell = Mapping[str, Any]


def facts(summary: Mapping[str, Any], analysis: Mapping[str, Any]) -> list[Fact]:
    """Return `topic` and `text` of each fact; the first is the headline."""
    metric = summary["metrics"][0]
    found = [
        ("headline", _headline(summary, metric)),
        ("metrics", _metrics(summary, analysis)),
        ("variance", _variance(analysis, metric)),
        ("left_out", _left_out(summary, analysis, metric)),
    ]
    return [{"topic": topic, "text": text} for topic, text in found if text]


def best_of(summary: Mapping[str, Any], cell: Cell, metric: str) -> list[str]:
    """Return the policies within 1 % of the best that breaks no guard, best first.

    Empty where nothing queues, or all policies tie.
    """
    if cell["idle"] or not winners(summary, cell, metric):
        return []
    able, means = allowed(summary, cell), cell["metrics"][metric]["mean"]
    top = best_set([mean if row in able else None for row, mean in enumerate(means)], metric)
    names = list(summary["policies"])
    return [names[row] for row in top]


def main_cells(summary: Mapping[str, Any]) -> list[Cell]:
    """Return the cells that are told first: on the first GPU, next to saturation from below."""
    place = main_engine(summary), main_load(summary)["name"]
    return [cell for cell in summary["cells"] if (cell["engine"], cell["load"]) == place]


def carry_over(summary: Mapping[str, Any], analysis: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Count how often the best policy of one condition is that of another, and tell how ranks do.

    Returns
    -------
    list of dict
        One for each axis, metric and scope. Of `num_pairs` pairs of conditions in which requests
        queue: `sets_meet`, in which the policies within 1 % of the best have one in common;
        `same_best`, in which the single best mean is one policy's; `same_safe`, in which the best
        mean of those that break no guard is. Then, from the analysis, the mean and least tau-b,
        and how many of `num_orders` pairs of policies change places, `sure` and `not_sure`.
    """
    picked = []
    for cell in summary["cells"]:
        for metric in summary["metrics"]:
            if safe := best_of(summary, cell, metric):
                top = winners(summary, cell, metric)
                picked.append((cell, metric, set(top), top[0], safe[0]))
    rows = []
    for scope, engines in scopes(summary["engines"]).items():
        agreed, counted = (
            {(row["axis"], row["metric"]): row for row in analysis[name] if row["scope"] == scope}
            for name in ("agreement_by_metric", "reversal_counts")
        )
        for axis in AXES:
            for metric in summary["metrics"]:
                groups: dict[tuple[str, ...], list[Any]] = {}
                for cell, of, *pick in picked:
                    if of == metric and cell["engine"] in engines:
                        key = tuple(cell[name] for name in AXES if name != axis)
                        groups.setdefault(key, []).append(pick)
                pairs = [pair for mine in groups.values() for pair in combinations(mine, 2)]
                tau, count = agreed.get((axis, metric)), counted.get((axis, metric))
                if tau is None or count is None:
                    continue
                rows.append(
                    {
                        "axis": axis,
                        "metric": metric,
                        "scope": scope,
                        "num_pairs": len(pairs),
                        "sets_meet": sum(bool(one[0] & other[0]) for one, other in pairs),
                        "same_best": sum(one[1] == other[1] for one, other in pairs),
                        "same_safe": sum(one[2] == other[2] for one, other in pairs),
                        "mean_tau_b": tau["mean_tau_b"],
                        "least_tau_b": tau["least_tau_b"],
                        "num_orders": sum(count[name] for name in DEFINED),
                        "sure": count["sure"],
                        "not_sure": count["supported"] - count["sure"],
                    }
                )
    return rows


#: Heads of `carry_lines`.
CARRY_HEADS = (
    "between two",
    "best is the same",
    "best that breaks no guard",
    "best sets meet",
    "tau-b",
    "surely change places",
    "not sure",
)


def carry_lines(rows: Sequence[Mapping[str, Any]], metric: str) -> list[list[str]]:
    """Return the rows of `carry_over` of one metric as lines of a table."""

    def of(row: Mapping[str, Any], name: str, whole: str = "num_pairs") -> str:
        return numbers.share(row[name] / row[whole] if row[whole] else None)

    return [
        [
            f"{AXES[row['axis']]}, {row['scope']} ({row['num_pairs']:,})",
            *(of(row, name) for name in ("same_best", "same_safe", "sets_meet")),
            numbers.score(row["mean_tau_b"]),
            *(of(row, name, "num_orders") for name in ("sure", "not_sure")),
        ]
        for row in rows
        if row["metric"] == metric
    ]


def _headline(summary: Mapping[str, Any], metric: str) -> str:
    """Name the best policy that breaks no guard, by source, at the load and engine told first."""
    names, reference = list(summary["policies"]), summary["reference"]
    left: dict[str, list[str]] = {}
    for cell in main_cells(summary):
        top = best_of(summary, cell, metric)
        row = names.index(top[0]) if top else 0
        sure = top and surely_better(cell["metrics"][metric], row, metric)
        left[cell["source"]] = top if sure else []
    parts = []
    none = [source for source, top in left.items() if not top]
    while wins := [name for top in left.values() for name in top]:
        most = max(names, key=wins.count)
        mine = [source for source, top in left.items() if most in top]
        parts.append(f"{most} on {listed(mine)}")
        left = {source: top for source, top in left.items() if source not in mine}
    if none:
        parts.append(f"none surely better than {reference} on {listed(none)}")
    where = f"{load_words(main_load(summary))} on {engine_words(main_engine(summary))}"
    return f"Best {metric_words(metric)} without a broken guard, {where}: {'; '.join(parts)}."


def _metrics(summary: Mapping[str, Any], analysis: Mapping[str, Any]) -> str:
    """Say how often metrics disagree about the best policy."""
    if len(summary["metrics"]) < 2:
        return ""
    parts = [
        f"{numbers.share(row['total']['pairs_apart'])} ({row['scope']}; no policy is best on every "
        f"metric in {numbers.share(row['total']['no_common_winner'])} of "
        f"{row['total']['num_conditions']:,} cells)"
        for row in analysis["disagreement"]
    ]
    return f"Two metrics have no best policy in common in {listed(parts)} of cases."


def _variance(analysis: Mapping[str, Any], metric: str) -> str:
    """Say how much of what policies gain is the same everywhere."""
    parts = [
        f"{numbers.share(row['portable'])} ({row['scope']})"
        for row in analysis["variance"]
        if row["metric"] == metric and row["portable"] is not None
    ]
    if not parts:
        return ""
    return (
        f"Of what sets the gains of policies on {metric_words(metric)} apart, {listed(parts)} is "
        "the same on all sources, loads and engines."
    )


def _left_out(summary: Mapping[str, Any], analysis: Mapping[str, Any], metric: str) -> str:
    """Say what the best policy of the other sources is worth on the one left out."""
    parts = []
    for scope, engines in scopes(summary["engines"]).items():
        known = [
            row
            for row in analysis["leave_one_source_out"]
            if row["metric"] == metric and row["regret"] is not None and within(row, engines)
        ]
        if known:
            regrets = [row["regret"] for row in known]
            parts.append(
                f"in {numbers.share(fmean(bool(row['holds']) for row in known))} of "
                f"{len(known)} cases (median loss {loss_words(median(regrets))}, largest "
                f"{loss_words(max(regrets))}; {scope})"
            )
    if not parts:
        return ""
    return (
        f"The policy with the best {metric_words(metric)} over all other sources is among the best "
        f"on the one left out {listed(parts)}."
    )

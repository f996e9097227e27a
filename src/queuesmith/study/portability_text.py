"""What an analysis says of portability, in sentences: how far rankings carry, and why.

Every sentence is about the metric, the engine and the load that are told first; the tables have the
others.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

from queuesmith import numbers
from queuesmith.study.words import (
    engine_words,
    is_gpu,
    listed,
    load_words,
    loss_words,
    metric_words,
)

_AXES = {"source": "sources", "load": "loads", "engine": "engines"}
_LEVEL = 0.05
Answer = dict[str, str]
Row = Mapping[str, Any]


def portability_answers(
    analysis: Mapping[str, Any], metric: str, engine: str, load: Mapping[str, Any]
) -> list[Answer]:
    """Say what the analysis says, one sentence or two to a question.

    Parameters
    ----------
    analysis : mapping
        From `queuesmith.study.portability.analyze`.
    metric, engine : str
    load : mapping
        Of the summary.

    Returns
    -------
    list of dict
        `topic` and `text`; a question that the study cannot answer is left out.
    """
    found = [
        ("agreement", _agreement(analysis, metric)),
        ("physics", _physics(analysis)),
        ("reversals", _reversals(analysis, metric)),
        ("left_out", _left_out(analysis["leave_one_source_out"], metric)),
        ("variance", _variance(analysis, metric)),
        ("windows", _windows(analysis, metric, engine, load)),
        ("time", _time(analysis["temporal"])),
        ("deadlines", _deadlines(analysis["slo_sensitivity"])),
        ("predictions", _predictions(analysis["prediction_sensitivity"]["agreement"], metric)),
    ]
    return [{"topic": topic, "text": text} for topic, text in found if text]


def _agreement(analysis: Mapping[str, Any], metric: str) -> str:
    rows = {row["axis"]: row for row in analysis["agreement_by_metric"] if row["metric"] == metric}
    parts = [
        f"{numbers.score(rows[axis]['mean_tau_b'])} between two {plural} (least "
        f"{numbers.score(rows[axis]['least_tau_b'])}{_gpus(analysis, axis, metric)})"
        for axis, plural in _AXES.items()
        if axis in rows and rows[axis]["mean_tau_b"] is not None
    ]
    between = [
        row["mean_tau_b"]
        for row in analysis["agreement_summary"]
        if row["axis"] == "metric" and row["mean_tau_b"] is not None
    ]
    if between:
        parts.append(f"{numbers.score(fmean(between))} between two metrics of the same runs")
    if not parts:
        return ""
    return (
        f"How far the order of policies on {metric_words(metric)} carries (mean tau-b; 1 is the "
        f"same order, 0 nothing in common): {listed(parts)}."
    )


def _gpus(analysis: Mapping[str, Any], axis: str, metric: str) -> str:
    """Say how well GPUs agree with each other, where a toy engine is among the engines."""
    pairs = [row for row in analysis["agreement"] if row["axis"] == "engine"]
    known = [
        row["tau_b"]
        for row in pairs
        if row["metric"] == metric and _both_gpus(row) and row["tau_b"] is not None
    ]
    if axis != "engine" or not known or all(map(_both_gpus, pairs)):
        return ""
    return f"; {numbers.score(fmean(known))} between two GPUs"


def _both_gpus(row: Row) -> bool:
    return is_gpu(row["a"]) and is_gpu(row["b"])


def _physics(analysis: Mapping[str, Any]) -> str:
    rows = [
        row
        for row in analysis["agreement_summary"]
        if row["axis"] == "engine" and row["mean_tau_b"] is not None
    ]
    if not rows:
        return ""
    lowest = min(rows, key=lambda row: row["mean_tau_b"])
    text = (
        f"Step times change rankings most between {engine_words(lowest['a'])} and "
        f"{engine_words(lowest['b'])}: mean tau-b {numbers.score(lowest['mean_tau_b'])} over all "
        f"metrics, and the best policy is lost in {numbers.share(lowest['winner_lost'])} of cases"
    )
    highest = max(rows, key=lambda row: row["mean_tau_b"])
    if highest is not lowest:
        text += (
            f"; least between {engine_words(highest['a'])} and {engine_words(highest['b'])} "
            f"({numbers.score(highest['mean_tau_b'])})"
        )
    gpus = [row for row in rows if _both_gpus(row)]
    if gpus and len(gpus) < len(rows):
        least = min(gpus, key=lambda row: row["mean_tau_b"])
        text += (
            f"; between two GPUs it is {numbers.score(least['mean_tau_b'])} at least "
            f"({engine_words(least['a'])} and {engine_words(least['b'])})"
        )
    return f"{text}."


def _reversals(analysis: Mapping[str, Any], metric: str) -> str:
    """Count flips that are supported, and sure by a sign test corrected for all pairs."""
    supported = [row for row in analysis["reversals"] if row["class"] == "supported"]
    sure = [
        row for row in supported if row["p_adjusted"] is not None and row["p_adjusted"] < _LEVEL
    ]
    parts = []
    for axis, plural in _AXES.items():
        defined = sum(
            row[name]
            for row in analysis["reversal_counts"]
            if row["axis"] == axis
            for name in ("stable", "microscopic", "supported", "unsupported")
        )
        if not defined:
            continue
        mine = [row for row in sure if row["axis"] == axis]
        before = sum(row["axis"] == axis for row in supported)
        gpus = sum(map(_both_gpus, mine))
        told = f"; {gpus:,} of them between GPUs" if axis == "engine" and gpus < len(mine) else ""
        parts.append(
            f"{len(mine):,} of {defined:,} between {plural} ({numbers.share(len(mine) / defined)}; "
            f"{before:,} before the correction{told})"
        )
    if not parts:
        return ""
    text = (
        "Pairs of policies that surely change places by a margin that matters, after correction "
        f"for all pairs looked at (Benjamini-Hochberg, {_LEVEL:g}): {listed(parts)}."
    )
    mine = [row for row in sure if row["axis"] == "source" and row["metric"] == metric]
    if not mine:
        return text
    counted: dict[tuple[str, str], int] = {}
    for record in mine:
        pair = tuple(sorted((record["policy_a"], record["policy_b"])))
        counted[pair[0], pair[1]] = counted.get((pair[0], pair[1]), 0) + 1
    (one, other), most = max(counted.items(), key=lambda item: item[1])
    return (
        f"{text} On {metric_words(metric)} {one} and {other} do so most often between sources, "
        f"{most} times."
    )


def _left_out(rows: Sequence[Row], metric: str) -> str:
    known = [row for row in rows if row["metric"] == metric and row["regret"] is not None]
    if not known:
        return ""
    holds = sum(bool(row["holds"]) for row in known)
    worst = max(known, key=lambda row: row["regret"])
    text = (
        f"The policy that is best on {metric_words(metric)} over all other sources is among the "
        f"best on the one left out in {holds} of {len(known)} cases; the median loss is "
        f"{loss_words(median(row['regret'] for row in known))}"
    )
    if worst["regret"] > 0:
        text += (
            f", the largest {loss_words(worst['regret'])} ({worst['winner']} on "
            f"{worst['source']}, {worst['load']}, {engine_words(worst['engine'])})"
        )
    return f"{text}."


def _variance(analysis: Mapping[str, Any], metric: str) -> str:
    row = next((row for row in analysis["variance"] if row["metric"] == metric), None)
    if row is None or row["portable"] is None:
        return ""
    shares = {
        term.removeprefix("policy x "): share
        for term, share in row["shares"].items()
        if term.startswith("policy x ") and share is not None
    }
    whole = sum(shares.values()) + (row["shares"]["policy"] or 0.0)
    most = sorted(shares, key=lambda term: -shares[term])[:2]
    parts = [
        f"{numbers.share(shares[term] / whole)} on "
        f"{'more than one of these' if term == 'more' else f'the {term}'}"
        for term in most
    ]
    alone = next((one for one in analysis["variance_gpus"] if one["metric"] == metric), None)
    gpus = ""
    if alone is not None and alone["portable"] is not None:
        gpus = f" ({numbers.share(alone['portable'])} among GPUs alone)"
    return (
        f"Of what sets the gains of policies on {metric_words(metric)} apart, "
        f"{numbers.share(row['portable'])} is the same everywhere and carries over{gpus}; "
        f"{listed(parts)} it depends."
    )


def _windows(analysis: Mapping[str, Any], metric: str, engine: str, load: Mapping[str, Any]) -> str:
    rows = [
        row
        for row in analysis["sample_complexity"]
        if (row["metric"], row["engine"], row["load"]) == (metric, engine, load["name"])
    ]
    if not rows:
        return ""
    enough: dict[str, list[str]] = {}
    for row in rows:
        need = row["windows_for_winner"]
        words = "all windows and more" if need is None else f"{need} window{'s' * (need > 1)}"
        enough.setdefault(words, []).append(row["source"])
    parts = [f"{words} for {listed(names)}" for words, names in enough.items()]
    never = [row["source"] for row in rows if row["windows_for_order"] is None]
    order = (
        f" The whole order is not found with fewer than all windows on {listed(never)}."
        if never
        else ""
    )
    recovered = analysis["options"]["recovered"]
    return (
        f"To find the best policy on {metric_words(metric)} {load_words(load)} on "
        f"{engine_words(engine)} in {100 * recovered:.0f} % of draws takes {listed(parts)}.{order}"
    )


def _time(rows: Sequence[Row]) -> str:
    known = [
        row for row in rows if (row["a"], row["b"]) == ("early", "late") and row["p"] is not None
    ]
    if not known:
        return ""
    differs = sum(row["p"] < _LEVEL for row in known)
    return (
        f"Early and late thirds of a source rank policies less alike than random thirds do in "
        f"{differs} of {len(known)} comparisons ({numbers.share(differs / len(known))}; by chance "
        f"alone about {_LEVEL:.0%} would)."
    ).replace("5% ", "5 % ")


def _deadlines(rows: Sequence[Row]) -> str:
    parts = []
    for name in dict.fromkeys(row["b"] for row in rows):
        mine = [row for row in rows if row["b"] == name]
        tau = [row["tau_b"] for row in mine if row["tau_b"] is not None]
        kept = [row["top_1"] > 0 for row in mine if row["top_1"] is not None]
        if tau and kept:
            parts.append(
                f"{name.rpartition('_')[2]} times as long, mean tau-b {numbers.score(fmean(tau))} "
                f"and the winner kept in {numbers.share(fmean(kept))} of cases"
            )
    if not parts:
        return ""
    return f"If deadlines left other times, ANWG would rank as it does so far: {'; '.join(parts)}."


def _predictions(rows: Sequence[Row], metric: str) -> str:
    parts = []
    names = dict.fromkeys(row["b"] for row in rows)
    for name in names:
        mine = [
            row
            for row in rows
            if (row["b"], row["metric"]) == (name, metric) and row["tau_b"] is not None
        ]
        if mine:
            parts.append(f"{name} {numbers.score(fmean(row['tau_b'] for row in mine))}")
    if not parts:
        return ""
    own = rows[0]["a"]
    return (
        f"With other knowledge of output lengths than {own}, the order on {metric_words(metric)} "
        f"agrees so far with it (mean tau-b): {listed(parts)}."
    )

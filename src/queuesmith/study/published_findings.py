"""Which findings of the published study hold in an analysis of the same three sources.

For the designs that follow it: to the letter, where the numbers can be set side by side, and
mended, where only the findings can.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from queuesmith import numbers
from queuesmith.study.published import SOURCES, published
from queuesmith.study.words import metric_words

#: By which the published study ranks, and one that needs no deadlines.
METRICS = ("anwg", "ttft_mean")
_AZURE_BAILIAN = frozenset(SOURCES[:2])

Row = Mapping[str, Any]
Finding = dict[str, Any]


def follows_published(sources: Sequence[str]) -> bool:
    """Tell whether a study is about the three sources of the published one."""
    return set(sources) == set(SOURCES)


def published_findings(analysis: Mapping[str, Any]) -> list[Finding]:
    """Check the published findings.

    Parameters
    ----------
    analysis : mapping
        From `queuesmith.study.portability.analyze`, of a study that `follows_published`.

    Returns
    -------
    list of dict
        For each finding and each of `METRICS` that the analysis has: `finding`, `metric`, whether
        it `survives` (None where there is nothing to tell it by), and `text` with both numbers.
    """
    found = []
    for metric in METRICS:
        if metric in analysis["metrics"]:
            between = [
                row
                for row in analysis["agreement"]
                if row["axis"] == "source" and row["metric"] == metric
            ]
            found += [
                _one_apart(between, metric),
                _all_apart(between, metric),
                _few(between, metric),
                _mean(between, metric),
            ]
    return found


def _one_apart(between: Sequence[Row], metric: str) -> Finding:
    """Azure and Bailian agree more than either does with BurstGPT."""
    taus: dict[tuple[str, str], dict[bool, list[float]]] = {}
    for row in between:
        if row["tau_b"] is not None:
            pairs = taus.setdefault((row["engine"], row["load"]), {True: [], False: []})
            pairs[_is_azure_bailian(row)].append(row["tau_b"])
    known = [pairs for pairs in taus.values() if pairs[True] and len(pairs[False]) == 2]
    holds = sum(pairs[True][0] > max(pairs[False]) for pairs in known)
    return _finding(
        "Azure and Bailian agree, BurstGPT is different",
        metric,
        holds > len(known) / 2 if known else None,
        f"published at all 6 loads; here tau-b is highest between Azure and Bailian at {holds} of "
        f"{len(known)} loads where all three pairs have one",
    )


def _all_apart(between: Sequence[Row], metric: str) -> Finding:
    """Every supported reversal has BurstGPT on one side."""
    counts = {True: 0, False: 0}
    for row in between:
        counts[_is_azure_bailian(row)] += row["reversals"]["supported"]
    numbers_of = published()
    with_burst = sum(
        numbers_of["reversals_of_sources", pair] for pair in ("azure-burstgpt", "bailian-burstgpt")
    )
    return _finding(
        "Every supported reversal involves BurstGPT",
        metric,
        counts[True] == 0 if sum(counts.values()) else None,
        f"published {with_burst:.0f} with it and 0 without, by ANWG; here {counts[False]} with it "
        f"and {counts[True]} without",
    )


def _few(between: Sequence[Row], metric: str) -> Finding:
    """Pairs of policies change places, if few."""
    supported = sum(row["reversals"]["supported"] for row in between)
    total = sum(
        row["reversals"][name]
        for row in between
        for name in ("stable", "microscopic", "supported", "unsupported")
    )
    theirs = sum(value for key, value in published().items() if key[0] == "reversals")
    classes = ("reversals", "reversals_stable", "reversals_microscopic")
    of = sum(value for key, value in published().items() if key[0] in classes)
    return _finding(
        "Some policies change places between sources",
        metric,
        supported > 0 if total else None,
        f"published {theirs:.0f} of {of:.0f} ({numbers.share(theirs / of)}), by ANWG; here "
        f"{supported} of {total} ({numbers.share(supported / total if total else None)})",
    )


def _mean(between: Sequence[Row], metric: str) -> Finding:
    """Rankings carry over in part."""
    taus = [row["tau_b"] for row in between if row["tau_b"] is not None]
    theirs = published()["tau_b_mean", metric]
    low, high = (published()[f"tau_b_{word}", metric] for word in ("min", "max"))
    mean = fmean(taus) if taus else None
    tied = len(between) - len(taus)
    return _finding(
        "Rankings carry over between sources in part",
        metric,
        low <= mean <= high if mean is not None else None,
        f"published mean tau-b {numbers.score(theirs)} ({numbers.score(low)} to "
        f"{numbers.score(high)}); here {numbers.score(mean)}"
        + (f", with {tied} of {len(between)} pairs that have no order" if tied else ""),
    )


def _is_azure_bailian(row: Row) -> bool:
    return {row["a"], row["b"]} == _AZURE_BAILIAN


def _finding(finding: str, metric: str, survives: bool | None, text: str) -> Finding:
    return {"finding": finding, "metric": metric, "survives": survives, "text": text}


def findings_sentence(found: Sequence[Finding], rows: Sequence[Row]) -> str:
    """Sum up: how many findings hold, and how near the numbers are.

    Parameters
    ----------
    found : sequence of mapping
        From `published_findings`.
    rows : sequence of mapping
        From `queuesmith.study.published.compare_with_published`; empty for a mended design.
    """
    told = [one for one in found if one["survives"] is not None]
    lost = [one for one in told if not one["survives"]]
    text = f"Of the published findings, {len(told) - len(lost)} of {len(told)} hold here"
    if lost:
        text += "; not: " + "; ".join(
            f"'{one['finding']}' by {metric_words(one['metric'])} ({one['text']})" for one in lost
        )
    text += "."
    ours = {row["what"]: row for row in rows if row["ours"] is not None}
    pairs = [what for what in ours if what.startswith("tau_b ")]
    if pairs:
        inside = 0
        for what in pairs:
            ends = [ours.get(what.replace("tau_b ", f"tau_b_{end} ")) for end in ("low", "high")]
            if all(ends):
                low, high = (end["published"] for end in ends if end is not None)
                inside += low - 1e-9 <= ours[what]["ours"] <= high + 1e-9
        text += (
            f" {inside} of {len(pairs)} tau-b between sources lie within the published intervals."
        )
    return text


def region_table(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Return tau-b by region and pair, published and ours side by side: heads and lines."""
    pairs: list[str] = []
    regions: dict[str, dict[str, str]] = {}
    for row in rows:
        name, *where = row["what"].split(" ")
        if name == "tau_b":
            region, pair = where
            if pair not in pairs:
                pairs.append(pair)
            both = " / ".join(numbers.score(row[key]) for key in ("published", "ours"))
            regions.setdefault(region, {})[pair] = both
    lines = [
        [region, *(cells.get(pair, "") for pair in pairs)] for region, cells in regions.items()
    ]
    return ["region", *pairs], lines

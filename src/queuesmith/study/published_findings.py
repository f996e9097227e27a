"""Which findings of the published study hold in an analysis of the same three sources.

For the designs that follow it: to the letter, where the numbers can be set side by side, and
mended, where only the findings can.
"""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from queuesmith import numbers
from queuesmith.study.published import SOURCES, published
from queuesmith.study.reversals import DEFINED
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

    Returns
    -------
    list of dict
        For each finding and each of `METRICS` that the analysis has: `finding`, `metric`, whether
        it `survives` (None where there is nothing to tell it by), and `text` with both numbers.
    """
    return [
        {"finding": finding, "metric": metric, "survives": survives, "text": text}
        for metric in METRICS
        if metric in analysis["metrics"]
        for finding, survives, text in _checked(
            [
                row
                for row in analysis["agreement"]
                if row["axis"] == "source" and row["metric"] == metric
            ],
            metric,
        )
    ]


def _checked(between: Sequence[Row], metric: str) -> Iterator[tuple[str, bool | None, str]]:
    """Check each finding by rows of agreement between sources."""
    numbers_of = published()
    taus: dict[tuple[str, str], dict[bool, list[float]]] = {}
    sure = {True: 0, False: 0}  # by whether they are Azure and Bailian
    supported = total = 0
    for row in between:
        alike = {row["a"], row["b"]} == _AZURE_BAILIAN
        if row["tau_b"] is not None:
            pairs = taus.setdefault((row["engine"], row["load"]), {True: [], False: []})
            pairs[alike].append(row["tau_b"])
        sure[alike] += row["reversals"]["sure"]
        supported += row["reversals"]["supported"]
        total += sum(row["reversals"][name] for name in DEFINED)

    known = [pairs for pairs in taus.values() if pairs[True] and len(pairs[False]) == 2]
    holds = sum(pairs[True][0] > max(pairs[False]) for pairs in known)
    yield (
        "Azure and Bailian agree, BurstGPT is different",
        holds > len(known) / 2 if known else None,
        f"tau-b highest between Azure and Bailian: published at 6 of 6 loads, here {holds} of "
        f"{len(known)}",
    )
    theirs = sum(value for key, value in numbers_of.items() if key[0] == "reversals")
    classes = ("reversals", "reversals_stable", "reversals_microscopic")
    of = sum(value for key, value in numbers_of.items() if key[0] in classes)
    yield (
        "Some policies change places between sources",
        sum(sure.values()) > 0 if total else None,
        f"published {theirs:.0f} of {of:.0f} by ANWG, uncorrected; here {sum(sure.values())} of "
        f"{total} surely, {supported} before the correction",
    )
    yield (
        "Every reversal involves BurstGPT",
        sure[True] == 0 if sum(sure.values()) else None,
        f"published {theirs:.0f} with it and 0 without; here {sure[False]} with it and "
        f"{sure[True]} without, surely",
    )
    known_taus = [row["tau_b"] for row in between if row["tau_b"] is not None]
    mean = fmean(known_taus) if known_taus else None
    middle, low, high = (numbers_of[f"tau_b_{word}", metric] for word in ("mean", "min", "max"))
    yield (
        "Rankings carry over between sources in part",
        low <= mean <= high if mean is not None else None,
        f"published mean tau-b {numbers.score(middle)} ({numbers.score(low)} to "
        f"{numbers.score(high)}); here {numbers.score(mean)}, {len(known_taus)} of {len(between)} "
        "pairs with an order",
    )


def findings_sentence(found: Sequence[Finding], rows: Sequence[Row]) -> str:
    """Sum up how many findings hold, and how near the numbers of `compare_with_published` are."""
    told = [one for one in found if one["survives"] is not None]
    lost = [one for one in told if not one["survives"]]
    text = f"Of the published findings, {len(told) - len(lost)} of {len(told)} hold here"
    if lost:
        text += "; not: " + "; ".join(
            f"'{one['finding']}' by {metric_words(one['metric'])} ({one['text']})" for one in lost
        )
    ours = {row["what"]: row for row in rows if row["ours"] is not None}
    inside = [
        low["published"] - 1e-9 <= row["ours"] <= high["published"] + 1e-9
        for what, row in ours.items()
        if what.startswith("tau_b ")
        and (low := ours.get(what.replace("tau_b ", "tau_b_low ")))
        and (high := ours.get(what.replace("tau_b ", "tau_b_high ")))
    ]
    if inside:
        text += f". {sum(inside)} of {len(inside)} tau-b lie within the published intervals"
    return f"{text}."


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

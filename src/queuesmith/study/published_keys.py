"""An analysis by LSSP's rules, keyed by what LSSP published."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from queuesmith.study.published import Key, published, short_name

_PRIMARY = "anwg"  # LSSP's main metric


def published_keys(analysis: Mapping[str, Any]) -> dict[Key, float]:
    """Take out of an analysis by the options `LSSP` what LSSP published as well, by its keys.

    What the analysis cannot say is left out, such as sample complexity for more windows than it
    has.
    """
    found: dict[Key, float | None] = {}
    between = [row for row in analysis["agreement"] if row["axis"] == "source"]
    found |= _agreement(between)
    found |= _reversals(between, analysis["reversals"])
    found |= _samples(analysis)
    for row in analysis["temporal"]:
        if row["metric"] == _PRIMARY:
            source, parts = short_name(row["source"]), _pair(row["a"], row["b"])
            found["temporal", row["load"], source, parts] = row["tau_b"]
    for row in analysis["relative"]:
        if row["metric"] == _PRIMARY:
            source = short_name(row["source"])
            found["anwg", row["load"], source, row["policy"]] = row["mean"]
    known = published()
    return {key: float(value) for key, value in found.items() if key in known and value is not None}


def _pair(a: str, b: str) -> str:
    return "-".join(sorted((a, b)))


def _sources(row: Mapping[str, Any]) -> str:
    return _pair(short_name(row["a"]), short_name(row["b"]))


def _agreement(between: Iterable[Mapping[str, Any]]) -> dict[Key, float | None]:
    found: dict[Key, float | None] = {}
    taus: dict[str, list[float]] = {}
    for row in between:
        if row["tau_b"] is not None:
            taus.setdefault(row["metric"], []).append(row["tau_b"])
        if row["metric"] == _PRIMARY:
            for name, value in (
                ("tau_b", row["tau_b"]),
                ("tau_b_low", row["low"]),
                ("tau_b_high", row["high"]),
                ("top_1", row["top_1"]),
                ("top_3", row["top_3"]),
            ):
                found[name, row["load"], _sources(row)] = value
    for metric, values in taus.items():
        found["tau_b_mean", metric] = sum(values) / len(values)
        found["tau_b_min", metric] = min(values)
        found["tau_b_max", metric] = max(values)
    return found


def _reversals(
    between: Iterable[Mapping[str, Any]], records: Iterable[Mapping[str, Any]]
) -> dict[Key, float | None]:
    counted: Counter[Key] = Counter()
    for row in between:
        counts = row["reversals"]
        counted["reversals_of_metric", row["metric"]] += counts["supported"]
        if row["metric"] == _PRIMARY:
            counted["reversals", row["load"]] += counts["supported"]
            for name in ("stable", "microscopic"):
                counted[f"reversals_{name}", row["load"]] += counts[name]
            counted["reversals_of_sources", _sources(row)] += counts["supported"]
    for key in published():  # a pair that never flips has no record
        if key[0] == "reversals_of_policies":
            counted[key] += 0
    for row in records:
        mine = row["axis"] == "source" and row["class"] == "supported"
        if mine and row["metric"] == _PRIMARY:
            pair = "/".join(sorted((row["policy_a"], row["policy_b"])))
            counted["reversals_of_policies", pair] += 1
    return {key: float(number) for key, number in counted.items()}


def _samples(analysis: Mapping[str, Any]) -> dict[Key, float | None]:
    """Sample complexity over all loads, which LSSP pools."""
    found: dict[Key, float | None] = {}
    for row in analysis["over_loads"]["sample_complexity"]:
        if row["metric"] != _PRIMARY:
            continue
        source = short_name(row["source"])
        for name in ("order", "top_1", "top_3"):
            for size, share in zip(row["sizes"][:-1], row[name], strict=False):
                found[f"recovery_{name}", source, str(size)] = share
            enough = [
                size
                for size, share in zip(row["sizes"], row[name], strict=True)
                if share is not None and share >= analysis["options"]["recovered"]
            ]
            found[f"first_n_{name}", source] = min(enough) if enough else None
    for row in analysis["over_loads"]["spread"]:
        for name in ("concentrated", "spread"):
            found[f"pooling_{name}", row["metric"]] = row[name]
    return found

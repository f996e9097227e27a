"""What LSSP published, and how far what we get is from it.

Numbers are keyed by what they are, such as ``("tau_b", "KNEE", "azure-burstgpt")``; `published`
lists all of them. Sources go by their short names, in this order: azure, bailian, burstgpt.
"""

import math
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any

Key = tuple[str, ...]

#: In the order in which pairs are named.
SOURCES = ("azure_llm_2024", "bailian_qwen", "burstgpt")
_WINDOW_LEN = 200


def short_name(source: str) -> str:
    """Return what a source of LSSP is called in keys.

    Examples
    --------
    >>> short_name("azure_llm_2024"), short_name("burstgpt")
    ('azure', 'burstgpt')
    """
    return source.partition("_")[0]


@cache
def _table() -> dict[str, Any]:
    text = (resources.files("queuesmith.study") / "published.toml").read_text("utf-8")
    return tomllib.loads(text)


@cache
def published() -> Mapping[Key, float]:
    """Return every published number by its key: what it is, then where, as in the tables.

    ``("tau_b", region, pair)`` is Kendall's tau-b by ANWG, ``("recovery_order", source, n)`` the
    share of draws of n windows that recover the order, ``("anwg", region, source, policy)`` a mean
    over windows; `put` below and the loops after it name all.
    """
    table = _table()
    regions = table["regions"]
    numbers: dict[Key, float] = {}

    def put(name: str, values: Mapping[str, list[float]], places: list[str]) -> None:
        for entry, row in values.items():
            for place, value in zip(places, row, strict=True):
                numbers[name, place, entry] = value

    for name, word in (("tau_b", "value"), ("tau_b_low", "low"), ("tau_b_high", "high")):
        put(name, table["tau_b"][word], regions)
    for most in ("1", "3"):
        put(f"top_{most}", table["top"][most], regions)
    for word in ("mean", "min", "max"):
        for metric, value in table["tau_b_of_metric"][word].items():
            numbers[f"tau_b_{word}", metric] = value
    for name, word in (
        ("reversals", "supported"),
        ("reversals_stable", "stable"),
        ("reversals_microscopic", "microscopic"),
    ):
        for region, count in zip(regions, table["reversals"][word], strict=True):
            numbers[name, region] = count
    for word in ("sources", "policies", "metric"):
        for entry, count in table["reversals"][f"by_{word}"].items():
            numbers[f"reversals_of_{word}", entry] = count
    for word in ("order", "top_1", "top_3"):
        for source, shares in table["recovery"][word].items():
            for num_windows, share in zip(table["recovery"]["num_windows"], shares, strict=True):
                numbers[f"recovery_{word}", source, str(num_windows)] = share
        for source, count in table["first_n"][word].items():
            numbers[f"first_n_{word}", source] = count
    for word in ("concentrated", "spread"):
        for metric, value in table["pooling"][word].items():
            numbers[f"pooling_{word}", metric] = value
    for source in map(short_name, SOURCES):
        for parts, row in table["temporal"][source].items():
            for region, value in zip(regions, row, strict=True):
                numbers["temporal", region, source, parts] = value
        for policy, row in table["anwg_mean"][source].items():
            for region, value in zip(table["anwg_mean"]["regions"], row, strict=True):
                numbers["anwg", region, source, policy] = value
        for region, policies in table["anwg"][source].items():
            for policy, counts in policies.items():
                mean = sum(counts) / len(counts) / _WINDOW_LEN
                numbers["anwg", region, source, policy] = mean
    return MappingProxyType({key: float(value) for key, value in numbers.items()})


def compare_with_published(ours: Mapping[Key, float]) -> list[dict[str, Any]]:
    """Set ours, NaN where we have none, beside every published number."""
    rows = []
    for key, value in published().items():
        own = float(ours.get(key, math.nan))
        rows.append(
            {"what": " ".join(key), "published": value, "ours": own, "difference": own - value}
        )
    return rows

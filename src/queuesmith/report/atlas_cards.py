"""Cards of reversals: two conditions in which two policies change places, and who drives it."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import zip_longest
from typing import Any

from queuesmith import numbers
from queuesmith.report.frame import prose
from queuesmith.study.grid import better
from queuesmith.study.words import engine_words, listed, loss_words, metric_words

#: Cards of each axis. The tables beside the page have every reversal.
NUM_CARDS = 6
AXES = {"source": "sources", "load": "loads", "engine": "engines"}
_QUARTERS = {
    "prompt_len": (
        "the shortest prompts",
        "shorter prompts",
        "longer prompts",
        "the longest prompts",
    ),
    "output_len": (
        "the shortest answers",
        "shorter answers",
        "longer answers",
        "the longest answers",
    ),
}
#: Below this share of the difference no quarter of the requests drives a reversal.
DRIVES = 0.4

Record = Mapping[str, Any]


def strongest(records: Iterable[Record], axis: str, limit: int = NUM_CARDS) -> list[Record]:
    """Return the supported reversals of an axis to show: the strongest of each metric in turn.

    A reversal is as strong as its smaller margin. Each pair of policies stands once for each
    metric, where its reversal is strongest.
    """
    chosen: dict[str, dict[frozenset[str], Record]] = {}
    for record in records:
        if record["axis"] != axis or record["class"] != "supported":
            continue
        pairs = chosen.setdefault(record["metric"], {})
        pair = frozenset((record["policy_a"], record["policy_b"]))
        if pair not in pairs or _strength(record) > _strength(pairs[pair]):
            pairs[pair] = record
    turns = zip_longest(
        *(sorted(pairs.values(), key=lambda one: -_strength(one)) for pairs in chosen.values())
    )
    return [record for turn in turns for record in turn if record is not None][:limit]


def reversal_cards(records: Sequence[Record]) -> str:
    """Return cards of the strongest reversals, by what differs between their two conditions."""
    sections = []
    for axis, plural in AXES.items():
        shown = strongest(records, axis)
        total = sum(record["axis"] == axis and record["class"] == "supported" for record in records)
        if not shown:
            sections.append(f"<h3>Between {plural}</h3><p class=none>No supported reversal.</p>")
            continue
        more = f", {len(shown)} of {total:,} shown" if total > len(shown) else ""
        cards = "".join(_card(record) for record in shown)
        sections.append(
            f"<h3>Between {plural} <small>{total:,} supported{more}</small></h3>"
            f'<div class="cards">{cards}</div>'
        )
    return "".join(sections)


def drivers_words(record: Record) -> str:
    """Say which requests make the difference on both sides; empty where that is not known.

    Examples
    --------
    >>> drivers = {"prompt_len": {"largest": 1, "share": 0.8}}
    >>> drivers_words({"drivers": drivers})
    'Driven by the shortest prompts: a quarter of the requests make 80 % of the difference.'
    """
    drivers = record.get("drivers")
    if not drivers:
        return ""
    by, one = max(drivers.items(), key=lambda item: item[1]["share"])
    if not one["share"] >= DRIVES:
        return "No quarter of the requests, by prompt or answer, drives it alone."
    return (
        f"Driven by {_QUARTERS[by][one['largest'] - 1]}: a quarter of the requests make "
        f"{numbers.share(one['share'])} of the difference."
    )


def _strength(record: Record) -> float:
    margins = [record[side]["margin"] for side in ("in_a", "in_b")]
    known = [margin for margin in margins if margin is not None and margin == margin]
    return min(known) if len(known) == 2 else 0.0


def _card(record: Record) -> str:
    shared = [
        engine_words(value) if name == "engine" else str(value)
        for name in ("source", "load", "engine")
        if (value := record[name]) is not None
    ]
    sides = "".join(_side(record, side) for side in ("a", "b"))
    adjusted = numbers.p_value(record["p_adjusted"])
    hint = " Few windows: a hint." if record["hint"] else ""
    words = drivers_words(record)
    bars = _driver_bars(record) if words else ""
    return (
        f'<article class="card"><h4>{escape(record["policy_a"])} &#8644; '
        f"{escape(record['policy_b'])} <small>on {escape(metric_words(record['metric']))}; "
        f"{escape(listed(shared))}</small></h4>{sides}"
        f"{f'<p>{prose(words)}</p>' if words else ''}{bars}"
        f"<p><small>p {numbers.p_value(record['p'])}, {adjusted} after Benjamini-Hochberg."
        f"{hint}</small></p></article>"
    )


def _side(record: Record, side: str) -> str:
    """Return one condition: who wins, by how much, how surely, in how many windows."""
    one, metric = record[f"in_{side}"], record["metric"]
    winner, loser = ("a", "b") if side == "a" else ("b", "a")
    name = record[side]
    label = engine_words(name) if record["axis"] == "engine" else name
    ends = f"{numbers.number(one['low'])} to {numbers.number(one['high'])}"
    word = "lower" if better(metric) == "lower" else "higher"
    margin = one["margin"]
    gain = loss_words(margin) if margin and margin > 2 else f"{numbers.share(margin)} {word}"
    return (
        f"<p><b>{escape(str(label))}</b>: {escape(record[f'policy_{winner}'])} wins, "
        f"{prose(gain)} "
        f"({prose(numbers.number(one[f'value_{winner}']))} against "
        f"{prose(numbers.number(one[f'value_{loser}']))}), in {one[f'wins_{winner}']} of "
        f"{one['num_windows']} windows <small>difference of {escape(record['policy_a'])} less "
        f"{escape(record['policy_b'])} {prose(numbers.number(one['difference']))} "
        f"[{prose(ends)}]</small></p>"
    )


def _driver_bars(record: Record) -> str:
    """Draw the share of each quarter by length in the difference, on both sides."""
    drivers = record["drivers"]
    by, one = max(drivers.items(), key=lambda item: item[1]["share"])
    most = max(abs(share) for side in ("in_a", "in_b") for share in one[side]) or 1.0
    least = min(share for side in ("in_a", "in_b") for share in one[side])
    height = 64 if least < 0 else 33
    bars = []
    for row, side in enumerate(("in_a", "in_b")):
        for quarter, share in enumerate(one[side]):
            size = 30 * abs(share) / most
            left = 90 * row + 20 * quarter
            top = 32 - size if share >= 0 else 32
            bars.append(
                f'<rect x="{left}" y="{top:.1f}" width="16" height="{size:.1f}" '
                f'class="side-{side[-1]}"><title>{_QUARTERS[by][quarter]}: '
                f"{numbers.share(share)}</title></rect>"
            )
    return (
        f'<svg class="drivers" width="170" height="{height}" viewBox="0 0 170 {height}" role="img" '
        f'aria-label="Share of each quarter of requests, from {_QUARTERS[by][0]} to '
        f'{_QUARTERS[by][3]}, in both differences"><path d="M0 32H80M90 32H170"/>{"".join(bars)}'
        "</svg>"
    )

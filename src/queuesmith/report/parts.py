"""What the figures are made of: how a policy looks everywhere, lines, and axes.

Building dictionaries instead of ``plotly.graph_objects`` keeps a report at a fraction of a second;
a test validates every one against plotly's schema. An array that several traces share, such as
the TTFT under the reference policy, is written once: a trace then holds ``{"column": index}``
into :attr:`Figure.columns`, which the page puts in its place.

Traces carry ``meta``: the ``policy`` and the ``load`` they show. The page draws those that match
what the reader chose.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from queuesmith.numbers import compact
from queuesmith.report.text import short

#: Each has a contrast of at least 3 on white and on the dark page. The first ones, which are those
#: drawn from the start, are told apart with any colour vision (after Okabe and Ito).
COLORS = (
    *("#0072B2", "#D55E00", "#009E73", "#C2649A", "#A67F00", "#8A63D2"),
    *("#C93A50", "#0F8FA5", "#9A6A45", "#6B8A1E", "#B04BC8", "#5F7FA8"),
)
RHO = "\N{GREEK SMALL LETTER RHO}"
REFERENCE_COLOR = "#7A7A7A"
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x")
NUM_LENGTH_BINS = 10
#: Short prompts to long ones; visible on white and on black.
LENGTH_SCALE = [[0.0, "#56B4E9"], [0.5, "#CC79A7"], [1.0, "#D55E00"]]

HOVER_NAME = "<extra>%{fullData.name}</extra>"
#: The page chooses the ticks of a logarithmic axis for what it shows.
LOG_AXIS: dict[str, Any] = {"type": "log", "tickformat": "~g"}
RATIO_AXIS: dict[str, Any] = {"type": "log", "tickformat": "~p"}


@dataclass(frozen=True)
class Style:
    """How a policy looks in every figure; the answer is thick."""

    policy: str
    label: str
    color: str
    dash: str
    symbol: str
    shown: bool
    answer: bool = False


@dataclass(frozen=True)
class Figure:
    """One or more panels under one heading, with a caption that says what to see.

    Attributes
    ----------
    controls : tuple of {"load", "policy", "legend"}
        What the reader may choose: one load, one policy, or which policies are drawn.
    columns : list of list
        Arrays that traces refer to by ``{"column": index}``.
    height : int or None
        Of a panel, in pixels, where the usual one is not enough.
    """

    name: str
    title: str
    caption: str
    panels: list[dict[str, Any]]
    controls: tuple[str, ...] = ()
    columns: list[list[float | None]] = field(default_factory=list)
    height: int | None = None


def policy_styles(kinds: Mapping[str, str], reference: str, answer: str | None) -> list[Style]:
    """Give every policy its look, in the order of `kinds`, which is the leaderboard's.

    Shown from the start are the reference, the four best policies, the best oracle and the answer:
    more lines than that cannot be told apart.

    Parameters
    ----------
    kinds : mapping of str to {"policy", "bundle", "oracle"}
        By name of policy.
    reference, answer : str
    """
    others = [name for name in kinds if name != reference]
    shown = {reference, answer}
    shown.update([name for name in others if kinds[name] != "oracle"][:4])
    shown.update([name for name in others if kinds[name] == "oracle"][:1])
    # Those shown from the start choose first, so that their colours differ.
    turns = {name: turn for turn, name in enumerate(sorted(others, key=lambda n: n not in shown))}
    styles = []
    for name, kind in kinds.items():
        turn, color = divmod(turns.get(name, 0), len(COLORS))
        styles.append(
            Style(
                policy=name,
                label=short(name) if kind == "policy" else f"{short(name)} ({kind})",
                color=REFERENCE_COLOR if name == reference else COLORS[color],
                dash=DASHES[turn % len(DASHES)],
                symbol=SYMBOLS[turn % len(SYMBOLS)],
                shown=name in shown,
                answer=name == answer and name != reference,
            )
        )
    return styles


def escape_label(text: str) -> str:
    """Return text that plotly, which reads some HTML in its labels, shows as it is."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def policy_line(style: Style, load: str | None = None, mode: str = "lines") -> dict[str, Any]:
    """Return what all lines of one policy have in common."""
    meta = {"policy": style.policy}
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": mode,
        "name": escape_label(style.label),
        "meta": meta if load is None else {**meta, "load": load},
        "visible": True if style.shown else "legendonly",
        "line": {"color": style.color, "dash": style.dash, "width": 4 if style.answer else 1.8},
    }
    if "markers" in mode:
        size = 9 if style.answer else 7
        trace["marker"] = {"color": style.color, "symbol": style.symbol, "size": size}
    return trace


def reference_line(ends: list[Any], reference: str, load: str | None = None) -> dict[str, Any]:
    """Return the line on which a policy equals the reference."""
    return {
        "type": "scatter",
        "mode": "lines",
        "name": escape_label(reference),
        "meta": {} if load is None else {"load": load},
        "x": ends,
        "y": [1.0] * len(ends),
        "line": {"color": REFERENCE_COLOR, "width": 2},
        "hoverinfo": "skip",
        "showlegend": False,
    }


def length_bins(prompt_len: NDArray[np.int64]) -> tuple[NDArray[np.int64], list[str]]:
    """Put requests into bins of about equal number by prompt length.

    Returns
    -------
    bins : (num_requests,) int64
        The bin of each request. Equal lengths share a bin, so there may be fewer than ten.
    labels : list of str
        The shortest and longest prompt of each bin.
    """
    ordered = np.sort(prompt_len)
    # In whole numbers: 3 * 0.1 is above 0.3, and would put one request into the wrong tenth.
    tenths = np.arange(1, NUM_LENGTH_BINS)
    edges = np.unique(ordered[-(-tenths * len(ordered) // NUM_LENGTH_BINS) - 1])
    bins = np.searchsorted(edges, prompt_len, side="left")
    # A last edge equal to the longest prompt leaves nothing above it.
    _, bins = np.unique(bins, return_inverse=True)
    labels = []
    for row in range(int(bins.max()) + 1):
        lengths = prompt_len[bins == row]
        low, high = int(lengths.min()), int(lengths.max())
        labels.append(f"{low:,}" if low == high else f"{low:,}-{high:,}")
    return bins.astype(np.int64), labels


def length_range(columns: Sequence[ArrayLike | list[float | None]]) -> tuple[float, float]:
    """Return the ends of log10 lengths, apart even when all are equal."""
    arrays = [np.asarray(column, np.float64) for column in columns]
    filled = [array for array in arrays if array.size]
    if not filled:
        return 0.0, 1.0
    low = min(float(column.min()) for column in filled)
    high = max(float(column.max()) for column in filled)
    return (low - 0.05, high + 0.05) if high - low > 0.1 else (low - 0.5, high + 0.5)


def length_ticks(low: float, high: float) -> dict[str, Any]:
    """Return the ticks of an axis of log10 lengths, in tokens: as few as are three or more."""
    for steps in ((1,), (1, 3), (1, 2, 5), (1, 2, 3, 5, 7)):
        lengths = [
            step * 10**power
            for power in range(max(0, int(np.floor(low))), int(np.ceil(high)) + 1)
            for step in steps
            if low <= np.log10(step) + power <= high
        ]
        if len(lengths) >= 3:
            break
    return {
        "tickvals": compact(np.log10(lengths), 6),
        "ticktext": [f"{length:,}" for length in lengths],
    }

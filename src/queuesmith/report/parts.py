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
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

#: Okabe and Ito's colours, readable with any colour vision, less the yellow (lost on white) and
#: the black, which is the reference's.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
RHO = "\N{GREEK SMALL LETTER RHO}"
REFERENCE_COLOR = "#7A7A7A"
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x")
NUM_LENGTH_BINS = 10
#: Short prompts to long ones; visible on white and on black.
LENGTH_SCALE = [[0.0, "#56B4E9"], [0.5, "#CC79A7"], [1.0, "#D55E00"]]

HOVER_NAME = "<extra>%{fullData.name}</extra>"
LOG_AXIS: dict[str, Any] = {"type": "log", "dtick": 1, "tickformat": "~g"}
RATIO_AXIS: dict[str, Any] = {"type": "log", "tickformat": "~p"}


class Samples(Protocol):
    """What each request of one (policy, load) experienced, pooled over windows."""

    @property
    def ttft(self) -> NDArray[np.float64]:
        """Seconds; NaN when the request did not finish."""

    @property
    def slowdown(self) -> NDArray[np.float64]:
        """E2EL over E2EL alone on an idle engine; NaN when the request did not finish."""

    @property
    def prompt_len(self) -> NDArray[np.int64]:
        """Tokens."""

    @property
    def output_len(self) -> NDArray[np.int64]:
        """Tokens."""

    @property
    def window(self) -> NDArray[np.int64]:
        """The window the request belongs to."""


@dataclass(frozen=True)
class Style:
    """How a policy looks in every figure."""

    policy: str
    label: str
    color: str
    dash: str
    symbol: str
    shown: bool


@dataclass(frozen=True)
class Figure:
    """One or more panels under one heading, with a caption that says what to see.

    Attributes
    ----------
    controls : tuple of {"load", "policy", "legend"}
        What the reader may choose: one load, one policy, or which policies are drawn.
    columns : list of list
        Arrays that traces refer to by ``{"column": index}``.
    """

    name: str
    title: str
    caption: str
    panels: list[dict[str, Any]]
    controls: tuple[str, ...] = ()
    columns: list[list[float | None]] = field(default_factory=list)


def policy_styles(document: Mapping[str, Any]) -> list[Style]:
    """Give every policy its look, in the order of the leaderboard.

    Shown from the start are the reference, the four best policies, the best oracle and the one
    the answer names: more lines than that cannot be told apart.
    """
    reference = document["config"]["reference"]
    rows = {row["policy"]: row for row in document["leaderboard"]}
    names = list(dict.fromkeys([*rows, *document["config"]["policies"], reference]))
    kinds = {name: rows.get(name, {}).get("kind", "policy") for name in names}
    others = [name for name in names if name != reference]
    shown = {reference, document["answer"]["policy"]}
    shown.update([name for name in others if kinds[name] != "oracle"][:4])
    shown.update([name for name in others if kinds[name] == "oracle"][:1])
    # Those shown from the start choose first, so that their colours differ.
    turns = {name: turn for turn, name in enumerate(sorted(others, key=lambda n: n not in shown))}
    styles = []
    for name in names:
        color, turn = turns.get(name, 0) % len(COLORS), turns.get(name, 0) // len(COLORS)
        styles.append(
            Style(
                policy=name,
                label=name if kinds[name] == "policy" else f"{name} ({kinds[name]})",
                color=REFERENCE_COLOR if name == reference else COLORS[color],
                dash=DASHES[turn % len(DASHES)],
                symbol=SYMBOLS[turn % len(SYMBOLS)],
                shown=name in shown,
            )
        )
    return styles


def load_label(load: Mapping[str, Any]) -> str:
    """Return a load's name with its rho, where it has one."""
    return load["name"] if load["rho"] is None else f"{load['name']} ({RHO} {load['rho']:g})"


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
        "line": {"color": style.color, "dash": style.dash, "width": 2},
    }
    if "markers" in mode:
        trace["marker"] = {"color": style.color, "symbol": style.symbol, "size": 7}
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


def decades(low: float, high: float) -> list[int]:
    """Return the whole powers of ten between two log10 lengths."""
    return list(range(int(np.ceil(low)), int(np.floor(high)) + 1))


def decade_text(low: float, high: float) -> list[str]:
    """Return those powers of ten in tokens."""
    return [f"{10**decade:,}" for decade in decades(low, high)]

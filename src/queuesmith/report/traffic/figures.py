"""The figures of a workload, as plain plotly dictionaries."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from queuesmith.numbers import compact
from queuesmith.report.parts import (
    COLORS,
    LOG_AXIS,
    REFERENCE_COLOR,
    Figure,
    length_range,
    length_ticks,
)
from queuesmith.report.traffic.workload import workload
from queuesmith.traces.describe import dispersion, group_sizes, prefix_reuse, turn_gaps
from queuesmith.traces.trace import Trace

_NUM_WIDTHS = 25
_NUM_POINTS = 400
#: Seconds below which nobody asks again on purpose.
_SOONEST = 0.1


def build_traffic_figures(trace: Trace) -> list[Figure]:
    """Build every figure for which the trace has data, in the order in which they are read."""
    arrivals = workload(trace)
    arrivals = replace(
        arrivals,
        title="Rate and lengths",
        caption=arrivals.caption.replace("; each load stretches or squeezes this in time", ""),
    )
    figures = [arrivals, _burstiness(trace), _lengths(trace)]
    figures += [
        figure
        for figure in (_clients(trace), _sessions(trace), _prefixes(trace))
        if figure is not None
    ]
    return figures


def _burstiness(trace: Trace) -> Figure:
    gaps = np.diff(trace.arrival_time)
    mean_gap = float(gaps.mean()) if len(gaps) else 0.0
    shortest = max(mean_gap, trace.duration / 5e6, 1e-3)
    widths = np.geomspace(shortest, max(trace.duration / 10, 2 * shortest), _NUM_WIDTHS)
    pairs = [(width, dispersion(trace, float(width))) for width in widths]
    known = [(width, value) for width, value in pairs if value]
    ends = [float(widths[0]), float(widths[-1])]
    panels = [
        _panel(
            "Dispersion against time scale",
            [
                _line(ends, [1.0, 1.0], "Poisson", color=REFERENCE_COLOR, dash="dash"),
                _line(
                    [width for width, _ in known],
                    [value for _, value in known],
                    "this trace",
                    hover="bins of %{x:.3g} s: %{y:.3g}",
                    mode="lines+markers",
                ),
            ],
            {"title": {"text": "width of a bin (s)"}, **LOG_AXIS},
            {
                "title": {"text": "index of dispersion, logarithmic"},
                "type": "log",
                "tickformat": "~g",
                "nticks": 5,
            },
            legend=True,
        )
    ]
    longer = gaps[gaps > 0]
    if len(longer):
        times, above = _survival(longer, share_of=len(gaps))
        # From where nearly every Poisson gap is longer to where none would be seen.
        first, last = mean_gap / 100, -np.log(above[-1] / 2) * mean_gap
        times, above = _from(first, times, above)
        poisson = np.geomspace(first, last, _NUM_POINTS // 4)
        panels.append(
            _panel(
                "Gaps between requests",
                [
                    _line(
                        poisson,
                        np.exp(-poisson / mean_gap),
                        "Poisson",
                        color=REFERENCE_COLOR,
                        dash="dash",
                    ),
                    _line(
                        times, above, "this trace", hover="%{y:.2%} of gaps last %{x:.3g} s or more"
                    ),
                ],
                {"title": {"text": "gap (s)"}, **LOG_AXIS},
                {"title": {"text": "share of gaps at least as long"}, **LOG_AXIS},
                legend=True,
            )
        )
    return Figure(
        name="burstiness",
        title="Bursts",
        caption="Left, how much more the number of requests in a bin varies than if they came "
        "independently of each other, at every width of bin: level is bursts of one kind, rising "
        "is a rate that moves. Right, how long nothing comes; a line above the dashed one at the "
        "right end is silence that chance would not make, and what comes after it is a burst.",
        panels=panels,
    )


def _lengths(trace: Trace) -> Figure:
    data = []
    for name, tokens, color in (
        ("prompt", trace.prompt_len, COLORS[0]),
        ("output", trace.output_len, COLORS[1]),
    ):
        levels = np.unique(np.concatenate([np.linspace(0, 1, _NUM_POINTS), [0.995, 0.999]]))
        values = np.quantile(tokens, levels, method="inverted_cdf")
        data.append(
            _line(
                np.log10(values),
                levels,
                name,
                color=color,
                hover="%{y:.1%} of " + name + "s have at most %{text} tokens",
                text=[f"{value:,.0f}" for value in values],
            )
        )
    bounds = length_range([np.log10(trace.prompt_len), np.log10(trace.output_len)])
    work = np.sort(trace.prompt_len + trace.output_len)[::-1].astype(np.float64)
    shares = np.cumsum(work) / work.sum()
    places = np.unique(np.geomspace(1, len(work), _NUM_POINTS).astype(np.int64))
    return Figure(
        name="lengths",
        title="Lengths",
        caption="Left, the share of prompts and outputs up to a length. Right, how much of all "
        "tokens the longest requests hold: the higher the line at the left, the more a few of them "
        "decide how long the others wait.",
        panels=[
            _panel(
                "Prompt and output length",
                data,
                {
                    "title": {"text": "length (tokens), logarithmic"},
                    "range": list(bounds),
                    **length_ticks(*bounds),
                },
                {"title": {"text": "share of requests"}, "tickformat": ".0%", "range": [0, 1.01]},
                legend=True,
            ),
            _panel(
                "Tokens in the longest requests",
                [
                    _line(
                        places / len(work),
                        shares[places - 1],
                        "requests",
                        hover="the longest %{x:.2%} hold %{y:.1%} of tokens",
                    )
                ],
                {
                    "title": {"text": "longest requests (share), logarithmic"},
                    "type": "log",
                    "tickformat": "~p",
                    "dtick": 1,
                },
                {"title": {"text": "share of all tokens"}, "tickformat": ".0%", "range": [0, 1.01]},
            ),
        ],
    )


def _clients(trace: Trace) -> Figure | None:
    sizes = group_sizes(trace.client)
    if sizes is None or trace.client is None:
        return None
    tokens = np.bincount(
        np.unique(trace.client[trace.client >= 0], return_inverse=True)[1],
        weights=(trace.prompt_len + trace.output_len)[trace.client >= 0],
    )
    data = []
    for name, values, color in (("requests", sizes, COLORS[0]), ("tokens", tokens, COLORS[1])):
        shares = np.cumsum(np.sort(values)[::-1]) / values.sum()
        places = np.unique(np.geomspace(1, len(shares), _NUM_POINTS).astype(np.int64))
        data.append(
            _line(
                places,
                shares[places - 1],
                name,
                color=color,
                hover="the first %{x:,} hold %{y:.1%} of " + name,
                mode="lines+markers" if len(places) < 30 else "lines",
            )
        )
    return Figure(
        name="clients",
        title="Clients",
        caption=f"The {len(sizes):,} clients, the busiest first. The higher the line at the left, "
        "the more a few clients decide what everyone waits for, and the more fair shares matter.",
        panels=[
            _panel(
                "What the busiest clients ask for",
                data,
                {"title": {"text": "clients, the busiest first"}, **LOG_AXIS},
                {"title": {"text": "share of all"}, "tickformat": ".0%", "range": [0, 1.01]},
                legend=True,
            )
        ],
    )


def _sessions(trace: Trace) -> Figure | None:
    sizes = group_sizes(trace.session)
    gaps = turn_gaps(trace)
    gaps = gaps[gaps > 0]
    if sizes is None or len(gaps) == 0:
        return None
    turns, at_least = _survival(sizes.astype(np.float64))
    times, above = _from(_SOONEST, *_survival(gaps))
    return Figure(
        name="sessions",
        title="Conversations",
        caption=f"The {len(sizes):,} conversations: how many turns they have, and how long it is "
        "from one turn to the next. A scheduler that knows a conversation knows who comes back.",
        panels=[
            _panel(
                "Turns",
                [
                    _line(
                        turns, at_least, "conversations", hover="%{y:.2%} have %{x:,} turns or more"
                    )
                ],
                {"title": {"text": "turns"}, **LOG_AXIS},
                {"title": {"text": "share with at least as many"}, **LOG_AXIS},
            ),
            _panel(
                "From one turn to the next",
                [_line(times, 1 - above, "turns", hover="%{y:.1%} come within %{x:.3g} s")],
                {"title": {"text": "seconds since the turn before"}, **LOG_AXIS},
                {"title": {"text": "share of turns"}, "tickformat": ".0%", "range": [0, 1.01]},
            ),
        ],
    )


def _prefixes(trace: Trace) -> Figure | None:
    reuse = prefix_reuse(trace)
    if reuse is None:
        return None
    share = reuse.reused / trace.prompt_len
    levels = np.linspace(0, 1, _NUM_POINTS)
    panels = [
        _panel(
            "How much of a prompt was there before",
            [
                _line(
                    np.quantile(share, levels),
                    1 - levels,
                    "requests",
                    hover="%{y:.1%} of requests reuse at least %{x:.1%}",
                )
            ],
            {"title": {"text": "reused share of the prompt"}, "tickformat": ".0%"},
            {"title": {"text": "share of requests"}, "tickformat": ".0%", "range": [0, 1.01]},
        )
    ]
    ages = reuse.age[reuse.age > 0]
    if len(ages):
        times, above = _from(_SOONEST, *_survival(ages, share_of=len(reuse.age)))
        panels.append(
            _panel(
                "How long a block must be kept",
                [
                    _line(
                        times,
                        1 - above,
                        "blocks",
                        hover="%{y:.1%} of reuse comes within %{x:.3g} s",
                    )
                ],
                {"title": {"text": "seconds since the block was last used"}, **LOG_AXIS},
                {
                    "title": {"text": "share of reused blocks"},
                    "tickformat": ".0%",
                    "range": [0, 1.01],
                },
            )
        )
    return Figure(
        name="prefixes",
        title="Prefixes that come again",
        caption="Left, the share of requests that find at least so much of their prompt in a cache "
        "that forgets nothing. Right, how soon a block is used again: a cache that keeps blocks "
        "for less time saves accordingly less.",
        panels=panels,
    )


def _survival(
    values: NDArray[np.float64], share_of: int | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return values and the share that is at least as large, in few points, close at the end."""
    ordered = np.sort(values)
    places = np.unique(
        np.concatenate(
            [
                np.linspace(0, len(ordered) - 1, _NUM_POINTS // 2),
                len(ordered) - np.geomspace(1, len(ordered), _NUM_POINTS // 2),
            ]
        ).astype(np.int64)
    )
    # Of equal values the first place counts: all of them are at least as large.
    first = np.searchsorted(ordered, ordered[places], side="left")
    points = np.unique(first)
    return ordered[points], (len(ordered) - points) / (share_of or len(ordered))


def _from(
    first: float, values: NDArray[np.float64], above: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Let a survival function begin at `first`: a logarithmic axis has no natural beginning."""
    start = int(np.searchsorted(values, first))
    share = above[min(start, len(above) - 1)]
    return np.insert(values[start:], 0, first), np.insert(above[start:], 0, share)


def _line(
    x: Any,
    y: Any,
    name: str,
    *,
    color: str = COLORS[0],
    dash: str = "solid",
    hover: str | None = None,
    mode: str = "lines",
    text: list[str] | None = None,
) -> dict[str, Any]:
    line: dict[str, Any] = {
        "type": "scatter",
        "mode": mode,
        "name": name,
        "x": compact(x, 5),
        "y": compact(y, 4),
        "line": {"color": color, "dash": dash, "width": 2},
    }
    line |= {"hoverinfo": "skip"} if hover is None else {"hovertemplate": hover + "<extra></extra>"}
    return line if text is None else {**line, "text": text}


def _panel(
    title: str,
    data: list[dict[str, Any]],
    xaxis: dict[str, Any],
    yaxis: dict[str, Any],
    *,
    legend: bool = False,
) -> dict[str, Any]:
    layout: dict[str, Any] = {"title": {"text": title}, "xaxis": xaxis, "yaxis": yaxis}
    layout["showlegend"] = legend
    if legend:
        # Below, where it cannot meet the title however narrow the page is.
        layout["legend"] = {"orientation": "h", "x": 0, "y": -0.24, "yanchor": "top"}
    return {"data": data, "layout": layout}

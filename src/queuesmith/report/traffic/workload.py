"""The figure of what was replayed: arrivals over time, and how long prompts and outputs are."""

from typing import Any

import numpy as np

from queuesmith.numbers import compact
from queuesmith.report.parts import COLORS, Figure, length_range, length_ticks
from queuesmith.traces.trace import Trace


def workload(trace: Trace) -> Figure:
    """Draw what was replayed: arrivals over time, and prompt against output length."""
    divisor, unit = _time_unit(trace.duration)
    num_bins = int(np.clip(len(trace) // 20, 20, 240))
    start = trace.arrival_time[0] if len(trace) else 0.0
    counts, edges = np.histogram(
        trace.arrival_time - start, bins=num_bins, range=(0.0, trace.duration or 1.0)
    )
    width = float(edges[1] - edges[0])
    rate = counts / width
    arrivals = {
        "type": "scatter",
        "mode": "lines",
        "name": "arrivals",
        "x": compact(edges / divisor, 5),
        "y": compact(np.append(rate, rate[-1]), 4),
        "line": {"shape": "hv", "width": 1.2, "color": COLORS[0]},
        "fill": "tozeroy",
        "fillcolor": "rgba(0,114,178,0.25)",
        "hovertemplate": f"%{{x:.4g}} {unit}: %{{y:.3g}} requests/s<extra></extra>",
    }
    mean = len(trace) / trace.duration if trace.duration else float(len(trace))
    return Figure(
        name="workload",
        title="The traffic",
        caption=f"Left, {len(trace):,} requests as recorded, {mean:.3g} per second on average, "
        f"counted in bins of {width:.3g} s; each load stretches or squeezes this in time. Right, "
        "how long prompts and outputs are; the margins are the two distributions by themselves. "
        "The wider the prompts' spread, the more an order other than arrival can gain.",
        panels=[
            {
                "data": [arrivals],
                "layout": {
                    "title": {"text": "Arrivals over time"},
                    "xaxis": {"title": {"text": f"time since the first request ({unit})"}},
                    "yaxis": {"title": {"text": "requests per second"}, "rangemode": "tozero"},
                    "showlegend": False,
                },
            },
            _length_panel(trace),
        ],
    )


def _length_panel(trace: Trace) -> dict[str, Any]:
    """Return the 2-D histogram of prompt and output length with its margins."""
    prompts, outputs = np.log10(trace.prompt_len), np.log10(trace.output_len)
    ranges = [length_range([prompts]), length_range([outputs])]
    counts, prompt_edges, output_edges = np.histogram2d(prompts, outputs, bins=40, range=ranges)
    middles = [(edges[1:] + edges[:-1]) / 2 for edges in (prompt_edges, output_edges)]
    shares = counts / max(1, len(trace))
    bar = {"type": "bar", "marker": {"color": COLORS[0]}, "opacity": 0.75}
    ticks = [length_ticks(*bounds) for bounds in ranges]
    hidden = {"showticklabels": False, "showgrid": False, "zeroline": False, "ticks": ""}
    data = [
        {
            "type": "heatmap",
            "name": "requests",
            "x": compact(middles[0], 8),
            "y": compact(middles[1], 8),
            # An empty cell is left transparent, so that one request is told from none.
            "z": [compact(np.where(row > 0, row, np.nan), 3) for row in shares.T],
            "colorscale": [[0.0, "rgba(0,114,178,0.12)"], [1.0, "rgba(0,114,178,1)"]],
            "showscale": False,
            "hovertemplate": "%{z:.2%} of requests<extra></extra>",
        },
        {
            **bar,
            "name": "prompt",
            "x": compact(middles[0], 8),
            "y": compact(shares.sum(axis=1), 3),
            "yaxis": "y2",
            "hovertemplate": "%{y:.2%} of prompts<extra></extra>",
        },
        {
            **bar,
            "name": "output",
            "orientation": "h",
            "x": compact(shares.sum(axis=0), 3),
            "y": compact(middles[1], 8),
            "xaxis": "x2",
            "hovertemplate": "%{x:.2%} of outputs<extra></extra>",
        },
    ]
    layout = {
        "title": {"text": "Prompt and output length"},
        "xaxis": {
            "title": {"text": "prompt length (tokens), logarithmic"},
            "domain": [0, 0.82],
            "range": list(ranges[0]),
            **ticks[0],
        },
        "yaxis": {
            "title": {"text": "output length (tokens), logarithmic"},
            "domain": [0, 0.8],
            "range": list(ranges[1]),
            **ticks[1],
        },
        "xaxis2": {"domain": [0.85, 1], **hidden},
        "yaxis2": {"domain": [0.84, 1], **hidden},
        "bargap": 0,
        "showlegend": False,
    }
    return {"data": data, "layout": layout}


def _time_unit(duration: float) -> tuple[float, str]:
    """Return the seconds of a unit in which a duration is easily read, and its name."""
    for seconds, unit in ((86_400.0, "days"), (3_600.0, "hours"), (60.0, "minutes")):
        if duration > 3 * seconds:
            return seconds, unit
    return 1.0, "s"

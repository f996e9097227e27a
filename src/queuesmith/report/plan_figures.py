"""The figures of a plan, as plain plotly dictionaries: one panel per engine."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from queuesmith import numbers
from queuesmith.numbers import compact
from queuesmith.report.parts import (
    COLORS,
    HOVER_NAME,
    LOG_AXIS,
    REFERENCE_COLOR,
    Figure,
    Style,
    escape_label,
    policy_line,
)

#: Limits as the page calls them, each with its colour.
MISSES = {
    "over_ttft": ("ttft", COLORS[0]),
    "over_tpot": ("tpot", COLORS[1]),
    "over_e2el": ("e2el", COLORS[2]),
    "unserved": ("client gave up", REFERENCE_COLOR),
}
_RATE = "offered rate (requests/s)"


def build_plan_figures(document: Mapping[str, Any], styles: Sequence[Style]) -> list[Figure]:
    """Build every figure, in the order in which they are read."""
    return [_capacities(document, styles), _attainment(document, styles), _misses(document)]


def rows_of(document: Mapping[str, Any], table: str, engine: str) -> list[Mapping[str, Any]]:
    """Return the rows of one engine."""
    return [row for row in document[table] if row["engine"] == engine]


def _capacities(document: Mapping[str, Any], styles: Sequence[Style]) -> Figure:
    """Draw the capacity of every policy with its interval, the highest on top."""
    looks = {style.policy: style for style in styles}
    panels = []
    for engine in document["config"]["engines"]:
        rows = rows_of(document, "capacities", engine["name"])[::-1]
        labels = [escape_label(looks[row["policy"]].label) for row in rows]
        end = max(point["rate"] for point in rows_of(document, "probes", engine["name"]))
        data = []
        for row, label in zip(rows, labels, strict=True):
            rate = row["held"] if row["state"] == "above" else row["rate"]
            low = rate if row["rate_low"] is None else row["rate_low"]
            # An end beyond the search is drawn up to where the search ended.
            open_end = end if row["rate_low"] is not None else rate
            high = open_end if row["rate_high"] is None else row["rate_high"]
            color = looks[row["policy"]].color
            data.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": label,
                    "x": compact([rate], 4),
                    "y": [label],
                    "marker": {
                        "color": color,
                        "size": 9,
                        "symbol": "triangle-right" if row["state"] == "above" else "circle",
                    },
                    "error_x": {
                        "type": "data",
                        "symmetric": False,
                        "array": compact([max(high - rate, 0)], 3),
                        "arrayminus": compact([max(rate - low, 0)], 3),
                        "color": color,
                        "thickness": 1.6,
                        "width": 3,
                    },
                    "hovertemplate": f"{escape_label(_rate(row))}{HOVER_NAME}",
                }
            )
        layout = {
            "title": {"text": escape_label(engine["name"])},
            "xaxis": {"title": {"text": _RATE}, "rangemode": "tozero"},
            "yaxis": {
                "type": "category",
                "categoryorder": "array",
                "categoryarray": labels,
                "dtick": 1,
                "range": [-0.7, len(labels) - 0.3],
            },
            "shapes": [_vertical(engine["rate"], "dot"), _vertical(engine["carried"], "dash")],
        }
        panels.append({"data": data, "layout": layout})
    share = numbers.share(document["config"]["attainment"])
    return Figure(
        name="capacities",
        title="What each policy carries",
        caption=f"The offered rate up to which {share} of requests meet the SLO. Whiskers are 95 % "
        "intervals over whole windows; windows are shared, so policies differ more surely than "
        "whiskers that overlap suggest: the table has the intervals of the ratios. Dotted: the "
        "traffic as it is. Dashed: what the engine finishes when there is always work; a capacity "
        "beyond it lasts only as long as a window. A triangle did not break at any rate searched.",
        panels=panels,
    )


def _rate(row: Mapping[str, Any]) -> str:
    if row["state"] == "above":
        return f"{numbers.number(row['held'])} requests/s and more"
    if row["state"] != "found":
        return "at no rate"
    if row["rate_low"] is None:
        return f"{numbers.number(row['rate'])} requests/s"
    high = numbers.number(row["rate_high"]) if row["rate_high"] is not None else "more"
    return f"{numbers.number(row['rate'])} [{numbers.number(row['rate_low'])} to {high}] requests/s"


def _attainment(document: Mapping[str, Any], styles: Sequence[Style]) -> Figure:
    """Draw attainment against the offered rate."""
    target = document["config"]["attainment"]
    floor = max(0.0, 1 - 10 * (1 - target)) if target < 1 else 0.9
    panels = []
    for engine in document["config"]["engines"]:
        points = rows_of(document, "probes", engine["name"])
        data = []
        for style in styles:
            mine = [point for point in points if point["policy"] == style.policy]
            data.append(
                {
                    **policy_line(style, mode="lines+markers"),
                    "x": compact([point["rate"] for point in mine], 4),
                    "y": compact([point["attainment"] for point in mine], 5),
                    "hovertemplate": "%{x} requests/s: %{y:.2%}" + HOVER_NAME,
                }
            )
            data[-1]["marker"]["size"] = 5
        layout = {
            "title": {"text": escape_label(engine["name"])},
            "xaxis": {"title": {"text": _RATE}, **LOG_AXIS, "range": _where_it_breaks(points)},
            "yaxis": {
                "title": {"text": "requests within the SLO"},
                "tickformat": "~p",
                "range": [floor, 1 + 0.04 * (1 - floor)],
            },
            "shapes": [
                _vertical(engine["rate"], "dot"),
                _vertical(engine["carried"], "dash"),
                _line((0, 1), "paper", (target, target), "y", "solid"),
            ],
        }
        panels.append({"data": data, "layout": layout})
    return Figure(
        name="attainment",
        title="Attainment against load",
        caption=f"Every dot was simulated. The capacity is where a line first falls below "
        f"{numbers.share(target)}; what it does further right does not count. Dotted: the traffic "
        "as it is. Dashed: what the engine finishes when there is always work. Double-click to see "
        "all of the lines.",
        panels=panels,
        controls=("legend",),
    )


def _misses(document: Mapping[str, Any]) -> Figure:
    """Draw which limit is missed, against the offered rate, one policy at a time."""
    panels = []
    config = document["config"]
    for engine in config["engines"]:
        points = rows_of(document, "probes", engine["name"])
        data = []
        for policy in config["policies"]:
            mine = [point for point in points if point["policy"] == policy]
            for key, (label, color) in MISSES.items():
                if not any(point[key] for point in mine):
                    continue
                shares = [point[key] / point["num_requests"] for point in mine]
                data.append(
                    {
                        "type": "scatter",
                        "mode": "lines+markers",
                        "name": label,
                        "meta": {"policy": policy},
                        "x": compact([point["rate"] for point in mine], 4),
                        "y": compact([share or math.nan for share in shares], 4),
                        "line": {"color": color, "width": 2},
                        "marker": {"color": color, "size": 5},
                        "hovertemplate": "%{x} requests/s: %{y:.2%}" + HOVER_NAME,
                    }
                )
        layout = {
            "title": {"text": escape_label(engine["name"])},
            "xaxis": {"title": {"text": _RATE}, **LOG_AXIS, "range": _where_it_breaks(points)},
            "yaxis": {
                "title": {"text": "requests beyond a limit"},
                "type": "log",
                "tickformat": "~p",
            },
            "showlegend": True,
            "legend": {"x": 0.02, "y": 0.98},
            "shapes": [_vertical(engine["rate"], "dot"), _vertical(engine["carried"], "dash")],
        }
        panels.append({"data": data, "layout": layout})
    return Figure(
        name="misses",
        title="Which limit breaks first",
        caption="The share of requests beyond each limit, on logarithmic axes; a request may be "
        "beyond several. TTFT is what an order of the waiting can change. Where TPOT breaks first "
        "the batch is too large, and no order of the waiting helps much.",
        panels=panels,
        controls=("policy",) if len(config["policies"]) > 1 else (),
    )


def _where_it_breaks(points: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return log10 of the rates from shortly before the first miss to the highest."""
    rates = [point["rate"] for point in points]
    missed = [point["rate"] for point in points if point["attainment"] < 1]
    start = max(min(missed, default=min(rates)) / 2, min(rates) / 1.2)
    return [math.log10(start), math.log10(1.2 * max(rates))]


def _vertical(rate: float, dash: str) -> dict[str, Any]:
    """Return a line at a rate, from bottom to top."""
    return _line((rate, rate), "x", (0, 1), "paper", dash)


def _line(
    x: tuple[float, float], xref: str, y: tuple[float, float], yref: str, dash: str
) -> dict[str, Any]:
    return {
        "type": "line",
        "xref": xref,
        "x0": x[0],
        "x1": x[1],
        "yref": yref,
        "y0": y[0],
        "y1": y[1],
        "line": {"color": REFERENCE_COLOR, "width": 1.3, "dash": dash},
    }

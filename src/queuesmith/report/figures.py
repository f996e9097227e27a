"""The figures of a comparison, as plain plotly dictionaries."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from queuesmith.numbers import compact
from queuesmith.report.parts import (
    HOVER_NAME,
    LENGTH_SCALE,
    LOG_AXIS,
    RATIO_AXIS,
    RHO,
    Figure,
    Samples,
    Style,
    decade_text,
    decades,
    escape_label,
    length_bins,
    length_range,
    load_label,
    policy_line,
    policy_styles,
    reference_line,
)
from queuesmith.report.workload import workload
from queuesmith.stats import quantiles
from queuesmith.traces.trace import Trace

NUM_QUANTILES = 200
MAX_POINTS = 2_000
#: Points of all scatter plots together; they are most of what a large report weighs.
MAX_POINTS_IN_ALL = 160_000


def build_figures(
    document: Mapping[str, Any], samples: Mapping[tuple[str, str], Samples], trace: Trace
) -> list[Figure]:
    """Build every figure of the report, in the order in which they are read."""
    styles = policy_styles(document)
    figures = [
        change_by_load(document, styles),
        ttft_distribution(document, styles, samples),
        who_pays(document, styles, samples),
        request_by_request(document, styles, samples),
        workload(trace),
    ]
    reference = document["config"]["reference"]
    for figure in figures:
        for panel in figure.panels:
            # The reference lies below the others, or it would hide those that equal it.
            panel["data"].sort(
                key=lambda trace: trace.get("meta", {}).get("policy", reference) != reference
            )
    return figures


def change_by_load(document: Mapping[str, Any], styles: list[Style]) -> Figure:
    """Draw mean and p99 TTFT relative to the reference, at every load, with intervals."""
    reference = document["config"]["reference"]
    loads = document["config"]["loads"]
    rows = {(row["policy"], row["load"]): row for row in document["loads"]}
    shown = [style for style in styles if style.shown and style.policy != reference]
    panels = []
    for metric, name, title in (
        ("mean_change", "mean TTFT", "Mean TTFT"),
        ("p99_change", "p99 TTFT", "p99 TTFT"),
    ):
        data = [reference_line([-0.4, len(loads) - 0.6], reference)]
        for style in styles:
            if style.policy == reference:
                continue
            # Side by side, or the intervals of one load would hide each other.
            offset = 0.0
            if style in shown and len(shown) > 1:
                offset = 0.3 * (shown.index(style) / (len(shown) - 1) - 0.5)
            middle, low, high = (
                np.array(
                    [
                        _ratio(rows.get((style.policy, load["name"]), {}).get(metric + end))
                        for load in loads
                    ]
                )
                for end in ("", "_low", "_high")
            )
            data.append(
                {
                    **policy_line(style, mode="lines+markers"),
                    "x": [position + offset for position in range(len(loads))],
                    "y": compact(middle, 4),
                    "error_y": {
                        "type": "data",
                        "symmetric": False,
                        "array": compact(np.maximum(high - middle, 0), 3),
                        "arrayminus": compact(np.maximum(middle - low, 0), 3),
                        "color": style.color,
                        "thickness": 1.2,
                        "width": 3,
                    },
                    "customdata": [load_label(load) for load in loads],
                    "hovertemplate": "%{customdata}: %{y:.1%}" + HOVER_NAME,
                }
            )
        layout = {
            "title": {"text": f"{title} against {escape_label(reference)}"},
            "xaxis": {
                "title": {"text": f"load: offered rate / capacity, {RHO}"},
                "tickvals": list(range(len(loads))),
                "ticktext": [
                    escape_label(load["name"])
                    + ("" if load["rho"] is None else f"<br>{load['rho']:g}")
                    for load in loads
                ],
                "tickangle": 0,
                "range": [-0.4, len(loads) - 0.6],
            },
            "yaxis": {"title": {"text": f"{name} (% of {escape_label(reference)})"}, **RATIO_AXIS},
        }
        panels.append({"data": data, "layout": layout})
    return Figure(
        name="change-by-load",
        title="How much sooner the first token comes, at every load",
        caption=f"Below the line is better than {reference}, which is the line at 100 %. "
        "Whiskers are 95 % intervals over whole windows: where they cross the line, the "
        "difference may be chance. A policy worth running is below the line on the left and not "
        "above it on the right. The axis is logarithmic, so that half and double are equally far.",
        panels=panels,
        controls=("legend",),
    )


def ttft_distribution(
    document: Mapping[str, Any],
    styles: list[Style],
    samples: Mapping[tuple[str, str], Samples],
) -> Figure:
    """Draw the distribution of TTFT and its tail, one load at a time."""
    longest = max((len(sample.ttft) for sample in samples.values()), default=1)
    body = np.linspace(0, 1, NUM_QUANTILES * 2 // 3, endpoint=False)[1:]
    tail = 1 - np.geomspace(0.3, 1 / max(longest, 4), NUM_QUANTILES // 3)
    levels = np.union1d(body, tail)
    columns: list[list[float | None]] = [compact(levels, 5), compact(1 - levels, 5)]
    data: list[list[dict[str, Any]]] = [[], []]
    for load in document["config"]["loads"]:
        for style in styles:
            sample = samples.get((style.policy, load["name"]))
            if sample is None or len(sample.ttft) == 0:
                continue
            columns.append(compact(quantiles(_censored(sample.ttft), levels.tolist()), 4))
            for panel, text in ((0, "%{y:.1%} within %{x:.3g} s"), (1, "%{y:.2%} over %{x:.3g} s")):
                data[panel].append(
                    {
                        **policy_line(style, load["name"]),
                        "x": {"column": len(columns) - 1},
                        "y": {"column": panel},
                        "hovertemplate": text + HOVER_NAME,
                    }
                )
    seconds = {"title": {"text": "TTFT (s), logarithmic"}, **LOG_AXIS}
    body_layout = {
        "title": {"text": "Share of requests with a first token by then"},
        "xaxis": seconds,
        "yaxis": {"title": {"text": "share of requests"}, "tickformat": ".0%", "range": [0, 1.01]},
    }
    tail_layout = {
        "title": {"text": "The tail: share still waiting after that"},
        "xaxis": seconds,
        "yaxis": {
            "title": {"text": "share of requests, logarithmic"},
            **LOG_AXIS,
            "tickformat": "~p",
        },
    }
    return Figure(
        name="ttft-distribution",
        title="How long until the first token",
        caption="Left, further left is better. Right, the same requests seen from the slow end: "
        "a line that reaches further right makes its unluckiest requests wait longer, even when "
        "its mean is good. Requests that never finished keep a line from reaching 100 %.",
        panels=[
            {"data": data[0], "layout": body_layout},
            {"data": data[1], "layout": tail_layout},
        ],
        controls=("load", "legend"),
        columns=columns,
    )


def who_pays(
    document: Mapping[str, Any],
    styles: list[Style],
    samples: Mapping[tuple[str, str], Samples],
) -> Figure:
    """Draw TTFT relative to the reference, and slowdown, by length of prompt."""
    reference = document["config"]["reference"]
    ratios: list[dict[str, Any]] = []
    slowdowns: list[dict[str, Any]] = []
    for load in document["config"]["loads"]:
        base = samples.get((reference, load["name"]))
        if base is None or len(base.ttft) == 0:
            continue
        bins, labels = length_bins(base.prompt_len)
        positions = range(len(labels))
        ratios.append(reference_line(labels, reference, load["name"]))
        for style in styles:
            sample = samples.get((style.policy, load["name"]))
            if sample is None:
                continue
            line = {**policy_line(style, load["name"], mode="lines+markers"), "x": labels}
            if style.policy != reference:
                both = np.isfinite(sample.ttft) & np.isfinite(base.ttft)
                ratio = [
                    _divide(sample.ttft[both & (bins == row)], base.ttft[both & (bins == row)])
                    for row in positions
                ]
                text = "%{x} tokens: %{y:.1%}" + HOVER_NAME
                ratios.append({**line, "y": compact(ratio, 4), "hovertemplate": text})
            slowdown = _censored(sample.slowdown)
            p90 = [quantiles(slowdown[bins == row], [0.9])[0] for row in positions]
            text = "%{x} tokens: p90 slowdown %{y:.3g}" + HOVER_NAME
            slowdowns.append({**line, "y": compact(p90, 4), "hovertemplate": text})
    xaxis = {
        "title": {"text": "prompt length (tokens), by tenths of the requests"},
        # Categories, since the tenths may differ from load to load.
        "type": "category",
        "tickangle": -45,
    }
    return Figure(
        name="who-pays",
        title="Who gains and who pays",
        caption=f"Each point is the same tenth of the requests under every policy. Left, their "
        f"mean TTFT as a share of {reference}'s: below the line they gain, above it they pay. "
        "Right, the slowdown nine in ten of them stay under: E2EL over the E2EL of the same "
        "request alone on an idle engine. A flat line treats short and long prompts alike.",
        panels=[
            {
                "data": ratios,
                "layout": {
                    "title": {"text": f"Mean TTFT against {escape_label(reference)}"},
                    "xaxis": xaxis,
                    "yaxis": {
                        "title": {"text": f"mean TTFT (% of {escape_label(reference)})"},
                        **RATIO_AXIS,
                        **_ratio_ticks(ratios),
                    },
                },
            },
            {
                "data": slowdowns,
                "layout": {
                    "title": {"text": "p90 slowdown"},
                    "xaxis": xaxis,
                    "yaxis": {
                        "title": {"text": "p90 slowdown (times), logarithmic"},
                        "type": "log",
                        "tickvals": [step * 10**power for power in range(7) for step in (1, 2, 5)],
                        "ticktext": [
                            f"{step * 10**power:,}" for power in range(7) for step in (1, 2, 5)
                        ],
                    },
                },
            },
        ],
        controls=("load", "legend"),
    )


def request_by_request(
    document: Mapping[str, Any],
    styles: list[Style],
    samples: Mapping[tuple[str, str], Samples],
) -> Figure:
    """Draw the TTFT of single requests under one policy against the reference."""
    reference = document["config"]["reference"]
    loads = document["config"]["loads"]
    num_plots = max(1, len(loads) * (len(styles) - 1))
    num_points = min(MAX_POINTS, MAX_POINTS_IN_ALL // num_plots)
    columns: list[list[float | None]] = []
    data: list[dict[str, Any]] = []
    drawn = total = 0
    for load in loads:
        base = samples.get((reference, load["name"]))
        if base is None or len(base.ttft) == 0:
            continue
        rows = np.arange(len(base.ttft))
        if len(rows) > num_points:
            rows = np.random.default_rng(0).choice(rows, num_points, replace=False)
            rows.sort()
        drawn, total = max(drawn, len(rows)), max(total, len(base.ttft))
        first = len(columns)
        columns.append(compact(base.ttft[rows], 3))
        columns.append(compact(np.log10(base.prompt_len[rows]), 3))
        columns.append([float(length) for length in base.prompt_len[rows]])
        low, high = np.inf, 0.0
        for style in styles:
            sample = samples.get((style.policy, load["name"]))
            if sample is None or style.policy == reference:
                continue
            pair = np.concatenate([sample.ttft[rows], base.ttft[rows]])
            pair = pair[np.isfinite(pair) & (pair > 0)]
            low, high = min(low, pair.min(initial=low)), max(high, pair.max(initial=high))
            data.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": escape_label(style.label),
                    "meta": {"policy": style.policy, "load": load["name"]},
                    "x": {"column": first},
                    "y": compact(sample.ttft[rows], 3),
                    "customdata": {"column": first + 2},
                    "marker": {
                        "size": 5,
                        "opacity": 0.6,
                        "color": {"column": first + 1},
                        "coloraxis": "coloraxis",
                    },
                    "hovertemplate": "%{customdata:,} prompt tokens<br>%{y:.3g} s instead of "
                    "%{x:.3g} s" + HOVER_NAME,
                }
            )
        if low <= high:
            ends = [float(low), float(high)]
            data.append({**reference_line(ends, reference, load["name"]), "y": ends})
    shortest, longest = length_range(columns[1::3])
    layout = {
        "title": {"text": f"TTFT of each request against {escape_label(reference)}"},
        "xaxis": {
            "title": {"text": f"TTFT under {escape_label(reference)} (s), logarithmic"},
            **LOG_AXIS,
            "constrain": "domain",
        },
        "yaxis": {
            "title": {"text": "TTFT under the policy (s), logarithmic"},
            **LOG_AXIS,
            "scaleanchor": "x",
            "constrain": "domain",
        },
        "coloraxis": {
            "colorscale": LENGTH_SCALE,
            "cmin": shortest,
            "cmax": longest,
            "colorbar": {
                "title": {"text": "prompt (tokens)", "side": "right"},
                "tickvals": decades(shortest, longest),
                "ticktext": decade_text(shortest, longest),
                "thickness": 10,
                "outlinewidth": 0,
            },
        },
        "showlegend": False,
    }
    which = "all" if drawn == total else f"{drawn:,} of {total:,}, drawn at random with seed 0"
    return Figure(
        name="request-by-request",
        title="Request by request",
        caption=f"One point is one request ({which}; the same ones under every policy): below the "
        f"diagonal its first token came sooner than under {reference}, above it later. The colour "
        "shows whether those who gain are the short prompts. Requests that did not finish are "
        "left out.",
        panels=[{"data": data, "layout": layout}],
        controls=("load", "policy"),
        columns=columns,
    )


def _ratio_ticks(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Return few ticks for ratios that span much; plotly's own are best where they span little."""
    values = [value for line in lines for value in line["y"] if value]
    if not values or max(values) < 3 * min(values):
        return {}
    ticks = [step * 10.0**power for power in range(-4, 4) for step in (1, 2, 5)]
    return {"tickvals": ticks, "ticktext": [f"{100 * tick:,.3g}%" for tick in ticks]}


def _ratio(relative_change: float | None) -> float:
    """Return 1 + change, or NaN where a logarithmic axis has no place for it."""
    if relative_change is None or relative_change <= -1:
        return float("nan")
    return 1 + relative_change


def _divide(values: NDArray[np.float64], base: NDArray[np.float64]) -> float:
    """Return the ratio of two means, NaN when there is nothing to divide."""
    if len(values) == 0 or not base.sum() > 0:
        return float("nan")
    return float(values.sum() / base.sum())


def _censored(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the values with those of unfinished requests as infinitely large."""
    return np.where(np.isnan(values), np.inf, values)

"""The figures of a comparison, as plain plotly dictionaries."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from queuesmith.comparison.compare import Comparison
from queuesmith.comparison.rows import LoadRow
from queuesmith.evaluation.judge import Change
from queuesmith.evaluation.samples import Samples
from queuesmith.evaluation.statistics import STATISTICS, Statistic
from queuesmith.numbers import compact
from queuesmith.report.parts import (
    HOVER_NAME,
    LENGTH_SCALE,
    LOG_AXIS,
    RATIO_AXIS,
    REFERENCE_COLOR,
    Figure,
    Style,
    escape_label,
    length_bins,
    length_range,
    length_ticks,
    policy_line,
    reference_line,
)
from queuesmith.report.traffic.workload import workload
from queuesmith.stats import quantiles

NUM_QUANTILES = 200
MAX_POINTS = 2_000
#: Points of all scatter plots together; they are most of what a large report weighs.
MAX_POINTS_IN_ALL = 160_000
#: Beside the goal's statistic, by goal: what its tail is read from.
_TAILS = {"e2el": "e2el_p99", "tpot": "tpot_p99"}

ByPolicyAndLoad = Mapping[tuple[str, str], Samples]


def build_figures(comparison: Comparison, styles: Sequence[Style]) -> list[Figure]:
    """Build every figure of the report, in the order in which they are read."""
    loads = list(dict.fromkeys(row.load for row in comparison.loads))
    reference, samples = comparison.config["reference"], comparison.samples
    figures = [
        changes(comparison, styles),
        ttft_distribution(samples, loads, styles),
        who_pays(samples, loads, styles, reference),
        request_by_request(samples, loads, styles, reference),
        workload(comparison.trace),
    ]
    last = {style.policy: style.answer for style in styles}
    for figure in figures:
        for panel in figure.panels:
            # The reference lies below the others, or it would hide those that equal it; the
            # recommended policy lies above them.
            panel["data"].sort(key=lambda trace: _layer(trace, reference, last))
    return figures


def _layer(trace: Mapping[str, Any], reference: str, answers: Mapping[str, bool]) -> int:
    policy = trace.get("meta", {}).get("policy", reference)
    return 0 if policy == reference else 1 + answers[policy]


def changes(comparison: Comparison, styles: Sequence[Style]) -> Figure:
    """Draw the goal and its tail beside the reference, one load at a time, with intervals."""
    goal, reference = comparison.goal, comparison.config["reference"]
    drawn = [style for style in styles if style.policy != reference]
    panels = []
    for statistic in (goal.statistic, STATISTICS[_TAILS.get(goal.name, "ttft_p99")]):
        data = []
        looks = {style.policy: style for style in drawn}
        for row in comparison.loads:
            if row.policy in looks:
                data.append(_change_mark(looks[row.policy], row, statistic))
        even = 1.0 if statistic.relative else 0.0
        values: dict[str, Any] = (
            {"title": {"text": f"{statistic.label} (% of {escape_label(reference)})"}, **RATIO_AXIS}
            if statistic.relative
            else {
                "title": {"text": f"{statistic.label} (difference to {escape_label(reference)})"},
                "tickformat": "+.1%",
            }
        )
        layout = {
            "title": {"text": f"{statistic.label} against {escape_label(reference)}"},
            "xaxis": values,
            "yaxis": {
                "type": "category",
                "categoryorder": "array",
                "categoryarray": [_row_name(style) for style in reversed(drawn)],
                "range": [-0.7, len(drawn) - 0.3],
                "dtick": 1,
            },
            "shapes": [
                {
                    "type": "line",
                    "xref": "x",
                    "x0": even,
                    "x1": even,
                    "yref": "paper",
                    "y0": 0,
                    "y1": 1,
                    "line": {"color": REFERENCE_COLOR, "width": 2},
                    "layer": "below",
                }
            ],
        }
        panels.append({"data": data, "layout": layout})
    better = "Left" if goal.statistic.better == "lower" else "Right"
    return Figure(
        name="changes",
        title=f"Every policy against {reference}",
        caption=f"{better} of the grey line, which is {reference}, is better in the first panel. "
        "Bars are 95 % intervals over whole windows: where one crosses the line, the difference "
        "may be chance. A hollow mark breaks a guard at this load. Rows are in the order of the "
        "leaderboard.",
        panels=panels,
        controls=("load",),
        height=max(300, 110 + 24 * len(drawn)),
    )


def _row_name(style: Style) -> str:
    name = escape_label(style.label)
    return f"<b>{name}</b>" if style.answer else name


def _change_mark(style: Style, row: LoadRow, statistic: Statistic) -> dict[str, Any]:
    middle, low, high = _ends(row.changes[statistic.name], statistic)
    symbol = style.symbol + ("-open" if row.broken else "")
    return {
        "type": "scatter",
        "mode": "markers",
        "name": escape_label(style.label),
        "meta": {"policy": style.policy, "load": row.load},
        "x": compact([middle], 4),
        "y": [_row_name(style)],
        "marker": {"color": style.color, "symbol": symbol, "size": 9 + 3 * style.answer},
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": compact([max(high - middle, 0)], 3),
            "arrayminus": compact([max(middle - low, 0)], 3),
            "color": style.color,
            "thickness": 3 if style.answer else 1.5,
            "width": 3,
        },
        "hovertemplate": ("%{x:.1%}" if statistic.relative else "%{x:+.1%}") + HOVER_NAME,
    }


def _ends(change: Change, statistic: Statistic) -> tuple[float, float, float]:
    """Return a change and the ends of its interval, on the axis on which it is drawn."""
    ends = np.array([change.change, change.low, change.high])
    if statistic.relative:  # a logarithmic axis has no place for 0
        ends = np.where(ends > -1, 1 + ends, np.nan)
    middle, low, high = (float(end) for end in np.where(np.isfinite(ends), ends, np.nan))
    return middle, middle if np.isnan(low) else low, middle if np.isnan(high) else high


def ttft_distribution(
    samples: ByPolicyAndLoad, loads: Sequence[str], styles: Sequence[Style]
) -> Figure:
    """Draw the distribution of TTFT and its tail, one load at a time."""
    longest = max((len(sample.ttft) for sample in samples.values()), default=1)
    body = np.linspace(0, 1, NUM_QUANTILES * 2 // 3, endpoint=False)[1:]
    tail = 1 - np.geomspace(0.3, 1 / max(longest, 4), NUM_QUANTILES // 3)
    levels = np.union1d(body, tail)
    columns: list[list[float | None]] = [compact(levels, 5), compact(1 - levels, 5)]
    data: list[list[dict[str, Any]]] = [[], []]
    for load in loads:
        for style in styles:
            sample = samples.get((style.policy, load))
            if sample is None or len(sample.ttft) == 0:
                continue
            columns.append(compact(quantiles(_censored(sample.ttft), levels.tolist()), 4))
            for panel, text in ((0, "%{y:.1%} within %{x:.3g} s"), (1, "%{y:.2%} over %{x:.3g} s")):
                data[panel].append(
                    {
                        **policy_line(style, load),
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
        "a line that reaches further right makes the worst-served requests wait longer, even when "
        "the mean is good. Requests that never finished keep a line from reaching 100 %.",
        panels=[
            {"data": data[0], "layout": body_layout},
            {"data": data[1], "layout": tail_layout},
        ],
        controls=("load", "legend"),
        columns=columns,
    )


def who_pays(
    samples: ByPolicyAndLoad, loads: Sequence[str], styles: Sequence[Style], reference: str
) -> Figure:
    """Draw TTFT relative to the reference, and slowdown, by length of prompt."""
    ratios: list[dict[str, Any]] = []
    slowdowns: list[dict[str, Any]] = []
    for load in loads:
        base = samples.get((reference, load))
        if base is None or len(base.ttft) == 0:
            continue
        bins, labels = length_bins(base.prompt_len)
        positions = range(len(labels))
        ratios.append(reference_line(labels, reference, load))
        for style in styles:
            sample = samples.get((style.policy, load))
            if sample is None:
                continue
            line = {**policy_line(style, load, mode="lines+markers"), "x": labels}
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
                        **LOG_AXIS,
                    },
                },
            },
        ],
        controls=("load", "legend"),
    )


def request_by_request(
    samples: ByPolicyAndLoad, loads: Sequence[str], styles: Sequence[Style], reference: str
) -> Figure:
    """Draw the TTFT of single requests under one policy against the reference."""
    num_plots = max(1, len(loads) * (len(styles) - 1))
    num_points = min(MAX_POINTS, MAX_POINTS_IN_ALL // num_plots)
    columns: list[list[float | None]] = []
    data: list[dict[str, Any]] = []
    drawn = total = 0
    for load in loads:
        base = samples.get((reference, load))
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
            sample = samples.get((style.policy, load))
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
                    "meta": {"policy": style.policy, "load": load},
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
            data.append({**reference_line(ends, reference, load), "y": ends})
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
                **length_ticks(shortest, longest),
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


def _divide(values: NDArray[np.float64], base: NDArray[np.float64]) -> float:
    """Return the ratio of two means, NaN when there is nothing to divide."""
    if len(values) == 0 or not base.sum() > 0:
        return float("nan")
    return float(values.sum() / base.sum())


def _censored(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the values with those of unfinished requests as infinitely large."""
    return np.where(np.isnan(values), np.inf, values)

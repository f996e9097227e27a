"""The figures of an atlas, as plain plotly dictionaries.

A trace carries in ``meta`` the conditions it was taken under, such as ``{"engine": "constant_1ms",
"load": "knee"}``; the page draws those that match what the reader chose. A panel names in `follows`
which choices its traces depend on. What many traces share stands once in `styles`, and each names
its own by number.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from queuesmith import numbers
from queuesmith.report.parts import COLORS, REFERENCE_COLOR, SYMBOLS, Figure, escape_label
from queuesmith.study.words import engine_words, metric_words

#: Orange for reversed, white for nothing in common, blue for the same order: told apart by any eye.
AGREEMENT_SCALE = [[0.0, "#D55E00"], [0.5, "#F4F4F2"], [1.0, "#0072B2"]]
_DIGITS = 3

Row = Mapping[str, Any]


@dataclass
class Columns:
    """Arrays that several traces share, each written once."""

    values: list[list[Any]] = field(default_factory=list)
    _places: dict[tuple[Any, ...], int] = field(default_factory=dict)

    def put(self, values: Sequence[Any]) -> dict[str, int]:
        """Return what stands for an array."""
        key = tuple(values)
        if key not in self._places:
            self._places[key] = len(self.values)
            self.values.append(list(values))
        return {"column": self._places[key]}


def agreement_figure(rows: Iterable[Row], order: Mapping[str, Sequence[str]]) -> Figure:
    """Draw heat maps of tau-b between sources, loads, engines and metrics.

    `rows` are of agreement; `order` has for each axis its names in the order in which they stand.
    """
    rows = list(rows)
    columns = Columns()
    panels = [
        _agreement_panel(axis, title, [row for row in rows if row["axis"] == axis], order, columns)
        for axis, title in (
            ("source", "Between sources"),
            ("load", "Between loads"),
            ("engine", "Between engines (physics)"),
            ("metric", "Between metrics"),
        )
        if len(order[axis]) > 1
    ]
    return Figure(
        name="agreement",
        title="Agreement of rankings",
        caption="Kendall's tau-b of the order of all policies under two conditions: 1 is the same "
        "order, 0 nothing in common, -1 reversed. Policies within 1 % of each other are tied. "
        "Point at a cell, or tap it, for its 95 % interval over whole windows, the overlap of the "
        "best policies and the number of windows. A cell that is missing has no order to compare: "
        "everything is tied there, as it is where requests hardly queue.",
        panels=panels,
        controls=("engine", "metric", "load", "source"),
        columns=columns.values,
    )


def _agreement_panel(
    axis: str,
    title: str,
    rows: Sequence[Row],
    order: Mapping[str, Sequence[str]],
    columns: Columns,
) -> dict[str, Any]:
    names = list(order[axis])
    place = {name: row for row, name in enumerate(names)}
    follows = [name for name in ("engine", "metric", "load", "source") if name != axis]
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in follows), []).append(row)
    # A pair once, below the diagonal, so that the first name needs no row and the last no column;
    # of a single pair all are kept, since an axis with one label tells little.
    spare = 0 if len(names) == 2 else 1
    across_labels = columns.put([_label(axis, name) for name in names[: len(names) - spare]])
    down_labels = columns.put([_label(axis, name) for name in names[spare:]])
    data = []
    for key, members in groups.items():
        size = len(names) - spare
        shade: list[list[float | None]] = [[None] * size for _ in range(size)]
        more: list[list[list[float | None] | None]] = [[None] * size for _ in range(size)]
        for row in members:
            across, down = sorted((place[row["a"]], place[row["b"]]))
            shade[down - spare][across] = numbers.compact([row["tau_b"]], _DIGITS)[0]
            more[down - spare][across] = [
                *numbers.compact([row[name] for name in ("low", "high", "top_1")], 2),
                row["num_windows"],
            ]
        if not any(value is not None for line in shade for value in line):
            continue
        meta = dict(zip(follows, key, strict=True))
        data.append({"style": 0, "meta": meta, "z": shade, "customdata": more})
    style = {
        "type": "heatmap",
        "x": across_labels,
        "y": down_labels,
        "texttemplate": "%{z:.2f}",
        "hovertemplate": "%{y} and %{x}<br>tau-b %{z:.2f} [%{customdata[0]:.2f} to "
        "%{customdata[1]:.2f}]<br>best policies overlap %{customdata[2]:.0%}<br>"
        "%{customdata[3]} windows<extra></extra>",
        "hoverongaps": False,
        "zmin": -1,
        "zmax": 1,
        "colorscale": AGREEMENT_SCALE,
        "showscale": False,
        "xgap": 2,
        "ygap": 2,
    }
    return {
        "follows": follows,
        "styles": [style],
        "data": data,
        "layout": {
            "title": {"text": title},
            "xaxis": {"showgrid": False, "ticks": "", "tickangle": -40},
            "yaxis": {"showgrid": False, "ticks": "", "autorange": "reversed"},
        },
    }


def sample_figure(rows: Iterable[Row], sources: Sequence[str], recovered: float) -> Figure:
    """Draw how often few windows recover the order and the winner of all."""
    columns = Columns()
    panels = []
    rows = list(rows)
    for share, title in (("top_1", "The best policy"), ("order", "The whole order")):
        data = []
        for row in rows:
            values = numbers.compact(row[share], _DIGITS)
            if all(value is None for value in values):
                continue
            data.append(
                {
                    "style": sources.index(row["source"]),
                    "meta": {name: row[name] for name in ("engine", "load", "metric")},
                    "x": columns.put(row["sizes"]),
                    "y": columns.put(values),
                }
            )
        panels.append(
            {
                "follows": ["engine", "metric", "load"],
                "styles": [_source_style(look, name) for look, name in enumerate(sources)],
                "data": data,
                "layout": {
                    "title": {"text": title},
                    "xaxis": {"title": {"text": "windows"}, "rangemode": "tozero"},
                    "yaxis": {
                        "title": {"text": "share of draws that recover it"},
                        "range": [-0.03, 1.03],
                        "tickformat": ".0%",
                    },
                    "showlegend": True,
                    "legend": {"orientation": "h", "y": -0.22},
                    "shapes": [
                        {
                            "type": "line",
                            "xref": "paper",
                            "x0": 0,
                            "x1": 1,
                            "y0": recovered,
                            "y1": recovered,
                            "line": {"color": REFERENCE_COLOR, "width": 1, "dash": "dash"},
                        }
                    ],
                },
            }
        )
    return Figure(
        name="samples",
        title="What few windows recover",
        caption=f"Random subsets of a source's windows, ranked and set against all of them; the "
        f"dashed line is {recovered:.0%}. Near the full number every subset is nearly the whole, "
        "so only what is reached by half of the windows or fewer speaks of windows yet unseen.",
        panels=panels,
        controls=("engine", "metric", "load"),
        columns=columns.values,
    )


def _source_style(look: int, source: str) -> dict[str, Any]:
    color = COLORS[look % len(COLORS)]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": escape_label(source),
        "line": {"color": color, "width": 2},
        "marker": {"color": color, "symbol": SYMBOLS[look % len(SYMBOLS)], "size": 7},
        "hovertemplate": "%{x} windows recover it in %{y:.0%} of draws"
        "<extra>%{fullData.name}</extra>",
    }


#: Terms of the variance that have the policy in them: the first carries over, the others do not.
_TERMS = {
    "policy": "policy alone",
    "policy x source": "policy and source",
    "policy x load": "policy and load",
    "policy x engine": "policy and engine",
    "policy x window": "policy and window",
    "policy x more": "policy and more",
}


def variance_figure(rows: Iterable[Row]) -> Figure:
    """Draw shares of the variance of gains by term, of all that has the policy in it."""
    lines = []
    for row in rows:
        with_policy = sum(row["shares"][term] or 0.0 for term in _TERMS)
        if with_policy > 0:
            lines.append((row, with_policy))
    metrics = [_label("metric", row["metric"]) for row, _ in lines]
    data = []
    for place, (term, words) in enumerate(_TERMS.items()):
        shares = [(row["shares"][term] or 0.0) / whole for row, whole in lines]
        data.append(
            {
                "style": 0,
                "name": words,
                "x": numbers.compact(shares, _DIGITS),
                "y": metrics,
                "marker": {"color": [*COLORS, REFERENCE_COLOR][place]},
                "hovertemplate": "%{y}: %{x:.0%}<extra>%{fullData.name}</extra>",
            }
        )
    return Figure(
        name="variance",
        title="Shares of the variance of gains",
        caption="Variance of the gain over the reference: what a policy gains everywhere alike "
        "(policy alone), and how much that depends on the traffic, the load, the engine and the "
        "single window. Only the first carries over. What is the same for all policies, such as "
        "that every gain is larger under more load, is left out here; the table has it.",
        panels=[
            {
                "follows": [],
                "styles": [{"type": "bar", "orientation": "h"}],
                "data": data if lines else [],
                "layout": {
                    "title": {"text": "Share of the variance that has the policy in it"},
                    "barmode": "stack",
                    "xaxis": {"range": [0, 1.01], "dtick": 0.2, "tickformat": ".0%"},
                    "yaxis": {"autorange": "reversed", "ticks": ""},
                    "showlegend": True,
                    "legend": {"orientation": "h", "y": -0.12, "traceorder": "normal"},
                },
            }
        ],
    )


def _label(axis: str, name: str) -> str:
    words = {"engine": engine_words, "metric": metric_words}.get(axis, str)
    return escape_label(words(name))

"""The figures of a run of evolution, as plain plotly dictionaries in the form of an atlas's.

Candidates are dots; where there are more than a page can hold, survivors are all kept and the
others thinned evenly, which the caption says.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from queuesmith import numbers
from queuesmith.report.parts import COLORS, REFERENCE_COLOR, Figure, escape_label

#: Dots of one figure.
MOST_DOTS = 6_000
_DIGITS = 4
#: Orange for worse than FCFS, blue for better; colours end at these scores.
SCORE_SCALE = [[0.0, "#D55E00"], [0.5, "#F4F4F2"], [1.0, "#0072B2"]]
SCORE_END = 1.0
_TRACKS = {"search": COLORS[0], "control": REFERENCE_COLOR}

Row = Mapping[str, Any]


def label(policy: str) -> str:
    """Return a policy's name without the names of its parameters.

    Examples
    --------
    >>> label("aged_sjf(SECONDS_PER_TOKEN=0.003)"), label("sjf")
    ('aged_sjf 0.003', 'sjf')
    """
    name, bracket, rest = policy.partition("(")
    if not bracket:
        return name
    return f"{name} {', '.join(re.findall(r'=([^,)]+)', rest))}"


def progress_figure(rows: Sequence[Row], classics: Sequence[Row]) -> Figure:
    """Draw the best score of each generation against evaluations, search beside control.

    Parameters
    ----------
    rows : sequence of mapping
        `generations` of the document.
    classics : sequence of mapping
        Of the run: `policy`, `score` on all tuning windows, `clean`.
    """
    panels = [
        _progress_panel(rows, "score_all", "On all tuning windows", classics),
        _progress_panel(rows, "score", "On the windows of each generation", ()),
    ]
    return Figure(
        name="progress",
        title="The best of each generation",
        caption="Of the survivors that violate no tail, the one that scores best on the windows of "
        "its generation. Blue is the search, grey the control: random programs with as many "
        "evaluations on the same windows. Each line is a seed. Windows change from generation to "
        "generation, so the right panel is jagged where the left need not be. Where a line is "
        "missing on the left, the best were not run on all windows.",
        panels=panels,
    )


def _progress_panel(
    rows: Sequence[Row], key: str, title: str, classics: Sequence[Row]
) -> dict[str, Any]:
    data: list[dict[str, Any]] = []
    for track in ("control", "search"):
        for seed in sorted({row["seed"] for row in rows}):
            line = [
                row
                for row in rows
                if row["track"] == track and row["seed"] == seed and row[key] is not None
            ]
            if line:
                data.append(
                    {
                        "style": 0 if track == "search" else 1,
                        "name": f"{track}, seed {seed}",
                        "x": [row["evaluations"] for row in line],
                        "y": numbers.compact([row[key] for row in line], _DIGITS),
                        "customdata": [row["candidate"] for row in line],
                    }
                )
    longest = max((row["evaluations"] for row in rows), default=1)
    clean = [row for row in classics if row["clean"]]
    if clean and data:
        best = max(clean, key=lambda row: row["score"])
        data.append(
            {
                "style": 2,
                "name": f"best classic without a violation: {escape_label(label(best['policy']))}",
                "x": [0, longest],
                "y": numbers.compact([best["score"]] * 2, _DIGITS),
            }
        )
    line = {"type": "scatter", "mode": "lines+markers"}
    hover = "no. %{customdata}: %{y:+.3f} after %{x:,} evaluations<extra>%{fullData.name}</extra>"
    return {
        "follows": [],
        "styles": [
            {
                **line,
                "line": {"color": color, "width": 2},
                "marker": {"color": color, "size": 5},
                "hovertemplate": hover,
            }
            for color in _TRACKS.values()
        ]
        + [
            {
                "type": "scatter",
                "mode": "lines",
                "line": {"color": COLORS[1], "width": 2, "dash": "dash"},
                "hovertemplate": "%{y:+.3f}<extra>%{fullData.name}</extra>",
            }
        ],
        "data": data,
        "layout": {
            "title": {"text": title},
            "xaxis": {"title": {"text": "evaluations of the seed"}, "rangemode": "tozero"},
            "yaxis": {"title": {"text": "score (fcfs = 0)"}},
        },
    }


def population_figure(columns: Mapping[str, Sequence[Any]], champion: int | None) -> Figure:
    """Draw every scored candidate by size and score."""
    shown, note = thinned(columns)
    data: list[dict[str, Any]] = []
    for name, color, rows in _groups(columns, shown):
        for clean in (False, True):
            chosen = [row for row in rows if columns["clean"][row] == clean]
            if chosen:
                data.append(
                    {
                        "style": int(clean),
                        "name": name + ("" if clean else ", violates a tail"),
                        "x": [columns["size"][row] for row in chosen],
                        "y": numbers.compact([columns["score"][row] for row in chosen], _DIGITS),
                        "customdata": [columns["number"][row] for row in chosen],
                        "marker": {"color": color},
                    }
                )
    front = _front(
        [
            (columns["size"][row], -columns["score"][row])
            for row in range(len(columns["number"]))
            if columns["clean"][row] and columns["track"][row] == "search"
        ]
    )
    if front:
        data.append(
            {"style": 2, "x": [x for x, _ in front], "y": [-y for _, y in front], "name": "front"}
        )
    if champion in columns["number"]:
        data.append(_star(columns, columns["number"].index(champion), "size", "score"))
    scores = [value for value in columns["score"] if value is not None]
    top = max(scores, default=1.0)
    return Figure(
        name="population",
        title="The archive: score against size",
        caption="Every candidate that was scored, on the windows of its generation; a cross "
        "violates a tail there. The line joins the best clean candidates of each size, the star "
        "is the champion. Scores far below 0 lie outside; zoom out to see them." + note,
        panels=[
            {
                "follows": [],
                "styles": _dot_styles("no. %{customdata}: %{y:+.3f}, %{x} nodes"),
                "data": data,
                "layout": {
                    "title": {"text": "All that was tried"},
                    "xaxis": {"title": {"text": "nodes"}, "rangemode": "tozero"},
                    "yaxis": {
                        "title": {"text": "score (fcfs = 0)"},
                        "range": [max(min(scores, default=0.0), -1.0) - 0.05, top + 0.08],
                    },
                    "showlegend": True,
                    "legend": {"orientation": "h", "y": -0.18},
                },
            }
        ],
    )


def frontier_figure(
    columns: Mapping[str, Sequence[Any]], leaderboard: Sequence[Row], name: str
) -> Figure:
    """Draw mean against p99, both over FCFS's: what can be had at once.

    Parameters
    ----------
    columns : mapping of str to sequence
        `population` of the document.
    leaderboard : sequence of mapping
        Of the tuning windows, with `mean_ratio` and `p99_ratio`; empty without a diagnosis.
    name : str
        Of the candidate.
    """
    shown, note = thinned(columns)
    data: list[dict[str, Any]] = []
    for group, color, rows in _groups(columns, shown):
        known = [row for row in rows if columns["mean_ratio"][row] is not None]
        data.append(
            {
                "style": 1,
                "name": group,
                "x": numbers.compact([columns["mean_ratio"][row] for row in known], _DIGITS),
                "y": numbers.compact([columns["p99_ratio"][row] for row in known], _DIGITS),
                "customdata": [columns["number"][row] for row in known],
                "marker": {"color": color},
            }
        )
    dots = [
        (mean, p99)
        for mean, p99 in zip(columns["mean_ratio"], columns["p99_ratio"], strict=True)
        if mean is not None
    ]
    named = [row for row in leaderboard if row["mean_ratio"] is not None]
    classics = [row for row in named if row["kind"] == "classic"]
    front = _front([*dots, *((row["mean_ratio"], row["p99_ratio"]) for row in classics)])
    data.append(
        {
            "style": 2,
            "x": numbers.compact([x for x, _ in front], _DIGITS),
            "y": numbers.compact([y for _, y in front], _DIGITS),
            "name": "frontier",
        }
    )
    data.append(
        {
            "style": 4,
            "x": numbers.compact([row["mean_ratio"] for row in classics], _DIGITS),
            "y": numbers.compact([row["p99_ratio"] for row in classics], _DIGITS),
            "text": [escape_label(label(row["policy"])) for row in classics],
            "name": "classics",
        }
    )
    for row in named:
        if row["kind"] == "candidate":
            data.append(
                {
                    "style": 3,
                    "x": [row["mean_ratio"]],
                    "y": [row["p99_ratio"]],
                    "name": escape_label(name),
                    "customdata": [escape_label(name)],
                }
            )
    means = [mean for mean, _ in dots] + [row["mean_ratio"] for row in named]
    p99s = [p99 for _, p99 in dots] + [row["p99_ratio"] for row in named]
    return Figure(
        name="frontier",
        title="The attainable frontier: mean against p99",
        caption="TTFT over fcfs's, geometric mean over windows and loads; left is a lower mean, "
        "down a lower p99. Candidates on the windows of their generation, classics and the star "
        "(the champion) on all tuning windows, so a dot may owe its place to easy windows. The "
        "line joins what nothing else tried beats in both." + note,
        panels=[
            {
                "follows": [],
                "styles": [
                    *_dot_styles("no. %{customdata}: mean %{x:.3f}, p99 %{y:.3f} x fcfs"),
                    {
                        "type": "scatter",
                        "mode": "markers+text",
                        "textposition": "top center",
                        "textfont": {"size": 10},
                        "marker": {"symbol": "diamond", "size": 8, "color": COLORS[1]},
                        "hovertemplate": "%{text}: mean %{x:.3f}, p99 %{y:.3f} x fcfs"
                        "<extra></extra>",
                    },
                ],
                "data": data if dots or named else [],
                "layout": {
                    "title": {"text": "Tuning windows"},
                    "xaxis": {
                        "title": {"text": "mean TTFT / fcfs's"},
                        "range": [min(means, default=0.5) - 0.03, 1.15],
                    },
                    "yaxis": {
                        "title": {"text": "p99 TTFT / fcfs's"},
                        "range": [min(p99s, default=0.5) - 0.05, min(max(p99s, default=2), 2.2)],
                    },
                    "shapes": [
                        {
                            "type": "line",
                            "xref": "paper",
                            "x0": 0,
                            "x1": 1,
                            "y0": 1.02,
                            "y1": 1.02,
                            "line": {"color": REFERENCE_COLOR, "width": 1, "dash": "dot"},
                        }
                    ],
                    "showlegend": True,
                    "legend": {"orientation": "h", "y": -0.18},
                },
            }
        ],
    )


def heat_figure(diagnosis: Mapping[str, Any], name: str) -> Figure:
    """Draw who scores what on which window and load: policies down, windows across."""
    panels = []
    for load in diagnosis["loads"]:
        data = []
        for part, values in diagnosis["parts"].items():
            cells = [cell for cell in values["cells"] if cell["load"] == load["name"]]
            order = {row["policy"]: place for place, row in enumerate(values["leaderboard"])}
            names = diagnosis["classics"]
            places = sorted(range(len(names)), key=lambda place: order[names[place]])
            scores = [[cell["score"] for cell in cells]] + [
                [cell["scores"][place] for cell in cells] for place in places
            ]
            data.append(
                {
                    "style": 0,
                    "meta": {"part": part},
                    "x": [_column(cell) for cell in cells],
                    "y": [escape_label(name), *(escape_label(label(names[p])) for p in places)],
                    "z": [numbers.compact(row, 3) for row in scores],
                }
            )
        panels.append(
            {
                "follows": ["part"],
                "styles": [
                    {
                        "type": "heatmap",
                        "colorscale": SCORE_SCALE,
                        "zmin": -SCORE_END,
                        "zmax": SCORE_END,
                        "xgap": 1,
                        "ygap": 1,
                        "colorbar": {"thickness": 10, "title": {"text": "score"}},
                        "hovertemplate": "%{y} on %{x}: %{z:+.3f}<extra></extra>",
                    }
                ],
                "data": data,
                "layout": {
                    "title": {"text": escape_label(f"{load['name']} (rho {load['rho']:g})")},
                    "yaxis": {"autorange": "reversed", "type": "category", "dtick": 1},
                    "xaxis": {"type": "category", "tickangle": -60, "tickfont": {"size": 9}},
                },
            }
        )
    return Figure(
        name="windows",
        title="Window by window",
        caption="The score of each window at each load alone, fcfs = 0 (white). The champion is "
        f"on top, then the classics by their total. Colours end at +-{SCORE_END:g}; point at a "
        "cell for its score. Where rows change places from column to column, a search can learn "
        "more than one of the classics.",
        panels=panels,
        controls=("part",),
    )


def lineage_figure(nodes: Sequence[Row]) -> Figure:
    """Draw a champion's ancestors by generation and score; the main line is bold."""
    places = {node["candidate"]: node for node in nodes if node["score"] is not None}
    edges: dict[bool, tuple[list[Any], list[Any]]] = {False: ([], []), True: ([], [])}
    for node in places.values():
        for parent in node["parents"]:
            if parent in places:
                bold = node["main_line"] and places[parent]["main_line"]
                for one in (places[parent], node):
                    edges[bold][0].append(one["generation"])
                    edges[bold][1].append(one["score"])
                edges[bold][0].append(None)
                edges[bold][1].append(None)
    proposers = list(dict.fromkeys(node["proposer"] for node in places.values()))
    data: list[dict[str, Any]] = [
        {"style": int(bold), "x": x, "y": y, "name": "descent"} for bold, (x, y) in edges.items()
    ]
    for place, proposer in enumerate(proposers):
        mine = [node for node in places.values() if node["proposer"] == proposer]
        data.append(
            {
                "style": 2,
                "name": escape_label(proposer),
                "x": [node["generation"] for node in mine],
                "y": numbers.compact([node["score"] for node in mine], _DIGITS),
                "text": [str(node["candidate"]) for node in mine],
                "customdata": [escape_label(node["note"]) for node in mine],
                "marker": {"color": COLORS[place % len(COLORS)]},
            }
        )
    line = {"type": "scatter", "mode": "lines", "hoverinfo": "skip", "showlegend": False}
    return Figure(
        name="descent",
        title="Whom the champion descends from",
        caption="All its ancestors by generation, at their score on the windows of that "
        "generation. The bold line leads from each child to the parent whose text is nearest.",
        panels=[
            {
                "follows": [],
                "styles": [
                    {**line, "line": {"color": REFERENCE_COLOR, "width": 1}},
                    {**line, "line": {"color": COLORS[0], "width": 3}},
                    {
                        "type": "scatter",
                        "mode": "markers+text",
                        "textposition": "top center",
                        "marker": {"size": 9},
                        "hovertemplate": "no. %{text}: %{y:+.3f}, %{customdata}"
                        "<extra>%{fullData.name}</extra>",
                    },
                ],
                "data": data if places else [],
                "layout": {
                    "title": {"text": "Ancestors"},
                    "xaxis": {"title": {"text": "generation"}, "dtick": None},
                    "yaxis": {"title": {"text": "score (fcfs = 0)"}},
                    "showlegend": len(proposers) > 1,
                },
            }
        ],
    )


def thinned(columns: Mapping[str, Sequence[Any]], most: int = MOST_DOTS) -> tuple[list[int], str]:
    """Return which candidates are drawn, and a sentence on how many are not."""
    everyone = range(len(columns["number"]))
    others = [row for row in everyone if not columns["kept"][row]]
    every = -(-len(others) // max(most - (len(everyone) - len(others)), 1))
    if len(everyone) <= most or every < 2:
        return list(everyone), ""
    shown = {row for row in everyone if columns["kept"][row]} | set(others[::every])
    return sorted(shown), f" Of those that did not survive, one in {every} is drawn."


def _groups(
    columns: Mapping[str, Sequence[Any]], rows: Sequence[int]
) -> Iterable[tuple[str, str, list[int]]]:
    """Return the candidates of the control, and those of each proposer of the search."""
    found: dict[str, list[int]] = {}
    for row in rows:
        control = columns["track"][row] == "control"
        found.setdefault("control" if control else columns["proposer"][row], []).append(row)
    ordered = sorted(found, key=lambda name: (name != "control", name))
    turn = 0
    for name in ordered:
        color = REFERENCE_COLOR
        if name != "control":
            color = COLORS[(0, 2, 3, 4, 5)[turn % 5]]
            turn += 1
        yield escape_label(name), color, found[name]


def _dot_styles(hover: str) -> list[dict[str, Any]]:
    """Return the looks of what violates a tail, what does not, a front, and the champion."""
    template = f"{hover}<extra>%{{fullData.name}}</extra>"
    dot = {"type": "scatter", "mode": "markers", "opacity": 0.7, "hovertemplate": template}
    return [
        {**dot, "marker": {"symbol": "x-thin-open", "size": 5}},
        {**dot, "marker": {"size": 6}},
        {
            "type": "scatter",
            "mode": "lines",
            "line": {"color": COLORS[2], "width": 2, "shape": "hv"},
            "hoverinfo": "skip",
        },
        {
            "type": "scatter",
            "mode": "markers",
            "marker": {
                "symbol": "star",
                "size": 16,
                "color": COLORS[4],
                "line": {"color": "#333333", "width": 1},
            },
            "hovertemplate": template,
        },
    ]


def _star(columns: Mapping[str, Sequence[Any]], row: int, x: str, y: str) -> dict[str, Any]:
    return {
        "style": 3,
        "name": "champion",
        "x": [columns[x][row]],
        "y": [columns[y][row]],
        "customdata": [columns["number"][row]],
    }


def _front(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points that no other is below in both, by the first; smaller is better."""
    ordered = sorted(set(points))
    least = list(accumulate((y for _, y in ordered), min))
    return [
        point for place, point in enumerate(ordered) if place == 0 or point[1] < least[place - 1]
    ]


def _column(cell: Row) -> str:
    source = cell["source"].rsplit("/", 1)[-1].removesuffix("@model").removesuffix(".csv")
    return escape_label(f"{source} {cell['window']}")

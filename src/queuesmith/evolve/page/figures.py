"""The figures of a run of evolution, as plain plotly dictionaries in the form of an atlas's."""

import re
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from queuesmith import numbers
from queuesmith.report.parts import COLORS, REFERENCE_COLOR, Figure, escape_label

DIGITS = 4
#: Orange for worse than FCFS, blue for better; colours end at these scores.
SCORE_SCALE = [[0.0, "#D55E00"], [0.5, "#F4F4F2"], [1.0, "#0072B2"]]
SCORE_END = 1.0

Row = Mapping[str, Any]


def label(policy: str) -> str:
    """Return a policy's name without the names of its parameters.

    Examples
    --------
    >>> label("aged_sjf(SECONDS_PER_TOKEN=0.003)"), label("sjf")
    ('aged_sjf 0.003', 'sjf')
    """
    name, bracket, rest = policy.partition("(")
    return f"{name} {', '.join(re.findall(r'=([^,)]+)', rest))}" if bracket else name


def short(source: str) -> str:
    """Return a source's name without its folder and what it ends in.

    Examples
    --------
    >>> short("azure_2024/AzureLLM2024_conv.csv"), short("azure_2023_conv@model")
    ('AzureLLM2024_conv', 'azure_2023_conv')
    """
    return source.rsplit("/", 1)[-1].removesuffix("@model").removesuffix(".csv")


def panel(
    title: str,
    x: str,
    y: str,
    styles: Sequence[Row],
    data: Sequence[Row],
    xaxis: Row | None = None,
    yaxis: Row | None = None,
    **layout: Any,
) -> dict[str, Any]:
    """Return a panel of a scatter figure: looks, traces by look, named axes."""
    return {
        "follows": [],
        "styles": [{"type": "scatter", **style} for style in styles],
        "data": list(data),
        "layout": {
            "title": {"text": title},
            "xaxis": {"title": {"text": x}, **(xaxis or {})},
            "yaxis": {"title": {"text": y}, **(yaxis or {})},
            **layout,
        },
    }


def progress_figure(rows: Sequence[Row], classics: Sequence[Row]) -> Figure:
    """Draw the best score of each generation against evaluations, search beside control.

    Parameters
    ----------
    classics : sequence of mapping
        Of the run: `policy`, `score` on all tuning windows, `clean`.
    """
    return Figure(
        name="progress",
        title="The best so far, and the best of each generation",
        caption="Survivors that break no guard; each line is a seed. Left, the best score so far "
        "on all tuning windows, where it was run on all of them. Right, the best of each "
        "generation on that generation's own windows, which differ. Blue is the search, grey the "
        "control: random programs with as many evaluations. Dashed is the best classic that breaks "
        "no guard.",
        panels=[
            _progress_panel(rows, "score_all", "Best so far, on all tuning windows", classics),
            _progress_panel(rows, "score", "On the windows of each generation", ()),
        ],
    )


def _progress_panel(
    rows: Sequence[Row], key: str, title: str, classics: Sequence[Row]
) -> dict[str, Any]:
    data: list[dict[str, Any]] = []
    for track in ("control", "search"):
        for seed in sorted({row["seed"] for row in rows}):
            of = [row for row in rows if row["track"] == track and row["seed"] == seed]
            line = [row for row in of if row[key] is not None]
            shown = _best_so_far(line) if key == "score_all" else line
            if line:
                data.append(
                    {
                        "style": 0 if track == "search" else 1,
                        "name": f"{track}, seed {seed}",
                        "x": [row["evaluations"] for row in line],
                        "y": numbers.compact([row[key] for row in shown], DIGITS),
                        "customdata": [row["candidate"] for row in shown],
                    }
                )
    clean = [row for row in classics if row["clean"]]
    if clean and data:
        best = max(clean, key=lambda row: row["score"])
        name = f"best classic without a violation: {escape_label(label(best['policy']))}"
        y = numbers.compact([best["score"]] * 2, DIGITS)
        data.append(
            {"style": 2, "name": name, "x": [0, max(row["evaluations"] for row in rows)], "y": y}
        )
    hover = "no. %{customdata}: %{y:+.3f} after %{x:,} evaluations<extra>%{fullData.name}</extra>"
    styles: list[dict[str, Any]] = [
        {
            "mode": "lines+markers",
            "line": {"color": color, "width": 2},
            "marker": {"color": color, "size": 5},
            "hovertemplate": hover,
        }
        for color in (COLORS[0], REFERENCE_COLOR)
    ]
    dashed = {"color": COLORS[1], "width": 2, "dash": "dash"}
    template = "%{y:+.3f}<extra>%{fullData.name}</extra>"
    styles.append({"mode": "lines", "line": dashed, "hovertemplate": template})
    axis = {"rangemode": "tozero"}
    return panel(title, "evaluations of the seed", "score (fcfs = 0)", styles, data, axis)


def _best_so_far(line: Sequence[Row]) -> list[Row]:
    """Return, for each generation, the row of the best one up to it."""

    def better(best: Row, row: Row) -> Row:
        return row if row["score_all"] > best["score_all"] else best

    return list(accumulate(line, better))


def heat_figure(diagnosis: Mapping[str, Any], name: str) -> Figure:
    """Draw who scores what on which window and load: policies down, windows across."""
    style = {
        "type": "heatmap",
        "colorscale": SCORE_SCALE,
        "zmin": -SCORE_END,
        "zmax": SCORE_END,
        "xgap": 1,
        "ygap": 1,
        "colorbar": {"thickness": 10, "title": {"text": "score"}},
        "hovertemplate": "%{y} on %{x}: %{z:+.3f}<extra></extra>",
    }
    names = diagnosis["classics"]
    panels = []
    for load in diagnosis["loads"]:
        data = []
        for part, values in diagnosis["parts"].items():
            cells = [cell for cell in values["cells"] if cell["load"] == load["name"]]
            order = {row["policy"]: place for place, row in enumerate(values["leaderboard"])}
            places = sorted(range(len(names)), key=lambda place: order[names[place]])
            scores = [[cell["scores"][place] for cell in cells] for place in places]
            data.append(
                {
                    "style": 0,
                    "meta": {"part": part},
                    "x": [escape_label(f"{short(one['source'])} {one['window']}") for one in cells],
                    "y": [escape_label(name), *(escape_label(label(names[p])) for p in places)],
                    "z": [
                        numbers.compact(row, 3)
                        for row in ([cell["score"] for cell in cells], *scores)
                    ],
                }
            )
        layout = {
            "title": {"text": escape_label(f"{load['name']} (rho {load['rho']:g})")},
            "yaxis": {"autorange": "reversed", "type": "category", "dtick": 1},
            "xaxis": {"type": "category", "tickangle": -60, "tickfont": {"size": 9}},
        }
        panels.append({"follows": ["part"], "styles": [style], "data": data, "layout": layout})
    return Figure(
        name="windows",
        title="Window by window",
        caption="The score of each window at each load alone, fcfs = 0 (white): the champion on "
        f"top, then the classics by their total. Colours end at +-{SCORE_END:g}.",
        panels=panels,
        controls=("part",),
    )


def lineage_figure(nodes: Sequence[Row]) -> Figure:
    """Draw a champion's ancestors by generation and score; the main line is bold."""
    places = {node["candidate"]: node for node in nodes if node["score"] is not None}
    edges: dict[bool, tuple[list[Any], list[Any]]] = {False: ([], []), True: ([], [])}
    for node in places.values():
        for parent in (places[number] for number in node["parents"] if number in places):
            x, y = edges[node["main_line"] and parent["main_line"]]
            x += [parent["generation"], node["generation"], None]
            y += [parent["score"], node["score"], None]
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
                "y": numbers.compact([node["score"] for node in mine], DIGITS),
                "text": [str(node["candidate"]) for node in mine],
                "customdata": [escape_label(node["note"]) for node in mine],
                "marker": {"size": 9, "color": COLORS[place % len(COLORS)]},
            }
        )
    line = {"mode": "lines", "hoverinfo": "skip", "showlegend": False}
    styles: list[Row] = [
        {**line, "line": {"color": REFERENCE_COLOR, "width": 1}},
        {**line, "line": {"color": COLORS[0], "width": 3}},
        {
            "mode": "markers+text",
            "textposition": "top center",
            "hovertemplate": "no. %{text}: %{y:+.3f}, %{customdata}<extra>%{fullData.name}</extra>",
        },
    ]
    few = {"dtick": 1} if len({node["generation"] for node in nodes}) < 12 else {}
    return Figure(
        name="descent",
        title="Whom the champion descends from",
        caption="All its ancestors by generation, at their score on the windows of that "
        "generation. The bold line leads from each child to the parent whose text is nearest.",
        panels=[
            panel(
                *("Ancestors", "generation", "score (fcfs = 0)"),
                styles,
                data if places else [],
                few,
                showlegend=len(proposers) > 1,
            )
        ],
    )

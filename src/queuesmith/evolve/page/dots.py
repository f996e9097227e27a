"""The figures of all candidates of a run: what was tried, and what can be had.

Candidates are dots; where there are more than a page can hold, survivors are all kept and the
others thinned evenly, which the caption says.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from queuesmith import numbers
from queuesmith.evolve.page.figures import DIGITS, label, panel
from queuesmith.report.parts import COLORS, REFERENCE_COLOR, Figure, escape_label

#: Dots of one figure.
MOST_DOTS = 6_000
#: Of candidates that violate a tail, and of those that do not.
_DOT: dict[bool, dict[str, Any]] = {
    False: {"symbol": "x-thin-open", "size": 5},
    True: {"symbol": "circle", "size": 6},
}
_LEGEND: dict[str, Any] = {"showlegend": True, "legend": {"orientation": "h", "y": -0.18}}

Row = Mapping[str, Any]
Columns = Mapping[str, Sequence[Any]]


def population_figure(columns: Columns, champion: int | None) -> Figure:
    """Draw every scored candidate by size and score."""
    shown, note = thinned(columns)
    data: list[dict[str, Any]] = []
    for name, color, rows in _groups(columns, shown):
        for clean in (False, True):
            chosen = [row for row in rows if columns["clean"][row] == clean]
            if chosen:
                trace = _trace(columns, chosen, "size", "score")
                own = {"style": int(clean), "name": name + ("" if clean else ", breaks a guard")}
                data.append(trace | own | {"marker": _DOT[clean] | {"color": color}})
    front = _front(
        (columns["size"][row], -columns["score"][row])
        for row in range(len(columns["number"]))
        if columns["clean"][row] and columns["track"][row] == "search"
    )
    if front:
        data.append(
            {"style": 2, "x": [x for x, _ in front], "y": [-y for _, y in front], "name": "front"}
        )
    if champion in columns["number"]:
        row = columns["number"].index(champion)
        data.append(_trace(columns, [row], "size", "score") | {"style": 3, "name": "champion"})
    scores = [value for value in columns["score"] if value is not None]
    bottom, top = max(min(scores, default=0.0), -1.0) - 0.05, max(scores, default=1.0) + 0.08
    return Figure(
        name="population",
        title="The archive: score against size",
        caption="Every candidate that was scored, on the windows of its generation; a cross "
        "breaks a guard there. The line joins the best clean candidates of each size, the star "
        "is the champion. Those stopped early, of whom only a bound is known, are left out; scores "
        "far below 0 lie outside, zoom out to see them." + note,
        panels=[
            panel(
                *("All that was tried", "nodes", "score (fcfs = 0)"),
                _dot_styles("no. %{customdata}: %{y:+.3f}, %{x} nodes"),
                data,
                {"rangemode": "tozero"},
                {"range": [bottom, top]},
                **_LEGEND,
            )
        ],
    )


def _trace(columns: Columns, rows: Sequence[int], x: str, y: str) -> dict[str, Any]:
    """Return the candidates in some rows as dots."""
    return {
        "x": numbers.compact([columns[x][row] for row in rows], DIGITS),
        "y": numbers.compact([columns[y][row] for row in rows], DIGITS),
        "customdata": [columns["number"][row] for row in rows],
    }


def frontier_figure(columns: Columns, leaderboard: Sequence[Row], name: str) -> Figure:
    """Draw mean against p99, both over FCFS's: what can be had at once.

    Parameters
    ----------
    leaderboard : sequence of mapping
        Of the tuning windows, with `mean_ratio` and `p99_ratio`; empty without a diagnosis.
    """
    shown, note = thinned(columns)
    data: list[dict[str, Any]] = []
    for group, color, rows in _groups(columns, shown):
        known = [row for row in rows if columns["mean_ratio"][row] is not None]
        trace = _trace(columns, known, "mean_ratio", "p99_ratio")
        data.append(trace | {"style": 1, "name": group, "marker": _DOT[True] | {"color": color}})
    pairs = zip(columns["mean_ratio"], columns["p99_ratio"], strict=True)
    dots = [(mean, p99) for mean, p99 in pairs if mean is not None]
    named = [row for row in leaderboard if row["mean_ratio"] is not None]
    classics = [row for row in named if row["kind"] == "classic"]
    front = _front([*dots, *((row["mean_ratio"], row["p99_ratio"]) for row in classics)])
    means = [mean for mean, _ in dots] + [row["mean_ratio"] for row in named]
    p99s = [p99 for _, p99 in dots] + [row["p99_ratio"] for row in named]
    left, bottom = min(means, default=0.5) - 0.03, min(p99s, default=0.5) - 0.05
    right, top = 1.15, min(max(p99s, default=2.0), 2.2) + 0.05
    places = _label_places(classics, (left, right), top - bottom)
    names = [escape_label(label(row["policy"])) for row in classics]
    data.append(_points(2, "frontier", front))
    data.append(
        _points(4, "classics", [(row["mean_ratio"], row["p99_ratio"]) for row in classics])
        | {
            "textposition": [place or "top center" for place in places],
            "text": [shown if place else "" for shown, place in zip(names, places, strict=True)],
            "customdata": names,
        }
    )
    for row in named:
        if row["kind"] == "candidate":
            own = escape_label(name)
            star = {"style": 3, "x": [row["mean_ratio"]], "y": [row["p99_ratio"]], "name": own}
            data.append(star | {"customdata": [own]})
    diamonds = {
        "mode": "markers+text",
        "textfont": {"size": 10},
        "marker": {"symbol": "diamond", "size": 8, "color": COLORS[1]},
        "hovertemplate": "%{customdata}: mean %{x:.3f}, p99 %{y:.3f} x fcfs<extra></extra>",
    }
    dotted = {"color": REFERENCE_COLOR, "width": 1, "dash": "dot"}
    across = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 1.02, "y1": 1.02}
    return Figure(
        name="frontier",
        title="The attainable frontier: mean against p99",
        caption="TTFT over fcfs's, geometric mean over windows and loads; left is a lower mean, "
        "down a lower p99. Candidates on the windows of their generation, classics and the star "
        "(the champion) on all tuning windows, so a dot may owe its place to easy windows. The "
        "line joins what nothing else tried beats in both." + note,
        panels=[
            panel(
                *("Tuning windows", "mean TTFT / fcfs's", "p99 TTFT / fcfs's"),
                [*_dot_styles("no. %{customdata}: mean %{x:.3f}, p99 %{y:.3f} x fcfs"), diamonds],
                data if dots or named else [],
                {"range": [left, right]},
                {"range": [bottom, top]},
                shapes=[across | {"line": dotted}],
                **_LEGEND,
            )
        ],
    )


def _points(style: int, name: str, points: Sequence[tuple[float, float]]) -> dict[str, Any]:
    x, y = (numbers.compact([point[axis] for point in points], DIGITS) for axis in (0, 1))
    return {"style": style, "name": name, "x": x, "y": y}


def _groups(columns: Columns, rows: Sequence[int]) -> Iterable[tuple[str, str, list[int]]]:
    """Return the candidates of the control, and those of each proposer of the search."""
    found: dict[str, list[int]] = {}
    for row in rows:
        control = columns["track"][row] == "control"
        found.setdefault("control" if control else columns["proposer"][row], []).append(row)
    if "control" in found:
        yield "control", REFERENCE_COLOR, found.pop("control")
    for turn, name in enumerate(sorted(found)):
        yield escape_label(name), COLORS[(0, 2, 3, 4, 5)[turn % 5]], found[name]


def _dot_styles(hover: str) -> list[dict[str, Any]]:
    """Return the looks of what breaks a guard, what does not, a front, and the champion."""
    template = f"{hover}<extra>%{{fullData.name}}</extra>"
    dot = {"mode": "markers", "opacity": 0.7, "hovertemplate": template}
    front = {"color": COLORS[2], "width": 2, "shape": "hv"}
    edge = {"color": "#333333", "width": 1}
    star = {"symbol": "star", "size": 16, "color": COLORS[4], "line": edge}
    return [
        dot,
        dot,
        {"mode": "lines", "line": front, "hoverinfo": "skip"},
        {"mode": "markers", "marker": star, "hovertemplate": template},
    ]


def _front(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points that no other is below in both, by the first; smaller is better."""
    ordered = sorted(set(points))
    least = list(accumulate((y for _, y in ordered), min))
    return [
        point for place, point in enumerate(ordered) if place == 0 or point[1] < least[place - 1]
    ]


def _label_places(rows: Sequence[Row], ends: tuple[float, float], height: float) -> list[str]:
    """Say where each classic's name stands: none on another, none beyond the ends; or nowhere.

    A letter is taken to be 0.7 % of a figure's width, and a line 3.5 % of its height.
    """
    letter, line = 0.007 * (ends[1] - ends[0]), 0.035 * height
    taken: list[tuple[float, float, float, float]] = []
    places = []
    for row in rows:
        x, y, long = row["mean_ratio"], row["p99_ratio"], letter * len(label(row["policy"]))
        boxes = {
            "middle right": (x + letter, x + letter + long, y - line / 2, y + line / 2),
            "top center": (x - long / 2, x + long / 2, y + line / 2, y + line * 3 / 2),
            "bottom center": (x - long / 2, x + long / 2, y - line * 3 / 2, y - line / 2),
            "middle left": (x - letter - long, x - letter, y - line / 2, y + line / 2),
        }
        free = [
            name
            for name, box in boxes.items()
            if ends[0] <= box[0]
            and box[1] <= ends[1]
            and not any(
                box[0] < other[1] and other[0] < box[1] and box[2] < other[3] and other[2] < box[3]
                for other in taken
            )
        ]
        places.append(free[0] if free else "")
        if free:
            taken.append(boxes[free[0]])
    return places


def thinned(columns: Mapping[str, Sequence[Any]], most: int = MOST_DOTS) -> tuple[list[int], str]:
    """Return which candidates are drawn, and a sentence on how many are not."""
    everyone = range(len(columns["number"]))
    others = [row for row in everyone if not columns["kept"][row]]
    every = -(-len(others) // max(most - (len(everyone) - len(others)), 1))
    if len(everyone) <= most or every < 2:
        return list(everyone), ""
    shown = {row for row in everyone if columns["kept"][row]} | set(others[::every])
    return sorted(shown), f" Of those that did not survive, one in {every} is drawn."

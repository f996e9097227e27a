"""The tables of an atlas, as HTML: who wins where, reversals, sensitivities."""

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from html import escape
from typing import Any

from queuesmith import numbers
from queuesmith.evaluation.goals import guard_label
from queuesmith.report.frame import prose
from queuesmith.report.parts import COLORS
from queuesmith.report.tables import table
from queuesmith.study.guarding import broken_guards
from queuesmith.study.summary import best_set, relative_change, surely_better, winners
from queuesmith.study.words import engine_words, listed, metric_words, windows_words

Row = Mapping[str, Any]


def winner_colors(summary: Mapping[str, Any]) -> dict[str, str]:
    """Give a colour to the policies that are best most often; the others and the reference none."""
    counted: Counter[str] = Counter()
    for cell in summary["cells"]:
        if not cell["idle"]:
            for metric in cell["metrics"]:
                counted.update(winners(summary, cell, metric))
    ordered = [name for name, _ in counted.most_common() if name != summary["reference"]]
    return dict(zip(ordered, COLORS, strict=False))


def winners_table(summary: Mapping[str, Any]) -> str:
    """Return the map of who wins: a body per engine and metric, a row per source, a column a load.

    The page shows the body of the engine and metric that are chosen.

    Every policy within 1 % of the best mean is named, of those that only change order; a bundle or
    an oracle that is better still is told below. A cell is pale where the best is not surely better
    than the reference, and dashed where windows were modelled.
    """
    colors = winner_colors(summary)
    loads = summary["loads"]
    cells = {(cell["engine"], cell["load"], cell["source"]): cell for cell in summary["cells"]}
    head = "".join(f'<th scope="col">{escape(_load(load))}</th>' for load in loads)
    bodies = []
    for engine in summary["engines"]:
        for metric in summary["metrics"]:
            rows = [
                f'<tr class="group"><th colspan="{len(loads) + 1}" scope="colgroup">'
                f"<span>{escape(metric_words(metric))} <small>{escape(engine_words(engine))}"
                "</small></span></th></tr>"
            ]
            for source, known in summary["sources"].items():
                there = [cells.get((engine, load["name"], source)) for load in loads]
                rows.append(
                    f'<tr><th scope="row">{escape(source)}<small>'
                    f"{windows_words(known['num_real'], known['num_modelled'])}</small></th>"
                    + "".join(
                        _winner(summary, cell, metric, colors).replace(
                            "<td", f'<td data-label="{escape(_load(load))}"', 1
                        )
                        for load, cell in zip(loads, there, strict=True)
                    )
                    + "</tr>"
                )
            bodies.append(f"<tbody{when(engine=engine, metric=metric)}>{''.join(rows)}</tbody>")
    legend = "".join(
        f'<span class="key" style="--c:{color}">{escape(name)}</span>'
        for name, color in colors.items()
    )
    return (
        f'<p class="keys">{legend}<span class="key none">others</span></p>'
        '<div class="scroll"><table id="winners" class="rows"><thead><tr><th scope="col">source'
        f"</th>{head}</tr></thead>{''.join(bodies)}</table></div>"
    )


def when(**conditions: str) -> str:
    """Return the attribute that shows an element only where these are what the reader chose."""
    return f' data-when="{escape(json.dumps(conditions))}"'


def _load(load: Row) -> str:
    if load["rho"] is not None:
        return f"{load['name']} \N{GREEK SMALL LETTER RHO} {load['rho']:g}"
    return f"{load['name']} {load['multiplier']:g}x" if load["multiplier"] else str(load["name"])


def _winner(
    summary: Mapping[str, Any], cell: Row | None, metric: str, colors: Mapping[str, str]
) -> str:
    if cell is None:
        return '<td class="none">not run</td>'
    kinds = windows_words(cell["num_real"], cell["num_modelled"])
    if cell["idle"]:
        return f'<td class="none" title="{kinds}">idle</td>'
    names = list(summary["policies"])
    base = names.index(summary["reference"])
    values = cell["metrics"][metric]
    known = [mean is not None for mean in values["mean"]]
    if not any(known):
        return f'<td class="none" title="{kinds}">undefined</td>'
    shown = winners(summary, cell, metric)
    if not shown:
        return f'<td class="none" title="{kinds}">all tied</td>'
    num_windows = cell["num_real"] + cell["num_modelled"]
    first = names.index(shown[0])
    has_reference = summary["reference"] in shown
    sure = not has_reference and surely_better(values, first, metric)
    change = numbers.change(relative_change(values, first, base))
    ends = numbers.interval(values["low"][first], values["high"][first])
    beyond = _beyond(summary, values, first, metric)
    broken = listed([guard_label(name) for name in broken_guards(summary, cell, first)])
    told = [
        " = ".join(shown),
        f"{shown[0]} changes {metric_words(metric)} by {change} [{ends}] against "
        f"{summary['reference']}"
        if first != base
        else "",
        f"{shown[0]} is among the best in {values['best'][first]} of {num_windows} windows",
        f"{shown[0]} breaks the guard of {broken}" if broken else "",
        kinds,
    ]
    text = " = ".join(shown[:2]) + (f" = {len(shown) - 2} more" if len(shown) > 2 else "")
    # Where the reference is among the best nobody has won.
    color = next((colors[one] for one in shown if one in colors), "var(--tie)")
    color = "" if has_reference else color
    classes = " ".join(
        name
        for name, holds in (
            ("won", bool(color)),
            ("pale", not sure),
            ("dashed", cell["num_modelled"] > 0),
        )
        if holds
    )
    style = f' style="--c:{color}"' if color else ""
    return (
        f'<td class="{classes}"{style} title="{escape(". ".join(part for part in told if part))}">'
        f"{'▲ ' if broken else ''}{escape(text)}<small>{prose(change)}, "
        f"{values['best'][first]}/{num_windows}"
        f"{f'<br>{escape(beyond)}' if beyond else ''}</small></td>"
    )


def _beyond(summary: Mapping[str, Any], values: Row, first: int, metric: str) -> str:
    """Name a bundle or oracle that is better than the best order by more than a tie."""
    kinds = list(summary["policies"].items())
    top = best_set(values["mean"], metric)
    if first in top:
        return ""
    name, kind = kinds[top[0]]
    return f"{name} ({kind}) better"


def plain_table(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    name: str,
    words: Collection[int] = (0,),
) -> str:
    """Return a table, or what to read in place of one without rows."""
    if not rows:
        return '<p class="none">Nothing of the kind in this study.</p>'
    return table(heads, rows, name, words=words)

"""Tables as HTML. Every string from outside is escaped here."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from queuesmith import numbers
from queuesmith.comparison.answer import other_goals
from queuesmith.comparison.compare import Comparison
from queuesmith.comparison.rows import LeaderboardRow, LoadRow
from queuesmith.evaluation.describe import describe_broken, named
from queuesmith.evaluation.goals import GOALS, guard_label
from queuesmith.evaluation.judge import Change
from queuesmith.evaluation.statistics import STATISTICS, Statistic
from queuesmith.report.frame import prose
from queuesmith.report.parts import Style
from queuesmith.report.text import gain

KINDS = {
    "bundle": "brings engine settings of its own, so it is more than an order",
    "oracle": "knows output lengths that no server can know: a bound, not a choice",
}


@dataclass(frozen=True)
class Cell:
    """What stands in a table: text, or HTML that is safe already.

    Attributes
    ----------
    text, small : str
        The second is a smaller line below.
    css, title : str
        Classes, and what a pointer that rests on it shows.
    html : str
        In place of `text`.
    """

    text: str = ""
    small: str = ""
    css: str = ""
    title: str = ""
    html: str = ""


def table(
    heads: Sequence[str],
    rows: Iterable[Sequence[str | Cell]],
    name: str = "",
    *,
    words: Iterable[int] = (0,),
    css: str = "",
) -> str:
    """Return a table whose first column names the row.

    Each cell carries its heading, so that a narrow screen can show every row as a card.

    Parameters
    ----------
    heads : sequence of str
        A line feed breaks the line.
    rows : iterable of sequence of (str or Cell)
    name, css : str
        Its id and classes.
    words : iterable of int
        Columns that are read; the others are numbers.
    """
    read = set(words)
    body = "".join(row_html(heads, row, read) for row in rows)
    return table_html(heads, f"<tbody>{body}</tbody>", name, read, css)


def table_html(
    heads: Sequence[str], bodies: str, name: str = "", words: Iterable[int] = (0,), css: str = ""
) -> str:
    """Return a table around bodies that are HTML already."""
    read = set(words)
    head = "".join(
        f'<th scope="col"{"" if place in read else _NUMBER}>{prose(title)}</th>'
        for place, title in enumerate(heads)
    ).replace("\n", "<br>")
    named_so = f' id="{escape(name)}"' if name else ""
    top = f"<thead><tr>{head}</tr></thead>" if any(heads) else ""
    return f'<div class="scroll"><table{named_so} class="rows {css}">{top}{bodies}</table></div>'


_NUMBER = ' class="number"'


def row_html(
    heads: Sequence[str], row: Sequence[str | Cell], words: Iterable[int] = (0,), css: str = ""
) -> str:
    """Return one row of a table."""
    read = set(words)
    cells = []
    for place, found in enumerate(row):
        cell = found if isinstance(found, Cell) else Cell(found)
        classes = " ".join(part for part in (cell.css, "" if place in read else "number") if part)
        attributes = f' class="{classes}"' if classes else ""
        attributes += f' title="{escape(cell.title)}"' if cell.title else ""
        inside = cell.html or prose(cell.text)
        inside += f"<small>{prose(cell.small)}</small>" if cell.small else ""
        if place == 0:
            cells.append(f'<th scope="row"{attributes}>{inside}</th>')
        else:
            label = escape(heads[place].replace("\n", " "))
            cells.append(f'<td data-label="{label}"{attributes}>{inside}</td>')
    return f"<tr{f' class={css!r}' if css else ''}>{''.join(cells)}</tr>"


def goals_table(comparison: Comparison) -> str:
    """Return who wins for each goal, and whether that is the same for all."""
    rows = []
    for one in comparison.answer.goals:
        statistic = GOALS[one.goal].statistic
        stays = one.policy == comparison.config["reference"]
        asked = " (asked for)" if one.goal == comparison.goal.name else ""
        rows.append(
            (
                f"{statistic.label}{asked}",
                Cell(one.policy, css="policy"),
                Cell("nothing is surely better") if stays else _change(statistic, one.gain),
                ", ".join(one.tied) or "-",
                ", ".join(one.undecided) or "-",
            )
        )
    heads = ("goal", "policy", "gain, mean over loads", "as good", "close to a guard")
    told = prose(other_goals(comparison.answer.goals))
    return f"{table(heads, rows, 'goals', words=range(5))}<p class=told>{told}</p>"


def leaderboard_table(comparison: Comparison, styles: Iterable[Style]) -> str:
    """Return policies that may be recommended, ranked by the goal; below, those that may not."""
    looks = {style.policy: style for style in styles}
    axis = _axis(comparison)
    goal = comparison.goal
    heads = (
        "policy",
        "#",
        f"{goal.statistic.label},\nmean over loads",
        "95 % interval",
        "windows won,\ntied, lost",
        "guards",
    )
    words = (0, 3, 4, 5)
    blocks: dict[str, list[str]] = {
        "May be recommended: an order that breaks no guard, by gain": [],
        "May not be recommended: without a rank": [],
    }
    first, second = blocks.values()
    for row in comparison.leaderboard:
        change = row.gains[goal.name]
        cells = (
            Cell(html=_leader(looks[row.policy], row)),
            numbers.count(row.rank),
            Cell(gain(comparison, change), css="gain"),
            Cell(html=_whisker(comparison, change, axis, looks[row.policy])),
            Cell(html=_record(row)),
            Cell(html=_guards(row)),
        )
        answer = "answer" if row.policy == comparison.answer.policy else ""
        (first if row.eligible else second).append(row_html(heads, cells, words, answer))
    bodies = "".join(
        f'<tbody><tr class="block"><th colspan="{len(heads)}" scope="rowgroup">{title}</th></tr>'
        f"{''.join(rows)}</tbody>"
        for title, rows in blocks.items()
        if rows
    )
    return table_html(heads, bodies, "leaderboard", words)


def _leader(style: Style, row: LeaderboardRow) -> str:
    notes = [row.summary, f"{row.chosen[:1].upper()}{row.chosen[1:]}." if row.chosen else ""]
    told = "".join(f'<span class="summary">{prose(note)}</span>' for note in notes if note)
    return policy_name(style, row.kind, row.policy) + told


def _guards(row: LeaderboardRow) -> str:
    """Return why a policy may not be recommended, the gravest guards first."""
    reason = "" if row.kind == "policy" else f"It {KINDS[row.kind]}. "
    if not row.broken:
        none = '<span class="good">✓ none broken</span>'
        return f"{prose(reason)}{none}"
    told = prose(f"{reason}Breaks {named(row.broken)}.")
    if len(row.broken) == 1:
        return f'<span class="bad">▲</span> {told}'
    items = "".join(f"<li>{prose(describe_broken(one))}</li>" for one in row.broken)
    return (
        f'<span class="bad">▲</span> {told}<details><summary>all {len(row.broken)}</summary>'
        f"<ul>{items}</ul></details>"
    )


def _form(statistic: Statistic) -> Callable[[float | None], str]:
    return numbers.change if statistic.relative else numbers.points


def _interval(statistic: Statistic, change: Change) -> str:
    form = _form(statistic)
    low, high = form(change.low), form(change.high)
    if numbers.UNDEFINED in (low, high):
        return ""
    unit = " %" if statistic.relative else " points"
    return f"{low.removesuffix(unit)} to {high}"


def _change(statistic: Statistic, change: Change) -> Cell:
    interval = _interval(statistic, change)
    return Cell(_form(statistic)(change.change) + (f" [{interval}]" if interval else ""))


@dataclass(frozen=True)
class _Column:
    """A number of a load: a statistic with its change and guard, or else a metric of runs."""

    heading: str
    name: str
    form: Callable[[float | None], str]


def _milliseconds(value: float | None) -> str:
    return numbers.number(value, 1000)


#: Every number of a load, in tables that fit a page.
METRIC_GROUPS: dict[str, tuple[_Column, ...]] = {
    "TTFT": (
        _Column("mean (s)", "ttft_mean", numbers.number),
        _Column("p50 (s)", "ttft_p50", numbers.number),
        _Column("p90 (s)", "ttft_p90", numbers.number),
        _Column("p99 (s)", "ttft_p99", numbers.number),
        _Column("p99.9 (s)", "ttft_p999", numbers.number),
        _Column("largest (s)", "ttft_max", numbers.number),
        _Column("priority class", "priority_ttft", numbers.number),
        _Column("client", "client_ttft", numbers.number),
    ),
    "E2EL and slowdown": (
        _Column("mean (s)", "e2el_mean", numbers.number),
        _Column("p50 (s)", "e2el_p50", numbers.number),
        _Column("p90 (s)", "e2el_p90", numbers.number),
        _Column("p99 (s)", "e2el_p99", numbers.number),
        _Column("p99 slowdown", "slowdown_p99", numbers.number),
        _Column("largest slowdown", "slowdown_max", numbers.number),
        _Column("Jain's index", "jain", numbers.number),
    ),
    "TPOT and ITL": (
        _Column("mean TPOT (ms)", "tpot_mean", _milliseconds),
        _Column("p50 TPOT (ms)", "tpot_p50", _milliseconds),
        _Column("p90 TPOT (ms)", "tpot_p90", _milliseconds),
        _Column("p99 TPOT (ms)", "tpot_p99", _milliseconds),
        _Column("mean ITL (ms)", "itl_mean", _milliseconds),
        _Column("p50 ITL (ms)", "itl_p50", _milliseconds),
        _Column("p90 ITL (ms)", "itl_p90", _milliseconds),
        _Column("p99 ITL (ms)", "itl_p99", _milliseconds),
    ),
    "Throughput and SLO": (
        _Column("output tokens/s", "output_throughput", numbers.number),
        _Column("all tokens/s", "total_token_throughput", numbers.number),
        _Column("requests/s", "request_throughput", numbers.number),
        _Column("goodput (/s)", "goodput", numbers.number),
        _Column("SLO met", "slo_attainment", numbers.share),
        _Column("by deadline", "anwg", numbers.share),
        _Column("served", "served", numbers.share),
    ),
    "Queue and engine": (
        _Column("mean queued (s)", "queued_time_mean", numbers.number),
        _Column("p50 queued (s)", "queued_time_p50", numbers.number),
        _Column("p90 queued (s)", "queued_time_p90", numbers.number),
        _Column("p99 queued (s)", "queued_time_p99", numbers.number),
        _Column("largest queued (s)", "queued_time_max", numbers.number),
        _Column("preempted", "num_preemptions", numbers.count),
        _Column("recomputed", "recompute_tax", numbers.share),
        _Column("unfinished", "num_unfinished", numbers.count),
        _Column("aborted", "num_aborted", numbers.count),
        _Column("rejected", "num_rejected", numbers.count),
        _Column("dropped", "num_dropped", numbers.count),
        _Column("requests", "num_requests", numbers.count),
        _Column("steps", "num_steps", numbers.count),
    ),
}


def first_group(comparison: Comparison) -> str:
    """Return the group of the goal's statistic."""
    name = comparison.goal.statistic.name
    return next(
        group
        for group, columns in METRIC_GROUPS.items()
        if any(column.name == name for column in columns)
    )


def loads_tables(comparison: Comparison, styles: Sequence[Style], loads: Mapping[str, str]) -> str:
    """Return every number by load and policy; columns that are undefined throughout are left out.

    Parameters
    ----------
    comparison : Comparison
    styles : sequence of Style
    loads : mapping of str to str
        What to call each load.
    """
    kinds = {row.policy: row.kind for row in comparison.leaderboard}
    rows = {(row.policy, row.load): row for row in comparison.loads}
    found = []
    for group, columns in METRIC_GROUPS.items():
        kept = [column for column in columns if _is_known(comparison, column)]
        if not kept:
            continue
        heads = ("policy", *(column.heading for column in kept))
        bodies = []
        for load, label in loads.items():
            lines = [
                row_html(
                    heads,
                    (
                        Cell(html=policy_name(style, kinds[style.policy])),
                        *(_number(comparison, rows[style.policy, load], column) for column in kept),
                    ),
                )
                for style in styles
            ]
            bodies.append(
                f'<tbody data-load="{escape(load)}"><tr class="block"><th colspan="{len(heads)}" '
                f'scope="rowgroup">{escape(label)}</th></tr>{"".join(lines)}</tbody>'
            )
        found.append(
            f'<div class="metrics" data-metrics="{group}"><h3>{group}</h3>'
            f"{table_html(heads, ''.join(bodies), css='loads')}</div>"
        )
    return "".join(found)


def _is_known(comparison: Comparison, column: _Column) -> bool:
    if column.name in ("priority_ttft", "client_ttft"):
        return any(column.name in row.broken for row in comparison.loads)
    values = [_value(row, column) for row in comparison.loads]
    return any(value == value for value in values)


def _value(row: LoadRow, column: _Column) -> float:
    if column.name in row.changes:
        return row.changes[column.name].value
    return row.metrics.get(column.name, float("nan"))


def _number(comparison: Comparison, row: LoadRow, column: _Column) -> Cell:
    """Return a number with its change, marked if its guard is broken."""
    change, statistic = row.changes.get(column.name), STATISTICS.get(column.name)
    broken = column.name in row.broken
    if broken and statistic is None:
        (change,) = (
            one.change
            for leader in comparison.leaderboard
            if leader.policy == row.policy
            for one in leader.broken
            if (one.guard, one.load) == (column.name, row.load)
        )
        statistic = comparison.goal.statistic  # its unit is a latency's
    value = change.value if change is not None else _value(row, column)
    small, title = "", ""
    reference = comparison.config["reference"]
    if change is not None and statistic is not None and row.policy != reference:
        small = _form(statistic)(change.change)
        interval = _interval(statistic, change)
        title = f"{small} against {reference}"
        title += f", 95 % interval {interval}" if interval else ""
    if not broken:
        return Cell(column.form(value), small, title=title)
    margin = next(guard.margin for guard in comparison.guards if guard.name == column.name)
    title = f"breaks the guard of {guard_label(column.name)}, by more than {margin:g}: {title}"
    return Cell(f"▲ {column.form(value)}", small, "broken", title)


def settings_table(settings: Mapping[str, Any]) -> str:
    """Return names and values, nested mappings as nested tables."""
    rows = "".join(
        f"<tr><th scope=row>{escape(str(name))}</th><td>{_setting(value)}</td></tr>"
        for name, value in settings.items()
    )
    return f'<table class="settings"><tbody>{rows}</tbody></table>'


def _setting(value: Any) -> str:
    """Return one value of a setting."""
    if isinstance(value, Mapping):
        return settings_table(value) if value else "none"
    if isinstance(value, list | tuple):
        if any(isinstance(item, Mapping) for item in value):
            return "; ".join(_pairs(item) for item in value)
        return escape(", ".join(str(item) for item in value)) or "none"
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    return escape(f"{value:,}" if isinstance(value, int) else str(value))


def _pairs(item: Any) -> str:
    if not isinstance(item, Mapping):
        return escape(str(item))
    return escape(", ".join(f"{name} {value}" for name, value in item.items()))


def policy_name(style: Style, kind: str = "policy", name: str = "") -> str:
    """Return the name of a policy with its line, and what is special about it.

    Parameters
    ----------
    style : Style
    kind : {"policy", "bundle", "oracle"}
    name : str
        In full; its label when left out.
    """
    mark = ""
    if kind in KINDS:
        mark = f' <abbr class="mark {kind}" title="{KINDS[kind]}">{kind}</abbr>'
    shown = name or style.label.removesuffix(f" ({kind})")
    return (
        f'<i class="line {style.dash}" style="border-top-color:{style.color}"></i>'
        f'<span class="policy">{escape(shown)}</span>{mark}'
    )


def _axis(comparison: Comparison) -> tuple[float, float]:
    """Return the ends of the bars: all of the gains, and not more than twice as much loss."""
    goal = comparison.goal
    ends = [
        goal.statistic.worse(end)
        for row in comparison.leaderboard
        for end in (getattr(row.gains[goal.name], name) for name in ("change", "low", "high"))
    ]
    known = [end for end in ends if abs(end) < float("inf")]
    best = min([*known, -0.05])
    return best, min(max([*known, 0.05]), -2 * best)


def _whisker(
    comparison: Comparison, change: Change, axis: tuple[float, float], style: Style
) -> str:
    """Return a small drawing of a gain with its interval: left is better, zero the reference."""
    statistic = comparison.goal.statistic
    if change.change != change.change:
        return "&ndash;"
    width, margin = 150, 6
    best, worst = axis

    def place(value: float) -> float:
        clipped = min(max(statistic.worse(value), best), worst)
        return round(margin + (width - 2 * margin) * (clipped - best) / (worst - best), 1)

    text = _interval(statistic, change)
    if style.policy == comparison.config["reference"]:
        text = "reference"
    ends = [change.low, change.high] if text else [change.change] * 2
    left, right = sorted(map(place, ends))
    zero, dot = place(0), place(change.change)
    marks = f'<line x1="{zero}" x2="{zero}" y1="0" y2="20" class="zero"/>'
    if statistic.worse(change.change) > worst:
        marks += f'<path d="M{width - 2} 10l-7-5v10z" fill="{style.color}"/>'
    else:
        marks += (
            f'<line x1="{left}" x2="{right}" y1="10" y2="10" stroke="{style.color}" '
            f'stroke-width="2.5"/><circle cx="{dot}" cy="10" r="4.5" fill="{style.color}"/>'
        )
    return (
        f'<span class="whisker"><svg width="{width}" height="20" role="img" '
        f'aria-label="{escape(text)}">{marks}</svg><small>{prose(text)}</small></span>'
    )


def _record(row: LeaderboardRow) -> str:
    """Return wins, ties and losses as a stacked bar with its numbers."""
    counts = [row.wins, row.ties, row.losses]
    total = sum(counts)
    if total == 0:
        return "&ndash;"
    parts = "".join(
        f'<i class="{name}" style="width:{100 * count / total:.1f}%"></i>'
        for name, count in zip(("win", "tie", "loss"), counts, strict=True)
        if count
    )
    text = " &ndash; ".join(f"{count}" for count in counts)
    return f'<span class="record"><span class="stack">{parts}</span><small>{text}</small></span>'

"""The tables of the HTML report. Every string from outside is escaped here."""

from collections.abc import Callable, Iterable, Mapping
from html import escape
from typing import Any

from queuesmith import numbers
from queuesmith.report.parts import Style, load_label

KINDS = {
    "bundle": "brings engine settings of its own, so it is more than an order",
    "oracle": "knows output lengths that no server can know: a bound, not a choice",
}

Format = Callable[[Any], str]


def _seconds(value: float | None) -> str:
    return numbers.number(value)


def _milliseconds(value: float | None) -> str:
    return numbers.number(value, 1000)


#: Heading of a group, then (heading, keys, format) of each column; an interval has three keys.
COLUMNS: tuple[tuple[str, tuple[tuple[str, tuple[str, ...], Format], ...]], ...] = (
    (
        "change of TTFT",
        (
            ("mean", ("mean_change", "mean_change_low", "mean_change_high"), numbers.change),
            ("p99", ("p99_change", "p99_change_low", "p99_change_high"), numbers.change),
            ("p", ("p_value",), numbers.p_value),
        ),
    ),
    (
        "TTFT (s)",
        (
            ("mean", ("ttft_mean",), _seconds),
            ("p50", ("ttft_p50",), _seconds),
            ("p90", ("ttft_p90",), _seconds),
            ("p99", ("ttft_p99",), _seconds),
            ("max", ("ttft_max",), _seconds),
        ),
    ),
    (
        "TPOT (ms)",
        (("mean", ("tpot_mean",), _milliseconds), ("p99", ("tpot_p99",), _milliseconds)),
    ),
    ("ITL (ms)", (("p99", ("itl_p99",), _milliseconds),)),
    ("E2EL (s)", (("mean", ("e2el_mean",), _seconds), ("p99", ("e2el_p99",), _seconds))),
    ("queued (s)", (("mean", ("queued_time_mean",), _seconds),)),
    ("slowdown", (("p99", ("slowdown_p99",), numbers.number),)),
    (
        "SLO",
        (
            ("met", ("slo_attainment",), numbers.share),
            ("goodput (/s)", ("goodput",), numbers.number),
        ),
    ),
    (
        "engine",
        (
            ("output tok/s", ("output_throughput",), numbers.number),
            ("preempted", ("num_preemptions",), numbers.count),
            ("recomputed", ("recompute_tax",), numbers.share),
        ),
    ),
)


def leaderboard_table(document: Mapping[str, Any], styles: Iterable[Style]) -> str:
    """Return the leaderboard: one row per policy, best first."""
    looks = {style.policy: style for style in styles}
    rows = document["leaderboard"]
    reference = document["config"]["reference"]
    low, high = _score_axis(rows)
    body = []
    for row in rows:
        recommended = ' class="answer"' if row["policy"] == document["answer"]["policy"] else ""
        body.append(
            f"<tr{recommended}>"
            f'<td class="number">{numbers.count(row["rank"])}</td>'
            f"<th scope=row>{policy_name(looks[row['policy']], row['kind'])}"
            f'<span class="summary">{escape(row["summary"] or "")}</span></th>'
            f'<td class="number score">{_minus(numbers.score(row["score"]))}</td>'
            f"<td>{_whisker(row, low, high, looks[row['policy']].color, reference)}</td>"
            f"<td>{_record(row)}</td>"
            f"<td>{_tail(row)}</td></tr>"
        )
    return (
        '<div class="scroll"><table id="leaderboard"><thead><tr><th class="number">#</th>'
        '<th>policy</th><th class="number">score</th><th>95 % interval</th>'
        "<th>won &ndash; tied &ndash; lost</th><th>tail</th></tr></thead>"
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def loads_table(document: Mapping[str, Any], styles: Iterable[Style]) -> str:
    """Return every metric by load and policy, without the columns that are undefined throughout."""
    rows = document["loads"]
    reference = document["config"]["reference"]
    changes = [key for _, keys, _ in COLUMNS[0][1] for key in keys]
    groups = []
    for heading, columns in COLUMNS:
        kept = [
            column for column in columns if any(row.get(column[1][0]) is not None for row in rows)
        ]
        if kept:
            groups.append((heading, kept))
    head = "".join(
        f'<th colspan="{len(columns)}" class="group">{escape(heading)}</th>'
        for heading, columns in groups
    )
    subhead = "".join(
        f'<th class="number{" first" if place == 0 else ""}">{escape(column[0])}</th>'
        for _, columns in groups
        for place, column in enumerate(columns)
    )
    by_key = {(row["policy"], row["load"]): row for row in rows}
    bodies = []
    for load in document["config"]["loads"]:
        lines = []
        for style in styles:
            row = by_key.get((style.policy, load["name"]))
            if row is not None and style.policy == reference:
                # Against itself a policy has no change, which is not the same as a change of 0.
                row = {**row, **dict.fromkeys(changes)}
            if row is not None:
                cells = "".join(
                    _cell(row, column, place == 0)
                    for _, columns in groups
                    for place, column in enumerate(columns)
                )
                lines.append(f"<tr><th scope=row>{policy_name(style)}</th>{cells}</tr>")
        width = 1 + sum(len(columns) for _, columns in groups)
        bodies.append(
            f'<tbody data-load="{escape(load["name"])}"><tr class="load"><th colspan="{width}">'
            f"<span>{escape(load_label(load))}</span></th></tr>{''.join(lines)}</tbody>"
        )
    return (
        '<div class="scroll"><table id="loads"><thead><tr><th rowspan="2">policy</th>'
        f"{head}</tr><tr>{subhead}</tr></thead>{''.join(bodies)}</table></div>"
    )


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


def _cell(row: Mapping[str, Any], column: tuple[str, tuple[str, ...], Format], first: bool) -> str:
    """Return one number, with its interval below where it has one."""
    _, keys, form = column
    text = _minus(form(row.get(keys[0])))
    interval = numbers.interval(row.get(keys[1]), row.get(keys[2])) if len(keys) == 3 else ""
    if interval:
        text += f"<small>{_minus(interval)}</small>"
    classes = "number first" if first else "number"
    if keys[0] == "p99_change" and row.get("tail_violated"):
        return f'<td class="{classes} bad" title="tail violation">▲ {text}</td>'
    return f'<td class="{classes}">{text}</td>'


def policy_name(style: Style, kind: str = "policy") -> str:
    """Return the name of a policy with its colour, and what is special about it."""
    mark = ""
    if kind in KINDS:
        mark = f' <abbr class="mark {kind}" title="{KINDS[kind]}">{kind}</abbr>'
    return (
        f'<i class="swatch" style="background:{style.color}"></i>'
        f'<span class="policy">{escape(style.policy)}</span>{mark}'
    )


def _score_axis(rows: Iterable[Mapping[str, Any]]) -> tuple[float, float]:
    """Return the ends of the score bars: all of the gains, and not more than twice as much loss."""
    values = [
        row[key]
        for row in rows
        for key in ("score", "score_low", "score_high")
        if row[key] is not None
    ]
    high = max([*values, 0.1])
    return max(min([*values, -0.1]), -2 * high), high


def _whisker(row: Mapping[str, Any], low: float, high: float, color: str, reference: str) -> str:
    """Return a small drawing of a score with its interval; zero is the reference."""
    if row["score"] is None:
        return "&ndash;"
    width, margin = 170, 6

    def place(value: float) -> float:
        clipped = min(max(value, low), high)
        return round(margin + (width - 2 * margin) * (clipped - low) / (high - low), 1)

    ends = [row["score"] if row[key] is None else row[key] for key in ("score_low", "score_high")]
    text = f"{numbers.score(ends[0])} to {numbers.score(ends[1])}"
    if row["policy"] == reference:
        text = "reference"
    zero, dot, left, right = place(0), place(row["score"]), place(ends[0]), place(ends[1])
    marks = f'<line x1="{zero}" x2="{zero}" y1="0" y2="20" class="zero"/>'
    if row["score"] < low:
        marks += f'<path d="M2 10l7-5v10z" fill="{color}"/>'
    else:
        marks += (
            f'<line x1="{left}" x2="{right}" y1="10" y2="10" stroke="{color}" stroke-width="2.5"/>'
            f'<circle cx="{dot}" cy="10" r="4.5" fill="{color}"/>'
        )
    return (
        f'<span class="whisker"><svg width="{width}" height="20" role="img" '
        f'aria-label="{text}">{marks}</svg><small>{_minus(text)}</small></span>'
    )


def _record(row: Mapping[str, Any]) -> str:
    """Return wins, ties and losses as a stacked bar with its numbers."""
    counts = [int(row[key] or 0) for key in ("wins", "ties", "losses")]
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


def _tail(row: Mapping[str, Any]) -> str:
    """Return how often the tail got worse than allowed, and where."""
    count = row["tail_violations"]
    if not count:
        return '<span class="good">✓ none</span>' if count == 0 else "&ndash;"
    reasons = "".join(f"<li>{escape(reason)}</li>" for reason in row["tail_reasons"])
    noun = "violation" if count == 1 else "violations"
    return (
        f'<details><summary class="bad">▲ {count} {noun}</summary><ul>{reasons}</ul></details>'
        if reasons
        else f'<span class="bad">▲ {count} {noun}</span>'
    )


def _minus(text: str) -> str:
    """Return a number with a true minus sign and an en dash for what is undefined, escaped."""
    return "&ndash;" if text == numbers.UNDEFINED else escape(text).replace("-", "&minus;")

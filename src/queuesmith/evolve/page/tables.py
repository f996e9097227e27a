"""The tables of a run of evolution, as HTML. Every string from an archive is escaped here."""

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from queuesmith import numbers
from queuesmith.evolve.diagnosis.payers import NAMES
from queuesmith.evolve.diagnosis.suggestions import lost_cells, signed
from queuesmith.evolve.gates.measurements import standing_order
from queuesmith.evolve.page.figures import label, short
from queuesmith.report.atlas_tables import plain_table, when
from queuesmith.report.frame import prose
from queuesmith.report.tables import Cell, table

#: Rows of the table of lost windows; the JSON has all.
MOST_LOST = 12

Row = Mapping[str, Any]


def leaderboard_table(rows: Sequence[Row], candidate: str, name: str) -> str:
    """Return gains and broken guards: those that break none first, each block by its gain.

    Parameters
    ----------
    rows : sequence of mapping
        Of `measurements.standings`, the candidate's with `kind` "candidate".
    """
    body = []
    for place, row in enumerate(sorted(rows, key=standing_order), start=1):
        mine = row.get("kind") == "candidate"
        broken = row["broken_guards"]
        unknown = row["low"] is None or row["high"] is None
        between = numbers.UNDEFINED if unknown else f"{signed(row['low'])} to {signed(row['high'])}"
        body.append(
            f"<tr{' class=answer' if mine else ''}>"
            f'<td class="number">{place}</td><th scope="row"><span class="policy">'
            f"{escape(candidate if mine else label(row['policy']))}</span></th>"
            f'<td class="number"><b>{prose(signed(row["score"]))}</b>'
            f"<small>{prose(between)}</small></td>"
            f'<td class="number {"bad" if broken else "good"}" '
            f'title="{escape("; ".join(row["reasons"]))}">{broken}</td>'
            f'<td class="number">{row["worse"]} of {row["num_configurations"]}</td></tr>'
        )
    return (
        f'<div class="scroll"><table id="{name}" class="board"><thead><tr><th class="number">#</th>'
        '<th>policy</th><th class="number">gain<small>95 % interval</small></th>'
        '<th class="number">guards<br>broken</th><th class="number">goal<br>worse in</th></tr>'
        f"</thead><tbody>{''.join(body)}</tbody></table></div>"
    )


def wins_table(diagnosis: Mapping[str, Any]) -> str:
    """Return how many windows x loads each classic wins, by part."""
    wins = {part: values["wins"] for part, values in diagnosis["parts"].items()}
    total = {name: sum(of.get(name, 0.0) for of in wins.values()) for name in diagnosis["classics"]}
    rows = [
        [label(name), *(f"{of[name]:.1f} of {sum(of.values()):.0f}" for of in wins.values())]
        for name in sorted(filter(total.get, total), key=lambda name: -total[name])
    ]
    return plain_table(["classic", *(f"{part}: wins" for part in wins)], rows, "wins")


def _by_part(diagnosis: Mapping[str, Any], shown: Callable[[str, Row], str]) -> str:
    """Return what is shown of each part; the page shows the one that is chosen."""
    parts = diagnosis["parts"].items()
    return "".join(f"<div{when(part=part)}>{shown(part, values)}</div>" for part, values in parts)


def lost_table(diagnosis: Mapping[str, Any]) -> str:
    """Return the windows x loads on which a classic is better, the largest loss first."""

    def shown(part: str, values: Row) -> str:
        lost = lost_cells(values)
        rows = [
            [
                f"{short(row['source'])} {row['window']}",
                row["load"],
                ", ".join(label(name) for name in row["winners"][:2])
                + (f" (+{len(row['winners']) - 2})" if len(row["winners"]) > 2 else ""),
                signed(row["best_classic"]),
                signed(row["score"]),
            ]
            for row in lost[:MOST_LOST]
        ]
        more = f", the {MOST_LOST} largest losses" if len(lost) > MOST_LOST else ""
        heads = ["window", "load", "won by", "its score", "here"]
        none = '<p class="none">Nowhere by more than the margin.</p>'
        return (
            f"<h3>Where it lost to a classic <small>{len(lost)} of {len(values['cells'])} "
            f"{escape(part)} windows x loads{more}</small></h3>"
            + (plain_table(heads, rows, f"lost-{part}", words=(0, 1, 2)) if rows else none)
        )

    return _by_part(diagnosis, shown)


def payers_table(diagnosis: Mapping[str, Any]) -> str:
    """Return how the mean and p99 of each quarter of the requests changed beside FCFS's."""
    names = [name.removesuffix(" prompts") for each in NAMES.values() for name in each]

    def shown(part: str, values: Row) -> str:
        rows = [
            (
                Cell(row["source"], small=row["load"] + (", idle" if row["idle"] else "")),
                *(_payer(one) for quarters in row["paid"].values() for one in quarters),
            )
            for row in values["configurations"]
        ]
        return table(("configuration", *names), rows, f"paid-{part}", css="paid")

    return _by_part(diagnosis, shown)


def _payer(row: Row) -> Cell:
    mean, p99 = row["mean_change"], row["p99_change"]
    times = ("ttft_mean", "ttft_mean_fcfs", "ttft_p99", "ttft_p99_fcfs", "low", "high")
    shown = [numbers.number(row[name]) for name in times]
    title = (
        f"{row['num_requests']:,} requests: mean {shown[0]} s for {shown[1]} s, p99 {shown[2]} s "
        f"for {shown[3]} s; from {shown[4]} to {shown[5]}"
    )
    css = "bad-tail" if p99 is not None and p99 > 0.05 else ""
    return Cell(numbers.change(mean), f"p99 {numbers.change(p99)}", css, title)


def nearest_table(diagnosis: Mapping[str, Any], candidate: str) -> str:
    """Return what the nearest classic would have done in each configuration, beside."""
    near = label(diagnosis["nearest"]["policy"])

    def less_one(ratio: float | None) -> str:
        return numbers.change(None if ratio is None else ratio - 1)

    def shown(part: str, values: Row) -> str:
        rows = []
        for row in values["configurations"]:
            other = row["nearest_classic"]
            mine = [numbers.change(row[name]) for name in ("mean_change", "p99_change")]
            theirs = [less_one(other[name]) for name in ("mean_ratio", "p99_ratio")]
            where = [row["source"], row["load"]]
            rows.append([*where, signed(row["score"]), *mine, signed(other["score"]), *theirs])
        heads = ["source", "load", candidate, "mean", "p99", near, "mean", "p99"]
        return plain_table(heads, rows, f"nearest-{part}", words=(0, 1))

    return _by_part(diagnosis, shown)


def situations_table(rows: Sequence[Row]) -> str:
    """Return whom a policy admits first at low and at high load, beside fcfs and sjf."""
    heads = ["request", "prompt", "wait s", "place", "fcfs", "sjf"]
    places = ("place", "place_by_arrival", "place_by_prompt")
    tables = []
    for load in dict.fromkeys(row["load"] for row in rows):
        lines = [
            [row["request"], f"{row['num_prompt_tokens']:,}", numbers.number(row["wait"])]
            + [str(row[name]) for name in places]
            for row in rows
            if row["load"] == load
        ]
        shown = plain_table(heads, lines, f"situations-{escape(load)}")
        tables.append(f"<div><h3>At {escape(load)} load</h3>{shown}</div>")
    return f'<div class="tables">{"".join(tables)}</div>'


def diffs(lineage: Mapping[str, Any]) -> str:
    """Return the main line of a lineage: its first text, then what each step changed."""
    origin = lineage["origin"]
    parts = [
        f'<details class="step"><summary>no. {origin["candidate"]}: '
        f"{escape(origin['note'] or 'the beginning')}</summary>"
        f"<pre><code>{escape(origin['text'])}</code></pre></details>"
    ]
    last = len(lineage["steps"]) - 1
    for place, step in enumerate(lineage["steps"]):
        lines = "".join(_diff_line(line) for line in step["diff"])
        parts.append(
            f'<details class="step"{" open" if place == last else ""}><summary>'
            f"no. {step['parent']} &rarr; no. {step['child']}: {escape(step['note'])} "
            f"({prose(signed(step['score_parent']))} &rarr; {prose(signed(step['score_child']))})"
            f'</summary><pre class="diff"><code>{lines or "no line differs"}</code></pre></details>'
        )
    return "".join(parts)


def _diff_line(line: str) -> str:
    kind = {"+": "add", "-": "del", "@": "at"}.get(line[:1], "")
    return f'<span class="{kind}">{escape(line)}</span>\n'


def verdicts_table(rows: Sequence[Row]) -> str:
    """Return what became of the candidates, with the commonest reasons."""
    lines = [
        (
            row["track"],
            row["verdict"],
            row["status"],
            f"{row['count']:,}",
            Cell(
                html="".join(
                    f"<small>{prose(one['sentence'])}{_times(one['count'])}</small>"
                    for one in row["sentences"]
                )
            ),
        )
        for row in rows
    ]
    heads = ("track", "verdict", "status", "candidates", "commonest reasons")
    return table(heads, lines, "verdicts", words=(0, 1, 2, 4))


def _times(count: int) -> str:
    return f" ({count:,} x)" if count > 1 else ""


def budget_table(run: Mapping[str, Any], budget: Mapping[str, Any]) -> str:
    """Return what was used up, beside what was allowed."""
    spent = {"evaluations": sum(run["evaluations"].values()), **run["spent"]}
    rows = [
        [
            name.replace("_", " "),
            numbers.number(float(amount)) if amount else "0",
            numbers.number(float(budget[name])) if budget.get(name) else "no cap",
        ]
        for name, amount in spent.items()
        if amount or budget.get(name)
    ]
    return plain_table(["what", "used", "cap"], rows, "budget")


def gates_table(judgement: Mapping[str, Any]) -> str:
    """Return every gate that was tried with what it said."""
    marks = {True: ("good", "✓ passed"), False: ("bad", "▲ fell short"), None: ("", "not run")}
    rows = []
    for gate in judgement["gates"]:
        css, word = marks.get(gate.get("passed"), marks[None])
        name = f"{gate.get('gate')} {gate.get('name')}"
        rows.append((name, Cell(word, css=css), str(gate.get("sentence"))))
    return table(("gate", "outcome", "what it saw"), rows, "gates", words=range(3))

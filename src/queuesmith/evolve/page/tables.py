"""The tables of a run of evolution, as HTML. Every string from an archive is escaped here."""

from collections.abc import Mapping, Sequence
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
    candidate : str
        What the candidate is to be called.
    name : str
        Id of the table.
    """
    ordered = sorted(rows, key=standing_order)
    body = []
    for place, row in enumerate(ordered, start=1):
        mine = row.get("kind") == "candidate"
        broken = row["broken_guards"]
        shown = candidate if mine else label(row["policy"])
        body.append(
            f"<tr{' class=answer' if mine else ''}>"
            f'<td class="number">{place}</td><th scope="row"><span class="policy">'
            f"{escape(shown)}</span></th>"
            f'<td class="number"><b>{prose(signed(row["score"]))}</b>'
            f"<small>{prose(_interval(row))}</small></td>"
            f'<td class="number {"bad" if broken else "good"}" '
            f'title="{escape("; ".join(row["reasons"]))}">{broken}</td>'
            f'<td class="number">{row["worse"]} of {row["num_configurations"]}</td></tr>'
        )
    return (
        f'<div class="scroll"><table id="{name}" class="board"><thead><tr><th class="number">#</th>'
        '<th>policy</th><th class="number">gain<small>95 % interval</small></th>'
        '<th class="number">guards<br>broken</th><th class="number">goal<br>worse in</th></tr>'
        "</thead>"
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def wins_table(diagnosis: Mapping[str, Any]) -> str:
    """Return how many windows x loads each classic wins, by part."""
    parts = diagnosis["parts"]
    totals = {part: sum(values["wins"].values()) for part, values in parts.items()}
    names = [
        name
        for name in diagnosis["classics"]
        if any(values["wins"].get(name) for values in parts.values())
    ]
    names.sort(key=lambda name: -sum(values["wins"][name] for values in parts.values()))
    rows = [
        [
            label(name),
            *(
                f"{values['wins'][name]:.1f} of {totals[part]:.0f}"
                for part, values in parts.items()
            ),
        ]
        for name in names
    ]
    return plain_table(["classic", *(f"{part}: wins" for part in parts)], rows, "wins")


def lost_table(diagnosis: Mapping[str, Any]) -> str:
    """Return the windows x loads on which a classic is better, the largest loss first."""
    tables = []
    for part, values in diagnosis["parts"].items():
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
        heads = ["window", "load", "won by", "its score", "here"]
        tables.append(
            f"<div{when(part=part)}><h3>Where it lost to a classic <small>{len(lost)} of "
            f"{len(values['cells'])} {escape(part)} windows x loads"
            f"{f', the {MOST_LOST} largest losses' if len(lost) > MOST_LOST else ''}</small></h3>"
            + (
                plain_table(heads, rows, f"lost-{part}", words=(0, 1, 2))
                if rows
                else '<p class="none">Nowhere by more than the margin.</p>'
            )
            + "</div>"
        )
    return "".join(tables)


def payers_table(diagnosis: Mapping[str, Any]) -> str:
    """Return how the mean and p99 of each quarter of the requests changed beside FCFS's."""
    names = [name.removesuffix(" prompts") for each in NAMES.values() for name in each]
    tables = []
    for part, values in diagnosis["parts"].items():
        rows = [
            (
                Cell(row["source"], small=row["load"] + (", idle" if row["idle"] else "")),
                *(_payer(one) for quarters in row["paid"].values() for one in quarters),
            )
            for row in values["configurations"]
        ]
        shown = table(("configuration", *names), rows, f"paid-{part}", css="paid")
        tables.append(f"<div{when(part=part)}>{shown}</div>")
    return "".join(tables)


def _payer(row: Row) -> Cell:
    mean, p99 = row["mean_change"], row["p99_change"]
    title = (
        f"{row['num_requests']:,} requests: mean {numbers.number(row['ttft_mean'])} s for "
        f"{numbers.number(row['ttft_mean_fcfs'])} s, p99 {numbers.number(row['ttft_p99'])} s for "
        f"{numbers.number(row['ttft_p99_fcfs'])} s; from {numbers.number(row['low'])} to "
        f"{numbers.number(row['high'])}"
    )
    css = "bad-tail" if p99 is not None and p99 > 0.05 else ""
    return Cell(numbers.change(mean), f"p99 {numbers.change(p99)}", css, title)


def nearest_table(diagnosis: Mapping[str, Any], candidate: str) -> str:
    """Return what the nearest classic would have done in each configuration, beside."""
    tables = []
    near = label(diagnosis["nearest"]["policy"])
    for part, values in diagnosis["parts"].items():
        rows = [
            [
                row["source"],
                row["load"],
                *_standing(row["score"], row["mean_change"], row["p99_change"]),
                *_standing(
                    row["nearest_classic"]["score"],
                    _less_one(row["nearest_classic"]["mean_ratio"]),
                    _less_one(row["nearest_classic"]["p99_ratio"]),
                ),
            ]
            for row in values["configurations"]
        ]
        heads = ["source", "load", candidate, "mean", "p99", near, "mean", "p99"]
        table = plain_table(heads, rows, f"nearest-{part}", words=(0, 1))
        tables.append(f"<div{when(part=part)}>{table}</div>")
    return "".join(tables)


def _less_one(ratio: float | None) -> float | None:
    return None if ratio is None else ratio - 1


def _standing(score: float | None, mean: float | None, p99: float | None) -> list[str]:
    return [signed(score), numbers.change(mean), numbers.change(p99)]


def situations_table(rows: Sequence[Row]) -> str:
    """Return whom a policy admits first at low and at high load, beside fcfs and sjf."""
    tables = []
    for load in dict.fromkeys(row["load"] for row in rows):
        lines = [
            [
                row["request"],
                f"{row['num_prompt_tokens']:,}",
                numbers.number(row["wait"]),
                str(row["place"]),
                str(row["place_by_arrival"]),
                str(row["place_by_prompt"]),
            ]
            for row in rows
            if row["load"] == load
        ]
        heads = ["request", "prompt", "wait s", "place", "fcfs", "sjf"]
        tables.append(
            f"<div><h3>At {escape(load)} load</h3>"
            f"{plain_table(heads, lines, f'situations-{escape(load)}')}</div>"
        )
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


def _interval(row: Row) -> str:
    if row["low"] is None or row["high"] is None:
        return numbers.UNDEFINED
    return f"{row['low']:+.3f} to {row['high']:+.3f}"

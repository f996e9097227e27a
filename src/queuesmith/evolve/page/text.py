"""A run of evolution in sentences, and its diagnosis in the terminal."""

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from queuesmith import numbers
from queuesmith.evolve.diagnosis.suggestions import lost_cells, signed
from queuesmith.evolve.gates.measurements import standing_order
from queuesmith.evolve.page.figures import label
from queuesmith.report.text import plain

_COLORS = {"guard": "red", "lost": "yellow", "overfit": "yellow", "good": "green"}


def name_of(document: Mapping[str, Any]) -> str:
    """Return what the candidate of a document of a run is called."""
    champion = document["champion"]
    if not champion:
        return "nobody"
    if champion["candidate"] is None:
        return str(champion["name"])
    return f"champion (no. {champion['candidate']})"


def headline(document: Mapping[str, Any]) -> str:
    """Say in one sentence how the run went."""
    if not document["champion"]:
        return "The run has found nothing yet."
    subject = ("The " if document["champion"]["candidate"] is not None else "") + name_of(document)
    if document["judgement"]:
        return f"{subject}: {document['judgement'].get('verdict')}"
    parts = document["diagnosis"]["parts"] if document["diagnosis"] else {}
    part = next((name for name in ("validation", "tuning") if name in parts), None)
    if part is None:
        return f"{subject} has not been judged."
    row = parts[part]["leaderboard"][0]
    return (
        f"{subject} gains {signed(row['score'])} on {part} windows, guards broken: "
        f"{row['broken_guards']}; it has not been judged."
    )


def sentences(document: Mapping[str, Any]) -> list[str]:
    """Say what is most worth knowing: beside the classics, beside the control, over time."""
    found = []
    diagnosis = document["diagnosis"]
    for part, values in diagnosis["parts"].items() if diagnosis else ():
        mine, *others = values["leaderboard"]
        best = min(others, key=standing_order)
        found.append(
            f"On {part} windows it gains {signed(mine['score'])} "
            f"({signed(mine['low'])} to {signed(mine['high'])}), guards broken: "
            f"{mine['broken_guards']}; the best classic that breaks none, {label(best['policy'])}, "
            f"gains {signed(best['score'])}."
        )
    search, control = document["trend"]["search"], document["trend"]["control"]
    if search["last"] is not None and control["last"] is not None:
        found.append(
            f"In the last generation the search stands at {signed(search['last'])} on "
            f"tuning windows, {signed(search['last'] - search['two_thirds'])} of it from "
            "the last third of the generations; random search with as many evaluations stands at "
            f"{signed(control['last'])} (mean over {len(document['run']['seeds'])} seed(s))."
        )
    return found


def nearest_words(diagnosis: Mapping[str, Any]) -> str:
    """Say which classic is nearest, by what requests wait and by the order of pairs."""
    times = diagnosis["nearest"]["times"][0]
    order = diagnosis["nearest"]["agreement"][0]
    return (
        f"Nearest classic: by what requests wait {label(times['policy'])} (TTFTs differ by "
        f"{numbers.share(times['difference'])} of fcfs's mean), by the order of pairs "
        f"{label(order['policy'])} ({numbers.share(order['agreement'])} alike)."
    )


def print_diagnosis(document: Mapping[str, Any], console: Console) -> None:
    """Print a diagnosis: suggestions first, then totals, wins and losses."""
    for one in document["suggestions"]:
        color = _COLORS.get(one["kind"], "")
        console.print(Text(f"{one['kind']}: ", color).append(plain(one["text"]), "none"))
    console.print(Text(plain(nearest_words(document))))
    for part, values in document["parts"].items():
        console.print()
        console.print(_totals(part, values, document))
        lost = lost_cells(values)
        most = f", most on {_cell(lost[0])}" if lost else ""
        console.print(
            Text(
                f"Lost to a classic on {len(lost)} of {len(values['cells'])} windows x loads{most}"
            )
        )
    kinds = sorted(set(document["sources"].values()))
    console.print(Text(f"Traffic: {' and '.join(kinds)}; held-out windows were not opened."))


def _cell(row: Mapping[str, Any]) -> str:
    return plain(
        f"{row['source']} window {row['window']} at {row['load']}: {signed(row['score'])}, "
        f"{label(row['winners'][0])} {signed(row['best_classic'])}"
    )


def _totals(part: str, values: Mapping[str, Any], document: Mapping[str, Any]) -> Table:
    look: dict[str, Any] = {"box": box.SIMPLE_HEAD, "pad_edge": False, "show_edge": False}
    table = Table(title=f"{part} windows", title_justify="left", title_style="bold", **look)
    table.add_column("policy", overflow="fold")
    for head in ("gain", "guards broken", "wins"):
        table.add_column(head, justify="right", no_wrap=True)
    mine, *others = values["leaderboard"]
    for row in sorted([mine, *sorted(others, key=standing_order)[:6]], key=standing_order):
        own = row is mine
        name = document["policy"]["name"] if own else label(row["policy"])
        table.add_row(
            Text(plain(name), "bold green" if own else ""),
            signed(row["score"]),
            Text(str(row["broken_guards"]), "red" if row["broken_guards"] else ""),
            "" if own else numbers.number(values["wins"].get(row["policy"], 0.0)),
        )
    return table

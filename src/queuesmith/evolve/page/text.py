"""A run of evolution in sentences, and its diagnosis in the terminal."""

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from queuesmith import numbers
from queuesmith.evaluation.goals import MARGIN
from queuesmith.evolve.diagnosis.suggestions import lost_cells
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


def _subject(document: Mapping[str, Any]) -> str:
    article = "The " if document["champion"]["candidate"] is not None else ""
    return f"{article}{name_of(document)}"


def headline(document: Mapping[str, Any]) -> str:
    """Say in one sentence how the run went."""
    judgement, champion = document["judgement"], document["champion"]
    if not champion:
        return "The run has found nothing yet."
    if judgement:
        return f"{_subject(document)}: {judgement.get('verdict')}"
    row = _own_row(document, "validation") or _own_row(document, "tuning")
    if row is None:
        return f"{_subject(document)} has not been judged."
    part, standing = row
    broken = standing["broken_guards"]
    return (
        f"{_subject(document)} gains {_signed(standing['score'])} on {part} windows "
        f"{'and breaks no guard' if not broken else f'but breaks {broken} guard(s)'}; it has not "
        "been judged."
    )


def _own_row(document: Mapping[str, Any], part: str) -> tuple[str, Mapping[str, Any]] | None:
    diagnosis = document["diagnosis"]
    if not diagnosis or part not in diagnosis["parts"]:
        return None
    return part, diagnosis["parts"][part]["leaderboard"][0]


def sentences(document: Mapping[str, Any]) -> list[str]:
    """Say what is most worth knowing: beside the classics, beside the control, over time."""
    found = []
    diagnosis = document["diagnosis"]
    for part in diagnosis["parts"] if diagnosis else ():
        mine, *others = diagnosis["parts"][part]["leaderboard"]
        best = min(others, key=standing_order)
        text = (
            f"On {part} windows it gains {_signed(mine['score'])} ({_signed(mine['low'])} to "
            f"{_signed(mine['high'])}) and breaks {mine['broken_guards']} guard(s); the best "
            f"classic that breaks none, {label(best['policy'])}, gains {_signed(best['score'])}"
        )
        found.append(f"{text}.")
    trend = document["trend"]
    search, control = trend["search"], trend["control"]
    if search["last"] is not None and control["last"] is not None:
        found.append(
            f"In the last generation the search stands at {_signed(search['last'])} on tuning "
            f"windows and random search with as many evaluations at {_signed(control['last'])} "
            f"(mean over {len(document['run']['seeds'])} seed(s)). {_rising(search)}"
        )
    return found


def _rising(search: Mapping[str, float]) -> str:
    gain = search["last"] - search["two_thirds"]
    if gain > MARGIN:
        return (
            f"The last third of the generations added {_signed(gain)}: it was still rising, so "
            "more generations may help."
        )
    return (
        f"The last third of the generations added {_signed(gain)}: more of the same would add "
        "little."
    )


def nearest_words(diagnosis: Mapping[str, Any]) -> str:
    """Say which classic is nearest, by what requests wait and by the order of pairs."""
    times = diagnosis["nearest"]["times"][0]
    order = diagnosis["nearest"]["agreement"][0]
    return (
        f"Nearest classic: by what requests wait {label(times['policy'])} (TTFTs differ by "
        f"{numbers.share(times['difference'])} of fcfs's mean), by the order of pairs "
        f"{label(order['policy'])} ({numbers.share(order['agreement'])} alike)."
    )


def suggestions(diagnosis: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return what a diagnosis suggests; "good" gives way where another policy leads a leaderboard.

    No classic may be better by more than the margin in any one configuration, and one of them still
    be better over all of them together.
    """
    leaders = []
    for part, values in diagnosis["parts"].items():
        mine, *others = values["leaderboard"]
        best = min(others, key=standing_order)
        ahead = standing_order(best) < standing_order(mine)
        if ahead and _signed(best["score"]) != _signed(mine["score"]):
            leaders.append(
                f"{label(best['policy'])} leads on {part} windows with {_signed(best['score'])} "
                f"against {_signed(mine['score'])}"
            )
    if not leaders:
        return list(diagnosis["suggestions"])
    text = f"Over all configurations together {'; '.join(leaders)}."
    return [
        {"kind": "lost", "text": text} if one["kind"] == "good" else one
        for one in diagnosis["suggestions"]
    ]


def print_diagnosis(document: Mapping[str, Any], console: Console) -> None:
    """Print a diagnosis: suggestions first, then totals, wins and losses.

    Parameters
    ----------
    document : mapping
        Of schema ``queuesmith.diagnosis/1``.
    """
    for one in suggestions(document):
        color = _COLORS.get(one["kind"], "")
        console.print(Text(f"{one['kind']}: ", color).append(plain(one["text"]), "none"))
    console.print(Text(plain(nearest_words(document))))
    for part, values in document["parts"].items():
        console.print()
        console.print(_totals(part, values, document))
        lost = lost_cells(values)
        console.print(
            Text(
                f"Lost to a classic on {len(lost)} of {len(values['cells'])} windows x loads"
                + (f", most on {_cell(lost[0])}" if lost else "")
            )
        )
    kinds = sorted(set(document["sources"].values()))
    console.print(Text(f"Traffic: {' and '.join(kinds)}; held-out windows were not opened."))


def _cell(row: Mapping[str, Any]) -> str:
    winner = label(row["winners"][0])
    return plain(
        f"{row['source']} window {row['window']} at {row['load']}: {_signed(row['score'])}, "
        f"{winner} {_signed(row['best_classic'])}"
    )


def _totals(part: str, values: Mapping[str, Any], document: Mapping[str, Any]) -> Table:
    table = Table(
        title=f"{part} windows",
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
    )
    table.add_column("policy", overflow="fold")
    for head in ("gain", "guards broken", "wins"):
        table.add_column(head, justify="right", no_wrap=True)
    mine, *others = values["leaderboard"]
    rows = sorted([mine, *sorted(others, key=standing_order)[:6]], key=standing_order)
    for row in rows:
        own = row is mine
        name = document["policy"]["name"] if own else label(row["policy"])
        wins = "" if own else numbers.number(values["wins"].get(row["policy"], 0.0))
        table.add_row(
            Text(plain(name), "bold green" if own else ""),
            _signed(row["score"]),
            Text(str(row["broken_guards"]), "red" if row["broken_guards"] else ""),
            wins,
        )
    return table


def _signed(value: float | None) -> str:
    return numbers.UNDEFINED if value is None else f"{value:+.3f}"

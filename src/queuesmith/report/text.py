"""A comparison in the terminal: the answer, where it comes from, and two tables."""

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from queuesmith import numbers

#: From this many columns on, changes are shown with their intervals, and tails with reasons.
WIDE = 96
#: From this many columns on, there is room for TPOT and E2EL.
WIDEST = 116


def print_comparison(document: Mapping[str, Any], console: Console) -> None:
    """Print the answer, the origin, the leaderboard and the table of loads.

    Parameters
    ----------
    document : mapping
        What ``queuesmith compare --json`` prints.
    console : rich.console.Console
        Where to print; without a terminal it prints plain text. Below 96 columns the tables
        leave out intervals and reasons.
    """
    console.print(_answer(document))
    console.print(_origin(document))
    console.print()
    console.print(_leaderboard(document, console.width))
    console.print()
    console.print(_loads(document, console.width))
    for warning in document["warnings"]:
        console.print(Text("warning: ", "yellow").append(plain(warning), "none"))


def plain(text: object) -> str:
    """Return text without characters that could steer a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(text))


def _answer(document: Mapping[str, Any]) -> Text:
    sentences = [plain(sentence) for sentence in document["answer"]["sentences"]]
    answer = Text(sentences[0] if sentences else "No policy can be named.", "bold")
    for sentence in sentences[1:]:
        answer.append(f"\n{sentence}", "not bold")
    return answer


def _origin(document: Mapping[str, Any]) -> Text:
    origin, config = document["origin"], document["config"]
    color = "green" if origin["kind"] == "real" else "yellow"
    line = Text(plain(origin["kind"]), f"bold {color}")
    parts = [f" traffic: {plain(origin['source'])}, {origin['num_requests']:,} requests"]
    dropped = sum(origin["dropped"].values())
    if dropped:
        parts.append(f" ({dropped:,} left out)")
    parts.append(f"; engine: {plain(config['preset'])} ({plain(config['provenance'])})")
    if config.get("router"):  # documents of older versions do not say
        parts.append(f"; {config['replicas']} replicas, router {plain(config['router'])}")
    if config.get("closed_loop"):
        parts.append("; later turns wait for answers")
    limits = [f"{name} {limit:g} s" for name, limit in (config["slo"] or {}).items() if limit]
    loads = ", ".join(f"{load['name']} {_number(load['rho'])}" for load in config["loads"])
    parts.append(
        f"; {config['num_windows']} windows of {config['window_len']:,}; loads {plain(loads)}; "
        f"SLO {', '.join(limits) or 'none'}; seed {config['seed']}. "
        f"{plain(config['output_length'])}"
    )
    return line.append("".join(parts), "none")


def _number(value: float | None) -> str:
    return numbers.UNDEFINED if value is None else f"{value:g}"


def _leaderboard(document: Mapping[str, Any], width: int) -> Table:
    table = _table(
        f"Leaderboard (score: {plain(document['config']['reference'])} = 0, higher is better)"
    )
    table.add_column("#", justify="right", no_wrap=True)
    table.add_column("policy", overflow="fold")
    table.add_column("score", justify="right", no_wrap=True)
    table.add_column("95 % interval", justify="right", no_wrap=True)
    table.add_column("won-tied-lost", justify="right", no_wrap=True)
    table.add_column("tail violations", overflow="fold")
    for row in document["leaderboard"]:
        name = Text(plain(row["policy"]))
        if row["policy"] == document["answer"]["policy"]:
            name.stylize("bold green")
        if row["kind"] != "policy":
            name.append(f" [{plain(row['kind'])}]", "dim")
        interval = ""
        if row["score_low"] is not None and row["score_high"] is not None:
            interval = f"{numbers.score(row['score_low'])} to {numbers.score(row['score_high'])}"
        tail = Text(numbers.count(row["tail_violations"]), "red" if row["tail_violations"] else "")
        if row["tail_reasons"]:
            more = len(row["tail_reasons"]) - 1
            reason = plain(row["tail_reasons"][0]) + (f" (+{more} more)" if more else "")
            if width >= WIDE:
                tail.append(f": {reason}", "none")
        table.add_row(
            numbers.count(row["rank"]),
            name,
            numbers.score(row["score"]),
            interval,
            "-".join(numbers.count(row[key]) for key in ("wins", "ties", "losses")),
            tail,
        )
    return table


def _loads(document: Mapping[str, Any], width: int) -> Table:
    reference = plain(document["config"]["reference"])
    table = _table(f"TTFT by load (left: change against {reference}; right: seconds)")
    table.add_column("load / policy", overflow="fold", min_width=12)
    with_slo = any(row["slo_attainment"] is not None for row in document["loads"])
    headings = ["mean", "p99", "mean s", "p99 s"]
    headings += ["TPOT ms", "E2EL s"] if width >= WIDEST else []
    for heading in headings + (["SLO met"] if with_slo else []):
        table.add_column(heading, justify="right", no_wrap=True)
    ranks = {row["policy"]: place for place, row in enumerate(document["leaderboard"])}
    for load in document["config"]["loads"]:
        label = plain(load["name"])
        if load["rho"] is not None:
            label += f" (rho {load['rho']:g})"
        table.add_row(Text(label, "bold"))
        rows = [row for row in document["loads"] if row["load"] == load["name"]]
        rows.sort(key=lambda row: ranks.get(row["policy"], len(ranks)))
        for place, row in enumerate(rows):
            same = row["policy"] == document["config"]["reference"]
            cells: list[str | Text] = [
                numbers.UNDEFINED if same else _change(row, "mean_change", width >= WIDE),
                numbers.UNDEFINED if same else _change(row, "p99_change", width >= WIDE),
                numbers.number(row["ttft_mean"]),
                numbers.number(row["ttft_p99"]),
            ]
            if width >= WIDEST:
                cells.append(numbers.number(row["tpot_mean"], 1000))
                cells.append(numbers.number(row["e2el_mean"]))
            if with_slo:
                cells.append(numbers.share(row["slo_attainment"]))
            name = Text("  " + plain(row["policy"]))
            table.add_row(name, *cells, end_section=place == len(rows) - 1)
    return table


def _change(row: Mapping[str, Any], name: str, wide: bool) -> Text:
    """Return a change with its interval, green or red where the interval excludes none."""
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    color = ""
    if high is not None and high < 0:
        color = "green"
    elif low is not None and low > 0:
        color = "red"
    text = Text(numbers.change(row[name]), color)
    if wide and low is not None and high is not None:
        low_text, high_text = (numbers.change(end).removesuffix(" %") for end in (low, high))
        text.append(f" [{low_text}, {high_text}]", "dim")
    return text


def _table(title: str) -> Table:
    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
        padding=(0, 1),
    )

"""A plan: a terminal table, and one HTML file that opens offline.

:func:`write_plan` and :func:`print_plan` take the document that ``queuesmith plan --json`` prints,
and show only numbers that are in it.
"""

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from queuesmith import numbers
from queuesmith.report.frame import (
    KIND_NOTES,
    command_block,
    draw,
    fact_list,
    figure_cards,
    points,
    prose,
    render_page,
    warning_box,
    write_page,
)
from queuesmith.report.parts import Style, policy_styles
from queuesmith.report.plan_figures import MISSES, build_plan_figures, rows_of
from queuesmith.report.tables import Cell, policy_name, settings_table, table
from queuesmith.report.text import plain

VERDICTS = {"more": "good", "less": "bad", "same": "", "unsure": ""}
COLORS = {"more": "green", "less": "red", "same": "", "unsure": ""}
#: From this many columns on there is room for why requests miss.
WIDE = 110


def heads(document: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the headings of `cells`, after the policy's."""
    reference = document["config"]["reference"]
    return (
        *("requests/s", "95 % interval", "rho", "x as it is"),
        *(f"x {reference}", "95 % interval", "verdict"),
        *("guards broken", "longest TTFT s", "misses by"),
    )


def cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return one policy's line of the table, as text; * marks more than the engine finishes."""
    none = numbers.UNDEFINED
    rate, rho, multiple = (numbers.number(row[name]) for name in ("rate", "rho", "multiple"))
    if row["state"] == "above":
        rate = f">{numbers.number(row['held'])}"
    elif row["state"] != "found":
        rate, rho, multiple = "at no rate", none, none
    if row["at_held"] and row["held"] > row["carried"]:
        rate = f"*{rate}"
    ratio = none if row["ratio"] is None else f"{row['ratio']:.2f}"
    return (
        rate,
        _ends(row, "rate", numbers.number) if row["state"] != "above" else "",
        rho,
        multiple,
        ratio,
        _ends(row, "ratio", lambda value: f"{value:.2f}"),
        row["verdict"],
        none if row["broken"] is None else ", ".join(_guards(row)) or "0",
        numbers.number((row["at_held"] or {}).get("ttft_max")),
        misses_by(row),
    )


def _guards(row: Mapping[str, Any]) -> list[str]:
    """Return the guards that are broken, each once."""
    return list(dict.fromkeys(one["guard"] for one in row["broken"]))


def _ends(row: Mapping[str, Any], name: str, form: Any) -> str:
    """Return an interval; an upper end beyond the search is open."""
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    if low is None:
        return ""
    return f"{form(low)} to {form(high) if high is not None else 'more'}"


def misses_by(row: Mapping[str, Any]) -> str:
    """Say beyond which limits the requests are that miss just above the capacity."""
    edge = row["idle"] if row["state"] == "unreachable" else row["at_broke"]
    if edge is None:
        return numbers.UNDEFINED
    missed = edge["num_requests"] - edge["met"]
    shares = [(edge[key] / missed, label) for key, (label, _) in MISSES.items() if edge[key]]
    shares.sort(reverse=True)
    return ", ".join(f"{label} {numbers.share(share)}" for share, label in shares)


def print_plan(document: Mapping[str, Any], console: Console) -> None:
    """Print the answer, the origin, and a table per engine."""
    first, *more = document["answer"]["sentences"]
    for sentence in document["answer"]["traffic"]:
        console.print(Text(plain(sentence)))
    console.print(Text(plain(first), "bold"))
    for sentence in more:
        console.print(Text(plain(sentence)))
    console.print(Text(plain(_origin(document))))
    for engine in document["config"]["engines"]:
        console.print()
        console.print(_table(document, engine, console.width))
    for warning in document["warnings"]:
        console.print(Text("warning: ", "yellow").append(plain(warning), "none"))


def _origin(document: Mapping[str, Any]) -> str:
    origin, config = document["origin"], document["config"]
    engines = ", ".join(f"{one['name']} ({one['provenance']})" for one in config["engines"])
    return (
        f"{origin['kind']} traffic: {origin['source']}, {origin['num_requests']:,} requests; "
        f"engine: {engines}; {config['num_windows']} windows of {config['window_len']:,}; SLO "
        f"{slo_text(config)}; seed {config['seed']}. {config['output_length']}"
    )


def slo_text(config: Mapping[str, Any]) -> str:
    """Return the limits, and how many requests must meet them."""
    limits = [f"{name} {limit:g} s" for name, limit in config["slo"].items() if limit]
    return f"{', '.join(limits)} for {numbers.share(config['attainment'])} of requests"


def _table(document: Mapping[str, Any], engine: Mapping[str, Any], width: int) -> Table:
    table = Table(
        title=plain(
            f"{engine['name']}: capacity (traffic as it is {numbers.number(engine['rate'])}, "
            f"engine finishes {numbers.number(engine['carried'])} requests/s)"
        ),
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
        padding=(0, 1),
    )
    table.add_column("policy", overflow="fold", min_width=8)
    shown = list(range(len(heads(document)))) if width >= WIDE else [0, 1, 4, 5, 7]
    for place in shown:
        table.add_column(
            plain(heads(document)[place]), justify="right", no_wrap=place < 7 or place == 8
        )
    best = document["answer"]["policies"][engine["name"]]
    for row in rows_of(document, "capacities", engine["name"]):
        name = Text(plain(row["policy"]), "bold green" if row["policy"] == best else "")
        if row["kind"] != "policy":
            name.append(f" [{row['kind']}]", "dim")
        texts = cells(row)
        if row["policy"] == document["config"]["reference"]:
            texts = (*texts[:4], *[numbers.UNDEFINED] * 3, *texts[7:])
        line = [Text(plain(texts[place]), _color(row, place)) for place in shown]
        table.add_row(name, *line)
    return table


def _color(row: Mapping[str, Any], place: int) -> str:
    if place == 7:
        return "red" if row["broken"] else ""
    return COLORS[row["verdict"]] if place in (4, 6) else ""


def write_plan(document: Mapping[str, Any], path: Path) -> None:
    """Write the report as one HTML file that needs nothing else."""
    write_page(render_plan(document), path)


def render_plan(document: Mapping[str, Any]) -> str:
    """Return the report as text; equal arguments give equal bytes."""
    config, origin = document["config"], document["origin"]
    answer, styles = looks(document)
    figures = build_plan_figures(document, styles)
    sentences = document["answer"]["sentences"]
    command = config.get("command", "")
    settings = {name: value for name, value in config.items() if name != "command"}
    return render_page(
        "plan",
        subject=origin["source"],
        verb="plan",
        source=escape(origin["source"]),
        kind=escape(origin["kind"]),
        kind_note=KIND_NOTES.get(origin["kind"], ""),
        answer=prose(sentences[0]),
        more=points([*document["answer"]["traffic"], *sentences[1:]]),
        facts=_facts(document),
        warnings=warning_box(document["warnings"]),
        reference=escape(config["reference"]),
        target=numbers.share(config["attainment"]).replace(" ", "&nbsp;"),
        tables="".join(_engine_table(document, engine, styles) for engine in config["engines"]),
        figures=figure_cards(figures),
        settings=settings_table({"trace": origin, **settings}),
        command=command_block(command),
        version=document["version"],
        data=document,
        # No reference, so that its misses can be chosen too.
        drawing=draw(figures, styles, answer=answer),
    )


def looks(document: Mapping[str, Any]) -> tuple[str, list[Style]]:
    """Return the policy to run on the first engine that has one, and how all of them look."""
    config = document["config"]
    chosen = [name for name in document["answer"]["policies"].values() if name is not None]
    answer = chosen[0] if chosen else config["reference"]
    rows = rows_of(document, "capacities", config["engines"][0]["name"])
    kinds = {row["policy"]: row["kind"] for row in rows}
    kinds |= {name: "policy" for name in config["policies"] if name not in kinds}
    return answer, policy_styles(kinds, config["reference"], answer)


def _engine_table(
    document: Mapping[str, Any], engine: Mapping[str, Any], styles: list[Style]
) -> str:
    by_policy = {style.policy: style for style in styles}
    rows = []
    for row in rows_of(document, "capacities", engine["name"]):
        line: list[str | Cell] = list(cells(row))
        if row["policy"] == document["config"]["reference"]:
            line[4:7] = [numbers.UNDEFINED] * 3
        line[6] = Cell(str(line[6]), css=VERDICTS[row["verdict"]])
        line[7] = Cell(str(line[7]), css="bad" if row["broken"] else "")
        named = policy_name(by_policy[row["policy"]], row["kind"])
        summary = f'<span class="summary">{prose(row["summary"])}</span>'
        rows.append((Cell(html=named + summary), *line))
    return (
        f"<h3>{escape(engine['name'])}</h3><p>The traffic as it is brings "
        f"{numbers.number(engine['rate'])} requests/s; the engine finishes "
        f"{numbers.number(engine['carried'])} when there is always work. Step times: "
        f"{escape(engine['provenance'])}.</p>{table(('policy', *heads(document)), rows)}"
    )


def _facts(document: Mapping[str, Any]) -> str:
    origin, config = document["origin"], document["config"]
    facts = {
        "Traffic": f"{origin['source']} ({origin['kind']}; {origin['reader']})",
        "Requests": f"{origin['num_requests']:,}",
        "Notes on the trace": "; ".join(origin["notes"]),
        "Engine": ", ".join(engine["name"] for engine in config["engines"]),
        "SLO": slo_text(config),
        "Measured on": f"{config['num_windows']} windows of {config['window_len']:,} requests",
        "Known of output length": config["output_length"],
        "Policies": f"{len(config['policies'])}, against {config['reference']}",
        "Seed": str(config["seed"]),
        "SHA-256": origin["sha256"][:16] + "…" if origin["sha256"] else "",
    }
    return fact_list(facts)

"""A check: a terminal table, and one HTML file that opens offline.

Both take the document that ``queuesmith check --json`` prints; the figures also draw single
requests, which lie beside it as requests.parquet.
"""

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
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
from queuesmith.report.parts import COLORS, HOVER_NAME, REFERENCE_COLOR, Figure
from queuesmith.report.tables import settings_table, table
from queuesmith.report.text import plain
from queuesmith.stats import quantiles

LABELS = {"ttft": "TTFT", "tpot": "TPOT", "e2el": "E2EL", "queued_time": "queued"}
HEADS = ("seconds", "requests", "measured", "simulated", "error", "95 % interval")
#: Points of a cloud; more would only make the page large.
MAX_POINTS = 2000
NUM_QUANTILES = 200
#: Not only powers of ten are named, for TPOT seldom spans one.
_AXIS = {"type": "log", "tickformat": "~g"}


def table_rows(document: Mapping[str, Any], load: str) -> list[tuple[str, ...]]:
    """Return one line per latency and statistic at a load, as text under `HEADS`."""
    return [
        (
            f"{LABELS[row['latency']]} {row['statistic']}",
            numbers.count(row["num_requests"]),
            numbers.number(row["measured"]),
            numbers.number(row["simulated"]),
            numbers.change(row["error"]),
            numbers.interval(row["low"], row["high"]),
        )
        for row in document["errors"]
        if row["load"] == load
    ]


def load_title(load: Mapping[str, Any]) -> str:
    """Say which requests a table is about."""
    requests = f"{load['num_requests']:,} request{'s' * (load['num_requests'] != 1)}"
    rates = [numbers.number(load[name]) for name in ("rate_low", "rate_high")]
    known = [rate for rate in dict.fromkeys(rates) if rate != numbers.UNDEFINED]
    name = "the whole log" if load["load"] == "all" else f"{load['load']} load"
    if not known:
        return f"{name}: {requests}"
    return f"{name}: {requests} at {' to '.join(known)} requests/s"


def print_check(document: Mapping[str, Any], console: Console) -> None:
    """Print the verdict, a table per load, what to do and what the log cannot tell."""
    first, *more = document["answer"]["sentences"]
    console.print(Text(plain(first), "bold"))
    for sentence in more:
        console.print(Text(plain(sentence)))
    for item in document["advice"]:
        console.print(Text("advice: ", "cyan").append(plain(item["text"]), "none"))
    console.print(Text(plain(_origin(document))))
    console.print()
    whole, *loads = document["loads"]
    console.print(_terminal_table(load_title(whole), table_rows(document, whole["load"])))
    if loads:
        rows = []
        for load in loads:
            rows.append((f"{load['load']} load", *[""] * (len(HEADS) - 1)))
            rows += [
                (f"  {cells[0]}", *cells[1:])
                for cells in table_rows(document, load["load"])
                if cells[0].endswith(" mean")
            ]
        console.print()
        rates = ", ".join(
            f"{numbers.number(load['rate_low'])} to {numbers.number(load['rate_high'])}"
            for load in loads
        )
        console.print(_terminal_table(f"thirds of the log: {rates} requests/s", rows))
    for warning in document["warnings"]:
        console.print(Text("warning: ", "yellow").append(plain(warning), "none"))


def _terminal_table(title: str, rows: list[tuple[str, ...]]) -> Table:
    table = Table(
        title=plain(title),
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
        padding=(0, 1),
    )
    for name in HEADS:
        table.add_column(
            plain(name),
            justify="left" if name == HEADS[0] else "right",
            overflow="fold",
            no_wrap=name != HEADS[0],
        )
    for cells in rows:
        table.add_row(*map(plain, cells))
    return table


def _origin(document: Mapping[str, Any]) -> str:
    config = document["config"]
    return (
        f"{_kind(document)} traffic: {_source(document)}, "
        f"{document['loads'][0]['num_requests']:,} requests; policy {config['policy']}; engine: "
        f"{config['preset']} ({config['provenance']}); intervals over {config['num_units']} "
        f"units, each a {config['unit']}; seed {config['seed']}"
    )


def _kind(document: Mapping[str, Any]) -> str:
    kinds = {log["kind"] for log in document["logs"]}
    return "modelled" if "modelled" in kinds else "real"


def _source(document: Mapping[str, Any]) -> str:
    logs = document["logs"]
    more = f" and {len(logs) - 1} more" if len(logs) > 1 else ""
    return f"{logs[0]['source']}{more}"


def write_check(document: Mapping[str, Any], requests: pa.Table, path: Path) -> None:
    """Write the report as one HTML file that needs nothing else."""
    write_page(render_check(document, requests), path)


def render_check(document: Mapping[str, Any], requests: pa.Table) -> str:
    """Return the report as text; equal arguments give equal bytes."""
    config = document["config"]
    figures = build_check_figures(document, requests)
    first, *more = document["answer"]["sentences"]
    advice = points(item["text"] for item in document["advice"])
    settings = {name: value for name, value in config.items() if name != "command"}
    command = config.get("command", "")
    return render_page(
        "check",
        subject=_source(document),
        verb="check",
        source=escape(_source(document)),
        kind=_kind(document),
        kind_note=KIND_NOTES[_kind(document)],
        answer=prose(first),
        more=points(more),
        facts=_facts(document),
        warnings=warning_box(document["warnings"]),
        advice=advice or "<p>Nothing stands out.</p>",
        unit=escape(config["unit"]),
        num_units=config["num_units"],
        whole=table(HEADS, table_rows(document, "all")),
        whole_title=escape(load_title(document["loads"][0])),
        loads=_loads(document),
        figures=figure_cards(figures),
        settings=settings_table({"logs": document["logs"], **settings}),
        command=command_block(command),
        version=document["version"],
        data=document,
        drawing=draw(figures),
    )


def build_check_figures(document: Mapping[str, Any], requests: pa.Table) -> list[Figure]:
    """Draw both distributions of each latency, and every request as a point."""
    distributions, clouds = [], []
    drawn = total = 0
    for name in dict.fromkeys(row["latency"] for row in document["errors"]):
        sides = [
            requests[f"{side}_{name}"].to_numpy(zero_copy_only=False)
            for side in ("measured", "simulated")
        ]
        both = ~np.isnan(sides[0]) & ~np.isnan(sides[1])
        measured, simulated = (side[both] for side in sides)
        if not len(measured):
            continue
        levels = np.linspace(0, 1, min(len(measured), NUM_QUANTILES))
        title = f"{LABELS[name]} (s), logarithmic"
        lines = [
            {
                "type": "scatter",
                "mode": "lines",
                "name": label,
                "x": numbers.compact(quantiles(values, levels.tolist()), 4),
                "y": numbers.compact(levels, 4),
                "line": {"color": color, "dash": dash, "width": 2},
                "hovertemplate": "%{y:.1%} within %{x:.3g} s" + HOVER_NAME,
            }
            for label, values, color, dash in (
                ("measured", measured, REFERENCE_COLOR, "solid"),
                ("simulated", simulated, COLORS[0], "dash"),
            )
        ]
        distributions.append(
            {
                "data": lines,
                "layout": {
                    "title": {"text": LABELS[name]},
                    "showlegend": True,
                    "legend": {"orientation": "h", "y": -0.25},
                    "xaxis": {"title": {"text": title}, **_AXIS},
                    "yaxis": {
                        "title": {"text": "share of requests"},
                        "tickformat": ".0%",
                        "range": [0, 1.01],
                    },
                },
            }
        )
        positive = np.flatnonzero((measured > 0) & (simulated > 0))
        total = max(total, len(positive))
        if len(positive) > MAX_POINTS:
            rng = np.random.default_rng(0)
            positive = np.sort(rng.choice(positive, MAX_POINTS, replace=False))
        drawn = max(drawn, len(positive))
        if not len(positive):
            continue
        pair = np.concatenate([measured[positive], simulated[positive]])
        ends = [float(pair.min()), float(pair.max())]
        clouds.append(
            {
                "data": [
                    {
                        "type": "scatter",
                        "mode": "markers",
                        "name": LABELS[name],
                        "x": numbers.compact(measured[positive], 3),
                        "y": numbers.compact(simulated[positive], 3),
                        "marker": {"size": 5, "opacity": 0.5, "color": COLORS[0]},
                        "hovertemplate": "measured %{x:.3g} s, simulated %{y:.3g} s" + HOVER_NAME,
                    },
                    {
                        "type": "scatter",
                        "mode": "lines",
                        "name": "as measured",
                        "x": ends,
                        "y": ends,
                        "line": {"color": REFERENCE_COLOR, "width": 1, "dash": "dot"},
                        "hoverinfo": "skip",
                    },
                ],
                "layout": {
                    "title": {"text": LABELS[name]},
                    "xaxis": {"title": {"text": f"measured {title}"}, **_AXIS},
                    "yaxis": {"title": {"text": f"simulated {title}"}, **_AXIS},
                },
            }
        )
    shown = "" if drawn == total else f" {drawn:,} of {total:,} requests are drawn."
    return [
        Figure(
            name="check-distributions",
            title="How long requests took",
            caption="Where the dashed line lies left of the solid one, the simulation is too fast.",
            panels=distributions,
        ),
        Figure(
            name="check-requests",
            title="Request by request",
            caption="On the dotted line a request took as long as simulated. A cloud beside the "
            "line is an engine that is too fast or too slow; a wide cloud is work that the log "
            f"does not hold, or another order.{shown}",
            panels=clouds,
        ),
    ]


def _facts(document: Mapping[str, Any]) -> str:
    config, scale = document["config"], document["scale"]
    readers = ", ".join(dict.fromkeys(log["reader"] for log in document["logs"]))
    facts = {
        "Log": f"{_source(document)} ({_kind(document)}; {readers})",
        "Requests": f"{document['loads'][0]['num_requests']:,}",
        "Engine": f"{config['preset']} ({config['provenance']})",
        "Policy": config["policy"],
        "Step time that would fit": ""
        if scale is None
        else f"{scale['factor']:.2f} times the engine's, by {LABELS[scale['latency']]}",
        "Units": f"{config['num_units']}, each a {config['unit']}",
        "Seed": str(config["seed"]),
    }
    return fact_list(facts)


def _loads(document: Mapping[str, Any]) -> str:
    if len(document["loads"]) == 1:
        return "<p>The log is too short, or its rate too even, to be split by load.</p>"
    return "".join(
        f"<h3>{escape(load_title(load))}</h3>{table(HEADS, table_rows(document, load['load']))}"
        for load in document["loads"][1:]
    )

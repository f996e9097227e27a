"""An A/B measurement: a terminal table, and one HTML file that opens offline."""

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from queuesmith import numbers
from queuesmith.evaluation.samples import Samples
from queuesmith.report.figures import request_by_request, ttft_distribution
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
from queuesmith.report.parts import policy_styles
from queuesmith.report.tables import settings_table, table

VERDICTS = {
    "better": "serves the first token sooner than",
    "worse": "serves the first token later than",
    "same": "is as good as",
    "unsure": "differs from",
    "withheld": "cannot be judged against",
}
#: Longest name of a policy that leaves room for the other columns in a terminal of 80.
_MOST_LETTERS = 6
COLORS = {"better": "green", "worse": "red", "withheld": "yellow"}


def sentences(row: Mapping[str, Any], candidate: str) -> list[str]:
    """Say what was found at one load: the verdict first, then what to know about it."""
    verdict = f"{row['load']}: {candidate} {VERDICTS[row['verdict']]} stock vLLM"
    if row["mean_change"] is not None:
        verdict += (
            f" (mean TTFT {numbers.change(row['mean_change'])}, "
            f"p99 {numbers.change(row['p99_change'])})"
        )
    if row["verdict"] == "unsure":
        verdict += ", and it may be chance"
    found = [f"{verdict}."]
    if row["reason"]:
        found.append(f"{row['load']}: {row['reason']}.")
    simulated = [
        f"{name} {numbers.number(arm['simulated_ttft_mean'])} s "
        f"(measured {numbers.number(arm['ttft_mean'])} s)"
        for name, arm in row["arms"].items()
        if arm["simulated_ttft_mean"] is not None
    ]
    if simulated:
        found.append(f"{row['load']}: mean TTFT as simulated: {', '.join(simulated)}.")
    return found


def table_rows(document: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the table: a line per load, window and repeat, as text.

    Columns: load, window, repeat; mean TTFT of both arms and its change; the same of p99; ms per
    step of both arms; requests that failed.
    """
    stock, ours = document["config"]["reference"], document["config"]["candidate"]
    rows = []
    for run in document["runs"]:
        arms = [run["arms"].get(name) or {} for name in (stock, ours)]
        failed = sum(arm.get("num_failed", 0) for arm in arms)
        rows.append(
            (
                run["load"],
                str(run["window"]),
                str(run["repeat"]),
                *(numbers.number(arm.get("ttft_mean")) for arm in arms),
                numbers.change(run["mean_change"]),
                *(numbers.number(arm.get("ttft_p99")) for arm in arms),
                numbers.change(run["p99_change"]),
                *(numbers.number(arm.get("ms_per_step")) for arm in arms),
                numbers.count(failed),
            )
        )
    return rows


def heads(document: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the headings of `table_rows`."""
    ours = document["config"]["candidate"]
    return (
        *("load", "window", "repeat"),
        *("mean s, stock", f"mean s, {ours}", "change"),
        *("p99 s, stock", f"p99 s, {ours}", "change"),
        *("ms/step, stock", f"ms/step, {ours}", "failed"),
    )


def print_ab(document: Mapping[str, Any], console: Console) -> None:
    """Print the verdicts, the table and what speaks against them."""
    for row in document["loads"]:
        verdict, *more = sentences(row, document["config"]["candidate"])
        console.print(Text(plain(verdict), f"bold {COLORS.get(row['verdict'], '')}".strip()))
        for sentence in more:
            console.print(Text(plain(sentence)))
    config, origin = document["config"], document["origin"]
    console.print(
        Text(
            f"{origin['kind']} traffic: {plain(origin['source'])}; measured on "
            f"{plain(config['where'])}; {_windows(config)}, {_repeats(config)}; "
            f"seed {config['seed']}"
        )
    )
    console.print()
    console.print(_terminal_table(document))
    for warning in document["warnings"]:
        console.print(Text("warning: ", "yellow").append(plain(warning), "none"))


def _terminal_table(document: Mapping[str, Any]) -> Table:
    """Return the table for 80 columns: a long name is shortened, no failures are no column."""
    ours = document["config"]["candidate"]
    arm = plain(ours) if len(ours) <= _MOST_LETTERS else "policy"
    rows = table_rows(document)
    end = None if any(cells[-1] != numbers.count(0) for cells in rows) else -1
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 0, 0, 1))
    table.add_column("window-\nrepeat", no_wrap=True)
    for name in heads(document)[3:end]:
        what, _, of = name.replace("ms/step", "ms").partition(", ")
        second = of if of in ("", "stock") else arm
        table.add_column(f"{what}\n{second}".rstrip(), justify="right", no_wrap=True)
    load = None
    for cells in rows:
        if cells[0] != load:
            load = cells[0]
            table.add_row(Text(plain(load), "bold"))
        table.add_row(f"  {cells[1]}-{cells[2]}", *map(plain, cells[3:end]))
    return table


def _windows(config: Mapping[str, Any]) -> str:
    num_windows = config["num_windows"]
    return f"{num_windows} window{'s' * (num_windows != 1)} of {config['window_len']:,}"


def _repeats(config: Mapping[str, Any]) -> str:
    return f"{config['repeats']} repeat{'s' * (config['repeats'] != 1)}"


def write_ab(
    document: Mapping[str, Any], samples: Mapping[tuple[str, str], Samples], path: Path
) -> None:
    """Write the report as one HTML file that needs nothing else."""
    write_page(render_ab(document, samples), path)


def render_ab(document: Mapping[str, Any], samples: Mapping[tuple[str, str], Samples]) -> str:
    """Return the report as text; equal arguments give equal bytes."""
    config, origin = document["config"], document["origin"]
    reference, candidate = config["reference"], config["candidate"]
    styles = policy_styles({reference: "policy", candidate: "policy"}, reference, candidate)
    loads = {
        load["name"]: load["name"] + ("" if load["rho"] is None else f" (rho {load['rho']:g})")
        for load in config["loads"]
    }
    figures = []
    if samples:
        figures = [
            ttft_distribution(samples, list(loads), styles),
            request_by_request(samples, list(loads), styles, reference),
        ]
    found = [
        sentence for row in document["loads"] for sentence in sentences(row, config["candidate"])
    ]
    drawing = draw(
        figures,
        styles,
        loads,
        reference=reference,
        answer=candidate,
        load=list(loads)[-1],
        all_shown=True,
    )
    settings = {name: value for name, value in config.items() if name != "command"}
    return render_page(
        "ab",
        subject=origin["source"],
        verb="ab",
        source=escape(origin["source"]),
        kind=escape(origin["kind"]),
        kind_note=KIND_NOTES.get(origin["kind"], ""),
        answer=prose(found[0]),
        more=points(found[1:]),
        facts=_facts(document),
        warnings=warning_box(document["warnings"]),
        loads=table(*_load_table(document)),
        runs=table(heads(document), table_rows(document)),
        figures=figure_cards(figures),
        settings=settings_table({"trace": origin, **settings}),
        command=command_block(config.get("command")),
        version=document["version"],
        data=document,
        drawing=drawing,
    )


def _load_table(document: Mapping[str, Any]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    stock, ours = document["config"]["reference"], document["config"]["candidate"]
    rows = []
    for row in document["loads"]:
        arms = [row["arms"][name] for name in (stock, ours)]
        rows.append(
            (
                row["load"],
                row["verdict"],
                *(numbers.number(arm["ttft_mean"]) for arm in arms),
                _with_interval(row, "mean_change"),
                *(numbers.number(arm["ttft_p99"]) for arm in arms),
                _with_interval(row, "p99_change"),
                *(numbers.number(arm["ms_per_step"]) for arm in arms),
                numbers.number(row["machine_ratio"]),
                *(numbers.number(arm["lateness_p99"], 1000) for arm in arms),
                "-".join(numbers.count(row[name]) for name in ("wins", "ties", "losses")),
                numbers.p_value(row["p_value"]),
            )
        )
    names = (
        *("load", "verdict", "mean s, stock", f"mean s, {ours}", "change"),
        *("p99 s, stock", f"p99 s, {ours}", "change"),
        *("ms/step, stock", f"ms/step, {ours}", "machine"),
        *("late ms, stock", f"late ms, {ours}", "won-tied-lost", "p"),
    )
    return names, rows


def _with_interval(row: Mapping[str, Any], name: str) -> str:
    interval = numbers.interval(row[f"{name}_low"], row[f"{name}_high"])
    return numbers.change(row[name]) + (f" ({interval})" if interval else "")


def _facts(document: Mapping[str, Any]) -> str:
    config, origin = document["config"], document["origin"]
    facts = {
        "Traffic": f"{origin['source']} ({origin['kind']}; {origin['reader']})",
        "Measured on": config["where"],
        "Engine": config["provenance"] or "",
        "Windows": f"{config['num_windows']} of {config['window_len']:,} requests",
        "Repeats": f"{config['repeats']}, arms in random order",
        "Known of output length": config["output_length"],
        "Seed": str(config["seed"]),
    }
    return fact_list(facts)


def plain(text: object) -> str:
    """Return text without characters that could steer a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(text))

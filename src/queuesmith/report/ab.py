"""An A/B measurement: terminal tables, and one HTML file that opens offline."""

from html import escape
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from queuesmith import numbers
from queuesmith.deploy.ab import STOCK
from queuesmith.deploy.verdict import LoadVerdict, Measurement
from queuesmith.report.ab_text import (
    RUN_HEADS,
    describe_load,
    metric_heads,
    metric_rows,
    run_rows,
    sentences,
)
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
from queuesmith.report.tables import Cell, settings_table, table
from queuesmith.report.text import plain

COLORS = {"better": "green", "worse": "red", "mixed": "red", "withheld": "yellow"}
#: Longest name of a policy that leaves room for the other columns in a terminal of 80.
_MOST_LETTERS = 10


def print_ab(measurement: Measurement, console: Console, *, full: bool = False) -> None:
    """Print the verdicts, every number of every load, and what speaks against them.

    With `full`, every run too.
    """
    outcome, config, origin = measurement.outcome, measurement.config, measurement.origin
    for row in outcome.loads:
        verdict, *more = sentences(measurement, row)
        console.print(Text(plain(verdict), f"bold {COLORS.get(row.verdict, '')}".strip()))
        for sentence in more:
            console.print(Text(plain(sentence)))
    for row in outcome.loads:
        console.print()
        console.print(_metric_table(measurement, row))
    if full:
        console.print()
        console.print(_run_table(measurement))
    console.print(
        Text(
            f"{origin['kind']} traffic {plain(origin['source'])}; measured on "
            f"{plain(config['where'])}; {_plural(config['num_windows'], 'window')} of "
            f"{config['window_len']:,}, {_plural(config['repeats'], 'repeat')}; "
            f"seed {config['seed']}"
        )
    )
    for warning in measurement.warnings:
        console.print(Text("warning: ", "yellow").append(plain(warning), "none"))


def _metric_table(measurement: Measurement, row: LoadVerdict) -> Table:
    """Return the table of a load for 80 columns: a long name of a policy is shortened."""
    windows = _plural(row.num_windows, "window")
    shown = _table(f"{describe_load(row)}: {windows}, {row.num_paired:,} pairs of requests")
    heads = metric_heads(_short(measurement))
    for name in (*heads[:5], heads[6]):  # what is allowed is on the page
        shown.add_column(name, justify="right" if name else "left", overflow="fold")
    for *cells, _, mark in metric_rows(measurement, row):
        style = {"broken": "red", "worse": "yellow", "better": "green"}.get(mark, "")
        shown.add_row(*map(plain, cells), Text(mark, style))
    return shown


def _run_table(measurement: Measurement) -> Table:
    shown = _table("Every run")
    for heading in RUN_HEADS[1:]:
        left = heading == "arm"
        shown.add_column(heading.replace(" ", "\n", 1), justify="left" if left else "right")
    above = None
    for load, window, arm, *cells in run_rows(measurement):
        if load != above:
            shown.add_row("", Text(plain(load), "bold"))
            above = load
        shown.add_row(window, STOCK if arm == STOCK else _short(measurement), *cells)
    return shown


def _short(measurement: Measurement) -> str:
    """Return the policy's name, or a word for it where a column has no room for the name."""
    policy = plain(measurement.config["candidate"])
    return policy if len(policy) <= _MOST_LETTERS else "policy"


def _table(title: str) -> Table:
    return Table(
        title=plain(title),
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
        padding=(0, 1, 0, 0),
    )


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def write_ab(measurement: Measurement, path: Path) -> None:
    """Write the report as one HTML file that needs nothing else."""
    write_page(render_ab(measurement), path)


def render_ab(measurement: Measurement) -> str:
    """Return the report as text; equal arguments give equal bytes."""
    config, origin = measurement.config, measurement.origin
    outcome, policy = measurement.outcome, config["candidate"]
    styles = policy_styles({STOCK: "policy", policy: "policy"}, STOCK, policy)
    loads = {row.load: describe_load(row) for row in outcome.loads}
    figures = []
    if outcome.samples:
        figures = [
            ttft_distribution(outcome.samples, list(loads), styles),
            request_by_request(outcome.samples, list(loads), styles, STOCK),
        ]
    found = [sentence for row in outcome.loads for sentence in sentences(measurement, row)]
    drawing = draw(
        figures,
        styles,
        loads,
        reference=STOCK,
        answer=policy,
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
        facts=_facts(measurement),
        warnings=warning_box(measurement.warnings),
        loads="".join(_load_section(measurement, row) for row in outcome.loads),
        runs=table(RUN_HEADS, run_rows(measurement), words=(0, 2)),
        figures=figure_cards(figures),
        settings=settings_table({"trace": origin, **settings}),
        command=command_block(config.get("command")),
        version=measurement.to_json()["version"],
        data=measurement.to_json(),
        drawing=drawing,
    )


def _load_section(measurement: Measurement, row: LoadVerdict) -> str:
    policy = measurement.config["candidate"]
    late = [numbers.number(state.lateness_p99, 1000) for state in row.arms.values()]
    steps = [numbers.number(state.ms_per_step) for state in row.arms.values()]
    facts = {
        "Verdict": row.verdict,
        "Windows won, tied, lost": "-".join(
            numbers.count(each) for each in (row.wins, row.ties, row.losses)
        ),
        "p": numbers.p_value(row.p_value),
        "Requests": f"{row.num_paired:,} pairs in {row.num_windows} windows",
        "ms/step": f"{steps[0]} {STOCK}, {steps[1]} {policy}",
        "Machine": numbers.number(row.machine_ratio),
        "Late, ms": f"{late[0]} {STOCK}, {late[1]} {policy}",
    }
    rows: list[list[str | Cell]] = [
        [*cells, Cell(mark, css=_MARKS.get(mark, ""))]
        for *cells, mark in metric_rows(measurement, row)
    ]
    told = table(metric_heads(policy), rows)
    return f"<h3>{prose(describe_load(row))}</h3>{fact_list(facts)}{told}"


def _facts(measurement: Measurement) -> str:
    config, origin = measurement.config, measurement.origin
    facts = {
        "Traffic": f"{origin['source']} ({origin['kind']}; {origin['reader']})",
        "Measured on": config["where"],
        "Engine": config["provenance"] or "",
        "Goal": measurement.goal.statistic.label,
        "Windows": f"{config['num_windows']} of {config['window_len']:,} requests",
        "Repeats": f"{config['repeats']}, arms in random order",
        "Known of output length": config["output_length"],
        "Seed": str(config["seed"]),
    }
    return fact_list(facts)


_MARKS = {"broken": "bad", "worse": "bad", "better": "good"}

"""A comparison in the terminal: the answer, the leaderboard, one line of provenance."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from queuesmith import numbers
from queuesmith.comparison.compare import Comparison
from queuesmith.comparison.recommendation import Recommendation
from queuesmith.comparison.rows import LoadRow
from queuesmith.documents import printable
from queuesmith.evaluation.describe import describe_broken, describe_value
from queuesmith.evaluation.judge import Change
from queuesmith.evaluation.statistics import STATISTICS

#: Rows of the leaderboard that are shown without ``--full``.
SHOWN = 5


@dataclass(frozen=True)
class _Column:
    """A column of numbers: a metric, and the statistic whose change colours it."""

    heading: str
    metric: str
    form: Callable[[float | None], str]


def _milliseconds(value: float | None) -> str:
    return numbers.number(value, 1000)


_COLUMNS = (
    _Column("mean\nTTFT s", "ttft_mean", numbers.number),
    _Column("p99\nTTFT s", "ttft_p99", numbers.number),
    _Column("mean\nE2EL s", "e2el_mean", numbers.number),
    _Column("p99 TPOT\nms", "tpot_p99", _milliseconds),
    _Column("output\ntokens/s", "output_throughput", numbers.number),
    _Column("SLO\nmet", "slo_attainment", numbers.share),
)


def print_comparison(comparison: Comparison, console: Console, *, full: bool = False) -> None:
    """Print the answer, the leaderboard and where the numbers come from.

    Parameters
    ----------
    comparison : Comparison
    console : rich.console.Console
        Where to print; without a terminal it prints plain text.
    full : bool
        Every policy at every load, with the guards that each breaks.
    """
    console.print(_answer(comparison))
    console.print()
    console.print(_leaderboard(comparison, full))
    if full:
        for load in comparison.config["loads"]:
            console.print()
            console.print(_load_table(comparison, load["name"]))
        console.print()
        console.print(_guards(comparison))
    console.print(_origin(comparison, full=full))
    for warning in comparison.warnings:
        console.print(Text("warning: ", "yellow").append(plain(warning), "none"))


def print_recommendation(found: Recommendation, console: Console) -> None:
    """Print what to run, what it costs, and the command that tries it without risk."""
    first, *rest = found.sentences
    console.print(Text(plain(found.comparison.answer.traffic)))
    console.print(Text(plain(first), "bold"))
    for sentence in rest:
        console.print(Text(plain(sentence)))
    if found.costs:
        console.print()
        console.print(_costs(found))
        console.print()
        console.print(Text("Try it without risk; it counts and orders nothing:"))
        console.print(Text(f"  {plain(found.command)}", "bold"), soft_wrap=True)
    console.print(_origin(found.comparison, full=True))
    for warning in found.comparison.warnings:
        console.print(Text("warning: ", "yellow").append(plain(warning), "none"))


def _costs(found: Recommendation) -> Table:
    table = _table(f"What {plain(found.policy)} changes at the log's own rate")
    for heading in ("", "as it is", "then", "change", "95 % interval"):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for cost in found.costs:
        change, relative = cost.change, STATISTICS[cost.name].relative
        form = numbers.change if relative else numbers.points
        sure = change.low == change.low and change.high == change.high
        table.add_row(
            cost.label,
            describe_value(cost.name, change.reference),
            describe_value(cost.name, change.value),
            form(change.change),
            f"{form(change.low)} to {form(change.high)}" if sure else "",
        )
    return table


def plain(text: object) -> str:
    """Return what is to be shown as text, with what could steer a terminal escaped."""
    return printable(str(text))


def short(policy: str) -> str:
    """Return a policy's name with the values of its parameters and not their names."""
    return re.sub(r"\w+=", "", plain(policy))


def _answer(comparison: Comparison) -> Text:
    first, *rest = comparison.answer.sentences
    answer = Text(plain(comparison.answer.traffic)).append(f"\n{plain(first)}", "bold")
    for sentence in rest:
        answer.append(f"\n{plain(sentence)}", "not bold")
    return answer


def _leaderboard(comparison: Comparison, full: bool) -> Table:
    """Policies that may be recommended first; the numbers are of the load where the answer acts."""
    goal = comparison.goal
    load = shown_load(comparison)
    table = _table(
        f"Leaderboard by {goal.statistic.label} over all loads; numbers at {plain(load)} load"
    )
    table.add_column("#", justify="right", no_wrap=True)
    table.add_column("policy", overflow="fold", min_width=16)
    table.add_column("gain", justify="right", no_wrap=True)
    for column in _shown(comparison):
        table.add_column(column.heading, justify="right", no_wrap=True)
    table.add_column("guards\nbroken", justify="right", no_wrap=True)
    rows = comparison.leaderboard if full else comparison.leaderboard[:SHOWN]
    for row in rows:
        name = Text(short(row.policy))
        if row.policy == comparison.answer.policy:
            name.stylize("bold green")
        if row.kind != "policy":
            name.append(f" [{plain(row.kind)}]", "dim")
        table.add_row(
            "-" if row.rank is None else str(row.rank),
            name,
            gain(comparison, row.gains[goal.name]),
            *_numbers(comparison, row.policy, load),
            Text(str(len(row.broken)), "red" if row.broken else ""),
        )
    left = len(comparison.leaderboard) - len(rows)
    if left:
        table.caption = f"{left} more with --full; a policy that breaks a guard is never the answer"
    return table


def gain(comparison: Comparison, change: Change) -> str:
    """Return a goal's mean change over loads."""
    relative = comparison.goal.statistic.relative
    return numbers.change(change.change) if relative else numbers.points(change.change)


def shown_load(comparison: Comparison) -> str:
    """Return the load to show first: where the answer acts, else the trace's own rate."""
    names = [str(load["name"]) for load in comparison.config["loads"]]
    better = comparison.answer.loads
    return better[0] if better else names[0]


def _shown(comparison: Comparison) -> list[_Column]:
    """Leave out what is undefined throughout, such as attainment without an SLO."""
    return [
        column
        for column in _COLUMNS
        if any(row.metrics[column.metric] == row.metrics[column.metric] for row in comparison.loads)
    ]


def _numbers(comparison: Comparison, policy: str, load: str) -> list[Text]:
    row = next(row for row in comparison.loads if (row.policy, row.load) == (policy, load))
    return [_cell(row, column) for column in _shown(comparison)]


def _cell(row: LoadRow, column: _Column) -> Text:
    broken = column.metric in row.broken
    return Text(column.form(row.metrics[column.metric]), "red" if broken else "")


def _load_table(comparison: Comparison, load: str) -> Table:
    rows = [row for row in comparison.loads if row.load == load]
    rate = numbers.number(rows[0].rate)
    table = _table(f"{plain(load)}: rho {rows[0].rho:.2f}, {rate} requests/s")
    table.add_column("policy", overflow="fold", min_width=16)
    table.add_column("change", justify="right", no_wrap=True)
    columns = _shown(comparison)
    for column in columns:
        table.add_column(column.heading, justify="right", no_wrap=True)
    name = comparison.goal.statistic.name
    for row in rows:
        table.add_row(
            short(row.policy),
            gain(comparison, row.changes[name]),
            *[_cell(row, column) for column in columns],
        )
    return table


def _guards(comparison: Comparison) -> Text:
    told: list[str] = []
    for row in comparison.leaderboard:
        if row.broken:
            told.append(f"{row.policy} breaks:")
            told += [f"  {describe_broken(one)}" for one in row.broken]
    return Text("\n".join(map(plain, told)))


def _origin(comparison: Comparison, *, full: bool) -> Text:
    """Say where the numbers come from: in one line, or with everything."""
    origin, config = comparison.origin, comparison.config
    line = Text(plain(origin["kind"]), "green" if origin["kind"] == "real" else "yellow")
    parts = [f" traffic {plain(origin['source'])}, {origin['num_requests']:,} requests"]
    dropped = sum(origin["dropped"].values())
    if dropped:
        parts.append(f" ({dropped:,} left out)")
    parts.append(f"; {plain(config['preset'])}")
    if full:
        parts.append(f" ({plain(config['provenance'])})")
    if config["router"]:
        parts.append(f"; {config['replicas']} replicas, router {plain(config['router'])}")
    if config["closed_loop"]:
        parts.append("; later turns wait for answers")
    limits = [f"{name} {limit:g} s" for name, limit in (config["slo"] or {}).items() if limit]
    parts.append(
        f"; {config['num_windows']} windows of {config['window_len']:,}; "
        f"SLO {', '.join(limits) or 'none'}; seed {config['seed']}"
    )
    if full:
        parts.append(f". {plain(config['output_length'])}")
    return line.append("".join(parts), "none")


def _table(title: str, columns: Sequence[str] = ()) -> Table:
    return Table(
        *columns,
        title=title,
        title_justify="left",
        title_style="bold",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
        padding=(0, 0),
    )

"""A workload in words and in a terminal: sentences, small tables, and pictures made of letters."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from queuesmith import numbers

_BARS = "".join(chr(0x2581 + height) for height in range(8))  # block elements, low to full
#: For a terminal that cannot show those.
_ASCII_BARS = "_.:-=+*#"

#: Of the lengths, so that a line fits into 80 columns.
_SHOWN_LENGTHS = ("mean", "p10", "p50", "p90", "p99", "p99.9", "max")


def print_description(document: Mapping[str, Any], console: Console) -> None:
    """Print what `queuesmith.traces.describe.describe` says of a workload."""
    origin = document["origin"]
    _print(console, headline(document), style="bold")
    reader = f" ({origin['reader']})" if origin["reader"] else ""
    _print(console, f"{origin['kind']} traffic: {origin['source']}{reader}")
    for reason, count in origin["dropped"].items():
        _print(console, f"left out: {count:,} ({reason})")
    for note in origin["notes"]:
        _print(console, f"note: {note}")
    for sentence in sentences(document):
        _print(console, sentence)
    console.print()
    _print_rate(document["arrivals"], console)
    _print_tables(document, console)


def _print(console: Console, text: str, style: str = "") -> None:
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def _print_rate(arrivals: Mapping[str, Any], console: Console) -> None:
    rate = arrivals["rate"]
    if not rate:
        return
    _print(console, "Requests per second over time", style="bold")
    _print(console, picture(rate, console.encoding))
    _print(
        console,
        f"{numbers.number(min(rate))} to {numbers.number(max(rate))}, in bins of "
        f"{span(arrivals['width'])}\n",
    )


def picture(values: list[float], encoding: str) -> str:
    """Draw values from 0 up as a row of bars.

    Examples
    --------
    >>> picture([0.0, 1.0, 4.0], "ascii")
    '_:#'
    """
    bars = _BARS
    try:
        bars.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        bars = _ASCII_BARS
    most = max(values) or 1.0
    return "".join(bars[min(int(value / most * len(bars)), len(bars) - 1)] for value in values)


def _print_tables(document: Mapping[str, Any], console: Console) -> None:
    lengths = document["lengths"]
    table = _table("Length, tokens", *_SHOWN_LENGTHS)
    for name in ("prompt", "output"):
        table.add_row(name, *(numbers.count(lengths[name][level]) for level in _SHOWN_LENGTHS))
    console.print(table)
    console.print()
    burstiness = document["burstiness"]
    scales = burstiness["scales"]
    table = _table("Bursts, in bins of", *(f"{scale['width']:g} s" for scale in scales), "gaps")
    cells = [numbers.number(scale["count_cv"]) for scale in scales]
    table.add_row("CV", *cells, numbers.number(burstiness["gap_cv"]))
    cells = [numbers.number(scale["dispersion"]) for scale in scales]
    table.add_row("variance / mean (Poisson 1)", *cells, "")
    console.print(table)
    console.print()
    table = _table("Rank correlation of", "")
    for name, value in document["correlations"].items():
        table.add_row(CORRELATIONS[name], numbers.score(value))
    console.print(table)
    for title, rows in group_rows(document):
        console.print()
        table = _table(title, "")
        for row in rows:
            table.add_row(*row)
        console.print(table)


def _table(title: str, *columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(Text(title), no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def headline(document: Mapping[str, Any]) -> str:
    """Return the workload in one sentence."""
    prompt, output = (document["lengths"][name]["mean"] for name in ("prompt", "output"))
    rate = document["rate"]
    often = f", {numbers.number(rate)} per second" if rate is not None else ""
    return (
        f"{document['num_requests']:,} requests over {span(document['duration'])}{often}; prompts "
        f"of {prompt:,.0f} and outputs of {output:,.0f} tokens on average"
    )


def span(seconds: float) -> str:
    """Return a duration in the unit in which it is easily read.

    Examples
    --------
    >>> span(7200.0), span(90.0), span(604_800.0)
    ('2 hours', '90 seconds', '7 days')
    """
    for size, unit in ((86_400.0, "days"), (3_600.0, "hours"), (60.0, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} seconds"


def sentences(document: Mapping[str, Any]) -> list[str]:
    """Say what matters for a scheduler: bursts, inequality, who asks, what is asked again."""
    said = []
    burstiness = document["burstiness"]
    scales = [scale for scale in burstiness["scales"] if scale["dispersion"] is not None]
    if scales:
        most = max(scales, key=lambda scale: scale["dispersion"])
        said.append(
            f"Bursts: counts in bins of {most['width']:g} s vary {most['dispersion']:.3g} times as "
            "much (variance) as if requests came independently."
            if most["dispersion"] > 1.5
            else "No bursts to speak of: counts vary as if requests came independently."
        )
    lengths = document["lengths"]
    ratios = {name: lengths[name]["p99"] / lengths[name]["p50"] for name in ("prompt", "output")}
    said.append(
        f"Inequality: one prompt in a hundred is at least {ratios['prompt']:.3g} times as long as "
        f"the median, one output in a hundred {ratios['output']:.3g} times."
    )
    clients = document["clients"]
    if clients and clients["num_clients"] > 1:
        few = clients["num_for_half"]
        said.append(
            f"Clients: half of the requests come from {few:,} of {clients['num_clients']:,}."
        )
    sessions = document["sessions"]
    if sessions and sessions["turns_max"] > 1:
        said.append(
            f"Conversations: {sessions['turns_mean']:.3g} turns on average, "
            f"{sessions['turns_max']:,} in the longest."
        )
    prefixes = document["prefixes"]
    if prefixes:
        said.append(
            f"Prefixes: a cache that forgets nothing would save "
            f"{numbers.share(prefixes['reused_token_share'])} of all prompt tokens."
        )
    if resembles := document.get("resembles"):
        said.append(_resemblance(resembles))
    return said


def _resemblance(resembles: Mapping[str, Any]) -> str:
    nearest = resembles["sources"][0]
    off = f"by a factor of {nearest['factor']:.3g}"
    if resembles["name"] is None:
        return (
            f"Unlike all known sources: lengths and bursts typically differ {off} from those of "
            f"the nearest, {nearest['name']}."
        )
    return f"Resembles {resembles['name']} most: lengths and bursts typically differ {off}."


CORRELATIONS = {
    "prompt_output": "prompt and output",
    "prompt_rate": "prompt and rate",
    "output_rate": "output and rate",
    "prompt_next": "prompt and the next prompt",
    "output_next": "output and the next output",
}


def group_rows(document: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the rows on clients, sessions and prefixes, as far as the trace has them."""
    groups: list[tuple[str, list[tuple[str, str]]]] = []
    if clients := document["clients"]:
        rows = [("clients", numbers.count(clients["num_clients"]))]
        rows += [
            ("of the busiest" if top == "1" else f"of the busiest {top}", numbers.share(share))
            for top, share in clients["top_share"].items()
        ]
        rows.append(("requests without client", numbers.count(clients["num_unknown"])))
        groups.append(("Clients, share of requests", rows))
    if sessions := document["sessions"]:
        groups.append(
            (
                "Conversations",
                [
                    ("conversations", numbers.count(sessions["num_sessions"])),
                    ("turns, mean", numbers.number(sessions["turns_mean"])),
                    ("turns, p99", numbers.count(sessions["turns_p99"])),
                    ("turns, most", numbers.count(sessions["turns_max"])),
                    ("of a single turn", numbers.share(sessions["single_turn_share"])),
                    ("seconds to the next turn, p50", numbers.number(sessions["turn_gap_p50"])),
                    ("seconds to the next turn, p90", numbers.number(sessions["turn_gap_p90"])),
                    ("requests without conversation", numbers.count(sessions["num_unknown"])),
                ],
            )
        )
    if prefixes := document["prefixes"]:
        groups.append(
            (
                "Prefix reuse, unlimited cache",
                [
                    ("tokens per block", numbers.count(prefixes["block_size"])),
                    ("blocks", numbers.count(prefixes["num_blocks"])),
                    ("different blocks", numbers.count(prefixes["num_distinct"])),
                    ("prompt tokens reused", numbers.share(prefixes["reused_token_share"])),
                    ("requests that reuse any", numbers.share(prefixes["reusing_request_share"])),
                    ("seconds since last use, p50", numbers.number(prefixes["age_p50"])),
                    ("seconds since last use, p90", numbers.number(prefixes["age_p90"])),
                    ("seconds since last use, p99", numbers.number(prefixes["age_p99"])),
                ],
            )
        )
    return groups

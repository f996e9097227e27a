"""What a workload looks like, as one HTML file that opens offline.

:func:`write_traffic` shows the document of :func:`queuesmith.traces.describe.describe`, with
figures drawn from the trace itself.
"""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from queuesmith import numbers
from queuesmith._version import __version__
from queuesmith.report.frame import (
    KIND_NOTES,
    draw,
    fact_list,
    figure_cards,
    points,
    prose,
    render_page,
    warning_box,
    write_page,
)
from queuesmith.report.tables import table
from queuesmith.report.traffic.figures import build_traffic_figures
from queuesmith.report.traffic.text import CORRELATIONS, group_rows, headline, sentences
from queuesmith.traces.trace import Trace


def write_traffic(document: Mapping[str, Any], trace: Trace, path: Path) -> Path:
    """Write the picture of a workload as one HTML file that needs nothing else.

    Parameters
    ----------
    document : mapping
        What `queuesmith.traces.describe.describe` says of the trace.
    trace : Trace
    path : Path
        Where to write; folders are made, an existing file is replaced.

    Raises
    ------
    ConfigError
        If the file cannot be written.
    """
    return write_page(render_traffic(document, trace), path)


def render_traffic(document: Mapping[str, Any], trace: Trace) -> str:
    """Return the page as text; equal arguments give equal bytes."""
    figures = build_traffic_figures(trace)
    origin = document["origin"]
    return render_page(
        "traffic",
        subject=origin["source"],
        verb="traces",
        source=escape(origin["source"]),
        kind=escape(origin["kind"]),
        kind_note=KIND_NOTES.get(origin["kind"], ""),
        headline=prose(headline(document)),
        points=points(sentences(document)),
        facts=_facts(document),
        warnings=warning_box(list(origin["notes"])),
        figures=figure_cards(figures),
        tables=_tables(document),
        version=__version__,
        data=document,
        drawing=draw(figures),
    )


def _facts(document: Mapping[str, Any]) -> str:
    origin = document["origin"]
    dropped = sum(origin["dropped"].values())
    left_out = ", ".join(f"{count:,} {reason}" for reason, count in origin["dropped"].items())
    facts = {
        "Source": origin["source"],
        "Read as": origin["reader"],
        "Requests": f"{document['num_requests']:,}",
        "Left out": f"{dropped:,}: {left_out}" if dropped else "none",
        "Prompt tokens per second": numbers.number(document["prompt_tokens_per_second"]),
        "Output tokens per second": numbers.number(document["output_tokens_per_second"]),
        "SHA-256": origin["sha256"][:16] + "…" if origin["sha256"] else "",
    }
    return fact_list(facts)


def _tables(document: Mapping[str, Any]) -> str:
    lengths, burstiness = document["lengths"], document["burstiness"]
    tables = [
        _table(
            "Lengths, tokens",
            ("", "prompt", "output"),
            [
                (name, *(numbers.count(lengths[which][name]) for which in ("prompt", "output")))
                for name in lengths["prompt"]
            ],
        ),
        _table(
            "Bursts",
            ("bins of", "CV of counts", "index of dispersion"),
            [
                (
                    f"{scale['width']:g} s",
                    numbers.number(scale["count_cv"]),
                    numbers.number(scale["dispersion"]),
                )
                for scale in burstiness["scales"]
            ]
            + [("CV of gaps", numbers.number(burstiness["gap_cv"]), "")],
        )
        + _table(
            "Rank correlations",
            ("", ""),
            [
                (CORRELATIONS[name], numbers.score(value))
                for name, value in document["correlations"].items()
            ],
        ),
    ]
    tables += [_table(title, ("", ""), rows) for title, rows in group_rows(document)]
    return "".join(f"<div>{table}</div>" for table in tables)


def _table(title: str, heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Return a small table whose first column names the row."""
    return f"<h3>{escape(title)}</h3>{table(heads, rows)}"

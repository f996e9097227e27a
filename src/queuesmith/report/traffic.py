"""What a workload looks like, as one HTML file that opens offline.

:func:`write_traffic` shows the document of :func:`queuesmith.traces.describe.describe`, with
figures drawn from the trace itself.
"""

from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from queuesmith import numbers
from queuesmith._version import __version__
from queuesmith.errors import ConfigError
from queuesmith.report import (
    _KIND_NOTES,
    _content_security_policy,
    _figure_card,
    _points,
    _prose,
    _script_json,
    _warnings,
)
from queuesmith.report.traffic_figures import build_traffic_figures
from queuesmith.report.traffic_text import CORRELATIONS, group_rows, headline, sentences
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
    page = render_traffic(document, trace)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Bytes, so that the same trace is the same file on every system.
        path.write_bytes(page.encode())
    except OSError as error:
        raise ConfigError(
            f"the page cannot be written to {str(path)!r}: {error.strerror}; name another file"
        ) from error
    return path


def render_traffic(document: Mapping[str, Any], trace: Trace) -> str:
    """Return the page as text; equal arguments give equal bytes."""
    from plotly.offline import get_plotlyjs  # 60 ms that no other command should pay

    here = files(__package__)
    report = (here / "page.html").read_text(encoding="utf-8")
    page_script = (here / "page.js").read_text(encoding="utf-8")
    plotly_script = get_plotlyjs()
    figures = build_traffic_figures(trace)
    origin = document["origin"]
    drawing = {
        "reference": None,
        "answer": None,
        "policies": [],
        "loads": [],
        "load": None,
        "figures": [
            {"name": figure.name, "columns": figure.columns, "panels": figure.panels}
            for figure in figures
        ],
    }
    return Template((here / "traffic.html").read_text(encoding="utf-8")).substitute(
        security=_content_security_policy([page_script, plotly_script]),
        source=escape(origin["source"]),
        style=report.split("<style>")[1].split("</style>")[0],
        kind=escape(origin["kind"]),
        kind_note=_KIND_NOTES.get(origin["kind"], ""),
        headline=_prose(headline(document)),
        points=_points(sentences(document)),
        facts=_facts(document),
        warnings=_warnings(list(origin["notes"])),
        figures="".join(_figure_card(figure) for figure in figures),
        tables=_tables(document),
        version=escape(__version__),
        data=_script_json(document),
        drawing=_script_json(drawing),
        page_script=page_script,
        plotly_script=plotly_script,
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
    items = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{_prose(value)}</dd></div>"
        for name, value in facts.items()
        if value
    )
    return f'<dl class="facts">{items}</dl>'


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
    head = "".join(f'<th class="number">{escape(name)}</th>' for name in heads[1:])
    body = "".join(
        f"<tr><th>{escape(row[0])}</th>"
        + "".join(f'<td class="number">{_minus(cell)}</td>' for cell in row[1:])
        + "</tr>"
        for row in rows
    )
    top = f"<thead><tr><th>{escape(heads[0])}</th>{head}</tr></thead>" if any(heads) else ""
    return f"<h3>{escape(title)}</h3><table>{top}<tbody>{body}</tbody></table>"


def _minus(text: str) -> str:
    return "&ndash;" if text == numbers.UNDEFINED else escape(text).replace("-", "&minus;")

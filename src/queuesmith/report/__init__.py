"""What a comparison looks like: one HTML file that opens offline, and a terminal table.

:func:`write_html` and :func:`print_comparison` both take the document that
``queuesmith compare --json`` prints, and show only numbers that are in it.
"""

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from queuesmith.report.figures import build_figures
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
from queuesmith.report.parts import Samples, load_label, policy_styles
from queuesmith.report.tables import leaderboard_table, loads_table, settings_table
from queuesmith.report.text import print_comparison
from queuesmith.traces.trace import Trace

__all__ = ["Samples", "print_comparison", "render_html", "write_html"]


def write_html(
    document: Mapping[str, Any],
    samples: Mapping[tuple[str, str], Samples],
    trace: Trace,
    path: Path,
) -> Path:
    """Write the report of a comparison as one HTML file that needs nothing else.

    Parameters
    ----------
    document : mapping
        What ``queuesmith compare --json`` prints, of schema ``queuesmith.compare/1``.
    samples : mapping of (policy, load) to Samples
        Row k is the same request under every policy of one load.
    trace : Trace
        The trace that was compared.
    path : Path
        Where to write; folders are made, an existing file is replaced.

    Returns
    -------
    Path
        `path`.

    Raises
    ------
    ConfigError
        If the file cannot be written.
    """
    return write_page(render_html(document, samples, trace), path)


def render_html(
    document: Mapping[str, Any], samples: Mapping[tuple[str, str], Samples], trace: Trace
) -> str:
    """Return the report as text; equal arguments give equal bytes."""
    styles = policy_styles(document)
    figures = build_figures(document, samples, trace)
    config, origin = document["config"], document["origin"]
    sentences = document["answer"]["sentences"]
    command = config.get("command")
    return render_page(
        "compare",
        subject=origin["source"],
        verb="compare",
        source=escape(origin["source"]),
        kind=escape(origin["kind"]),
        kind_note=KIND_NOTES.get(origin["kind"], ""),
        answer=prose(sentences[0] if sentences else "No policy can be named."),
        more=points(sentences[1:]),
        facts=_facts(document, trace),
        warnings=warning_box(document["warnings"]),
        reference=escape(config["reference"]),
        leaderboard=leaderboard_table(document, styles),
        loads=loads_table(document, styles),
        figures=figure_cards(figures),
        settings=settings_table(_settings(document)),
        command=command_block(command),
        version=document["version"],
        data=document,
        drawing=draw(
            figures,
            styles,
            config["loads"],
            reference=config["reference"],
            answer=document["answer"]["policy"],
            load=_first_load(config["loads"]),
        ),
    )


def _first_load(loads: list[Mapping[str, Any]]) -> str | None:
    """Return the load to show first: the one next to saturation, where the order matters most."""
    rated = [load for load in loads if load["rho"] is not None] or loads[:1]
    return min(rated, key=lambda load: abs((load["rho"] or 0) - 1))["name"] if rated else None


def _facts(document: Mapping[str, Any], trace: Trace) -> str:
    """Return what was compared, on what, as a short list."""
    origin, config = document["origin"], document["config"]
    dropped = sum(origin["dropped"].values())
    requests = f"{origin['num_requests']:,}"
    if dropped:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in origin["dropped"].items())
        requests += f" ({dropped:,} left out: {reasons})"
    loads = ", ".join(load_label(load) for load in config["loads"])
    facts = {
        "Traffic": f"{origin['source']} ({origin['kind']}; {origin['reader']})",
        "Requests": requests,
        "Notes on the trace": "; ".join(origin["notes"]),
        "Engine": f"{config['preset']} ({config['provenance']})",
        "Replicas": f"{config['replicas']}, router {config['router']}"
        if config.get("router")
        else "",
        "Sessions": "later turns wait for answers; loads scale first arrivals"
        if config.get("closed_loop")
        else "",
        "Measured on": f"{config['num_windows']} windows of {config['window_len']:,} requests",
        "Loads": loads,
        "Known of output length": config["output_length"],
        "Policies": f"{len(config['policies'])}, against {config['reference']}",
        "Seed": str(config["seed"]),
        "SHA-256": (origin["sha256"] or trace.sha256)[:16] + "…",
    }
    return fact_list(facts)


def _settings(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return everything that decides the numbers, for the settings table."""
    config = {name: value for name, value in document["config"].items() if name != "command"}
    return {"trace": document["origin"], **config, "queuesmith": document["version"]}

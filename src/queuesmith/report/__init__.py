"""What a comparison looks like: one HTML file that opens offline, and a terminal table.

:func:`write_html` and :func:`print_comparison` both take the document that
``queuesmith compare --json`` prints, and show only numbers that are in it.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from queuesmith.errors import ConfigError
from queuesmith.report.figures import build_figures
from queuesmith.report.parts import Figure, Samples, Style, load_label, policy_styles
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
    page = render_html(document, samples, trace)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Bytes, so that the same comparison is the same file on every system.
        path.write_bytes(page.encode())
    except OSError as error:
        raise ConfigError(
            f"the report cannot be written to {str(path)!r}: {error.strerror}; name another file"
        ) from error
    return path


def render_html(
    document: Mapping[str, Any], samples: Mapping[tuple[str, str], Samples], trace: Trace
) -> str:
    """Return the report as text; equal arguments give equal bytes."""
    from plotly.offline import get_plotlyjs  # 60 ms that no other command should pay

    here = files(__package__)
    template = Template((here / "page.html").read_text(encoding="utf-8"))
    page_script = (here / "page.js").read_text(encoding="utf-8")
    plotly_script = get_plotlyjs()
    styles = policy_styles(document)
    figures = build_figures(document, samples, trace)
    config, origin = document["config"], document["origin"]
    sentences = document["answer"]["sentences"]
    command = config.get("command")
    return template.substitute(
        security=_content_security_policy([page_script, plotly_script]),
        source=escape(origin["source"]),
        kind=escape(origin["kind"]),
        kind_note=_KIND_NOTES.get(origin["kind"], ""),
        answer=_prose(sentences[0] if sentences else "No policy can be named."),
        more=_points(sentences[1:]),
        facts=_facts(document, trace),
        warnings=_warnings(document["warnings"]),
        reference=escape(config["reference"]),
        leaderboard=leaderboard_table(document, styles),
        loads=loads_table(document, styles),
        figures="".join(_figure_card(figure) for figure in figures),
        settings=settings_table(_settings(document)),
        command=f"<pre><code>{escape(command)}</code></pre>"
        if command
        else "<p>The command was not recorded; the settings below say what it asked for.</p>",
        version=escape(document["version"]),
        data=_script_json(document),
        drawing=_script_json(_drawing(document, styles, figures)),
        page_script=page_script,
        plotly_script=plotly_script,
    )


_KIND_NOTES = {
    "real": "Arrivals and lengths are as they were measured.",
    "modelled": "Arrivals and lengths are drawn from a model, not measured.",
}


def _content_security_policy(scripts: Iterable[str]) -> str:
    """Return a policy that runs these scripts, no others, and reaches no network."""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
        for script in scripts
    )
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def _script_json(value: Any) -> str:
    """Return JSON that is safe inside a script element: no ``<`` can end or open anything."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def _drawing(
    document: Mapping[str, Any], styles: Iterable[Style], figures: Iterable[Figure]
) -> dict[str, Any]:
    """Return what the page's script needs to draw."""
    loads = document["config"]["loads"]
    reference = document["config"]["reference"]
    return {
        "reference": reference,
        "answer": document["answer"]["policy"],
        "policies": [
            {
                "name": style.policy,
                "label": style.label,
                "color": style.color,
                "dash": style.dash,
                "shown": style.shown,
            }
            for style in styles
        ],
        "loads": [{"name": load["name"], "label": load_label(load)} for load in loads],
        "load": _first_load(loads),
        "figures": [
            {"name": figure.name, "columns": figure.columns, "panels": figure.panels}
            for figure in figures
        ],
    }


def _first_load(loads: list[Mapping[str, Any]]) -> str | None:
    """Return the load to show first: the one next to saturation, where the order matters most."""
    rated = [load for load in loads if load["rho"] is not None] or loads[:1]
    return min(rated, key=lambda load: abs((load["rho"] or 0) - 1))["name"] if rated else None


def _figure_card(figure: Figure) -> str:
    """Return the place in the page where a figure is drawn."""
    controls = "".join(
        f'<div class="control" data-control="{name}"></div>' for name in figure.controls
    )
    panels = "".join(
        f'<div class="panel" data-figure="{figure.name}" data-panel="{row}"></div>'
        for row in range(len(figure.panels))
    )
    return (
        f'<figure id="{figure.name}"><h3>{escape(figure.title)}</h3>{controls}'
        f'<div class="panels">{panels}</div><figcaption>{_prose(figure.caption)}</figcaption>'
        "</figure>"
    )


def _prose(text: str) -> str:
    """Return escaped text with true minus signs, in which no line breaks before a percent sign."""
    text = escape(text).replace("+-", "&plusmn;")
    return re.sub(r"(?<![\w.])-(?=\d)", "&minus;", text).replace(" %", "&nbsp;%")


def _points(sentences: Iterable[str]) -> str:
    items = "".join(f"<li>{_prose(sentence)}</li>" for sentence in sentences)
    return f'<ul class="lede">{items}</ul>' if items else ""


def _warnings(warnings: list[str]) -> str:
    if not warnings:
        return ""
    items = "".join(f"<li>{_prose(warning)}</li>" for warning in warnings)
    return f'<aside class="warnings"><strong>Read with care</strong><ul>{items}</ul></aside>'


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
    items = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{_prose(value)}</dd></div>"
        for name, value in facts.items()
        if value
    )
    return f'<dl class="facts">{items}</dl>'


def _settings(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return everything that decides the numbers, for the settings table."""
    config = {name: value for name, value in document["config"].items() if name != "command"}
    return {"trace": document["origin"], **config, "queuesmith": document["version"]}

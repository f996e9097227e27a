"""What every page has around its content, and how it gets to disk.

A page is one file that opens offline: style, scripts, data and plotly.js are inside it, and its
security policy lets nothing else run and reaches no network. The content of a page is NAME.html,
with NAME.css for what only that page has.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from queuesmith import numbers
from queuesmith.errors import ConfigError
from queuesmith.report.parts import Figure, Style

KIND_NOTES = {
    "real": "Arrivals and lengths are as they were measured.",
    "modelled": "Arrivals and lengths are drawn from a model, not measured.",
}


def render_page(
    name: str,
    *,
    subject: str,
    verb: str,
    version: str,
    data: Any,
    drawing: Mapping[str, Any],
    script: str = "page.js",
    **content: object,
) -> str:
    """Fill a page; equal arguments give equal bytes.

    Parameters
    ----------
    name : str
        Of its content.
    subject, verb, version : str
        What it is about, which command made it, of which version; text, not HTML.
    data : JSON value
        What the page lets its reader save.
    drawing : mapping
        What its script draws.
    script : str
    **content : str
        HTML for the places in its content.
    """
    from plotly.offline import get_plotlyjs  # 60 ms that no other command should pay

    folder = files(__package__)

    def read(file: str) -> str:
        return (folder / file).read_text(encoding="utf-8")

    own = folder / f"{name}.css"
    style = read("frame.css") + (read(own.name) if own.is_file() else "")
    page_script, plotly_script = read("frame.js") + read(script), get_plotlyjs()
    return Template(read("frame.html")).substitute(
        security=_content_security_policy([page_script, plotly_script]),
        subject=escape(subject),
        verb=verb,
        version=escape(version),
        style=f"\n{style}",
        page_script=page_script,
        plotly_script=plotly_script,
        content=Template(read(f"{name}.html")).substitute(content),
        data=_script_json(data),
        drawing=_script_json(drawing),
    )


def write_page(page: str, path: Path) -> Path:
    """Write a page and return its path; folders are made, an existing file is replaced.

    Raises
    ------
    ConfigError
        If the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Bytes, so that the same page is the same file on every system.
        path.write_bytes(page.encode())
    except OSError as error:
        raise ConfigError(
            f"the page cannot be written to {str(path)!r}: {error.strerror}; name another file"
        ) from error
    return path


def draw(
    figures: Iterable[Figure],
    styles: Iterable[Style] = (),
    loads: Mapping[str, str] | None = None,
    *,
    reference: str | None = None,
    answer: str | None = None,
    load: str | None = None,
    all_shown: bool = False,
) -> dict[str, Any]:
    """Return what ``page.js`` needs to draw figures, and what a reader may choose in them.

    `loads` says what to call each load, and `load` is shown first; with `all_shown` every policy
    is, not only those its style says.
    """
    return {
        "reference": reference,
        "answer": answer,
        "policies": [
            {
                "name": style.policy,
                "label": style.label,
                "color": style.color,
                "dash": style.dash,
                "shown": all_shown or style.shown,
            }
            for style in styles
        ],
        "loads": [{"name": name, "label": label} for name, label in (loads or {}).items()],
        "load": load,
        "figures": [
            {"name": figure.name, "columns": figure.columns, "panels": figure.panels}
            for figure in figures
        ],
    }


def figure_cards(figures: Iterable[Figure]) -> str:
    """Return the places in a page where figures are drawn."""
    return "".join(map(figure_card, figures))


def figure_card(figure: Figure) -> str:
    """Return the place in a page where a figure is drawn."""
    controls = "".join(
        f'<div class="control" data-control="{name}"></div>' for name in figure.controls
    )
    size = f' style="height:{figure.height}px"' if figure.height else ""
    panels = "".join(
        f'<div class="panel" data-figure="{figure.name}" data-panel="{row}"{size}></div>'
        for row in range(len(figure.panels))
    )
    return (
        f'<figure id="{figure.name}"><h3>{escape(figure.title)}</h3>{controls}'
        f'<div class="panels">{panels}</div><figcaption>{prose(figure.caption)}</figcaption>'
        "</figure>"
    )


def prose(text: str) -> str:
    """Return escaped text as it is printed: true minus signs, code for what backticks enclose."""
    if text == numbers.UNDEFINED:
        return "&ndash;"
    text = re.sub(r"(`+)([^`]+)\1", r"<code>\2</code>", escape(text))
    text = text.replace("+-", "&plusmn;").replace("-&gt;", "&rarr;")
    return re.sub(r"(?<![\w.])-(?=\d)", "&minus;", text).replace(" %", "&nbsp;%")


def points(sentences: Iterable[str]) -> str:
    """Return sentences as a list; nothing of none."""
    items = "".join(f"<li>{prose(sentence)}</li>" for sentence in sentences)
    return f'<ul class="lede">{items}</ul>' if items else ""


def warning_box(warnings: Sequence[str]) -> str:
    """Return what to read the numbers with; nothing of none."""
    if not warnings:
        return ""
    items = "".join(f"<li>{prose(warning)}</li>" for warning in warnings)
    return f'<aside class="warnings"><strong>Read with care</strong><ul>{items}</ul></aside>'


def fact_list(facts: Mapping[str, str]) -> str:
    """Return named facts as a short list, less those that are empty."""
    items = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{prose(value)}</dd></div>"
        for name, value in facts.items()
        if value
    )
    return f'<dl class="facts">{items}</dl>'


def command_block(command: str | None) -> str:
    """Return the command that does it again."""
    if command:
        return f"<pre><code>{escape(command)}</code></pre>"
    return "<p>The command was not recorded; the settings below say what it asked for.</p>"


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

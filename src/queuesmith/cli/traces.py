"""``queuesmith traces``: what traffic there is, what it looks like, how to get or share it."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from queuesmith.cli.options import TrafficOptions, load, load_windows, parse_pairs
from queuesmith.cli.output import check_file, progress_bar, reader_may_leave, write_whole
from queuesmith.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console


_MODEL = "@model"
_TOML = ".toml"

Json = Annotated[bool, Parameter(name="--json", negative=())]

traces = App(
    name="traces",
    help="List, describe, fetch and import traffic, and fit models to it.",
    help_format="plaintext",
    result_action="return_value",
)


@traces.command(name="list")
def list_(*, json_: Json = False) -> None:
    """List the public traces, your own, and the models.

    Parameters
    ----------
    json_
        Print one JSON document instead of tables.
    """
    from queuesmith.traces.catalog import catalogue, find_file, list_imported, traces_folder
    from queuesmith.traces.synthetic import load_model, model_names

    # By size alone: hashing gigabytes is for when a file is used.
    at_hand = {name: find_file(name, check_hash=False) for name in catalogue()}
    document = {
        "schema": "queuesmith.traces.list/1",
        "folder": str(traces_folder()),
        "traces": [
            {**asdict(entry), "path": None if at_hand[name] is None else str(at_hand[name])}
            for name, entry in catalogue().items()
        ],
        "imported": [{**one.record, "path": str(one.path)} for one in list_imported()],
        "models": [
            {"name": name + _MODEL, "fit": dict(load_model(name).fit)} for name in model_names()
        ],
    }
    with reader_may_leave():
        if json_:
            print(json.dumps(document, indent=1))
        else:
            _print_list(document)


@traces.command
def describe(
    trace: str,
    *,
    output: Path | None = None,
    seed: int = 0,
    json_: Json = False,
    traffic: TrafficOptions | None = None,
) -> None:
    """Say what traffic looks like: rate, bursts, lengths, clients, sessions, prefixes.

    Parameters
    ----------
    trace
        A file, a name from `queuesmith traces list`, or NAME@model for modelled traffic.
    output
        Also draw it, as one HTML page that opens offline.
    seed
        Of the draw from a model.
    json_
        Print one JSON document instead of text.
    """
    if output is not None:
        check_file(output, "--output")
    from queuesmith.traces.describe import describe
    from queuesmith.traces.resemblance import resemblance
    from queuesmith.windows import splice

    found, _ = load_windows(trace, traffic or TrafficOptions(), seed, None)
    requests = splice([window.trace for window in found]) if isinstance(found, list) else found

    document = {**describe(requests), "resembles": resemblance(requests)}
    if output is not None:
        from queuesmith.report.traffic.page import write_traffic

        write_whole(output, lambda path: write_traffic(document, requests, path))
    with reader_may_leave():
        if json_:
            print(json.dumps(document, indent=1))
        else:
            from queuesmith.report.traffic.text import print_description

            print_description(document, _console())
    if output is not None:
        print(f"page: {output}", file=sys.stderr)


@traces.command
def fetch(name: str, *, folder: Path | None = None, json_: Json = False) -> None:
    """Get a public trace from its publisher, verified.

    Parameters
    ----------
    name
        From `queuesmith traces list`.
    folder
        Where to put it; QUEUESMITH_TRACES or your cache when left out.
    json_
        Print one JSON document instead of text.
    """
    from queuesmith.traces.catalog import get_entry
    from queuesmith.traces.fetch import fetch

    entry = get_entry(name)
    with progress_bar(f"fetching {entry.file}, bytes") as progress:
        fetched = fetch(name, folder, progress=progress)
    document = {
        "schema": "queuesmith.traces.fetch/1",
        "name": name,
        "path": str(fetched.path),
        "sha256": fetched.sha256,
        "verified": fetched.verified,
        "downloaded": fetched.downloaded,
        "license": entry.license,
        "license_url": entry.license_url,
        "citation": entry.citation,
    }
    if json_:
        print(json.dumps(document, indent=1))
        return
    console = _console()
    state = "SHA-256 verified" if fetched.verified else f"unverified, SHA-256 {fetched.sha256}"
    for line in (
        f"{fetched.path} ({'fetched' if fetched.downloaded else 'was here'}; {state})",
        f"licence: {entry.license}, {entry.license_url}",
        f"cite: {entry.citation}",
    ):
        _print(console, line)


@traces.command(name="import")
def import_(
    file: Path,
    *,
    name: str,
    folder: Path | None = None,
    columns: str | None = None,
    unit: str | None = None,
    hash_block_size: int | None = None,
    json_: Json = False,
) -> None:
    """Copy a file of your own under a name that every command understands.

    Parameters
    ----------
    file
        The trace.
    name
        Small letters, digits, - and _.
    folder
        Of traces; QUEUESMITH_TRACES or your cache when left out.
    columns
        Which column holds what, as for `queuesmith compare`; the copy needs it no longer.
    unit
        Of numeric times, as for `queuesmith compare`; the copy needs it no longer.
    hash_block_size
        Tokens in each hashed block of a prompt; the copy needs it no longer.
    json_
        Print one JSON document instead of text.
    """
    from queuesmith.traces.imported import import_file

    pairs = None if columns is None else parse_pairs("--columns", columns)
    imported = import_file(
        file, name, folder, columns=pairs, unit=unit, hash_block_size=hash_block_size
    )
    document = {"schema": "queuesmith.traces.import/1", **imported.record}
    document["path"] = str(imported.path)
    if json_:
        print(json.dumps(document, indent=1))
    else:
        _print(_console(), f"{imported.path}: {document['num_requests']:,} requests, as {name!r}")


@traces.command
def fit(
    trace: str,
    *,
    name: str,
    output: Path | None = None,
    json_: Json = False,
    traffic: TrafficOptions | None = None,
) -> None:
    """Fit a model to a trace: numbers to share instead of rows.

    Parameters
    ----------
    trace
        A file, or a name from `queuesmith traces list`.
    name
        Of the model.
    output
        File to write; NAME.toml when left out.
    json_
        Print one JSON document instead of text.
    """
    from queuesmith.traces.catalog import check_name

    check_name(name)
    target = output or Path(name + _TOML)
    if target.suffix != _TOML:
        raise ConfigError(f"--output writes {_TOML}, got {str(target)!r}")
    check_file(target, "--output")

    from queuesmith.traces.fit import fit_model
    from queuesmith.traces.synthetic import format_model

    model = fit_model(load(trace, traffic or TrafficOptions(), 0), name)
    text = format_model(model)
    write_whole(target, lambda path: path.write_text(text, encoding="utf-8"))
    document = {
        "schema": "queuesmith.traces.fit/1",
        "name": name,
        "path": str(target),
        "version": model.version,
        "fit": dict(model.fit),
    }
    if json_:
        print(json.dumps(document, indent=1))
    else:
        _print(_console(), f"{target}: fitted to {model.fit['num_requests']:,} requests")


def _print_list(document: dict[str, Any]) -> None:
    from rich.table import Table

    console = _console()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("public trace", "here", "size", "licence", "what"):
        table.add_column(heading, justify="right" if heading == "size" else "left")
    for entry in document["traces"]:
        table.add_row(
            entry["name"],
            "yes" if entry["path"] else "-",
            _size(entry["bytes"]),
            entry["license"],
            entry["title"],
        )
    console.print(table)
    if document["imported"]:
        console.print()
        table = Table("your own", "requests", box=None, pad_edge=False, header_style="bold")
        table.add_column("from", overflow="fold")
        for one in document["imported"]:
            table.add_row(one["name"], f"{one['num_requests']:,}", one["origin"])
        console.print(table)
    console.print()
    table = Table("model", "fitted to", box=None, pad_edge=False, header_style="bold")
    for model in document["models"]:
        source = model["fit"].get("source", "")
        table.add_row(model["name"], source if isinstance(source, str) else ", ".join(source))
    console.print(table)
    _print(
        console,
        f"\nFiles are looked for in {document['folder']}. `queuesmith traces fetch NAME` gets one, "
        "`describe NAME` says what it looks like, and any command takes a name for a trace.",
    )


def _size(num_bytes: int | None) -> str:
    if num_bytes is None:
        return "?"
    return f"{num_bytes / 1e6:,.1f} MB" if num_bytes >= 1e5 else f"{num_bytes / 1e3:,.1f} kB"


def _console() -> "Console":
    from rich.console import Console

    return Console(highlight=False, markup=False)


def _print(console: "Console", text: str) -> None:
    console.print(text, markup=False, soft_wrap=True)

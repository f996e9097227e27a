"""Read the logs that `queuesmith.traces.readers.formats` describes."""

import json
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

from queuesmith.traces.columns.cleaning import REQUIRED, Given
from queuesmith.traces.columns.jsonl import pick
from queuesmith.traces.columns.records import UNREADABLE, Records, Row, build_from_rows, seconds
from queuesmith.traces.columns.table import read_columns
from queuesmith.traces.columns.time_units import unit_of
from queuesmith.traces.measured import INSTANTS, LATENCIES
from queuesmith.traces.readers.formats import FORMATS, Format
from queuesmith.traces.trace import Trace


def find_format(records: Records, names: list[str]) -> Format | None:
    """Return the format of a file, None if it is none of these.

    Parameters
    ----------
    records : Records
        None for a table that is no JSON.
    names : list of str
        The file's columns, or the keys of its objects.
    """
    heads: list[Any] = list(records.head) or [dict.fromkeys(names, "")]
    for form in FORMATS:
        for group in form.known_by:
            if any(all(_has(head, name) for name in group) for head in heads):
                return form
    return None


def read_format(form: Format, records: Records, names: list[str], given: Given) -> Trace:
    """Read a file of a format.

    Raises
    ------
    TraceError
        If it lacks a column that every trace needs, or no record can be used.
    """
    source = records.source
    used: dict[str, str] = {}
    rows = [_row(form, record, used) for record in _objects(records, names, form)]
    sizes, notes = _hashed(rows), form.notes
    if sizes is not None and sizes[1]:
        notes += (f"requests whose hashes do not fit their prompt, left out: {sizes[1]:,}",)
    missing = "is a {} without {}; {}"
    units = {
        ours: unit
        for ours, there in used.items()
        if ours in ("arrival_time", *INSTANTS.values())
        and (unit := unit_of(there) or form.units.get(ours)) is not None
    }
    return build_from_rows(
        rows,
        source,
        reader=form.name,
        given=given,
        lacks={
            name: missing.format(form.tool, form.fields[name][0], form.lacks) for name in REQUIRED
        },
        units=units,
        own_unit=form.own_unit,
        block_size=sizes[0] if sizes is not None else None,
        notes=notes,
    )


def _objects(records: Records, names: list[str], form: Format) -> Iterator[dict[str, Any] | None]:
    if records.source.form == "jsonl":
        yield from records
        return
    wanted = {name.split(".")[0] for fields in form.fields.values() for name in fields}
    wanted |= {name.split(".")[0] for _, name, _ in form.left_out}
    columns, unreadable = read_columns(
        records.source, {name: name for name in names if name in wanted}
    )
    yield from [None] * unreadable
    for values in zip(*(column.to_pylist() for column in columns.values()), strict=True):
        yield dict(zip(columns, values, strict=True))


def _row(form: Format, record: dict[str, Any] | None, used: dict[str, str]) -> Row:
    if record is None:
        return UNREADABLE
    for reason, name, leaves_out in form.left_out:
        if leaves_out(pick(record, name)):
            return reason
    row: dict[str, Any] = {}
    for ours, fields in form.fields.items():
        for there in fields:
            value = _value(record, there)
            if value is None:
                continue
            if ours in LATENCIES:
                value = seconds(value, unit_of(there) or form.units.get(ours, "s"))
            used.setdefault(ours, there)
            row[ours] = value
            break
    if form.block_size is not None:
        row["block_size"] = pick(record, form.block_size)
    return row


def _hashed(rows: list[Row]) -> tuple[int, int] | None:
    """Keep hashes of the first block size only and that fit their prompt; None if none has any.

    Returns that size, and how many requests lose their hashes.
    """
    size, lost = None, 0
    for row in rows:
        if not isinstance(row, dict) or not isinstance(row.get("block_hashes"), list):
            continue
        own, prompt_len, hashes = row.get("block_size"), row.get("prompt_len"), row["block_hashes"]
        if size is None and type(own) is int and own > 0:
            size = own
        if size is None or own != size or type(prompt_len) is not int:
            row["block_hashes"] = None
        elif 0 <= len(hashes) - prompt_len // size <= (prompt_len % size > 0):
            row["block_hashes"] = [_signed(item) for item in hashes]
        else:
            row["block_hashes"] = None
            lost += 1
    return None if size is None else (size, lost)


def _value(record: dict[str, Any], there: str) -> Any:
    """Return what a field holds, or the sum of what several do."""
    if there.endswith("*"):
        way, _, pattern = there.rpartition(".")
        within = pick(record, way)
        if isinstance(within, str):  # a table holds objects as text
            try:
                within = json.loads(within)
            except (ValueError, RecursionError):
                return None
        if not isinstance(within, dict):
            return None
        return _sum(value for name, value in within.items() if fnmatchcase(name, pattern))
    if " + " not in there:
        return pick(record, there)
    first, *others = there.split(" + ")
    value = pick(record, first)
    more = _sum(pick(record, name) for name in others)
    return value if more is None or type(value) is not int else value + more


def _sum(values: Any) -> int | None:
    known = [value for value in values if type(value) is int]
    return sum(known) if known else None


def _signed(item: Any) -> Any:
    """Fold a whole number of 64 bits without a sign into one with."""
    return item - 2**64 if type(item) is int and 2**63 <= item < 2**64 else item


def _has(head: Any, name: str) -> bool:
    return pick(head, name) is not None

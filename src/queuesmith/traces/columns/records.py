"""Requests out of logs whose rows are no flat table: nested JSON, whole documents, lines of text.

A reader yields, for each record of a log, our columns by name, or the reason for which it is left
out; :func:`build_from_rows` makes the trace.
"""

import json
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import pyarrow as pa

from queuesmith.errors import TraceError
from queuesmith.traces.columns.cleaning import MEASURED, OPTIONAL, REQUIRED, Given, build_trace
from queuesmith.traces.columns.jsonl import as_text, json_rows, whole_numbers
from queuesmith.traces.columns.source import Source
from queuesmith.traces.columns.table import KNOWN_NAMES, normalise
from queuesmith.traces.columns.time_units import UNITS, unit_of, without_unit
from queuesmith.traces.measured import LATENCIES
from queuesmith.traces.trace import Trace

#: As `build_trace` calls it.
UNREADABLE = "row could not be read"
#: For the origin of every trace that a benchmark tool wrote.
LOAD_GENERATOR = "arrivals are those of a load generator, not of clients"
_NUM_HEAD = 100
_LATENCY_NAMES = {known: name for name in LATENCIES for known in KNOWN_NAMES[name]}
_PER_SECOND = {**UNITS, "sec": 1, "seconds": 1, "milliseconds": 1_000}

#: One request by our column names, or why a record is none.
Row = Mapping[str, Any] | str


@dataclass(frozen=True)
class Records:
    """The JSON objects of a file.

    Attributes
    ----------
    source : Source
    head : list of dict
        The first objects, at most 100; of a file that is one object over many lines, that one.
    whole : bool
        Whether the file is one object over many lines.
    """

    source: Source
    head: list[dict[str, Any]]
    whole: bool = False

    @classmethod
    def peek(cls, source: Source) -> "Records":
        """Read the first objects; none where the file is not JSON."""
        if source.form != "jsonl":
            return cls(source, [])
        if next(json_rows(source.data), None) is None:
            # Lines of an indented document may look like objects, so the whole is tried first.
            try:
                document = json.loads(source.data)
            except (ValueError, RecursionError):
                pass
            else:
                return (
                    cls(source, [document], whole=True)
                    if isinstance(document, dict)
                    else cls(source, [])
                )
        known = (row for row in json_rows(source.data) if row is not None)
        return cls(source, list(islice(known, _NUM_HEAD)))

    def __iter__(self) -> Iterator[dict[str, Any] | None]:
        """Yield every object, None for a line that is none."""
        if self.whole:
            yield from self.head
        else:
            yield from json_rows(self.source.data)

    @property
    def names(self) -> list[str]:
        """The keys of the first objects, in order of appearance."""
        return list({name: None for row in self.head for name in row})


def dig(value: Any, *path: str) -> Any:
    """Follow keys into nested objects; None where the way ends.

    Examples
    --------
    >>> dig({"usage": {"prompt_tokens": 7}}, "usage", "prompt_tokens")
    7
    """
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def first_known(row: Any, names: Iterable[str]) -> Any:
    """Return the value of the first of some keys that is there and not null."""
    if isinstance(row, dict):
        for name in names:
            if row.get(name) is not None:
                return row[name]
    return None


def seconds(value: Any, unit: Any = "s") -> float | None:
    """Return a duration of JSON in seconds; None for what is no number or of no known unit.

    Examples
    --------
    >>> seconds(12.5, "ms"), seconds("fast", "ms"), seconds(True), seconds(1.5, "tokens")
    (0.0125, None, None, None)
    """
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    per_second = _PER_SECOND.get(unit) if isinstance(unit, str) else None
    if not isinstance(value, int | float) or isinstance(value, bool) or per_second is None:
        return None
    try:
        return value / per_second
    except OverflowError:
        return None


@dataclass
class Durations:
    """Latencies that records hold under usual names beside what a format defines.

    Attributes
    ----------
    unsure : set of str
        Those of which some field's name tells no unit; such values stay as they are.
    """

    unsure: set[str] = field(default_factory=set)

    def find(self, row: Any) -> dict[str, float]:
        """Return a record's latencies by our name, in seconds where their name tells the unit."""
        found: dict[str, float] = {}
        for there, value in row.items() if isinstance(row, dict) else ():
            name = _LATENCY_NAMES.get(normalise(without_unit(there)))
            if name is None or name in found:
                continue
            unit = unit_of(there)
            number = seconds(value, unit or "s")
            if number is not None:
                found[name] = number
                if unit is None:
                    self.unsure.add(name)
        return found


def build_from_rows(
    rows: Iterable[Row],
    source: Source,
    *,
    reader: str,
    given: Given,
    lacks: Mapping[str, str],
    units: Mapping[str, str] | None = None,
    unsure: Container[str] = (),
    own_unit: str | None = None,
    block_size: int | None = None,
    notes: tuple[str, ...] = (),
) -> Trace:
    """Make a trace of what a reader found.

    Parameters
    ----------
    rows : iterable
        For each record our columns by name, or the reason for which it is left out.
    source : Source
    reader : str
        For the origin.
    given : Given
        What the user says of units and blocks.
    lacks : mapping of str to str
        For each column in `REQUIRED`, what to say after the file's name when no record has it.
    units, own_unit, block_size, notes
        As for `queuesmith.traces.columns.cleaning.build_trace`.
    unsure : container of str
        Latencies that are not known to be in seconds.

    Raises
    ------
    TraceError
        If there is no request, none has some column, or none can be used.
    """
    dropped: Counter[str] = Counter()
    columns: dict[str, list[str | None]] = {name: [] for name in (*REQUIRED, *OPTIONAL, *MEASURED)}
    hashes: list[list[int] | None] = []
    for row in rows:
        if isinstance(row, str):
            dropped[row] += 1
            continue
        for name, values in columns.items():
            values.append(as_text(row.get(name)))
        hashes.append(whole_numbers(row.get("block_hashes")))
    if not columns["arrival_time"]:
        why = ", ".join(f"{reason} ({count:,})" for reason, count in dropped.items())
        raise TraceError(
            f"{source.name} is read as {reader} and holds no request{why and f': {why}'}; "
            "give a log of answered requests"
        )
    for name in REQUIRED:
        if not any(columns[name]):
            raise TraceError(f"{source.name} {lacks[name]}")
    arrays = {
        name: pa.array(values, pa.string())
        for name, values in columns.items()
        if name in REQUIRED or any(values)
    }
    if any(hashes):
        arrays["block_hashes"] = pa.array(hashes, pa.list_(pa.int64()))
    trace = build_trace(
        arrays,
        source,
        reader=reader,
        given=given,
        units={name: "s" for name in LATENCIES if name not in unsure} | dict(units or {}),
        own_unit=own_unit,
        block_size=block_size,
        notes=notes,
    )
    return trace.with_origin(dropped={**dropped, **trace.origin.dropped})

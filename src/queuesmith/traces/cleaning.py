"""From columns as a file holds them to a `Trace`: one set of rules for every reader.

A row is left out when a value that must be known is missing or impossible, and counted under the
first reason that applies; what is unusual but usable is said in the notes.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from queuesmith.errors import ConfigError, TraceError
from queuesmith.traces.block_hashes import BlockHashes
from queuesmith.traces.measured import INSTANTS, LATENCIES, clean_measured
from queuesmith.traces.source import Source, one_line
from queuesmith.traces.trace import MAX_TIME, MAX_TOKENS, Origin, Trace

REQUIRED = ("arrival_time", "prompt_len", "output_len")
OPTIONAL = (
    "client",
    "session",
    "turn",
    "priority",
    "max_tokens",
    "deadline",
    "abort_time",
    "think_time",
)
#: How long requests took: seconds, or instants on the clock of arrivals.
MEASURED = (*LATENCIES, *INSTANTS.values())

#: Columns of whole numbers, with what stands for a missing one where one may be missing.
_COUNTS = {"prompt_len": 1, "output_len": 1, "turn": -1, "priority": 0, "max_tokens": MAX_TOKENS}

#: Ticks per second of every unit that times may be given in.
UNITS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}

_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?$"
_DATE = (
    r"^(1[7-9]|20|21)\d\d-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"
    r"([ T]([01]\d|2[0-3])(:[0-5]\d){1,2}(\.\d{1,9})?)?"
)
_ZONE = r"(Z|[+-]\d\d(:?\d\d)?)$"
#: With fewer requests, equal times may be chance.
_MIN_FOR_BATCHES = 100
#: Beyond it float64 no longer holds every whole number.
_EXACT = 2.0**53


@dataclass(frozen=True)
class _Times:
    """A column of times: whole ticks where the file has them, so that no digit is lost."""

    ticks: NDArray[Any]
    known: NDArray[np.bool_]
    per_second: int
    dated: bool


def build_trace(
    columns: Mapping[str, pa.Array],
    source: Source,
    *,
    reader: str,
    unit: str | None = None,
    block_size: int | None = None,
    unreadable: int = 0,
    notes: tuple[str, ...] = (),
    units: Mapping[str, str] | None = None,
) -> Trace:
    """Clean columns and make a trace that starts at 0.

    Parameters
    ----------
    columns : mapping of str to pyarrow.Array
        Every name in `REQUIRED`, some in `OPTIONAL` and `MEASURED`; all of one length, of any plain
        type. With a `block_size` also ``block_hashes``, lists of whole numbers.
    source : Source
    reader : str
        For the origin.
    unit : {"s", "ms", "us", "ns"}, optional
        Of times that are plain numbers, seconds when left out; dates carry their own.
    block_size : int, optional
        Tokens in each block of a prompt.
    unreadable : int
        Rows that the reader could not take apart.
    notes : tuple of str
        For the origin.
    units : mapping of str to {"s", "ms", "us", "ns"}, optional
        Of measured durations that are not in seconds.

    Raises
    ------
    ConfigError
        If there is no such unit.
    TraceError
        If a column holds no numbers at all or no row is left.
    """
    unit = "s" if unit is None else unit
    if unit not in UNITS:
        raise ConfigError(f"unit must be one of {', '.join(UNITS)}, got {unit!r}")
    where = {name: f"{source.name}: the column for {name}" for name in columns}
    arrivals = _times(where["arrival_time"], columns["arrival_time"], unit)
    numbers = {name: _numbers(where[name], columns[name]) for name in _COUNTS if name in columns}
    kept, dropped = _count_faults(len(arrivals.ticks), _faults(arrivals, numbers))
    if unreadable:
        dropped = {"row could not be read": unreadable, **dropped}
    if not kept.any():
        raise TraceError(_nothing_left(source.name, dropped))

    rows = np.flatnonzero(kept)
    start = arrivals.ticks[rows].min()
    seconds = (arrivals.ticks[rows] - start) / arrivals.per_second
    backwards = int(np.count_nonzero(np.diff(seconds) < 0))
    if backwards:
        by_time = np.argsort(seconds, kind="stable")
        rows, seconds = rows[by_time], seconds[by_time]
        notes += (f"rows out of order, now sorted by arrival time: {backwards:,}",)

    notes += _batched_note(seconds)

    fields: dict[str, Any] = {}
    for name, values in numbers.items():
        missing = np.isnan(values[rows])
        fields[name] = np.where(missing, _COUNTS[name], values[rows]).astype(np.int64)
        notes += _missing_note(name, missing)
    for name in ("client", "session"):
        if name in columns:
            fields[name] = _codes(where[name], columns[name].take(pa.array(rows)))
    for name in ("deadline", "abort_time"):
        if name not in columns:
            continue
        times = _times(where[name], columns[name], unit)
        if times.dated != arrivals.dated and times.known.any():
            raise TraceError(
                f"{source.name}: {name} and arrival_time must be on one clock, "
                "but one holds dates and the other numbers; convert one of them"
            )
        known = times.known[rows] & (times.ticks[rows] >= 0)
        due = (np.where(known, times.ticks[rows], start) - start) / times.per_second
        if name == "abort_time":
            known &= due >= seconds  # nobody gives up before asking
        fields[name] = np.where(known, due, np.inf)
        notes += _missing_note(name, ~known)
    if "think_time" in columns and "session" in columns:
        fields["think_time"], remarks = _think_times(columns["think_time"], rows, unit)
        notes += remarks
    elif "think_time" in columns:
        notes += ("think_time left out, since no session says whose answers are waited for",)
    if block_size is not None:
        hashes = _block_hashes(columns["block_hashes"].take(pa.array(rows)), block_size)
        fields["block_hashes"] = hashes
        notes += _missing_note("block hashes", hashes.num_blocks == 0)
        notes += _mismatch_note(fields["prompt_len"], hashes)
    latencies = _latencies(columns, arrivals, rows, unit, units or {})
    fields["measured"], remarks = clean_measured(fields["output_len"], **latencies)
    notes += remarks
    origin = Origin("real", source.name, source.sha256, reader, dropped, notes)
    return Trace(seconds, **fields, origin=origin)


def _think_times(
    column: pa.Array, rows: NDArray[np.int64], unit: str
) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    """Return think times in seconds, NaN where there is none, and what is to be noted of them."""
    times = _numbers("think_time", column)[rows] / UNITS[unit]
    wrong = ~np.isnan(times) & ~((times >= 0) & (times <= MAX_TIME))
    if not wrong.any():
        return times, ()
    count = int(np.count_nonzero(wrong))
    return np.where(wrong, np.nan, times), (f"think times negative or too large: {count:,}",)


def _latencies(
    columns: Mapping[str, pa.Array],
    arrivals: _Times,
    rows: NDArray[np.int64],
    unit: str,
    units: Mapping[str, str],
) -> dict[str, NDArray[np.float64]]:
    """Return the seconds that measured columns say; nobody who did not ask is refused for them."""
    found: dict[str, NDArray[np.float64]] = {}
    for name in columns:
        try:
            if name in LATENCIES:
                found[name] = _numbers(name, columns[name])[rows] / UNITS[units.get(name, "s")]
            elif name in INSTANTS.values():
                times = _times(name, columns[name], unit)
                if times.dated == arrivals.dated:
                    passed = times.ticks[rows] - arrivals.ticks[rows]
                    found[name] = np.where(times.known[rows], passed / times.per_second, np.nan)
        except TraceError:
            continue  # a column of that name which holds something else
    for name, instant in INSTANTS.items():
        since = found.pop(instant, None)
        if since is not None:
            told = found.get(name, since)
            found[name] = np.where(np.isnan(told), since, told)
    return found


def _faults(
    arrivals: _Times, numbers: Mapping[str, NDArray[np.float64]]
) -> list[tuple[str, NDArray[np.bool_]]]:
    """List what makes a row unusable, by reason, in the order in which reasons count."""
    faults = _time_faults(arrivals)
    # A failed request has no output, and in some files no prompt either.
    faults.append(("output_len 0: a failed request", numbers["output_len"] == 0))
    for name in ("prompt_len", "output_len", "max_tokens"):
        if name in numbers:
            faults += _length_faults(name, numbers[name], needed=name in REQUIRED)
    for name in ("turn", "priority"):
        if name in numbers:
            size = np.abs(numbers[name])
            wrong = (size >= _EXACT) | (np.isfinite(size) & (size != np.floor(size)))
            faults.append((f"{name} not a whole number", wrong))
    return faults


def _time_faults(times: _Times) -> list[tuple[str, NDArray[np.bool_]]]:
    seconds = times.ticks / times.per_second
    # Dates before 1970 are typing errors; with them a difference could overflow.
    negative = "arrival_time before 1970" if times.dated else "arrival_time negative"
    return [
        ("arrival_time missing, infinite or not a time", ~times.known),
        (negative, times.known & (seconds < 0)),
        (f"arrival_time above {MAX_TIME:g} s", times.known & (seconds > MAX_TIME)),
    ]


def _length_faults(
    name: str, lengths: NDArray[np.float64], needed: bool
) -> list[tuple[str, NDArray[np.bool_]]]:
    faults = [
        (f"{name} negative", lengths < 0),
        (f"{name} above {MAX_TOKENS:,} tokens", lengths > MAX_TOKENS),
        (f"{name} not a whole number", np.isfinite(lengths) & (lengths != np.floor(lengths))),
    ]
    if needed:
        faults.insert(0, (f"{name} missing or not a number", np.isnan(lengths)))
    return [*faults, (f"{name} 0", lengths == 0)]


def _missing_note(name: str, missing: NDArray[np.bool_]) -> tuple[str, ...]:
    count = int(np.count_nonzero(missing))
    return (f"requests without {name}: {count:,}",) if count else ()


def _batched_note(seconds: NDArray[np.float64]) -> tuple[str, ...]:
    """Warn of times that a log has rounded or batched, which hides every shorter gap."""
    steps = np.diff(seconds)
    steps = steps[steps > 0]
    num_times = len(steps) + 1
    if len(seconds) < _MIN_FOR_BATCHES or num_times == 1 or 2 * num_times > len(seconds):
        return ()
    return (
        f"the requests arrive at only {num_times:,} different times, mostly "
        f"{np.median(steps):.3g} s apart: shorter gaps are not known",
    )


def _mismatch_note(prompt_len: NDArray[np.int64], blocks: BlockHashes) -> tuple[str, ...]:
    """Count prompts that have another number of blocks; a last part may be a block or not."""
    full, part = np.divmod(prompt_len, blocks.block_size)
    spare = blocks.num_blocks - full
    wrong = (blocks.num_blocks > 0) & (spare != 0) & ((spare != 1) | (part == 0))
    count = int(np.count_nonzero(wrong))
    told = f"requests whose prompt is not as long as its {blocks.block_size}-token blocks"
    return (f"{told}: {count:,}",) if count else ()


def _count_faults(
    num_rows: int, reasons: list[tuple[str, NDArray[np.bool_]]]
) -> tuple[NDArray[np.bool_], dict[str, int]]:
    """Return which rows stay, and how many fall to each reason, the first one counting."""
    kept = np.ones(num_rows, dtype=bool)
    dropped = {}
    for reason, wrong in reasons:
        count = int(np.count_nonzero(kept & wrong))
        if count:
            dropped[reason] = count
            kept &= ~wrong
    return kept, dropped


def _nothing_left(name: str, dropped: Mapping[str, int]) -> str:
    if not dropped:
        return f"{name} has a header but no rows; give a file with one request per row"
    why = ", ".join(f"{reason} ({count:,})" for reason, count in dropped.items())
    return f"{name} has no usable row: {why}; check that the columns are the right ones"


def _times(where: str, column: pa.Array, unit: str) -> _Times:
    if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
        return _dates(where, column)
    if pa.types.is_string(column.type):
        column = _trim(column)
        # The usual case at once: trying it where the first value is a number would cost seconds.
        first = str(column[0]) if len(column) else ""
        all_dates = _whole_dates(column) if re.match(_DATE, first) else None
        if all_dates is not None:
            return _dates(where, all_dates)
    numbers = _numbers(where, column)
    known = np.isfinite(numbers)
    if pa.types.is_string(column.type) and not known.all():
        dates = _dates(where, _lenient_dates(column))
        if np.count_nonzero(dates.known) > np.count_nonzero(known):
            return dates
    if known.any() and np.abs(numbers[known]).max() >= _EXACT:
        # Nanoseconds since 1970 need every digit of an integer.
        whole = _cast(column.filter(pa.array(known)), pa.int64())
        if whole is not None:
            ticks = np.zeros(len(numbers), np.int64)
            ticks[known] = whole.to_numpy(zero_copy_only=False)
            return _Times(ticks, known, UNITS[unit], dated=False)
    return _Times(np.where(known, numbers, 0.0), known, UNITS[unit], dated=False)


def _dates(where: str, column: pa.Array) -> _Times:
    """Split dates into whole nanoseconds and which of them are known."""
    try:
        ticks = column.cast(pa.timestamp("ns")).cast(pa.int64())
    except pa.ArrowException as error:
        raise TraceError(
            f"{where} holds dates outside 1677 to 2262 ({one_line(error)}); correct them"
        ) from None
    known = column.is_valid().to_numpy(zero_copy_only=False)
    return _Times(ticks.fill_null(0).to_numpy(zero_copy_only=False), known, UNITS["ns"], dated=True)


def _numbers(where: str, column: pa.Array) -> NDArray[np.float64]:
    """Convert a column of any plain type to float64, NaN where there is no number."""
    if pa.types.is_null(column.type):
        return np.full(len(column), np.nan)
    if pa.types.is_string(column.type):
        values = _lenient_cast(_trim(column), pa.float64(), _NUMBER)
    elif (
        pa.types.is_integer(column.type)
        or pa.types.is_floating(column.type)
        or pa.types.is_decimal(column.type)
    ):
        values = column.cast(pa.float64(), safe=False)
    else:
        raise TraceError(f"{where} holds {column.type}, not numbers; map another with --columns")
    numbers: NDArray[np.float64] = values.to_numpy(zero_copy_only=False)
    return numbers


def _codes(where: str, column: pa.Array) -> NDArray[np.int64]:
    """Convert names to integers in order of first appearance; integers stay; -1 where missing."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_nested(column.type):
        raise TraceError(f"{where} holds {column.type}, not names; map another with --columns")
    if pa.types.is_string(column.type):
        column = pc.if_else(pc.equal(_trim(column), ""), None, _trim(column))
    if pa.types.is_floating(column.type):
        # pandas writes whole numbers with gaps as floats.
        column = pc.if_else(pc.is_nan(column), None, column)
    whole = _cast(column, pa.int64())
    if whole is not None:
        return np.asarray(whole.fill_null(-1).to_numpy(zero_copy_only=False), np.int64)
    indices = column.dictionary_encode().indices
    return np.asarray(indices.fill_null(-1).to_numpy(zero_copy_only=False), np.int64)


def _block_hashes(column: pa.Array, block_size: int) -> BlockHashes:
    """Gather lists of whole numbers; a row that has none, or holds anything else, has no block."""
    num_blocks = np.zeros(len(column), np.int64)
    hashes = np.empty(0, np.int64)
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        items = _cast(column.flatten(), pa.int64())
        if items is not None:
            counts = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
            known = items.is_valid().to_numpy(zero_copy_only=False)
            row = np.repeat(np.arange(len(column)), counts)
            whole = np.ones(len(column), bool)
            whole[row[~known]] = False
            num_blocks = np.where(whole, counts, 0)
            hashes = items.fill_null(0).to_numpy(zero_copy_only=False)[whole[row]]
    return BlockHashes(np.concatenate([[0], np.cumsum(num_blocks)]), hashes, block_size)


def _trim(column: pa.Array) -> pa.Array:
    try:
        return pc.utf8_trim_whitespace(column)
    except pa.ArrowException:  # Parquet takes any bytes for text
        raise TraceError("a column of text is not UTF-8; write the file again") from None


def _cast(column: pa.Array, to: pa.DataType) -> pa.Array | None:
    try:
        return column.cast(to)
    except pa.ArrowException:
        return None


def _whole_dates(text: pa.Array) -> pa.Array | None:
    """Read ISO dates that all have a time zone, or all have none and are then UTC."""
    for zone in (None, "UTC"):
        dates = _cast(text, pa.timestamp("ns", zone))
        if dates is not None:
            return dates.cast(pa.timestamp("ns"))
    return None


def _lenient_dates(text: pa.Array) -> pa.Array:
    """Read ISO dates with or without a time zone, null where there is none."""
    plain = _lenient_cast(text, pa.timestamp("ns"), _DATE + "$")
    zoned = _lenient_cast(text, pa.timestamp("ns", "UTC"), _DATE + _ZONE)
    return pc.coalesce(plain, zoned.cast(pa.timestamp("ns")))


def _lenient_cast(text: pa.Array, to: pa.DataType, pattern: str) -> pa.Array:
    """Cast text, null where it cannot be; the pattern rules out most failures at once."""
    values = _cast(text, to)
    if values is None:
        shaped = pc.match_substring_regex(text, pattern)
        values = _cast_by_halves(pc.if_else(shaped, text, None), to)
    return values


def _cast_by_halves(text: pa.Array, to: pa.DataType) -> pa.Array:
    """Cast text that is almost everywhere right, such as dates with a 30 February among them."""
    values = _cast(text, to)
    if values is not None:
        return values
    if len(text) == 1:
        return pa.nulls(1, to)
    middle = len(text) // 2
    return pa.concat_arrays(
        [_cast_by_halves(text[:middle], to), _cast_by_halves(text[middle:], to)]
    )

"""From columns as a file holds them to a `Trace`: one set of rules for every reader.

A row is left out when a value that must be known is missing or impossible, and counted under the
first reason that applies; what is unusual but usable is said in the notes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from queuesmith.errors import TraceError
from queuesmith.traces.block_hashes import BlockHashes, fits, infer_block_size
from queuesmith.traces.columns.clocks import Clock, Clocks
from queuesmith.traces.columns.source import Source
from queuesmith.traces.columns.values import EXACT, read_codes, read_numbers
from queuesmith.traces.measured import INSTANTS, LATENCIES, clean_measured
from queuesmith.traces.trace import MAX_TIME, MAX_TOKENS, Guess, Origin, Trace

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
#: How long requests took: durations, or instants on the clock of arrivals.
MEASURED = (*LATENCIES, *INSTANTS.values())

#: Columns of whole numbers, with what stands for a missing one where one may be missing.
_COUNTS = {"prompt_len": 1, "output_len": 1, "turn": -1, "priority": 0, "max_tokens": MAX_TOKENS}
#: With fewer requests, equal times may be chance.
_MIN_FOR_BATCHES = 100
#: The share of prompts that agree with a format's block size, below which another is looked for.
_MOST = 0.9
_TOO_LATE = f"arrival_time above {MAX_TIME:g} s"
_OTHER_COLUMNS = "check that the columns are the right ones"


@dataclass(frozen=True)
class Given:
    """What the user says of a file, beside its columns.

    Attributes
    ----------
    unit : str, optional
        Of times that are plain numbers.
    hash_block_size : int, optional
        Tokens in each block of a prompt that the file has a hash of; 0 to leave hashes out.
    """

    unit: str | None = None
    hash_block_size: int | None = None


NOTHING_GIVEN = Given()


def build_trace(
    columns: Mapping[str, pa.Array],
    source: Source,
    *,
    reader: str,
    given: Given = NOTHING_GIVEN,
    units: Mapping[str, str] | None = None,
    own_unit: str | None = None,
    block_size: int | None = None,
    unreadable: int = 0,
    notes: tuple[str, ...] = (),
) -> Trace:
    """Clean columns and make a trace that starts at 0.

    Parameters
    ----------
    columns : mapping of str to pyarrow.Array
        Every name in `REQUIRED`, some in `OPTIONAL` and `MEASURED`; all of one length, of any plain
        type; ``block_hashes`` as lists of whole numbers.
    source : Source
    reader : str
        For the origin.
    given : Given
        What the user says; dates carry their own unit.
    units : mapping of str to {"s", "ms", "us", "ns"}, optional
        Of single columns, as their field's name or the format says.
    own_unit : {"s", "ms", "us", "ns"}, optional
        Of instants that are plain numbers, as the format says.
    block_size : int, optional
        Tokens in each block of a prompt, as the format says.
    unreadable : int
        Rows that the reader could not take apart.
    notes : tuple of str
        For the origin.

    Raises
    ------
    ConfigError
        If there is no such unit, or it contradicts the file.
    TraceError
        If a column holds no numbers at all, no row is left, times are impossible, or hashes are of
        no block size.
    """
    clocks = Clocks(source.name, columns, given.unit, units, own_unit)
    arrivals = clocks.arrivals
    where = {name: f"{source.name}: the column for {name}" for name in columns}
    numbers = {
        name: read_numbers(where[name], columns[name]) for name in _COUNTS if name in columns
    }
    kept, dropped = _count_faults(len(arrivals.times.ticks), _faults(arrivals, numbers))
    if unreadable:
        dropped = {"row could not be read": unreadable, **dropped}
    if not kept.any():
        raise TraceError(_nothing_left(source.name, dropped))

    rows = np.flatnonzero(kept)
    start = arrivals.times.ticks[rows].min()
    seconds = (arrivals.times.ticks[rows] - start) / arrivals.per_second
    backwards = int(np.count_nonzero(np.diff(seconds) < 0))
    if backwards:
        by_time = np.argsort(seconds, kind="stable")
        rows, seconds = rows[by_time], seconds[by_time]
        notes += (f"rows out of order, now sorted by arrival time: {backwards:,}",)
    clocks.check_pace(seconds)

    notes += _batched_note(seconds)

    fields: dict[str, Any] = {}
    for name, values in numbers.items():
        missing = np.isnan(values[rows])
        fields[name] = np.where(missing, _COUNTS[name], values[rows]).astype(np.int64)
        notes += _missing_note(name, missing)
    for name in ("client", "session"):
        if name in columns:
            fields[name] = read_codes(where[name], columns[name].take(pa.array(rows)))
    for name in ("deadline", "abort_time"):
        if name in columns:
            due, known = _due(source.name, name, clocks, rows, seconds)
            fields[name] = np.where(known, due, np.inf)
            notes += _missing_note(name, ~known)
    if "think_time" in columns and "session" in columns:
        fields["think_time"], remarks = _think_times(clocks, rows)
        notes += remarks
    elif "think_time" in columns:
        notes += ("think_time left out, since no session says whose answers are waited for",)
    if "block_hashes" in columns and given.hash_block_size != 0:
        counts, hashes = _list_items(columns["block_hashes"].take(pa.array(rows)))
        size, remarks = _block_size(source.name, fields["prompt_len"], counts, given, block_size)
        notes += remarks
        if size is not None:
            offsets = np.concatenate([[0], np.cumsum(counts)])
            fields["block_hashes"] = BlockHashes(offsets, hashes, size)
            notes += _missing_note("block hashes", counts == 0)
            wrong = (counts > 0) & ~fits(fields["prompt_len"], counts, size)
            count = int(np.count_nonzero(wrong))
            if count:
                what = f"requests whose prompt is not as long as its {size}-token blocks"
                notes += (f"{what}: {count:,}",)
    fields["measured"], remarks = clean_measured(
        fields["output_len"], **_latencies(clocks, columns, rows, seconds)
    )
    notes += (*clocks.notes, *remarks)
    origin = Origin("real", source.name, source.sha256, reader, dropped, notes)
    return Trace(seconds, **fields, origin=origin)


def _due(
    file: str, name: str, clocks: Clocks, rows: NDArray[np.int64], seconds: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return instants on the trace's clock, and which of them are known."""
    clock = clocks.instants(name)
    times = clock.times
    if times.dated != clocks.arrivals.times.dated and times.known.any():
        raise TraceError(
            f"{file}: {name} and arrival_time must be on one clock, "
            "but one holds dates and the other numbers; convert one of them"
        )
    known = times.known[rows] & (times.ticks[rows] >= 0)
    first = clocks.arrivals.times.ticks[rows].min()
    if clock.unit == clocks.arrivals.unit:
        due = (np.where(known, times.ticks[rows], first) - first) / clock.per_second
    else:
        due = clock.seconds[rows] - first / clocks.arrivals.per_second
    if name == "abort_time":
        known = known & (due >= seconds)  # nobody gives up before asking
    return due, known


def _think_times(
    clocks: Clocks, rows: NDArray[np.int64]
) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    """Return think times in seconds, NaN where there is none, and what is to be noted of them."""
    times = clocks.durations("think_time")[0][rows]
    wrong = ~np.isnan(times) & ~((times >= 0) & (times <= MAX_TIME))
    if not wrong.any():
        return times, ()
    count = int(np.count_nonzero(wrong))
    return np.where(wrong, np.nan, times), (f"think times negative or too large: {count:,}",)


def _latencies(
    clocks: Clocks,
    columns: Mapping[str, pa.Array],
    rows: NDArray[np.int64],
    seconds: NDArray[np.float64],
) -> dict[str, NDArray[np.float64]]:
    """Return the seconds that measured columns say; nobody who did not ask is refused for them."""
    found: dict[str, NDArray[np.float64]] = {}
    assumed: dict[str, NDArray[np.float64]] = {}
    for name in columns:
        try:
            if name in LATENCIES:
                values, how = clocks.durations(name)
                found[name] = values[rows]
                if how == "assumed":
                    assumed[name] = found[name]
            elif name in INSTANTS.values():
                since = clocks.since_arrival(name)
                if since is not None:
                    found[name] = since[rows]
        except TraceError:
            continue  # a column of that name which holds something else
    clocks.check_latencies(assumed, seconds)
    for name, instant in INSTANTS.items():
        passed = found.pop(instant, None)
        if passed is not None:
            told = found.get(name, passed)
            found[name] = np.where(np.isnan(told), passed, told)
    return found


def _block_size(
    file: str,
    prompt_len: NDArray[np.int64],
    num_blocks: NDArray[np.int64],
    given: Given,
    own: int | None,
) -> tuple[int | None, tuple[str, ...]]:
    """Return of how many tokens blocks are: as told, or else as prompts and hashes agree on.

    A prompt within one block says nothing against any size.
    """
    told = given.hash_block_size or own
    there = num_blocks > 0
    share = 0.0
    if told is not None:
        telling = there & ((num_blocks > 1) | (prompt_len > told))
        fit = fits(prompt_len, num_blocks, told)[telling]
        share = float(fit.mean()) if len(fit) else 1.0
    found = infer_block_size(prompt_len, num_blocks)
    if not there.any() or share >= _MOST or (share >= 0.5 and (found is None or told != own)):
        return told, ()
    usual = float(np.median(prompt_len[there] / num_blocks[there]))
    if given.hash_block_size is not None:
        better = f"leave it out, for {found}" if found else "leave hashes out with 0"
        raise TraceError(
            f"{file}: --hash-block-size {given.hash_block_size} contradicts most prompts, which "
            f"have a hash for every {usual:,.0f} tokens; {better}"
        )
    if found is None:
        raise TraceError(
            f"{file}: hashes are of no block size: prompts have one for every {usual:,.0f} tokens, "
            "but most lengths fit none; say it with --hash-block-size N, or leave hashes out with "
            "--hash-block-size 0"
        )
    return found, (
        Guess(
            f"hashes taken as of {found}-token blocks, since prompts have one for every "
            f"{usual:,.0f} tokens; --hash-block-size says otherwise"
        ),
    )


def _list_items(column: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return how many whole numbers each list has, 0 for what is no such list, and all of them."""
    none = np.zeros(len(column), np.int64), np.empty(0, np.int64)
    if not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
        return none
    try:
        items = column.flatten().cast(pa.int64())
    except pa.ArrowException:
        return none
    counts = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
    known = items.is_valid().to_numpy(zero_copy_only=False)
    row = np.repeat(np.arange(len(column)), counts)
    whole = np.ones(len(column), bool)
    whole[row[~known]] = False
    values = items.fill_null(0).to_numpy(zero_copy_only=False)[whole[row]]
    return np.where(whole, counts, 0).astype(np.int64), np.asarray(values, np.int64)


def _faults(
    arrivals: Clock, numbers: Mapping[str, NDArray[np.float64]]
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
            wrong = (size >= EXACT) | (np.isfinite(size) & (size != np.floor(size)))
            faults.append((f"{name} not a whole number", wrong))
    return faults


def _time_faults(arrivals: Clock) -> list[tuple[str, NDArray[np.bool_]]]:
    times, seconds = arrivals.times, arrivals.seconds
    # Dates before 1970 are typing errors; with them a difference could overflow.
    negative = "arrival_time before 1970" if times.dated else "arrival_time negative"
    return [
        ("arrival_time missing, infinite or not a time", ~times.known),
        (negative, times.known & (seconds < 0)),
        (_TOO_LATE, times.known & (seconds > MAX_TIME)),
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
    late = max(dropped, key=lambda reason: dropped[reason]) == _TOO_LATE
    cure = "say the unit with --unit ms, us or ns" if late else _OTHER_COLUMNS
    return f"{name} has no usable row: {why}; {cure}"

"""Read Mooncake traces: those of Kimi's service, and what AIPerf and others write in their form.

One JSON object per line: timestamp (milliseconds), input_length, output_length, and hash_ids, which
number the prompt's blocks, of 512 tokens in the published traces, so that equal numbers share a
prefix. Where a tool leaves hash_ids out the rest is read alike. AIPerf adds session_id, and gives a
later turn, instead of a timestamp, a ``delay``: milliseconds from the answer before it.

GuideLLM writes the same names in seconds with fractions, and others in whole seconds: that is how
times are taken where, in milliseconds, more requests would come than any such trace has. A note
says which.

References
----------
Qin et al., "Mooncake: Trading More Storage for Less Computation", FAST 2025.
https://github.com/kvcache-ai/Mooncake, Apache-2.0.
AIPerf, ``MooncakeTrace`` in src/aiperf/dataset/loader/models.py (0.14).
"""

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from queuesmith.traces.columns.cleaning import Given, build_trace
from queuesmith.traces.columns.source import Source
from queuesmith.traces.columns.table import map_columns, map_known, read_columns, time_units
from queuesmith.traces.columns.time_units import epoch_unit
from queuesmith.traces.columns.values import read_codes, read_numbers
from queuesmith.traces.trace import Guess, Trace

BLOCK_SIZE = 512
_NEEDED = {
    "arrival_time": "timestamp",
    "prompt_len": "input_length",
    "output_len": "output_length",
}
#: Milliseconds between two requests, below which times with fractions, or whole ones, are seconds.
_DENSEST, _DENSEST_WHOLE = 20.0, 2.0


def is_mooncake(names: list[str]) -> bool:
    """Tell whether a table has the Mooncake columns, in any order and case."""
    return len(map_known(names, _NEEDED)) == len(_NEEDED)


def read_mooncake(source: Source, names: list[str], given: Given) -> Trace:
    """Read a Mooncake trace.

    A turn with a delay waits for the answer before it with ``--closed-loop``. Without, it is taken
    to come its delay after the turn before it came, which is too early by that turn's latency.

    Raises
    ------
    TraceError
        If no row can be used.
    """
    mapping = {**map_columns(source, names, {}), **map_known(names, _NEEDED)}
    own = map_known(names, {"block_hashes": "hash_ids", "delay": "delay"})
    columns, unreadable = read_columns(source, {**mapping, **own})
    where = f"{source.name}: the column for"
    unit, notes = _unit(read_numbers(f"{where} timestamp", columns["arrival_time"]), given)
    delays = columns.pop("delay", None)
    if delays is not None and "session" in columns:
        numbers = read_numbers(f"{where} timestamp", columns["arrival_time"])
        session = read_codes(f"{where} session_id", columns["session"])
        delay = read_numbers(f"{where} delay", delays)
        arrivals, waits = _later_turns(numbers, session, delay)
        columns |= {"arrival_time": pa.array(arrivals), "think_time": pa.array(waits)}
        count = int(np.count_nonzero(~np.isnan(waits)))
        notes += (
            f"turns with a delay instead of a time: {count:,}; they wait for the answer before "
            "them with --closed-loop, and come too early without",
        )
    return build_trace(
        columns,
        source,
        reader="mooncake",
        given=given,
        units=time_units(mapping),
        own_unit=unit,
        block_size=BLOCK_SIZE,
        unreadable=unreadable,
        notes=notes,
    )


def _unit(times: NDArray[np.float64], given: Given) -> tuple[str | None, tuple[str, ...]]:
    """Return the unit of times, and a note if it is a guess."""
    known = np.sort(times[np.isfinite(times)])
    if given.unit is not None or not len(known) or epoch_unit(known) is not None:
        return "ms", ()
    densest = _DENSEST if (known != np.floor(known)).any() else _DENSEST_WHOLE
    gap = (known[-1] - known[0]) / max(len(known) - 1, 1)
    if 0 < gap < densest:
        return "s", (
            Guess(
                f"times taken as s, since in ms, as in Mooncake traces, {1_000 / gap:,.0f} "
                "requests would come in a second; --unit says otherwise"
            ),
        )
    return "ms", (Guess("times taken as ms, as in Mooncake traces; --unit says otherwise"),)


def _later_turns(
    times: NDArray[np.float64], session: NDArray[np.int64], delay: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Give rows without a time one that is their delay after the row before in their session.

    Also returns the delays of those rows, NaN for all others.
    """
    arrivals, waits = times.copy(), np.full(len(times), np.nan)
    last: dict[int, float] = {}
    for row, name in enumerate(session.tolist()):
        if name < 0:
            continue
        if np.isnan(times[row]) and delay[row] >= 0 and name in last:
            waits[row] = delay[row]
            arrivals[row] = last[name] + delay[row]
        last[name] = float(arrivals[row])
    return arrivals, waits

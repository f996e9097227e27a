"""Cut a trace into windows, set their load, and join traces end to end."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from queuesmith.errors import ConfigError, TraceError
from queuesmith.traces.block_hashes import BlockHashes
from queuesmith.traces.trace import MAX_TOKENS, Origin, Trace

#: Start of a window whose place in its source was not published.
UNKNOWN_ROW = -1


@dataclass(frozen=True)
class Window:
    """A contiguous slice of a trace.

    Attributes
    ----------
    trace : Trace
        Starts at 0 s; deadlines are on the same clock.
    index : int
        Of the window, in order of time from 0.
    start_row : int
        Where it begins in the trace it was cut from, or `UNKNOWN_ROW`.
    sha256 : str
        Over its rows.
    name : str
        In the set it comes from; empty for a window that was just cut.
    predicted_output_tokens : (num_requests,) float64, optional
        As published with the window.
    lambda_ref : float, optional
        Reference rate published with the window, requests/s.
    """

    trace: Trace
    index: int
    start_row: int
    sha256: str
    name: str = ""
    predicted_output_tokens: NDArray[np.float64] | None = field(default=None, compare=False)
    lambda_ref: float | None = None

    @classmethod
    def of(cls, trace: Trace, index: int, start_row: int, end_row: int, name: str = "") -> Self:
        """Take rows of a trace, the last not included, as a window that starts at 0 s."""
        rows = trace.take(slice(start_row, end_row))
        start = rows.arrival_time[0] if len(rows) else 0.0
        rows = _move(rows, rows.arrival_time - start)
        return cls(rows, index, start_row, rows.sha256, name)


def cut_windows(
    trace: Trace, *, num_windows: int = 8, window_len: int = 1_000, seed: int = 0
) -> list[Window]:
    """Cut windows that do not overlap, spread over the whole trace, blind to what happens in them.

    The trace is split into as many equal parts as there are windows, and each window begins at a
    random row of its part. A trace that is too short gives as many windows as fit; one
    shorter than a single window gives one window of all its requests.

    Parameters
    ----------
    trace : Trace
        At least one request.
    num_windows : int
    window_len : int
        Requests in each.
    seed : int
        Of the places.

    Raises
    ------
    ConfigError
        If `num_windows` or `window_len` is below 1, or `seed` below 0.
    TraceError
        If the trace has no requests.
    """
    for name, value, least in (
        ("num_windows", num_windows, 1),
        ("window_len", window_len, 1),
        ("seed", seed, 0),
    ):
        if value < least:
            raise ConfigError(f"{name} must be at least {least}, got {value}")
    num_requests = len(trace)
    if num_requests == 0:
        raise TraceError(f"{trace.origin.source} has no requests to cut windows from")
    window_len = min(window_len, num_requests)
    num_windows = min(num_windows, num_requests // window_len)
    edges = [num_requests * index // num_windows for index in range(num_windows + 1)]
    rng = np.random.default_rng(seed)
    windows = []
    for index in range(num_windows):
        slack = edges[index + 1] - edges[index] - window_len
        start_row = edges[index] + int(rng.integers(slack + 1))
        windows.append(Window.of(trace, index, start_row, start_row + window_len))
    return windows


def adjoin(windows: Sequence[Window]) -> bool:
    """Tell whether each window begins where the one before it ended, in the same source.

    Such windows are not independent. Intervals here treat windows as if they were.
    """
    return len(windows) > 1 and all(
        before.start_row != UNKNOWN_ROW
        and after.start_row == before.start_row + len(before.trace)
        and _source(after.trace) == _source(before.trace)
        for before, after in itertools.pairwise(windows)
    )


def scale_arrivals(trace: Trace, factor: float) -> Trace:
    """Multiply arrival times, so that the same requests come slower (above 1) or faster (below).

    A deadline keeps its distance from its request's arrival, and so does a client's giving up.

    Raises
    ------
    ConfigError
        If `factor` is not a positive number.
    """
    if not 0 < factor < math.inf:
        raise ConfigError(f"the factor on arrival times must be a positive number, got {factor}")
    return _move(trace, trace.arrival_time * factor)


def thin(trace: Trace, share: float, seed: int) -> Trace:
    """Keep a random share of the sessions, and of the requests in none, at the times they have.

    Traffic of fewer users: gaps and bursts are theirs, where `scale_arrivals` stretches those of
    all users together, and policies may rank otherwise.

    Raises
    ------
    ConfigError
        If `share` is not above 0 and at most 1.
    """
    if not 0 < share <= 1:
        raise ConfigError(f"the share to keep must be above 0 and at most 1, got {share}")
    if share == 1:
        return trace
    unit = np.arange(len(trace))
    if trace.session is not None:
        unit = np.where(trace.session < 0, -1 - unit, trace.session)
    units, of = np.unique(unit, return_inverse=True)
    kept = np.random.default_rng(seed).random(len(units)) < share
    return trace.take(np.flatnonzero(kept[of]))


def _move(trace: Trace, arrival_time: NDArray[np.float64]) -> Trace:
    """Return the same requests arriving at other times, with what is counted from there."""
    moved: dict[str, NDArray[np.float64]] = {"arrival_time": arrival_time}
    for name in ("deadline", "abort_time"):
        times = getattr(trace, name)
        if times is not None:
            moved[name] = arrival_time + (times - trace.arrival_time)
    return replace(trace, **moved)  # type: ignore[arg-type]


def offered_rate(trace: Trace) -> float:
    """Return the mean rate of arrivals, requests/s: gaps over duration.

    Raises
    ------
    TraceError
        If all requests arrive at once, for then no rate is right and none can be set.
    """
    if trace.duration <= 0:
        raise TraceError(
            f"all {len(trace):,} requests of {trace.origin.source} arrive at the same time, so "
            "there is no rate to scale; give a longer trace or a larger window"
        )
    return (len(trace) - 1) / trace.duration


def splice(traces: Sequence[Trace], *, gap: float | None = None) -> Trace:
    """Join traces end to end, so that the gaps within each stay as they are.

    Parameters
    ----------
    traces : sequence of Trace
        At least one, none of them empty.
    gap : float, optional
        Seconds from the last arrival of one to the first of the next; the mean gap within all of
        them when left out.

    Returns
    -------
    Trace
        Starting at 0 s. A column that only some have is filled with what stands for a missing
        value. Clients, sessions and block hashes of different sources are told apart by new
        numbers.

    Raises
    ------
    ConfigError
        If `gap` is not a number of at least 0.
    TraceError
        If there is nothing to join, or block hashes are of different sizes.
    """
    if not traces or not all(len(trace) for trace in traces):
        raise TraceError("only traces that have requests can be joined; leave out the empty ones")
    if gap is None:
        num_gaps = sum(len(trace) - 1 for trace in traces)
        gap = sum(trace.duration for trace in traces) / max(num_gaps, 1)
    if not 0 <= gap < math.inf:
        raise ConfigError(f"the gap between traces must be a number of at least 0, got {gap}")

    columns: dict[str, list[NDArray[Any]]] = {name: [] for name in _FILL}
    start = 0.0
    for trace in traces:
        shift = start - trace.arrival_time[0]
        for name, missing in _FILL.items():
            values = getattr(trace, name)
            if values is None:
                values = np.full(len(trace), missing)
            elif name in ("arrival_time", "deadline", "abort_time"):
                values = values + shift
            columns[name].append(values)
        start = columns["arrival_time"][-1][-1] + gap
    there: dict[str, Any] = {
        name: np.concatenate(parts)
        for name, parts in columns.items()
        if any(getattr(trace, name) is not None for trace in traces)
    }
    sources = [_source(trace) for trace in traces]
    for name in ("client", "session"):
        if name in there:
            numbers = _tell_apart(columns[name], sources)
            there[name] = np.where(there[name] < 0, -1, numbers)
    return Trace(**there, block_hashes=_join_blocks(traces, sources), origin=_join_origins(traces))


#: Columns, with what stands for a missing value.
_FILL = {
    "arrival_time": math.nan,
    "prompt_len": 0,
    "output_len": 0,
    "client": -1,
    "session": -1,
    "turn": -1,
    "priority": 0,
    "max_tokens": MAX_TOKENS,
    "deadline": math.inf,
    "abort_time": math.inf,
    "think_time": math.nan,
}


def _source(trace: Trace) -> tuple[str, str]:
    return trace.origin.source, trace.origin.sha256


def _tell_apart(
    parts: Sequence[NDArray[np.int64]], sources: Sequence[tuple[str, str]]
) -> NDArray[np.int64]:
    """Concatenate numbers; with several sources as new ones, so that theirs differ."""
    if len(set(sources)) == 1:
        return np.concatenate(parts)
    numbers = np.empty(sum(map(len, parts)), np.int64)
    of = np.repeat(
        [list(dict.fromkeys(sources)).index(one) for one in sources], list(map(len, parts))
    )
    free = 0
    for source in np.unique(of):
        known, numbers[of == source] = np.unique(
            np.concatenate(parts)[of == source], return_inverse=True
        )
        numbers[of == source] += free
        free += len(known)
    return numbers


def _join_blocks(traces: Sequence[Trace], sources: Sequence[tuple[str, str]]) -> BlockHashes | None:
    blocks = [trace.block_hashes for trace in traces]
    sizes = {block.block_size for block in blocks if block is not None}
    if not sizes:
        return None
    if len(sizes) > 1:
        raise TraceError(
            f"blocks of {' and '.join(map(str, sorted(sizes)))} tokens cannot be joined; join "
            "traces of one size"
        )
    none = BlockHashes(np.zeros(1, np.int64), np.empty(0, np.int64), 1)
    num_blocks = np.concatenate(
        [
            np.zeros(len(trace), np.int64) if block is None else block.num_blocks
            for trace, block in zip(traces, blocks, strict=True)
        ]
    )
    hashes = _tell_apart([(none if block is None else block).hashes for block in blocks], sources)
    return BlockHashes(np.concatenate([[0], np.cumsum(num_blocks)]), hashes, sizes.pop())


def _join_origins(traces: Sequence[Trace]) -> Origin:
    origins = [trace.origin for trace in traces]
    first = origins[0]
    if len({_source(trace) for trace in traces}) == 1:
        return replace(first, notes=(*first.notes, f"{len(traces):,} parts joined end to end"))
    dropped: dict[str, int] = {}
    for origin in {_source(trace): trace.origin for trace in traces}.values():
        for reason, count in origin.dropped.items():
            dropped[reason] = dropped.get(reason, 0) + count
    names = dict.fromkeys(origin.source for origin in origins)
    notes = [note for origin in origins for note in origin.notes]
    return Origin(
        "modelled" if any(origin.kind == "modelled" for origin in origins) else "real",
        " + ".join(names),
        reader="splice",
        dropped=dropped,
        notes=(*dict.fromkeys(notes), f"{len(traces):,} parts joined end to end"),
    )

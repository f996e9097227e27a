"""A trace: when requests arrived and how long they were, with where that came from."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from queuesmith.errors import TraceError
from queuesmith.traces.block_hashes import BlockHashes, Rows
from queuesmith.traces.measured import Measured

#: Longer than any context window; larger lengths are typing errors or overflow.
MAX_TOKENS = 100_000_000
#: Ten thousand years in seconds; larger times lose the microsecond.
MAX_TIME = 3.2e11


class Guess(str):
    """A note that says what a reader assumed because the file does not say."""

    __slots__ = ()


@dataclass(frozen=True)
class Origin:
    """Where a trace comes from; printed beside every number made from it.

    Attributes
    ----------
    kind : {"real", "modelled"}
        Measured traffic, or drawn from a model that was fitted to some.
    source : str
        The file name, the model's name, or ``"arrays"`` for a trace made in code.
    sha256 : str
        Of the file's bytes; empty when there is no file.
    reader : str
        The reader that understood the file, or the model's version.
    dropped : mapping of str to int
        Rows left out, by reason.
    notes : tuple of str
        What the reader noticed and the user should know, such as "2 rows were out of order".
    """

    kind: Literal["real", "modelled"] = "real"
    source: str = "arrays"
    sha256: str = ""
    reader: str = ""
    dropped: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def guesses(self) -> tuple[str, ...]:
        """Those notes that say what was guessed; the wrong guess changes every result."""
        return tuple(note for note in self.notes if isinstance(note, Guess))

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {
            "kind": self.kind,
            "source": self.source,
            "sha256": self.sha256,
            "reader": self.reader,
            "dropped": dict(self.dropped),
            "notes": list(self.notes),
        }


@dataclass(frozen=True, eq=False)
class Trace:
    """Requests in order of arrival.

    Parameters
    ----------
    arrival_time : (num_requests,) float64
        Seconds from any origin, not decreasing.
    prompt_len, output_len : (num_requests,) int64
        Tokens, at least 1.
    client, session, turn : (num_requests,) int64, optional
        Who asked, in which conversation, and which turn of it; -1 where unknown.
    priority : (num_requests,) int64, optional
        Smaller is more urgent; all 0 when left out.
    max_tokens : (num_requests,) int64, optional
        The client's cap on the output; when left out, whatever the context window leaves.
    deadline : (num_requests,) float64, optional
        Seconds on the clock of `arrival_time` by which the last token is due.
    abort_time : (num_requests,) float64, optional
        Seconds on the clock of `arrival_time` at which the client gives up unless it has been
        served by then; +inf for never.
    think_time : (num_requests,) float64, optional
        Seconds from the end of the session's request before to the arrival of this one, which
        then replaces `arrival_time`; NaN for a request that waits for no answer. The first
        request of a session arrives at its `arrival_time`.
    block_hashes : BlockHashes, optional
        Of the prompts, as the source has them; their number need not agree with `prompt_len`.
    measured : Measured, optional
        How long the requests took where they were served; no part of `sha256`.
    origin : Origin

    Raises
    ------
    TraceError
        If lengths differ, times decrease or are not finite, or a length is below 1.

    Examples
    --------
    >>> Trace([0.0, 0.5], prompt_len=[100, 20], output_len=[7, 9])
    Trace(2 requests over 0.5 s, real: arrays)
    """

    arrival_time: NDArray[np.float64]
    prompt_len: NDArray[np.int64]
    output_len: NDArray[np.int64]
    client: NDArray[np.int64] | None = None
    session: NDArray[np.int64] | None = None
    turn: NDArray[np.int64] | None = None
    priority: NDArray[np.int64] | None = None
    max_tokens: NDArray[np.int64] | None = None
    deadline: NDArray[np.float64] | None = None
    abort_time: NDArray[np.float64] | None = None
    think_time: NDArray[np.float64] | None = None
    block_hashes: BlockHashes | None = None
    measured: Measured | None = None
    origin: Origin = Origin()

    def __init__(
        self,
        arrival_time: ArrayLike,
        prompt_len: ArrayLike,
        output_len: ArrayLike,
        *,
        client: ArrayLike | None = None,
        session: ArrayLike | None = None,
        turn: ArrayLike | None = None,
        priority: ArrayLike | None = None,
        max_tokens: ArrayLike | None = None,
        deadline: ArrayLike | None = None,
        abort_time: ArrayLike | None = None,
        think_time: ArrayLike | None = None,
        block_hashes: BlockHashes | None = None,
        measured: Measured | None = None,
        origin: Origin = Origin(),
    ) -> None:
        arrivals = _column("arrival_time", arrival_time, np.float64, None)
        num_requests = len(arrivals)
        columns: dict[str, Any] = {
            "arrival_time": arrivals,
            "prompt_len": _column("prompt_len", prompt_len, np.int64, num_requests),
            "output_len": _column("output_len", output_len, np.int64, num_requests),
        }
        for name, values, dtype in (
            ("client", client, np.int64),
            ("session", session, np.int64),
            ("turn", turn, np.int64),
            ("priority", priority, np.int64),
            ("max_tokens", max_tokens, np.int64),
            ("deadline", deadline, np.float64),
            ("abort_time", abort_time, np.float64),
            ("think_time", think_time, np.float64),
        ):
            columns[name] = None if values is None else _column(name, values, dtype, num_requests)
        _check_times(arrivals)
        for name in ("prompt_len", "output_len", "max_tokens"):
            if columns[name] is not None:
                _check_lengths(name, columns[name])
        if columns["abort_time"] is not None:
            _check_aborts(arrivals, columns["abort_time"])
        if columns["think_time"] is not None:
            _check_think_times(columns["think_time"], columns["session"])
        if block_hashes is not None and len(block_hashes) != num_requests:
            raise TraceError(
                f"block_hashes has {len(block_hashes)} requests for {num_requests} arrival times"
            )
        if measured is not None and len(measured) != num_requests:
            raise TraceError(
                f"measured has {len(measured)} requests for {num_requests} arrival times"
            )
        columns["block_hashes"] = block_hashes
        columns["measured"] = measured
        columns["origin"] = origin
        for name, value in columns.items():
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return len(self.arrival_time)

    def __repr__(self) -> str:
        origin = f"{self.origin.kind}: {self.origin.source}"
        return f"Trace({len(self):,} requests over {self.duration:g} s, {origin})"

    @property
    def duration(self) -> float:
        """Seconds from the first arrival to the last; 0 for an empty trace."""
        return float(self.arrival_time[-1] - self.arrival_time[0]) if len(self) else 0.0

    @property
    def sha256(self) -> str:
        """Hash over every column, so that two traces with equal rows are known as equal."""
        digest = hashlib.sha256()
        for name in _COLUMNS:
            values = getattr(self, name)
            if values is not None:
                digest.update(name.encode() + len(values).to_bytes(8, "little") + values.tobytes())
        if self.block_hashes is not None:
            digest.update(b"block_hashes" + self.block_hashes.tobytes())
        return digest.hexdigest()

    def take(self, rows: Rows) -> Self:
        """Return the trace of some rows, given as a slice, indices in order, or a mask."""
        columns: dict[str, Any] = {}
        for name in _COLUMNS:
            values = getattr(self, name)
            columns[name] = None if values is None else values[rows]
        if self.block_hashes is not None:
            columns["block_hashes"] = self.block_hashes.take(rows)
        if self.measured is not None:
            columns["measured"] = self.measured.take(rows)
        return type(self)(**columns, origin=self.origin)

    def with_origin(self, **changes: Any) -> Self:
        """Return the same requests with some fields of their origin replaced."""
        return replace(self, origin=replace(self.origin, **changes))


_COLUMNS = (
    "arrival_time",
    "prompt_len",
    "output_len",
    "client",
    "session",
    "turn",
    "priority",
    "max_tokens",
    "deadline",
    "abort_time",
    "think_time",
)


def _column(name: str, values: ArrayLike, dtype: type, num_requests: int | None) -> NDArray[Any]:
    """Convert one column, refusing what would lose information."""
    array = np.asarray(values)
    if array.ndim != 1:
        raise TraceError(f"{name} must be a list of numbers, got an array of shape {array.shape}")
    if array.dtype.kind not in "iuf" and array.size:
        raise TraceError(f"{name} must be numbers, got {array.dtype}")
    if num_requests is not None and len(array) != num_requests:
        raise TraceError(f"{name} has {len(array)} values for {num_requests} arrival times")
    if np.issubdtype(dtype, np.integer) and array.dtype.kind == "f":
        whole = np.isfinite(array) & (array == np.floor(array)) & (np.abs(array) < 2.0**62)
        if not whole.all():
            raise TraceError(f"{name} must be whole numbers, got {array[~whole][0]:g}")
    return np.ascontiguousarray(array, dtype)


def _check_times(arrivals: NDArray[np.float64]) -> None:
    wrong = ~(np.abs(arrivals) <= MAX_TIME)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise TraceError(f"arrival_time must be finite seconds, got {arrivals[row]:g} in row {row}")
    backwards = np.diff(arrivals) < 0
    if backwards.any():
        row = int(np.argmax(backwards)) + 1
        raise TraceError(
            f"arrival_time must not decrease, but row {row} ({arrivals[row]:g} s) comes before "
            f"row {row - 1} ({arrivals[row - 1]:g} s); sort the rows first"
        )


def _check_aborts(arrivals: NDArray[np.float64], aborts: NDArray[np.float64]) -> None:
    wrong = ~(aborts >= arrivals)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise TraceError(
            f"abort_time must not be before arrival_time ({arrivals[row]:g} s), got "
            f"{aborts[row]:g} in row {row}; give inf for a client that never gives up"
        )


def _check_think_times(times: NDArray[np.float64], session: NDArray[np.int64] | None) -> None:
    if session is None:
        raise TraceError("think_time needs session, which says whose answer a request waits for")
    wrong = ~(np.isnan(times) | ((times >= 0) & (times <= MAX_TIME)))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise TraceError(
            f"think_time must be seconds of at least 0, got {times[row]:g} in row {row}; give nan "
            "for a request that waits for no answer"
        )


def _check_lengths(name: str, lengths: NDArray[np.int64]) -> None:
    wrong = (lengths < 1) | (lengths > MAX_TOKENS)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise TraceError(
            f"{name} must be between 1 and {MAX_TOKENS:,} tokens, got {lengths[row]} in row {row}"
        )

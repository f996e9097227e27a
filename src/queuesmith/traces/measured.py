"""What a log says of how long its requests took, beside when they came and how long they were.

A policy never sees any of it and no simulation depends on it: `queuesmith.checking` sets it against
what the simulator makes of the same arrivals.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from queuesmith.traces.block_hashes import Rows

Floats = NDArray[np.float64]

#: Latencies that a log may hold, as `queuesmith.metrics` defines them.
LATENCIES = ("ttft", "tpot", "e2el", "queued_time")
#: Instants from which they can be had, on the clock of the arrivals.
INSTANTS = {
    "ttft": "first_token_ts",
    "e2el": "last_token_ts",
    "queued_time": "scheduled_ts",
}
#: Longer than a month is a broken clock.
MAX_SECONDS = 3e6


@dataclass(frozen=True, eq=False)
class Measured:
    """Latencies of every request of a trace, in seconds; NaN where they are not known.

    Attributes
    ----------
    ttft, tpot, e2el, queued_time : (num_requests,) float64
    """

    ttft: Floats
    tpot: Floats
    e2el: Floats
    queued_time: Floats

    def __len__(self) -> int:
        return len(self.ttft)

    def take(self, rows: Rows) -> Self:
        """Return the latencies of some requests, given as a slice, indices, or a mask."""
        return type(self)(*(getattr(self, name)[rows] for name in LATENCIES))

    @property
    def known(self) -> tuple[str, ...]:
        """The latencies of which any value is known."""
        return tuple(name for name in LATENCIES if not np.isnan(getattr(self, name)).all())


def clean_measured(
    output_len: NDArray[np.int64],
    *,
    ttft: Floats | None = None,
    tpot: Floats | None = None,
    e2el: Floats | None = None,
    queued_time: Floats | None = None,
) -> tuple[Measured | None, tuple[str, ...]]:
    """Make latencies out of what a log holds, forgetting what cannot be.

    Parameters
    ----------
    output_len : (num_requests,) int64
    ttft, tpot, e2el, queued_time : (num_requests,) float64, optional
        Seconds, NaN where the log has none. A `tpot` that is left out follows from `ttft` and
        `e2el`, and an `e2el` from `ttft` and `tpot`.

    Returns
    -------
    measured : Measured or None
        None when nothing is known of any request.
    notes : tuple of str
        What was forgotten, and of how many requests.

    Examples
    --------
    A clock that jumped, an answer that came as a whole, and one that is as it should be.

    >>> times = {"ttft": np.array([-3.0, 2.0, 1.0]), "e2el": np.array([1.0, 2.0, 3.0])}
    >>> measured, notes = clean_measured(np.array([5, 5, 5]), **times)
    >>> measured.ttft, measured.e2el, measured.tpot
    (array([nan, nan,  1.]), array([1., 2., 3.]), array([nan, nan, 0.5]))
    """
    unknown = np.full(len(output_len), np.nan)
    given = {"ttft": ttft, "tpot": tpot, "e2el": e2el, "queued_time": queued_time}
    found: dict[str, Floats] = {}
    notes: tuple[str, ...] = ()
    for name, values in given.items():
        if values is None:
            found[name] = unknown.copy()
            continue
        there = ~np.isnan(values)
        # A request may well wait for no time at all, but nothing is answered in none.
        least = values >= 0 if name == "queued_time" else values > 0
        wrong = there & ~(least & (values < MAX_SECONDS))
        found[name] = np.where(wrong, np.nan, values)
        limit = "negative" if name == "queued_time" else "zero, negative"
        notes += _note(f"requests whose measured {name} is {limit} or endless", wrong)
    first, last = found["ttft"], found["e2el"]
    backwards = first > last
    notes += _note("requests whose measured ttft is above their e2el", backwards)
    first[backwards] = last[backwards] = np.nan
    # Whoever does not stream is told of all tokens at once, and when the first was made is lost.
    whole = (first == last) & (output_len > 1)
    notes += _note("requests answered as a whole, whose ttft is therefore not known", whole)
    first[whole] = np.nan
    gaps = output_len - 1
    derived = np.where(gaps > 0, (last - first) / np.maximum(gaps, 1), np.nan)
    found["tpot"] = np.where(np.isnan(found["tpot"]), derived, found["tpot"])
    found["tpot"][gaps == 0] = np.nan
    rest = np.where(gaps > 0, found["tpot"] * gaps, 0.0)
    found["e2el"] = np.where(np.isnan(last) & ~backwards & ~np.isnan(rest), first + rest, last)
    if all(np.isnan(values).all() for values in found.values()):
        return None, notes
    return Measured(**found), notes


def _note(what: str, rows: NDArray[np.bool_]) -> tuple[str, ...]:
    count = int(np.count_nonzero(rows))
    return (f"{what}: {count:,}",) if count else ()

"""Cut a trace into windows, and set their load by stretching or thinning the arrivals."""

import math
from dataclasses import dataclass, replace

import numpy as np

from queuesmith.errors import ConfigError, TraceError
from queuesmith.traces.trace import Trace


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
        Where it begins in the trace it was cut from.
    sha256 : str
        Over its rows.
    """

    trace: Trace
    index: int
    start_row: int
    sha256: str


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
        rows = _start_at_zero(trace.take(slice(start_row, start_row + window_len)))
        windows.append(Window(rows, index, start_row, rows.sha256))
    return windows


def scale_arrivals(trace: Trace, factor: float) -> Trace:
    """Multiply arrival times, so that the same requests come slower (above 1) or faster (below).

    A deadline keeps its distance from its request's arrival.

    Raises
    ------
    ConfigError
        If `factor` is not a positive number.
    """
    if not 0 < factor < math.inf:
        raise ConfigError(f"the factor on arrival times must be a positive number, got {factor}")
    arrival_time = trace.arrival_time * factor
    if trace.deadline is None:
        return replace(trace, arrival_time=arrival_time)
    deadline = arrival_time + (trace.deadline - trace.arrival_time)
    return replace(trace, arrival_time=arrival_time, deadline=deadline)


def thin(trace: Trace, share: float, rng: np.random.Generator) -> Trace:
    """Keep each request with the same chance, which lowers the load without stretching bursts.

    Raises
    ------
    ConfigError
        If `share` is not above 0 and at most 1.
    TraceError
        If chance keeps none.
    """
    if not 0 < share <= 1:
        raise ConfigError(f"the share of requests to keep must be above 0, at most 1, got {share}")
    kept = rng.random(len(trace)) < share
    if not kept.any():
        raise TraceError(
            f"none of the {len(trace):,} requests of {trace.origin.source} is left after keeping "
            f"a share of {share:g}; keep more or give a longer trace"
        )
    return trace.take(kept)


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


def _start_at_zero(trace: Trace) -> Trace:
    start = trace.arrival_time[0]
    deadline = None if trace.deadline is None else trace.deadline - start
    return replace(trace, arrival_time=trace.arrival_time - start, deadline=deadline)

"""What a trace looks like in numbers, to hold a modelled trace against a real one."""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from queuesmith.errors import TraceError
from queuesmith.traces.trace import Trace

_WIDTHS = (1, 10, 60)
_PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99)
_LAGS = (1, 100)
_NUM_PARTS = 6
_LOADS = (0.5, 0.8)


def trace_statistics(trace: Trace) -> dict[str, float]:
    """Sum up the arrivals and lengths of a trace.

    Parameters
    ----------
    trace : Trace
        At least 1,000 requests over two minutes or more.

    Returns
    -------
    dict of str to float
        Name to value: the rate (requests/s); coefficients of variation (CV) of gaps and of counts
        in bins of 1, 10 and 60 s; percentiles of lengths (tokens); rank correlation of prompt and
        output length, and its extremes over sixths of the trace; rank correlation of each length
        with the requests in the same minute; autocorrelation of length ranks over 1 and 100
        requests; mean wait in a first-come first-served queue with one server whose
        service time is proportional to all tokens, in mean service times, at two loads.

    Raises
    ------
    TraceError
        If the trace is too short for them.
    """
    if len(trace) < 1_000 or trace.duration < 2 * max(_WIDTHS):
        raise TraceError(
            f"{trace.origin.source} has {len(trace):,} requests over {trace.duration:g} s; "
            f"its statistics need 1,000 over {2 * max(_WIDTHS)} s"
        )
    arrivals = trace.arrival_time - trace.arrival_time[0]
    gaps = np.diff(arrivals)
    values = {
        "rate, requests/s": (len(trace) - 1) / trace.duration,
        "CV of gaps": float(gaps.std() / gaps.mean()),
    }
    for width in _WIDTHS:
        counts = np.bincount((arrivals / width).astype(np.int64))[:-1]
        values[f"CV of counts in {width} s"] = float(counts.std() / counts.mean())
    lengths = {"prompt": trace.prompt_len, "output": trace.output_len}
    for name, tokens in lengths.items():
        for percent, tokens_below in zip(
            _PERCENTILES, np.percentile(tokens, _PERCENTILES), strict=True
        ):
            values[f"{name} p{percent}, tokens"] = float(tokens_below)
        values[f"{name} mean, tokens"] = float(tokens.mean())
    values["rank correlation of prompt and output"] = rank_correlation(
        trace.prompt_len, trace.output_len
    )
    edges = [len(trace) * part // _NUM_PARTS for part in range(_NUM_PARTS + 1)]
    parts = [
        rank_correlation(trace.prompt_len[first:end], trace.output_len[first:end])
        for first, end in pairwise(edges)
    ]
    values["rank correlation, lowest sixth"] = min(parts)
    values["rank correlation, highest sixth"] = max(parts)
    minute = (arrivals / 60).astype(np.int64)
    requests_in_minute = np.bincount(minute)[minute]
    for name, tokens in lengths.items():
        values[f"rank correlation of {name} and rate"] = rank_correlation(
            tokens, requests_in_minute
        )
        for lag in _LAGS:
            values[f"{name} autocorrelation, lag {lag}"] = rank_autocorrelation(tokens, lag)
    work = (trace.prompt_len + trace.output_len).astype(np.float64)
    for load in _LOADS:
        values[f"mean wait at {load:.0%} load, services"] = _mean_wait(gaps, work, load)
    return values


def rank_correlation(x: NDArray[np.int64], y: NDArray[np.int64]) -> float:
    """Spearman's correlation; equal values share their mean rank. NaN if either is constant.

    Examples
    --------
    >>> rank_correlation(np.array([1, 2, 3]), np.array([9, 7, 7]))
    -0.8660254037844387
    """
    return _correlation(_mean_ranks(x), _mean_ranks(y))


def rank_autocorrelation(values: NDArray[np.int64], lag: int) -> float:
    """Correlation of the ranks of values with those `lag` places on. NaN if all are equal."""
    ranks = _mean_ranks(values)
    return _correlation(ranks[:-lag], ranks[lag:])


def _mean_ranks(values: NDArray[np.int64]) -> NDArray[np.float64]:
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    below = np.cumsum(counts) - counts
    return np.asarray((below + (counts + 1) / 2)[place])


def _correlation(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    x, y = x - x.mean(), y - y.mean()
    power = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / power if power else float("nan")


def _mean_wait(gaps: NDArray[np.float64], work: NDArray[np.float64], load: float) -> float:
    """Mean wait of a single first-come first-served server, in mean service times.

    Lindley's recursion: a request waits as long as the one before it, plus that one's service,
    less the gap between them, but not less than 0.
    """
    service = work / work.mean() * load * gaps.mean()
    walk = np.concatenate([[0.0], np.cumsum(service[:-1] - gaps)])
    wait = walk - np.minimum.accumulate(walk)
    return float(wait.mean() / service.mean())

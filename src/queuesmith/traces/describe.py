"""What a workload looks like in numbers: rate, bursts, lengths, who asks, what is asked again."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from queuesmith.errors import TraceError
from queuesmith.traces.trace import Trace

SCHEMA = "queuesmith.traces.describe/1"

#: Seconds over which bursts are looked at.
TIME_SCALES = (1.0, 10.0, 60.0, 600.0)
PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9)
#: Fewer bins than this say nothing about how bins vary.
MIN_BINS = 10
_NUM_RATES = 60
#: Rank correlations of longer traces are taken over so many requests, evenly spaced.
_NUM_RANKED = 500_000
_TOP_CLIENTS = (1, 10, 100)


def describe(trace: Trace) -> dict[str, Any]:
    """Describe a trace.

    Parameters
    ----------
    trace : Trace
        With at least one request.

    Returns
    -------
    dict
        What ``queuesmith traces describe --json`` prints beside ``resembles``
        (`queuesmith.traces.resemblance`); None stands for what the trace is too short for or does
        not know.

    Raises
    ------
    TraceError
        If there is no request.

    Examples
    --------
    >>> trace = Trace(range(100), prompt_len=[8] * 100, output_len=[2] * 100)
    >>> describe(trace)["lengths"]["prompt"]["p50"]
    8.0
    """
    if len(trace) == 0:
        raise TraceError(f"{trace.origin.source} has no requests, so there is nothing to describe")
    return {
        "schema": SCHEMA,
        "origin": trace.origin.to_json(),
        "num_requests": len(trace),
        "duration": trace.duration,
        "rate": _per_second(len(trace) - 1, trace),
        "prompt_tokens_per_second": _per_second(int(trace.prompt_len.sum()), trace),
        "output_tokens_per_second": _per_second(int(trace.output_len.sum()), trace),
        "arrivals": _arrivals(trace),
        "burstiness": {
            "gap_cv": gap_cv(trace),
            "scales": [
                {
                    "width": width,
                    "count_cv": count_cv(trace, width),
                    "dispersion": dispersion(trace, width),
                }
                for width in TIME_SCALES
            ],
        },
        "lengths": {
            "prompt": _lengths(trace.prompt_len),
            "output": _lengths(trace.output_len),
        },
        "correlations": _correlations(trace),
        "clients": _clients(trace),
        "sessions": _sessions(trace),
        "prefixes": _prefixes(trace),
    }


def gap_cv(trace: Trace) -> float | None:
    """Coefficient of variation of the gaps between arrivals; 1 for a Poisson process."""
    gaps = np.diff(trace.arrival_time)
    return _ratio(float(gaps.std()), float(gaps.mean())) if len(gaps) > 1 else None


def dispersion(trace: Trace, width: float) -> float | None:
    """Index of dispersion of counts in bins: variance over mean; 1 for a Poisson process.

    Parameters
    ----------
    trace : Trace
    width : float
        Of a bin, s; a last bin that is not full is left out.

    Returns
    -------
    float or None
        None where the trace has fewer than `MIN_BINS` bins.

    References
    ----------
    Gusella, "Characterizing the Variability of Arrival Processes with Indexes of Dispersion",
    IEEE JSAC 9(2), 1991.
    """
    counts = bin_counts(trace, width)
    return None if counts is None else _ratio(float(counts.var()), float(counts.mean()))


def count_cv(trace: Trace, width: float) -> float | None:
    """Coefficient of variation of counts in bins of a width; None as for `dispersion`."""
    counts = bin_counts(trace, width)
    return None if counts is None else _ratio(float(counts.std()), float(counts.mean()))


def bin_counts(trace: Trace, width: float) -> NDArray[np.int64] | None:
    """Count requests in every full bin of a width in seconds; None where they are too few."""
    num_bins = math.floor(trace.duration / width)
    # Ten million bins are more than any burst needs, and less than fills a memory.
    if not MIN_BINS <= num_bins <= 10_000_000:
        return None
    bins = ((trace.arrival_time - trace.arrival_time[0]) / width).astype(np.int64)
    return np.bincount(bins, minlength=num_bins)[:num_bins]


@dataclass(frozen=True)
class PrefixReuse:
    """How much of each prompt an unbounded prefix cache would have held.

    Attributes
    ----------
    reused : (num_requests,) int64
        Tokens in the leading blocks that earlier requests had, too.
    age : (num_reused_blocks,) float64
        Seconds since each such block was last asked for.
    num_distinct : int
        Different blocks.
    """

    reused: NDArray[np.int64]
    age: NDArray[np.float64]
    num_distinct: int


def prefix_reuse(trace: Trace) -> PrefixReuse | None:
    """Replay the block hashes through a prefix cache that forgets nothing.

    Returns
    -------
    PrefixReuse or None
        None where the trace has no block hashes. A block counts only if all blocks before it in
        the prompt count, as in a prefix cache.
    """
    blocks = trace.block_hashes
    if blocks is None or len(blocks.hashes) == 0:
        return None
    num_blocks = blocks.num_blocks
    request = np.repeat(np.arange(len(trace)), num_blocks)
    # Equal hashes side by side, in order of arrival: each one's predecessor is its last use.
    order = np.argsort(blocks.hashes, kind="stable")
    again = np.zeros(len(order), dtype=bool)
    again[1:] = blocks.hashes[order[1:]] == blocks.hashes[order[:-1]]
    last = np.full(len(order), -1)
    last[order[1:]] = np.where(again[1:], request[order[:-1]], -1)
    known = (last >= 0) & (last < request)
    # A block leads as long as its request has had no block yet that is not known.
    unknown = np.concatenate([[0], np.cumsum(~known)])
    leading = unknown[1:] == np.repeat(unknown[blocks.offsets[:-1]], num_blocks)
    run = np.bincount(request[leading], minlength=len(trace))
    age = trace.arrival_time[request[leading]] - trace.arrival_time[last[leading]]
    reused = np.minimum(run * blocks.block_size, trace.prompt_len)
    return PrefixReuse(reused, age, int(np.count_nonzero(~again)))


def group_sizes(codes: NDArray[np.int64] | None) -> NDArray[np.int64] | None:
    """Return how many requests each known client or session has, most first; None without any."""
    if codes is None or not (codes >= 0).any():
        return None
    _, counts = np.unique(codes[codes >= 0], return_counts=True)
    return np.sort(counts)[::-1]


def turn_gaps(trace: Trace) -> NDArray[np.float64]:
    """Return the seconds from each turn of a session to the next; empty without sessions."""
    if trace.session is None:
        return np.empty(0)
    rows = np.flatnonzero(trace.session >= 0)
    rows = rows[np.argsort(trace.session[rows], kind="stable")]
    same = np.diff(trace.session[rows]) == 0
    return np.asarray(np.diff(trace.arrival_time[rows])[same])


def _arrivals(trace: Trace) -> dict[str, Any]:
    """Return the rate over time, in at most `_NUM_RATES` bins that cover all of the trace."""
    if trace.duration == 0:
        return {"width": None, "rate": []}
    num_bins = int(np.clip(len(trace) // 20, 1, _NUM_RATES))
    width = trace.duration / num_bins
    start = trace.arrival_time[0]
    counts, _ = np.histogram(
        trace.arrival_time, bins=num_bins, range=(start, trace.arrival_time[-1])
    )
    return {"width": width, "rate": (counts / width).tolist()}


def _lengths(tokens: NDArray[np.int64]) -> dict[str, float]:
    values = {f"p{percent:g}": level for percent, level in _percentiles(tokens).items()}
    return {"mean": float(tokens.mean()), **values, "max": float(tokens.max())}


def _percentiles(values: ArrayLike) -> dict[float, float]:
    levels = np.percentile(np.asarray(values), PERCENTILES, method="inverted_cdf")
    return dict(zip(PERCENTILES, levels.astype(float).tolist(), strict=True))


def _correlations(trace: Trace) -> dict[str, float | None]:
    """Return Spearman's rank correlations of lengths with each other and with what is around."""
    rows = np.linspace(0, len(trace) - 1, min(len(trace), _NUM_RANKED)).astype(np.int64)
    prompts, outputs = trace.prompt_len[rows], trace.output_len[rows]
    counts = bin_counts(trace, 60.0)
    around: dict[str, float | None] = {"prompt_rate": None, "output_rate": None}
    if counts is not None:
        minute = ((trace.arrival_time[rows] - trace.arrival_time[0]) / 60.0).astype(np.int64)
        full = minute < len(counts)
        rate = counts[minute[full]]
        around = {
            "prompt_rate": _rank_correlation(prompts[full], rate),
            "output_rate": _rank_correlation(outputs[full], rate),
        }
    first = slice(0, _NUM_RANKED)
    return {
        "prompt_output": _rank_correlation(prompts, outputs),
        **around,
        "prompt_next": _rank_correlation(trace.prompt_len[first][:-1], trace.prompt_len[first][1:]),
        "output_next": _rank_correlation(trace.output_len[first][:-1], trace.output_len[first][1:]),
    }


def _rank_correlation(first: NDArray[np.int64], second: NDArray[np.int64]) -> float | None:
    from scipy.stats import rankdata  # half a second that only a description should pay

    if len(first) < 3 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return None
    return float(np.corrcoef(rankdata(first), rankdata(second))[0, 1])


def _clients(trace: Trace) -> dict[str, Any] | None:
    sizes = group_sizes(trace.client)
    if sizes is None:
        return None
    shares = np.cumsum(sizes) / sizes.sum()
    return {
        "num_clients": len(sizes),
        "num_unknown": len(trace) - int(sizes.sum()),
        "top_share": {str(top): float(shares[min(top, len(sizes)) - 1]) for top in _TOP_CLIENTS},
        "num_for_half": int(np.searchsorted(shares, 0.5)) + 1,
    }


def _sessions(trace: Trace) -> dict[str, Any] | None:
    sizes = group_sizes(trace.session)
    if sizes is None:
        return None
    gaps = turn_gaps(trace)
    quantiles = _percentiles(gaps) if len(gaps) else {}
    return {
        "num_sessions": len(sizes),
        "num_unknown": len(trace) - int(sizes.sum()),
        "turns_mean": float(sizes.mean()),
        "turns_p99": _percentiles(sizes)[99],
        "turns_max": int(sizes[0]),
        "single_turn_share": float((sizes == 1).mean()),
        "turn_gap_p50": quantiles.get(50),
        "turn_gap_p90": quantiles.get(90),
    }


def _prefixes(trace: Trace) -> dict[str, Any] | None:
    reuse, blocks = prefix_reuse(trace), trace.block_hashes
    if reuse is None or blocks is None:
        return None
    ages = _percentiles(reuse.age) if len(reuse.age) else {}
    return {
        "block_size": blocks.block_size,
        "num_blocks": len(blocks.hashes),
        "num_distinct": reuse.num_distinct,
        "reused_token_share": float(reuse.reused.sum() / trace.prompt_len.sum()),
        "reusing_request_share": float((reuse.reused > 0).mean()),
        "age_p50": ages.get(50),
        "age_p90": ages.get(90),
        "age_p99": ages.get(99),
    }


def _per_second(count: int, trace: Trace) -> float | None:
    return count / trace.duration if trace.duration else None


def _ratio(value: float, by: float) -> float | None:
    return value / by if by > 0 else None

"""Result -> numbers: what a run was like for its requests, in seconds and tokens.

Functions named after a latency return one value per request, NaN where the horizon came first.
`summarize` returns every number in `METRICS`. ``docs/background/metrics.md`` has the formulas.

A run may end with unfinished requests. They are censored, never dropped: they met no limit, the
mean of a latency that some request does not have is NaN (undefined), and quantiles and maxima count
it as +inf, so that they are finite only where the missing values cannot matter. NaN is also the
value of what a run cannot have, such as goodput without an SLO.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from queuesmith.config import Slo
from queuesmith.engine.result import ITL_EDGES, Result
from queuesmith.errors import ConfigError
from queuesmith.stats import between, quantiles

NAN = float("nan")

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Metric:
    """What one number of `summarize` means.

    Attributes
    ----------
    unit : str
        ``"1"`` for a ratio, ``"count"`` for whole numbers.
    better : {"lower", "higher"} or None
        None for facts of the run that no policy should be ranked by.
    formula : str
    """

    unit: str
    better: Literal["lower", "higher"] | None
    formula: str


_LATENCIES = {
    "ttft": "first_token_ts - arrival_time",
    "tpot": "(last_token_ts - first_token_ts) / (output_len - 1), where output_len > 1",
    "e2el": "last_token_ts - arrival_time",
    "queued_time": "scheduled_ts - arrival_time",
    "itl": "each gap between two output tokens of a request",
}
_STATISTICS = {"mean": "mean", "p50": "median", "p90": "90th percentile", "p99": "99th percentile"}

#: Every number of `summarize`, in its order.
METRICS: dict[str, Metric] = {
    **{
        f"{latency}_{statistic}": Metric("s", "lower", f"{word} of {formula}")
        for latency, formula in _LATENCIES.items()
        for statistic, word in _STATISTICS.items()
    },
    "ttft_max": Metric("s", "lower", "largest first_token_ts - arrival_time"),
    "queued_time_max": Metric("s", "lower", "largest scheduled_ts - arrival_time"),
    "request_throughput": Metric("requests/s", "higher", "finished requests / span"),
    "output_throughput": Metric("tokens/s", "higher", "sum of finished output_len / span"),
    "total_token_throughput": Metric(
        "tokens/s", "higher", "sum of finished (prompt_len + output_len) / span"
    ),
    "goodput": Metric("requests/s", "higher", "finished requests within every limit / span"),
    "slo_attainment": Metric("1", "higher", "finished requests within every limit / requests"),
    "anwg": Metric("1", "higher", "weight finished by its deadline / weight of all requests"),
    "num_preemptions": Metric("count", "lower", "sum of num_preemptions"),
    "recompute_tax": Metric("1", "lower", "num_recomputed_tokens / num_computed_tokens"),
    "slowdown_p99": Metric("1", "lower", "99th percentile of e2el / e2el alone"),
    "slowdown_max": Metric("1", "lower", "largest e2el / e2el alone"),
    "jain": Metric("1", "higher", "(sum x)^2 / (n sum x^2), x a client's mean slowdown"),
    "num_unfinished": Metric("count", "lower", "requests without a last token at the horizon"),
    "num_aborted": Metric("count", "lower", "requests whose client gave up"),
    "num_rejected": Metric("count", "lower", "requests turned away when they came"),
    "num_requests": Metric("count", None, "requests simulated"),
    "num_dropped": Metric("count", None, "requests of the trace that could never run"),
    "num_steps": Metric("count", None, "steps of the engine"),
}


def ttft(result: Result) -> Floats:
    """Time to first token of each request, s."""
    return _elapsed(result, "arrival_time", "first_token_ts")


def tpot(result: Result) -> Floats:
    """Time per output token after the first, s; NaN for one-token answers, which have none."""
    gaps = result.requests.output_len - 1
    return np.where(gaps > 0, decode_time(result) / np.maximum(gaps, 1), NAN)


def e2el(result: Result) -> Floats:
    """End-to-end latency of each request, s."""
    return _elapsed(result, "arrival_time", "last_token_ts")


def queued_time(result: Result) -> Floats:
    """Time from arrival to the first step that computed any of a request, s.

    As in vLLM, waiting again after a preemption is not in it but in `prefill_time` or
    `decode_time`.
    """
    return _elapsed(result, "arrival_time", "scheduled_ts")


def prefill_time(result: Result) -> Floats:
    """Time from first scheduled to first token, s."""
    return _elapsed(result, "scheduled_ts", "first_token_ts")


def decode_time(result: Result) -> Floats:
    """Time from first token to last, s."""
    return _elapsed(result, "first_token_ts", "last_token_ts")


def inference_time(result: Result) -> Floats:
    """Time from first scheduled to last token, s."""
    return _elapsed(result, "scheduled_ts", "last_token_ts")


def normalized_latency(result: Result) -> Floats:
    """End-to-end latency per output token, s (Orca, OSDI 2022; vLLM, SOSP 2023)."""
    return np.asarray(e2el(result) / result.requests.output_len)


def slowdown(result: Result, alone: ArrayLike) -> Floats:
    """End-to-end latency over that of the same request alone.

    Parameters
    ----------
    result : Result
    alone : (num_requests,) array_like
        E2EL of each request alone on an idle engine, s.

    Raises
    ------
    ConfigError
        If `alone` is not one positive time for each request.
    """
    times = np.asarray(alone, np.float64)
    if times.shape != (len(result.requests),) or not (times > 0).all():
        raise ConfigError(
            f"alone must be {len(result.requests)} positive times, one for each request, "
            f"got shape {times.shape}" + (f", least {times.min():g}" if times.size else "")
        )
    return e2el(result) / times


def met_slo(result: Result, slo: Slo) -> NDArray[np.bool_]:
    """Whether each request finished within every limit.

    A limit of None is no limit, a value on its limit has met it, and the TPOT of a one-token answer
    is 0, as in ``vllm bench serve``. An unfinished request meets nothing, whatever its TTFT.
    """
    met = _finished(result)
    if slo.ttft is not None:
        met &= ttft(result) <= slo.ttft
    if slo.tpot is not None:
        met &= (tpot(result) <= slo.tpot) | (result.requests.output_len == 1)
    if slo.e2el is not None:
        met &= e2el(result) <= slo.e2el
    return met


def met_deadline(result: Result, slack: float = 1.0) -> NDArray[np.bool_]:
    """Whether each request finished by its deadline; without one, whether it finished.

    `slack` stretches the time that every deadline leaves after the arrival.
    """
    requests = result.requests
    deadline = requests.deadline
    if slack != 1.0:
        deadline = requests.arrival_time + slack * (deadline - requests.arrival_time)
    return np.asarray(requests.last_token_ts <= deadline)


def slo_attainment(result: Result, slo: Slo) -> float:
    """Share of all requests that met every limit (DistServe, OSDI 2024); NaN without requests."""
    return _ratio(int(met_slo(result, slo).sum()), len(result.requests))


def goodput(result: Result, slo: Slo) -> float:
    """Return requests per second that met every limit, as ``vllm bench serve`` does.

    DistServe's goodput, the highest rate at which attainment holds, is called capacity here.
    """
    return _ratio(int(met_slo(result, slo).sum()), span(result))


def span(result: Result) -> float:
    """Seconds from the first arrival to the end of the last step: the time every rate is per."""
    if not len(result.requests):
        return 0.0
    return result.end_time - float(result.requests.arrival_time[0])


def request_throughput(result: Result) -> float:
    """Finished requests per second."""
    return _ratio(int(_finished(result).sum()), span(result))


def output_throughput(result: Result) -> float:
    """Output tokens of finished requests per second."""
    return _ratio(int(result.requests.output_len[_finished(result)].sum()), span(result))


def total_token_throughput(result: Result) -> float:
    """Prompt and output tokens of finished requests per second, whatever was computed again."""
    requests = result.requests
    lengths = requests.prompt_len + requests.output_len
    return _ratio(int(lengths[_finished(result)].sum()), span(result))


def anwg(result: Result, weight: ArrayLike | None = None, slack: float = 1.0) -> float:
    """Arrival-normalized weighted goodput: weight that met its deadline over all weight.

    NaN when no request has a deadline.

    Parameters
    ----------
    result : Result
    weight : (num_requests,) array_like, optional
        1 each when left out.
    slack : float
        As if every deadline had left this many times the time after the arrival.

    References
    ----------
    Vahidi, "How Portable Are LLM-Serving Scheduler Rankings Across Workloads, Operating Regions,
    and Metrics?", NJIT 2026.
    """
    if not np.isfinite(result.requests.deadline).any():
        return NAN
    weights = np.ones(len(result.requests)) if weight is None else np.asarray(weight, np.float64)
    if weights.shape != (len(result.requests),) or not (weights >= 0).all():
        raise ConfigError(
            f"weight must be {len(result.requests)} numbers of at least 0, one for each request, "
            f"got shape {weights.shape}"
        )
    return _ratio(float(weights[met_deadline(result, slack)].sum()), float(weights.sum()))


def recompute_tax(result: Result) -> float:
    """Tokens lost to preemptions, hence computed again, over all tokens computed."""
    return _ratio(result.num_recomputed_tokens, result.num_computed_tokens)


def jain_index(result: Result, alone: ArrayLike) -> float:
    """Jain's index over each client's mean slowdown: 1 when all are slowed alike, 1/n at worst.

    Slowdown, because output tokens per client are what clients asked for: once everything finishes
    they are the same under every policy. Requests of unknown client are left out.
    NaN when no client is known, or a known client's request is unfinished.

    References
    ----------
    Jain, Chiu and Hawe, "A quantitative measure of fairness", DEC-TR-301, 1984.
    """
    client = result.trace.client
    if client is None or not (client >= 0).any():
        return NAN
    known = client >= 0
    _, row = np.unique(client[known], return_inverse=True)
    means = np.bincount(row, slowdown(result, alone)[known]) / np.bincount(row)
    return float(means.sum() ** 2 / (len(means) * (means**2).sum()))


def itl_mean(result: Result) -> float:
    """Mean gap between output tokens, s: exact, since a request's gaps add up to its decode."""
    answered = result.requests.output_len > 1
    return _ratio(float(decode_time(result)[answered].sum()), _num_gaps(result))


def itl_quantile(result: Result, level: float) -> float:
    """Quantile of the gaps between output tokens, s, from their histogram.

    Within 2 %, the width of a bin, of the quantile of the gaps themselves, if those lie between the
    first and last of ``ITL_EDGES``. NaN if no answer has a second token; gaps that unfinished
    requests still owe count as +inf.
    """
    return _itl_quantiles(result, [level])[0]


def _itl_quantiles(result: Result, levels: Sequence[float]) -> list[float]:
    num_gaps = _num_gaps(result)
    if not num_gaps:
        return [NAN] * len(levels)
    counted = np.cumsum(result.itl_counts)

    def gap_of_rank(rank: int) -> float:
        """Values of a bin are taken to lie evenly on its logarithmic scale."""
        if rank >= counted[-1]:
            return float("inf")
        column = int(np.searchsorted(counted, rank, side="right"))
        in_bin = int(result.itl_counts[column])
        share = (rank - int(counted[column]) + in_bin + 0.5) / in_bin
        low, high = float(ITL_EDGES[column]), float(ITL_EDGES[column + 1])
        return float(low * (high / low) ** share)

    found = []
    for level in levels:
        position = (num_gaps - 1) * level
        rank = int(position)
        low, high = gap_of_rank(rank), gap_of_rank(min(rank + 1, num_gaps - 1))
        found.append(between(low, high, position - rank))
    return found


def summarize(
    result: Result, slo: Slo | None = None, alone: ArrayLike | None = None
) -> dict[str, float]:
    """Every number in `METRICS`, in that order.

    Parameters
    ----------
    result : Result
    slo : Slo, optional
        Without it goodput and attainment are NaN.
    alone : (num_requests,) array_like, optional
        E2EL of each request alone on an idle engine, s; without it slowdowns are NaN.

    Examples
    --------
    Two one-token answers; the second request waits 1 s of its 3 s for the first.

    >>> from queuesmith.engine.result import RESULT_DTYPE
    >>> from queuesmith.traces.trace import Trace
    >>> requests = np.zeros(2, RESULT_DTYPE).view(np.recarray)
    >>> requests.arrival_time[:] = [0, 1]
    >>> requests.scheduled_ts[:] = [0, 2]
    >>> requests.first_token_ts[:] = requests.last_token_ts[:] = [2, 4]
    >>> requests.output_len[:] = requests.num_output_tokens[:] = 1
    >>> requests.aborted_ts[:] = requests.rejected_ts[:] = np.nan
    >>> counts = np.zeros(len(ITL_EDGES) - 1, np.int64)
    >>> trace = Trace([0, 1], prompt_len=[9, 9], output_len=[1, 1])
    >>> result = Result("fcfs", trace, requests, counts, 2, 0, 18, 0, 4.0, 0)
    >>> numbers = summarize(result, Slo(ttft=2.5))
    >>> [numbers[name] for name in ("ttft_mean", "queued_time_max", "slo_attainment", "goodput")]
    [2.5, 1.0, 0.5, 0.25]
    """
    summary = dict.fromkeys(METRICS, NAN)
    answered = result.requests.output_len > 1
    for name, values in (
        ("ttft", ttft(result)),
        ("tpot", tpot(result)[answered]),
        ("e2el", e2el(result)),
        ("queued_time", queued_time(result)),
    ):
        summary[f"{name}_mean"] = _ratio(float(values.sum()), len(values))
        middle, tenth, hundredth, largest = censored_quantiles(values, [0.5, 0.9, 0.99, 1.0])
        summary |= {f"{name}_p50": middle, f"{name}_p90": tenth, f"{name}_p99": hundredth}
        if f"{name}_max" in summary:
            summary[f"{name}_max"] = largest
    middle, tenth, hundredth = _itl_quantiles(result, [0.5, 0.9, 0.99])
    summary |= {"itl_p50": middle, "itl_p90": tenth, "itl_p99": hundredth}
    summary |= {
        "itl_mean": itl_mean(result),
        "request_throughput": request_throughput(result),
        "output_throughput": output_throughput(result),
        "total_token_throughput": total_token_throughput(result),
        "anwg": anwg(result),
        "num_preemptions": result.num_preemptions,
        "recompute_tax": recompute_tax(result),
        "num_unfinished": len(result.requests) - int(_finished(result).sum()),
        "num_aborted": int((~np.isnan(result.requests.aborted_ts)).sum()),
        "num_rejected": result.num_rejected,
        "num_requests": len(result.requests),
        "num_dropped": result.num_dropped,
        "num_steps": result.num_steps,
    }
    if slo is not None:
        summary["goodput"] = goodput(result, slo)
        summary["slo_attainment"] = slo_attainment(result, slo)
    if alone is not None:
        slowdowns = slowdown(result, alone)
        p99, largest = censored_quantiles(slowdowns, [0.99, 1.0])
        summary |= {"slowdown_p99": p99, "slowdown_max": largest}
        summary["jain"] = jain_index(result, alone)
    return summary


def censored_quantiles(values: Floats, levels: Sequence[float]) -> list[float]:
    """Quantiles of latencies, in which NaN (not reached before the horizon) is beyond all others.

    Examples
    --------
    >>> censored_quantiles(np.array([1.0, np.nan, 3.0]), [0.5, 0.9])
    [3.0, inf]
    """
    return quantiles(np.where(np.isnan(values), np.inf, values), levels)


def _elapsed(result: Result, start: str, end: str) -> Floats:
    return np.asarray(result.requests[end] - result.requests[start])


def _finished(result: Result) -> NDArray[np.bool_]:
    return np.asarray(~np.isnan(result.requests.last_token_ts))


def _num_gaps(result: Result) -> int:
    """Gaps between tokens that all answers have once they are whole."""
    return int(result.requests.output_len.sum()) - len(result.requests)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else NAN

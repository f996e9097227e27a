"""LSSP to the letter: its deadlines, loads, reference rate and metrics, on its slot engine.

LSSP calls the load of a window a factor: gaps between arrivals *and* the time that every deadline
leaves are divided by it, while lengths and the step stay as they are. The reference `lambda_ref` is
the factor at which FIFO is late with 0.5 % of the requests, here one of 200.

References
----------
Vahidi, "How Portable Are LLM-Serving Scheduler Rankings Across Workloads, Operating Regions, and
Metrics?", 2026 (LSSP). ``docs/background/lssp.md`` says what of it was read, and what follows.
"""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from queuesmith.errors import TraceError
from queuesmith.metrics import Metric
from queuesmith.stats import quantiles
from queuesmith.study.cells import SLACKS, quarters
from queuesmith.study.lssp_engine import SlotRequests, SlotResult, simulate_slots
from queuesmith.study.lssp_slots import STEP_TIME
from queuesmith.study.lssp_windows import predict, read_slot_inputs
from queuesmith.windows import Window

__all__ = [
    "METRICS",
    "REGIONS",
    "at_factor",
    "lambda_ref",
    "measure_slots",
    "read_slot_inputs",
    "run_window",
    "synthesize",
]

#: LSSP's operating regions, as multiples of `lambda_ref`.
REGIONS: Mapping[str, float] = MappingProxyType(
    {
        "LOW": 0.5,
        "PRE_KNEE": 0.8,
        "KNEE": 1.0,
        "POST_KNEE": 1.1,
        "OVERLOAD": 1.2,
        "HIGH_PRESSURE": 1.5,
    }
)

#: Metrics of LSSP beside those of `queuesmith.metrics`. Like its latencies, all but the last are of
#: finished requests only, so that a policy which stalls after a few looks good on them.
METRICS: Mapping[str, Metric] = MappingProxyType(
    {
        "weighted_goodput": Metric("1", "higher", "weight finished by its deadline / finished"),
        "slo_violation_rate": Metric("1", "lower", "finished after the deadline / finished"),
        "e2el_p95": Metric("s", "lower", "95th percentile of last_token_ts - arrival_time"),
        "ttft_p95": Metric("s", "lower", "95th percentile of first_token_ts - arrival_time"),
        "completion_fraction": Metric("1", "higher", "finished requests / requests"),
    }
)

#: Seconds that a deadline counts for a prompt and for a predicted output token, and how often.
PROMPT_TOKEN_TIME, OUTPUT_TOKEN_TIME, DEADLINE_FACTOR = 0.0004, 0.02, 20.0
#: Where FIFO's share of late requests crosses it lies `lambda_ref`.
VIOLATIONS = 0.005
_SEARCH, _ITERATIONS = (-2.0, 4.0), 30


def synthesize(window: Window) -> SlotRequests:
    """Return a window's requests at its own rate, with LSSP's predictions and deadlines.

    Predictions are those published with the window, or drawn as LSSP does. A deadline follows the
    *prediction*.
    """
    trace = window.trace
    if window.predicted_output_tokens is None:
        predicted = predict(trace.output_len, window.name)
    elif np.isnan(window.predicted_output_tokens).any():
        raise TraceError(
            f"window {window.name} lacks the prediction of some request; LSSP needs all of them"
        )
    else:
        predicted = window.predicted_output_tokens.astype(np.int64)
    arrival = trace.arrival_time - trace.arrival_time[0]
    service = PROMPT_TOKEN_TIME * trace.prompt_len + OUTPUT_TOKEN_TIME * predicted
    return SlotRequests(
        arrival, trace.prompt_len, trace.output_len, predicted, arrival + DEADLINE_FACTOR * service
    )


def at_factor(requests: SlotRequests, factor: float) -> SlotRequests:
    """Divide the gaps between arrivals and the time to every deadline by a factor."""
    gaps = np.diff(requests.arrival_time, prepend=0.0) / factor
    arrival = np.cumsum(gaps)
    slack = (requests.deadline - requests.arrival_time) / factor
    return SlotRequests(
        arrival,
        requests.prompt_len,
        requests.output_len,
        requests.predicted_output_tokens,
        arrival + slack,
    )


def lambda_ref(requests: SlotRequests) -> float:
    """Return the factor at which FIFO's share of late requests crosses 0.5 %.

    Thirty bisections of its logarithm between 0.01 and 10,000, which are also the answers if FIFO
    is too late at the one or not at the other.

    Notes
    -----
    Since deadlines shrink and service does not, a request whose output was predicted short is late
    without any queue: with 200 requests one such can set this rate.
    """

    def is_late(exponent: float) -> bool:
        result = simulate_slots("fifo", at_factor(requests, 10.0**exponent))
        return _violation_rate(result) >= VIOLATIONS

    low, high = _SEARCH
    if is_late(low):
        return float(10.0**low)
    if not is_late(high):
        return float(10.0**high)
    for _ in range(_ITERATIONS):
        middle = (low + high) / 2.0
        if is_late(middle):
            high = middle
        else:
            low = middle
    return float(10.0 ** ((low + high) / 2.0))


def _violation_rate(result: SlotResult) -> float:
    rows = result.rows[result.finished]
    return float((rows.last_token_ts > rows.deadline).mean()) if len(rows) else 1.0


def run_window(
    window: Window, policies: Sequence[str], multipliers: Mapping[str, float] = REGIONS
) -> list[dict[str, Any]]:
    """Run policies of LSSP's panel on a window at multiples of its reference rate, by region.

    The rate is searched for and not taken from the window: a published one has nine digits, and at
    the knee the tenth decides on which side of a step an arrival falls.
    """
    requests = synthesize(window)
    reference = lambda_ref(requests)
    rows = []
    for load, multiplier in multipliers.items():
        scaled = at_factor(requests, reference * multiplier)
        fifo = simulate_slots("fifo", scaled).rows
        queued_steps = float((fifo.admitted_ts - fifo.arrival_time).mean() / STEP_TIME)
        for policy in policies:
            numbers = measure_slots(simulate_slots(policy, scaled))
            rows.append(
                {
                    "load": load,
                    "multiplier": multiplier,
                    "policy": policy,
                    **numbers,
                    "fcfs_queued_steps": queued_steps,
                }
            )
    return rows


def measure_slots(result: SlotResult) -> dict[str, float]:
    """Return what a run was like, as LSSP counts it.

    Latencies and rates are of finished requests only, NaN if there are none; a rate is per second
    to the start of the last step. Every request has the weight 1.
    Numbers of `queuesmith.metrics` that the slot engine gives no meaning are left out.
    """
    rows = result.rows
    done = rows[result.finished]
    span = result.end_time
    slack = rows.deadline - rows.arrival_time
    numbers: dict[str, float] = {
        "num_requests": len(rows),
        "num_unfinished": len(rows) - len(done),
        "num_steps": result.num_steps,
        "num_preemptions": int(rows.num_preemptions.sum()),
        "completion_fraction": len(done) / len(rows),
        "anwg": float((rows.last_token_ts <= rows.deadline).mean()),
        "slo_violation_rate": _mean(done.last_token_ts > done.deadline),
        "weighted_goodput": _mean(done.last_token_ts <= done.deadline),
        "request_throughput": _rate(np.ones(len(done)), span),
        "output_throughput": _rate(done.output_len, span),
        "total_token_throughput": _rate(done.prompt_len + done.output_len, span),
    }
    for factor in SLACKS:
        met = rows.last_token_ts <= rows.arrival_time + factor * slack
        numbers[f"anwg_slack_{factor:g}"] = float(met.mean())
    several = done[done.output_len > 1]
    times = {
        "ttft": done.first_token_ts - done.arrival_time,
        "e2el": done.last_token_ts - done.arrival_time,
        "queued_time": done.admitted_ts - done.arrival_time,
        "tpot": (several.last_token_ts - several.first_token_ts) / (several.output_len - 1),
    }
    for name, values in times.items():
        numbers[f"{name}_mean"] = _mean(values)
        p50, p90, p95, p99, most = quantiles(values, [0.5, 0.9, 0.95, 0.99, 1.0])
        numbers |= {f"{name}_p50": p50, f"{name}_p90": p90, f"{name}_p99": p99}
        if name in ("ttft", "e2el"):
            numbers[f"{name}_p95"] = p95
        if name in ("ttft", "queued_time"):
            numbers[f"{name}_max"] = most
    waits = rows.first_token_ts - rows.arrival_time
    waits[~result.finished] = np.nan
    for letter, lengths in (("q", rows.prompt_len), ("o", rows.output_len)):
        for number, quarter in enumerate(quarters(lengths), start=1):
            own = waits[quarter]
            numbers[f"ttft_mean_{letter}{number}"] = _mean(own[~np.isnan(own)])
    return numbers


def _mean(values: NDArray[Any]) -> float:
    return float(values.mean()) if len(values) else math.nan


def _rate(amounts: NDArray[Any], span: float) -> float:
    """Per second; LSSP leaves it undefined where nothing finished."""
    return float(amounts.sum() / span) if len(amounts) and span > 0 else math.nan

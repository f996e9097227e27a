"""What no policy can be below: times that physics alone enforces.

A step that computes P prefill tokens takes at least ``rate * P`` seconds and what their attention
costs, whatever else is in it, and the attention terms ``new * (computed + new / 2)`` of a prompt of
p tokens add up to ``p**2 / 2`` however it is cut. So a prompt has an amount of *work* in seconds,
of which an engine does no more than one second a second.
"""

import heapq
import math

import numpy as np
from numpy.typing import NDArray

from queuesmith.config import EngineConfig
from queuesmith.engine import Workload
from queuesmith.engine.presets.step_time import StepTime
from queuesmith.engine.result import ITL_EDGES
from queuesmith.evolve.scoring.cells import LATENCIES, TOTALS, CellResult, Keep, largest

#: Share by which bounds are lowered, so that the order in which numbers are added cannot matter.
ROUNDING = 1e-9

Floats = NDArray[np.float64]


def least_ttft(workload: Workload, config: EngineConfig, step_time: StepTime) -> Floats:
    """Return a TTFT that no policy can beat, for each request by itself.

    Returns
    -------
    (num_requests,) float64
        Seconds.

    Notes
    -----
    A prompt of p tokens takes at least ``ceil(p / budget)`` steps with prefill, of at least ``a +
    f`` each, beside ``min(b1, b2) p`` and its attention; and at least its work. With prefix caching
    of prompts that share their starts, or instant prefill, all that is certain is one step.
    """
    s = step_time
    prompt = workload.trace.prompt_len.astype(np.float64)
    shortest = s.shortest(config.async_scheduling) * (1 - ROUNDING)
    if workload.contents is not None or config.instant_prefill:
        return np.full(len(prompt), shortest)
    steps = np.ceil(prompt / config.token_budget)
    fixed, _ = s.fixed(config.async_scheduling)
    seconds = steps * (fixed + s.f) + min(s.b1, s.b2) * prompt + s.e * prompt**2 / 2
    seconds = np.maximum(seconds, _work(prompt, config, s)) * (1 - ROUNDING)
    return np.asarray(np.maximum(seconds, shortest))


def least_mean_ttft(workload: Workload, config: EngineConfig, step_time: StepTime) -> float:
    """Return a mean TTFT in seconds that no policy can beat on all the requests together.

    Notes
    -----
    An engine that did nothing but the work of prompts, one second a second, could do so in any
    order and change its mind at any time; then serving whoever has least work left minimises the
    mean time from arrival to the end of one's work, and no first token comes before that.

    References
    ----------
    Schrage, "A proof of the optimality of the shortest remaining processing time discipline", 1968.
    """
    if workload.contents is not None or config.instant_prefill:
        return 0.0
    arrival = workload.trace.arrival_time.tolist()
    work = _work(workload.trace.prompt_len.astype(np.float64), config, step_time).tolist()
    waiting: list[tuple[float, float]] = []  # work left, arrival
    now = total = 0.0
    row = 0
    while row < len(arrival) or waiting:
        if not waiting:
            now = max(now, arrival[row])
        while row < len(arrival) and arrival[row] <= now:
            heapq.heappush(waiting, (work[row], arrival[row]))
            row += 1
        left, since = waiting[0]
        until = arrival[row] if row < len(arrival) else math.inf
        if now + left <= until:
            heapq.heappop(waiting)
            now += left
            total += now - since
        else:
            heapq.heapreplace(waiting, (left - (until - now), since))
            now = until
    return total / len(arrival) * (1 - ROUNDING)


def least_result(
    workload: Workload, alone: Floats, config: EngineConfig, step_time: StepTime, keep: Keep
) -> CellResult:
    """Return a result that is better in every respect than any policy's can be.

    Notes
    -----
    Every output token after the first takes a step of its own, of at least its fixed seconds.
    Where clients give up or are turned away, a policy may leave out whom it likes, and nothing is
    certain but 0.
    """
    outputs = workload.output_len
    totals = dict.fromkeys(TOTALS, 0.0)
    num = len(outputs)
    gaps = outputs - 1
    several = gaps > 0
    numbers = {"ttft": num, "e2el": num, "tpot": int(several.sum())}
    totals |= {f"{name}_num": float(count) for name, count in numbers.items()}
    totals |= {"num_requests": float(num), "num_met": float(num), "span": 1e-9}
    totals["num_output_tokens"] = float(outputs.sum())
    totals["num_computed_tokens"] = float((workload.trace.prompt_len + gaps).sum())
    tails = [np.zeros(keep.tail_len)] * len(LATENCIES)
    step = 0.0
    limits = config.max_num_queued_reqs, config.max_num_queued_tokens
    if limits == (None, None) and not np.isfinite(workload.abort_time).any():
        is_async = config.async_scheduling
        step = min(step_time.shortest(is_async), step_time.fixed(is_async)[0]) * (1 - ROUNDING)
        first = least_ttft(workload, config, step_time)
        last = first + gaps * step
        per_token = np.full(numbers["tpot"], step)
        totals["ttft_sum"] = max(least_mean_ttft(workload, config, step_time) * num, first.sum())
        totals |= {"e2el_sum": last.sum(), "tpot_sum": per_token.sum(), "ttft_max": first.max()}
        arrival = workload.trace.arrival_time
        totals["span"] = float((arrival + last).max() - arrival[0])
        totals["slowdown_max"] = float((last / alone).max())
        tails = [largest(values, keep.tail_len) for values in (first, last, per_token)]
        if keep.slo is not None:
            met = np.ones(num, np.bool_)
            for limit, values in (
                (keep.slo.ttft, first),
                (keep.slo.tpot, np.where(several, step, 0.0)),
                (keep.slo.e2el, last),
            ):
                met &= values <= (np.inf if limit is None else limit)
            totals["num_met"] = float(met.sum())
    bins = np.zeros(len(ITL_EDGES) - 1)
    bins[max(int(np.searchsorted(ITL_EDGES, step, side="right")) - 1, 0)] = gaps.sum()
    return CellResult(np.concatenate([list(totals.values()), bins, *tails]))


def _work(prompt: Floats, config: EngineConfig, step_time: StepTime) -> Floats:
    return np.asarray(least_rate(config, step_time) * prompt + step_time.e * prompt**2 / 2)


def least_rate(config: EngineConfig, step_time: StepTime) -> float:
    """Return the least seconds per token of a step with prefill, attention apart.

    ``(a + f + b1 min(T, t0) + b2 max(T - t0, 0)) / T`` falls up to t0, and beyond it falls or rises
    all the way: it is least at t0 or at the budget.
    """
    s = step_time
    fixed = s.fixed(config.async_scheduling)[0] + s.f
    budget = float(config.token_budget)
    sizes = {budget, min(max(s.t0, 1.0), budget)}
    return min(
        (fixed + s.b1 * min(size, s.t0) + s.b2 * max(size - s.t0, 0.0)) / size for size in sizes
    )

"""The one factor on step time with which a simulation fits a measurement best."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from queuesmith.checking.errors import (
    DRAWS,
    MIN_UNITS,
    Blocks,
    Floats,
    mean_error,
    rank_correlations,
)
from queuesmith.config import EngineConfig
from queuesmith.engine import Workload, simulate_workload
from queuesmith.engine.compile import CompiledPolicy
from queuesmith.engine.presets.step_time import StepTime
from queuesmith.metrics import e2el, queued_time, tpot, ttft
from queuesmith.stats import bootstrap_weights, interval, pooled_mean_draws
from queuesmith.traces.measured import LATENCIES

#: Where the factor is looked for: from 1/32 to 32.
MAX_SCALE = 32.0
#: Log errors beyond it count as this, so that a few stalled requests do not decide.
_CLIP = math.log(4.0)

_METRICS = {"ttft": ttft, "tpot": tpot, "e2el": e2el, "queued_time": queued_time}


class Simulator:
    """Simulates all logs with step times of any length, each length once."""

    def __init__(
        self,
        workloads: Sequence[Workload],
        compiled: CompiledPolicy,
        config: EngineConfig,
        step_time: StepTime,
        progress: Callable[[int], None] | None,
    ) -> None:
        self._arguments = (workloads, compiled, config, step_time)
        self._known: dict[float, dict[str, Floats]] = {}
        self._progress = progress

    def at(self, scale: float) -> dict[str, Floats]:
        """Return the latencies of every request when steps take `scale` times as long."""
        if scale not in self._known:
            workloads, compiled, config, step_time = self._arguments
            scaled = scale_step_time(step_time, scale)
            results = [simulate_workload(one, compiled, config, scaled) for one in workloads]
            self._known[scale] = {
                name: np.concatenate([metric(result) for result in results])
                for name, metric in _METRICS.items()
            }
            if self._progress is not None:
                self._progress(len(self._known))
        return self._known[scale]


def scale_step_time(step_time: StepTime, scale: float) -> StepTime:
    """Return the step times of an engine on which every step takes `scale` times as long."""
    names = ("a", "b1", "b2", "c", "d", "e", "f", "host_overhead")
    return replace(step_time, **{name: scale * getattr(step_time, name) for name in names})


def fit_scale(
    simulator: Simulator, measured: Mapping[str, Floats], blocks: Blocks, seed: int
) -> dict[str, Any] | None:
    """Find the one factor on step times with which the simulation fits best.

    It makes the mean log ratio of simulated to measured latencies 0, of E2EL where the log has it,
    else of TTFT or TPOT. Ratios beyond 4 count as 4.

    Returns
    -------
    dict or None
        `factor`, 1 for the engine as it is, with `low` and `high` (by the delta method, over the
        same blocks as all else); the `latency` it was fitted on; whether it is at the `bound` of
        the search; and what is left `after` it: the `error` of the mean and the rank `correlation`
        of each latency, and the `spread`, the median factor by which a request still differs. None
        with no value to fit.

    References
    ----------
    Huber, "Robust estimation of a location parameter", Ann. Math. Statist. 35, 1964.
    """
    known = simulator.at(1.0)
    counts = {
        name: int(((measured[name] > 0) & ~np.isnan(known[name])).sum())
        for name in ("e2el", "ttft", "tpot")
    }
    latency = max(counts, key=lambda name: counts[name])
    if not counts[latency]:
        return None

    def log_ratios(log_scale: float) -> Floats:
        values = simulator.at(math.exp(log_scale))[latency]
        with np.errstate(divide="ignore"):
            ratios = np.log(values) - np.log(measured[latency])
        return np.asarray(np.clip(ratios, -_CLIP, _CLIP))

    def mean(log_scale: float) -> float:
        return float(np.nanmean(log_ratios(log_scale)))

    bound = math.log(MAX_SCALE)
    low = high = 0.0
    while mean(low) > 0 and low > -bound:
        low -= math.log(2.0)
    while mean(high) < 0 and high < bound:
        high += math.log(2.0)
    at_bound = mean(low) > 0 or mean(high) < 0
    if at_bound or low == high:
        root = low if mean(low) > 0 else high
    else:
        from scipy.optimize import brentq  # slow to import, and needed nowhere else

        root = float(brentq(mean, low, high, xtol=5e-4, rtol=1e-6))
    ends = math.nan, math.nan
    ratios = log_ratios(root)
    there = ~np.isnan(ratios)
    slope = (mean(root + 0.05) - mean(root - 0.05)) / 0.1
    if not at_bound and slope > 0 and len(np.unique(blocks.block[there])) >= MIN_UNITS:
        weights = bootstrap_weights(len(blocks.rate), DRAWS, np.random.default_rng(seed))
        draws = pooled_mean_draws(ratios[there], blocks.block[there], weights)
        ends = interval(np.exp(root - draws / slope))
    after = simulator.at(math.exp(root))
    return {
        "factor": math.exp(root),
        "low": ends[0],
        "high": ends[1],
        "latency": latency,
        "bound": at_bound,
        "after": {
            "error": {
                name: mean_error(measured[name], after[name])
                for name in LATENCIES
                if not np.isnan(measured[name]).all()
            },
            "correlation": rank_correlations(measured, after),
            "spread": math.exp(float(np.median(np.abs(ratios[there])))),
        },
    }

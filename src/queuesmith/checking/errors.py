"""Errors of a simulation against a measurement, with intervals over units, never over requests.

Requests that queue together are late together, so what is drawn again is a block of neighbours, or
a log where there are enough.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from queuesmith.stats import (
    bootstrap_weights,
    interval,
    pooled_mean_draws,
    pooled_quantile_draws,
    quantiles,
)
from queuesmith.traces.statistics import rank_correlation
from queuesmith.traces.trace import Trace

Floats = NDArray[np.float64]

DRAWS = 1000
#: With fewer units there is no interval.
MIN_UNITS = 8
#: Blocks of a long log, ten for each third of the load; a short one has fewer.
MAX_BLOCKS = 30
MIN_BLOCK_LEN = 20
#: Values below which a quantile would be a single request.
STATISTICS = {"mean": 1, "p50": 3, "p90": 20, "p99": 100}
_LEVELS = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
#: Loads are told apart when the busiest third has this many times the rate of the calmest.
MIN_SPREAD = 1.25


@dataclass(frozen=True, eq=False)
class Blocks:
    """Requests of all logs, one after another, in blocks of neighbours.

    Attributes
    ----------
    block : (num_requests,) int64
    rate : (num_blocks,) float64
        Arrivals per second; +inf for requests that came at once.
    unit : str
        What a block is.
    """

    block: NDArray[np.int64]
    rate: Floats
    unit: str

    def loads(self) -> list[tuple[str, NDArray[np.int64]]]:
        """Return the blocks of the whole log, and of thirds by rate where those differ."""
        every = np.arange(len(self.rate))
        loads = [("all", every)]
        parts = np.array_split(np.argsort(self.rate, kind="stable"), 3)
        if len(every) >= 6 and np.isfinite(self.rate).all():
            calm, busy = self.rate[parts[0]].mean(), self.rate[parts[2]].mean()
            if busy >= MIN_SPREAD * calm:
                loads += [
                    (name, np.sort(part))
                    for name, part in zip(("low", "middle", "high"), parts, strict=True)
                ]
        return loads


def cut_blocks(traces: Sequence[Trace]) -> Blocks:
    """Cut logs into blocks of equally many requests; with enough logs each is one block."""
    num_requests = sum(map(len, traces))
    if len(traces) >= MIN_UNITS:
        counts, unit = [1] * len(traces), "log"
    else:
        length = max(MIN_BLOCK_LEN, -(-num_requests // MAX_BLOCKS))
        counts = [max(1, len(trace) // length) for trace in traces]
        unit = f"block of about {num_requests / sum(counts):.0f} consecutive requests"
    block = np.empty(num_requests, np.int64)
    rates: list[float] = []
    start = 0
    for trace, count in zip(traces, counts, strict=True):
        edges = [len(trace) * part // count for part in range(count + 1)]
        for first, end in pairwise(edges):
            block[start + first : start + end] = len(rates)
            rates.append(_rate(trace.arrival_time, first, end))
        start += len(trace)
    return Blocks(block, np.array(rates), unit)


def _rate(arrivals: Floats, first: int, end: int) -> float:
    """Return arrivals per second, up to the next block's first where there is one."""
    last = min(end, len(arrivals) - 1)
    seconds = float(arrivals[last] - arrivals[first])
    return (last - first) / seconds if seconds > 0 else math.inf


def errors(
    load: str,
    latency: str,
    measured: Floats,
    simulated: Floats,
    blocks: Blocks,
    members: NDArray[np.int64],
    seed: int,
) -> list[dict[str, Any]]:
    """Return one row for each of `STATISTICS` of a latency at a load.

    Parameters
    ----------
    load, latency : str
        For the rows.
    measured, simulated : (num_requests,) float64
        Seconds; requests in which either is NaN are left out of both.
    blocks : Blocks
    members : (num_members,) int64
        The blocks of this load.
    seed : int
        Of the bootstrap: all that is measured on the same blocks is paired.

    Returns
    -------
    list of dict
        `measured` and `simulated` seconds, and their `error` with the ends of its interval; NaN
        where there are too few values or units.
    """
    place = np.full(len(blocks.rate), -1)
    place[members] = np.arange(len(members))
    unit = place[blocks.block]
    chosen = (unit >= 0) & ~np.isnan(measured) & ~np.isnan(simulated)
    sides, unit = (measured[chosen], simulated[chosen]), unit[chosen]
    weights = bootstrap_weights(len(members), DRAWS, np.random.default_rng([seed, len(members)]))
    rows = []
    for statistic, least in STATISTICS.items():
        row: dict[str, Any] = {
            "load": load,
            "latency": latency,
            "statistic": statistic,
            "num_requests": int(chosen.sum()),
            **dict.fromkeys(("measured", "simulated", "error", "low", "high"), math.nan),
        }
        rows.append(row)
        if chosen.sum() < least:
            continue
        values = [_statistic(side, statistic) for side in sides]
        row["measured"], row["simulated"] = values
        row["error"] = ratio(np.array(values[1]), np.array(values[0])).item() - 1
        if len(np.unique(unit)) >= MIN_UNITS:
            drawn = [_draws(side, unit, weights, statistic) for side in sides]
            row["low"], row["high"] = interval(ratio(drawn[1], drawn[0]) - 1)
    return rows


def _statistic(values: Floats, statistic: str) -> float:
    if statistic == "mean":
        return float(values.mean())
    return quantiles(values, [_LEVELS[statistic]])[0]


def _draws(
    values: Floats, unit: NDArray[np.int64], weights: NDArray[np.int64], statistic: str
) -> Floats:
    if statistic == "mean":
        return pooled_mean_draws(values, unit, weights)
    return pooled_quantile_draws(values, unit, weights, _LEVELS[statistic])


def ratio(simulated: Floats, measured: Floats) -> Floats:
    """Divide; two zeros, as of requests that never queued, agree."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(simulated == measured, 1.0, simulated / measured))


def mean_error(measured: Floats, simulated: Floats) -> float:
    """Return the error of a mean, over requests in which both sides are known."""
    both = ~np.isnan(measured) & ~np.isnan(simulated)
    if not both.any():
        return math.nan
    means = np.array(simulated[both].mean()), np.array(measured[both].mean())
    return ratio(*means).item() - 1


def rank_correlations(
    measured: Mapping[str, Floats], simulated: Mapping[str, Floats]
) -> dict[str, float]:
    """Return Spearman's correlation over requests, by latency; NaN below 3, or where all are equal.

    A latency of which nothing was measured is left out.
    """
    found = {}
    for name, values in measured.items():
        both = ~np.isnan(values) & ~np.isnan(simulated[name])
        if np.isnan(values).all():
            continue
        found[name] = math.nan
        if both.sum() >= 3:
            sides = (values[both], simulated[name][both])
            codes = [np.unique(side, return_inverse=True)[1].reshape(-1) for side in sides]
            found[name] = rank_correlation(*codes)
    return found

"""Who waits longer so that others wait less: by prompt, and by the burst that a request came in."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from queuesmith.evolve.gates.measurements import Measured
from queuesmith.evolve.scoring.cells import Configuration
from queuesmith.evolve.scoring.scale import Traffic

#: Arrivals before a request whose mean gap says how dense the burst is that it came in.
BURST_LEN = 8
#: Quarters by prompt, shortest first, and by burst, densest first.
NAMES = {
    "prompt": ("the shortest prompts", "shorter prompts", "longer prompts", "the longest prompts"),
    "burst": ("in the densest bursts", "in bursts", "in lulls", "in the calmest lulls"),
}
#: A request belongs to the tail that is among so many of the longest waits.
_TAIL = 0.01

Floats = NDArray[np.float64]


def who_paid(
    mine: Measured, fcfs: Measured, traffic: Traffic, only: Configuration | None = None
) -> dict[Configuration, dict[str, list[dict[str, Any]]]]:
    """Compare TTFT with FCFS's for quarters of the requests of each configuration.

    Returns
    -------
    mapping of Configuration to mapping of str to list of dict
        By ``prompt`` (tokens) and ``burst`` (mean gap of the last `BURST_LEN` arrivals over that of
        the window; 0 is at once): quarters with the range `low` to `high` of what they are made
        by, mean and p99 TTFT (s) beside FCFS's, and `tail_share`, the share of the quarter's
        requests among the longest 1 % of waits of the configuration.
    """
    by_key: dict[Configuration, list[tuple[int, int]]] = {}
    for index, cell in enumerate(traffic.cells):
        key = Configuration(traffic.sources[cell.window], cell.load)
        by_key.setdefault(key, []).append((cell.window, index))
    found = {}
    for key, windows in by_key.items():
        if only is not None and key != only:
            continue
        traces = [traffic.workloads[index].trace for _, index in sorted(windows)]
        measures = {
            "prompt": np.concatenate([trace.prompt_len for trace in traces]).astype(np.float64),
            "burst": np.concatenate([density(trace.arrival_time) for trace in traces]),
        }
        times, base = mine.samples[key].ttft, fcfs.samples[key].ttft
        found[key] = {
            by: _quarters(NAMES[by], measure, times, base) for by, measure in measures.items()
        }
    return found


def density(arrival_time: Floats) -> Floats:
    """Return the mean gap of the last arrivals before each request, over the mean of all gaps.

    Parameters
    ----------
    arrival_time : (num_requests,) float64
        Ascending, s.

    Returns
    -------
    (num_requests,) float64
        1 is the usual, 0 is all at once; the first request, of which nothing is known, has 1.

    Examples
    --------
    >>> density(np.array([0.0, 1.0, 2.0, 3.0])).tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    place = np.arange(len(arrival_time))
    back = np.minimum(place, BURST_LEN)
    span = arrival_time[-1] - arrival_time[0]
    ratio = np.ones(len(arrival_time))
    if span > 0:
        gaps = (arrival_time - arrival_time[place - back])[1:] / back[1:]
        ratio[1:] = gaps / (span / (len(arrival_time) - 1))
    return ratio


def _quarters(
    names: Sequence[str], measure: Floats, mine: Floats, base: Floats
) -> list[dict[str, Any]]:
    order = np.argsort(measure, kind="stable")
    worst = np.zeros(len(mine), bool)
    worst[np.argsort(-mine, kind="stable")[: max(1, round(_TAIL * len(mine)))]] = True
    rows = []
    for name, chosen in zip(names, np.array_split(order, len(names)), strict=True):
        if not len(chosen):
            continue
        here, there = mine[chosen], base[chosen]
        p99, p99_fcfs = float(np.quantile(here, 0.99)), float(np.quantile(there, 0.99))
        rows.append(
            {
                "who": name,
                "low": float(measure[chosen].min()),
                "high": float(measure[chosen].max()),
                "num_requests": len(chosen),
                "ttft_mean": float(here.mean()),
                "ttft_mean_fcfs": float(there.mean()),
                "mean_change": change(float(here.mean()), float(there.mean())),
                "ttft_p99": p99,
                "ttft_p99_fcfs": p99_fcfs,
                "p99_change": change(p99, p99_fcfs),
                "tail_share": float(worst[chosen].mean()),
            }
        )
    return rows


def change(value: float, base: float) -> float:
    """Return a relative change; NaN where the reference waits for nothing, or for ever."""
    return value / base - 1.0 if base > 0 and np.isfinite(base) else float("nan")


def worst_off(paid: Mapping[str, Sequence[Mapping[str, Any]]]) -> Mapping[str, Any]:
    """Return the quarter whose p99 got longest beside FCFS's."""
    every = [row for rows in paid.values() for row in rows]
    known = [row for row in every if row["p99_change"] is not None]
    return max(known or every, key=lambda row: row["p99_change"] or 0.0)

"""Fit traffic that is known from short windows of requests and from totals over days."""

import csv
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from queuesmith.errors import TraceError
from queuesmith.traces import load_trace
from queuesmith.traces.fit import (
    expect_files,
    finish,
    fit_client,
    fit_lengths,
    provenance,
    round_number,
)
from queuesmith.traces.fitting.servegen import mean_by_hour, per_mean, total_rate
from queuesmith.traces.fitting.sessions import spread_batches
from queuesmith.traces.models.client import HOUR, HOURS, Client, Drift
from queuesmith.traces.readers.servegen import read_servegen
from queuesmith.traces.synthetic import WorkloadModel
from queuesmith.traces.trace import Trace

_DAY = HOURS * HOUR


def fit_burstgpt(files: Sequence[Path], name: str) -> WorkloadModel:
    """Fit people, from the first rows and the first week, and automated calls, from windows.

    People's day is the first week's tokens by hour, before any automated call. Automated calls come
    in bursts. Their daily numbers, above the people's, say how many calls a burst has: the daily
    variance of geometric bursts over their mean is twice the size of a burst. Their hours are those
    of all days less the people's. Windows say how fast they come and what they are; only every
    other window is used, so that the rest can check.
    """
    rows, aggregates, windows = expect_files(
        files, 3, "BurstGPT_1_first1000.csv BurstGPT_1_aggregates.json burstgpt.csv"
    )
    trace = load_trace(rows)
    numbers = _read_aggregates(aggregates)
    hourly = np.zeros(HOURS)
    for minute in numbers["week1_min"]:
        hourly[minute["t"] // 60 % HOURS] += minute["tps"]
    hourly = per_mean(hourly)
    daily = np.array([day["req"] for day in numbers["daily"]], float)
    succeed = len(trace) / (len(trace) + sum(trace.origin.dropped.values()))
    people_a_day = daily[:7].mean()
    # In a clock that runs with the hour, people come at a constant rate.
    edges = HOUR * np.arange(HOURS + 1)
    clock = np.interp(trace.arrival_time, edges, np.append(0, np.cumsum(hourly)) * HOUR)
    people = replace(
        fit_client(replace(trace, arrival_time=clock), "people"),
        rate=round_number(people_a_day * succeed / _DAY),
        hourly=hourly,
    )
    by_hour = np.array([hour["rph"] for hour in numbers["hourly_avg"]])
    calls_by_hour = per_mean(np.maximum(by_hour - people_a_day / HOURS * hourly, 0))
    calls = np.maximum(daily - people_a_day, 0)
    burst = float(calls.var() / calls.mean() / 2)
    drawn = read_windows(windows)[::2]
    automated = [window.take(_is_call(window)) for window in drawn]
    notes = [
        f"{len(automated)} of 10 windows: {sum(map(len, automated))} automated calls",
        "failed requests are left out; their share of the rows is taken for that of every day",
    ]
    return finish(
        name,
        [people, _fit_calls(automated, float(calls.mean()) / _DAY, burst, calls_by_hour)],
        provenance(files, name, "burstgpt", len(trace), notes),
    )


def _read_aggregates(path: Path) -> dict[str, Any]:
    needed = {"week1_min", "hourly_avg", "daily"}
    try:
        numbers = json.loads(path.read_text("utf-8"))
    except ValueError:
        numbers = None
    if not isinstance(numbers, dict) or not needed <= numbers.keys():
        raise TraceError(f"{path.name} must be JSON with {', '.join(sorted(needed))}")
    return numbers


def _is_call(window: Trace) -> NDArray[np.bool_]:
    """Tell calls with exactly 7 output tokens, and calls of 150 to 250 with up to 60."""
    short = (window.prompt_len > 150) & (window.prompt_len < 250) & (window.output_len <= 60)
    return np.asarray((window.output_len == 7) | short)


def _fit_calls(
    windows: Sequence[Trace], rate: float, burst: float, hourly: NDArray[np.float64]
) -> Client:
    """Fit bursts of calls: gaps within windows, and pauses that make up the mean rate."""
    # Whole seconds say how many came in one, not when. Most calls come in busy hours, and so did
    # these; at the mean rate of the day their gaps would be as much longer.
    busy = float((hourly**2).mean())
    gaps = busy * np.concatenate(
        [np.diff(spread_batches(window.arrival_time)) for window in windows]
    )
    levels = np.arange(51) / 50
    within = np.quantile(np.maximum(gaps, 1e-3), levels)
    pause = burst * (1 / rate - gaps.mean())
    pause_levels = np.array([0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.97, 0.995])
    share = 1 / burst
    gap_levels = np.concatenate([levels * (1 - share), 1 - share * (1 - pause_levels), np.ones(1)])
    gap_table = np.concatenate([within, -pause * np.log1p(-pause_levels), [-pause * np.log(0.001)]])
    lengths = fit_lengths(*_pool(windows))
    return Client(
        name="calls",
        rate=round_number(rate),
        gap_shape=1.0,
        time_scales=np.empty(0),
        log_rate_variance=np.empty(0),
        gap_levels=np.round(gap_levels, 8),
        gaps=np.array([round_number(gap * rate) for gap in gap_table]),
        hourly=hourly,
        **lengths,
        output_drift=_fit_kind_drift([window.output_len == 7 for window in windows]),
    )


def _fit_kind_drift(kinds: Sequence[NDArray[np.bool_]]) -> Drift:
    """Fit how long calls stay of one kind: a normal score below a threshold decides it."""
    from scipy.special import ndtr, ndtri

    share = np.concatenate(kinds).mean()
    threshold = float(ndtri(share))
    # The chance that two scores of correlation c both fall below the threshold.
    nodes = np.linspace(-8, threshold, 2_001)
    density = np.exp(-(nodes**2) / 2) / np.sqrt(2 * np.pi)
    correlations = np.linspace(0, 0.99, 100)
    both = [
        np.trapezoid(density * ndtr((threshold - c * nodes) / np.sqrt(1 - c**2)), nodes)
        for c in correlations
    ]
    lags = np.array([1, 2, 5, 10, 20, 50, 100])
    seen = np.array(
        [
            np.interp(
                np.concatenate([kind[:-lag] & kind[lag:] for kind in kinds]).mean(),
                both,
                correlations,
            )
            for lag in lags
        ]
    )
    best = (np.inf, 0.0, 1.0)
    for scale in np.geomspace(10, 1_000, 40):
        shape = np.exp(-lags / scale)
        part = float(np.clip(shape @ seen / (shape @ shape), 0, 0.95))
        best = min(best, (float(((seen - part * shape) ** 2).sum()), part, float(scale)))
    return Drift(round_number(best[1]), round_number(best[2]), 0.0)


def fit_bailian(files: Sequence[Path], name: str) -> WorkloadModel:
    """Fit lengths and gaps to real windows, and the hours of the day to ServeGen's statistics.

    Only every other window is used, so that the rest can check. How much windows differ in rate,
    beyond chance and the hours, is given to a swing over ten minutes.
    """
    windows, statistics = expect_files(files, 2, "bailian_qwen.csv language_m-small.tar.xz")
    drawn = read_windows(windows)[::2]
    hourly = mean_by_hour(total_rate(read_servegen(statistics).clients))
    rates = np.array([(len(window) - 1) / window.duration for window in drawn])
    gaps = np.concatenate([np.diff(window.arrival_time) for window in drawn])
    scaled = np.concatenate(
        [np.diff(window.arrival_time) * rate for window, rate in zip(drawn, rates, strict=True)]
    )
    # The last term is what chance adds to the rate of a window.
    chance = float(np.mean([1 / len(window) for window in drawn]))
    spread = rates.var() / rates.mean() ** 2 - chance - hourly.var()
    lengths = fit_lengths(*_pool(drawn))
    client = Client(
        name=name,
        rate=round_number(1 / float(gaps.mean())),
        gap_shape=round_number(1 / float(scaled.var())),
        time_scales=np.array([600.0]),
        log_rate_variance=np.array([round_number(np.log1p(max(float(spread), 0.0)))]),
        hourly=hourly,
        **lengths,
    )
    notes = [
        f"{len(drawn)} of 10 windows of 200 requests",
        "rates between windows and beyond are those of ServeGen's clients, not of this service",
    ]
    return finish(name, [client], provenance(files, name, "bailian", sum(map(len, drawn)), notes))


def read_windows(path: Path) -> list[Trace]:
    """Read windows of requests, told apart by `window_id`."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    needed = {"window_id", "arrival_time_s", "prompt_tokens", "output_tokens"}
    if not rows or not needed <= set(rows[0]):
        raise TraceError(f"{path.name} must have the columns {', '.join(sorted(needed))}")
    windows = []
    for window_id in dict.fromkeys(row["window_id"] for row in rows):
        of_window = [row for row in rows if row["window_id"] == window_id]
        windows.append(
            Trace(
                [float(row["arrival_time_s"]) for row in of_window],
                [int(row["prompt_tokens"]) for row in of_window],
                [int(row["output_tokens"]) for row in of_window],
            )
        )
    return windows


def _pool(windows: Sequence[Trace]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    prompt_len = np.concatenate([window.prompt_len for window in windows])
    return prompt_len, np.concatenate([window.output_len for window in windows])

"""Fit a client to each client of ServeGen's statistics."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from queuesmith.traces.fit import expect_files, finish, provenance, round_number
from queuesmith.traces.models.client import HOUR, HOURS, Client
from queuesmith.traces.readers.servegen import LengthBin, ServeGenClient, read_servegen
from queuesmith.traces.synthetic import WorkloadModel

_DAY = HOURS * HOUR
_MAX_CLIENTS = 24
_LEVELS = np.unique([*(np.arange(26) / 25), 0.01, 0.02, 0.98, 0.99, 0.999])


def fit_servegen(files: Sequence[Path], name: str) -> WorkloadModel:
    """Fit the busiest clients of ServeGen's statistics, as many as `_MAX_CLIENTS`.

    Gaps are gamma, of the variation in the median request's ten minutes; ServeGen's Weibull gaps
    are not told apart. Lengths of a client are independent, since ServeGen does not say which go
    together, and do not change with time.
    """
    (path,) = expect_files(files, 1, "deepseek-r1.tar.xz")
    statistics = read_servegen(path)
    total = sum(float(client.rate.mean()) for client in statistics.clients)
    known = [client for client in statistics.clients if client.lengths and client.rate.any()]
    known.sort(key=lambda client: (-float(client.rate.mean()), client.number))
    taken = known[:_MAX_CLIENTS]
    share = sum(float(client.rate.mean()) for client in taken) / total
    notes = [
        f"{len(taken)} of {len(statistics.clients)} clients with {share:.1%} of the requests",
        *statistics.notes,
    ]
    fit = provenance(files, name, "servegen", 0, notes)
    del fit["num_requests"]
    return finish(name, [_fit_servegen_client(client) for client in taken], fit)


def _fit_servegen_client(client: ServeGenClient) -> Client:
    hourly = mean_by_hour(client.rate)
    width = float(np.diff(client.start).min())
    expected = client.rate.mean() * np.resize(
        np.repeat(hourly, round(HOUR / width)), len(client.rate)
    )
    busy = expected > 0
    left = client.rate[busy] / expected[busy]
    weights = expected[busy] / expected.sum()
    mean = float(weights @ left)
    chance = 1 / (width * client.rate.mean())
    variance = np.log1p(max(float(weights @ (left - mean) ** 2) / mean**2 - chance, 0.0))
    fitted = client.gap_cv > 0
    cv = _weighted_median(client.gap_cv[fitted], client.rate[fitted]) if fitted.any() else 1.0
    return Client(
        name=f"chunk-{client.number}",
        rate=round_number(float(client.rate.mean())),
        gap_shape=round_number(1 / float(np.clip(cv**2, 0.05, 400))),
        time_scales=np.array([_memory(left, width)]),
        log_rate_variance=np.array([round_number(min(float(variance), 4.0))]),
        hourly=hourly,
        levels=_LEVELS,
        prompt_len=_pool_lengths(client, lambda one: one.prompt_len),
        output_len=_pool_lengths(client, lambda one: one.output_len),
    )


def _weighted_median(values: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
    order = np.argsort(values)
    below = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(below, below[-1] / 2)])


def _memory(series: NDArray[np.float64], width: float) -> float:
    """Return the time in s after which a series has forgotten itself to 1/e, within a day."""
    centred = series - series.mean()
    power = float(centred @ centred)
    longest = min(int(_DAY / width), len(series) - 2)
    for lag in range(1, longest):
        if float(centred[:-lag] @ centred[lag:]) < power / np.e:
            return round_number(lag * width, 2)
    return round_number(max(longest, 1) * width, 2)


def _pool_lengths(client: ServeGenClient, pick: Callable[[LengthBin], Any]) -> NDArray[np.float64]:
    """Return quantiles of the distributions of all times, weighted by the rate at each."""
    starts = np.array([one.start for one in client.lengths])
    owner = np.searchsorted(starts, client.start, "right") - 1
    counted = np.bincount(owner[owner >= 0], client.rate[owner >= 0], minlength=len(starts))
    weights = counted if counted.any() else np.ones(len(starts))
    values = np.concatenate([pick(one).values for one in client.lengths])
    mass = np.concatenate(
        [weight * pick(one).weights for weight, one in zip(weights, client.lengths, strict=True)]
    )
    order = np.argsort(values, kind="stable")
    below = np.cumsum(mass[order])
    places = np.searchsorted(below, _LEVELS * below[-1] * (1 - 1e-9))
    places[0] = np.flatnonzero(mass[order])[0]
    return np.asarray(values[order][np.minimum(places, len(values) - 1)])


def total_rate(clients: Sequence[ServeGenClient]) -> NDArray[np.float64]:
    """Add the rates of all clients bin by bin."""
    longest = max(len(client.rate) for client in clients)
    total = np.zeros(longest)
    for client in clients:
        total[: len(client.rate)] += client.rate
    return total


def mean_by_hour(rate: NDArray[np.float64]) -> NDArray[np.float64]:
    """Average ten-minute rates from midnight by hour of the day, in units of the mean."""
    bins = np.arange(len(rate)) // 6 % HOURS
    return per_mean(
        np.bincount(bins, rate, minlength=HOURS) / np.maximum(np.bincount(bins, minlength=HOURS), 1)
    )


def per_mean(hourly: NDArray[np.float64]) -> NDArray[np.float64]:
    """Express rates by hour in units of their mean."""
    return np.asarray(np.round(hourly / hourly.mean(), 4))

"""Fit a workload model to a trace: ``python -m queuesmith.traces.fit FILE --name NAME``.

The same file gives the same TOML text, so that anyone can check a shipped model against its source.
"""

import argparse
import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares
from scipy.special import ndtri

from queuesmith.errors import QueuesmithError, TraceError
from queuesmith.traces.synthetic import Drift, WorkloadModel, parse_model
from queuesmith.traces.trace import Trace

#: Fewer requests cannot fill the tables.
MIN_REQUESTS = 1_000
_NUM_SCALES = 4
_NUM_BINS = 20
#: So many requests tell the rate to within 6 %, which is small beside its swings.
_COUNT_FOR_RATE = 300
_LEVELS = np.unique(np.concatenate([np.arange(201) / 200, [0.001, 0.9975, 0.999]]))


def fit_model(trace: Trace, name: str) -> WorkloadModel:
    """Fit every part of a workload model to a trace.

    Parameters
    ----------
    trace : Trace
        At least `MIN_REQUESTS` requests that do not all arrive at once.
    name : str
        Of the model.

    Raises
    ------
    TraceError
        If the trace is too short to be fitted.

    Notes
    -----
    Arrivals are fitted by moments: the dispersion of counts in bins from the shortest time scale to
    a sixth of the trace, and the coefficient of variation of gaps. No time scale is longer than
    a third of the trace (for lengths, a tenth), since one record cannot tell slower chance from a
    trend.
    """
    num_requests = len(trace)
    if num_requests < MIN_REQUESTS or trace.duration <= 0:
        raise TraceError(
            f"{trace.origin.source} has {num_requests:,} requests over {trace.duration:g} s; "
            f"a model needs at least {MIN_REQUESTS:,} over some time"
        )
    rate = (num_requests - 1) / trace.duration
    scales, variances, shape = _fit_arrivals(trace, rate)
    prompt_rank, output_rank = _ranks(trace.prompt_len, 0), _ranks(trace.output_len, 1)
    seen_rate = _see_rate(trace, rate, scales, variances)
    copula, _, _ = np.histogram2d(prompt_rank, output_rank, bins=_NUM_BINS, range=[(0, 1), (0, 1)])
    model = WorkloadModel(
        name=name,
        rate=_round(rate),
        gap_shape=_round(shape),
        time_scales=scales,
        log_rate_variance=np.round(variances, 5),
        levels=_LEVELS,
        prompt_len=np.quantile(trace.prompt_len, _LEVELS, method="inverted_cdf").astype(float),
        output_len=np.quantile(trace.output_len, _LEVELS, method="inverted_cdf").astype(float),
        copula=copula,
        prompt_drift=_fit_drift(_conditional_ranks(prompt_rank, output_rank), seen_rate),
        output_drift=_fit_drift(output_rank, seen_rate),
        fit={
            "source": trace.origin.source,
            "sha256": trace.origin.sha256,
            "num_requests": num_requests,
            "command": f"python -m queuesmith.traces.fit {trace.origin.source} --name {name}",
        },
    )
    return parse_model(format_model(model))


def count_dispersion(arrival_time: NDArray[np.float64], width: float) -> float:
    """Squared coefficient of variation of counts in bins, less the part that chance explains.

    Parameters
    ----------
    arrival_time : (num_requests,) float64
        Seconds, starting at 0.
    width : float
        Of a bin, s; a last bin that is not full is left out.
    """
    counts = np.bincount((arrival_time / width).astype(np.int64))[:-1]
    return float(counts.var() / counts.mean() ** 2 - 1 / counts.mean())


def _fit_arrivals(
    trace: Trace, rate: float
) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Return time scales in s, the variance of the log rate on each, and the shape of gaps."""
    arrivals = trace.arrival_time - trace.arrival_time[0]
    longest = trace.duration / 3
    shortest = min(max(1.0, 5 / rate), longest / 16)
    scales = np.array([_round(s, 2) for s in np.geomspace(shortest, longest, _NUM_SCALES)])
    widths = np.geomspace(shortest, longest / 2, 3 * _NUM_SCALES)
    seen = np.array([count_dispersion(arrivals, width) for width in widths])
    gaps = np.diff(arrivals)
    gap_cv2 = float(gaps.var() / gaps.mean() ** 2)

    def residuals(parameters: NDArray[np.float64]) -> NDArray[np.float64]:
        variances, dispersion = parameters[:-1], parameters[-1]
        # A record's own mean hides what is slower than the record.
        hidden = _rate_dispersion(trace.duration, scales, variances)
        counts = [
            _rate_dispersion(width, scales, variances) - hidden + (dispersion - 1) / (rate * width)
            for width in widths
        ]
        gap = (1 + dispersion) * np.exp(variances.sum()) - 1
        return np.append((np.array(counts) - seen) / np.abs(seen).mean(), gap / gap_cv2 - 1)

    start = np.append(np.full(_NUM_SCALES, np.log1p(max(seen.max(), 1e-3)) / _NUM_SCALES), 1.0)
    bounds = ([0.0] * _NUM_SCALES + [0.05], [10.0] * _NUM_SCALES + [20.0])
    found = least_squares(residuals, np.clip(start, *bounds), bounds=bounds, xtol=1e-12)
    return scales, found.x[:-1], 1 / float(found.x[-1])


def _rate_dispersion(
    width: float, scales: NDArray[np.float64], variances: NDArray[np.float64]
) -> float:
    """Squared coefficient of variation of the model's rate, averaged over bins of a width.

    The covariance of a log-normal rate at lag h is ``exp(sum(v * exp(-h / s))) - 1`` in units of
    its squared mean; a bin averages it with weight ``2 (width - h) / width**2``.
    """
    # Substituting h = width * x**2 puts the nodes where the shortest scale bends.
    nodes, weights = np.polynomial.legendre.leggauss(48)
    x = (nodes + 1) / 2
    lags = width * x**2
    excess = np.expm1((variances * np.exp(-lags[:, None] / scales)).sum(axis=1))
    return float((weights * 2 * (1 - x**2) * x * excess).sum())


def _ranks(values: NDArray[np.int64], seed: int) -> NDArray[np.float64]:
    """Return ranks strictly between 0 and 1; ties in random order, or they would follow time."""
    shuffle = np.random.default_rng(seed).random(len(values))
    ranks = np.empty(len(values))
    ranks[np.lexsort((shuffle, values))] = (np.arange(len(values)) + 0.5) / len(values)
    return ranks


def _conditional_ranks(
    ranks: NDArray[np.float64], given: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Rank within each bin of another variable."""
    within = np.empty(len(ranks))
    bins = (given * _NUM_BINS).astype(np.int64)
    for one in range(_NUM_BINS):
        rows = np.flatnonzero(bins == one)
        within[rows[np.argsort(ranks[rows])]] = (np.arange(len(rows)) + 0.5) / len(rows)
    return within


@dataclass(frozen=True)
class _SeenRate:
    """The logarithm of the rate as a record shows it, in units of its standard deviation.

    `score` is centred, one value per request. Its covariance with what goes with the rate is
    `shown` times what it would be on an endless record without bins. `scales` are in requests,
    `weights` sum to 1.
    """

    score: NDArray[np.float64]
    shown: float
    scales: NDArray[np.float64]
    weights: NDArray[np.float64]


def _see_rate(
    trace: Trace, rate: float, scales: NDArray[np.float64], variances: NDArray[np.float64]
) -> _SeenRate:
    arrivals = trace.arrival_time - trace.arrival_time[0]
    bins = (arrivals * rate / _COUNT_FOR_RATE).astype(np.int64)
    # The last bin is cut off, so it is taken for as busy as the one before it.
    counts = np.bincount(bins)
    counts[-1] = counts[-2]
    log_count = np.log(np.maximum(counts, 1))[bins]
    variance = float(variances.sum())
    if variance < 1 / _COUNT_FOR_RATE:
        # The counts vary no more than chance would have them: there is nothing to go with.
        even = np.full(len(scales), 1 / len(scales))
        return _SeenRate(np.zeros(len(trace)), 1.0, scales * rate, even)
    weights = variances / variance
    in_bins = _variance_of_mean(_COUNT_FOR_RATE, scales * rate)
    hidden = _variance_of_mean(len(trace), scales * rate)
    shown = max(float((in_bins - hidden) @ weights), 0.1)
    score = (log_count - log_count.mean()) / variance**0.5
    return _SeenRate(score, shown, scales * rate, weights)


def _variance_of_mean(length: float, scales: NDArray[np.float64]) -> NDArray[np.float64]:
    """Variance of the mean of unit processes over a length; memory fades as exp(-lag / scale)."""
    spans = length / scales
    return np.asarray(2 * (spans + np.expm1(-spans)) / spans**2)


def _seen_memory(
    lags: NDArray[np.int64], num_requests: int, scales: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the autocovariance (lags, scales) of unit processes, centred on a record's mean."""
    return np.asarray(np.exp(-lags[:, None] / scales) - _variance_of_mean(num_requests, scales))


def _fit_drift(ranks: NDArray[np.float64], rate: _SeenRate) -> Drift:
    """Fit the correlation with the rate, then what memory it leaves to explain."""
    scores = ndtri(ranks)
    num_requests = len(scores)
    longest = num_requests / 10
    lags = np.unique(np.geomspace(1, longest, 24).astype(int))
    seen = np.array([np.mean(scores[:-lag] * scores[lag:]) for lag in lags])
    with_rate = float(np.clip(np.mean(scores * rate.score) / rate.shown, -0.7, 0.7))
    left = seen - with_rate**2 * (_seen_memory(lags, num_requests, rate.scales) @ rate.weights)
    best = (np.inf, 0.0, longest)
    for scale in np.geomspace(10, longest, 40):
        shape = _seen_memory(lags, num_requests, np.array([scale]))[:, 0]
        share = float(np.clip(shape @ left / (shape @ shape), 0.0, 0.5))
        best = min(best, (float(((left - share * shape) ** 2).sum()), share, float(scale)))
    return Drift(_round(best[1]), _round(best[2]), _round(with_rate))


def _round(value: float, digits: int = 4) -> float:
    """Keep what the data can tell, and what every machine's arithmetic agrees on."""
    return float(f"{value:.{digits}g}")


def format_model(model: WorkloadModel) -> str:
    """Write a model as TOML text."""
    parts = [
        f"# Workload model {model.name}: numbers fitted to a trace, no rows of it.",
        "# Made by the command below; queuesmith.traces.synthetic says what they mean.",
        f'name = "{model.name}"',
        "",
        "[fit]",
        *(f"{key} = {_toml(value)}" for key, value in model.fit.items()),
        "",
        "[arrivals]",
        f"rate = {model.rate}  # requests/s",
        f"gap_shape = {model.gap_shape}",
        f"time_scales = {_array(model.time_scales)}  # s",
        f"log_rate_variance = {_array(model.log_rate_variance)}",
        "",
        "[drift]",
        *(
            f"{name} = {{ share = {drift.share}, num_requests = {drift.num_requests}, "
            f"with_rate = {drift.with_rate} }}"
            for name, drift in (("prompt", model.prompt_drift), ("output", model.output_drift))
        ),
        "",
        "[lengths]",
        f"levels = {_array(model.levels)}",
        f"prompt_len = {_array(model.prompt_len)}  # tokens",
        f"output_len = {_array(model.output_len)}  # tokens",
        "# rows: prompt rank, columns: output rank, low to high; requests in each cell",
        "copula = [",
        *(f"  {_array(row)}," for row in model.copula),
        "]",
        "",
    ]
    return "\n".join(parts)


def _toml(value: object) -> str:
    # A JSON string is a TOML string.
    return str(value) if isinstance(value, int) else json.dumps(value, ensure_ascii=False)


def _array(values: Iterable[float]) -> str:
    """Write numbers in TOML, broken into lines of at most 100 characters."""
    words = [str(int(value)) if value == int(value) else repr(float(value)) for value in values]
    line = "[" + ", ".join(words) + "]"
    if len(line) <= 90:
        return line
    lines = [" "]
    for word in words:
        if len(lines[-1]) + len(word) + 2 > 98:
            lines.append(" ")
        lines[-1] += f" {word},"
    return "\n".join(["[", *lines, "]"])


def main(arguments: list[str] | None = None) -> int:
    """Fit a model to the file on the command line and print it; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m queuesmith.traces.fit", description="Fit a workload model; prints TOML."
    )
    parser.add_argument("file", type=Path, help="a trace file")
    parser.add_argument("--name", help="of the model; the file's name when left out")
    options = parser.parse_args(arguments)
    # Only here: reading traces loads models, and fitting is no part of reading.
    from queuesmith.traces import load_trace

    try:
        model = fit_model(load_trace(options.file), options.name or options.file.stem.lower())
    except QueuesmithError as error:
        print(error, file=sys.stderr)
        return 2
    print(format_model(model), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())

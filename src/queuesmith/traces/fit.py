"""Fit a workload model to a trace: ``python -m queuesmith.traces.fit FILE --name NAME``.

The same file gives the same TOML text, so that anyone can check a shipped model against its source.
Sources that are no plain trace have recipes, in modules of their own.
"""

import argparse
import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from queuesmith.errors import QueuesmithError, TraceError
from queuesmith.traces.models.client import Client, Drift
from queuesmith.traces.synthetic import WorkloadModel, format_model, parse_model
from queuesmith.traces.trace import Trace

#: Fewer requests cannot fill the tables.
MIN_REQUESTS = 500
#: Makes a model of files and its name; found by module and function, as it is made of this module.
Recipe = Callable[[Sequence[Path], str], WorkloadModel]
_RECIPES = {
    "bailian": ("windows", "fit_bailian"),
    "burstgpt": ("windows", "fit_burstgpt"),
    "mooncake": ("sessions", "fit_mooncake"),
    "servegen": ("servegen", "fit_servegen"),
}
_NUM_SCALES = 4
_NUM_BINS = 20
#: So many requests tell the rate to within 6 %, which is small beside its swings.
_COUNT_FOR_RATE = 300
_NUM_SHUFFLES = 10
#: Requests in a cell of the copula, on average, if lengths were independent.
_CELL_COUNT = 48
_TAIL = [0.001, 0.9975, 0.999]
_GAP_LEVELS = np.unique([*(np.arange(101) / 100), 0.995, 0.9975, 0.999, 0.9995, 0.9999])


def fit_model(trace: Trace, name: str, *, ordered_lengths: bool = True) -> WorkloadModel:
    """Fit every part of a workload model of one client to a trace.

    Parameters
    ----------
    trace : Trace
        At least `MIN_REQUESTS` requests that do not all arrive at once.
    name : str
        Of the model.
    ordered_lengths : bool
        False if the lengths do not belong to the arrivals beside them; then they are drawn without
        memory and without regard to the rate.

    Raises
    ------
    TraceError
        If the trace is too short to be fitted.
    """
    options = "" if ordered_lengths else " --unordered-lengths"
    notes = [] if ordered_lengths else ["lengths are in no order in time: none is modelled"]
    fit = {
        "source": trace.origin.source,
        "sha256": trace.origin.sha256,
        "num_requests": len(trace),
        "command": f"python -m queuesmith.traces.fit {trace.origin.source} --name {name}{options}",
    }
    client = fit_client(trace, name, ordered_lengths=ordered_lengths)
    return finish(name, [client], {**fit, **({"notes": notes} if notes else {})})


def finish(name: str, clients: Sequence[Client], fit: Mapping[str, Any]) -> WorkloadModel:
    """Make the model that its own text says."""
    return parse_model(format_model(WorkloadModel(name, tuple(clients), fit=dict(fit))))


def fit_client(trace: Trace, name: str, *, ordered_lengths: bool = True) -> Client:
    """Fit arrivals and lengths of one client to a trace.

    Notes
    -----
    Arrivals are fitted by moments: the dispersion of counts in bins from the shortest time scale to
    a sixth of the trace, and the coefficient of variation of gaps. Where gamma gaps would vary less
    than half as much as the trace's (in squared CV), a table of its gaps takes their place. No time
    scale is longer than a third of the trace (for lengths, a tenth), since one record cannot tell
    slower chance from a trend.

    Raises
    ------
    TraceError
        If the trace is too short to be fitted.
    """
    num_requests = len(trace)
    if num_requests < MIN_REQUESTS or trace.duration <= 0:
        raise TraceError(
            f"{trace.origin.source} has {num_requests:,} requests over {trace.duration:g} s; "
            f"a model needs at least {MIN_REQUESTS:,} over some time"
        )
    rate = (num_requests - 1) / trace.duration
    arrivals = fit_arrivals(trace.arrival_time)
    prompt_rank, output_rank = _ranks(trace.prompt_len, 0), _ranks(trace.output_len, 1)
    lengths = fit_lengths(trace.prompt_len, trace.output_len)
    drifts = (Drift(), Drift())
    if ordered_lengths:
        seen_rate = _see_rate(trace, rate, arrivals["time_scales"], arrivals["log_rate_variance"])
        within = _conditional_ranks(prompt_rank, output_rank, len(lengths["copula"]))
        drifts = (_fit_drift(within, seen_rate), _fit_drift(output_rank, seen_rate))
    return Client(
        name=name,
        rate=round_number(rate),
        **arrivals,
        **lengths,
        prompt_drift=drifts[0],
        output_drift=drifts[1],
    )


def fit_lengths(prompt_len: NDArray[np.int64], output_len: NDArray[np.int64]) -> dict[str, Any]:
    """Return tables of quantiles and the copula, as keywords of `Client`."""
    num_requests = len(prompt_len)
    num_bins = int(np.clip((num_requests / _CELL_COUNT) ** 0.5, 1, _NUM_BINS))
    copula, _, _ = np.histogram2d(
        _ranks(prompt_len, 0), _ranks(output_len, 1), bins=num_bins, range=[[0, 1], [0, 1]]
    )
    levels = length_levels(num_requests)
    return {
        "levels": levels,
        "prompt_len": table_of(prompt_len, levels),
        "output_len": table_of(output_len, levels),
        "copula": copula,
    }


def length_levels(num_requests: int) -> NDArray[np.float64]:
    """Return the levels of quantile tables: 200 steps of what many requests tell, else 50."""
    steps = 200 if num_requests >= 5_000 else 50
    return np.unique(np.concatenate([np.arange(steps + 1) / steps, _TAIL]))


def table_of(tokens: NDArray[np.int64], levels: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return quantiles that are lengths of the record."""
    return np.quantile(tokens, levels, method="inverted_cdf").astype(float)


def expect_files(files: Sequence[Path], number: int, example: str) -> Sequence[Path]:
    """Return the files of a recipe, if they are as many as it needs."""
    if len(files) != number:
        raise TraceError(f"this recipe needs {number} files, got {len(files)}; give {example}")
    for path in files:
        if not path.is_file():
            raise TraceError(f"there is no file {path}; this recipe needs {example}")
    return files


def provenance(
    files: Sequence[Path], name: str, recipe: str, num_requests: int, notes: Sequence[str]
) -> dict[str, Any]:
    """Say what a recipe was given and how to repeat it, for a model's ``[fit]``."""
    names = [path.name for path in files]
    hashes = [hashlib.sha256(path.read_bytes()).hexdigest() for path in files]
    return {
        "source": names if len(names) > 1 else names[0],
        "sha256": hashes if len(hashes) > 1 else hashes[0],
        "num_requests": num_requests,
        "command": f"python -m queuesmith.traces.fit {' '.join(names)} --name {name} "
        f"--recipe {recipe}",
        "notes": list(notes),
    }


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


def fit_arrivals(arrival_time: NDArray[np.float64]) -> dict[str, Any]:
    """Fit the parameters of a client's arrivals but for its rate, as keywords of `Client`."""
    # Only here: drawing from models needs no optimiser, which takes time to import.
    from scipy.optimize import least_squares

    arrivals = arrival_time - arrival_time[0]
    duration = float(arrivals[-1])
    rate = (len(arrivals) - 1) / duration
    longest = duration / 3
    shortest = min(max(1.0, 5 / rate), longest / 16)
    scales = np.array([round_number(s, 2) for s in np.geomspace(shortest, longest, _NUM_SCALES)])
    widths = np.geomspace(shortest, longest / 2, 3 * _NUM_SCALES)
    seen = np.array([count_dispersion(arrivals, width) for width in widths])
    gaps = np.diff(arrivals)
    # Requests as even as a clock's ticks have no variation to be measured against.
    gap_cv2 = max(float(gaps.var() / gaps.mean() ** 2), 1e-3)
    usual = max(float(np.abs(seen).mean()), 1e-3)

    def counts(variances: NDArray[np.float64]) -> NDArray[np.float64]:
        # A record's own mean hides what is slower than the record.
        hidden = _rate_dispersion(duration, scales, variances)
        return np.array([_rate_dispersion(width, scales, variances) - hidden for width in widths])

    def gap_variation(variances: NDArray[np.float64], dispersion: float) -> float:
        return float((1 + dispersion) * np.exp(variances.sum()) - 1)

    def residuals(parameters: NDArray[np.float64]) -> NDArray[np.float64]:
        variances, dispersion = parameters[:-1], parameters[-1]
        left = counts(variances) + (dispersion - 1) / (rate * widths) - seen
        gap = gap_variation(variances, dispersion)
        return np.append(left / usual, gap / gap_cv2 - 1)

    start = np.append(np.full(_NUM_SCALES, np.log1p(max(seen.max(), 1e-3)) / _NUM_SCALES), 1.0)
    bounds = ([0.0] * _NUM_SCALES + [0.05], [10.0] * _NUM_SCALES + [20.0])
    found = least_squares(residuals, np.clip(start, *bounds), bounds=bounds, xtol=1e-12).x
    if gap_cv2 <= 2 * gap_variation(found[:-1], float(found[-1])):
        return {
            "gap_shape": round_number(1 / float(found[-1])),
            "time_scales": scales,
            "log_rate_variance": np.round(found[:-1], 5),
        }
    rng = np.random.default_rng(0)
    shuffled = [np.cumsum(rng.permutation(gaps)) for _ in range(_NUM_SHUFFLES)]
    by_gaps = np.array(
        [np.mean([count_dispersion(one, width) for one in shuffled]) for width in widths]
    )

    def left(variances: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray((counts(variances) + by_gaps - seen) / np.abs(seen).mean())

    bounds = (bounds[0][:-1], bounds[1][:-1])
    found = least_squares(left, np.full(_NUM_SCALES, 0.01), bounds=bounds, xtol=1e-12).x
    table = np.quantile(np.maximum(gaps / gaps.mean(), 1e-6), _GAP_LEVELS)
    return {
        "gap_shape": 1.0,
        "gap_levels": _GAP_LEVELS,
        "gaps": np.array([round_number(gap) for gap in table]),
        "time_scales": scales,
        "log_rate_variance": np.round(found, 5),
    }


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
    ranks: NDArray[np.float64], given: NDArray[np.float64], num_bins: int
) -> NDArray[np.float64]:
    """Rank within each bin of another variable."""
    within = np.empty(len(ranks))
    bins = (given * num_bins).astype(np.int64)
    for one in range(num_bins):
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
    from scipy.special import ndtri

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
    return Drift(round_number(best[1]), round_number(best[2]), round_number(with_rate))


def round_number(value: float, digits: int = 4) -> float:
    """Keep what the data can tell, and what every machine's arithmetic agrees on."""
    return float(f"{value:.{digits}g}")


def main(arguments: list[str] | None = None) -> int:
    """Fit a model to the files on the command line and print it; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m queuesmith.traces.fit", description="Fit a workload model; prints TOML."
    )
    parser.add_argument("files", type=Path, nargs="+", help="a trace file, or what a recipe needs")
    parser.add_argument("--name", help="of the model; the file's name when left out")
    parser.add_argument("--recipe", choices=sorted(_RECIPES), help="for a source of its own kind")
    parser.add_argument(
        "--unordered-lengths",
        action="store_true",
        help="lengths are real but do not belong to the arrivals beside them",
    )
    options = parser.parse_args(arguments)
    name = options.name or options.files[0].stem.lower()
    try:
        model = _fit(options.files, name, options.recipe, not options.unordered_lengths)
    except QueuesmithError as error:
        print(error, file=sys.stderr)
        return 2
    print(format_model(model), end="")
    return 0


def _fit(
    files: Sequence[Path], name: str, recipe: str | None, ordered_lengths: bool
) -> WorkloadModel:
    from queuesmith.traces import load_trace

    if recipe is not None:
        module, function = _RECIPES[recipe]
        fit: Recipe = getattr(import_module(f"queuesmith.traces.fitting.{module}"), function)
        return fit(files, name)
    if len(files) > 1:
        raise TraceError(f"a model is fitted to one trace, got {len(files)} files; name a recipe")
    return fit_model(load_trace(files[0]), name, ordered_lengths=ordered_lengths)


if __name__ == "__main__":
    sys.exit(main())

"""Every statistic that a goal or a guard is about, over pooled requests of whole windows."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from queuesmith.engine.result import ITL_EDGES
from queuesmith.evaluation.samples import Floats, Ints, Samples
from queuesmith.stats import bootstrap_weights, pooled_quantile_draws
from queuesmith.stats.intervals import Draws, ratio_spread

#: Draws of windows for totals, and for quantiles, of which only the spread is asked.
NUM_DRAWS = 10_000
NUM_QUANTILE_DRAWS = 1_000


@dataclass(frozen=True)
class Statistic(ABC):
    """A number of one policy at one load.

    Attributes
    ----------
    name, label : str
        As options spell it, and as sentences do.
    unit : {"s", "tokens/s", "requests/s", "x", "share"}
    better : {"lower", "higher"}
    relative : bool
        Whether it is compared as a ratio; a share is compared as a difference.
    """

    name: str
    label: str
    unit: str
    better: Literal["lower", "higher"] = "lower"
    relative: bool = True

    @abstractmethod
    def values(self, samples: Samples, weights: Ints) -> Floats:
        """Return the number for each row of weights of windows; NaN where it is undefined."""

    @abstractmethod
    def contrast(
        self,
        samples: Samples,
        reference: Samples,
        weights: Ints,
        base: Floats | None = None,
    ) -> Draws:
        """Return log(value / reference's value), or their difference if not `relative`.

        `base` saves computing the reference's values again.
        """

    def worse(self, change: float) -> float:
        """Return by how much a change is for the worse; below 0 for the better."""
        return change if self.better == "lower" else -change


@dataclass(frozen=True)
class Ratio(Statistic):
    """A total over another total: a mean, a rate or a share."""

    of: Callable[[Samples], tuple[Floats, Floats] | None] = lambda _: None

    def values(self, samples: Samples, weights: Ints) -> Floats:
        """Return the ratio of both totals."""
        parts = self.of(samples)
        if parts is None:
            return np.full(len(weights), np.nan)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray((weights @ parts[0]) / (weights @ parts[1]))

    def contrast(
        self,
        samples: Samples,
        reference: Samples,
        weights: Ints,
        base: Floats | None = None,
    ) -> Draws:
        """Return the change with its linearised spread, for bootstrap-t, if it is a log ratio."""
        base = self.values(reference, weights) if base is None else base
        change = change_of(self.values(samples, weights), base, self.relative)
        mine, other = self.of(samples), self.of(reference)
        num_units = weights.shape[1]
        if not self.relative or mine is None or other is None:
            return Draws(change, num_units)
        parts = [(1, mine[0]), (-1, mine[1]), (-1, other[0]), (1, other[1])]
        return Draws(change, num_units, ratio_spread(parts, weights))


@dataclass(frozen=True)
class Quantile(Statistic):
    """A quantile of all requests together."""

    of: Callable[[Samples], Floats | None] = lambda _: None
    level: float = 0.99

    def values(self, samples: Samples, weights: Ints) -> Floats:
        """Return the quantile over the requests that have a value."""
        values = self.of(samples)
        if values is None:
            return np.full(len(weights), np.nan)
        known = ~np.isnan(values)
        return pooled_quantile_draws(values[known], samples.unit[known], weights, self.level)

    def contrast(
        self,
        samples: Samples,
        reference: Samples,
        weights: Ints,
        base: Floats | None = None,
    ) -> Draws:
        """Return the change; as many draws as a standard error needs."""
        weights = weights[: 1 + NUM_QUANTILE_DRAWS]
        base = self.values(reference, weights) if base is None else base[: len(weights)]
        change = change_of(self.values(samples, weights), base, self.relative)
        return Draws(change, weights.shape[1])


@dataclass(frozen=True)
class ItlQuantile(Quantile):
    """A quantile of the gaps between output tokens, from their histogram: bins are 2 % wide."""

    def values(self, samples: Samples, weights: Ints) -> Floats:
        """Return the quantile; gaps lie evenly within their bin, on a logarithmic scale."""
        if samples.totals is None or not samples.totals.itl_counts.any():
            return np.full(len(weights), np.nan)
        counts = samples.totals.itl_counts
        used = np.flatnonzero(counts.any(axis=0))
        drawn = weights @ counts[:, used]
        upto = np.cumsum(drawn, axis=1)
        wanted = self.level * upto[:, -1]
        column = (upto >= wanted[:, None]).argmax(axis=1)
        rows = np.arange(len(weights))
        within = 1.0 - (upto[rows, column] - wanted) / np.maximum(drawn[rows, column], 1)
        low, high = ITL_EDGES[used[column]], ITL_EDGES[used[column] + 1]
        quantile: Floats = low * (high / low) ** within
        return quantile


def change_of(values: Floats, base: Floats, relative: bool) -> Floats:
    """Return log(values / base), 0 where both are 0; their difference if not `relative`."""
    if not relative:
        return values - base
    with np.errstate(divide="ignore", invalid="ignore"):
        change: Floats = np.log(values) - np.log(base)
    change[(values == 0) & (base == 0)] = 0.0
    return change


def draw_weights(num_windows: int, seed: int | Sequence[int]) -> Ints:
    """Draw windows for everything that is to be compared; row 0 takes every window once."""
    draws = NUM_DRAWS if num_windows > 1 else 0  # draws of one window are alike: no evidence
    drawn = bootstrap_weights(num_windows, draws, np.random.default_rng(seed))
    return np.vstack([np.ones((1, num_windows), np.int64), drawn])


def _sums(samples: Samples, values: Floats | NDArray[np.bool_]) -> Floats:
    return np.bincount(samples.unit, values, minlength=len(samples.windows)).astype(np.float64)


def _mean_of(name: str) -> Callable[[Samples], tuple[Floats, Floats] | None]:
    def of(samples: Samples) -> tuple[Floats, Floats] | None:
        values = getattr(samples, name)
        if values is None:
            return None
        known = ~np.isnan(values)
        return _sums(samples, np.where(known, values, 0.0)), _sums(samples, known)

    return of


def _largest_of(name: str) -> Callable[[Samples], tuple[Floats, Floats] | None]:
    def of(samples: Samples) -> tuple[Floats, Floats] | None:
        values = getattr(samples, name)
        if values is None:
            return None
        largest = np.zeros(len(samples.windows))
        known = ~np.isnan(values)
        np.maximum.at(largest, samples.unit[known], values[known])
        return largest, np.ones(len(largest))

    return of


def _values_of(name: str) -> Callable[[Samples], Floats | None]:
    def of(samples: Samples) -> Floats | None:
        values: Floats | None = getattr(samples, name)
        return values

    return of


def _total(top: str, bottom: str) -> Callable[[Samples], tuple[Floats, Floats] | None]:
    def of(samples: Samples) -> tuple[Floats, Floats] | None:
        totals = samples.totals
        return None if totals is None else (getattr(totals, top), getattr(totals, bottom))

    return of


def _met(samples: Samples) -> tuple[Floats, Floats] | None:
    if samples.met is None:
        return None
    return _sums(samples, samples.met), _sums(samples, np.ones(len(samples.met)))


def _goodput(samples: Samples) -> tuple[Floats, Floats] | None:
    if samples.met is None or samples.totals is None:
        return None
    return _sums(samples, samples.met), samples.totals.span


def _served(samples: Samples) -> tuple[Floats, Floats]:
    served = ~np.isnan(samples.ttft)
    return _sums(samples, served), _sums(samples, np.ones(len(served)))


TTFT_MEAN = Ratio("ttft_mean", "mean TTFT", "s", of=_mean_of("ttft"))
E2EL_MEAN = Ratio("e2el_mean", "mean E2EL", "s", of=_mean_of("e2el"))
TPOT_MEAN = Ratio("tpot_mean", "mean TPOT", "s", of=_mean_of("tpot"))
SLO_ATTAINMENT = Ratio("slo_attainment", "SLO attainment", "share", "higher", False, of=_met)
GOODPUT = Ratio("goodput", "goodput", "requests/s", "higher", of=_goodput)

#: All of them but those of single classes, by name.
STATISTICS: dict[str, Statistic] = {
    one.name: one
    for one in (
        TTFT_MEAN,
        Quantile("ttft_p99", "p99 TTFT", "s", of=_values_of("ttft")),
        Quantile("ttft_p999", "p99.9 TTFT", "s", of=_values_of("ttft"), level=0.999),
        Ratio("ttft_max", "largest TTFT of a window", "s", of=_largest_of("ttft")),
        E2EL_MEAN,
        Quantile("e2el_p99", "p99 E2EL", "s", of=_values_of("e2el")),
        TPOT_MEAN,
        Quantile("tpot_p99", "p99 TPOT", "s", of=_values_of("tpot")),
        ItlQuantile("itl_p99", "p99 ITL", "s"),
        Ratio(
            "output_throughput",
            "output throughput",
            "tokens/s",
            "higher",
            of=_total("num_output_tokens", "span"),
        ),
        SLO_ATTAINMENT,
        GOODPUT,
        Ratio("slowdown_max", "largest slowdown of a window", "x", of=_largest_of("slowdown")),
        Ratio(
            "recompute_tax",
            "recompute tax",
            "share",
            relative=False,
            of=_total("num_recomputed_tokens", "num_computed_tokens"),
        ),
        Ratio("served", "requests served", "share", "higher", False, of=_served),
    )
}


def class_means(column: Literal["priority", "client"], samples: Samples) -> list[Statistic]:
    """Return the mean TTFT of each class that has 1 % of the requests; none for a single class."""
    values = getattr(samples, column)
    if values is None:
        return []
    classes, counts = np.unique(values, return_counts=True)
    if len(classes) < 2:
        return []
    enough = counts >= 0.01 * len(values)
    if column == "client":
        enough &= classes >= 0  # -1: unknown
    return [_class_mean(column, int(number)) for number in classes[enough]]


def _class_mean(column: Literal["priority", "client"], number: int) -> Statistic:
    def of(samples: Samples) -> tuple[Floats, Floats]:
        mine: NDArray[np.bool_] = getattr(samples, column) == number
        mine &= ~np.isnan(samples.ttft)
        return _sums(samples, np.where(mine, samples.ttft, 0.0)), _sums(samples, mine)

    return Ratio(f"{column}_ttft", f"mean TTFT of {column} {number}", "s", of=of)

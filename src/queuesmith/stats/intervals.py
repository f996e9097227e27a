"""Intervals from few units, chosen by how often they cover (``benchmarks/coverage.py``).

With eight windows percentile and BCa intervals of nominally 95 % cover about 85 %: they take a
bootstrap distribution for a normal one of known spread. Student's quantile and, where the spread of
each draw is known, studentised draws (bootstrap-t) put that right.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

Floats = NDArray[np.float64]

LEVEL = 0.95


@dataclass(frozen=True, eq=False)
class Draws:
    """An estimate over units, and what it comes out as when whole units are drawn again.

    Attributes
    ----------
    values : (1 + draws,) float64
        The estimate, then its draws; no draws for a single unit.
    num_units : int
    spread : (1 + draws,) float64 or None
        Linearised standard error of each, where it is known.
    """

    values: Floats
    num_units: int
    spread: Floats | None = None

    @property
    def estimate(self) -> float:
        """Return the estimate itself."""
        return float(self.values[0])

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        """Return the ends of an interval; NaN when a draw is undefined or there is one unit.

        Bootstrap-t where the spread of each draw is known, else Student's t with the bootstrap
        standard error, corrected by ``sqrt(n / (n - 1))`` for drawing n units out of n.

        References
        ----------
        Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, chapters 12 and 14.
        """
        estimate, draws = self.values[0], self.values[1:]
        if not len(draws) or not np.isfinite(self.values).all():
            return float("nan"), float("nan")
        if self.spread is not None:
            spread = self.spread[1:]
            known = spread > 1e-12 * max(1.0, abs(float(estimate)))
            if known.sum() > len(draws) / 2 and self.spread[0] > 0:
                low, high = np.quantile(
                    (draws[known] - estimate) / spread[known], [(1 - level) / 2, (1 + level) / 2]
                )
                scale = self.spread[0]
                return float(estimate - high * scale), float(estimate - low * scale)
        correction = np.sqrt(self.num_units / (self.num_units - 1))
        error = float(draws.std() * correction)
        half = float(stdtrit(self.num_units - 1, (1 + level) / 2)) * error
        return float(estimate - half), float(estimate + half)


def combine(parts: list[Draws]) -> Draws:
    """Average estimates that were made of the same draws, such as those of several loads."""
    return Draws(np.mean([part.values for part in parts], axis=0), parts[0].num_units)


def difference(one: Draws, other: Draws) -> Draws:
    """Subtract an estimate from another that was made of the same draws."""
    with np.errstate(invalid="ignore"):  # both endless: undefined
        return Draws(one.values - other.values, one.num_units)


def ratio_spread(parts: list[tuple[int, Floats]], weights: NDArray[np.int64]) -> Floats:
    """Linearised standard error of a sum of signed logarithms of totals, for each draw.

    Parameters
    ----------
    parts : list of (sign, (num_units,) float64)
        A log ratio of means ``log(sum x / sum n) - log(sum y / sum m)`` is
        ``[(1, x), (-1, n), (-1, y), (1, m)]``.
    weights : (draws, num_units) int64
        How often each unit was drawn.
    """
    num_units = weights.shape[1]
    influence = np.zeros(weights.shape)
    with np.errstate(divide="ignore", invalid="ignore"):
        for sign, totals in parts:
            influence += sign * totals / ((weights @ totals) / num_units)[:, None]
        influence -= sum(sign for sign, _ in parts)
        square = (weights * influence**2).sum(axis=1)
    return np.asarray(np.sqrt(square / (num_units * max(num_units - 1, 1))))

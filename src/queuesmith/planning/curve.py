"""Attainment against load, and the load up to which it holds.

A curve is what one policy did at every load that was probed, window by window. Loads here are
offered rate over what the engine carries (rho), all windows together.

What is searched is the **first** load at which attainment falls below the target: a coarse grid is
probed as a whole, and the step in which the target is first missed is halved until it is narrow.
Attainment need not fall monotonically. Where it holds again further up, the capacity is still below
the first break, and `Curve.regained` says so.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, stdtrit

from queuesmith.stats import interval
from queuesmith.stats.intervals import LEVEL, Draws

Floats = NDArray[np.float64]

#: Loads that every policy is probed at: factors of 2 where engines idle, of 1.4 around saturation.
GRID = (0.003, 0.006, 0.0125, 0.025, 0.05, 0.1, 0.2, 0.28, 0.4, 0.56, 0.8, 1.12, 1.6, 2.24, 3.2)
#: How far apart, relatively, the last load that held and the first that broke may be: half a tie.
RESOLUTION = 0.005
#: The same around the ends of the interval.
ROUGH = 0.02


@dataclass(frozen=True, eq=False)
class Curve:
    """Requests within the SLO at every load that was probed.

    Attributes
    ----------
    rho : (num_probes,) float64
        Increasing.
    met : (num_windows, num_probes) float64
        Whole numbers.
    num_requests : (num_windows,) float64
        Whole numbers.
    """

    rho: Floats
    met: Floats
    num_requests: Floats

    @classmethod
    def of(cls, met: Mapping[float, Floats], num_requests: Floats) -> Self:
        """Order probes given as load to requests within the SLO in each window."""
        rho = sorted(met)
        return cls(np.array(rho), np.stack([met[load] for load in rho], axis=1), num_requests)

    @property
    def attainment(self) -> Floats:
        """Share of the requests of all windows within the SLO, as (num_probes,) float64."""
        return np.asarray(self.met.sum(axis=0) / self.num_requests.sum())

    def capacity(self, target: float, weights: Floats) -> Floats:
        """Return up to which load attainment holds, for each draw of windows.

        Parameters
        ----------
        target : float
            Above 0 and at most 1.
        weights : (draws, num_windows) float64
            How often each window counts; a row of ones takes all windows once.

        Returns
        -------
        (draws,) float64
            0 if the lowest load misses the target and +inf if none does.

        Notes
        -----
        Between the last load that held and the first that broke, attainment is taken to fall
        linearly in the logarithm of the load.

        Examples
        --------
        >>> curve = Curve(np.array([0.5, 1.0]), np.array([[10.0, 8.0]]), np.array([10.0]))
        >>> curve.capacity(0.9, np.ones((1, 1))).round(4), curve.capacity(0.8, np.ones((1, 1)))
        (array([0.7071]), array([inf]))
        """
        share = (weights @ self.met) / (weights @ self.num_requests)[:, None]
        broken = share < target
        draw = np.arange(len(share))
        first = broken.argmax(axis=1)
        last = np.maximum(first - 1, 0)
        above, below = share[draw, last], share[draw, first]
        drop = np.where(above > below, above - below, 1.0)
        log = np.log(self.rho)
        capacity = np.exp(log[last] + (above - target) / drop * (log[first] - log[last]))
        capacity[first == 0] = 0.0
        capacity[~broken.any(axis=1)] = np.inf
        return np.asarray(capacity)

    def bracket(self, target: float) -> tuple[float, float]:
        """Return the last load that held before the first that broke, and that one.

        0 and +inf stand for loads beyond those that were probed.
        """
        broken = np.flatnonzero(self.attainment < target)
        if not len(broken):
            return float(self.rho[-1]), np.inf
        first = int(broken[0])
        return float(self.rho[first - 1]) if first else 0.0, float(self.rho[first])

    def regained(self, target: float) -> list[float]:
        """Return the loads above the first that broke at which the target was met again."""
        held = self.attainment >= target
        return [float(load) for load in self.rho[held & (self.rho > self.bracket(target)[1])]]

    def wanted(self, target: float, draws: Floats) -> list[float]:
        """Return the loads to probe next, none when every bracket that matters is narrow.

        Those that matter hold the capacity itself and the ends of its interval; `draws` are those
        of `capacity`, the estimate first.
        """
        wanted = set()
        low, high = self.bracket(target)
        brackets = [(low, high, RESOLUTION)]
        for end in log_interval(draws, len(self.met)):
            right = int(np.searchsorted(self.rho, end, side="left"))
            if 0 < right < len(self.rho):
                brackets.append((float(self.rho[right - 1]), float(self.rho[right]), ROUGH))
        for low, high, width in brackets:
            if low > 0 and high < np.inf and high > low * (1 + width):
                wanted.add(float(np.sqrt(low * high)))
        return sorted(wanted)


def log_interval(draws: Floats, num_windows: int, level: float = LEVEL) -> tuple[float, float]:
    """Return an interval of a capacity or a ratio of two; NaN without draws or where one is NaN.

    Student's t with the bootstrap standard error of the logarithm. Where some draws are 0 or
    endless and there is none, quantiles of the draws, as far out as those of the t distribution.

    Parameters
    ----------
    draws : (1 + draws,) float64
        The estimate, then its draws over windows.
    num_windows : int
    level : float

    Examples
    --------
    >>> log_interval(np.array([1.0]), 1), log_interval(np.array([2.0, 2.0, 2.0]), 8)
    ((nan, nan), (2.0, 2.0))
    """
    if len(draws) < 2:
        return float("nan"), float("nan")
    if (np.isfinite(draws) & (draws > 0)).all():
        low, high = Draws(np.log(draws), num_windows).interval(level)
        return float(np.exp(low)), float(np.exp(high))
    correction = np.sqrt(num_windows / (num_windows - 1))
    beyond = float(ndtr(correction * stdtrit(num_windows - 1, (1 - level) / 2)))
    return interval(draws[1:], 1 - 2 * beyond)

"""Many means at once over the same draws of units, and the ways to draw.

A draw is a row of weights: how often each unit counts. Everything measured on the same units and
weighted by the same rows is paired.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

#: Draws added up at once, few enough to stay in the processor's nearest memory.
_BLOCK = 1024

Floats = NDArray[np.float64]


def block_weights(
    num_units: int, block_len: int, draws: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Draw units with replacement in blocks of neighbours, the last unit next to the first.

    For units that adjoin in time, whose neighbours are alike; with blocks of 1 it is the ordinary
    bootstrap.

    Parameters
    ----------
    num_units : int
        At least 1, in order of time.
    block_len : int
        Between 1 and `num_units`. The last block of a draw is cut to what is left.
    draws : int
    rng : numpy.random.Generator

    Returns
    -------
    (draws, num_units) int64
        How often each unit was drawn; every row adds up to `num_units`.

    References
    ----------
    Politis and Romano, "A circular block-resampling procedure for stationary data", in Exploring
    the Limits of Bootstrap, 1992.

    Examples
    --------
    >>> block_weights(4, 2, 3, np.random.default_rng(0))
    array([[1, 0, 1, 2],
           [0, 1, 2, 1],
           [1, 2, 1, 0]])
    """
    if not 1 <= block_len <= num_units:
        raise ValueError(f"block_len must be between 1 and {num_units}, got {block_len}")
    starts = rng.integers(0, num_units, (draws, -(-num_units // block_len)))
    units = (starts[:, :, None] + np.arange(block_len)) % num_units
    return _counted(units.reshape(draws, -1)[:, :num_units], num_units)


def subset_weights(
    num_units: int, size: int, draws: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Draw `size` of the units without replacement: rows of zeros and ones.

    Examples
    --------
    >>> subset_weights(5, 2, 100, np.random.default_rng(0)).sum(axis=1).tolist() == [2] * 100
    True
    """
    if not 0 <= size <= num_units:
        raise ValueError(f"size must be between 0 and {num_units}, got {size}")
    order = rng.random((draws, num_units)).argsort(axis=1)
    return _counted(order[:, :size], num_units)


def _counted(units: NDArray[np.int64], num_units: int) -> NDArray[np.int64]:
    draws = len(units)
    flat = (units + num_units * np.arange(draws)[:, None]).ravel()
    return np.bincount(flat, minlength=draws * num_units).reshape(draws, num_units)


def mean_draws(values: Floats, weights: NDArray[np.int64]) -> Floats:
    """Weighted mean of each row of values, for each draw.

    Parameters
    ----------
    values : (..., num_units) float64
        A row with a NaN is undefined in every draw, whether or not it draws that unit. +inf makes a
        mean infinite in the draws that count it.
    weights : (draws, num_units) int64
        No row of zeros.

    Returns
    -------
    (..., draws) float64

    Examples
    --------
    >>> mean_draws(np.array([[1.0, 3.0], [np.nan, 2.0]]), np.array([[1, 1], [2, 0]]))
    array([[ 2.,  1.],
           [nan, nan]])
    """
    shares = np.ascontiguousarray((weights / weights.sum(axis=1, keepdims=True)).T)
    rows = np.ascontiguousarray(values, np.float64).reshape(-1, values.shape[-1])
    means = np.zeros((len(rows), len(weights)))
    _add_up(np.where(np.isinf(rows), 0.0, rows), shares, means)
    for row in np.flatnonzero(np.isinf(rows).any(axis=1)):
        for sign in (np.inf, -np.inf):
            counted = (shares[rows[row] == sign] > 0).any(axis=0)
            means[row, counted] = np.nan if np.isnan(rows[row]).any() else sign
    return means.reshape(*values.shape[:-1], len(weights))


@njit(cache=True)
def _add_up(rows: Floats, shares: Floats, means: Floats) -> None:
    """Add to `means`; a product of matrices whose sums are in one order on every machine.

    A library's product depends on its threads in time and in the last bit.
    """
    num_units, draws = shares.shape
    for start in range(0, draws, _BLOCK):
        end = min(start + _BLOCK, draws)
        for row in range(len(rows)):
            total = means[row, start:end]
            for unit in range(num_units):
                value, share = rows[row, unit], shares[unit, start:end]
                for draw in range(end - start):
                    total[draw] += value * share[draw]


def intervals(draws: Floats, level: float = 0.95) -> tuple[Floats, Floats]:
    """Percentile intervals along the last axis of bootstrap draws.

    Parameters
    ----------
    draws : (..., draws) float64
    level : float

    Returns
    -------
    low, high : (...) float64
        As `queuesmith.stats.interval`, up to rounding: NaN where any draw is NaN.

    Notes
    -----
    Only the tails are sorted: all values beyond a bound that is guessed from every 64th of them.

    Examples
    --------
    >>> low, high = intervals(np.arange(101.0) * [[1], [2]], level=0.5)
    >>> low, high
    (array([25., 50.]), array([ 75., 150.]))
    """
    rows = np.ascontiguousarray(draws, np.float64).reshape(-1, draws.shape[-1])
    bounds = np.full((2, len(rows)), np.nan)
    if rows.size:
        _tails(rows, (1 - level) / 2, bounds)
    low, high = bounds.reshape(2, *draws.shape[:-1])
    return low, high


@njit(cache=True)
def _tails(rows: Floats, share: float, bounds: Floats) -> None:
    """Fill `bounds` with the quantiles at `share` from below and from above."""
    num_draws = rows.shape[1]
    position = (num_draws - 1) * share
    needed = min(int(position) + 2, num_draws)
    step = max(1, num_draws // 150)
    lowest, highest = np.empty(num_draws + 1), np.empty(num_draws + 1)
    for row in range(len(rows)):
        values = rows[row]
        guess = np.sort(values[::step])
        place = min(len(guess) - 1, int(len(guess) * 2 * share) + 4)
        floor, ceiling = guess[place], guess[len(guess) - 1 - place]
        undefined = False
        for _attempt in range(2):
            num_low = num_high = 0
            for draw in range(num_draws):
                value = values[draw]
                lowest[num_low] = value
                num_low += value <= floor
                highest[num_high] = -value
                num_high += value >= ceiling
                undefined |= value != value
            if num_low >= needed and num_high >= needed:
                break
            floor, ceiling = np.inf, -np.inf
        if not undefined:
            bounds[0, row] = _from_below(lowest[:num_low], position)
            bounds[1, row] = -_from_below(highest[:num_high], position)


@njit(cache=True)
def _from_below(values: Floats, position: float) -> float:
    """Quantile between two of the smallest values; defined where they are infinite."""
    row = int(position)
    ordered = np.partition(values, row)
    low = ordered[row]
    high = ordered[row + 1 :].min() if row + 1 < len(ordered) else low
    if position == row or low == high or low == -np.inf:
        return float(low)
    return float(low + (high - low) * (position - row))

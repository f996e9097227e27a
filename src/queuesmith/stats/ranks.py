"""Agreement of rankings in which nearly equal values are tied.

Small values come first. Two values are *tied* when they differ by no more than a margin, a share of
the larger magnitude; with a margin this is not transitive (a ties b, b ties c, a beats c), so
everything here is made from signs of pairs and nothing from ranks. `queuesmith.stats.packed` has
the same for many draws at once.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


def kendall_tau_b(x: ArrayLike, y: ArrayLike, margin: float = 0.01) -> float:
    """Rank agreement of two lists, in which nearly equal values are tied.

    Parameters
    ----------
    x, y : (n,) array_like
        One value per thing ranked. Pairs with a NaN on either side are left out; count them.
    margin : float
        Two values are tied when they differ by no more than this share of the larger magnitude.

    Returns
    -------
    float
        From -1 (reversed) to 1 (same order); NaN if all of `x` or all of `y` is tied.

    Notes
    -----
    The sum over pairs of ``sign(x_i - x_j) * sign(y_i - y_j)``, over the geometric mean of the
    numbers of untied pairs. With a margin a tie is not transitive, so this is not a function of
    ranks; with ``margin=0`` it equals ``scipy.stats.kendalltau``.

    References
    ----------
    Kendall, "The treatment of ties in ranking problems", Biometrika 33, 1945.

    Examples
    --------
    >>> kendall_tau_b([1.0, 2.0, 3.0], [10.0, 30.0, 20.0])
    0.3333333333333333
    """
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if x.shape != y.shape or x.ndim != 1:
        raise ValueError(f"x and y must be lists of one length, got {x.shape} and {y.shape}")
    return float(tau_b_of_signs(pair_signs(x, margin), pair_signs(y, margin)))


def pair_signs(values: ArrayLike, margin: float = 0.01) -> Floats:
    """Sign of the difference of each pair of things.

    Parameters
    ----------
    values : (..., n) array_like
        An infinity ties only itself.
    margin : float
        See `kendall_tau_b`.

    Returns
    -------
    (..., n * (n - 1) / 2) float64
        Of the pairs (0, 1), (0, 2), ... (1, 2), ...: -1 where the first is smaller, 1 where it is
        larger, 0 where they are tied, NaN where either is undefined.

    Examples
    --------
    >>> pair_signs([100.0, 100.5, 3.0, np.nan])
    array([ 0.,  1., nan,  1., nan, nan])
    """
    values = np.asarray(values, np.float64)
    first, second = np.triu_indices(values.shape[-1], 1)
    a, b = values[..., first], values[..., second]
    signs = np.where(tied(a, b, margin), 0.0, np.where(a > b, 1.0, -1.0))
    return np.where(np.isnan(a) | np.isnan(b), np.nan, signs)


def tied(a: Floats, b: Floats, margin: float) -> NDArray[np.bool_]:
    """Whether values differ by no more than a share of the larger magnitude; False for NaN."""
    larger = np.maximum(np.abs(a), np.abs(b))
    finite = np.isfinite(larger)
    gap = np.subtract(a, b, out=np.zeros_like(larger), where=finite)
    return np.where(finite, np.abs(gap) <= margin * np.where(finite, larger, 0.0), a == b)


def tau_b_of_signs(x: Floats, y: Floats) -> Floats:
    """Tau-b from the signs of pairs, along the last axis; NaN pairs of either side are left out.

    Returns
    -------
    (...) float64
        NaN where all pairs of `x` or all pairs of `y` are tied or undefined.

    Examples
    --------
    >>> tau_b_of_signs(pair_signs([[1, 2, 3], [1, 1, 1]]), pair_signs([1, 3, 2]))
    array([0.33333333,        nan])
    """
    x, y = np.broadcast_arrays(x, y)
    defined = ~(np.isnan(x) | np.isnan(y))
    x, y = np.where(defined, x, 0.0), np.where(defined, y, 0.0)
    untied = np.sqrt((x**2).sum(axis=-1) * (y**2).sum(axis=-1))
    agreement = np.full(untied.shape, np.nan)
    np.divide((x * y).sum(axis=-1), untied, out=agreement, where=untied > 0)
    return agreement


def top_set(values: ArrayLike, size: int = 1, margin: float = 0.01) -> NDArray[np.bool_]:
    """Things that no margin tells from the best `size` ones.

    Parameters
    ----------
    values : (..., n) array_like
        Small is good; NaN is in no set.
    size : int
    margin : float
        See `kendall_tau_b`.

    Returns
    -------
    (..., n) bool
        True where a value is smaller than, or tied with, the `size`-th smallest one. With fewer
        defined values than `size`, all of these.

    Examples
    --------
    >>> top_set([5.0, 3.0, 3.02, np.nan])
    array([False,  True,  True, False])
    """
    values = np.asarray(values, np.float64)
    ordered = np.sort(values, axis=-1)  # NaN last
    num_defined = (~np.isnan(values)).sum(axis=-1, keepdims=True)
    rows = np.clip(np.minimum(size, num_defined) - 1, 0, None)
    bar = np.take_along_axis(ordered, rows, axis=-1)
    return np.asarray((values < bar) | tied(values, bar, margin))


def overlap(a: NDArray[np.bool_], b: NDArray[np.bool_]) -> Floats:
    """Share of two sets that is common, ``|A & B| / |A | B|`` (Jaccard 1901), along the last axis.

    Examples
    --------
    >>> overlap(np.array([True, True, False]), np.array([False, True, False]))
    array(0.5)
    """
    union = np.asarray((a | b).sum(axis=-1))
    share = np.full(union.shape, np.nan)
    np.divide((a & b).sum(axis=-1), union, out=share, where=union > 0)
    return share


def kendall_w(values: ArrayLike, margin: float = 0.01) -> float:
    """Concordance of several rankings of the same things: 1 when all agree, near 0 by chance.

    Parameters
    ----------
    values : (num_rankings, n) array_like
        Things with a NaN in any ranking are left out; count them.
    margin : float
        See `kendall_tau_b`.

    Returns
    -------
    float
        NaN with fewer than two rankings or when nothing is told apart.

    Notes
    -----
    With ``d_ij`` half the sum of thing i's pair signs in ranking j, its midrank less the mean rank,
    ``W = sum_i (sum_j d_ij)^2 / (m sum_ij d_ij^2)``: Kendall's W with his correction for ties when
    the margin is 0, and defined when a tie is not transitive.

    References
    ----------
    Kendall and Smith, "The problem of m rankings", Ann. Math. Statist. 10, 1939.

    Examples
    --------
    >>> kendall_w([[1, 2, 3], [10, 20, 30]]), kendall_w([[1, 2, 3], [3, 2, 1]])
    (1.0, 0.0)
    """
    values = np.asarray(values, np.float64)
    values = values[:, ~np.isnan(values).any(axis=0)]
    scores = midrank_scores(values, margin)
    spread = len(values) * float((scores**2).sum())
    if len(values) < 2 or spread == 0:
        return float("nan")
    return float((scores.sum(axis=0) ** 2).sum() / spread)


def midrank_scores(values: Floats, margin: float) -> Floats:
    """Half the sum of each thing's pair signs: its midrank less the mean rank when `margin` is 0.

    Parameters
    ----------
    values : (..., n) float64
        Without NaN.
    margin : float
        See `kendall_tau_b`.

    Examples
    --------
    >>> midrank_scores(np.array([10.0, 30.0, 10.0]), 0.01)
    array([-0.5,  1. , -0.5])
    """
    n = values.shape[-1]
    first, second = np.triu_indices(n, 1)
    signs = pair_signs(values, margin)
    scores = np.zeros(values.shape)
    for thing in range(n):
        scores[..., thing] = (
            signs[..., first == thing].sum(axis=-1) - signs[..., second == thing].sum(axis=-1)
        ) / 2
    return scores

"""Signs of pairs and their agreement over many draws at once, one bit a sign.

What `queuesmith.stats.ranks` says of one pair of lists, in a 64th of the memory and fast enough for
thousands of rankings of ten thousand draws each.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_WORD = 64


@dataclass(frozen=True, eq=False)
class PackedSigns:
    """Signs of pairs of many draws, one bit each: what `pair_signs` holds in a 64th of the memory.

    Attributes
    ----------
    plus, minus : (num_words, draws) uint64
        Bit ``k % 64`` of word ``k // 64`` is set where the first of pair k is larger (smaller).
    defined : (num_words,) uint64
        Set for the pairs of which both are defined in every draw.
    """

    plus: NDArray[np.uint64]
    minus: NDArray[np.uint64]
    defined: NDArray[np.uint64]


def pack_signs(values: Floats, margin: float = 0.01) -> PackedSigns:
    """Signs of the pairs of each draw.

    Parameters
    ----------
    values : (n, draws) float64
        A thing with a NaN in any draw is undefined in all.
    margin : float
        See `kendall_tau_b`.

    Examples
    --------
    >>> packed = pack_signs(np.array([[1.0], [2.0], [2.0]]))
    >>> packed.plus, packed.minus, packed.defined  # pairs (0, 1) and (0, 2) rise, (1, 2) is tied
    (array([[0]], dtype=uint64), array([[3]], dtype=uint64), array([7], dtype=uint64))
    """
    n, draws = values.shape
    rows = np.ascontiguousarray(values, np.float64)
    num_words = max(1, -(-(n * (n - 1) // 2) // _WORD))
    plus = np.zeros((num_words, draws), np.uint64)
    minus = np.zeros((num_words, draws), np.uint64)
    defined = np.zeros(num_words, np.uint64)
    _pack(rows, ~np.isnan(rows).any(axis=1), margin, plus, minus, defined)
    return PackedSigns(plus, minus, defined)


@njit(cache=True)
def _pack(
    rows: Floats,
    is_defined: Any,
    margin: float,
    plus: NDArray[np.uint64],
    minus: NDArray[np.uint64],
    defined: NDArray[np.uint64],
) -> None:
    """Fill the last three, zeros at first. No branch on values, so that it is compiled to SIMD."""
    n, draws = rows.shape
    pair = 0
    for first in range(n):
        for second in range(first + 1, n):
            if is_defined[first] and is_defined[second]:
                word, bit = pair >> 6, np.uint64(pair & 63)
                defined[word] |= np.uint64(1) << bit
                x, y = rows[first], rows[second]
                larger, smaller = plus[word], minus[word]
                for draw in range(draws):
                    a, b = x[draw], y[draw]
                    bar = margin * max(abs(a), abs(b))
                    bar = bar if bar < np.inf else 0.0  # an infinity ties only itself
                    larger[draw] |= np.uint64(a - b > bar) << bit
                    smaller[draw] |= np.uint64(b - a > bar) << bit
            pair += 1


def tau_b_draws(x: PackedSigns, y: PackedSigns) -> Floats:
    """Tau-b of each draw of `x` with the same draw of `y`.

    Returns
    -------
    (draws,) float64
        As `kendall_tau_b` of each, NaN where all is tied.

    Examples
    --------
    >>> order, draws = np.array([[1.0, 2.0, 3.0]]), np.array([[1.0, 3.0, 2.0], [3.0, 2.0, 1.0]])
    >>> tau_b_draws(pack_signs(order.T), pack_signs(draws.T))
    array([ 0.33333333, -1.        ])
    """
    agreement = np.empty(max(x.plus.shape[1], y.plus.shape[1]))
    with np.errstate(over="ignore"):  # the products that count bits wrap, which only NumPy tells
        _tau(x.plus, x.minus, y.plus, y.minus, x.defined & y.defined, agreement)
    return agreement


@njit(cache=True)
def _count_ones(word: np.uint64) -> np.int64:
    """Bits that are set, by adding neighbours of twice the width each time."""
    word -= (word >> np.uint64(1)) & np.uint64(0x5555555555555555)
    word = (word & np.uint64(0x3333333333333333)) + (
        (word >> np.uint64(2)) & np.uint64(0x3333333333333333)
    )
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((word * np.uint64(0x0101010101010101)) >> np.uint64(56))


@njit(cache=True)
def _tau(
    x_plus: NDArray[np.uint64],
    x_minus: NDArray[np.uint64],
    y_plus: NDArray[np.uint64],
    y_minus: NDArray[np.uint64],
    defined: NDArray[np.uint64],
    agreement: Floats,
) -> None:
    """Fill `agreement`; one draw on a side meets every draw of the other."""
    for draw in range(len(agreement)):
        x = draw if x_plus.shape[1] > 1 else 0
        y = draw if y_plus.shape[1] > 1 else 0
        net, x_untied, y_untied = np.int64(0), np.int64(0), np.int64(0)
        for word in range(len(defined)):
            a, b = x_plus[word, x] & defined[word], x_minus[word, x] & defined[word]
            c, d = y_plus[word, y] & defined[word], y_minus[word, y] & defined[word]
            net += _count_ones((a & c) | (b & d)) - _count_ones((a & d) | (b & c))
            x_untied += _count_ones(a | b)
            y_untied += _count_ones(c | d)
        untied = np.sqrt(float(x_untied) * float(y_untied))
        agreement[draw] = net / untied if untied > 0 else np.nan


def same_order(order: PackedSigns, samples: PackedSigns) -> NDArray[np.bool_]:
    """Whether each sample has every pair that `order` tells apart the same way round.

    Pairs that are tied or undefined in `order` may come out as they like.

    Parameters
    ----------
    order : PackedSigns
        Of one draw.
    samples : PackedSigns

    Returns
    -------
    (draws,) bool
    """
    kept = (samples.plus & order.plus == order.plus) & (samples.minus & order.minus == order.minus)
    return np.asarray(kept.all(axis=0))

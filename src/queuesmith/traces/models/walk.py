"""Compiled loops that workload models draw with; numba is imported only when one is drawn."""

from math import erfc, sqrt

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit("float64[::1](float64[::1], float64)", cache=True)
def autoregress(noise: NDArray[np.float64], memory: float) -> NDArray[np.float64]:
    """Run ``y[k] = memory * y[k - 1] + noise[k]`` from ``y[-1] = 0``."""
    walk = np.empty_like(noise)
    last = 0.0
    for step in range(len(noise)):
        last = memory * last + noise[step]
        walk[step] = last
    return walk


@njit("float64[::1](float64[::1])", cache=True)
def normal_cdf(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the standard normal distribution function at each score."""
    ranks = np.empty_like(scores)
    for row in range(len(scores)):
        ranks[row] = 0.5 * erfc(-scores[row] / sqrt(2.0))
    return ranks


@njit("int64[::1](int64[::1], int64[::1], int64[::1], int64[::1], int64, int64)", cache=True)
def number_blocks(
    offsets: NDArray[np.int64],
    prompt_len: NDArray[np.int64],
    session: NDArray[np.int64],
    turn: NDArray[np.int64],
    block_size: int,
    num_common_blocks: int,
) -> NDArray[np.int64]:
    """Give blocks of prompts their numbers; a turn repeats the whole blocks of the one before."""
    hashes = np.empty(offsets[-1], np.int64)
    for row in range(len(prompt_len)):
        first = offsets[row]
        own = (session[row] + 1) << 32
        for place in range(offsets[row + 1] - first):
            hashes[first + place] = place if place < num_common_blocks else own + place
        if prompt_len[row] % block_size:
            # A block that is not full has other tokens than the same block of the next turn.
            hashes[offsets[row + 1] - 1] = own + ((turn[row] + 1) << 20)
    return hashes

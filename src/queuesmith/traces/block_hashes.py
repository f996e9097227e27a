"""Which blocks of tokens each prompt is made of, so that shared prefixes can be known."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from queuesmith.errors import TraceError

Rows = slice | NDArray[np.int64] | NDArray[np.bool_]
#: Above every length of a prompt.
_NO_LIMIT = 1 << 40


@dataclass(frozen=True, eq=False)
class BlockHashes:
    """Blocks of every prompt in order; equal numbers mean equal tokens and an equal past.

    Parameters
    ----------
    offsets : (num_requests + 1,) int64
        From 0, not decreasing: the blocks of request k are ``hashes[offsets[k]:offsets[k + 1]]``.
    hashes : (num_blocks,) int64
        Of all requests, one after another.
    block_size : int
        Tokens in a block; the last block of a prompt may be shorter.

    Raises
    ------
    TraceError
        If the offsets do not divide the hashes, or the block size is below 1.

    Examples
    --------
    >>> blocks = BlockHashes([0, 2, 3], [7, 8, 7], block_size=16)
    >>> blocks[0].tolist(), blocks[1].tolist()
    ([7, 8], [7])
    """

    offsets: NDArray[np.int64]
    hashes: NDArray[np.int64]
    block_size: int

    def __init__(self, offsets: ArrayLike, hashes: ArrayLike, block_size: int) -> None:
        arrays = {"offsets": np.asarray(offsets), "hashes": np.asarray(hashes)}
        for name, array in arrays.items():
            if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
                raise TraceError(
                    f"{name} of blocks must be a list of whole numbers, got {array.dtype} of "
                    f"shape {array.shape}"
                )
            object.__setattr__(self, name, np.ascontiguousarray(array, np.int64))
        ends = self.offsets[[0, -1]].tolist() if len(self.offsets) else None
        if ends != [0, len(self.hashes)] or (np.diff(self.offsets) < 0).any():
            raise TraceError(
                f"offsets of blocks must rise from 0 to the number of hashes, {len(self.hashes):,}"
            )
        if block_size < 1:
            raise TraceError(f"block_size must be at least 1 token, got {block_size}")
        object.__setattr__(self, "block_size", int(block_size))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> NDArray[np.int64]:
        """Return the blocks of one request."""
        row = range(len(self))[row]
        return self.hashes[self.offsets[row] : self.offsets[row + 1]]

    @property
    def num_blocks(self) -> NDArray[np.int64]:
        """Blocks of each request, (num_requests,) int64."""
        return np.diff(self.offsets)

    def take(self, rows: Rows) -> Self:
        """Return the blocks of some requests, given as a slice, indices, or a mask."""
        starts, num_blocks = self.offsets[:-1][rows], self.num_blocks[rows]
        offsets = np.concatenate([[0], np.cumsum(num_blocks)])
        # Position in the result, moved to where its request's blocks begin.
        places = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], num_blocks)
        return type(self)(offsets, self.hashes[places], self.block_size)

    def tobytes(self) -> bytes:
        """Return everything as bytes, for hashing."""
        return b"%d," % self.block_size + self.offsets.tobytes() + self.hashes.tobytes()


def fits(
    prompt_len: NDArray[np.int64], num_blocks: NDArray[np.int64], block_size: int
) -> NDArray[np.bool_]:
    """Tell which prompts can have so many blocks; a last part may be a block or not.

    Examples
    --------
    >>> fits(np.array([1024, 1025, 1025, 100]), np.array([2, 2, 3, 2]), 512)
    array([ True,  True,  True, False])
    """
    full, part = np.divmod(prompt_len, block_size)
    spare = num_blocks - full
    return np.asarray((spare == 0) | ((spare == 1) & (part > 0)))


def infer_block_size(
    prompt_len: NDArray[np.int64], num_blocks: NDArray[np.int64], least: float = 0.9
) -> int | None:
    """Return the block size that most prompts and their numbers of blocks agree on.

    Of sizes that fit equally well a power of two is preferred, then a multiple of 16, then the
    smallest. None where no size fits `least` of the prompts that have blocks, or where any large
    one does, as all have a single block.

    Examples
    --------
    >>> infer_block_size(np.array([118, 183, 885]), np.array([8, 12, 56]))
    16
    """
    there = num_blocks > 0
    lengths, counts = prompt_len[there], num_blocks[there]
    if not len(lengths):
        return None
    over = np.maximum(counts - 1, 1)
    # p tokens are n blocks of b if p / (n + 1) < b < p / (n - 1): of at least p / n where the rest
    # after full blocks is a block, too, as is usual, and of at most that where it is none.
    edge = -(-lengths // counts)
    last = np.where(counts > 1, -(-lengths // over), _NO_LIMIT)
    first = lengths // (counts + 1) + 1
    for above, below in ((edge, last), (first, lengths // counts + 1), (first, last)):
        span = _most_covered(above, below, least)
        if span is not None:
            break
    else:
        return None
    for step in (2 ** (span[0] - 1).bit_length(), -(-span[0] // 16) * 16):
        if span[0] <= step < span[1]:
            return step
    return span[0]


def _most_covered(
    above: NDArray[np.int64], below: NDArray[np.int64], least: float
) -> tuple[int, int] | None:
    """Return where most spans from `above` to before `below` overlap, None if too few do."""
    edges, steps = np.unique(np.concatenate([above, below]), return_inverse=True)
    signs = np.concatenate([np.ones(len(above)), np.full(len(below), -1.0)])
    covered = np.cumsum(np.bincount(steps, weights=signs, minlength=len(edges)))
    best = int(covered.argmax())
    if covered[best] < least * len(above) or edges[best + 1] >= _NO_LIMIT:
        return None
    return int(edges[best]), int(edges[best + 1])

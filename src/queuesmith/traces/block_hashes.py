"""Which blocks of tokens each prompt is made of, so that shared prefixes can be known."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from queuesmith.errors import TraceError

Rows = slice | NDArray[np.int64] | NDArray[np.bool_]


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

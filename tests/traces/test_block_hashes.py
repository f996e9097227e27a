"""Block hashes: what they hold, what is taken with the rows of a trace, what is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuesmith.errors import TraceError
from queuesmith.traces import BlockHashes, Trace
from queuesmith.traces.block_hashes import fits, infer_block_size

LISTS = st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5), min_size=1, max_size=12)


def of(lists, block_size=16):
    offsets = np.cumsum([0, *map(len, lists)])
    return BlockHashes(offsets, np.array([x for one in lists for x in one], np.int64), block_size)


def as_lists(blocks):
    return [blocks[row].tolist() for row in range(len(blocks))]


@given(lists=LISTS, data=st.data())
def test_taking_rows_takes_their_blocks(lists, data):
    blocks = of(lists)
    start, end = sorted(data.draw(st.tuples(*[st.integers(0, len(lists))] * 2)))
    rows = data.draw(st.lists(st.integers(0, len(lists) - 1)))
    mask = data.draw(st.lists(st.booleans(), min_size=len(lists), max_size=len(lists)))

    assert as_lists(blocks) == lists
    assert blocks.num_blocks.tolist() == [len(one) for one in lists]
    assert as_lists(blocks.take(slice(start, end))) == lists[start:end]
    assert as_lists(blocks.take(np.array(rows, np.int64))) == [lists[row] for row in rows]
    assert as_lists(blocks.take(np.array(mask))) == [
        one for one, kept in zip(lists, mask, strict=True) if kept
    ]


@pytest.mark.parametrize(
    ("offsets", "hashes", "block_size", "says"),
    [
        ([0, 2], [1], 16, "rise from 0"),
        ([1, 2], [1, 2], 16, "rise from 0"),
        ([0, 2, 1, 3], [1, 2, 3], 16, "rise from 0"),
        ([], [], 16, "rise from 0"),
        ([0, 1], [1.5], 16, "whole numbers"),
        ([[0, 1]], [1], 16, "whole numbers"),
        ([0, 1], [1], 0, "at least 1 token"),
    ],
)
def test_what_does_not_divide_into_requests_is_refused(offsets, hashes, block_size, says):
    with pytest.raises(TraceError, match=says):
        BlockHashes(offsets, hashes, block_size)


def test_a_row_that_is_not_there():
    assert of([[1], [2]])[-1].tolist() == [2]
    with pytest.raises(IndexError):
        of([[1], [2]])[2]


def test_a_trace_hashes_and_takes_its_blocks():
    def trace(lists, block_size=16):
        return Trace([0.0, 1.0], [20, 20], [1, 1], block_hashes=of(lists, block_size))

    first = trace([[1, 2], [1, 3]])

    assert first.take(slice(1, 2)).block_hashes[0].tolist() == [1, 3]
    assert first.with_origin(source="x").block_hashes is first.block_hashes
    assert first.sha256 == trace([[1, 2], [1, 3]]).sha256
    others = [trace([[1, 2], [1, 4]]), trace([[1], [2, 1, 3]]), trace([[1, 2], [1, 3]], 32)]
    others.append(Trace([0.0, 1.0], [20, 20], [1, 1]))
    assert len({first.sha256, *(other.sha256 for other in others)}) == 5


def test_blocks_of_another_number_of_requests_are_refused():
    with pytest.raises(TraceError, match="3 requests for 2 arrival times"):
        Trace([0.0, 1.0], [20, 20], [1, 1], block_hashes=of([[1], [2], [3]]))


@given(
    lengths=st.lists(st.integers(1, 5_000), min_size=1, max_size=40),
    size=st.integers(1, 1_024),
    whole=st.booleans(),
)
def test_an_inferred_block_size_fits_every_prompt_that_has_blocks_of_some_size(
    lengths, size, whole
):
    """Whether the rest after the last full block is a block of its own, or none."""
    prompt_len = np.array(lengths)
    num_blocks = prompt_len // size if whole else -(-prompt_len // size)

    found = infer_block_size(prompt_len, num_blocks, least=1.0)

    assert fits(prompt_len, num_blocks, size).all()
    there = num_blocks > 0
    if found is None:
        assert (num_blocks <= 1).any() or not there.any()
    else:
        assert fits(prompt_len[there], num_blocks[there], found).all()


@pytest.mark.parametrize(
    ("lengths", "counts", "size"),
    [
        ([48], [3], 16),
        ([1_000, 2_000], [63, 125], 16),
        ([1_000, 2_000], [62, 125], 16),
        ([100, 2_000], [1, 4], 512),
        ([100, 500], [1, 1], None),  # any large size fits
        ([100, 100, 100], [1, 5, 50], None),
        ([], [], None),
    ],
)
def test_block_sizes_by_hand(lengths, counts, size):
    assert infer_block_size(np.array(lengths, int), np.array(counts, int)) == size

"""A trace keeps requests in order and refuses what is none."""

import dataclasses
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuesmith.errors import TraceError
from queuesmith.traces.trace import MAX_TIME, MAX_TOKENS, Origin, Trace

OPTIONAL = ("client", "session", "turn", "priority", "max_tokens", "deadline")


def three(**changes):
    columns = {
        "arrival_time": [0.0, 1.5, 2.0],
        "prompt_len": [10, 20, 30],
        "output_len": [1, 2, 3],
    }
    return Trace(**columns | changes)


def full():
    return three(
        client=[0, 1, -1],
        session=[4, 4, 5],
        turn=[0, 1, 0],
        priority=[0, -1, 2],
        max_tokens=[5, 5, 5],
        deadline=[9.0, np.inf, 9.5],
    )


def test_columns_have_one_type_whatever_they_were_made_of():
    trace = three(
        arrival_time=[0, 1, 2],
        prompt_len=np.array([10.0, 20.0, 30.0], np.float32),
        output_len=np.array([1, 2, 3], np.uint8),
        deadline=[5, 6, 7],
    )

    assert (trace.arrival_time.dtype, trace.deadline.dtype) == (np.float64, np.float64)
    assert (trace.prompt_len.dtype, trace.output_len.dtype) == (np.int64, np.int64)
    assert len(trace) == 3
    assert all(getattr(trace, name) is None for name in OPTIONAL if name != "deadline")


def test_a_trace_says_what_it_is():
    assert repr(three()) == "Trace(3 requests over 2 s, real: arrays)"
    modelled = three(origin=Origin("modelled", "azure"))
    assert repr(modelled) == "Trace(3 requests over 2 s, modelled: azure)"


def test_an_empty_trace_lasts_no_time():
    trace = Trace([], [], [])

    assert (len(trace), trace.duration) == (0, 0.0)


def test_duration_runs_from_the_first_arrival_to_the_last():
    assert three(arrival_time=[-5.0, 0.0, 7.5]).duration == 12.5


def test_a_trace_cannot_be_assigned_to():
    with pytest.raises(dataclasses.FrozenInstanceError):
        three().prompt_len = np.array([1, 2, 3])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt_len": [1, 2]}, "prompt_len has 2 values for 3 arrival times"),
        ({"client": [1]}, "client has 1 values for 3 arrival times"),
        ({"prompt_len": [1, 2, 0]}, "prompt_len must be between 1 and 100,000,000 tokens, got 0"),
        ({"output_len": [1, -2, 1]}, "output_len must be between 1 and 100,000,000 tokens, got -2"),
        ({"max_tokens": [0, 1, 1]}, "max_tokens must be between 1 and 100,000,000 tokens, got 0"),
        ({"prompt_len": [1, MAX_TOKENS + 1, 1]}, "tokens, got 100000001 in row 1"),
        ({"prompt_len": [1, 2.5, 1]}, "prompt_len must be whole numbers, got 2.5"),
        ({"prompt_len": [1, np.nan, 1]}, "prompt_len must be whole numbers, got nan"),
        ({"client": [1, np.inf, 1]}, "client must be whole numbers, got inf"),
        ({"prompt_len": ["1", "2", "3"]}, "prompt_len must be numbers, got <U1"),
        ({"prompt_len": [True, True, True]}, "prompt_len must be numbers, got bool"),
        ({"prompt_len": [[1, 2, 3]]}, "must be a list of numbers, got an array of shape (1, 3)"),
        ({"arrival_time": [0.0, 2.0, 1.5]}, "arrival_time must not decrease, but row 2 (1.5 s)"),
        ({"arrival_time": [0.0, np.nan, 1.0]}, "must be finite seconds, got nan in row 1"),
        ({"arrival_time": [0.0, 1.0, np.inf]}, "must be finite seconds, got inf in row 2"),
        ({"arrival_time": [0.0, 1.0, 2 * MAX_TIME]}, "must be finite seconds, got 6.4e+11"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_line(changes, message):
    with pytest.raises(TraceError, match=re.escape(message)) as caught:
        three(**changes)
    assert "\n" not in str(caught.value)


def test_the_longest_lengths_and_times_are_allowed():
    trace = three(prompt_len=[MAX_TOKENS] * 3, arrival_time=[-MAX_TIME, 0.0, MAX_TIME])

    assert trace.duration == 2 * MAX_TIME


# Hash


def test_equal_rows_have_equal_hashes_whatever_their_origin():
    assert full().sha256 == full().sha256
    assert three().sha256 == three(origin=Origin("modelled", "elsewhere")).sha256
    assert re.fullmatch("[0-9a-f]{64}", three().sha256)


def test_every_column_is_in_the_hash():
    columns = {
        "arrival_time": [0.0, 1.5, 2.25],
        "prompt_len": [10, 20, 31],
        "output_len": [1, 2, 4],
        **{name: [1, 1, 1] for name in OPTIONAL},
    }
    hashes = {three().sha256, *(three(**{name: columns[name]}).sha256 for name in columns)}

    assert len(hashes) == 1 + len(columns)


# Rows


def test_some_rows_with_all_their_columns():
    taken = full().take(np.array([True, False, True]))

    assert len(taken) == 2
    for name in ("arrival_time", "prompt_len", "output_len", *OPTIONAL):
        np.testing.assert_array_equal(getattr(taken, name), getattr(full(), name)[[0, 2]])


@pytest.mark.parametrize("rows", [slice(1, 3), np.array([1, 2]), np.array([False, True, True])])
def test_rows_can_be_a_slice_indices_or_a_mask(rows):
    assert full().take(rows).sha256 == full().take(np.array([1, 2])).sha256


def test_rows_out_of_order_are_refused():
    with pytest.raises(TraceError, match="arrival_time must not decrease"):
        three().take(np.array([2, 0]))


@given(st.lists(st.floats(0, 10), max_size=20), st.data())
def test_what_is_taken_keeps_its_order_and_origin(gaps, data):
    origin = Origin(source="a file", dropped={"no tokens": 3})
    lengths = np.arange(1, len(gaps) + 1)
    trace = Trace(np.cumsum(gaps), lengths, lengths, origin=origin)
    mask = np.array(
        data.draw(st.lists(st.booleans(), min_size=len(gaps), max_size=len(gaps))), dtype=bool
    )

    taken = trace.take(mask)

    assert taken.prompt_len.tolist() == lengths[mask].tolist()
    assert taken.origin == origin


def test_an_origin_can_be_changed_without_touching_the_requests():
    trace = full()
    changed = trace.with_origin(kind="modelled", notes=("seen",))

    assert changed.sha256 == trace.sha256
    assert changed.origin == Origin("modelled", "arrays", notes=("seen",))
    assert trace.origin == Origin()

"""Windows: where they are cut, what a change of load keeps, and what has no rate."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuesmith.errors import ConfigError, TraceError
from queuesmith.traces import Trace
from queuesmith.windows import cut_windows, offered_rate, scale_arrivals, thin


def make_trace(num_requests, deadline=True):
    """One request every half second from 100 s on; the prompt length tells the row."""
    arrival_time = 100 + np.arange(num_requests) * 0.5
    return Trace(
        arrival_time,
        np.arange(num_requests) + 1,
        np.full(num_requests, 7),
        client=np.arange(num_requests) % 3,
        deadline=arrival_time + 2 if deadline else None,
    )


@given(
    num_requests=st.integers(1, 400),
    num_windows=st.integers(1, 12),
    window_len=st.integers(1, 60),
    seed=st.integers(0, 99),
)
def test_windows_are_contiguous_apart_and_as_many_as_fit(
    num_requests, num_windows, window_len, seed
):
    trace = make_trace(num_requests)

    windows = cut_windows(trace, num_windows=num_windows, window_len=window_len, seed=seed)

    length = min(window_len, num_requests)
    assert len(windows) == min(num_windows, num_requests // length)
    end = 0
    for index, window in enumerate(windows):
        rows = window.trace.prompt_len - 1
        assert window.index == index
        assert window.start_row == rows[0] >= end
        assert rows.tolist() == list(range(rows[0], rows[0] + length))
        end = rows[-1] + 1


def test_windows_spread_over_the_trace_one_in_each_part():
    starts = [window.start_row for window in cut_windows(make_trace(8_000), window_len=100)]

    assert [start // 1_000 for start in starts] == list(range(8))


def test_another_seed_cuts_elsewhere_and_the_same_seed_the_same():
    trace = make_trace(3_000)
    first, again, other = (
        [window.sha256 for window in cut_windows(trace, window_len=50, seed=seed)]
        for seed in (1, 1, 2)
    )

    assert first == again
    assert first != other


def test_windows_start_at_zero_with_their_deadlines():
    for window in cut_windows(make_trace(400), num_windows=3, window_len=20):
        assert window.trace.arrival_time[[0, -1]].tolist() == [0, 9.5]
        assert (window.trace.deadline - window.trace.arrival_time).tolist() == [2] * 20
        assert window.trace.client[0] == window.start_row % 3
        assert window.sha256 == window.trace.sha256


def test_a_trace_shorter_than_a_window_is_one_window():
    (window,) = cut_windows(make_trace(30))

    assert len(window.trace) == 30


@pytest.mark.parametrize("bad", [{"num_windows": 0}, {"window_len": -5}, {"seed": -1}])
def test_windows_of_nothing_are_refused(bad):
    (name,) = bad

    with pytest.raises(ConfigError, match=f"{name} must be at least"):
        cut_windows(make_trace(10), **bad)


def test_an_empty_trace_has_no_windows():
    with pytest.raises(TraceError, match="no requests"):
        cut_windows(Trace([], [], []))


def test_scaling_multiplies_times_and_keeps_the_slack_of_deadlines():
    trace = make_trace(5)

    slow = scale_arrivals(trace, 3.0)

    assert slow.arrival_time.tolist() == (trace.arrival_time * 3).tolist()
    assert slow.deadline == pytest.approx(slow.arrival_time + 2)
    assert offered_rate(slow) == pytest.approx(offered_rate(trace) / 3)
    assert slow.prompt_len.tolist() == trace.prompt_len.tolist()
    assert slow.client.tolist() == trace.client.tolist()
    assert slow.origin == trace.origin


def test_scaling_keeps_the_absence_of_deadlines():
    assert scale_arrivals(make_trace(5, deadline=False), 2.0).deadline is None
    never = Trace([0.0, 1.0], [1, 1], [1, 1], deadline=[np.inf, 5.0])
    assert scale_arrivals(never, 2.0).deadline.tolist() == [np.inf, 6.0]


@pytest.mark.parametrize("factor", [0.0, -1.0, np.nan, np.inf])
def test_a_factor_that_is_no_positive_number_is_refused(factor):
    with pytest.raises(ConfigError, match="positive number"):
        scale_arrivals(make_trace(5), factor)


def test_thinning_keeps_whole_rows_in_order_on_the_same_clock():
    trace = make_trace(10_000)

    thinned = thin(trace, 0.3, np.random.default_rng(0))

    assert len(thinned) == pytest.approx(3_000, abs=150)
    rows = thinned.prompt_len - 1
    assert (np.diff(rows) > 0).all()
    assert thinned.arrival_time.tolist() == trace.arrival_time[rows].tolist()
    assert len(thin(trace, 1.0, np.random.default_rng(0))) == len(trace)


@pytest.mark.parametrize("share", [0.0, -0.5, 1.01, np.nan])
def test_a_share_outside_zero_to_one_is_refused(share):
    with pytest.raises(ConfigError, match="share of requests"):
        thin(make_trace(5), share, np.random.default_rng(0))


def test_thinning_to_nothing_is_refused():
    with pytest.raises(TraceError, match="is left"):
        thin(make_trace(5), 1e-9, np.random.default_rng(0))


def test_the_offered_rate_counts_gaps():
    assert offered_rate(make_trace(5)) == 2.0


@pytest.mark.parametrize("arrivals", [[3.0], [3.0, 3.0, 3.0], []])
def test_requests_that_arrive_at_once_have_no_rate(arrivals):
    ones = [1] * len(arrivals)

    with pytest.raises(TraceError, match="no rate"):
        offered_rate(Trace(arrivals, ones, ones))

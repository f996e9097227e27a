"""Windows: where they are cut, what a change of load keeps, and what has no rate."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuesmith.errors import ConfigError, TraceError
from queuesmith.traces import BlockHashes, Origin, Trace
from queuesmith.windows import adjoin, cut_windows, offered_rate, scale_arrivals, splice, thin


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


def test_the_offered_rate_counts_gaps():
    assert offered_rate(make_trace(5)) == 2.0


@pytest.mark.parametrize("arrivals", [[3.0], [3.0, 3.0, 3.0], []])
def test_requests_that_arrive_at_once_have_no_rate(arrivals):
    ones = [1] * len(arrivals)

    with pytest.raises(TraceError, match="no rate"):
        offered_rate(Trace(arrivals, ones, ones))


def test_windows_that_fill_a_trace_adjoin_and_others_do_not():
    trace = make_trace(100)

    assert adjoin(cut_windows(trace, num_windows=5, window_len=20))
    assert not adjoin(cut_windows(trace, num_windows=4, window_len=20))
    assert not adjoin(cut_windows(trace, num_windows=1, window_len=100))
    two_sources = [
        cut_windows(trace.with_origin(source=name), num_windows=2, window_len=50)[place]
        for place, name in enumerate("ab")
    ]
    assert not adjoin(two_sources)


def test_joining_keeps_the_gaps_within_and_puts_the_mean_gap_between():
    first, second = (
        Trace([5.0, 6.0, 9.0], [1, 2, 3], [4, 4, 4]),
        Trace([50.0, 52.0], [7, 8], [9, 9]),
    )

    joined = splice([first, second])

    assert joined.arrival_time.tolist() == [0, 1, 4, 6, 8]
    assert joined.prompt_len.tolist() == [1, 2, 3, 7, 8]
    assert joined.output_len.tolist() == [4, 4, 4, 9, 9]
    assert splice([first, second], gap=0.0).arrival_time.tolist() == [0, 1, 4, 4, 6]
    assert splice([second]).arrival_time.tolist() == [0, 2]


def test_joined_windows_are_the_trace_they_were_cut_from():
    trace = make_trace(60)

    joined = splice([window.trace for window in cut_windows(trace, num_windows=3, window_len=20)])

    assert joined.arrival_time == pytest.approx(trace.arrival_time - 100)
    assert (joined.deadline - joined.arrival_time).tolist() == [2] * 60
    assert joined.client.tolist() == trace.client.tolist()
    assert joined.prompt_len.tolist() == trace.prompt_len.tolist()


def test_joined_sources_share_no_client_session_or_block():
    def trace(source, clients, blocks):
        hashes = None if blocks is None else BlockHashes([0, 2, 3], blocks, 16)
        return Trace(
            [0.0, 1.0],
            [9, 9],
            [9, 9],
            client=clients,
            session=[4, 4],
            block_hashes=hashes,
            origin=Origin(source=source, dropped={"bad": 1}, notes=("odd",)),
        )

    joined = splice(
        [
            trace("a", [3, -1], [-7, 2**62, -7]),
            trace("b", [3, 8], [5, 5, 6]),
            trace("a", [-1, 3], None),
            trace("a", None, [2**62, 1, 1]),
        ]
    )

    a, none, b, other = joined.client[:4]
    assert joined.client.tolist() == [a, -1, b, other, -1, a, -1, -1]
    assert none == -1
    assert len({a, b, other}) == 3
    of_a, of_b = joined.session[[0, 2]]
    assert joined.session.tolist() == [of_a, of_a, of_b, of_b, of_a, of_a, of_a, of_a]
    assert of_a != of_b
    blocks = joined.block_hashes
    assert blocks.num_blocks.tolist() == [2, 1, 2, 1, 0, 0, 2, 1]
    assert blocks[0][0] == blocks[1][0]
    assert blocks[0][1] == blocks[6][0]
    assert blocks[6][1] == blocks[7][0]
    assert len(set(blocks.hashes.tolist())) == 5
    assert joined.origin.source == "a + b"
    assert joined.origin.dropped == {"bad": 2}
    assert joined.origin.notes == ("odd", "4 parts joined end to end")


def test_columns_that_some_lack_are_filled_with_what_means_missing():
    with_cap = Trace([0.0], [1], [1], max_tokens=[5], priority=[2])

    joined = splice([with_cap, make_trace(1)], gap=1.0)

    assert joined.max_tokens[0] == 5
    assert joined.max_tokens[1] >= 10**8
    assert joined.priority.tolist() == [2, 0]
    assert joined.deadline.tolist() == [np.inf, 3]
    assert joined.turn is None


def test_what_cannot_be_joined_is_refused():
    blocks = [
        Trace([0.0], [1], [1], block_hashes=BlockHashes([0, 1], [1], size)) for size in (16, 512)
    ]

    with pytest.raises(TraceError, match="16 and 512 tokens"):
        splice(blocks)
    for nothing in ([], [make_trace(2), Trace([], [], [])]):
        with pytest.raises(TraceError, match="leave out the empty ones"):
            splice(nothing)
    for gap in (-1.0, np.nan, np.inf):
        with pytest.raises(ConfigError, match="gap between traces"):
            splice([make_trace(2)], gap=gap)


@given(share=st.floats(0.05, 1.0), seed=st.integers(0, 99))
def test_thinning_keeps_times_and_whole_sessions(share, seed):
    trace = replace(make_trace(600), session=np.where(np.arange(600) % 2, np.arange(600) // 8, -1))

    kept = thin(trace, share, seed)

    rows = kept.prompt_len - 1
    np.testing.assert_array_equal(kept.arrival_time, trace.arrival_time[rows])
    for session in set(kept.session.tolist()) - {-1}:
        assert (kept.session == session).sum() == (trace.session == session).sum()
    alone = (kept.session < 0).sum()
    assert abs(alone - 300 * share) <= 5 * (300 * share * (1 - share)) ** 0.5
    np.testing.assert_array_equal(thin(trace, share, seed).prompt_len, kept.prompt_len)


def test_thinned_bursts_stay_bursts_where_stretched_ones_do_not():
    """Ten at once every 20 s: thinned to a tenth about one at a time, stretched still ten."""
    trace = Trace(np.repeat(np.arange(200) * 20.0, 10), np.full(2000, 5), np.full(2000, 5))

    assert thin(trace, 1.0, 0) is trace
    kept = thin(trace, 0.1, 0)
    assert offered_rate(kept) == pytest.approx(offered_rate(scale_arrivals(trace, 10)), rel=0.3)
    largest = [
        np.unique(one.arrival_time, return_counts=True)[1].max()
        for one in (kept, scale_arrivals(trace, 10))
    ]
    assert largest[0] < 6 < largest[1] == 10


@pytest.mark.parametrize("share", [0, -0.5, 1.01, float("nan")])
def test_a_share_that_is_none_is_refused(share):
    with pytest.raises(ConfigError, match="must be above 0 and at most 1"):
        thin(make_trace(5), share, 0)

"""Descriptions: numbers that can be worked out by hand, and those that theory gives."""

import json

import numpy as np
import pytest

from queuesmith.errors import TraceError
from queuesmith.traces import BlockHashes, Trace, load_trace
from queuesmith.traces.catalog import find_file
from queuesmith.traces.describe import (
    describe,
    dispersion,
    gap_cv,
    group_sizes,
    prefix_reuse,
    turn_gaps,
)


def make_trace(arrivals, prompts=None, outputs=None, **columns):
    num_requests = len(arrivals)
    prompts = np.full(num_requests, 10) if prompts is None else prompts
    outputs = np.full(num_requests, 5) if outputs is None else outputs
    return Trace(arrivals, prompts, outputs, **columns)


def make_blocks(*rows, block_size=16):
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
    return BlockHashes(offsets, np.concatenate(rows).astype(np.int64), block_size)


def make_poisson(num_requests=20_000, rate=5.0):
    rng = np.random.default_rng(1)
    return make_trace(
        np.cumsum(rng.exponential(1 / rate, num_requests)),
        rng.geometric(0.01, num_requests),
        rng.geometric(0.02, num_requests),
    )


def test_poisson_traffic_is_recognised_at_every_scale():
    trace = make_poisson()

    assert gap_cv(trace) == pytest.approx(1, abs=0.02)
    for width in (1.0, 10.0, 60.0):
        num_bins = trace.duration / width
        # The variance of a dispersion over independent bins is 2 / num_bins.
        assert dispersion(trace, width) == pytest.approx(1, abs=4 * (2 / num_bins) ** 0.5)


def test_evenly_spaced_requests_do_not_disperse():
    trace = make_trace(np.arange(1000) / 4)

    assert gap_cv(trace) == pytest.approx(0, abs=1e-12)
    assert dispersion(trace, 1.0) == 0


def test_pairs_disperse_twice_as_much_as_single_requests():
    single = make_poisson()
    pairs = make_trace(np.repeat(single.arrival_time, 2))

    assert dispersion(pairs, 10.0) == pytest.approx(2 * dispersion(single, 10.0))


def test_a_scale_the_trace_is_too_short_for_is_unknown():
    trace = make_trace(np.arange(50.0))

    assert dispersion(trace, 4.0) is not None
    assert dispersion(trace, 5.0) is None


def test_rate_and_tokens_per_second():
    document = describe(make_trace([0.0, 1.0, 2.0, 4.0], [1, 2, 3, 4], [4, 4, 4, 4]))

    assert document["rate"] == 0.75  # three gaps in four seconds
    assert document["prompt_tokens_per_second"] == 2.5
    assert document["output_tokens_per_second"] == 4.0


def test_the_rate_over_time_accounts_for_every_request():
    trace = make_poisson(3000)
    arrivals = describe(trace)["arrivals"]

    assert sum(arrivals["rate"]) * arrivals["width"] == pytest.approx(len(trace))
    assert len(arrivals["rate"]) * arrivals["width"] == pytest.approx(trace.duration)


def test_percentiles_are_lengths_that_occur():
    lengths = describe(make_trace(np.arange(100.0), np.arange(1, 101)))["lengths"]["prompt"]

    assert (lengths["p1"], lengths["p50"], lengths["p99"], lengths["max"]) == (1, 50, 99, 100)
    assert lengths["mean"] == 50.5


def test_rank_correlations_see_order_and_not_size():
    prompts = np.arange(1, 101)
    document = describe(make_trace(np.arange(100.0), prompts, prompts**3))

    assert document["correlations"]["prompt_output"] == pytest.approx(1)
    assert document["correlations"]["prompt_next"] == pytest.approx(1)
    assert document["correlations"]["prompt_rate"] is None  # shorter than ten minutes


def test_what_never_varies_correlates_with_nothing():
    assert describe(make_trace(np.arange(100.0)))["correlations"]["prompt_output"] is None


def test_lengths_that_go_with_the_rate_are_seen():
    rng = np.random.default_rng(0)
    minutes = np.repeat(np.arange(60), rng.integers(5, 50, 60))
    arrivals = np.sort(minutes * 60 + rng.random(len(minutes)) * 59)
    counts = np.bincount(minutes)[minutes]

    document = describe(make_trace(arrivals, counts, 1 + 100 - counts))

    assert document["correlations"]["prompt_rate"] > 0.9
    assert document["correlations"]["output_rate"] < -0.9


def test_clients_by_hand():
    clients = [7] * 6 + [3] * 3 + [5] + [-1] * 2
    document = describe(make_trace(np.arange(12.0), client=clients))["clients"]

    assert document["num_clients"] == 3
    assert document["num_unknown"] == 2
    assert document["top_share"] == {"1": 0.6, "10": 1.0, "100": 1.0}
    assert document["num_for_half"] == 1


def test_half_of_the_requests_may_take_several_clients():
    document = describe(make_trace(np.arange(8.0), client=[0, 0, 1, 1, 2, 2, 3, 3]))["clients"]

    assert document["num_for_half"] == 2


def test_sessions_by_hand():
    trace = make_trace([0.0, 1.0, 5.0, 6.0, 8.0, 9.0], session=[0, 1, 0, 1, 0, -1], client=[-1] * 6)
    document = describe(trace)

    assert sorted(turn_gaps(trace)) == [3.0, 5.0, 5.0]
    assert group_sizes(trace.session).tolist() == [3, 2]
    assert document["clients"] is None
    assert document["sessions"]["turns_mean"] == 2.5
    assert document["sessions"]["turns_max"] == 3
    assert document["sessions"]["turn_gap_p50"] == 5.0
    assert document["sessions"]["single_turn_share"] == 0.0
    assert document["sessions"]["num_unknown"] == 1


def test_prefixes_by_hand():
    """The third prompt shares two blocks; the fourth shares one behind a new one, which is none."""
    blocks = make_blocks([1, 2, 3], [9], [1, 2, 4], [8, 2], [9])
    trace = make_trace([0.0, 1.0, 3.0, 4.0, 8.0], [48, 16, 48, 32, 10], block_hashes=blocks)

    reuse = prefix_reuse(trace)

    assert reuse.reused.tolist() == [0, 0, 32, 0, 10]  # never more than the prompt has
    assert sorted(reuse.age) == [3.0, 3.0, 7.0]
    document = describe(trace)["prefixes"]
    assert document["reused_token_share"] == pytest.approx(42 / 154)
    assert document["reusing_request_share"] == pytest.approx(2 / 5)
    assert (document["num_blocks"], document["num_distinct"]) == (10, 6)
    assert document["age_p99"] == 7.0


def test_a_block_twice_in_one_prompt_is_not_reuse():
    trace = make_trace([0.0], [48], block_hashes=make_blocks([1, 1, 1]))

    assert prefix_reuse(trace).reused.tolist() == [0]


def test_prefix_reuse_agrees_with_a_cache_in_plain_python():
    rng = np.random.default_rng(3)
    rows = [rng.integers(0, 6, rng.integers(0, 8)) for _ in range(500)]
    rows[0] = np.array([0])
    trace = make_trace(np.arange(500.0), np.full(500, 999), block_hashes=make_blocks(*rows))
    cache, expected, ages = {}, [], []
    for now, row in enumerate(rows):
        run = 0
        for block in row:
            if block not in cache:
                break
            run += 1
            ages.append(now - cache[block])
        # A block that comes twice in one prompt was last used by that prompt itself.
        if len(set(row[:run])) < run:
            first = next(k for k in range(run) if row[k] in row[:k])
            del ages[len(ages) - (run - first) :]
            run = first
        expected.append(run * 16)
        cache.update(dict.fromkeys(row, now))

    reuse = prefix_reuse(trace)

    assert reuse.reused.tolist() == expected
    assert sorted(reuse.age) == sorted(ages)


@pytest.mark.parametrize("num_requests", [1, 2, 3])
def test_the_shortest_traces_have_a_description(num_requests):
    document = describe(make_trace(np.zeros(num_requests)))

    assert document["num_requests"] == num_requests
    assert document["rate"] is None
    json.dumps(document, allow_nan=False)


def test_a_trace_without_requests_is_refused():
    with pytest.raises(TraceError, match="no requests"):
        describe(make_trace([]))


def test_published_figures_of_real_traces_come_out(traces_dir):
    """CV of gaps and, from the Mooncake authors' readers, the share of tokens in known prefixes."""
    for name, expected in (("azure_2023_code", 13.2), ("azure_2023_conv", 1.09)):
        path = find_file(name)
        if path is None:
            pytest.skip(f"{name} is not at hand")
        document = describe(load_trace(path))
        assert document["burstiness"]["gap_cv"] == pytest.approx(expected, abs=0.05)
    path = find_file("mooncake_conversation")
    if path is not None:
        document = describe(load_trace(path))
        assert document["prefixes"]["reused_token_share"] == pytest.approx(0.374, abs=0.001)
        assert document["sessions"] is None

"""Scores, tails and wins, on samples small enough to do by hand."""

from dataclasses import astuple
from math import log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queuesmith.errors import ConfigError
from queuesmith.score import (
    Configuration,
    Sample,
    improvement,
    load_tests,
    score,
    tail_violation,
    window_wins,
)

NAN, INF = float("nan"), float("inf")
BUSY = Configuration("azure", 0.8)
KNEE = Configuration("azure", 0.95)
OTHER = Configuration("burst", 0.8)


def flat(*ttft_of_window, num_requests=10):
    """Build windows in which every request waits the same."""
    return Sample(
        np.repeat(ttft_of_window, num_requests),
        np.repeat(np.arange(len(ttft_of_window)), num_requests),
    )


def skewed(seed=0, num_windows=8, num_requests=100):
    rng = np.random.default_rng(seed)
    ttft = rng.lognormal(size=num_windows * num_requests)
    return Sample(ttft, np.repeat(np.arange(num_windows), num_requests))


def scaled(sample, factor):
    return Sample(factor * sample.ttft, sample.window)


def test_the_reference_scores_exactly_nothing():
    reference = {BUSY: skewed(1), OTHER: skewed(2)}

    found = score(reference, reference)

    assert (found.value, found.low, found.high) == (0.0, 0.0, 0.0)
    assert {str(value) for value in astuple(found.terms[BUSY])} == {"0.0"}  # not minus zero


def test_halving_every_wait_earns_half_of_ln_2_in_each_configuration():
    reference = {BUSY: skewed(1), OTHER: skewed(2)}
    policy = {key: scaled(sample, 0.5) for key, sample in reference.items()}

    found = score(policy, reference)

    assert found.value == pytest.approx(log(2))
    assert (found.low, found.high) == pytest.approx((log(2), log(2)))
    term = found.terms[OTHER]
    assert (term.mean_gain, term.p99_gain, term.penalty) == pytest.approx((log(2), 0, 0))
    assert term.p99_gain_unclipped == pytest.approx(log(2))
    assert term.value == pytest.approx(log(2) / 2)


def test_a_longer_tail_costs_its_logarithm_and_four_times_what_is_above_two_percent():
    """All waits 10 % longer: -(ln 1.1)/2 - (ln 1.1)/2 - 4 * (1.1 - 1.02)."""
    reference = {BUSY: skewed()}

    found = score({BUSY: scaled(reference[BUSY], 1.1)}, reference, draws=0)

    assert found.value == pytest.approx(-log(1.1) - 4 * 0.08)
    assert found.terms[BUSY].penalty == pytest.approx(0.08)


def test_a_better_mean_does_not_hide_a_worse_tail():
    """Means 1 and 0.6; p99 is the largest of each window, 1 and 1.5."""
    reference = {BUSY: flat(1.0, 1.0)}
    waits = [0.5] * 9 + [1.5]
    policy = {BUSY: Sample(waits * 2, reference[BUSY].window)}

    found = score(policy, reference)

    assert found.terms[BUSY].mean_gain == pytest.approx(-log(0.6))
    assert found.value == pytest.approx(-log(0.6) / 2 - log(1.5) / 2 - 4 * (1.5 - 1.02))


def test_the_penalty_starts_before_the_limit_of_a_tail_violation():
    reference = skewed()
    policy = scaled(reference, 1.04)

    assert score({BUSY: policy}, {BUSY: reference}).terms[BUSY].penalty == pytest.approx(0.02)
    assert not tail_violation(policy, reference).violated


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), share=st.floats(0, 1))
def test_shorter_waits_never_lower_a_score(seed, share):
    rng = np.random.default_rng(seed)
    reference, slow = skewed(1), skewed(2)
    quick = Sample(slow.ttft * np.where(rng.random(800) < share, rng.random(800), 1), slow.window)

    before = score({BUSY: slow}, {BUSY: reference}, draws=50)
    after = score({BUSY: quick}, {BUSY: reference}, draws=50)

    assert after.value >= before.value
    assert after.low >= before.low
    assert after.high >= before.high


@settings(max_examples=20, deadline=None)
@given(factor=st.sampled_from([0.125, 2.0, 1024.0]), seed=st.integers(0, 99))
def test_a_score_has_no_unit(factor, seed):
    policy, reference = skewed(seed), skewed(100)

    once = score({BUSY: policy}, {BUSY: reference}, draws=50)
    slower = score({BUSY: scaled(policy, factor)}, {BUSY: scaled(reference, factor)}, draws=50)

    assert slower.value == pytest.approx(once.value)
    assert slower.low == pytest.approx(once.low)


def test_the_order_of_requests_and_the_numbers_of_windows_do_not_matter():
    policy, reference = skewed(1), skewed(2)
    shuffle = np.random.default_rng(0).permutation(len(policy.ttft))

    once = score({BUSY: policy}, {BUSY: reference})
    other = score(
        {BUSY: Sample(policy.ttft[shuffle], 10 * policy.window[shuffle])},
        {BUSY: Sample(reference.ttft, 10 * reference.window)},
    )

    assert (other.value, other.low) == pytest.approx((once.value, once.low))


def test_loads_of_one_source_share_their_draws_and_sources_do_not():
    """The same sample twice: sharing doubles the width, independence gives about sqrt(2) of it."""
    policy, reference = skewed(1), skewed(2)

    def width(*keys):
        found = score(dict.fromkeys(keys, policy), dict.fromkeys(keys, reference))
        return found.high - found.low

    alone = width(BUSY)

    assert width(BUSY, KNEE) == pytest.approx(2 * alone)
    assert 1.2 * alone < width(BUSY, OTHER) < 1.7 * alone


def test_a_sources_draws_do_not_depend_on_other_sources_nor_on_the_policy():
    reference = {BUSY: skewed(1), OTHER: skewed(2)}
    policy = {BUSY: skewed(3), OTHER: reference[OTHER]}

    both = score(policy, reference)
    alone = score({BUSY: policy[BUSY]}, {BUSY: reference[BUSY]})

    assert (both.value, both.low, both.high) == (alone.value, alone.low, alone.high)


def test_pairing_takes_out_what_windows_have_in_common():
    """Windows a hundred times apart, the policy 10 % better in each: no doubt about 10 %."""
    reference = flat(0.1, 1.0, 10.0, 0.2, 3.0, 0.5, 8.0, 2.0)

    found = improvement(scaled(reference, 0.9), reference)

    assert (found.mean, found.mean_low, found.mean_high) == pytest.approx((0.1, 0.1, 0.1))
    assert (found.p99, found.p99_low, found.p99_high) == pytest.approx((0.1, 0.1, 0.1))


def test_one_window_gives_no_interval():
    found = score({BUSY: flat(0.5), OTHER: skewed(1)}, {BUSY: flat(1.0), OTHER: skewed(1)})

    assert found.value == pytest.approx(log(2) / 2)
    assert np.isnan([found.low, found.high]).all()
    assert np.isnan(improvement(flat(0.5), flat(1.0)).mean_low)


def test_a_policy_that_leaves_a_request_waiting_is_infinitely_worse():
    reference = flat(1.0, 1.0, 1.0)
    starving = Sample(np.where(np.arange(30) == 7, NAN, 0.1), reference.window)

    assert score({BUSY: starving}, {BUSY: reference}).value == -INF
    tail = tail_violation(starving, reference)
    assert tail.violated
    assert tail.max_ratio == INF
    assert improvement(starving, reference).mean == -INF
    assert window_wins(starving, reference) == (2, 0, 1)


def test_beside_a_reference_that_leaves_a_request_waiting_nothing_is_defined():
    policy = flat(1.0, 1.0, 1.0)
    reference = Sample(np.where(np.arange(30) == 7, NAN, 1.0), policy.window)

    found = score({BUSY: policy}, {BUSY: reference})
    assert np.isnan([found.value, found.low, found.high]).all()
    tail = tail_violation(policy, reference)
    assert not tail.violated
    assert np.isnan(tail.max_ratio)
    assert window_wins(policy, reference) == (0, 2, 0)


def test_waits_of_zero_are_equal_to_each_other_and_beyond_any_ratio():
    nothing, something = flat(0.0, 0.0), flat(1.0, 1.0)

    assert score({BUSY: nothing}, {BUSY: nothing}).value == 0
    assert score({BUSY: nothing}, {BUSY: something}).value == INF
    assert score({BUSY: something}, {BUSY: nothing}).value == -INF
    gained_and_lost = score({BUSY: nothing, OTHER: something}, {BUSY: something, OTHER: nothing})
    assert np.isnan(gained_and_lost.value)


def test_a_tail_is_violated_when_p99_is_surely_worse():
    reference = skewed()

    tail = tail_violation(scaled(reference, 1.06), reference)

    assert tail.violated
    assert (tail.p99_ratio, tail.low, tail.high) == pytest.approx((1.06, 1.06, 1.06))
    assert tail.reason == "p99 TTFT is 1.06 times the reference's, at least 1.06 times"


def test_a_worse_p99_that_one_window_explains_is_no_violation():
    """Pooled p99 doubles, but draws without the last window have none of that."""
    reference = flat(*[1.0] * 8, num_requests=50)
    policy = flat(*[0.9] * 7, 2.0, num_requests=50)

    tail = tail_violation(policy, reference)

    assert tail.p99_ratio == pytest.approx(2.0)
    assert tail.low == pytest.approx(0.9)
    assert not tail.violated  # and 2 s is not more than 1 s worse


@pytest.mark.parametrize(
    ("worst", "violated"),
    [(2.0, False), (2.01, True)],
    ids=["1 s worse", "more than 1 s worse"],
)
def test_one_starved_request_is_a_violation_when_it_waits_over_a_second_more(worst, violated):
    """Two thousand requests: p99 is halved, p99.9 too, and only the largest tells."""
    reference = flat(*[1.0] * 8, num_requests=250)
    waits = np.full(2000, 0.5)
    waits[77] = worst

    tail = tail_violation(Sample(waits, reference.window), reference)

    assert tail.violated is violated
    assert (tail.p99_ratio, tail.p999_ratio) == (0.5, 0.5)
    assert tail.max_ratio == worst
    assert tail.reason.startswith("largest TTFT 2.01 s") is violated


def test_a_few_starved_requests_show_in_the_thousandth_part():
    """Three of two thousand: p99.9 lies at rank 1997.001 of 0-1999, among them; p99 does not."""
    reference = flat(*[1.0] * 8, num_requests=250)
    waits = np.full(2000, 0.5)
    waits[[5, 700, 1500]] = 9.0

    tail = tail_violation(Sample(waits, reference.window), reference)

    assert (tail.p99_ratio, tail.p999_ratio, tail.max_ratio) == (0.5, 9.0, 9.0)
    assert tail.reason == "p99.9 TTFT 9 s is 9 times 1 s"


def test_a_second_more_is_no_violation_within_a_quarter():
    assert not tail_violation(flat(10.4, 10.0), flat(10.0, 10.0)).violated
    long = np.array([100.0] * 999 + [120.0])
    window = np.repeat([0, 1], 500)
    assert not tail_violation(Sample(long, window), Sample(np.full(1000, 100.0), window)).violated


def test_a_win_is_outside_one_percent_of_the_reference():
    reference = flat(1.0, 1.0, 1.0, 1.0, 2.0)

    assert window_wins(flat(0.989, 0.991, 1.009, 1.011, 1.0), reference) == (2, 2, 1)
    assert window_wins(flat(0.989, 0.991, 1.009, 1.011, 1.0), reference, margin=0) == (3, 0, 2)


def test_loads_are_tested_apart_and_adjusted_together():
    """Eight wins of eight give 2/256; six of eight 74/256. Holm doubles the smaller."""
    reference = flat(*[1.0] * 9)
    swept = flat(*[0.5] * 8, 1.0)
    mixed = flat(*[0.5] * 6, 2.0, 2.0, 1.0)

    found = load_tests({BUSY: swept, KNEE: mixed}, {BUSY: reference, KNEE: reference})

    assert (found[BUSY].wins, found[BUSY].ties, found[BUSY].losses) == (8, 1, 0)
    assert (found[BUSY].p, found[BUSY].p_holm) == pytest.approx((2 / 256, 4 / 256))
    assert (found[KNEE].p, found[KNEE].p_holm) == pytest.approx((74 / 256, 74 / 256))


def test_sources_are_adjusted_apart():
    reference, swept = flat(*[1.0] * 8), flat(*[0.5] * 8)

    found = load_tests({BUSY: swept, OTHER: swept}, {BUSY: reference, OTHER: reference})

    assert found[BUSY].p_holm == found[OTHER].p_holm == 2 / 256


def test_fewer_than_eight_windows_without_ties_are_not_tested():
    reference = flat(*[1.0] * 8)

    found = load_tests(
        {BUSY: flat(*[0.5] * 7, 1.0), KNEE: flat(*[0.5] * 8)}, {BUSY: reference, KNEE: reference}
    )

    assert np.isnan([found[BUSY].p, found[BUSY].p_holm]).all()
    assert found[KNEE].p_holm == 2 / 256


def test_samples_must_be_of_the_same_windows():
    with pytest.raises(ConfigError, match=r"same windows.*\[\[0, 10\]\] and \[\[0, 9\]\]"):
        window_wins(flat(1.0), flat(1.0, num_requests=9))
    with pytest.raises(ConfigError, match="same windows"):
        tail_violation(Sample([1.0], [3]), Sample([1.0], [4]))


def test_configurations_must_be_the_same():
    with pytest.raises(ConfigError, match="only one of them has"):
        score({BUSY: flat(1.0)}, {KNEE: flat(1.0)})
    with pytest.raises(ConfigError, match="there is none"):
        score({}, {})


def test_the_loads_of_a_source_must_be_of_the_same_windows():
    samples = {BUSY: flat(1.0, 1.0), KNEE: flat(1.0)}

    with pytest.raises(ConfigError, match=r"loads of azure .* \[0, 1\] and \[0\]"):
        score(samples, samples)


@pytest.mark.parametrize(
    ("ttft", "window"), [([], []), ([1.0], [0, 1]), ([[1.0]], [[0]]), ([-0.1], [0])]
)
def test_a_sample_needs_waits_of_at_least_zero_each_in_a_window(ttft, window):
    with pytest.raises(ConfigError):
        Sample(ttft, window)

"""Quantiles, resampling and tests against NumPy, SciPy and numbers by hand."""

import numpy as np
import pytest
import scipy.stats
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from queuesmith import stats
from queuesmith.stats import draws, packed, ranks

FEW = st.lists(st.integers(0, 6).map(float), min_size=1, max_size=30)  # small, so that values tie
MANY = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30)
LEVEL = st.sampled_from([0.0, 0.025, 0.5, 0.9, 0.99, 1.0]) | st.floats(0, 1)


@given(values=FEW | MANY, level=LEVEL)
def test_quantiles_are_numpys_to_the_last_bit(values, level):
    assert stats.quantiles(np.array(values), [level]) == [np.quantile(values, level)]


def test_a_quantile_is_infinite_only_where_it_touches_infinity():
    values = np.array([np.inf, 1.0, 2.0, np.inf, 3.0])

    assert stats.quantiles(values, [0.0, 0.5, 0.51, 1.0]) == [1.0, 3.0, np.inf, np.inf]
    assert stats.quantiles(-values, [0.0, 0.49, 0.5]) == [-np.inf, -np.inf, -3.0]


def test_nothing_has_no_quantile():
    assert np.isnan(stats.quantiles(np.array([]), [0.1, 0.9])).all()


def test_a_draw_takes_as_many_units_as_there_are_with_equal_chances():
    weights = stats.bootstrap_weights(5, 20_000, np.random.default_rng(1))

    assert (weights.sum(axis=1) == 5).all()
    assert weights.mean(axis=0) == pytest.approx(np.ones(5), abs=0.03)
    assert weights.var(axis=0) == pytest.approx(np.full(5, 0.8), abs=0.05)  # 5 * 1/5 * 4/5


@st.composite
def samples(draw):
    values = np.array(draw(FEW | MANY))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    num_units = draw(st.integers(1, 5))
    unit = rng.integers(0, num_units, len(values))
    weights = stats.bootstrap_weights(num_units, 4, rng)
    return values, unit, np.vstack([np.ones((1, num_units), np.int64), weights])


@settings(deadline=None)  # the first call compiles
@given(sample=samples(), level=LEVEL)
def test_drawn_quantiles_are_those_of_the_values_written_out(sample, level):
    values, unit, weights = sample

    found = stats.pooled_quantile_draws(values, unit, weights, level)

    for row, quantile in zip(weights, found, strict=True):
        written_out = np.repeat(values, row[unit])
        if len(written_out):
            assert quantile == np.quantile(written_out, level)
        else:
            assert np.isnan(quantile)


@given(sample=samples())
def test_drawn_means_are_those_of_the_values_written_out(sample):
    values, unit, weights = sample

    found = stats.pooled_mean_draws(values, unit, weights)

    for row, mean in zip(weights, found, strict=True):
        written_out = np.repeat(values, row[unit])
        expected = written_out.mean() if len(written_out) else np.nan
        assert mean == pytest.approx(expected, rel=1e-9, abs=1e-6, nan_ok=True)


def test_an_infinite_value_reaches_only_the_draws_that_count_it():
    values, unit = np.array([1.0, np.inf, 3.0]), np.array([0, 1, 2])
    weights = np.array([[1, 1, 1], [1, 0, 2], [0, 3, 0]])

    assert stats.pooled_mean_draws(values, unit, weights).tolist() == [np.inf, 7 / 3, np.inf]
    assert stats.pooled_quantile_draws(values, unit, weights, 0.5).tolist() == [3.0, 3.0, np.inf]


def test_an_interval_covers_a_known_mean_about_as_often_as_it_says():
    """Thirty units of two values each; the percentile interval is a little short at that size."""
    rng = np.random.default_rng(2)
    unit = np.repeat(np.arange(30), 2)
    covered = 0
    for _ in range(300):
        values = np.repeat(rng.normal(size=30), 2) + rng.normal(size=60)
        weights = stats.bootstrap_weights(30, 400, rng)
        low, high = stats.interval(stats.pooled_mean_draws(values, unit, weights))
        covered += low <= 0 <= high

    assert 0.89 < covered / 300 < 0.98


def test_an_interval_of_undefined_draws_is_undefined():
    assert np.isnan(stats.interval(np.array([1.0, np.nan, 2.0]))).all()
    assert np.isnan(stats.interval(np.array([]))).all()


@settings(deadline=None)  # the first call imports
@given(wins=st.integers(0, 60), losses=st.integers(0, 60))
def test_the_sign_test_is_scipys_binomial_test(wins, losses):
    expected = scipy.stats.binomtest(wins, wins + losses).pvalue if wins + losses else 1.0

    assert stats.sign_test(wins, losses) == pytest.approx(expected, rel=1e-12)


def test_holm_multiplies_by_the_hypotheses_left_and_never_falls():
    """Sorted 0.005, 0.01, 0.03, 0.04 times 4, 3, 2, 1; the last is lifted to the one before."""
    adjusted = stats.holm([0.01, 0.04, 0.03, 0.005])

    assert adjusted == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert stats.holm([]).tolist() == []


P_VALUES = st.lists(st.floats(0, 1), min_size=1, max_size=8)


@given(pvalues=P_VALUES)
def test_holm_rejects_what_its_step_down_procedure_rejects(pvalues):
    rejected = np.zeros(len(pvalues), bool)
    for step, row in enumerate(np.argsort(pvalues, kind="stable")):
        if pvalues[row] * (len(pvalues) - step) > 0.05:
            break
        rejected[row] = True

    assert ((stats.holm(pvalues) <= 0.05) == rejected).all()


@settings(deadline=None)  # the first call imports
@given(pvalues=P_VALUES)
def test_benjamini_hochberg_rejects_up_to_the_last_p_below_its_line(pvalues):
    ordered = np.sort(pvalues)
    adjusted = ordered * len(pvalues) / np.arange(1, len(pvalues) + 1)
    assume((np.abs(adjusted - 0.05) > 1e-12).all())  # on the line, rounding decides
    below = np.flatnonzero(adjusted <= 0.05)
    cut = ordered[below[-1]] if len(below) else -1.0

    assert ((stats.benjamini_hochberg(pvalues) <= 0.05) == (np.array(pvalues) <= cut)).all()


@pytest.mark.parametrize("adjust", [stats.holm, stats.benjamini_hochberg])
@pytest.mark.parametrize("wrong", [1.5, -0.1, np.nan])
def test_what_is_no_p_value_is_refused(adjust, wrong):
    with pytest.raises(ValueError, match="between 0 and 1"):
        adjust([0.5, wrong])


@settings(deadline=None)  # the first call imports
@given(data=st.data(), size=st.integers(2, 12))
def test_without_a_margin_tau_b_is_scipys(data, size):
    column = st.lists(st.integers(0, 5), min_size=size, max_size=size)
    x, y = data.draw(column), data.draw(column)

    expected = scipy.stats.kendalltau(x, y).statistic if len(set(x)) * len(set(y)) > 1 else np.nan

    assert stats.kendall_tau_b(x, y, margin=0) == pytest.approx(expected, nan_ok=True)


def test_values_within_the_margin_are_tied():
    """Of three pairs one is tied in x: 2 concordant over sqrt(2 * 3)."""
    assert stats.kendall_tau_b([100, 100.9, 200], [1, 2, 3]) == pytest.approx(2 / 6**0.5)
    assert stats.kendall_tau_b([100, 102, 200], [1, 2, 3]) == 1.0


def test_an_infinite_value_is_tied_only_with_another():
    """Pairs of x: below, below, tied; of y: below, below, below."""
    assert stats.kendall_tau_b([1, np.inf, np.inf], [1, 2, 3]) == pytest.approx(2 / 6**0.5)


def test_undefined_values_are_left_out_of_tau_b():
    assert stats.kendall_tau_b([1, np.nan, 2, 3], [1, 5, 2, 3]) == 1.0


def test_tau_b_of_lists_that_do_not_match_is_refused():
    with pytest.raises(ValueError, match="one length"):
        stats.kendall_tau_b([1, 2], [1, 2, 3])


# Draws


@settings(deadline=None)  # the first call compiles
@given(num_units=st.integers(1, 12), block_len=st.integers(1, 12), seed=st.integers(0, 2**32))
def test_blocks_are_neighbours_on_a_circle(num_units, block_len, seed):
    block_len = min(block_len, num_units)

    weights = draws.block_weights(num_units, block_len, 50, np.random.default_rng(seed))

    assert (weights.sum(axis=1) == num_units).all()
    if block_len == num_units:  # every block is the whole circle
        assert (weights == 1).all()


def test_neighbours_are_drawn_together():
    """With two blocks of three, unit 0 brings 1 and 2, or 5 and 1, or 4 and 5."""
    weights = draws.block_weights(6, 3, 4000, np.random.default_rng(0))

    together = np.corrcoef(weights.T)
    assert together[0, 1] > 0.25  # 2/3 of a block's units share it: much alike
    assert together[0, 5] > 0.25
    assert together[0, 3] < -0.6  # three apart never share one
    assert weights.mean(axis=0) == pytest.approx(np.ones(6), abs=0.05)


def test_blocks_of_one_are_the_ordinary_bootstrap():
    weights = draws.block_weights(5, 1, 20_000, np.random.default_rng(1))

    assert weights.var(axis=0) == pytest.approx(np.full(5, 0.8), abs=0.05)


def test_a_subset_holds_every_unit_once_and_each_as_often():
    weights = draws.subset_weights(7, 3, 7000, np.random.default_rng(0))

    assert set(np.unique(weights)) == {0, 1}
    assert (weights.sum(axis=1) == 3).all()
    assert weights.mean(axis=0) == pytest.approx(np.full(7, 3 / 7), abs=0.03)


@settings(deadline=None)  # the first call compiles
@given(data=st.data(), num_units=st.integers(1, 6), seed=st.integers(0, 2**32))
def test_many_means_are_those_of_the_units_written_out(data, num_units, seed):
    row = st.lists(
        st.floats(-1e6, 1e6) | st.sampled_from([np.nan, np.inf]),
        min_size=num_units,
        max_size=num_units,
    )
    values = np.array(data.draw(st.lists(row, min_size=1, max_size=4)))
    weights = stats.bootstrap_weights(num_units, 5, np.random.default_rng(seed))

    found = draws.mean_draws(values, weights)

    for draw, weight in enumerate(weights):
        for thing, units in enumerate(values):
            expected = np.nan if np.isnan(units).any() else np.repeat(units, weight).mean()
            assert found[thing, draw] == pytest.approx(expected, rel=1e-9, abs=1e-6, nan_ok=True)


def test_means_do_not_hang_on_what_else_is_averaged():
    """Equal numbers have equal means to the last bit, so that exact ties stay ties."""
    rng = np.random.default_rng(0)
    values = rng.random((50, 17))
    values[33] = values[4]
    weights = stats.bootstrap_weights(17, 3000, rng)

    means = draws.mean_draws(values, weights)

    assert (means[33] == means[4]).all()
    assert (draws.mean_draws(values[4], weights) == means[4]).all()


@settings(deadline=None)  # the first call compiles
@given(
    data=st.data(),
    num_draws=st.integers(1, 400),
    level=st.sampled_from([0.0, 0.5, 0.9, 0.95, 0.999]),
)
def test_intervals_are_those_of_each_row(data, num_draws, level):
    """Few different values, so that most of a row may lie on the bound."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    rows = rng.choice([-np.inf, -1.0, 0.0, 0.5, 3.0, np.inf, rng.random()], (4, num_draws))
    rows[1] = rng.normal(size=num_draws)
    if data.draw(st.booleans()):
        rows[2, rng.integers(num_draws)] = np.nan

    low, high = draws.intervals(rows, level)

    for row in range(4):
        expected = stats.interval(rows[row], level)
        assert (low[row], high[row]) == pytest.approx(expected, rel=1e-12, nan_ok=True)


def test_the_interval_of_a_long_row_needs_no_luck():
    """All of the tail in the places that the first guess does not look at."""
    row = np.ones(10_000)
    row[1::100] = -1.0

    assert draws.intervals(row[None])[0][0] == 1.0
    assert draws.intervals(np.where(row < 0, row, 1.0)[None], level=0.99)[0][0] == -1.0


# Ranks

VALUES = st.sampled_from([1.0, 1.005, 1.02, 2.0, 3.0, np.inf, np.nan, 0.0])


@given(data=st.data(), size=st.integers(1, 8))
def test_signs_of_pairs_are_those_of_each_pair(data, size):
    values = data.draw(st.lists(VALUES, min_size=size, max_size=size))

    found = iter(ranks.pair_signs(values).tolist())

    for first in range(size):
        for second in range(first + 1, size):
            a, b = values[first], values[second]
            sign = next(found)
            if np.isnan(a) or np.isnan(b):
                assert np.isnan(sign)
            elif a == b or (np.isfinite(a + b) and abs(a - b) <= 0.01 * max(a, b)):
                assert sign == 0
            else:
                assert sign == (1 if a > b else -1)


@settings(deadline=None)  # the first call compiles
@given(
    seed=st.integers(0, 2**32),
    size=st.integers(2, 15),
    margin=st.sampled_from([0.0, 0.01, 0.2]),
)
def test_tau_b_of_many_draws_is_that_of_each(seed, size, margin):
    rng = np.random.default_rng(seed)
    x, y = (rng.integers(1, 9, (size, 6)) * (1 + 0.02 * rng.random((size, 6))) for _ in range(2))
    if size > 3:
        x[rng.integers(size)] = np.nan
        y[rng.integers(size)] = np.inf

    found = packed.tau_b_draws(packed.pack_signs(x, margin), packed.pack_signs(y, margin))

    expected = [stats.kendall_tau_b(x[:, d], y[:, d], margin) for d in range(6)]
    assert found == pytest.approx(expected, nan_ok=True)


def test_one_list_can_be_set_against_many_draws():
    order = packed.pack_signs(np.array([[1.0], [2.0], [3.0]]))
    samples = packed.pack_signs(np.array([[1.0, 3.0], [2.0, 2.0], [3.0, 1.0]]))

    assert packed.tau_b_draws(order, samples).tolist() == [1.0, -1.0]


def test_the_same_order_leaves_tied_pairs_free():
    order = packed.pack_signs(np.array([[1.0], [1.005], [2.0]]))
    samples = packed.pack_signs(np.array([[1.0, 2.0, 1.0], [1.5, 1.0, 3.0], [3.0, 4.0, 2.0]]), 0.0)

    assert packed.same_order(order, samples).tolist() == [True, True, False]


def test_a_sample_that_ties_what_is_told_apart_has_not_the_same_order():
    order = packed.pack_signs(np.array([[1.0], [2.0]]))

    assert packed.same_order(order, packed.pack_signs(np.array([[1.0], [1.0]]))).tolist() == [False]


def test_the_top_three_hold_all_that_tie_with_the_third():
    values = [1.0, 5.0, 3.0, 3.02, 2.0, np.nan]

    assert ranks.top_set(values, 3).tolist() == [True, False, True, True, True, False]
    assert ranks.top_set(values, 1).tolist() == [True, False, False, False, False, False]
    assert ranks.top_set([np.nan, 7.0], 3).tolist() == [False, True]
    assert not ranks.top_set([np.nan, np.nan]).any()


def test_overlap_counts_what_is_common_of_what_there_is():
    a = np.array([[True, True, False], [False, False, False]])
    b = np.array([[False, True, True], [False, False, False]])

    assert ranks.overlap(a, b) == pytest.approx([1 / 3, np.nan], nan_ok=True)


@settings(deadline=None)  # the first call imports
@given(
    rankings=st.lists(st.lists(st.integers(0, 4), min_size=4, max_size=4), min_size=3, max_size=6)
)
def test_kendalls_w_is_friedmans_statistic_scaled(rankings):
    """chi2 = m (n - 1) W, ties included."""
    values = np.array(rankings, float) + 1
    assume(any(len(set(row)) > 1 for row in rankings))

    statistic = scipy.stats.friedmanchisquare(*values.T).statistic

    assert ranks.kendall_w(values, margin=0) == pytest.approx(statistic / (len(values) * 3))


def test_kendalls_w_leaves_out_what_is_undefined():
    assert ranks.kendall_w([[1, 2, np.nan], [1, 2, 3]]) == 1.0
    assert np.isnan(ranks.kendall_w([[1, 1], [1, 1]]))
    assert np.isnan(ranks.kendall_w([[1, 2]]))

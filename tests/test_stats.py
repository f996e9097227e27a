"""Quantiles, resampling and tests against NumPy, SciPy and numbers by hand."""

import numpy as np
import pytest
import scipy.stats
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from queuesmith import stats

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

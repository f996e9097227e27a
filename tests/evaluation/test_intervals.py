"""Intervals from few units: by hand, against theory, and where nothing can be said."""

import numpy as np
import pytest
from scipy.stats import t

from queuesmith.stats import bootstrap_weights
from queuesmith.stats.intervals import Draws, combine, difference, ratio_spread


def draw(num_units, draws, seed=0):
    drawn = bootstrap_weights(num_units, draws, np.random.default_rng(seed))
    return np.vstack([np.ones((1, num_units), np.int64), drawn])


def test_the_interval_of_a_mean_is_students():
    values = np.array([1.0, 2.0, 4.0, 7.0, 3.0, 5.0])
    weights = draw(6, 200_000)

    low, high = Draws((weights @ values) / 6, 6).interval()

    half = t.ppf(0.975, 5) * values.std(ddof=1) / np.sqrt(6)
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), rel=0.01)


def test_a_lower_level_is_narrower():
    draws = Draws(draw(8, 1000) @ np.arange(8.0), 8)

    wide, narrow = draws.interval(0.99), draws.interval(0.9)

    assert wide[0] < narrow[0] < draws.estimate < narrow[1] < wide[1]


def test_the_linearised_spread_is_the_delta_methods():
    """The standard error of log(mean x / mean y) over units, by the textbook's formula."""
    rng = np.random.default_rng(1)
    x, y, ones = rng.uniform(1, 2, 10), rng.uniform(3, 5, 10), np.ones(10)
    weights = np.ones((1, 10), np.int64)

    (spread,) = ratio_spread([(1, x), (-1, ones), (-1, y), (1, ones)], weights)

    influence = x / x.mean() - y / y.mean()
    assert spread == pytest.approx(np.sqrt((influence**2).sum() / (10 * 9)))


def test_bootstrap_t_covers_skewed_means_better_than_percentiles():
    """Log-normal units, eight of them: coverage of 95 % intervals over 400 samples."""
    rng = np.random.default_rng(2)
    truth = np.exp(0.125)
    weights = draw(8, 400, 3)
    hits = {"bootstrap-t": 0, "percentile": 0}
    for _ in range(400):
        units = rng.lognormal(0.0, 0.5, 8)
        values = np.log((weights @ units) / 8)
        spread = ratio_spread([(1, units), (-1, np.ones(8))], weights)
        for name, ends in {
            "bootstrap-t": Draws(values, 8, spread).interval(),
            "percentile": np.quantile(values[1:], [0.025, 0.975]),
        }.items():
            hits[name] += ends[0] <= np.log(truth) <= ends[1]

    assert hits["percentile"] / 400 < 0.9
    assert hits["bootstrap-t"] / 400 > 0.9


@pytest.mark.parametrize(
    "values", [np.array([1.0]), np.array([1.0, np.nan, 1.0]), np.array([np.inf, 1.0, 2.0])]
)
def test_nothing_is_said_of_one_unit_or_of_what_is_undefined(values):
    assert np.isnan(Draws(values, 1 if len(values) == 1 else 4).interval()).all()


def test_what_never_varies_has_an_interval_without_width():
    zero = np.zeros(11)

    assert Draws(zero, 8, zero).interval() == (0.0, 0.0)


def test_loads_are_averaged_and_policies_subtracted_draw_by_draw():
    one, other = Draws(np.array([1.0, 2.0, 3.0]), 8), Draws(np.array([3.0, 2.0, 1.0]), 8)

    assert combine([one, other]).values.tolist() == [2.0, 2.0, 2.0]
    assert difference(one, other).values.tolist() == [-2.0, 0.0, 2.0]

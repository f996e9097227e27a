"""How many windows are enough."""

from itertools import combinations

import numpy as np
import pytest
from small_runs import MAIN, make_runs, steady

from queuesmith.study.conditions import measure_conditions
from queuesmith.study.grid import make_grid
from queuesmith.study.pooling import pool
from queuesmith.study.rules import Options
from queuesmith.study.sample_complexity import sample_complexity, spread

QUICK = Options(draws=10, subset_draws=2000)


def measured(values, options=QUICK, metrics=("ttft_mean",)):
    return measure_conditions(
        make_grid(make_runs(values), None, metrics=metrics, prediction=MAIN), options
    )


def test_recovery_is_the_share_of_all_subsets_that_agree():
    """Every subset of 3 of 8 windows, by brute force."""
    rng = np.random.default_rng(4)
    values = np.array([[1.0], [1.3], [1.5]]) * rng.lognormal(sigma=0.5, size=(3, 8))
    means = values.mean(axis=1)
    order = first = 0
    subsets = list(combinations(range(8), 3))
    for subset in subsets:
        part = values[:, list(subset)].mean(axis=1)
        order += all(
            (part[a] < part[b]) == (means[a] < means[b]) for a, b in combinations(range(3), 2)
        )
        first += part.argmin() == means.argmin()

    (row,) = sample_complexity(measured({("e", "knee", "one"): values}))

    place = row["sizes"].index(3)
    assert row["order"][place] == pytest.approx(order / len(subsets), abs=0.03)
    assert row["top_1"][place] == pytest.approx(first / len(subsets), abs=0.03)
    assert (row["sizes"][-1], row["order"][-1], row["top_1"][-1]) == (8, 1.0, 1.0)
    assert row["top_3"] == [1.0] * len(row["sizes"])  # there are three


def test_one_window_is_enough_where_all_are_alike():
    (row,) = sample_complexity(measured({("e", "knee", "one"): steady(1, 2, 3, spread=1.0)}))

    assert (row["windows_for_order"], row["windows_for_winner"]) == (1, 1)


def test_policies_that_tie_over_all_windows_may_come_in_any_order():
    """p1 wins half of the windows by 40 % and loses the others: tied over all."""
    values = steady(1.0, 1.0, 5.0)
    values[1] *= np.tile([0.6, 1.4], 5)
    (row,) = sample_complexity(measured({("e", "knee", "one"): values}))

    assert row["order"][0] == 1.0
    assert row["windows_for_winner"] == 1


def test_what_takes_all_windows_is_not_reached():
    """One window of ten decides: nine windows miss it once in ten times, and that is reached."""
    values = steady(1.0, 1.05)
    values[0, 0] = 4.0  # 1.3 to 1.05
    (row,) = sample_complexity(measured({("e", "knee", "one"): values}))

    shares = dict(zip(row["sizes"], row["top_1"], strict=True))
    assert shares[5] == pytest.approx(0.5, abs=0.04)
    assert row["windows_for_winner"] is None
    assert shares[10] == 1.0


def test_the_first_size_must_hold_from_there_on():
    """One window alone finds the winner more often than two do; that is luck, not enough."""
    values = steady(1.0, 1.1)
    values[1, 0] = 0.05  # p1: 0.995 over all, hence tied; alone it loses nine of ten
    (row,) = sample_complexity(
        measured({("e", "knee", "one"): values}, Options(draws=10, subset_draws=500, tie=0.0))
    )

    assert row["windows_for_winner"] is None


def test_undefined_policies_are_left_out_of_orders():
    values = steady(1, 2, 3)
    values[1, 1] = np.nan
    (row,) = sample_complexity(measured({("e", "knee", "one"): values}))

    assert row["order"] == [1.0] * len(row["sizes"])
    assert row["top_3"] == [1.0] * len(row["sizes"])


def test_sizes_can_be_chosen():
    options = Options(draws=10, subset_draws=50, subset_sizes=(5, 20))
    (row,) = sample_complexity(measured({("e", "knee", "one"): steady(1, 2)}, options))

    assert row["sizes"] == [5, 10]


# One source or all


def test_windows_of_one_source_miss_what_others_do():
    cells = {
        ("e", "knee", "one"): steady(1.0, 0.5, 0.7),
        ("e", "knee", "two"): steady(1.0, 0.5, 0.7),
        ("e", "knee", "odd"): steady(1.0, 2.0, 0.7),
    }
    (row,) = spread(measured(cells))

    # Geometric mean ratios: 1, 0.79, 0.7. Two sources of three swap p1 and p2, one p1 and fcfs.
    assert row["spread"] == 1.0
    assert row["concentrated"] == pytest.approx(1 / 3, abs=0.03)
    assert (row["budget"], row["budget_spread"]) == (10, 9)


def test_a_source_with_long_queues_does_not_outvote_the_others():
    cells = {
        ("e", "knee", "slow"): steady(100.0, 120.0),
        ("e", "knee", "fast"): steady(1.0, 0.5),
    }
    conditions = measured(cells)
    plain = measured(cells, Options(draws=10, plain_pooling=True))

    assert pool(conditions, conditions.means[:, 0], 0) == pytest.approx([1.0, 0.6**0.5])
    assert pool(plain, plain.means[:, 0], 0) == pytest.approx([50.5, 60.25])


def test_shares_are_pooled_as_they_are_and_more_stays_better():
    def cells(one, two):
        return {("e", "knee", "one"): steady(*one), ("e", "knee", "two"): steady(*two)}

    runs = {"anwg": cells((0.0, 0.5), (0.8, 0.7)), "output_throughput": cells((1, 2), (4, 4))}
    conditions = measured(runs, metrics=("anwg", "output_throughput"))

    assert pool(conditions, conditions.means[:, 0], 0) == pytest.approx([-0.4, -0.6])
    assert pool(conditions, conditions.means[:, 1], 1) == pytest.approx([-1.0, -(2**0.5)])

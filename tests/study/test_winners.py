"""Who wins where, how surely, and whether metrics agree on it."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
from small_runs import MAIN, make_runs, steady

from queuesmith.study.conditions import best_sets, measure_conditions
from queuesmith.study.grid import make_grid
from queuesmith.study.portability import Options
from queuesmith.study.winners import disagreement, relative, who_wins

QUICK = Options(draws=1000, subset_draws=20)
HERE = ("e", "knee", "one")


def measured(values, metrics=("ttft_mean",), options=QUICK, **columns):
    runs = make_runs(values, **columns)
    grid = make_grid(runs, None, metrics=metrics, prediction=MAIN)
    return measure_conditions(grid, options)


def test_the_best_is_named_with_those_that_tie_and_how_far_the_next_is():
    (row,) = who_wins(measured({HERE: steady(4.0, 2.01, 2.0, 2.5)}))

    assert row["best"] == ["p2", "p1"]
    assert row["next"] == "p3"
    assert row["lead"] == pytest.approx(0.2)
    assert row["ratio"] == pytest.approx(0.5)
    assert row["windows_best"] == [10, 10]


def test_a_lead_that_one_window_makes_is_not_sure():
    values = steady(1.0, 1.02)
    values[0, 0] = 3.0
    (row,) = who_wins(measured({HERE: values}))

    assert row["best"] == ["p1"]
    assert row["windows_best"] == [1]


def test_the_reference_does_not_beat_itself():
    (row,) = who_wins(measured({HERE: steady(1.0, 2.0)}))

    assert row["best"] == ["fcfs"]
    assert row["ratio"] == 1.0


def test_where_more_is_better_the_largest_wins():
    (row,) = who_wins(measured({"anwg": {HERE: steady(0.5, 0.9)}}, ("anwg",)))

    assert (row["best"], row["mean"]) == (["p1"], pytest.approx(0.9))
    assert row["lead"] == pytest.approx(0.8)  # of the loser's 0.5


def test_an_idle_engine_is_called_idle():
    steps = {HERE: np.full((2, 10), 0.4)}
    (row,) = who_wins(measured({HERE: steady(1, 2)}, fcfs_queued_steps=steps))
    (unknown,) = who_wins(measured({HERE: steady(1, 2)}))

    assert (row["idle"], row["queued_steps"]) == (True, pytest.approx(0.4))
    assert unknown["idle"] is None


def test_what_is_undefined_wins_nothing_and_is_named():
    values = steady(3, 1, 2)
    values[1, 0] = np.nan
    (row,) = who_wins(measured({HERE: values}))

    assert row["best"] == ["p2"]
    assert row["undefined"] == ["p1"]

    (none,) = who_wins(measured({HERE: np.full((2, 9), np.nan)}))
    assert none["best"] == []


def test_ratios_have_the_interval_of_paired_draws():
    rng = np.random.default_rng(1)
    values = rng.lognormal(size=(2, 15))
    conditions = measured({HERE: values})
    row = relative(conditions)[1]

    draws = conditions.weights[0] @ values.T
    expected = np.quantile(draws[:, 1] / draws[:, 0], [0.025, 0.975])
    assert (row["low"], row["high"]) == pytest.approx(expected)
    assert row["ratio"] == pytest.approx(values[1].mean() / values[0].mean())
    assert row["wins"] == (values[1] < values[0] * 0.99).sum()
    assert row["wins"] + row["losses"] <= row["num_windows"] == 15


def test_a_reference_of_zero_gives_no_ratio():
    rows = relative(measured({"num_preemptions": {HERE: steady(0, 2)}}, ("num_preemptions",)))

    assert np.isnan([row["ratio"] for row in rows]).all()
    assert [row["mean"] for row in rows] == [0.0, 2.0]


def test_ties_are_broken_by_name_only_where_that_is_the_rule():
    means = np.array([2.0, 1.0, 1.0, 1.0])
    names = ["a", "d", "c", "b"]

    by_margin = best_sets(means, 1, names, QUICK)
    by_name = best_sets(means, 1, names, replace(QUICK, names_break_ties=True, tie=1e-9))
    three = best_sets(means, 3, names, replace(QUICK, names_break_ties=True, tie=1e-9))

    assert by_margin.tolist() == [False, True, True, True]
    assert by_name.tolist() == [False, False, False, True]
    assert three.tolist() == [False, True, True, True]


# Metrics


def three_metrics(first, second, third):
    names = ("ttft_mean", "e2el_mean", "tpot_mean")
    values = {
        name: {HERE: steady(*of)} for name, of in zip(names, (first, second, third), strict=True)
    }
    return measured(values, names)


def test_metrics_disagree_where_their_best_sets_do_not_meet():
    found = disagreement(three_metrics((1, 2, 3), (1, 1.001, 3), (3, 2, 1)), {})

    assert [row["apart"] for row in found["pairs"]] == [0.0, 1.0, 1.0]
    assert found["total"]["pairs_apart"] == pytest.approx(2 / 3)
    assert found["total"]["no_common_winner"] == 1.0


def test_pairs_may_all_meet_and_still_no_policy_be_best_on_all():
    found = disagreement(three_metrics((1, 1, 2), (2, 1, 1), (1, 2, 1)), {})

    assert found["total"]["pairs_apart"] == 0.0
    assert found["total"]["no_common_winner"] == 1.0


def test_a_metric_that_repeats_another_is_not_asked():
    found = disagreement(three_metrics((1, 2, 3), (1, 2, 3), (3, 2, 1)), {"e2el_mean": "ttft_mean"})

    assert found["metrics"] == ["ttft_mean", "tpot_mean"]
    assert len(found["pairs"]) == 1


def test_a_metric_without_a_best_policy_disagrees_with_nothing():
    conditions = three_metrics((1, 2, 3), (1, 2, 3), (np.nan, np.nan, np.nan))
    found = disagreement(conditions, {})

    assert found["total"] == {"pairs_apart": 0.0, "no_common_winner": 0.0, "num_conditions": 1}


# Signed ranks


def test_signed_ranks_are_scipys_and_holm_counts_the_policies():
    rng = np.random.default_rng(4)
    values = rng.lognormal(size=(4, 12)) * np.array([[1.0], [0.8], [1.0], [1.3]])
    rows = relative(measured({HERE: values}))

    p = [scipy.stats.wilcoxon(values[row], values[0]).pvalue for row in (1, 2, 3)]
    first, second, third = np.sort(p)
    expected = dict(
        zip(np.sort(p), np.maximum.accumulate([3 * first, 2 * second, third]), strict=True)
    )
    assert rows[0]["p_adjusted"] == 1.0  # the reference itself
    for row, each in zip(rows[1:], p, strict=True):
        assert row["p_adjusted"] == pytest.approx(min(1.0, expected[each]))


def test_windows_that_tie_have_the_normal_approximation_of_scipy():
    values = np.ones((2, 12))
    values[1] = [0.5, 0.5, 0.5, 1.0, 0.9, 0.9, 0.8, 1.0, 0.7, 1.2, 0.6, 0.4]
    row = relative(measured({HERE: values}))[1]

    expected = scipy.stats.wilcoxon(values[1], values[0], method="approx").pvalue
    assert row["p_adjusted"] == pytest.approx(expected)


def test_a_policy_that_is_the_reference_or_undefined_has_no_test():
    values = np.vstack([steady(1, 1, 2), np.full((1, 10), np.nan)])
    p = [row["p_adjusted"] for row in relative(measured({HERE: values}))]

    assert p[:2] == [1.0, 1.0]
    assert p[2] < 0.01
    assert np.isnan(p[3])

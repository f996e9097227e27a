"""Reversals: each class by a case made by hand, their evidence, and the tests beside them."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
from small_runs import MAIN, make_runs, steady

from queuesmith.study.conditions import measure_conditions
from queuesmith.study.grid import make_grid
from queuesmith.study.portability import LSSP, Options, analyze
from queuesmith.study.reversals import difference_intervals, find_reversals

QUICK = Options(draws=400, subset_draws=20)


def reversals(one, two, *, metric="ttft_mean", options=QUICK, **columns):
    """Classes and records between two sources with the given (policies, windows) values."""
    values = {metric: {("e", "knee", "one"): np.array(one), ("e", "knee", "two"): np.array(two)}}
    runs = make_runs(values, **columns)
    found = analyze(runs, None, replace(options, metrics=(metric,)))
    (row,) = (row for row in found["agreement"] if row["axis"] == "source")
    return row["reversals"], found["reversals"]


def only_class(counts):
    (name,) = (name for name, count in counts.items() if count and name != "sure")
    return name


def test_the_same_order_on_both_sides_is_stable():
    counts, records = reversals(steady(1, 2), steady(3, 4))

    assert only_class(counts) == "stable"
    assert records == []


def test_a_tie_on_one_side_is_stable():
    counts, _ = reversals(steady(1, 2), steady(3, 2.99))

    assert only_class(counts) == "stable"


def test_a_flip_within_ten_percent_on_one_side_is_microscopic():
    counts, records = reversals(steady(1, 2), steady(1.0, 0.91))  # 9 % of the loser's 1.0

    assert only_class(counts) == "microscopic"
    assert records == []


def test_a_flip_beyond_ten_percent_on_both_sides_that_is_sure_is_supported():
    counts, (record,) = reversals(steady(1, 2), steady(1.0, 0.89))

    assert only_class(counts) == "supported"
    assert (record["policy_a"], record["policy_b"]) == ("fcfs", "p1")
    assert record["in_a"]["margin"] == pytest.approx(0.5)
    assert record["in_b"]["margin"] == pytest.approx(0.11)
    assert record["in_a"]["difference"] == pytest.approx(-1.0)
    assert record["in_a"]["low"] <= record["in_a"]["difference"] <= record["in_a"]["high"] < 0
    assert record["in_b"]["low"] > 0
    assert (record["in_a"]["wins_a"], record["in_a"]["wins_b"]) == (10, 0)
    assert (record["in_b"]["wins_a"], record["in_b"]["wins_b"]) == (0, 10)


def test_a_flip_that_one_window_makes_is_unsupported():
    """fcfs wins nine windows of ten by a little and loses one by much: the mean flips, unsurely."""
    two = steady(1.0, 1.02)
    two[0, 3] = 9.0

    counts, (record,) = reversals(steady(1, 2), two)

    assert only_class(counts) == "unsupported"
    assert record["class"] == "unsupported"
    assert record["in_b"]["low"] <= 0 <= record["in_b"]["high"]
    assert record["in_b"]["wins_b"] == 1


def test_a_missing_value_is_undefined():
    two = steady(1.0, 0.5)
    two[1, 2] = np.nan

    assert only_class(reversals(steady(1, 2), two)[0]) == "undefined"


def test_where_more_is_better_the_loser_is_the_smaller_value():
    """0.9 over 0.8 is 12.5 % of the loser's value; of the winner's it would be 11.1 %."""
    counts, (record,) = reversals(steady(0.9, 0.8), steady(0.5, 0.6), metric="anwg", options=QUICK)

    assert only_class(counts) == "supported"
    assert record["policy_a"] == "fcfs"  # it has more of it in the first
    assert record["in_a"]["margin"] == pytest.approx(0.125)
    assert record["in_a"]["low"] > 0
    assert record["in_b"]["margin"] == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("winner", "floor", "expected"),
    [
        (0.03, 0.02, "supported"),
        (0.015, 0.02, "microscopic"),
        (0.03, None, "undefined"),
    ],
)
def test_a_share_whose_loser_is_zero_has_an_absolute_margin(winner, floor, expected):
    counts, _ = reversals(
        steady(0.0, winner),
        steady(0.9, 0.5),
        metric="anwg",
        options=replace(QUICK, reversal_floor=floor),
    )

    assert only_class(counts) == expected


def test_a_loser_of_zero_that_is_no_share_is_undefined():
    counts, _ = reversals(steady(0.0, 0.0), steady(2, 1), metric="num_preemptions", options=QUICK)

    assert only_class(counts) == "undefined"


def test_lssp_takes_what_differs_at_all_as_a_flip():
    """Half a percent is a tie by our rules, a microscopic change of sign by LSSP's."""
    one, two = steady(0.5, 0.502), steady(0.9, 0.8)
    rules = replace(LSSP, reference="fcfs")

    assert only_class(reversals(one, two, metric="anwg", options=QUICK)[0]) == "stable"
    assert only_class(reversals(one, two, metric="anwg", options=rules)[0]) == "microscopic"
    assert only_class(reversals(steady(0.5, 0.5), two, metric="anwg", options=rules)[0]) == "stable"


def test_p_is_the_larger_of_two_sign_tests():
    """9 of 10 windows on one side, 10 of 10 on the other; ties are left out."""
    one, two = steady(1.0, 2.0), steady(2.0, 1.0)
    one[0, 0] = 2.5
    two[0, 4] = 1.005
    _, (record,) = reversals(one, two)

    expected = scipy.stats.binomtest(9, 10).pvalue
    assert record["in_b"]["wins_a"] == 0
    assert record["in_b"]["wins_b"] == 9
    assert record["p"] == pytest.approx(expected)


def test_a_pair_that_does_not_flip_is_no_small_p():
    """Else a family full of stable pairs would make a doubtful flip look sure."""
    one = steady(*range(1, 9), 20, 30)
    two = steady(*range(1, 9), 30, 20)
    one[8, 0] = 40
    _, records = reversals(one, two)

    (record,) = (r for r in records if {r["policy_a"], r["policy_b"]} == {"p8", "p9"})
    # 45 pairs, one flip: Benjamini-Hochberg with 44 others at 1.
    assert record["p_adjusted"] == pytest.approx(min(1.0, 45 * record["p"]))


def test_draws_of_a_difference_are_paired_by_window():
    """Windows differ by far more than policies do; the difference does not."""
    one = steady(1.0, 1.2, spread=2.0)
    two = steady(1.2, 1.0, spread=2.0, seed=1)

    counts, (record,) = reversals(one, two)

    assert only_class(counts) == "supported"
    ratio = record["in_a"]["difference"] / record["in_a"]["value_a"]
    assert ratio == pytest.approx(-0.2)


def test_intervals_of_differences_are_percentiles_of_resampled_means():
    rng = np.random.default_rng(5)
    values = {("e", "knee", "one"): rng.lognormal(size=(3, 12))}
    options = replace(QUICK, draws=2000)
    grid = make_grid(make_runs(values), None, metrics=("ttft_mean",), prediction=MAIN)
    conditions = measure_conditions(grid, options)

    low, high = difference_intervals(conditions, np.array([[0, 0, 1]]))  # fcfs less p2

    gap = values["e", "knee", "one"][0] - values["e", "knee", "one"][2]
    draws = conditions.weights[0] @ gap / 12
    assert (low[0], high[0]) == pytest.approx(np.quantile(draws, [0.025, 0.975]))
    theory = scipy.stats.bootstrap((gap,), np.mean, method="percentile", rng=1)
    assert low[0] == pytest.approx(theory.confidence_interval.low, abs=0.1)
    assert high[0] == pytest.approx(theory.confidence_interval.high, abs=0.1)


def test_loads_and_engines_flip_too():
    cells = {
        ("a100", "knee", "one"): steady(1, 2),
        ("a100", "heavy", "one"): steady(2, 1),
        ("h100", "knee", "one"): steady(2, 1),
        ("h100", "heavy", "one"): steady(2, 1),
    }
    found = analyze(make_runs(cells), None, QUICK)

    where = {(r["axis"], r["a"], r["b"], r["engine"], r["load"]) for r in found["reversals"]}
    assert where == {
        ("engine", "a100", "h100", None, "knee"),
        ("load", "knee", "heavy", "a100", None),
    }
    totals = {row["axis"]: row["supported"] for row in found["reversal_counts"]}
    assert totals == {"engine": 1, "load": 1}


def quarters(values, shares, letter):
    """Columns of the mean TTFT of quarters that add up to the mean's difference, by shares."""
    columns = {}
    for quarter, share in enumerate(shares, start=1):
        columns[f"ttft_mean_{letter}{quarter}"] = {
            key: cell.mean(axis=0) + 4 * share * (cell - cell.mean(axis=0))
            for key, cell in values.items()
        }
    return columns


def test_the_requests_that_drive_a_reversal_are_named():
    values = {("e", "knee", "one"): steady(1, 2), ("e", "knee", "two"): steady(2, 1)}
    columns = quarters(values, (0.1, 0.1, 0.1, 0.7), "q")
    columns |= quarters(values, (0.4, 0.3, 0.2, 0.1), "o")

    (record,) = analyze(make_runs(values, **columns), None, QUICK)["reversals"]

    by_prompt, by_output = record["drivers"]["prompt_len"], record["drivers"]["output_len"]
    assert by_prompt["in_a"] == pytest.approx([0.1, 0.1, 0.1, 0.7])
    assert (by_prompt["largest"], by_output["largest"]) == (4, 1)
    assert by_prompt["share"] == pytest.approx(0.7)


def test_drivers_are_not_told_where_the_mean_does_not_flip():
    """A p99 that flips while quarters of the mean do not is not explained by them."""
    tail = {("e", "knee", "one"): steady(1, 2), ("e", "knee", "two"): steady(2, 1)}
    mean = {key: steady(1, 2) for key in tail}
    columns = quarters(mean, (0.25, 0.25, 0.25, 0.25), "q")
    columns |= quarters(mean, (0.25, 0.25, 0.25, 0.25), "o")

    found = analyze(make_runs({"ttft_p99": tail}, **columns), None, QUICK)

    (record,) = found["reversals"]
    assert record["drivers"] is None


def test_counts_add_up_to_all_pairs_of_policies():
    rng = np.random.default_rng(2)
    cells = {("e", load, s): rng.lognormal(size=(5, 9)) for load in "ab" for s in ("one", "two")}
    cells["e", "a", "one"][2, 2] = np.nan
    grid = make_grid(make_runs(cells), None, metrics=("ttft_mean",), prediction=MAIN)

    records, counts = find_reversals(measure_conditions(grid, QUICK))

    for count in counts.values():
        assert sum(n for name, n in count.items() if name != "sure") == 10
        assert count["sure"] <= count["supported"]
    told = sum(count["supported"] + count["unsupported"] for count in counts.values())
    assert told == len(records)


def test_a_flip_is_sure_only_after_correction_for_all_pairs():
    """Six windows of six are p = 0.03: enough alone, not beside 44 pairs that do not flip."""
    few, many = steady(1, 2, num_windows=6), steady(1, 2, *[5] * 8, num_windows=6)
    for cell, sure in ((few, True), (many, False)):
        swapped = cell.copy()
        swapped[:2] = cell[1::-1]
        found = analyze(
            make_runs({("e", "knee", "one"): cell, ("e", "knee", "two"): swapped}), None, QUICK
        )
        flip = next(
            row
            for row in found["reversals"]
            if {row["policy_a"], row["policy_b"]} == {"fcfs", "p1"}
        )
        assert (flip["class"], flip["sure"]) == ("supported", sure)
        counts = found["reversal_counts"][0]
        assert counts["sure"] == sum(row["sure"] for row in found["reversals"])
        assert (counts["sure"] < counts["supported"]) == (not sure)

"""Time, deadlines, predictions, and who is in the study."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from small_runs import MAIN, make_runs, steady
from synthetic import H100, synthetic_study

from queuesmith.study.portability import Options, analyze

QUICK = Options(draws=300, subset_draws=20)


@pytest.fixture(scope="module")
def analysis():
    study = synthetic_study()
    return analyze(study.runs, study.windows, QUICK)


def only(table, **wanted):
    (row,) = (row for row in table if all(row[name] == value for name, value in wanted.items()))
    return row


# Time


def test_an_order_that_changes_with_time_is_found():
    """Thirds of 4 windows; p1 and fcfs swap in the last."""
    values = steady(1, 2, 3, num_windows=12)
    values[:, 8:] = np.outer([2, 1, 3], np.ones(4))
    found = analyze(make_runs({("e", "knee", "one"): values}), None, QUICK)["temporal"]

    early = only(found, a="early", b="middle")
    late = only(found, a="early", b="late")
    assert (early["tau_b"], late["tau_b"]) == (1.0, pytest.approx(1 / 3))
    assert late["top_1"] == 0.0
    assert late["tau_b_random"] > 0.8
    assert late["p"] < 0.1 < early["p"]
    assert late["num_windows"] == 4
    assert late["hint"]


def test_a_low_tau_b_that_any_split_would_give_is_no_drift():
    rng = np.random.default_rng(0)
    low = []
    for seed in range(20):
        noise = rng.lognormal(size=(4, 24))
        runs = make_runs({("e", "knee", "one"): noise})
        rows = analyze(runs, None, replace(QUICK, draws=10, seed=seed))["temporal"]
        low += [row["p"] < 0.05 for row in rows]

    assert np.mean(low) < 0.15


def test_without_real_windows_in_order_of_time_there_are_no_thirds(analysis):
    modelled = make_runs({("e", "knee", "one"): steady(1, 2)}, kind="modelled")
    few = make_runs({("e", "knee", "one"): steady(1, 2, num_windows=5)})

    assert analyze(modelled, None, QUICK)["temporal"] == []
    assert analyze(few, None, QUICK)["temporal"] == []
    assert {row["source"] for row in analysis["temporal"]} == {"chat", "chat_too", "code"}


# Deadlines


def test_other_deadlines_can_change_the_order():
    anwg = {("e", "knee", "one"): steady(0.9, 0.5, 0.3)}
    strict = {("e", "knee", "one"): steady(0.1, 0.2, 0.05)}
    runs = make_runs({"anwg": anwg, "anwg_slack_0.5": strict, "anwg_slack_2": anwg})
    nothing = pa.array([float("nan")] * len(runs))
    found = analyze(runs.append_column("anwg_slack_4", nothing), None, QUICK)["slo_sensitivity"]

    assert only(found, b="anwg_slack_0.5")["tau_b"] == pytest.approx(1 / 3)
    assert only(found, b="anwg_slack_2")["tau_b"] == 1.0
    assert len(found) == 2
    assert analyze(make_runs({"anwg": anwg}), None, QUICK)["slo_sensitivity"] == []


# Predictions


def test_what_policies_are_told_changes_those_that_listen(analysis):
    effects = analysis["prediction_sensitivity"]["effect"]
    where = {"engine": H100, "load": "heavy", "source": "chat", "metric": "ttft_mean"}
    listens = only(effects, prediction="exact", policy="spjf", **where)
    deaf = only(effects, prediction="exact", policy="fcfs", **where)

    assert listens["ratio"] == pytest.approx(np.exp(-0.1), abs=0.02)
    assert listens["low"] <= listens["ratio"] <= listens["high"] < 1
    assert deaf["ratio"] == pytest.approx(1.0, abs=0.03)


def test_orders_are_compared_with_those_under_the_studys_own_prediction(analysis):
    rows = analysis["prediction_sensitivity"]["agreement"]

    assert {row["axis"] for row in rows} == {"prediction"}
    assert {row["a"] for row in rows} == {MAIN}
    assert {row["b"] for row in rows} == {"none", "exact"}
    assert {row["engine"] for row in rows} == {H100}
    row = only(rows, b="exact", load="heavy", source="code", metric="ttft_mean")
    assert row["tau_b"] == 1.0


def test_only_policies_run_with_both_predictions_are_compared():
    main = make_runs({("e", "knee", "one"): steady(1, 2, 3)})
    exact = make_runs({("e", "knee", "one"): steady(2, 1)}, prediction="exact")
    options = replace(QUICK, prediction=MAIN)

    (row,) = analyze(pa.concat_tables([main, exact]), None, options)["prediction_sensitivity"][
        "agreement"
    ]

    assert (row["tau_b"], row["num_policies"], row["undefined_pairs"]) == (-1.0, 2, 0)


def test_the_studys_own_prediction_is_that_of_most_runs():
    main = make_runs({("e", "knee", "one"): steady(1, 2, 3)})
    exact = make_runs({("e", "knee", "one"): steady(2, 1)}, prediction="exact")

    found = analyze(pa.concat_tables([exact, main]), None, QUICK)

    assert found["options"]["prediction"] == MAIN
    assert found["policies"] == ["fcfs", "p1", "p2"]


# Who is in the study


def test_the_winner_elsewhere_may_lose_here_and_cost():
    cells = {
        ("e", "knee", "one"): steady(1.0, 0.5, 0.7),
        ("e", "knee", "two"): steady(1.0, 0.5, 0.7),
        ("e", "knee", "odd"): steady(1.0, 2.0, 0.8),
    }
    found = analyze(make_runs(cells), None, QUICK)["leave_one_source_out"]

    odd = only(found, source="odd")
    assert (odd["winner"], odd["holds"]) == ("p1", False)
    assert odd["regret"] == pytest.approx(1.5)  # 2.0 to the best, 0.8
    assert odd["regret_reference"] == pytest.approx(0.25)
    assert odd["ratio"] == pytest.approx(2.0)
    one = only(found, source="one")
    assert (one["winner"], one["regret"], one["holds"]) == ("p2", pytest.approx(0.4), False)


def test_a_winner_that_ties_with_the_best_here_holds():
    cells = {
        ("e", "knee", "one"): steady(1.0, 0.5),
        ("e", "knee", "two"): steady(1.0, 1.005),
    }
    found = analyze(make_runs(cells), None, QUICK)["leave_one_source_out"]

    row = only(found, source="two")
    assert (row["winner"], row["holds"], row["regret"]) == ("p1", True, 0.0)


def test_where_more_is_better_a_regret_is_what_is_missing():
    cells = {
        ("e", "knee", "one"): steady(100.0, 200.0),
        ("e", "knee", "two"): steady(100.0, 75.0),
    }
    found = analyze(make_runs({"output_throughput": cells}), None, QUICK)["leave_one_source_out"]

    row = only(found, source="two")
    assert (row["winner"], row["regret"]) == ("p1", pytest.approx(0.25))
    assert row["ratio"] == pytest.approx(0.75)

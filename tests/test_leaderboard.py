"""The leaderboard, from evaluations whose outcome is known by construction."""

from math import log

import numpy as np
import pytest

from constructed import FCFS, HEAVY, KNEE, make_evaluation, make_policy, stand
from queuesmith.leaderboard import judge, leaderboard, load_rows
from queuesmith.metrics import METRICS

HALF = {"knee": FCFS / 2}
SAME = {"knee": FCFS}


def one_in_a_hundred_waits(seconds):
    """Everybody waits half as long but one request of each window."""
    times = FCFS / 2
    times[:, 0] = seconds
    return times


def board(ttft, **options):
    standings, _ = stand(ttft, **options)
    return {row["policy"]: row for row in leaderboard(standings)}


def test_fcfs_scores_exactly_nothing_and_is_at_least_the_reference():
    row = board({"fcfs": SAME, "fast": HALF})["fcfs"]

    assert (row["score"], row["score_low"], row["score_high"]) == (0.0, 0.0, 0.0)
    assert (row["wins"], row["ties"], row["losses"]) == (0, 8, 0)
    assert row["tail_reasons"] == []


def test_the_best_score_comes_first():
    rows = board({"fcfs": SAME, "slow": {"knee": FCFS * 1.5}, "fast": HALF})

    assert list(rows) == ["fast", "fcfs", "slow"]
    assert [row["rank"] for row in rows.values()] == [1, 2, 3]
    assert rows["fast"]["score"] == pytest.approx(log(2) / 2)
    assert (rows["fast"]["wins"], rows["slow"]["losses"]) == (8, 8)


def test_equal_scores_share_a_rank_and_the_next_rank_is_left_out():
    rows = board({"fcfs": SAME, "b": HALF, "a": HALF, "twin": SAME})

    assert {name: row["rank"] for name, row in rows.items()} == {
        "a": 1,
        "b": 1,
        "fcfs": 3,
        "twin": 3,
    }
    assert list(rows) == ["a", "b", "fcfs", "twin"]


def test_scores_add_up_over_loads_and_windows_are_counted_at_each():
    loads = (KNEE, HEAVY)
    ttft = {
        "fcfs": {"knee": FCFS, "heavy": FCFS * 10},
        "fast": {"knee": FCFS / 2, "heavy": FCFS * 5},
    }

    rows = board(ttft, loads=loads)

    assert rows["fast"]["score"] == pytest.approx(log(2))
    assert (rows["fast"]["wins"], rows["fcfs"]["ties"]) == (16, 16)


def test_the_kind_tells_bundles_and_oracles_from_policies():
    bundle = make_policy("bundle", "ENGINE = {'max_num_seqs': 8}")
    oracle = make_policy("oracle", "ORACLE = True")

    rows = board(dict.fromkeys(("fcfs", "bundle", "oracle"), SAME), policies=[bundle, oracle])

    assert {name: row["kind"] for name, row in rows.items()} == {
        "fcfs": "policy",
        "bundle": "bundle",
        "oracle": "oracle",
    }


def test_a_tail_is_violated_at_the_load_where_somebody_starves():
    times = one_in_a_hundred_waits(100.0)
    ttft = {
        "fcfs": {"knee": FCFS, "heavy": FCFS},
        "starving": {"knee": times, "heavy": FCFS / 2},
    }

    row = board(ttft, loads=(KNEE, HEAVY))["starving"]

    assert row["tail_violations"] == 1
    assert row["tail_reasons"][0].startswith("knee: ")


def test_a_policy_that_never_answers_somebody_is_last():
    never = FCFS / 2
    never[3, 5] = np.nan

    rows = board({"fcfs": SAME, "never": {"knee": never}, "slow": {"knee": FCFS * 3}})

    assert list(rows) == ["fcfs", "slow", "never"]
    assert rows["never"]["score"] == -np.inf


def test_changes_are_below_zero_where_waits_are_shorter_and_lie_within_their_interval():
    fast = FCFS * np.linspace(0.4, 0.8, 8)[:, None]

    _, rows = stand({"fcfs": SAME, "fast": {"knee": fast}})

    row = next(row for row in rows if row["policy"] == "fast")
    assert row["mean_change"] == pytest.approx(fast.mean() / FCFS.mean() - 1)
    for name in ("mean_change", "p99_change"):
        assert -1 < row[f"{name}_low"] < row[name] < row[f"{name}_high"] < 0
    assert (row["wins"], row["ties"], row["losses"]) == (8, 0, 0)
    assert row["p_value"] == pytest.approx(2 / 2**8)


def test_fcfs_changes_nothing_and_not_by_minus_zero():
    _, rows = stand({"fcfs": SAME})

    changes = [value for name, value in rows[0].items() if "_change" in name]
    assert [str(value) for value in changes] == ["0.0"] * 6


def test_ttft_is_pooled_counts_add_up_and_other_metrics_are_averaged():
    """Five requests waited 1, 1, 1, 25 and 2 s, the last in a window of its own."""
    times = [[1.0, 1.0, 1.0, 25.0], [2.0]]
    evaluation = make_evaluation({"fcfs": {"knee": times}}, [KNEE])
    cells = evaluation.cells
    for name, values in {"num_preemptions": [3, 4], "tpot_mean": [0.1, 0.3]}.items():
        cells = cells.set_column(cells.column_names.index(name), name, [values])
    object.__setattr__(evaluation, "cells", cells)
    standings = judge([make_policy("fcfs")], [KNEE], evaluation, "traffic.csv", seed=0)

    (row,) = load_rows(standings, [KNEE], evaluation)

    assert row["ttft_mean"] == pytest.approx(6.0)
    assert (row["ttft_p50"], row["ttft_max"]) == (1.0, 25.0)
    assert row["num_preemptions"] == 7
    assert row["tpot_mean"] == pytest.approx(0.2)


def test_a_window_without_a_value_leaves_the_mean_without_one():
    evaluation = make_evaluation({"fcfs": SAME}, [KNEE])
    values = [[1.0] * 7 + [np.nan]]
    cells = evaluation.cells
    cells = cells.set_column(cells.column_names.index("goodput"), "goodput", values)
    object.__setattr__(evaluation, "cells", cells)
    standings = judge([make_policy("fcfs")], [KNEE], evaluation, "traffic.csv", seed=0)

    (row,) = load_rows(standings, [KNEE], evaluation)

    assert np.isnan(row["goodput"])


def test_there_is_a_row_for_every_policy_at_every_load_with_every_metric():
    ttft = {name: {"knee": FCFS, "heavy": FCFS} for name in ("fcfs", "a", "b")}

    _, rows = stand(ttft, loads=(KNEE, HEAVY))

    assert len(rows) == 6
    assert {(row["load"], row["rho"]) for row in rows} == {("knee", 0.95), ("heavy", 1.5)}
    assert all(set(METRICS) < set(row) for row in rows)


def test_one_window_has_no_interval_and_no_test():
    standings, rows = stand({"fcfs": {"knee": FCFS[:1]}, "fast": {"knee": FCFS[:1] / 2}})

    assert standings[0].policy.name == "fast"
    assert np.isnan([standings[0].score.low, standings[0].score.high]).all()
    assert all(np.isnan([row["mean_change_low"], row["p_value"]]).all() for row in rows)

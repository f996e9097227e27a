"""The answer, from standings whose outcome is known by construction."""

from dataclasses import replace

import numpy as np
import pytest

from constructed import FCFS, HEAVY, KNEE, OWN, make_evaluation, make_policy, make_samples, stand
from queuesmith.comparison.answer import answer
from queuesmith.comparison.caveats import caveats
from queuesmith.comparison.rows import leaderboard, load_rows
from queuesmith.config import EngineConfig
from queuesmith.evaluation.goals import GOALS
from queuesmith.metrics import METRICS
from queuesmith.traces import Origin, Trace
from queuesmith.traces.block_hashes import BlockHashes

BASE = make_samples(FCFS)
SAME = {"knee": BASE}
HALF = {"knee": make_samples(FCFS / 2)}
REAL = Trace([0.0, 1.0], [10, 10], [5, 5], client=[0, 1])
MODELLED = REAL.with_origin(kind="modelled")


def fast(factor):
    return make_samples(FCFS * factor)


def starving():
    """A tenth of the wait for all but one request in a hundred."""
    times = FCFS * 0.1
    times[:, :2] = 30.0
    return make_samples(times)


def ask(samples, trace=REAL, step=0.01, goal="ttft", chosen=None, **options):
    standings, evaluation = stand(samples, goal=goal, **options)
    rows = load_rows(standings, evaluation)
    return answer(standings, rows, evaluation, trace, GOALS[goal], step, chosen or {})


def text(found):
    return " ".join(found.sentences)


def test_the_best_policy_is_named_with_its_gain_and_load():
    found = ask({"fcfs": SAME, "fast": HALF, "faster": {"knee": fast(0.25)}})

    assert found.policy == "faster"
    assert found.sentences[0].startswith("Run faster: mean TTFT -75 %")
    assert found.loads == ("knee",)
    assert found.by_load == {"knee": "faster"}


def test_capacity_own_rate_and_loads_come_first():
    found = ask({"fcfs": SAME, "fast": HALF})

    assert "carries 10.0 requests/s" in found.traffic
    assert "own rate is 2.00 requests/s (rho 0.20; 20 prompt and 10 output" in found.traffic
    assert "knee (rho 0.95, 9.50/s)" in found.traffic


def test_fcfs_stays_when_everything_else_is_worse():
    found = ask({"fcfs": SAME, "slow": {"knee": fast(2)}})

    assert (found.policy, found.by_load, found.loads) == ("fcfs", {"knee": None}, ())
    assert found.sentences[0].startswith("Stay with fcfs")
    assert "slow" not in text(found)


def test_what_happens_at_the_traces_own_rate_is_said_first():
    samples = {
        "fcfs": {"own": BASE, "knee": BASE},
        "fast": {"own": BASE, "knee": fast(0.5)},
    }

    found = ask(samples, loads=(OWN, KNEE))

    assert found.sentences[0].startswith("At the trace's own rate no order is surely better")
    assert "At knee run fast" in found.sentences[0]
    assert found.loads == ("knee",)


@pytest.mark.parametrize("name", ["bundle", "oracle"])
def test_bundles_and_oracles_are_never_recommended_but_explained(name):
    special = {
        "bundle": make_policy("bundle", "ENGINE = {'max_num_seqs': 8}"),
        "oracle": make_policy("oracle", "ORACLE = True"),
    }[name]

    found = ask({"fcfs": SAME, "fast": HALF, name: {"knee": fast(0.1)}}, policies=[special])

    assert found.policy == "fast"
    assert found.by_load == {"knee": "fast"}
    assert f"{name} has more gain" in text(found)
    assert {"bundle": "own engine settings", "oracle": "exact output lengths"}[name] in text(found)


def test_a_broken_guard_keeps_a_larger_gain_from_being_recommended_and_is_named():
    found = ask({"fcfs": SAME, "fast": {"knee": fast(0.9)}, "starving": {"knee": starving()}})

    assert found.policy == "fast"
    assert "starving has more gain" in text(found)
    assert "but breaks guards: " in text(found)
    assert "p99 TTFT" in text(found)


def test_a_broken_guard_at_one_load_does_not_forbid_the_policy_at_another_alone():
    samples = {
        "fcfs": {"knee": BASE, "heavy": BASE},
        "risky": {"knee": fast(0.25), "heavy": starving()},
    }

    found = ask(samples, loads=(KNEE, HEAVY))

    assert found.policy == "fcfs"
    assert found.by_load == {"knee": "risky", "heavy": None}
    assert "If you only run at knee, risky:" in text(found)


def test_a_gain_within_its_uncertainty_is_not_recommended():
    lucky = FCFS * 1.02
    lucky[5] = FCFS[5] / 6

    found = ask({"fcfs": SAME, "lucky": {"knee": make_samples(lucky)}})

    assert (found.policy, found.by_load) == ("fcfs", {"knee": None})
    assert "lucky has more gain" in text(found)
    assert "its guards hold in only" in text(found)


@pytest.mark.parametrize(("factor", "policy"), [(0.995, "fcfs"), (0.98, "faster")])
def test_a_sure_gain_of_no_more_than_a_tie_is_not_worth_a_change(factor, policy):
    assert ask({"fcfs": SAME, "faster": {"knee": fast(factor)}}).policy == policy


def test_policies_as_good_as_the_best_are_named():
    found = ask({"fcfs": SAME, "a": {"knee": fast(0.5)}, "b": {"knee": fast(0.501)}})

    assert (found.policy, found.tied) == ("a", ("b",))
    assert "(b would do as well)" in found.sentences[0]


def test_fcfs_would_do_as_well_where_the_gain_over_all_loads_is_a_tie():
    samples = {
        "fcfs": {"knee": BASE, "heavy": BASE},
        "barely": {"knee": fast(0.985), "heavy": BASE},
        "fast": {"knee": fast(0.5), "heavy": BASE},
    }

    found = ask({name: samples[name] for name in ("fcfs", "barely")}, loads=(KNEE, HEAVY))
    assert (found.policy, found.tied) == ("barely", ("fcfs",))
    found = ask({name: samples[name] for name in ("fcfs", "fast")}, loads=(KNEE, HEAVY))
    assert (found.policy, found.tied) == ("fast", ())


@pytest.mark.parametrize(("rival", "answer"), [(0.5, "fast"), (1.5, "fcfs"), (0.1, "fast")])
def test_what_gains_as_much_and_comes_close_to_a_guard_is_undecided(rival, answer):
    times = FCFS * 0.3
    times[:5, :2] = 1.5 * np.sort(FCFS[:5], axis=1)[:, -2:]  # in 5 of 8 windows
    close = {"knee": make_samples(times)}

    found = ask({"fcfs": SAME, "fast": {"knee": fast(rival)}, "close": close})

    assert found.policy == answer
    assert found.undecided == (() if rival == 0.1 else ("close",))
    assert ("Undecided: close (" in text(found)) == (rival != 0.1)


def test_every_goal_has_its_winner_at_the_end():
    decoding = replace(BASE, tpot=BASE.tpot / 2)

    found = ask({"fcfs": SAME, "fast": HALF, "decoding": {"knee": decoding}})

    assert {one.goal: one.policy for one in found.goals} == {
        "ttft": "fast",
        "e2el": "fast",
        "slo": "fast",
        "goodput": "fast",
        "tpot": "decoding",
    }
    assert found.sentences[-1] == (
        "By goal: fast for ttft, e2el, slo and goodput; decoding for tpot."
    )


def test_a_goal_that_is_undefined_has_no_winner():
    samples = {"fcfs": {"knee": replace(BASE, met=None)}, "fast": {"knee": fast(0.5)}}
    samples["fast"]["knee"] = replace(samples["fast"]["knee"], met=None)

    assert {one.goal for one in ask(samples).goals} == {"ttft", "e2el", "tpot"}


def test_where_fcfs_misses_its_slo_is_told():
    assert "fcfs already misses its SLO at knee (" in text(ask({"fcfs": SAME, "fast": HALF}))


def test_a_load_at_which_nothing_queues_is_called_idle():
    samples = {"fcfs": SAME, "fast": HALF}

    assert "At knee fcfs queues for less than one step" in text(ask(samples, step=1.01))
    assert "less than one step" not in text(ask(samples, step=0.99))


def test_modelled_traffic_is_to_be_confirmed_and_real_traffic_is_not():
    samples = {"fcfs": SAME, "fast": HALF}

    assert "modelled: confirm this" in text(ask(samples, MODELLED))
    assert "modelled" not in text(ask(samples, REAL))


def test_one_window_recommends_nothing():
    found = ask(
        {"fcfs": {"knee": make_samples(FCFS[:1])}, "fast": {"knee": make_samples(FCFS[:1] / 9)}}
    )

    assert (found.policy, found.by_load) == ("fcfs", {"knee": None})
    assert "nan" not in text(found)


def test_how_a_parameter_was_chosen_is_told():
    found = ask({"fcfs": SAME, "fast": HALF}, chosen={"fast": "A chosen from 1, 2"})

    assert "fast: A chosen from 1, 2." in found.sentences


# Rows


def test_the_leaderboard_has_two_blocks():
    standings, _ = stand(
        {"fcfs": SAME, "fast": HALF, "twin": HALF, "starving": {"knee": starving()}}
    )

    rows = leaderboard(standings, GOALS["ttft"], {})

    assert [(row.rank, row.policy) for row in rows] == [
        (1, "fast"),
        (1, "twin"),
        (3, "fcfs"),
        (None, "starving"),
    ]
    assert [row.eligible for row in rows] == [True, True, True, False]
    assert rows[3].broken


def test_a_row_has_every_metric_pooled_over_windows():
    """Five requests waited 1, 1, 1, 25 and 2 s, the last in a window of its own."""
    samples = {"fcfs": {"knee": make_samples([[1.0, 1.0, 1.0, 25.0], [2.0]])}}
    standings, evaluation = stand(samples)

    (row,) = load_rows(standings, evaluation)

    assert set(row.metrics) == set(METRICS)
    assert row.metrics["ttft_mean"] == pytest.approx(6.0)
    assert (row.metrics["ttft_p50"], row.metrics["ttft_max"]) == (1.0, 25.0)
    assert row.metrics["num_preemptions"] == 2.0  # one in the cells of each window
    assert row.metrics["jain"] == 1.0
    assert (row.load, row.rho, row.rate) == ("knee", 0.95, 9.5)


def test_changes_are_below_zero_where_waits_are_shorter_and_lie_within_their_interval():
    uneven = FCFS * np.linspace(0.4, 0.8, 8)[:, None]
    standings, evaluation = stand({"fcfs": SAME, "fast": {"knee": make_samples(uneven)}})

    row = next(row for row in load_rows(standings, evaluation) if row.policy == "fast")

    for name in ("ttft_mean", "ttft_p99", "e2el_mean"):
        change = row.changes[name]
        assert -1 < change.low < change.change < change.high < 0


def warn(trace=REAL, policies=(), num_windows=8, asked=8, window_len=1000, **options):
    evaluation = replace(make_evaluation({"fcfs": SAME}, [KNEE]), **options)
    return caveats(policies, EngineConfig(), trace, evaluation, num_windows, asked, window_len)


def test_a_trace_with_shared_prefixes_asks_for_prefix_caching():
    shared = Trace([0.0], [32], [1], block_hashes=BlockHashes([0, 2], [5, 6], 16))

    assert "prefix caching is off" in " ".join(warn(shared))


def test_eight_windows_of_a_thousand_requests_need_no_warning():
    assert warn() == []


@pytest.mark.parametrize(
    ("num_windows", "message"),
    [
        (1, "there is no interval and nothing can be recommended"),
        (2, "sign tests need 8"),
        (7, "sign tests need 8"),
    ],
)
def test_fewer_than_eight_windows_are_warned_of(num_windows, message):
    (warning,) = warn(num_windows=num_windows)

    assert warning.startswith(f"only {num_windows} window")
    assert message in warning


def test_fewer_windows_than_asked_for_are_told():
    (warning,) = warn(num_windows=9, asked=20)

    assert "room for 9 windows of 1000 requests, not the 20" in warning


def test_windows_too_short_for_a_tail_are_warned_of():
    (warning,) = warn(window_len=250)

    assert "windows of 250 requests hold 2.5 beyond their p99" in warning


def test_requests_left_out_and_outputs_cut_are_counted():
    dropped, truncated = warn(num_dropped=3, num_truncated=4)

    assert dropped.startswith("3 requests can never run")
    assert truncated.startswith("4 outputs were cut")


def test_missing_clients_matter_to_policies_that_are_fair_to_them():
    source = ("def admit(request, engine):", "    return request.client_tokens < 9.0")
    fair = make_policy("fair", *source)
    trace = Trace([0.0], [1], [1], origin=Origin())

    assert warn(trace, [make_policy("fcfs")]) == []
    (warning,) = warn(trace, [make_policy("fcfs"), fair])
    assert "names no clients" in warning
    assert "fair" in warning
    assert warn(REAL, [fair]) == []

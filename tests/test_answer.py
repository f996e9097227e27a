"""The answer, from standings whose outcome is known by construction."""

import numpy as np
import pytest

from constructed import FCFS, HEAVY, KNEE, LIGHT, make_evaluation, make_policy, stand
from queuesmith.answer import answer, warnings
from queuesmith.config import EngineConfig
from queuesmith.traces import Origin, Trace
from queuesmith.traces.block_hashes import BlockHashes

HALF = {"knee": FCFS / 2}
SAME = {"knee": FCFS}
REAL = Trace([0.0, 1.0], [10, 10], [5, 5], client=[0, 1])
MODELLED = REAL.with_origin(kind="modelled")


def ask(ttft, trace=REAL, step=0.01, **options):
    standings, rows = stand(ttft, **options)
    return answer(standings, rows, trace, step)


def text(found):
    return " ".join(found["sentences"])


def test_the_best_policy_is_named_with_its_gain():
    found = ask({"fcfs": SAME, "fast": HALF, "faster": {"knee": FCFS / 4}})

    assert found["policy"] == "faster"
    assert found["sentences"][0].startswith("Run faster: ")
    assert "-75 %" in text(found)
    assert found["by_load"] == {"knee": "faster"}


def test_fcfs_stays_when_everything_else_is_worse():
    found = ask({"fcfs": SAME, "slow": {"knee": FCFS * 2}})

    assert found["policy"] == "fcfs"
    assert found["sentences"][0].startswith("Stay with fcfs")
    assert "slow" not in text(found)
    assert found["by_load"] == {"knee": None}


@pytest.mark.parametrize("name", ["bundle", "oracle"])
def test_bundles_and_oracles_are_never_recommended_but_explained(name):
    special = {
        "bundle": make_policy("bundle", "ENGINE = {'max_num_seqs': 8}"),
        "oracle": make_policy("oracle", "ORACLE = True"),
    }[name]

    found = ask({"fcfs": SAME, "fast": HALF, name: {"knee": FCFS / 9}}, policies=[special])

    assert found["policy"] == "fast"
    assert found["by_load"] == {"knee": "fast"}
    assert f"{name} scores more" in text(found)
    assert {"bundle": "own engine settings", "oracle": "exact output lengths"}[name] in text(found)


def test_a_violated_tail_keeps_a_better_score_from_being_recommended():
    starving = FCFS / 9
    starving[3, :2] = FCFS.max() * 1.5 + 2

    found = ask({"fcfs": SAME, "fast": {"knee": FCFS * 0.9}, "starving": {"knee": starving}})

    assert found["policy"] == "fast"
    assert found["by_load"] == {"knee": "fast"}
    assert "starving scores more" in text(found)
    assert "makes the unluckiest wait too long (knee: " in text(found)


def test_a_violation_at_one_load_forbids_the_policy_for_all_but_not_at_the_others():
    starving = FCFS / 2
    starving[3, :2] = FCFS.max() * 1.5 + 2
    ttft = {
        "fcfs": {"knee": FCFS, "heavy": FCFS},
        "risky": {"knee": FCFS / 4, "heavy": starving},
    }

    found = ask(ttft, loads=(KNEE, HEAVY))

    assert found["policy"] == "fcfs"
    assert found["by_load"] == {"knee": "risky", "heavy": None}
    assert "If you only run at knee load (rho 0.95), risky:" in text(found)


def test_a_gain_within_its_uncertainty_is_not_recommended():
    lucky = FCFS * 1.02
    lucky[5] = FCFS[5] / 6

    found = ask({"fcfs": SAME, "lucky": {"knee": lucky}})

    assert found["policy"] == "fcfs"
    assert found["by_load"] == {"knee": None}
    assert "lucky scores more" in text(found)
    assert "not beyond its uncertainty" in text(found)


def test_a_sure_gain_at_one_load_does_not_make_up_for_doubt_at_another():
    uneven = FCFS * np.array([0.85, 1.15] * 4)[:, None]
    ttft = {
        "fcfs": {"knee": FCFS, "heavy": FCFS},
        "mixed": {"knee": FCFS * 0.97, "heavy": uneven},
    }

    found = ask(ttft, loads=(KNEE, HEAVY))

    assert found["policy"] == "fcfs"
    assert found["by_load"] == {"knee": "mixed", "heavy": None}


@pytest.mark.parametrize(("factor", "policy"), [(0.995, "fcfs"), (0.98, "faster")])
def test_a_sure_gain_of_no_more_than_a_tie_is_not_worth_a_change(factor, policy):
    found = ask({"fcfs": SAME, "faster": {"knee": FCFS * factor}})

    assert found["policy"] == policy


def test_each_load_has_its_own_answer():
    ttft = {
        "fcfs": {"knee": FCFS, "heavy": FCFS},
        "allround": {"knee": FCFS / 2, "heavy": FCFS / 4},
        "knee_only": {"knee": FCFS / 5, "heavy": FCFS},
    }

    found = ask(ttft, loads=(KNEE, HEAVY))

    assert found["policy"] == "allround"
    assert found["by_load"] == {"knee": "knee_only", "heavy": "allround"}
    assert "If you only run at knee load (rho 0.95), knee_only:" in text(found)
    assert "If you only run at heavy" not in text(found)


def test_policies_within_the_interval_of_the_best_are_named():
    spread = np.linspace(0.3, 0.7, 8)[:, None]

    found = ask(
        {"fcfs": SAME, "a": {"knee": FCFS * spread}, "b": {"knee": FCFS * (spread + 0.001)}}
    )

    assert found["policy"] == "a"
    assert "b scores within its interval" in text(found)


def test_a_load_at_which_nothing_queues_is_called_idle():
    ttft = {"fcfs": {"light": FCFS, "knee": FCFS}, "fast": {"light": FCFS / 2, "knee": FCFS / 2}}
    metrics = {"light": {"queued_time_mean": 0.009}, "knee": {"queued_time_mean": 0.011}}

    found = ask(ttft, loads=(LIGHT, KNEE), metrics=metrics, step=0.01)

    assert "At light load fcfs queues for less than one step" in text(found)
    assert found["by_load"] == {"light": None, "knee": "fast"}


def test_no_load_is_called_idle_where_all_queue():
    found = ask({"fcfs": SAME, "fast": HALF}, step=0.99)

    assert "less than one step" not in text(found)


def test_modelled_traffic_is_to_be_confirmed_and_real_traffic_is_not():
    ttft = {"fcfs": SAME, "fast": HALF}

    assert "modelled: confirm this" in text(ask(ttft, MODELLED))
    assert "modelled" not in text(ask(ttft, REAL))


def test_a_load_where_nothing_changes_is_said_to_be_so():
    ttft = {
        "fcfs": {"light": FCFS, "knee": FCFS},
        "fast": {"light": FCFS * 0.9999, "knee": FCFS / 2},
    }

    found = ask(ttft, loads=(LIGHT, KNEE))

    assert found["policy"] == "fast"
    assert "At light load (rho 0.3) it changes mean and p99 TTFT by no more than 1%" in text(found)


def test_one_window_recommends_nothing():
    found = ask({"fcfs": {"knee": FCFS[:1]}, "fast": {"knee": FCFS[:1] / 9}})

    assert found["policy"] == "fcfs"
    assert found["by_load"] == {"knee": None}
    assert "nan" not in text(found)


def warn(trace=REAL, policies=(), num_windows=8, asked=8, window_len=1000, **options):
    evaluation = make_evaluation({"fcfs": SAME}, [KNEE], **options)
    return warnings(policies, EngineConfig(), trace, evaluation, num_windows, asked, window_len)


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

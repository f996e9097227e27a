"""Judgements of evaluations whose outcome is known by construction."""

from dataclasses import replace

import numpy as np
import pytest

from constructed import FCFS, HEAVY, KNEE, make_policy, make_samples, stand
from queuesmith.evaluation.goals import GOALS, GUARDS, Guard
from queuesmith.evaluation.score import gain_and_excess, search_score
from queuesmith.evaluation.statistics import draw_weights
from queuesmith.evaluation.winner import winner

BASE = make_samples(FCFS)
FAST = make_samples(FCFS * 0.5)


def board(samples, **options):
    return {one.policy.name: one for one in stand(samples, **options)[0]}


def broken(samples, **options):
    standings = board({"fcfs": {"knee": BASE}, "mine": {"knee": samples}}, **options)
    return [one.guard for one in standings["mine"].broken]


def test_the_reference_changes_nothing_and_breaks_nothing():
    one = board({"fcfs": {"knee": BASE}, "fast": {"knee": FAST}})["fcfs"]

    assert {change.change for change in one.loads["knee"].changes.values()} == {0.0}
    assert (one.broken, one.loads["knee"].ties) == ([], 8)


def test_half_the_wait_is_a_gain_with_an_interval():
    one = board({"fcfs": {"knee": BASE}, "fast": {"knee": FAST}})["fast"]

    change = one.loads["knee"].changes["ttft_mean"]
    assert (change.change, change.value) == (pytest.approx(-0.5), pytest.approx(0.5))
    assert change.low == pytest.approx(-0.5)
    assert (one.loads["knee"].wins, one.loads["knee"].p_value) == (8, pytest.approx(2 / 2**8))
    assert one.eligible


def test_who_breaks_no_guard_stands_above_who_does_whatever_the_gain():
    starving = FCFS * 0.1
    starving[:, 0] = 100.0
    names = list(
        board(
            {
                "starving": {"knee": make_samples(starving)},
                "fcfs": {"knee": BASE},
                "slow": {"knee": make_samples(FCFS * 1.005)},
                "fast": {"knee": FAST},
            }
        )
    )

    assert names == ["fast", "fcfs", "slow", "starving"]


def changed(**columns):
    """Faster than FCFS, but for one column."""
    return replace(FAST, **columns)


def totals(**columns):
    return replace(FAST, totals=replace(FAST.totals, **columns))


@pytest.mark.parametrize(
    ("samples", "guard"),
    [
        (changed(e2el=BASE.e2el * 1.05), "e2el_mean"),
        (changed(tpot=BASE.tpot * 1.2), "tpot_mean"),
        (changed(tpot=BASE.tpot * 1.2), "tpot_p99"),
        (changed(met=BASE.ttft < 1.9), "slo_attainment"),
        (changed(slowdown=BASE.slowdown * 2), "slowdown_max"),
        (totals(span=BASE.totals.span * 1.02), "output_throughput"),
        (totals(num_recomputed_tokens=0.1 * BASE.totals.num_computed_tokens), "recompute_tax"),
        (totals(itl_counts=np.roll(BASE.totals.itl_counts, 10, axis=1)), "itl_p99"),
        (changed(ttft=np.where(np.arange(1600) % 100 == 0, np.nan, FAST.ttft)), "served"),
    ],
)
def test_each_guard_breaks_by_its_own_statistic(samples, guard):
    assert guard in broken(samples)


def test_a_guard_holds_within_its_margin():
    assert broken(changed(e2el=BASE.e2el * 1.005, tpot=BASE.tpot * 1.04)) == []


def test_a_change_too_small_to_notice_breaks_nothing():
    """20 ms between tokens, 1 ms more is what `least` allows whatever the margin."""
    guards = [replace(guard, margin=0.0) for guard in GUARDS if guard.name == "tpot_mean"]

    assert broken(changed(tpot=BASE.tpot + 0.0009), guards=guards) == []
    assert broken(changed(tpot=BASE.tpot + 0.0011), guards=guards) == ["tpot_mean"]


def test_a_change_that_may_be_chance_breaks_nothing():
    """p99 TTFT 20 % worse on the average, but in one window of eight alone."""
    one_window = FCFS.copy()
    one_window[7] *= 1.6
    uneven, even = make_samples(one_window), make_samples(FCFS * 1.2)
    guards = [guard for guard in GUARDS if guard.name == "e2el_mean"]

    assert broken(uneven, guards=guards) == []
    assert broken(even, guards=guards) == ["e2el_mean"]


def test_the_class_that_pays_is_named():
    client = np.tile(np.repeat([0, 1], 100), 8)
    waits = np.where(client == 1, BASE.ttft * 2, BASE.ttft * 0.2)
    mine, base = replace(BASE, ttft=waits, client=client), replace(BASE, client=client)

    one = board({"fcfs": {"knee": base}, "mine": {"knee": mine}})["mine"]

    assert [each.label for each in one.broken if each.guard == "client_ttft"] == [
        "mean TTFT of client 1"
    ]


def test_a_p999_of_few_requests_is_not_judged():
    times = np.random.default_rng(0).lognormal(size=(8, 20))
    worse = times.copy()
    worse[:, 0] += 50.0
    standings = board(
        {"fcfs": {"knee": make_samples(times)}, "mine": {"knee": make_samples(worse)}},
        guards=[Guard("ttft_p999", 0.25)],
    )

    assert standings["mine"].broken == []


def test_the_winner_breaks_no_guard_and_its_ties_are_named():
    standings, _ = stand(
        {
            "fcfs": {"knee": BASE},
            "good": {"knee": make_samples(FCFS * 0.6)},
            "twin": {"knee": make_samples(FCFS * 0.602)},
            "worse": {"knee": make_samples(FCFS * 0.8)},
            "cheat": {"knee": changed(ttft=BASE.ttft * 0.1, e2el=BASE.e2el * 2)},
        }
    )

    found = winner(standings, GOALS["ttft"])

    assert (found.policy, found.tied) == ("good", ("twin",))
    assert found.gain.change == pytest.approx(-0.4)


def test_goals_have_winners_of_their_own():
    decoding = changed(ttft=BASE.ttft, e2el=BASE.e2el, tpot=BASE.tpot * 0.5, met=BASE.met)
    standings, _ = stand(
        {"fcfs": {"knee": BASE}, "fast": {"knee": FAST}, "decoding": {"knee": decoding}}
    )

    assert winner(standings, GOALS["ttft"]).policy == "fast"
    assert winner(standings, GOALS["slo"]).policy == "fast"
    assert winner(standings, GOALS["tpot"]).policy == "decoding"


@pytest.mark.parametrize("line", ["ENGINE = {'max_num_seqs': 8}", "ORACLE = True"])
def test_bundles_and_oracles_never_win(line):
    standings, _ = stand(
        {"fcfs": {"knee": BASE}, "special": {"knee": FAST}}, policies=[make_policy("special", line)]
    )

    assert winner(standings, GOALS["ttft"]).policy == "fcfs"


def test_a_guard_broken_at_one_load_counts_for_all_but_not_for_the_other_alone():
    hurt = changed(e2el=BASE.e2el * 2)
    standings, _ = stand(
        {
            "fcfs": {"knee": BASE, "heavy": BASE},
            "risky": {"knee": FAST, "heavy": hurt},
        },
        loads=(KNEE, HEAVY),
    )

    goal = GOALS["ttft"]
    assert winner(standings, goal).policy == "fcfs"
    assert winner(standings, goal, ["knee"]).policy == "risky"
    assert winner(standings, goal, ["heavy"]).policy == "fcfs"


def test_one_window_proves_nothing():
    standings, _ = stand(
        {"fcfs": {"knee": make_samples(FCFS[:1])}, "fast": {"knee": make_samples(FCFS[:1] / 2)}}
    )

    assert winner(standings, GOALS["ttft"]).policy == "fcfs"
    assert np.isnan(standings[0].loads["knee"].p_value)


def test_the_search_is_warned_before_a_guard_breaks():
    """The excess rises from half of the margin of p99 TTFT, 5 %, to the whole of it."""
    weights = draw_weights(8, 0)[:1]
    guards = [guard for guard in GUARDS if guard.name == "ttft_p99"]

    def excess(factor):
        found = gain_and_excess(make_samples(FCFS * factor), BASE, GOALS["ttft"], guards, weights)
        return float(found[1][0])

    assert [excess(factor) for factor in (0.5, 1.0, 1.025)] == pytest.approx([0, 0, 0])
    assert excess(1.0375) == pytest.approx(0.5)
    assert [excess(factor) for factor in (1.05, 2.0)] == pytest.approx([1, 1])


@pytest.mark.parametrize("gain", [-1.0, 0.0, 0.5, 3.0])
def test_nobody_who_breaks_a_guard_scores_above_nothing(gain):
    scores = search_score(np.full(5, gain), np.linspace(0.0, 1.0, 5))

    assert scores[0] == gain
    assert scores[-1] <= -1.0
    assert (np.diff(scores) < 0).all()

"""A diagnosis: its numbers are those of the engine, its words follow from its numbers."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuesmith.errors import ConfigError
from queuesmith.evaluation.evaluate import evaluate
from queuesmith.evaluation.goals import MARGIN
from queuesmith.evaluation.samples import Samples
from queuesmith.evaluation.score import gain_and_excess, search_score
from queuesmith.evolve.diagnosis.diagnose import diagnose
from queuesmith.evolve.diagnosis.nearest import rank_by_agreement, rank_by_times
from queuesmith.evolve.diagnosis.payers import change, density, who_paid, worst_off
from queuesmith.evolve.diagnosis.suggestions import configurations, lost_cells, suggest
from queuesmith.evolve.gates.case import Case
from queuesmith.evolve.gates.measurements import Bench, Measured
from queuesmith.evolve.scoring.cells import Cell, Configuration
from queuesmith.policies import get_policy
from queuesmith.policies.policy import load_text

from .told import CLASSICS, finished_run

HEAD = "def waiting_key(request, engine):\n    return "
LCFS = f"{HEAD}-request.arrival_time\n"
LONGEST = f"{HEAD}-request.num_prompt_tokens\n"


def policy(text, name="mine"):
    return load_text(name, text, Path(f"{name}.py"))


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    return Case.of_run(finished_run(tmp_path_factory.mktemp("diagnose") / "run"))


@pytest.fixture(scope="module")
def longest(case):
    """The diagnosis of longest prompt first, which loses."""
    return diagnose(case, policy(LONGEST), classics=CLASSICS, workers=1)


# Numbers.


def test_scores_of_cells_are_those_of_an_evaluation_of_each_window(case, longest):
    """Against `queuesmith.evaluation.evaluate`, which runs and pools windows by itself."""
    config = case.config
    windows = case.window_set.windows("validation")
    found = evaluate(
        [get_policy("fcfs"), policy(LONGEST), get_policy("sjf")],
        windows,
        config.loads,
        config=config.engine.config,
        step_time=config.engine.step_time,
        output_length=config.output_length,
        slo=config.slo,
        seed=config.windows.seed,
    )
    place = longest["classics"].index("sjf")
    cells = longest["parts"]["validation"]["cells"]
    assert len(cells) == len(windows) * 2

    for cell in cells:
        samples = {}
        for name in ("fcfs", "mine", "sjf"):
            samples[name] = found.samples[name, cell["load"]]
        alone = (samples["fcfs"].windows == cell["window"]).astype(np.int64)[None, :]
        for name, value in (("mine", cell["score"]), ("sjf", cell["scores"][place])):
            gain, excess = gain_and_excess(
                samples[name], samples["fcfs"], config.goal, config.guards, alone
            )
            assert value == pytest.approx(search_score(gain, excess)[0])


def test_every_cell_has_its_winners_and_wins_add_up(longest):
    for part in longest["parts"].values():
        assert sum(part["wins"].values()) == pytest.approx(len(part["cells"]))
        for cell in part["cells"]:
            best = max(cell["scores"])
            ranked = dict(zip(longest["classics"], cell["scores"], strict=True))
            assert cell["best_classic"] == best
            assert set(cell["winners"]) == {
                name for name, value in ranked.items() if value >= best - MARGIN
            }
            assert cell["lost"] == (cell["score"] < best - MARGIN)


def test_lost_cells_come_with_the_largest_loss_first(longest):
    lost = lost_cells(longest["parts"]["tuning"])
    losses = [row["score"] - row["best_classic"] for row in lost]

    assert lost
    assert losses == sorted(losses)
    assert all(row["lost"] for row in lost)


def test_the_candidate_leads_the_leaderboard_and_fcfs_is_nought(longest):
    for part in longest["parts"].values():
        first, *others = part["leaderboard"]
        assert (first["policy"], first["kind"]) == ("mine", "candidate")
        assert {row["kind"] for row in others} == {"classic"}
        fcfs = next(row for row in others if row["policy"] == "fcfs")
        assert fcfs["score"] == 0
        assert fcfs["mean_ratio"] == fcfs["p99_ratio"] == 1
        broken = [row["broken_guards"] > 0 for row in others]
        assert broken == sorted(broken)
        for block in (True, False):
            scores = [row["score"] for row in others if (row["broken_guards"] > 0) is block]
            assert scores == sorted(scores, reverse=True)


def test_a_diagnosis_is_the_same_for_any_number_of_threads(case, longest):
    again = diagnose(case, policy(LONGEST), classics=CLASSICS, workers=2)

    assert json.dumps(again, allow_nan=False) == json.dumps(longest, allow_nan=False)


def test_held_out_windows_are_never_read(case, monkeypatch):
    parts = []
    load = Bench.load
    monkeypatch.setattr(Bench, "load", lambda self, part: parts.append(part) or load(self, part))

    diagnose(case, get_policy("sjf"), classics=CLASSICS, workers=1)

    assert set(parts) == {"tuning", "validation"}


def test_engine_settings_are_refused(case):
    bundle = policy(f'ENGINE = {{"max_num_seqs": 8}}\n\n\n{LCFS}')

    with pytest.raises(ConfigError, match="mine sets max_num_seqs in ENGINE"):
        diagnose(case, bundle, classics=CLASSICS)


def test_a_classic_is_diagnosed_as_itself(case):
    found = diagnose(case, get_policy("sjf"), classics=CLASSICS, workers=1)
    place = found["classics"].index("sjf")

    assert found["nearest"]["policy"] == "sjf"
    assert found["nearest"]["times"][0]["difference"] == 0
    for part in found["parts"].values():
        assert all(cell["score"] == cell["scores"][place] for cell in part["cells"])
    assert any(one["kind"] == "alike" for one in found["suggestions"])


# Who paid.


def test_density_by_hand():
    """Two come at once after a lull; the second one has a gap of 0 and one of 3 behind it."""
    times = np.array([0.0, 3.0, 3.0, 6.0])

    assert density(times) == pytest.approx([1.0, 1.5, 0.75, 1.0])
    assert density(np.zeros(3)).tolist() == [1.0, 1.0, 1.0]
    assert density(np.array([5.0])).tolist() == [1.0]


@given(
    gaps=st.lists(st.integers(0, 50), min_size=1, max_size=60),
    scale=st.sampled_from([0.25, 3.0, 1e4]),
)
def test_density_does_not_depend_on_the_load(gaps, scale):
    times = np.cumsum([0.0, *gaps])

    assert density(times * scale) == pytest.approx(density(times))
    assert density(times).min() >= 0


def waits(times, window):
    times = np.array(times, float)
    unknown = np.zeros(len(times), np.int64)
    return Samples(times, times, unknown, unknown, np.array(window))


def hand_made(ttft, prompt_len, arrival_time):
    """A configuration of two windows, of which the second is listed first."""
    key = Configuration("here", "heavy")
    half = len(ttft) // 2
    rows = [slice(half), slice(half, None)]
    workloads = [
        SimpleNamespace(
            trace=SimpleNamespace(prompt_len=prompt_len[row], arrival_time=arrival_time[row])
        )
        for row in rows
    ]
    traffic = SimpleNamespace(
        cells=(Cell(9, "heavy"), Cell(4, "heavy")),
        sources={4: "here", 9: "here"},
        workloads=workloads[::-1],
    )
    window = np.repeat([4, 9], half)
    base = Measured(None, {key: waits(np.ones(len(ttft)), window)}, {}, {}, None)
    return Measured(None, {key: waits(ttft, window)}, {}, {}, None), base, traffic, key


def test_quarters_by_hand():
    prompt_len = np.array([10, 400, 20, 300, 30, 800, 40, 700])
    ttft = np.where(prompt_len >= 700, 3.0, 0.5)
    mine, fcfs, traffic, key = hand_made(ttft, prompt_len, np.arange(8.0))
    quarters = who_paid(mine, fcfs, traffic)[key]["prompt"]

    assert [row["mean_change"] for row in quarters] == [-0.5, -0.5, -0.5, 2.0]
    assert [(row["low"], row["high"]) for row in quarters] == [
        *((10, 20), (30, 40), (300, 400), (700, 800))
    ]
    assert [row["tail_share"] for row in quarters] == [0, 0, 0, 0.5]  # one request is the tail
    assert worst_off({"prompt": quarters})["who"] == "the longest prompts"


def test_quarters_hold_every_request_once(case, longest):
    for part in longest["parts"].values():
        for row in part["configurations"]:
            for quarters in row["paid"].values():
                assert sum(one["num_requests"] for one in quarters) == row["num_requests"]
                total = sum(one["ttft_mean"] * one["num_requests"] for one in quarters)
                assert total / row["num_requests"] == pytest.approx(row["ttft_mean"])


def test_a_change_from_nothing_is_unknown():
    assert change(2.0, 1.0) == 1.0
    assert np.isnan(change(1.0, 0.0))
    assert np.isnan(change(1.0, np.inf))


def test_longest_first_makes_the_short_ones_pay(longest):
    row = longest["parts"]["tuning"]["configurations"][0]
    shortest, *_, last = row["paid"]["prompt"]

    assert shortest["mean_change"] > 0 > last["mean_change"]


# Nearest.


def test_a_policy_agrees_with_itself_and_with_its_mirror_nowhere_but_in_ties():
    fcfs, shifted = get_policy("fcfs"), policy(f"{HEAD}7.0 + 2.0 * request.arrival_time\n")
    rows = rank_by_agreement(shifted, [policy(LCFS, "lcfs"), fcfs])

    assert [row["policy"] for row in rows] == ["fcfs", "lcfs"]
    assert rows[0]["agreement"] == 1.0
    assert rows[1]["agreement"] < 0.02  # pairs that came at once are ordered alike by anybody


def test_equal_keys_are_ordered_by_arrival():
    rows = rank_by_agreement(policy(f"{HEAD}0.0\n"), [get_policy("sjf"), get_policy("fcfs")])

    assert rows[0] == {"policy": "fcfs", "agreement": 1.0}


def test_whoever_cannot_be_asked_is_last():
    broken = policy(f"{HEAD}1.0 / (request.arrival_time - request.arrival_time)\n", "broken")
    rows = rank_by_agreement(get_policy("fcfs"), [broken, get_policy("sjf")])

    assert [row["policy"] for row in rows] == ["sjf", "broken"]
    assert rows[1]["agreement"] == -1.0


def test_nearness_in_time_by_hand():
    key, window = Configuration("here", "heavy"), [0, 0]
    fcfs, mine, near, far = (
        Measured(get_policy(name), {key: waits(times, window)}, {}, {}, None)
        for name, times in (
            ("fcfs", [2.0, 2.0]),
            ("las", [1.0, 4.0]),
            ("sjf", [1.0, 3.0]),
            ("edf", [4.0, 1.0]),
        )
    )

    assert rank_by_times(mine, [far, near], fcfs) == [
        {"policy": "sjf", "difference": 0.25},
        {"policy": "edf", "difference": 1.5},
    ]


# Words.


def quarter(who, mean=1.0, base=2.0, p99=3.0, p99_fcfs=3.0, low=100.0, high=900.0):
    return {
        "who": who,
        "low": low,
        "high": high,
        "ttft_mean": mean,
        "ttft_mean_fcfs": base,
        "ttft_p99": p99,
        "ttft_p99_fcfs": p99_fcfs,
        "p99_change": p99 / p99_fcfs - 1,
    }


def row(load="heavy", **changes):
    """A configuration in which all is well."""
    best = {"policy": "hrrn", "score": 0.2, "mean_ratio": 0.7, "p99_ratio": 1.0}
    prompts = [quarter(who) for who in ("the shortest prompts", "the longest prompts")]
    return {
        "source": "azure",
        "load": load,
        "score": 0.3,
        "mean_change": -0.4,
        "p99_change": -0.1,
        "broken": [],
        "idle": False,
        "ttft_mean_fcfs": 2.0,
        "ttft_p99_fcfs": 3.0,
        "best_classic": best,
        "clean": [best],
        "paid": {"prompt": prompts},
        "best_classic_paid": {"prompt": prompts},
        **changes,
    }


def diagnosis(tuning=None, validation=None, scores=(0.3, 0.3), wins=None, apart=0.3, leader=0.2):
    def part(rows, value):
        return {
            "leaderboard": [
                {"kind": "candidate", "policy": "mine", "broken_guards": 0}
                | {"score": value, "low": value - 0.1, "high": value + 0.1},
                {"kind": "classic", "policy": "hrrn", "broken_guards": 0, "score": leader},
            ],
            "configurations": rows or [row()],
            "wins": wins or {"sjf": 2.0, "hrrn": 2.0},
        }

    return {
        "nearest": {"times": [{"policy": "hrrn", "difference": apart}]},
        "parts": {"tuning": part(tuning, scores[0]), "validation": part(validation, scores[1])},
    }


def kinds(found):
    return [one["kind"] for one in suggest(found)]


def test_where_all_is_well_there_is_one_good_word():
    [said] = suggest(diagnosis())

    assert said["kind"] == "good"
    assert said["text"].startswith("Breaks no guard")
    assert "azure at heavy: +0.300" in said["text"]


def test_nobody_is_good_whom_another_policy_leads():
    [said] = suggest(diagnosis(leader=9.0))

    assert said["kind"] == "lost"
    assert "hrrn leads on tuning windows with +9.000 against +0.300" in said["text"]


def test_a_broken_guard_names_who_pays_who_keeps_it_and_a_bound():
    paid = {
        "prompt": [
            quarter("the shortest prompts"),
            quarter("the longest prompts", p99=4.2, p99_fcfs=3.0, low=4000, high=9100),
        ]
    }
    bad = row(p99_change=0.31, broken=["because"], paid=paid)
    [said] = suggest(diagnosis(validation=[bad]))

    assert said["kind"] == "guard"
    assert "Breaks 1 guard(s) on azure at heavy (validation windows): because" in said["text"]
    assert "the longest prompts (4,000 to 9,100 tokens) wait 1.40 x as long" in said["text"]
    assert "hrrn breaks none there and gains +0.200 (+0.300 here)" in said["text"]
    assert "has waited about 3.00 s" in said["text"]
    assert said["numbers"]["p99_ratio"] == pytest.approx(1.31)
    assert said["numbers"]["who"]["low"] == 4000


@pytest.mark.parametrize(("p99_change", "told"), [(0.024, ["good"]), (0.026, ["guard"])])
def test_a_tail_is_spoken_of_once_half_its_margin_is_used_up(p99_change, told):
    assert kinds(diagnosis(tuning=[row(p99_change=p99_change)])) == told


def test_a_guard_near_breaking_in_both_parts_is_told_once_and_broken_ones_first():
    slight, violated = row(p99_change=0.5), row("knee", p99_change=0.1, broken=["because"])
    found = suggest(diagnosis(tuning=[slight, violated], validation=[slight, violated]))

    assert [(one["kind"], one["numbers"]["load"]) for one in found] == [
        ("guard", "knee"),
        ("guard", "heavy"),
    ]


def test_a_loss_to_a_classic_names_who_gains_and_who_pays_for_it():
    best = {"policy": "sjf", "score": 0.5, "mean_ratio": 0.4, "p99_ratio": 1.0}
    other = {
        "prompt": [
            quarter("the shortest prompts", mean=0.25),
            quarter("the longest prompts", mean=1.5),
        ]
    }
    [said] = suggest(diagnosis(tuning=[row(best_classic=best, best_classic_paid=other)]))

    assert said["kind"] == "lost"
    assert said["text"].startswith("Loses to sjf on azure at heavy (tuning windows): +0.300")
    assert "-60 %, -40 % here" in said["text"]
    assert "gains most on the shortest prompts (100 to 900 tokens): 0.750 s" in said["text"]
    assert "at the cost of the longest prompts (100 to 900 tokens): 0.500 s" in said["text"]


def test_a_loss_without_a_lower_mean_says_so():
    best = {"policy": "mlfq", "score": 0.5, "mean_ratio": 0.9, "p99_ratio": 1.0}
    lost = row(best_classic=best, p99_change=0.3, score=-0.2)
    found = suggest(diagnosis(tuning=[lost]))

    assert [one["kind"] for one in found] == ["guard", "lost"]
    assert "gains most" not in found[1]["text"]


@pytest.mark.parametrize(("less", "told"), [(0.009, "good"), (0.011, "lost")])
def test_losses_within_the_margin_are_none(less, told):
    best = {"policy": "sjf", "score": 0.3 + less, "mean_ratio": 0.5, "p99_ratio": 1.0}

    assert kinds(diagnosis(tuning=[row(best_classic=best)])) == [told]


def test_a_score_that_validation_does_not_bear_out():
    assert kinds(diagnosis(scores=(0.3, 0.25))) == ["good"]  # within the interval

    [said] = suggest(diagnosis(scores=(0.3, 0.1)))
    assert said["kind"] == "overfit"
    assert "+0.300 on tuning windows" in said["text"]
    assert "+0.100 (up to +0.200)" in said["text"]


def test_one_classic_everywhere_alike_and_idle_are_told():
    found = diagnosis(
        tuning=[row(), row("light", idle=True)], wins={"sjf": 9.0, "hrrn": 1.0}, apart=0.01
    )
    said = {one["kind"]: one["text"] for one in suggest(found)}

    assert list(said) == ["good", "alike", "windows", "idle"]
    assert "sjf wins 9.00 of 10.0 tuning windows" in said["windows"]
    assert "nearly the times of hrrn" in said["alike"]
    assert "azure at light" in said["idle"]


def test_each_configuration_is_spoken_of_by_its_worse_part():
    found = diagnosis(tuning=[row(score=0.4)], validation=[row(score=0.1)])

    assert [part for part, _ in configurations(found)] == ["validation"]


def test_last_come_first_served_is_found_to_starve(case):
    found = diagnose(case, policy(LCFS, "lcfs"), classics=CLASSICS, workers=1)

    assert found["suggestions"][0]["kind"] == "guard"
    assert "would limit it" in found["suggestions"][0]["text"]

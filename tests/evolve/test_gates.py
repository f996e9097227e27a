"""The gates: what passes, what falls short, and what each of them saw."""

import json
import time
import zlib
from dataclasses import fields, replace

import numpy as np
import pytest

from queuesmith.engine import simulate_workload
from queuesmith.engine.compile import compile_policy
from queuesmith.engine.presets.step_time import get_preset, preset_names
from queuesmith.errors import CandidateError, ConfigError
from queuesmith.evaluation.goals import GOALS, GUARDS, Guard
from queuesmith.evaluation.judge import beside
from queuesmith.evaluation.statistics import draw_weights
from queuesmith.evolve.gates import gates
from queuesmith.evolve.gates.control import Pair, _over_seeds, control
from queuesmith.evolve.gates.gate import GATES
from queuesmith.evolve.gates.gates import CLASSICS
from queuesmith.evolve.gates.judge import _trusted, judge
from queuesmith.evolve.gates.ledger import HeldOut, Ledger, Spent
from queuesmith.evolve.gates.measurements import Bench, configuration_rows, difference
from queuesmith.evolve.gates.proof import plain
from queuesmith.evolve.gates.real import real
from queuesmith.evolve.gates.stress import (
    differs_from,
    idle_windows,
    largest_wait,
    run_fcfs,
    stress_windows,
)
from queuesmith.evolve.scoring.standing import Difference
from queuesmith.policies import get_policy
from queuesmith.stats.intervals import Draws
from queuesmith.windows.predictions import OutputLengthKnowledge

from .judged import GOOD, GOOD_TEXT, ONE_MACHINE_TEXT, WEAK_TEXT, policy, small_case, with_run

KNOWLEDGE = OutputLengthKnowledge()
PRESET = get_preset("llama-3.1-8b/h100_sxm")
ENGINE = PRESET.config, PRESET.step_time


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    return small_case(tmp_path_factory.mktemp("case"))


@pytest.fixture(scope="module")
def bench(case):
    """Of all tests, so that nothing is measured twice; the held-out windows stay closed."""
    return Bench(case.config, case.window_set)


@pytest.fixture(scope="module", autouse=True)
def remember():
    """Ask G1 once about each policy, since it starts processes; nothing else is changed."""
    ask, answers = gates.behaviour, {}

    def behaviour(mine, bench):
        if mine.sha256 not in answers:
            answers[mine.sha256] = ask(mine, bench)
        return answers[mine.sha256]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gates, "behaviour", behaviour)
        yield


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "ledger.jsonl")


# Stress windows.


def run_of(window, mine):
    compiled = compile_policy(get_policy(mine) if isinstance(mine, str) else mine)
    return simulate_workload(window.workload, compiled, *ENGINE)


@pytest.fixture(scope="module")
def stress():
    return {window.name: window for window in stress_windows(*ENGINE, KNOWLEDGE)}


@pytest.mark.parametrize(
    ("name", "starved_in"),
    [
        ("sjf", "long ones in a stream of short ones"),
        ("ljf", "short ones in a stream of long ones"),
        ("lcfs", "one huge prompt among thousands of short ones"),
        ("lcfs", "half short, half long"),
    ],
)
def test_who_forgets_somebody_is_found_out(stress, name, starved_in):
    window = stress[starved_in]
    wait = largest_wait(window, run_of(window, name), run_fcfs(window, *ENGINE))

    assert wait.starves
    assert wait.ttft > 2 * wait.ttft_fcfs > 0.5


def test_fcfs_waits_as_long_as_fcfs_and_everywhere_somebody_waits(stress):
    for window in stress.values():
        wait = largest_wait(window, run_of(window, "fcfs"), run_fcfs(window, *ENGINE))
        assert wait.ratio == 1.0
        assert not wait.starves
        assert wait.ttft_fcfs > 0.5  # seconds: there is a queue to be forgotten in


@pytest.mark.parametrize("name", [name for name in preset_names() if "70b" not in name])
def test_windows_can_be_made_for_every_engine(name):
    preset = get_preset(name)
    engine = preset.config, preset.step_time
    for window in [*stress_windows(*engine, KNOWLEDGE), *idle_windows(*engine, KNOWLEDGE)]:
        assert window.workload.num_dropped == 0
        assert len(window.workload.row) >= 200


def test_on_idle_windows_nobody_meets_anybody():
    fcfs = compile_policy(get_policy("fcfs"))
    side_by_side = 0
    for window in idle_windows(*ENGINE, KNOWLEDGE):
        requests = simulate_workload(window.workload, fcfs, *ENGINE).requests
        assert (requests.first_token_ts[:-1] <= requests.arrival_time[1:]).all()
        side_by_side += int((requests.last_token_ts[:-1] > requests.arrival_time[1:]).sum())
    assert side_by_side > 20


def test_whoever_keeps_an_idle_engine_waiting_is_found_out():
    lazy = policy(
        """
def waiting_key(request, engine):
    return request.arrival_time


def admit(request, engine):
    return engine.now - request.arrival_time > 0.05 or engine.num_running == 0
"""
    )
    found = [
        differs_from(run_of(window, lazy), run_fcfs(window, *ENGINE))
        for window in idle_windows(*ENGINE, KNOWLEDGE)
    ]

    assert found == [False, True, True]
    for name in ("sjf", "lcfs", "edf", "srpt"):
        for window in idle_windows(*ENGINE, KNOWLEDGE):
            assert not differs_from(run_of(window, name), run_fcfs(window, *ENGINE))


# What gates measure.


def test_a_gain_is_that_of_a_comparison_of_the_same_windows(bench):
    """One configuration: estimate by hand, draws and guards those of `beside`."""
    [fcfs, mine] = bench.measure([get_policy("fcfs"), get_policy("sjf")], "tuning")
    [(key, ours)] = mine.samples.items()
    theirs = fcfs.samples[key]
    goal = GOALS["ttft"]
    weights = draw_weights(8, [0, zlib.crc32(key.source.encode())])
    expected = beside(ours, theirs, load="x", goal=goal, guards=GUARDS, weights=weights)

    gain = mine.beside.gain
    assert gain.estimate == pytest.approx(np.log(theirs.ttft.mean() / ours.ttft.mean()))
    np.testing.assert_allclose(gain.values, -expected.draws["ttft"].values, rtol=1e-12)
    assert gain.interval() == Draws(gain.values, 8).interval()
    assert {one.guard for one in mine.beside.broken} == {
        one.guard
        for one in expected.broken
        if one.guard != "tpot_mean"  # its margin is another
    }
    assert not fcfs.beside.broken


def test_differences_are_paired(bench):
    sjf, good = bench.measure([get_policy("sjf"), policy(GOOD_TEXT)], "tuning")

    assert difference(sjf, sjf) == Difference(0.0, 0.0, 0.0)
    assert not difference(sjf, sjf).sure
    one, other = difference(sjf, good), difference(good, sjf)
    assert one.value == -other.value
    assert one.low == pytest.approx(-other.high)


def test_measuring_is_the_same_as_evaluating(bench, case):
    from queuesmith.evaluation.evaluate import evaluate

    config = case.config
    evaluation = evaluate(
        [get_policy("sjf")],
        case.window_set.windows("validation"),
        config.loads,
        config=config.engine.config,
        step_time=config.engine.step_time,
        output_length=config.output_length,
        seed=config.windows.seed,
    )
    [mine] = bench.measure([get_policy("sjf")], "validation")
    [sample] = mine.samples.values()

    np.testing.assert_array_equal(sample.ttft, evaluation.samples["sjf", "heavy"].ttft)
    np.testing.assert_array_equal(sample.window, evaluation.samples["sjf", "heavy"].window)


def test_a_row_says_who_pays(bench):
    fcfs = bench.fcfs("tuning")
    mine = bench.measure([get_policy("sjf"), get_policy("ljf"), get_policy("fcfs")], "tuning")
    rows = [configuration_rows(one, fcfs)[0] for one in mine]

    assert rows[0]["pays"].startswith("longest quarter of prompts")
    assert rows[1]["pays"].startswith("shortest quarter of prompts")
    assert rows[0]["pays_change"] > 0.1
    assert (rows[2]["pays"], rows[2]["worse_share"], rows[2]["mean_change"]) == ("", 0.0, 0.0)
    assert not rows[0]["idle"]


def test_held_out_windows_cannot_be_measured_before_they_are_opened(case, ledger):
    closed = Bench(case.config, case.window_set)
    with pytest.raises(RuntimeError, match="written down"):
        closed.measure([get_policy("sjf")], "held_out")

    closed.unlock(ledger.open(HeldOut((("0" * 64, 0, 1, "0" * 64),)), {}))
    with pytest.raises(RuntimeError, match="written down"):
        closed.fcfs("held_out")
    closed.unlock(ledger.open(HeldOut.of(case.window_set), {}))
    assert closed.fcfs("held_out")


# One gate at a time.


def test_g0_says_what_may_not_be_in_a_candidate():
    assert gates.form(GOOD_TEXT).passed
    gate = gates.form("import os\n\n\ndef waiting_key(request, engine):\n    return 0.0\n")
    assert gate.passed is False
    assert "line 1" in gate.sentence
    assert gate.saw["line"] == 1


def test_g1_passes_what_forgets_nobody(bench):
    gate = gates.behaviour(policy(GOOD_TEXT), bench)

    assert gate.passed, gate.sentence
    assert len(gate.saw["waits"]) == 8
    assert max(wait["ratio"] for wait in gate.saw["waits"]) <= 2
    assert all(gate.saw["idle_windows"].values())
    assert any("compiled" in check for check in gate.saw["checks"])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (get_policy("sjf").source, "somebody waits 4."),
        (
            "def waiting_key(request, engine):\n    return 1.0 / (engine.num_running - 3)\n",
            "fault on the stress windows",
        ),
        (
            "def waiting_key(request, engine):\n    return 0.0\n\n\n"
            "def admit(request, engine):\n    return engine.now < 0.0\n",
            "somebody waits 1",  # the engine admits when nothing runs
        ),
        (
            "def waiting_key(request, engine):\n    return 0.0\n\n\n"
            "def admit(request, engine):\n"
            "    return engine.num_running == 0 or engine.num_waiting > 1\n",
            "it decides otherwise than fcfs where nobody queues (side by side",
        ),
    ],
)
def test_g1_falls_short(bench, text, reason):
    gate = gates.behaviour(policy(text), bench)

    assert gate.passed is False
    assert gate.sentence.startswith(reason)


def test_g2_is_about_fcfs(bench):
    good, fcfs = (gates.tuning(each, bench) for each in (policy(GOOD_TEXT), get_policy("fcfs")))

    assert good.passed
    assert good.saw["score"]["low"] > 0
    assert len(good.saw["windows"]) == 8
    assert fcfs.passed is False
    assert fcfs.saw["score"] == {"value": 0.0, "low": 0.0, "high": 0.0}


def test_g3_is_about_the_best_classic(bench):
    las = [get_policy("las")]
    weak = [policy(WEAK_TEXT, "weak"), *las]
    better = [policy(GOOD.format(share=0.7), "better"), *las]

    beaten = gates.validation(policy(GOOD_TEXT), bench, weak)
    assert beaten.passed, beaten.sentence
    assert beaten.saw["best_classic"] == "weak"
    assert [row["policy"] for row in beaten.saw["standings"]][:2] == ["mine", "weak"]
    unbeaten = gates.validation(policy(GOOD_TEXT), bench, better)
    assert unbeaten.passed is False
    assert unbeaten.saw["best_classic"] == "better"
    assert unbeaten.sentence.startswith("not surely better")


def test_g3_does_not_hold_a_policy_against_itself(bench):
    gate = gates.validation(policy(GOOD_TEXT), bench, [policy(GOOD_TEXT, "itself")])

    assert gate.saw["best_classic"] == "fcfs"


def test_g3_is_about_every_guard(case):
    """Gaining a lot in the goal does not help who breaks a guard, be it of another metric."""
    strict = replace(case.config, guards=(Guard("tpot_mean", 0.05, least=0.001),))
    bench = Bench(strict, case.window_set)
    gate = gates.validation(policy(GOOD_TEXT), bench, [])

    assert gate.passed is False
    assert gate.sentence.startswith("1 guard(s) broken: mean TPOT 0.142 s beside 0.127 s, +12 %")
    assert gate.saw["score"]["low"] > 0
    [row] = gate.saw["configurations"]
    assert [one["guard"] for one in row["guards"] if one["broken"]] == ["tpot_mean"]
    lenient = replace(strict, guards=(Guard("tpot_mean", 0.25, least=0.001),))
    assert gates.validation(policy(GOOD_TEXT), Bench(lenient, case.window_set), []).passed


def test_the_best_classic_breaks_no_guard(bench):
    """sjf gains more than anybody and lets long prompts wait: it is nobody's measure."""
    gate = gates.validation(policy(GOOD_TEXT), bench, [get_policy("sjf"), get_policy("las")])

    first, *others = gate.saw["standings"]
    sjf = next(row for row in others if row["policy"] == "sjf")
    assert (first["policy"], first["broken_guards"]) == ("mine", 0)
    assert sjf["score"] > first["score"]
    assert sjf["broken_guards"] > 0
    assert gate.saw["best_classic"] == "fcfs"
    broken = [row["broken_guards"] > 0 for row in gate.saw["standings"]]
    assert broken == sorted(broken)


def test_g5_is_about_guards_too(case):
    strict = replace(case.config, guards=(Guard("ttft_max", 0.0), Guard("tpot_mean", 0.01)))
    gate = gates.physics(policy(GOOD_TEXT), Bench(strict, case.window_set), [])

    assert gate.passed is False
    assert "guard(s) broken" in gate.sentence
    assert gate.saw["score"]["low"] > 0


def test_another_goal_asks_for_another_policy(case):
    """The goal of the configuration is what gates hold a policy against."""
    config = replace(case.config, goal=GOALS["tpot"])
    gate = gates.tuning(policy(GOOD_TEXT), Bench(config, case.window_set))

    assert gate.saw["goal"] == "tpot"
    assert gate.passed is False
    assert gate.saw["score"]["value"] < 0


def test_g3_needs_windows_enough(tmp_path):
    few = small_case(tmp_path, ("num_windows = 8", "num_windows = 7"))
    gate = gates.validation(policy(GOOD_TEXT), Bench(few.config, few.window_set), [])

    assert gate.passed is False
    assert gate.sentence.startswith("7 windows of azure_2023_code@model are fewer than the 8")


def test_g4_is_about_random_search(bench):
    weak = with_run_pairs(control=WEAK_TEXT)
    as_good = with_run_pairs(control=GOOD_TEXT)

    assert control(policy(GOOD_TEXT), bench, weak, _trusted).passed
    equal = control(policy(GOOD_TEXT), bench, as_good, _trusted)
    assert equal.passed is False
    assert equal.saw["policy_less_control"] == {"value": 0.0, "low": 0.0, "high": 0.0}
    assert control(policy(GOOD_TEXT), bench, (), _trusted).passed is None


def test_g4_counts_seeds_and_evaluations(bench):
    good = policy(GOOD_TEXT)
    four = control(good, bench, with_run_pairs(num_seeds=4), _trusted)
    uneven = control(good, bench, with_run_pairs(evaluations=(12, 11)), _trusted)

    assert four.passed is uneven.passed is False
    assert four.sentence.startswith("4 seed(s) of the 5")
    assert "fewer evaluations" in uneven.sentence


def test_g4_takes_one_lucky_seed_for_luck(bench):
    """The policy beats the control, but the search that found it did not, with other seeds."""
    pairs = with_run_pairs(search=WEAK_TEXT, control=GOOD.format(share=0.2))
    lucky = (replace(pairs[0], search=GOOD_TEXT), *pairs[1:])
    gate = control(policy(GOOD_TEXT), bench, lucky, _trusted)

    assert gate.saw["policy_less_control"]["low"] > 0
    assert gate.saw["search_less_control"]["low"] < 0
    assert gate.passed is False
    # Of a person who was not in the search only the policy is asked.
    persons = control(policy(GOOD.format(share=0.65)), bench, lucky, _trusted)
    assert "search_less_control" not in persons.saw
    assert persons.passed


def test_g4_a_control_that_found_nothing_is_fcfs(bench):
    gate = control(policy(GOOD_TEXT), bench, with_run_pairs(control=""), _trusted)

    assert gate.saw["control_scores"] == [0.0] * 5
    assert gate.passed


def with_run_pairs(search=GOOD_TEXT, control=WEAK_TEXT, num_seeds=5, evaluations=(12, 12)):
    return tuple(Pair(seed, search, control, *evaluations) for seed in range(num_seeds))


def test_seeds_that_differ_widen_the_interval():
    rng = np.random.default_rng(1)
    windows = rng.normal(1.0, 0.1, 5_001)
    alike = np.tile(windows, (5, 1))
    apart = alike + np.array([-2.0, -1.0, 0.0, 1.0, 2.0])[:, None]

    same, wide = _over_seeds(alike, 1_000), _over_seeds(apart, 1_000)
    assert same == Difference.of(Draws(windows, 1_000))
    assert same.sure
    assert wide.value == pytest.approx(same.value)
    assert wide.low < 0 < 2 * (same.high - same.low) < wide.high - wide.low
    # Five values with standard deviation sqrt(2): the mean's is sqrt(2 / 5).
    assert wide.high - wide.low == pytest.approx(2 * 1.96 * np.sqrt(2 / 5 + 0.01), rel=0.05)


def test_g5_is_about_other_step_times(bench):
    good = gates.physics(policy(GOOD_TEXT), bench, [])
    one_machine = gates.physics(policy(ONE_MACHINE_TEXT), bench, [])

    assert good.passed, good.sentence
    assert good.saw["engine"] == "llama-3.1-8b/a100_sxm"
    assert one_machine.passed is False
    assert one_machine.saw["reversed"] == ["azure_2023_code@model at heavy"]
    assert gates.validation(policy(ONE_MACHINE_TEXT), bench, []).saw["score"]["low"] > 0


def test_g5_without_a_second_engine_is_not_run(case, bench):
    config = replace(case.config, second_engine=None)
    gate = gates.physics(policy(GOOD_TEXT), Bench(config, case.window_set), [])

    assert gate.passed is None
    assert "second_engine" in gate.sentence


def ab_document(text=GOOD_TEXT, **changes):
    arms = {arm: {"ms_per_step": 20.0} for arm in ("stock", "mine")}
    change = {"change": -0.3, "low": -0.4, "high": -0.2}
    load = {"load": "heavy", "verdict": "better", "changes": {"ttft_mean": change}, "arms": arms}
    config = {"policy_sha256": policy(text).sha256, "repeats": 3, "where": "vLLM servers of m"}
    return {
        "schema": "queuesmith.ab/2",
        "config": {**config, **changes.pop("config", {})},
        "loads": [{**load, **changes.pop("load", {})}],
        **changes,
    }


@pytest.mark.parametrize(
    ("document", "passed", "why"),
    [
        (None, None, "no A/B"),
        (ab_document(), True, "in real vLLM heavy: better"),
        (ab_document(WEAK_TEXT), False, "of another policy"),
        (ab_document(config={"repeats": 2}), False, "at least 3 repeats"),
        (ab_document(config={"where": "Scheduler, on a virtual clock"}), False, "virtual clock"),
        (ab_document(load={"verdict": "worse"}), False, "heavy: worse"),
        (ab_document(load={"verdict": "same"}), False, "heavy: same"),
        (ab_document(load={"verdict": "mixed"}), False, "heavy: mixed"),
        (ab_document(schema="queuesmith.ab/1"), True, "in real vLLM heavy: better"),
        (
            ab_document(schema="queuesmith.ab/1", load={"tail_violated": True}),
            False,
            "its tail is longer",
        ),
        (ab_document(load={"arms": {}}), False, "how long the steps"),
        (ab_document(failures=[{}]), False, "1 requests failed"),
        (ab_document(schema="queuesmith.comparison/1"), False, "no result of `queuesmith ab`"),
        ({}, False, "no result of `queuesmith ab`"),
    ],
)
def test_g7_believes_no_more_than_was_measured(document, passed, why):
    gate = real(policy(GOOD_TEXT), document)

    assert gate.passed is passed
    assert why in gate.sentence


def test_classics_could_all_be_deployed_on_their_own():
    for name in CLASSICS:
        classic = get_policy(name)
        assert not classic.oracle
        assert not classic.is_bundle


# Files that are anyone's.


SQUARINGS = "".join("    x = x * x\n" for _ in range(60))
#: In plain Python a number of 2**60 digits; compiled it wraps around.
ENDLESS = f"""
def waiting_key(request, engine):
    x = 3 + request.num_prompt_tokens * 0
{SQUARINGS}    return request.arrival_time + 0.0 * x
"""
#: Harmless on the engine of every window, and endless where there are fewer seats.
HIDDEN = f"""
def waiting_key(request, engine):
    x = 3 + request.num_prompt_tokens * 0
    if engine.max_num_seqs < 200:
{SQUARINGS.replace("    x", "        x")}    return request.arrival_time + 0.0 * x
"""


@pytest.mark.parametrize("text", [ENDLESS, HIDDEN], ids=["always", "on small engines"])
def test_a_strangers_file_ends_within_its_limits(case, ledger, text):
    """Every gate that runs it does so in a child process, the checks in plain Python too."""
    limits = replace(case.config.sandbox, cpu_seconds=2, wall_seconds=30.0)
    hasty = replace(case, config=replace(case.config, sandbox=limits))
    start = time.monotonic()

    judged = lead(hasty, ("stranger", text), ledger, through="G3", go_on=True)

    # Two runs, the checks and the start of a process; limits are of the clock, too.
    assert time.monotonic() - start < 4 * limits.wall_seconds
    assert judged.gates[1].gate == "G1"
    assert judged.gates[1].passed is False
    assert "\n" not in judged.gates[1].sentence


def test_a_candidate_that_fails_on_a_window_falls_short_there(bench):
    faulty = policy(
        "def waiting_key(request, engine):\n    return 1.0 / (engine.num_running - 3)\n"
    )

    with pytest.raises(CandidateError, match="fault on tuning windows"):
        bench.candidate(faulty, "tuning")
    # The process is there for the next one.
    assert bench.candidate(policy(GOOD.format(share=0.61)), "tuning").beside.gain.estimate > 0


def test_a_fenced_run_is_the_run(bench):
    """To the last bit, of every statistic: what a child process hands over is all of it."""
    [mine] = bench.measure([policy(GOOD_TEXT)], "tuning")
    fresh = Bench(bench.config, bench.window_set)
    fenced = fresh.candidate(policy(GOOD_TEXT), "tuning")

    for key, sample in mine.samples.items():
        other = fenced.samples[key]
        for name in ("ttft", "tpot", "e2el", "slowdown", "window", "met"):
            np.testing.assert_array_equal(getattr(sample, name), getattr(other, name))
        for field in fields(sample.totals):
            np.testing.assert_array_equal(
                getattr(sample.totals, field.name), getattr(other.totals, field.name)
            )
    assert (mine.queued, mine.step) == (fenced.queued, fenced.step)


# All of them in order.


def lead(case, candidate, ledger, **options):
    return judge(case, candidate, ledger=ledger, classics=(), **options)


def test_the_whole_way(case, ledger):
    judged = lead(
        with_run(case), None, ledger, through="G7", measured=lambda mine: ab_document(mine.source)
    )

    assert [gate.gate for gate in judged.gates] == list(GATES)
    assert judged.passed, judged.verdict
    assert judged.verdict == "passed G0 to G7"
    assert [row["seed"] for row in judged.competition] == [0, 1, 2, 3, 4]
    opened, result = judged.ledger
    assert opened["policy_sha256"] == policy(GOOD_TEXT).sha256
    assert opened["engine"] == "llama-3.1-8b/h100_sxm"
    assert result["passed"]
    assert result["score"] == judged.gates[6].saw["score"]["value"]


def test_without_real_vllm_it_does_not_pass_silently(case, ledger):
    judged = lead(with_run(case), ("mine", GOOD_TEXT), ledger, through="G7")

    assert not judged.passed
    assert judged.verdict.startswith("stopped after G6: G7 real was not run: no A/B in real vLLM")


def test_it_stops_at_the_first_that_is_not_passed(case, ledger):
    shown = []
    judged = lead(with_run(case), ("sjf", get_policy("sjf").source), ledger, show=shown.append)

    assert [gate.gate for gate in judged.gates] == ["G0", "G1"]
    assert shown == list(judged.gates)
    assert judged.verdict.startswith("fell short at G1 behaviour: somebody waits 4.")
    assert ledger.entries() == []


def test_going_on_leaves_the_held_out_windows_closed(case, ledger):
    judged = lead(
        with_run(case), ("sjf", get_policy("sjf").source), ledger, through="G7", go_on=True
    )

    assert [gate.gate for gate in judged.gates] == list(GATES)
    assert judged.gates[6].passed is None
    assert "stay closed after G1" in judged.gates[6].sentence
    assert judged.verdict.startswith("fell short at G1")
    assert ledger.entries() == []


@pytest.mark.parametrize(
    "text",
    [
        "import os\n\n\ndef waiting_key(request, engine):\n    return 0.0\n",
        "def waiting_key(request, engine):\n    return 1.0 / (engine.num_running - 3)\n",
    ],
)
def test_what_may_not_run_does_not_run_even_if_one_goes_on(case, ledger, text):
    judged = lead(with_run(case), ("bad", text), ledger, go_on=True)

    assert not judged.gates[-1].passed
    assert len(judged.gates) <= 2


def test_held_out_windows_are_written_down_before_they_are_seen(case, ledger, monkeypatch):
    def die(*_):
        [entry] = Ledger(ledger.path).entries()
        assert entry["kind"] == "opened"
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(gates, "held_out", die)
        with pytest.raises(KeyboardInterrupt):
            lead(with_run(case), ("mine", GOOD_TEXT), ledger, through="G6")

    with pytest.raises(Spent, match="no result was written"):
        lead(with_run(case), ("mine", GOOD_TEXT), ledger, through="G6")
    again = lead(with_run(case), ("mine", GOOD_TEXT), ledger, through="G6", spent=True)
    assert again.spent
    assert "SPENT" in again.verdict
    assert again.document()["spent"]
    assert [entry["spent"] for entry in again.ledger if entry["kind"] == "opened"] == [False, True]


def test_traffic_that_is_missing_spends_nothing(case, ledger, monkeypatch):
    load = Bench.load

    def missing(self, part):
        if part == "held_out":
            raise ConfigError("it is gone")
        return load(self, part)

    monkeypatch.setattr(Bench, "load", missing)
    with pytest.raises(ConfigError, match="it is gone"):
        lead(with_run(case), ("mine", GOOD_TEXT), ledger, through="G6")
    assert ledger.entries() == []


def test_seeds_compete_and_clean_ones_come_first(case, ledger):
    pairs = list(with_run(case, search=WEAK_TEXT).pairs)
    pairs[1] = replace(pairs[1], search=GOOD_TEXT)
    pairs[2] = replace(pairs[2], search=get_policy("lcfs").source)  # breaks guards
    pairs[3] = replace(pairs[3], search="")  # found nothing
    judged = lead(replace(case, pairs=tuple(pairs)), None, ledger, through="G2")

    assert judged.name == "best_seed_1"
    assert [row["seed"] for row in judged.competition] == [1, 0, 4, 2]
    with pytest.raises(ConfigError, match="nothing to judge"):
        lead(case, None, ledger)


def test_it_is_the_same_for_any_number_of_workers(case, tmp_path):
    documents = []
    for workers in (1, 3):
        judged = lead(
            with_run(case), None, Ledger(tmp_path / f"{workers}.jsonl"), through="G6",
            workers=workers,
        )  # fmt: skip
        document = plain(judged.document())
        for entry in document["ledger"]:
            for field in ("time", "sha256", "previous", "opening"):
                entry.pop(field, None)
        documents.append(json.dumps(document))
    assert documents[0] == documents[1]


def test_there_are_no_other_gates(case, ledger):
    with pytest.raises(ConfigError, match="there is no gate 'G8'"):
        lead(case, ("mine", GOOD_TEXT), ledger, through="G8")

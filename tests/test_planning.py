"""Plans: what is found where the answer is known, and what is said where there is none."""

import itertools
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import queuesmith as qs
from queuesmith.config import EngineConfig, Slo
from queuesmith.engine.presets.step_time import Preset, StepTime
from queuesmith.errors import ConfigError, TraceError
from queuesmith.evaluation.evaluate import Load, evaluate
from queuesmith.evaluation.goals import GUARDS
from queuesmith.metrics import slo_attainment
from queuesmith.planning import plan
from queuesmith.planning.answer import answer
from queuesmith.planning.curve import GRID, RESOLUTION, Curve, log_interval
from queuesmith.planning.rows import verdict
from queuesmith.policies import get_policy
from queuesmith.policies.policy import load_text
from queuesmith.traces.trace import Origin, Trace
from queuesmith.windows import cut_windows, scale_arrivals
from queuesmith.windows.predictions import OutputLengthKnowledge

#: A prompt costs one step and gives the first token, so a request of n output tokens takes n s.
ONE_SEAT = Preset(
    "one_seat",
    "One seat, 1 s a step",
    StepTime(a=1.0, provenance="made up"),
    EngineConfig(
        max_num_seqs=1, max_num_batched_tokens=64, max_model_len=1000, instant_prefill=True
    ),
)
FOUR_SEATS = replace(ONE_SEAT, name="four_seats", config=replace(ONE_SEAT.config, max_num_seqs=4))


NO_GUARDS = [f"{guard.name}=off" for guard in GUARDS]


def make_policy(name, key="request.arrival_time", *lines):
    source = "\n".join([*lines, "def waiting_key(request, engine):", f"    return {key}"])
    return load_text(name, source, Path(f"{name}.py"))


def regular(num_requests=200, output_len=4, gap=9.0):
    """Return equal requests at equal gaps."""
    rows = np.arange(num_requests)
    return Trace(gap * rows, np.full(num_requests, 10), np.full(num_requests, output_len))


def uneven(num_requests=480, seed=0, **columns):
    """Return requests of unequal lengths, shortest prompts with the shortest answers."""
    rng = np.random.default_rng(seed)
    length = rng.integers(1, 12, num_requests)
    times = np.cumsum(rng.exponential(size=num_requests))
    return Trace(times, 5 * length, length, **columns)


def capacities(trace, **options):
    """Plan; return the document and its capacities by policy (of the first engine)."""
    given = {"engine": ONE_SEAT, "policies": "fcfs", "window_len": 60, **options}
    document = plan(trace, **given).document
    first = document["config"]["engines"][0]["name"]
    return document, {
        row["policy"]: row for row in document["capacities"] if row["engine"] == first
    }


# Where the answer is known


def test_a_server_without_a_queue_carries_one_over_its_service_time():
    """D/D/1 with a TTFT of one step: nobody may wait, so gaps are at least the service time."""
    document, rows = capacities(regular(output_len=4), slo=Slo(ttft=1.001), num_windows=1)

    fcfs = rows["fcfs"]
    assert fcfs["held"] <= 0.25 <= fcfs["broke"]
    assert fcfs["broke"] <= fcfs["held"] * (1 + RESOLUTION)
    assert fcfs["rate"] == pytest.approx(0.25, rel=RESOLUTION)
    assert fcfs["rho"] == pytest.approx(1.0, rel=RESOLUTION)
    assert fcfs["multiple"] == pytest.approx(9.0 / 4.0, rel=RESOLUTION)
    assert document["config"]["engines"][0]["carried"] == pytest.approx(0.25)


@pytest.mark.parametrize("window_len", [60, 200])
def test_above_saturation_a_window_is_served_late_and_the_capacity_is_that_of_its_length(
    window_len,
):
    """With gaps of g < 4 s the k-th request waits k (4 - g) s; 90 % of them may not wait 30 s."""
    limit, target = 31.0, 0.9
    document, rows = capacities(
        regular(window_len),
        slo=Slo(ttft=limit),
        attainment=target,
        num_windows=1,
        window_len=window_len,
    )

    last = math.ceil(target * window_len) - 1
    gap = 4 - (limit - 1) / last
    assert rows["fcfs"]["rate"] == pytest.approx(1 / gap, rel=RESOLUTION)
    assert rows["fcfs"]["num_windows_overloaded"] == 1
    assert any("longer --window-len would find less" in line for line in document["warnings"])


def test_an_order_that_lets_the_short_pass_carries_more_and_is_named():
    """Pairs of a long and a short request at once: only behind the long one is the short late."""
    pairs = np.repeat(40.0 * np.arange(300), 2)
    length = np.tile([9, 1], 300)
    trace = Trace(pairs, 5 * length, length)

    document, rows = capacities(
        trace, slo=Slo(ttft=3.0), policies="fcfs,sjf", attainment=0.95, window_len=60
    )

    # FCFS leaves the short one waiting for 9 s at any rate. SJF serves it first and is idle again
    # after 10 s, so pairs may come every 10 s.
    assert rows["fcfs"]["state"] == "below"
    assert 40 / rows["sjf"]["multiple"] <= 10 * (1 + RESOLUTION)
    assert rows["sjf"]["verdict"] == "more"
    assert document["answer"]["policies"] == {"one_seat": "sjf"}
    first = document["answer"]["sentences"][0]
    assert first.startswith("Run sjf: it carries ")
    assert first.endswith("where fcfs holds it at no rate.")


def test_what_a_probe_counts_is_what_the_simulator_does_at_that_rate():
    trace = uneven(deadline=np.cumsum(np.ones(480)) * 3)
    slo = Slo(ttft=6.0, e2el=15.0)
    found = plan(trace, slo=slo, engine=ONE_SEAT, policies="fcfs,srpt", window_len=60, seed=3)
    windows = cut_windows(trace, window_len=60, seed=3)
    multiple = {(row["policy"], row["rho"]): row["multiple"] for row in found.document["probes"]}

    rng = np.random.default_rng(0)
    rows = found.probes.to_pylist()
    for place in rng.choice(len(rows), 25, replace=False):
        row = rows[place]
        scaled = scale_arrivals(
            windows[row["window"]].trace, 1 / multiple[row["policy"], row["rho"]]
        )
        result = qs.simulate(
            scaled, row["policy"], engine=ONE_SEAT, output_length="noisy", seed=[3, row["window"]]
        )
        assert row["met"] / row["num_requests"] == slo_attainment(result, slo)
        assert row["ttft_max"] == (result.requests.first_token_ts - scaled.arrival_time).max()


def test_deadlines_are_those_of_a_comparison_at_the_same_load():
    """A trace without deadlines gets them from the idle engine; `edf` orders by them."""
    trace, slo = uneven(200), Slo(ttft=10.0)
    document, _ = capacities(
        trace, slo=slo, policies="fcfs,edf", num_windows=1, window_len=200, output_length="exact"
    )
    points = {(point["policy"], point["rho"]): point["attainment"] for point in document["probes"]}
    compared = evaluate(
        [get_policy("fcfs"), get_policy("edf")],
        cut_windows(trace, num_windows=1, window_len=200),
        [Load("knee", 0.8)],
        config=ONE_SEAT.config,
        step_time=ONE_SEAT.step_time,
        output_length=OutputLengthKnowledge("exact"),
        slo=slo,
    ).cells.to_pylist()

    for cell in compared:
        assert points[cell["policy"], 0.8] == pytest.approx(cell["slo_attainment"], abs=0.006)
    assert abs(points["edf", 0.8] - points["fcfs", 0.8]) > 0.02


# What must hold whatever the traffic


@given(
    st.lists(st.lists(st.integers(0, 20), min_size=5, max_size=5), min_size=1, max_size=4),
    st.sampled_from([0.5, 0.9, 1.0]),
    st.integers(0, 2**32),
)
def test_a_capacity_is_the_first_crossing_of_the_drawn_windows(met, target, seed):
    """Against a slow and obvious search, draw by draw."""
    rho = np.array([0.1, 0.2, 0.5, 1.0, 3.0])
    weights = np.random.default_rng(seed).multinomial(
        len(met), np.full(len(met), 1 / len(met)), size=7
    )
    curve = Curve(rho, np.array(met, float), np.full(len(met), 20.0))

    found = curve.capacity(target, weights.astype(float))

    for drawn, capacity in zip(weights, found, strict=True):
        served = np.repeat(np.array(met), drawn, axis=0)
        share = served.sum(axis=0) / (20 * len(served))
        broken = [place for place in range(5) if share[place] < target]
        if not broken:
            assert capacity == np.inf
        elif broken[0] == 0:
            assert capacity == 0
        else:
            last = broken[0] - 1
            at = np.interp(np.log(capacity), np.log(rho[last : last + 2]), share[last : last + 2])
            assert rho[last] * (1 - 1e-12) <= capacity <= rho[last + 1] * (1 + 1e-12)
            assert at == pytest.approx(target, abs=1e-9)


@given(
    st.lists(st.integers(0, 20), min_size=6, max_size=6),
    st.lists(st.integers(0, 20), min_size=6, max_size=6),
    st.floats(0.05, 1.0),
)
def test_meeting_more_at_every_load_never_lowers_a_capacity(met, more, target):
    rho, ones = np.array(GRID[:6]), np.ones((1, 1))
    strict = np.array([met], float)
    lenient = np.minimum(strict + np.array([more], float), 20.0)

    low, high = (
        Curve(rho, counts, np.array([20.0])).capacity(target, ones)[0]
        for counts in (strict, lenient)
    )

    assert low <= high * (1 + 1e-12)


@pytest.mark.parametrize("seed", range(2))
def test_a_more_lenient_slo_or_a_lower_target_never_lowers_a_capacity(seed):
    trace = uneven(seed=seed)
    found = [
        capacities(trace, slo=Slo(ttft=limit), attainment=target, policies="fcfs,sjf")[1]
        for limit, target in ((6.0, 0.99), (6.0, 0.9), (30.0, 0.9))
    ]

    for policy in ("fcfs", "sjf"):
        rates = [
            math.inf if rows[policy]["rate"] is None else rows[policy]["rate"] for rows in found
        ]
        for strict, lenient in itertools.pairwise(rates):
            assert lenient >= strict * (1 - RESOLUTION)
        assert rates[-1] > rates[0]


def test_the_highest_rate_that_held_and_the_lowest_that_broke_are_half_a_tie_apart():
    _, rows = capacities(uneven(), slo=Slo(ttft=8.0), policies="fcfs,sjf,lcfs")

    for row in rows.values():
        assert row["at_held"]["attainment"] >= 0.99 > row["at_broke"]["attainment"]
        assert row["held"] <= row["rate"] <= row["broke"] <= row["held"] * (1 + RESOLUTION)
        assert row["rate_low"] <= row["rate_high"]


def test_the_numbers_are_the_same_for_any_number_of_workers():
    one, three = (
        plan(
            uneven(),
            slo=Slo(ttft=8.0),
            engine=ONE_SEAT,
            policies="fcfs,las",
            window_len=60,
            num_workers=workers,
        )
        for workers in (1, 3)
    )

    assert one.document == three.document
    assert one.probes.equals(three.probes)


def test_progress_ends_with_all_runs_done():
    seen = []
    found = plan(
        uneven(),
        slo=Slo(ttft=8.0),
        engine=[ONE_SEAT, FOUR_SEATS],
        policies="fcfs",
        window_len=60,
        progress=lambda done, total: seen.append((done, total)),
    )

    assert [done for done, _ in seen] == list(range(1, found.probes.num_rows + 1))
    assert all(done <= total for done, total in seen)
    assert seen[-1] == (found.probes.num_rows, found.probes.num_rows)


# Ties, intervals and what may be recommended


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (1.02, 1.30, "more"),
        (1.02, math.inf, "more"),
        (0.80, 0.98, "less"),
        (0.80, 0.995, "unsure"),
        (1.005, 1.30, "unsure"),
        (0.995, 1.005, "same"),
        (1.0, 1.0, "same"),
        (0.80, 1.30, "unsure"),
        (math.nan, math.nan, "unsure"),
    ],
)
def test_a_difference_counts_where_its_interval_excludes_a_tie(low, high, said):
    assert verdict(low, high) == said


def test_the_same_order_under_another_name_is_the_same():
    document, rows = capacities(uneven(), slo=Slo(ttft=8.0), policies=["fcfs", make_policy("copy")])

    copy = rows["copy"]
    assert (copy["ratio"], copy["ratio_low"], copy["ratio_high"]) == (1, 1, 1)
    assert copy["verdict"] == "same"
    assert document["answer"]["policies"] == {"one_seat": "fcfs"}
    assert "Both policies carry the same, within 1%." in document["answer"]["sentences"]


def test_a_gain_beyond_chance_is_recommended_with_its_interval():
    document, rows = capacities(
        uneven(4800),
        slo=Slo(ttft=12.0),
        attainment=0.9,
        policies="fcfs,sjf",
        window_len=600,
        guards=NO_GUARDS,
    )

    sjf = rows["sjf"]
    assert 1.01 < sjf["lasting_ratio_low"] <= sjf["ratio_low"] <= sjf["ratio"]
    assert sjf["ratio"] <= sjf["ratio_high"]
    assert document["answer"]["policies"] == {"one_seat": "sjf"}
    said = document["answer"]["sentences"][0]
    assert (
        f"{sjf['ratio']:.2f} x [{sjf['ratio_low']:.2f} to {sjf['ratio_high']:.2f}] of what" in said
    )


def test_what_breaks_a_guard_is_named_and_not_the_answer():
    """The same policy, of which the longest requests pay, at the very rate that FCFS carries."""
    document, rows = capacities(
        uneven(4800), slo=Slo(ttft=12.0), attainment=0.9, policies="fcfs,sjf", window_len=600
    )

    sjf = rows["sjf"]
    assert sjf["lasting_ratio_low"] > 1.01
    assert document["answer"]["policies"] == {"one_seat": "fcfs"}
    assert {one["load"] for one in sjf["broken"]} <= {"own", "fcfs's capacity"}
    assert "ttft_max" in {one["guard"] for one in sjf["broken"]}
    assert rows["fcfs"]["broken"] is None or rows["fcfs"]["broken"] == []
    said = " ".join(document["answer"]["sentences"])
    told = r"sjf carries .* but breaks guards: .*largest TTFT .* at fcfs's capacity"
    assert re.search(told, said)


def test_own_rate_and_capacity_head_the_answer_and_an_slo_missed_already_is_said():
    trace = uneven()
    [said] = capacities(trace, slo=Slo(ttft=8.0))[0]["answer"]["traffic"]
    document, rows = capacities(trace, slo=Slo(ttft=8.0))

    engine, own = document["config"]["engines"][0], rows["fcfs"]["at_own"]
    assert f"finishes {engine['carried']:.3f} requests/s of this traffic under fcfs" in said
    assert f"own rate is {engine['rate']:.3f} requests/s (rho " in said
    assert said.endswith("so the SLO is missed already.")
    result = qs.simulate(
        cut_windows(trace, window_len=60)[0].trace, "fcfs", engine=ONE_SEAT, seed=[0, 0]
    )
    assert own["num_requests"] == 480
    assert 0 < own["met"] < 480
    assert own["ttft_max"] >= (result.requests.first_token_ts - result.requests.arrival_time).max()


def test_each_value_of_a_grid_is_a_policy_of_its_own():
    spec = "aged_sjf(SECONDS_PER_TOKEN=0.001|1.0)"
    document, _ = capacities(regular(), slo=Slo(ttft=8.0), policies=["sjf", spec])

    assert document["config"]["policies"] == [
        "fcfs",
        "sjf",
        "aged_sjf(SECONDS_PER_TOKEN=0.001)",
        "aged_sjf(SECONDS_PER_TOKEN=1.0)",
    ]


@pytest.mark.parametrize("tail", [[], [0.0], [math.inf]])
def test_an_interval_is_as_wide_as_few_windows_ask_for(tail):
    """Of 8 windows: 2.365 standard errors x sqrt(8/7), with or without an endless draw."""
    rng = np.random.default_rng(0)
    draws = np.exp(np.r_[0.0, rng.normal(0, 0.1, 20_000)])
    low, high = log_interval(np.r_[draws, tail], 8)

    assert math.log(high) == pytest.approx(2.365 * math.sqrt(8 / 7) * 0.1, rel=0.05)
    assert math.log(low) == pytest.approx(-math.log(high), rel=0.05)


def test_an_interval_reaches_as_far_as_the_search_where_draws_do():
    assert log_interval(np.r_[1.0, np.full(90, 1.0), np.full(10, math.inf)], 8) == (1.0, math.inf)
    assert math.isnan(log_interval(np.r_[1.0, math.nan, 1.0], 8)[0])


def test_a_gain_beyond_what_the_engine_finishes_is_shown_and_not_recommended():
    """Late in a window that ends soon, an order by length is ahead of what it puts off."""
    document, rows = capacities(
        uneven(4800),
        slo=Slo(ttft=60.0),
        attainment=0.5,
        policies="fcfs,sjf",
        window_len=600,
        guards=NO_GUARDS,
    )

    fcfs, sjf = rows["fcfs"], rows["sjf"]
    assert sjf["verdict"] == "more"
    assert sjf["held"] > sjf["carried"]
    assert fcfs["held"] > fcfs["carried"]
    assert sjf["ratio"] > 1.01 > sjf["lasting_ratio"] == 1.0
    assert document["answer"]["policies"] == {"one_seat": "fcfs"}
    said = " ".join(document["answer"]["sentences"])
    assert "no policy that only changes order surely carries more" not in said
    assert "of fcfs's, but in short windows only" in said
    assert "That is more than the engine finishes, and holds for windows of 600 requests" in said


def test_an_oracle_and_a_bundle_are_marked_and_never_the_answer():
    shortest = "request.num_prompt_tokens"
    oracle = make_policy("knows", shortest, "ORACLE = True")
    bundle = make_policy("brings", "request.arrival_time", "ENGINE = {'max_num_seqs': 4}")
    document, rows = capacities(
        uneven(4800),
        slo=Slo(ttft=12.0),
        attainment=0.9,
        policies=["fcfs", oracle, bundle],
        window_len=600,
    )

    assert (rows["knows"]["kind"], rows["brings"]["kind"]) == ("oracle", "bundle")
    assert rows["knows"]["verdict"] == rows["brings"]["verdict"] == "more"
    assert rows["brings"]["carried"] > 3 * rows["fcfs"]["carried"]
    assert document["answer"]["policies"] == {"one_seat": "fcfs"}
    assert any("brings its own engine settings" in line for line in document["answer"]["sentences"])


def test_one_window_has_no_interval_and_recommends_nothing():
    document, rows = capacities(
        uneven(),
        slo=Slo(ttft=12.0),
        attainment=0.9,
        policies="fcfs,sjf",
        num_windows=1,
        window_len=480,
    )

    sjf = rows["sjf"]
    assert sjf["ratio"] > 1.01
    assert sjf["rate_low"] is sjf["rate_high"] is sjf["ratio_low"] is None
    assert sjf["verdict"] == "unsure"
    assert document["answer"]["policies"] == {"one_seat": "fcfs"}
    assert any("One window has no interval" in line for line in document["answer"]["sentences"])


def test_the_interval_holds_the_capacity_of_endless_traffic():
    slo, options = Slo(ttft=10.0), {"attainment": 0.9, "window_len": 200}
    truth = capacities(uneven(8_000, seed=99), slo=slo, num_windows=40, **options)[1]["fcfs"]

    held = 0
    for seed in range(5):
        fcfs = capacities(uneven(1600, seed=seed), slo=slo, **options)[1]["fcfs"]
        held += fcfs["rho_low"] <= truth["rho"] <= fcfs["rho_high"]

    assert held >= 4


# Where there is no capacity


def test_an_slo_that_an_idle_engine_misses_is_unreachable_and_says_by_how_many_requests():
    trace = regular(480)
    lengths = np.where(np.arange(480) % 10 == 0, 9, 4)
    document, rows = capacities(replace(trace, output_len=lengths), slo=Slo(ttft=2.0, e2el=8.0))

    assert rows["fcfs"]["state"] == "unreachable"
    assert rows["fcfs"]["rate"] == 0
    assert rows["fcfs"]["idle"]["over_e2el"] == 48
    assert document["answer"]["policies"] == {"one_seat": None}
    assert document["answer"]["sentences"][0] == (
        "This SLO cannot be met at any rate: of 480 requests, each alone on an idle engine, "
        "48 exceed e2el 8 s, so at most 90 % are within it, not 99 %. Loosen that limit or take a "
        "faster engine."
    )


def test_requests_that_arrive_together_break_an_slo_at_any_rate():
    trace = Trace(np.repeat(50.0 * np.arange(240), 2), np.full(480, 9), np.full(480, 4))

    document, rows = capacities(trace, slo=Slo(ttft=2.0))

    assert rows["fcfs"]["state"] == "below"
    said = document["answer"]["sentences"][0]
    assert "fcfs misses the target of 99 % even at" in said
    assert "50.8 % of requests arrive at the very instant of the one before" in said


def test_an_slo_that_no_rate_breaks_has_no_capacity():
    document, rows = capacities(regular(), slo=Slo(ttft=1e6))

    fcfs = rows["fcfs"]
    assert (fcfs["state"], fcfs["rate"], fcfs["broke"]) == ("above", None, None)
    assert fcfs["held"] == pytest.approx(GRID[-1] * 0.25)
    assert "at every rate searched, up to 0.800 requests/s" in document["answer"]["sentences"][0]
    assert document["answer"]["policies"] == {"one_seat": "fcfs"}


def test_a_curve_that_meets_the_target_again_is_cut_at_its_first_break():
    curve = Curve(
        np.array([0.1, 0.2, 0.4, 0.8, 1.6]), np.array([[10.0, 8, 10, 10, 2]]), np.array([10.0])
    )

    assert 0.1 <= curve.capacity(0.9, np.ones((1, 1)))[0] <= 0.2
    assert curve.regained(0.9) == [0.4, 0.8]
    assert curve.wanted(0.9, np.empty(0)) == pytest.approx([math.sqrt(0.1 * 0.2)])


def test_a_curve_that_meets_the_target_again_is_said_to():
    document, rows = capacities(uneven(), slo=Slo(ttft=12.0), attainment=0.9)
    assert not any("again" in line for line in answer(document)["sentences"])
    rows["fcfs"]["regained"] = [0.25]

    said = answer(document)["sentences"]

    assert any(line.startswith("fcfs meets the target again at 0.250 requests/s") for line in said)


# What is warned of


def test_so_few_requests_that_one_decides_are_warned_of():
    document, _ = capacities(uneven(), slo=Slo(ttft=8.0))

    assert any("hangs on a few requests" in line for line in document["warnings"])


def test_a_window_shorter_than_its_requests_is_warned_of():
    roomy = replace(ONE_SEAT.config, max_num_seqs=64)
    trace = Trace(np.arange(480.0), np.full(480, 9), np.full(480, 300))
    document, _ = capacities(
        trace, slo=Slo(e2el=310.0), engine=replace(ONE_SEAT, config=roomy), attainment=0.9
    )

    assert any("the engine is still filling up" in line for line in document["warnings"])


def test_modelled_traffic_few_windows_and_clients_who_leave_are_said():
    trace = uneven(120, origin=Origin("modelled"), abort_time=np.full(120, np.inf))
    document, _ = capacities(trace, slo=Slo(ttft=8.0))

    assert document["config"]["num_windows"] == 2
    assert "The traffic is modelled" in document["answer"]["sentences"][-1]
    assert document["warnings"][0].startswith("only 2 windows of 60 requests")
    assert any("client gave up" in line for line in document["warnings"])


def test_engines_stand_side_by_side_each_with_its_own_capacity():
    document, _ = capacities(uneven(), slo=Slo(ttft=8.0), engine=[ONE_SEAT, FOUR_SEATS])

    one, four = document["capacities"]
    assert (one["engine"], four["engine"]) == ("one_seat", "four_seats")
    assert four["rate"] > 3 * one["rate"]
    assert one["rate"] / one["multiple"] == pytest.approx(four["rate"] / four["multiple"])
    assert document["answer"]["sentences"][0].startswith("four_seats carries ")


# What is refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"slo": None}, "needs an SLO"),
        ({"slo": Slo()}, "needs an SLO"),
        ({"attainment": 0.0}, "attainment must be a share"),
        ({"attainment": 1.01}, "attainment must be a share"),
        ({"attainment": math.nan}, "attainment must be a share"),
        ({"engine": []}, "no engine was given"),
        ({"engine": [ONE_SEAT, ONE_SEAT]}, "'one_seat' is given twice"),
        ({"policies": "sjf,sjf"}, "given twice"),
        ({"guards": ["ttft_p9=0.1"]}, "no guard 'ttft_p9'"),
        ({"num_workers": 0}, "num_workers must be at least 1"),
        (
            {"policies": [make_policy("odd", "0.0", "ENGINE = {'max_num_seqs': 99}")]},
            "ENGINE of policy",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(options, message):
    with pytest.raises((ConfigError, qs.QueuesmithError), match=message):
        plan(uneven(), **{"slo": Slo(ttft=8.0), "engine": ONE_SEAT, "policies": "fcfs", **options})


def test_a_window_whose_requests_all_arrive_at_once_is_refused():
    trace = Trace(np.zeros(60), np.full(60, 9), np.full(60, 4))

    with pytest.raises(TraceError, match="arrive at the same time"):
        capacities(trace, slo=Slo(ttft=8.0))


def test_a_plan_shows_its_answer():
    found = plan(regular(), slo=Slo(ttft=8.0), engine=ONE_SEAT, policies="fcfs", window_len=60)

    assert repr(found).startswith("Plan(Stay with fcfs: it carries")

"""LSSP to the letter: its requests, loads, reference rate and metrics, and what it published."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from published_values import lssp_windows, published_anwg
from scipy.stats import kendalltau

from queuesmith.errors import TraceError
from queuesmith.metrics import METRICS as OF_RUNS
from queuesmith.study.design import Design
from queuesmith.study.inputs import Source
from queuesmith.study.lssp import (
    METRICS,
    REGIONS,
    at_factor,
    lambda_ref,
    measure_slots,
    run_window,
    synthesize,
)
from queuesmith.study.lssp_engine import SlotRequests, simulate_slots
from queuesmith.study.lssp_panel import NAMES, PRIMARY
from queuesmith.study.lssp_windows import (
    RECIPES,
    Recipe,
    predict,
    read_slot_inputs,
    window_number,
    window_rows,
)
from queuesmith.study.published import (
    SOURCES,
    compare_with_published,
    published,
    short_name,
)
from queuesmith.traces.catalog import TRACES_VARIABLE
from queuesmith.traces.trace import Trace
from queuesmith.windows import UNKNOWN_ROW, Window

HEADER = (
    "window_id,lambda_ref,request_index,arrival_time_s,prompt_tokens,output_tokens,"
    "predicted_output_tokens\n"
)


def window_of(arrival, prompt, output, name="some_w10", predicted=None):
    trace = Trace(arrival, prompt, output)
    return Window(trace, 0, UNKNOWN_ROW, trace.sha256, name, predicted)


@pytest.fixture(scope="module")
def published_windows(traces_dir):
    entries = lssp_windows(traces_dir / "lssp_windows")
    assert [entry.source for entry in entries] == [name for name in SOURCES for _ in range(10)]
    return entries


# --- What was published ---------------------------------------------------------------------------


def test_all_30_published_reference_rates(published_windows):
    for entry in published_windows:
        found = lambda_ref(synthesize(entry.window))
        # They are published with nine digits after the point.
        assert found == pytest.approx(entry.window.lambda_ref, rel=1e-10), entry.window.name


def test_all_660_published_values_of_anwg(published_windows):
    """Eleven policies, 30 windows, two regions; every one to the request."""
    regions = {name: REGIONS[name] for name in ("KNEE", "HIGH_PRESSURE")}
    compared = 0
    for entry in published_windows:
        for row in run_window(entry.window, PRIMARY, regions):
            expected = published_anwg(entry.window.name, row["load"])[row["policy"]]
            assert row["anwg"] == pytest.approx(expected, abs=1e-12), (entry.window.name, row)
            compared += 1
    assert compared == 660


def test_predictions_reproduce_the_published_column(published_windows):
    for entry in published_windows:
        window = entry.window
        drawn = predict(window.trace.output_len, window.name)
        np.testing.assert_array_equal(drawn, window.predicted_output_tokens)


def test_the_published_agreement_follows_from_the_published_values():
    """So the 2,640 values of ANWG were copied right, those of windows not at hand included."""
    numbers = published()
    for region in ("KNEE", "HIGH_PRESSURE"):
        means = {
            short_name(source): [numbers["anwg", region, short_name(source), p] for p in PRIMARY]
            for source in SOURCES
        }
        for pair in ("azure-bailian", "azure-burstgpt", "bailian-burstgpt"):
            one, other = pair.split("-")
            # Means that are equal may differ in the last bit.
            tau = kendalltau(np.round(means[one], 9), np.round(means[other], 9)).statistic
            assert tau == pytest.approx(numbers["tau_b", region, pair], abs=1e-9), (region, pair)


def test_published_counts_add_up():
    numbers = published()
    for region in REGIONS:
        kinds = ("reversals", "reversals_stable", "reversals_microscopic")
        assert sum(numbers[kind, region] for kind in kinds) == 55 * 3
    total = sum(numbers["reversals", region] for region in REGIONS)
    for what in ("reversals_of_sources", "reversals_of_policies"):
        assert sum(value for key, value in numbers.items() if key[0] == what) == total == 36
    taus = [value for key, value in numbers.items() if key[0] == "tau_b"]
    assert len(taus) == 18
    assert np.mean(taus) == pytest.approx(numbers["tau_b_mean", "anwg"], abs=1e-9)
    assert min(taus) == pytest.approx(numbers["tau_b_min", "anwg"])


def test_ours_is_set_beside_what_was_published():
    key = ("tau_b", "KNEE", "azure-burstgpt")
    rows = {row["what"]: row for row in compare_with_published({key: 0.5})}

    assert len(rows) == len(published())
    row = rows["tau_b KNEE azure-burstgpt"]
    assert row["published"] == pytest.approx(0.645833, abs=1e-6)
    assert row["difference"] == pytest.approx(0.5 - 0.645833, abs=1e-6)
    assert math.isnan(rows["tau_b LOW azure-burstgpt"]["ours"])


# --- Windows --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "pilot", "further"),
    [
        ("azure_llm_2024", [543_015, 5_411_814, 26_813_828], [858_582, 1_274_332, 27_145_700]),
        ("bailian_qwen", [52_305, 65_369, 168_717], [52_699, 57_949, 171_033]),
        ("burstgpt", [757_794, 1_035_916, 3_500_204], [510_504, 650_802, 3_706_873]),
    ],
)
def test_the_recipe_finds_the_published_rows(source, pilot, further):
    rows = dict(window_rows(RECIPES[source]))

    assert len(rows) == 40
    assert [rows[f"{source}_stage0_w{number:02d}"] for number in (0, 1, 9)] == pilot
    assert [rows[f"{source}_pilot_v2_w{number:02d}"] for number in (10, 11, 39)] == further
    begins = list(rows.values())
    assert begins == sorted(begins)
    assert (np.diff(begins) >= 200).all()
    assert begins[0] >= RECIPES[source].offset
    assert begins[-1] + 200 <= RECIPES[source].num_rows


def test_published_windows_know_their_place(published_windows):
    azure = published_windows[:10]
    assert [entry.window.index for entry in azure] == list(range(10))
    assert azure[0].window.start_row == 858_582
    assert azure[0].position == pytest.approx(858_582 / 27_303_999)
    assert all(entry.kind == "real" for entry in published_windows)


def test_with_the_trace_at_hand_all_40_windows_are_cut(tmp_path, monkeypatch):
    """On a small trace, since the real ones have millions of rows."""
    recipe = replace(RECIPES["burstgpt"], num_rows=12_000, offset=500)
    monkeypatch.setattr("queuesmith.study.lssp_windows.RECIPES", {"burstgpt": recipe})
    trace = Trace(np.arange(12_000.0), np.arange(1, 12_001), np.full(12_000, 7))
    monkeypatch.setattr("queuesmith.study.lssp_windows.load_trace", lambda path: trace)
    monkeypatch.setattr(
        "queuesmith.study.lssp_windows.find_file", lambda name, folder: folder / f"{name}.csv"
    )
    source = Source("burstgpt", (recipe.trace, "burstgpt.csv"), "", 40)
    (inputs,) = read_slot_inputs([source], tmp_path)

    assert len(inputs.windows) == 40
    assert inputs.file == "burstgpt_without_fails_2.csv"
    assert "cut again" in inputs.notes[0]
    for index, entry in enumerate(inputs.windows):
        window = entry.window
        assert window.index == index
        assert window.trace.prompt_len[0] == window.start_row + 1
        assert len(window.trace) == 200
        np.testing.assert_array_equal(
            window.predicted_output_tokens, predict(window.trace.output_len, window.name)
        )
    monkeypatch.setattr(
        "queuesmith.study.lssp_windows.load_trace", lambda path: trace.take(slice(9))
    )
    with pytest.raises(TraceError, match="has 9 usable rows where LSSP counted 12,000"):
        read_slot_inputs([source], tmp_path)


def test_sources_that_cannot_be_had_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv(TRACES_VARIABLE, str(tmp_path))
    with pytest.raises(TraceError, match="QUEUESMITH_TRACES"):
        lssp_windows()
    (tmp_path / "burstgpt.csv").write_text(HEADER + "burst,2,0,0,1,1,1\n")
    with pytest.raises(TraceError, match="'burst' has no number after a w"):
        read_slot_inputs([Source("burstgpt", ("burstgpt.csv",), "", 40)])


def test_the_number_of_a_window_is_what_follows_its_last_w():
    assert window_number("two_waves_w07") == 7
    assert [window_number(f"{name}_pilot_v2_w19") for name in SOURCES] == [19] * 3


def test_azure_arrivals_have_the_rounding_of_seconds_since_1970(published_windows):
    arrival = published_windows[0].window.trace.arrival_time

    # 48 us after the first, in steps of 2**-22 s.
    assert arrival[1] == 201 * 2.0**-22
    assert (arrival * 2.0**22 % 1 == 0).all()


# --- Requests and loads ---------------------------------------------------------------------------


def test_deadlines_follow_the_prediction():
    window = window_of([5.0, 6.0], [100, 10], [3, 40], predicted=np.array([2.0, 50.0]))
    requests = synthesize(window)

    assert requests.arrival_time.tolist() == [0.0, 1.0]
    np.testing.assert_allclose(
        requests.deadline, [20 * (0.04 + 0.04), 1 + 20 * (0.004 + 1.0)], rtol=1e-15
    )


def test_predictions_are_drawn_where_none_were_published():
    window = window_of(np.arange(500.0), [9] * 500, [1] * 250 + [4_000] * 250)
    predicted = synthesize(window).predicted_output_tokens

    assert predicted.min() == 1
    assert predicted.max() == 4_096
    assert np.std(np.log(predicted[250:][predicted[250:] < 4_096])) > 0.05
    np.testing.assert_array_equal(predicted, synthesize(window).predicted_output_tokens)
    missing = window_of([0.0, 1.0], [1, 1], [1, 1], predicted=np.array([1.0, np.nan]))
    with pytest.raises(TraceError, match="lacks the prediction"):
        synthesize(missing)


def test_a_factor_divides_gaps_and_the_time_to_deadlines():
    requests = SlotRequests(
        np.array([0.0, 4.0]), *np.full((3, 2), 5), deadline=np.array([2.0, 10.0])
    )
    faster = at_factor(requests, 4.0)

    assert faster.arrival_time.tolist() == [0.0, 1.0]
    assert faster.deadline.tolist() == [0.5, 2.5]
    assert faster.prompt_len.tolist() == [5, 5]


def test_the_reference_rate_is_where_fifo_is_first_late():
    # Alone, 100 tokens take 0.1 s and the deadline leaves 20 x 0.02 x 100 = 40 s, of which a
    # factor of 400 leaves 0.1 s. (The first prompt token costs 0.008 s more.)
    window = window_of([0.0, 1e4], [1, 1], [100, 100], predicted=np.array([100.0, 100.0]))
    requests = synthesize(window)
    found = lambda_ref(requests)

    assert found == pytest.approx(400.08, rel=0.01)
    for factor, late in ((found * 0.999, False), (found * 1.001, True)):
        rows = simulate_slots("fifo", at_factor(requests, factor)).rows
        assert bool((rows.last_token_ts > rows.deadline).any()) is late


def test_the_reference_rate_has_ends():
    always = SlotRequests(np.zeros(1), *np.full((3, 1), 9), deadline=np.zeros(1))
    never = SlotRequests(np.zeros(1), *np.full((3, 1), 9), deadline=np.full(1, 1e9))

    assert (lambda_ref(always), lambda_ref(never)) == (0.01, 10_000.0)


# --- Metrics --------------------------------------------------------------------------------------


def test_metrics_by_hand():
    """Three finish, one of them late; one never starts."""
    requests = SlotRequests(
        np.array([0.0, 0.0, 0.0005, 0.001]),
        np.array([10, 20, 30, 200_000]),
        np.array([1, 3, 2, 5]),
        np.array([1, 3, 2, 5]),
        np.array([1.0, 0.002, 0.5, 9.0]),
    )
    numbers = measure_slots(simulate_slots("fifo", requests))

    assert numbers["num_requests"] == 4
    assert numbers["num_unfinished"] == 1
    assert numbers["completion_fraction"] == 0.75
    assert numbers["anwg"] == 0.5
    assert numbers["slo_violation_rate"] == pytest.approx(1 / 3)
    assert numbers["weighted_goodput"] == pytest.approx(2 / 3)
    # Latencies of the three: 1, 3 and 2.5 ms; first tokens after 1, 1 and 1.5 ms.
    assert numbers["e2el_mean"] == pytest.approx(6.5e-3 / 3)
    assert numbers["e2el_p95"] == pytest.approx(np.percentile([1e-3, 3e-3, 2.5e-3], 95))
    assert numbers["ttft_mean"] == pytest.approx(3.5e-3 / 3)
    assert numbers["queued_time_max"] == pytest.approx(0.5e-3)
    assert numbers["tpot_mean"] == pytest.approx(1e-3)
    # The run ends 50,000 steps after the last arrival, which every rate suffers from.
    assert numbers["request_throughput"] == pytest.approx(3 / 50.0, rel=1e-3)
    assert numbers["output_throughput"] == pytest.approx(6 / 50.0, rel=1e-3)
    # Twice the slack rescues the late one: 4 ms; half of it loses none of the others.
    assert numbers["anwg_slack_2"] == 0.75
    assert numbers["anwg_slack_0.5"] == 0.5
    assert numbers["ttft_mean_q1"] == pytest.approx(1e-3)
    assert math.isnan(numbers["ttft_mean_q4"])


def test_a_run_in_which_nobody_finishes_has_no_latencies_and_no_rates():
    requests = SlotRequests(np.zeros(1), *np.full((3, 1), 200_000), deadline=np.ones(1))
    numbers = measure_slots(simulate_slots("fifo", requests))

    assert numbers["anwg"] == numbers["completion_fraction"] == 0
    assert math.isnan(numbers["ttft_mean"])
    assert math.isnan(numbers["e2el_p95"])
    assert math.isnan(numbers["request_throughput"])
    assert math.isnan(numbers["slo_violation_rate"])


def test_a_window_gives_a_row_for_every_region_and_policy():
    rng = np.random.default_rng(1)
    window = window_of(np.cumsum(rng.exponential(0.1, 60)), rng.integers(1, 900, 60), [20] * 60)
    rows = run_window(window, NAMES)

    assert [(row["load"], row["policy"]) for row in rows] == [
        (load, policy) for load in REGIONS for policy in NAMES
    ]
    assert {row["load"]: row["multiplier"] for row in rows} == dict(REGIONS)
    for row in rows:
        assert set(METRICS) <= set(row)
        numbers = set(row) - {"load", "multiplier", "policy", *METRICS}
        known = set(OF_RUNS) | {"fcfs_queued_steps"}
        assert all(name in known or name.startswith(("anwg_", "ttft_mean_")) for name in numbers)
    assert repr(rows) == repr(run_window(window, NAMES))


# --- Designs --------------------------------------------------------------------------------------


def test_the_design_runs_the_whole_panel_in_every_region(traces_dir, monkeypatch):
    monkeypatch.setenv(TRACES_VARIABLE, str(traces_dir))
    design = Design.load("lssp")

    assert design.policy_names == NAMES
    assert dict(design.multipliers) == dict(REGIONS)
    assert {metric for metric in METRICS if metric not in design.metrics} == set()
    assert len(design.windows) == 30
    json.dumps(design.table)


def test_the_mended_design_has_the_regions_of_ours():
    design = Design.load("lssp_fixed")
    assert design.load_names == ("light", "moderate", "busy", "knee", "overload", "heavy")


def test_recipes_are_of_the_catalogue():
    from queuesmith.traces.catalog import get_entry

    for recipe in RECIPES.values():
        assert isinstance(recipe, Recipe)
        entry = get_entry(recipe.trace)
        assert entry.num_rows in (None, recipe.num_rows)

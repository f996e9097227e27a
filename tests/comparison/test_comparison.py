"""A whole comparison: its document, what its hash stands for, and real traffic."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import queuesmith
from queuesmith.comparison.compare import SCHEMA, compare
from queuesmith.comparison.panel import DEFAULT_POLICIES, split_grids
from queuesmith.config import EngineConfig, Slo
from queuesmith.engine.presets.step_time import StepTime, get_preset
from queuesmith.errors import ConfigError, TraceError, UnknownPolicy
from queuesmith.metrics import METRICS
from queuesmith.policies import get_policy
from queuesmith.policies.policy import load_text
from queuesmith.traces import Trace, load_trace
from queuesmith.windows import cut_windows

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "compare_json.md"

POLICY = "def waiting_key(request, engine):\n    return request.num_prompt_tokens + 0.5\n"


@pytest.fixture(scope="module")
def trace():
    return load_trace("azure_2023_conv@model", num_requests=600, seed=3)


def small(trace, policies=("fcfs", "sjf"), loads="knee,heavy", **options):
    return compare(trace, policies, loads, **{"window_len": 60, "num_windows": 8, **options})


@pytest.fixture(scope="module")
def comparison(trace):
    return small(trace, ["fcfs", "sjf", "srpt_oracle", "vllm_unchunked"])


def own(text=POLICY):
    return load_text("own", text, Path("own.py"))


def test_the_document_is_complete_and_plain_json(comparison):
    document = comparison.to_json()

    assert list(document) == [
        "schema",
        "version",
        "origin",
        "config",
        "answer",
        "leaderboard",
        "loads",
        "cells",
        "warnings",
    ]
    assert document["schema"] == SCHEMA
    assert document["version"] == queuesmith.__version__
    assert json.loads(json.dumps(document, allow_nan=False)) == document


def test_the_tables_have_every_policy_load_and_window(comparison):
    document = comparison.to_json()
    policies = ["fcfs", "sjf", "srpt_oracle", "vllm_unchunked"]

    assert document["config"]["policies"] == policies
    assert sorted(row["policy"] for row in document["leaderboard"]) == policies
    assert len(document["loads"]) == 4 * 2
    assert len(document["cells"]) == 4 * 2 * 8 == comparison.cells.num_rows
    assert all(set(METRICS) == set(row["metrics"]) for row in document["loads"])
    assert all(set(METRICS) < set(row) for row in document["cells"])
    kinds = {row["policy"]: row["kind"] for row in document["leaderboard"]}
    assert list(map(kinds.get, policies)) == ["policy", "policy", "oracle", "bundle"]


def test_the_config_says_what_was_run(comparison, trace):
    config = comparison.to_json()["config"]
    preset = get_preset("llama-3.1-8b/h100_sxm")

    assert [(load["name"], load["rho"]) for load in config["loads"]] == [
        ("knee", 0.95),
        ("heavy", 1.5),
    ]
    for load in (*config["loads"], config["own"]):
        assert load["rate"] / load["rho"] == pytest.approx(config["capacity"])
    assert (config["num_windows"], config["window_len"], config["seed"]) == (8, 60, 0)
    assert (config["preset"], config["provenance"]) == (preset.name, preset.step_time.provenance)
    assert config["engine"]["max_num_seqs"] == preset.config.max_num_seqs
    assert config["step_time"]["b1"] == preset.step_time.b1
    assert config["slo"] == {"ttft": 1.0, "tpot": 0.05, "e2el": None}
    assert config["policy_sha256"]["sjf"] == get_policy("sjf").sha256
    assert len({window["sha256"] for window in config["windows"]}) == 8
    for window in config["windows"]:
        assert 0 <= window["start_row"] <= len(trace) - 60
        assert window["capacity"] > 0


def test_undefined_numbers_are_null(trace):
    document = small(trace, slo=None, loads="knee", num_windows=1).to_json()

    assert document["config"]["slo"] is None
    for row in document["loads"]:
        assert row["metrics"]["slo_attainment"] is row["metrics"]["goodput"] is None
        assert row["changes"]["ttft_mean"]["low"] is row["p_value"] is None
    assert document["leaderboard"][0]["gains"]["ttft"]["low"] is None


def test_modelled_traffic_is_called_so(comparison, trace):
    origin = comparison.to_json()["origin"]

    assert (origin["kind"], origin["source"]) == ("modelled", "azure_2023_conv@model")
    assert origin["num_requests"] == len(trace)
    assert "modelled" in " ".join(comparison.to_json()["answer"]["sentences"])


def test_the_answer_names_a_policy_that_can_be_deployed(comparison):
    found = comparison.to_json()["answer"]

    assert found["policy"] in ("fcfs", "sjf")
    assert set(found["by_load"]) == {"knee", "heavy"}
    assert found["sentences"][0] in repr(comparison)


@pytest.mark.parametrize("num_workers", [1, 3])
def test_the_same_input_gives_the_same_bytes(comparison, trace, num_workers):
    policies = ["fcfs", "sjf", "srpt_oracle", "vllm_unchunked"]

    again = small(trace, policies, num_workers=num_workers)

    assert json.dumps(again.to_json()) == json.dumps(comparison.to_json())


CHANGES = {
    "seed": {"seed": 1},
    "policies": {"policies": ["fcfs", own(), "hrrn"]},
    "policy text": {"policies": ["fcfs", own(POLICY.replace("0.5", "0.25"))]},
    "loads": {"loads": "knee,1.4"},
    "number of windows": {"num_windows": 7},
    "length of windows": {"window_len": 61},
    "SLO": {"slo": Slo(ttft=2.0)},
    "knowledge": {"output_length": "exact"},
    "engine": {"engine": "llama-3.1-8b/a100_sxm"},
    "setting": {"config": replace(get_preset("llama-3.1-8b/h100_sxm").config, max_num_seqs=64)},
    "step time": {"step_time": get_preset("llama-3.1-8b/h100_sxm").step_time.with_host_overhead(1)},
    "traffic": {"trace": load_trace("azure_2023_conv@model", num_requests=600, seed=4)},
}


@pytest.fixture(scope="module")
def base_hash(trace):
    return small(trace, ["fcfs", own()]).config["sha256"]


@pytest.mark.parametrize("change", CHANGES)
def test_the_hash_changes_with_every_input(trace, base_hash, change):
    changed = small(**{"trace": trace, "policies": ["fcfs", own()], **CHANGES[change]})

    assert changed.config["sha256"] != base_hash


def test_the_hash_is_the_same_for_the_same_input(trace, base_hash):
    again = small(trace, ["fcfs", own()], num_workers=1, notes=["remember the milk"])

    assert again.to_json()["config"]["sha256"] == base_hash
    assert re.fullmatch("[0-9a-f]{64}", base_hash)


def test_fcfs_is_added_as_the_reference(trace):
    document = small(trace, ["sjf"], "knee").to_json()

    assert document["config"]["policies"] == ["fcfs", "sjf"]
    assert document["config"]["reference"] == "fcfs"


def test_the_default_policies_can_all_be_deployed_as_they_are():
    singles, grids = split_grids(DEFAULT_POLICIES)
    policies = [*singles, *(member for grid in grids for member in grid.members)]

    assert len(grids) == 2
    assert not any(policy.oracle or policy.is_bundle for policy in policies)
    assert DEFAULT_POLICIES[0] == "fcfs"


def test_notes_come_before_other_warnings(trace):
    warnings = small(trace, loads="knee", notes=["remember the milk"]).warnings

    assert warnings[0] == "remember the milk"
    assert any("windows of 60 requests" in warning for warning in warnings[1:])


def test_progress_counts_up_to_all_runs(trace):
    seen = []

    small(trace, num_windows=3, progress=lambda done, total: seen.append((done, total)))

    assert seen == [(done, 12) for done in range(1, 13)]


def test_an_engine_of_your_own_takes_the_place_of_the_preset(trace):
    config = EngineConfig(max_num_seqs=4, max_num_batched_tokens=512)

    document = small(trace, loads="knee", config=config, step_time=StepTime(a=0.5)).to_json()

    assert document["config"]["engine"]["max_num_seqs"] == 4
    assert document["config"]["provenance"] == "given by the user"
    ttft = next(row["metrics"]["ttft_p50"] for row in document["loads"] if row["policy"] == "fcfs")
    assert ttft >= 0.5


def test_a_grid_is_judged_by_the_value_that_other_windows_choose(trace):
    spec = "aged_sjf(SECONDS_PER_TOKEN=0.0003|0.003)"

    found = small(trace, ["fcfs", spec], "heavy")

    name = found.config["policies"][1]
    assert name in spec.replace("0.0003|0.003", "0.0003") + spec.replace("0.0003|0.003", "0.003")
    assert found.config["chosen"][name].startswith("SECONDS_PER_TOKEN chosen from 0.0003, 0.003")
    assert set(found.cells["policy"].to_pylist()) == {"fcfs", name}
    assert found.cells.num_rows == 2 * 8
    with pytest.raises(ConfigError, match="given by itself and within a grid"):
        small(trace, ["fcfs", name, spec], "heavy")


def test_goals_order_the_leaderboard(trace):
    found = small(trace, goal="e2el")

    assert found.config["goal"] == "e2el"
    gains = [row.gains["e2el"].change for row in found.leaderboard if row.eligible]
    assert gains == sorted(gains)


def test_a_p999_that_is_asked_for_needs_requests(trace):
    with pytest.raises(ConfigError, match=r"a p99\.9 needs 1,000 requests and these windows hold"):
        small(trace, guards=["ttft_p999=0.1"])
    small(trace, loads="knee", guards=["ttft_p999=off"])


def test_two_policies_of_one_name_are_refused(trace):
    with pytest.raises(ConfigError, match="'own' is given twice; rename one file"):
        small(trace, [own(), own(POLICY + "\n")])


def test_nothing_else_may_be_called_fcfs(trace):
    impostor = load_text("fcfs", POLICY, Path("fcfs.py"))

    with pytest.raises(ConfigError, match=r"fcfs\.py would stand in for fcfs"):
        small(trace, [impostor, "sjf"])


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"policies": ["fcsf"]}, UnknownPolicy, "Did you mean 'fcfs'?"),
        ({"loads": "nee"}, ConfigError, "Did you mean 'knee'?"),
        ({"engine": "llama-3.1-8b/h100"}, ConfigError, "Did you mean 'llama-3.1-8b/h100_sxm'?"),
        ({"output_length": "nosy"}, ConfigError, "none, exact, noisy or noisy:SIGMA"),
        ({"num_windows": 0}, ConfigError, "num_windows must be at least 1, got 0"),
        ({"goal": "latency"}, ConfigError, "there is no goal 'latency'"),
        ({"goal": "slo", "slo": None}, ConfigError, "the goal slo needs an SLO"),
        ({"guards": ["ttft"]}, ConfigError, "--guard must look like"),
        ({"seed": -1}, ConfigError, "seed must be at least 0, got -1"),
        ({"num_workers": 0}, ConfigError, "num_workers must be at least 1, got 0"),
        ({"trace": Trace([], [], [])}, TraceError, "has no requests"),
    ],
)
def test_an_argument_that_makes_no_sense_is_refused(trace, options, error, message):
    with pytest.raises(error) as raised:
        small(**{"trace": trace, **options})

    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("name", "num_requests"),
    [("AzureLLMInferenceTrace_conv.csv", 19_366), ("AzureLLMInferenceTrace_code.csv", 8_819)],
)
def test_real_traffic_is_compared_and_called_real(traces_dir, name, num_requests):
    trace = load_trace(traces_dir / "azure_2023" / name)

    found = compare(trace, ["fcfs", "sjf", "srpt"], "light,heavy", num_windows=16, window_len=500)
    document = found.to_json()

    origin = document["origin"]
    assert (origin["kind"], origin["source"]) == ("real", name)
    assert origin["reader"].startswith("azure")
    assert origin["num_requests"] + sum(origin["dropped"].values()) == num_requests
    assert "modelled" not in " ".join(document["answer"]["sentences"])
    rows = {(row["policy"], row["load"]): row for row in document["loads"]}
    assert rows["srpt", "heavy"]["changes"]["ttft_mean"]["high"] < 0
    fcfs = [rows["fcfs", load]["metrics"]["ttft_mean"] for load in ("light", "heavy")]
    assert fcfs[0] < fcfs[1]
    assert all(row["metrics"]["num_requests"] == 16 * 500 for row in document["loads"])


def test_rows_left_out_of_a_file_are_counted_in_the_origin(tmp_path):
    lines = ["arrival_time,prompt_len,output_len"]
    lines += [f"{row},{100 + row},{5 + row % 7}" for row in range(40)]
    (tmp_path / "log.csv").write_text("\n".join([*lines, "40,-1,5", "41,0,5", "42,7,nan"]))

    origin = small(load_trace(tmp_path / "log.csv"), loads="knee").origin

    assert (origin["kind"], origin["source"], origin["num_requests"]) == ("real", "log.csv", 40)
    assert sum(origin["dropped"].values()) == 3
    assert "prompt_len negative" in origin["dropped"]


def keys_of(value, path=""):
    """Yield every key of a document; those of mappings by policy or load are not names."""
    if isinstance(value, dict):
        for key, item in value.items():
            named = (".by_load", ".policy_sha256", ".dropped", ".chosen", ".gains", ".changes")
            if not path.endswith(named):
                yield key
            yield from keys_of(item, f"{path}.{key}")
    elif isinstance(value, list):
        for item in value[:1]:
            yield from keys_of(item, path)


def test_the_page_names_every_key_of_the_document(comparison):
    named = set(re.findall(r"`([^`]+)`", PAGE.read_text()))

    assert set(keys_of(comparison.to_json())) - named == set()


def test_every_number_of_the_document_is_finite(comparison):
    def numbers(value):
        if isinstance(value, dict | list):
            for item in value.values() if isinstance(value, dict) else value:
                yield from numbers(item)
        elif isinstance(value, float):
            yield value

    found = list(numbers(comparison.to_json()))
    assert len(found) > 1000
    assert all(map(math.isfinite, found))
    assert not any(isinstance(value, np.generic) for value in found)


# Windows that are given


def make_windows(trace, num_windows=3):
    cut = cut_windows(trace, num_windows=num_windows, window_len=50)
    predicted = [np.full(50, 7.0), np.full(50, 9.0), None]
    return [
        replace(window, predicted_output_tokens=values)
        for window, values in zip(cut, predicted, strict=True)
    ]


def test_windows_are_compared_as_they_are(trace):
    windows = make_windows(trace)

    found = small(windows).config["windows"]
    assert [window["sha256"] for window in found] == [window.sha256 for window in windows]
    assert [window["num_requests"] for window in found] == [50, 50, 50]


def test_predictions_that_came_with_a_window_are_what_policies_see(trace):
    """With 7 for everybody, shortest prediction first is first come, first served."""
    windows = make_windows(trace)[:1]
    known, noisy = (
        small(windows, ["fcfs", "spjf"], "heavy", output_length=knowledge).to_json()["loads"]
        for knowledge in ("noisy", "exact")
    )

    assert known[0]["metrics"]["ttft_mean"] == known[1]["metrics"]["ttft_mean"]
    assert noisy[0]["metrics"]["ttft_mean"] != noisy[1]["metrics"]["ttft_mean"]

"""``queuesmith compare``: what it prints, what it writes, and what its exit status means."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from pyarrow import parquet

from queuesmith.comparison.panel import DEFAULT_POLICIES
from queuesmith.policies import policy_names
from queuesmith.windows.frozen import WindowSet

FILES = {"comparison.json", "cells.parquet", "report.html"}
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "compare_json.md"


def test_the_answer_is_printed_and_the_report_is_written(run, quick):
    ran = run(*quick, "--output", "here")

    assert ran.code == 0
    assert "real traffic log.csv, 80 requests" in ran.out
    assert "Leaderboard" in ran.out
    assert ran.created == {"here", *(f"here/{name}" for name in FILES)}
    assert ran.err == f"report: {Path('here/report.html')}\n"


def test_without_a_folder_a_run_gets_one_of_its_own_named_by_time_and_hash(run, quick):
    ran = run(*quick)

    document = run(*quick, "--json").out
    sha256 = json.loads(document)["config"]["sha256"]
    (folder,) = {path for path in ran.created if path.count("/") == 1}
    assert re.fullmatch(rf"runs/\d{{8}}-\d{{6}}-{sha256[:8]}", folder)


def test_json_prints_the_document_that_is_written_and_nothing_else(run, quick, tmp_path):
    ran = run(*quick, "--json", "--output", "here")

    document = json.loads(ran.out)
    assert document["schema"] == "queuesmith.compare/2"
    assert document == json.loads((tmp_path / "here/comparison.json").read_text())
    cells = parquet.read_table(tmp_path / "here/cells.parquet")
    assert cells.num_rows == len(document["cells"]) == 2 * 8
    assert cells["ttft_mean"].to_pylist() == [cell["ttft_mean"] for cell in document["cells"]]


def test_the_page_names_every_key_that_compare_adds(run, quick):
    document = json.loads(run(*quick, "--json").out)

    named = set(re.findall(r"`([^`]+)`", PAGE.read_text()))
    assert {*document, *document["config"]} <= named
    assert {"failed", "command"} < {*document, *document["config"]}


def test_the_same_command_gives_the_same_bytes(run, quick):
    first, again, one_worker = (
        run(*quick, "--json", "--output", "here", *more).out
        for more in ([], [], ["--workers", "1"])
    )

    assert first == again
    assert json.loads(first)["cells"] == json.loads(one_worker)["cells"]


def test_a_policy_file_joins_the_race(run, quick, policy_file):
    path = policy_file("return -request.num_prompt_tokens")

    document = json.loads(run(*quick, "--policy", path, "--json").out)

    assert document["config"]["policies"] == ["fcfs", "sjf", "mine"]


def test_parameters_of_a_policy_may_hold_commas(run, log):
    spec = "sjf_aging(LENGTH_WEIGHT=0.25, WAIT_WEIGHT=1.5)"
    options = ("--policies", f"{spec},hrrn", "--loads", "heavy", "--window-len", 10)

    document = json.loads(run("compare", log, *options, "--json").out)

    assert document["config"]["policies"] == ["fcfs", spec, "hrrn"]


def test_the_panel_is_compared_by_default_and_all_on_request(run, log):
    command = ("compare", log, "--loads", "heavy", "--window-len", 10, "--json")

    few = json.loads(run(*command).out)
    everything = json.loads(run(*command, "--policies", "all").out)

    # Of a policy with several values one is left.
    assert {name.partition("(")[0] for name in few["config"]["policies"]} == {
        spec.partition("(")[0] for spec in DEFAULT_POLICIES
    }
    assert len(few["config"]["chosen"]) == 2
    assert sorted(everything["config"]["policies"]) == policy_names()


def test_options_reach_the_comparison(run, log):
    options = ["--loads", "knee,1.25", "--windows", 3, "--seed", 7, "--slo", "e2el=2"]
    options += ["--output-length", "exact", "--engine", "constant_1ms", "--host-overhead", "0.001"]
    options += ["--policies", "sjf", "--window-len", 10]

    config = json.loads(run("compare", log, *options, "--json").out)["config"]

    assert [load["name"] for load in config["loads"]] == ["knee", "1.25"]
    assert (config["num_windows"], config["window_len"], config["seed"]) == (3, 10, 7)
    assert config["slo"] == {"ttft": None, "tpot": None, "e2el": 2.0}
    assert "exactly" in config["output_length"]
    assert (config["preset"], config["host_overhead"]) == ("constant_1ms", 0.001)


@pytest.mark.parametrize("given", ["--engine-args {}", "--engine-args={}"])
def test_a_vllm_command_line_is_taken_as_it_is(run, quick, given):
    words = given.format("--max-num-seqs 8 --async-scheduling --enable-lora").split(" ", 1)
    words = words if given == "--engine-args {}" else [" ".join(words)]

    document = json.loads(run(*quick, *words, "--json").out)

    assert document["config"]["engine"]["max_num_seqs"] == 8
    assert document["config"]["engine"]["async_scheduling"]
    assert "LoRA adapters are not simulated" in document["warnings"][0]


def test_columns_and_unit_of_a_file_can_be_named(run, tmp_path):
    rows = "".join(f"{1000 * row},{50 + row},7\n" for row in range(40))
    (tmp_path / "log.csv").write_text(f"when,in,out\n{rows}")

    ran = run(
        *("compare", "log.csv", "--policies", "fcfs", "--loads", "knee", "--window-len", 20),
        *("--columns", "arrival_time=when,prompt_len=in,output_len=out", "--unit", "ms"),
        *("--num-requests", 30, "--json"),
    )

    assert json.loads(ran.out)["origin"]["num_requests"] == 30


def test_an_engine_from_a_model_and_a_data_sheet(run, quick, tmp_path):
    shape = {"hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32}
    (tmp_path / "config.json").write_text(json.dumps({**shape, "vocab_size": 128_256}))
    gpu = ["--gpu-bandwidth", "3.35e12", "--gpu-flops", "989e12", "--gpu-memory", "80"]

    ran = run(*quick, "--model-config", "config.json", *gpu, "--json")

    assert "roofline, unmeasured" in json.loads(ran.out)["config"]["provenance"]


def test_a_broken_limit_exits_with_1_and_still_writes_everything(run, quick):
    ran = run(*quick, "--fail-if", "ttft_p99 > 0 @ heavy", "--json", "--output", "here")

    assert ran.code == 1
    assert ran.created == {"here", *(f"here/{name}" for name in FILES)}
    failed = json.loads(ran.out)["failed"]
    assert [line.split(":")[0] for line in failed] == ["fcfs at heavy", "sjf at heavy"]
    assert ran.err.splitlines() == [
        *(f"failed: {line}" for line in failed),
        f"report: {Path('here/report.html')}",
    ]


def test_goal_guards_and_loads_reach_the_comparison(run, quick):
    options = ["--goal", "e2el", "--guard", "itl_p99=off", "--guard", "e2el_p99=0.5"]

    words = [*quick, *options, "--json"]
    words[words.index("--loads") + 1] = "own,2/s"
    config = json.loads(run(*words).out)["config"]

    assert config["goal"] == "e2el"
    guards = {guard["name"]: guard["margin"] for guard in config["guards"]}
    assert "itl_p99" not in guards
    assert guards["e2el_p99"] == 0.5
    assert config["loads"][0] == config["own"]
    assert config["loads"][1]["rate"] == 2.0


def test_five_policies_are_shown_and_all_with_full(run, log):
    command = ("compare", log, "--loads", "heavy", "--window-len", 10)

    short, full = run(*command).out, run(*command, "--full").out

    assert "8 more with --full" in short
    for name in ("edf", "preflow", "residual_sjf"):
        assert name in full
    assert "--full" not in full


def test_a_limit_that_is_kept_exits_with_0(run, quick):
    ran = run(*quick, "--fail-if", "ttft_p99 > 1000", "--fail-if", "slo_attainment < 0", "--json")

    assert ran.code == 0
    assert json.loads(ran.out)["failed"] == []


def test_limits_watch_the_policies_given_by_policy(run, quick, policy_file):
    path = policy_file("return request.arrival_time")

    ran = run(*quick, "--policy", path, "--fail-if", "ttft_p99 > 0", "--json")

    assert ran.code == 1
    assert [line.split()[0] for line in json.loads(ran.out)["failed"]] == ["mine"]


def test_what_cannot_be_checked_fails(run, quick):
    ran = run(*quick, "--slo", "none", "--fail-if", "slo_attainment < 0.5")

    assert ran.code == 1
    assert "cannot be checked, slo_attainment is undefined" in ran.err


def test_a_second_run_takes_the_place_of_the_first_in_its_folder(run, quick, tmp_path):
    run(*quick, "--output", "here")

    ran = run(*quick, "--seed", 5, "--output", "here")

    assert ran.code == 0
    assert ran.created == set()
    assert json.loads((tmp_path / "here/comparison.json").read_text())["config"]["seed"] == 5
    assert {path.name for path in (tmp_path / "here").iterdir()} == FILES


def test_warnings_are_printed(run, quick):
    assert "warning: windows of 10 requests" in run(*quick).out


def test_files_of_windows_are_compared_as_they_are(run, tmp_path):
    """A table of windows, and the part of a window set that was asked for."""
    rng = np.random.default_rng(0)
    names = "window_id,lambda_ref,arrival_time_s,prompt_tokens,output_tokens"
    rows = [
        f"w{window},1,{row / 10},{rng.integers(10, 900)},{rng.integers(1, 90)},20"
        for window in range(2)
        for row in range(40)
    ]
    (tmp_path / "windows.csv").write_text("\n".join([f"{names},predicted_output_tokens", *rows]))
    rows = [f"{row / 10},{100 + row},{1 + row % 50}" for row in range(600)]
    (tmp_path / "log.csv").write_text("\n".join(["arrival_time,prompt_len,output_len", *rows]))
    frozen = WindowSet.freeze("mine", ["log.csv"], folder=tmp_path, num_windows=2, window_len=50)
    (tmp_path / "set.toml").write_text(frozen)

    def windows_of(*arguments):
        ran = run("compare", *arguments, "--policies", "fcfs", "--json", "--output", "out")
        assert ran.code == 0
        return json.loads(ran.out)["config"]["windows"]

    assert [window["num_requests"] for window in windows_of("windows.csv")] == [40, 40]
    tuning, held_out = windows_of("set.toml"), windows_of("set.toml", "--part", "held_out")
    assert len(tuning) == len(held_out) == 2
    assert tuning[-1]["start_row"] + 50 <= held_out[0]["start_row"]

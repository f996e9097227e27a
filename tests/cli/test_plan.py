"""``queuesmith plan``: what it prints, what it writes, and what it refuses."""

import json
import re
from pathlib import Path

import pytest
from pyarrow import parquet

from queuesmith.comparison.panel import DEFAULT_POLICIES, split_grids

FILES = {"plan.json", "probes.parquet", "report.html"}
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "plan_json.md"


@pytest.fixture
def quick(log):
    """Arguments of a plan for two policies that takes a moment."""
    return ("plan", log, "--slo", "ttft=0.1", "--policies", "sjf", "--window-len", 10)


def test_the_answer_is_printed_and_the_report_is_written(run, quick):
    ran = run(*quick, "--output", "here")

    assert ran.code == 0
    assert ran.out.startswith("This engine finishes ")
    assert "the trace's own rate is" in " ".join(ran.out.split())
    assert "real traffic: log.csv, 80 requests" in ran.out
    assert "SLO ttft 0.1 s for 99 %" in " ".join(ran.out.split())
    assert "capacity (traffic as it is" in ran.out
    assert ran.created == {"here", *(f"here/{name}" for name in FILES)}
    assert ran.err == f"report: {Path('here/report.html')}\n"


def test_json_prints_the_document_that_is_written_and_nothing_else(run, quick, tmp_path):
    ran = run(*quick, "--json", "--output", "here")

    document = json.loads(ran.out)
    assert document["schema"] == "queuesmith.plan/2"
    assert document == json.loads((tmp_path / "here/plan.json").read_text())
    probes = parquet.read_table(tmp_path / "here/probes.parquet")
    assert probes.num_rows == 8 * len(document["probes"])
    totals = probes.group_by(["policy", "rho"]).aggregate([("met", "sum")]).to_pylist()
    assert {(row["policy"], row["rho"]): row["met_sum"] for row in totals} == {
        (row["policy"], row["rho"]): row["met"] for row in document["probes"]
    }


def test_the_same_command_gives_the_same_bytes(run, quick):
    first, again, one_worker = (
        run(*quick, "--json", "--output", "here", *more).out
        for more in ([], [], ["--workers", "1"])
    )

    assert first == again
    assert json.loads(first)["probes"] == json.loads(one_worker)["probes"]


def test_without_a_folder_a_run_gets_one_of_its_own_named_by_time_and_hash(run, quick):
    ran = run(*quick)

    (folder,) = {path for path in ran.created if path.count("/") == 1}
    assert re.fullmatch(r"runs/\d{8}-\d{6}-[0-9a-f]{8}", folder)


def test_options_reach_the_plan(run, log, policy_file):
    mine = policy_file("return -request.num_prompt_tokens")
    options = ["--slo", "ttft=2,tpot=0.5,e2el=9", "--attainment", "0.9", "--windows", 3]
    options += ["--window-len", 20, "--seed", 7, "--output-length", "exact", "--policy", mine]
    options += ["--engine", "constant_1ms", "--engine", "llama-3.1-8b/h100_sxm"]
    options += ["--host-overhead", "0.001", "--engine-args", "--max-num-seqs 8"]

    document = json.loads(run("plan", log, "--policies", "sjf", *options, "--json").out)
    config = document["config"]

    assert config["slo"] == {"ttft": 2.0, "tpot": 0.5, "e2el": 9.0}
    assert (config["attainment"], config["num_windows"], config["window_len"]) == (0.9, 3, 20)
    assert config["seed"] == 7
    assert "exactly" in config["output_length"]
    assert config["policies"] == ["fcfs", "sjf", "mine"]
    assert [one["name"] for one in config["engines"]] == ["constant_1ms", "llama-3.1-8b/h100_sxm"]
    assert [one["engine"]["max_num_seqs"] for one in config["engines"]] == [8, 8]
    assert [one["step_time"]["host_overhead"] for one in config["engines"]] == [0.001, 0.001]
    assert len(document["capacities"]) == 6


def test_those_of_compare_are_planned_for_by_default(run, log):
    ran = run("plan", log, "--windows", 1, "--window-len", 20, "--slo", "ttft=1", "--json")

    singles, grids = split_grids(DEFAULT_POLICIES)
    members = [member for grid in grids for member in grid.members]
    found = json.loads(ran.out)["config"]["policies"]
    assert found == [policy.name for policy in [*singles, *members]]


def test_the_page_names_every_key_and_the_document_has_no_other(run, quick):
    document = json.loads(run(*quick, "--json").out)

    named = set(re.findall(r"`([^`]+)`", PAGE.read_text()))
    row, point = document["capacities"][0], document["probes"][0]
    engine = document["config"]["engines"][0]
    keys = {*document, *document["config"], *document["answer"], *row, *point, *engine}
    keys |= {*(row["at_broke"] or {}), *row["idle"], *engine["windows"][0]}
    assert keys - named == set()


def test_one_window_prints_no_interval(run, log):
    ran = run(*("plan", log, "--slo", "ttft=0.1", "--policies", "sjf", "--windows", 1))

    assert ran.code == 0
    assert "One window has no interval" in ran.out
    assert "warning: only 1 windows" in ran.out


def test_an_slo_that_cannot_be_met_is_an_answer_and_not_an_error(run, log):
    ran = run("plan", log, "--slo", "ttft=1e-9", "--policies", "sjf", "--window-len", 10)

    assert ran.code == 0
    assert "This SLO cannot be met at any rate: of 80 requests" in " ".join(ran.out.split())


def test_markup_in_a_name_reaches_neither_page_nor_terminal(run, quick, tmp_path, log):
    odd = tmp_path / "a<b>&[red].csv"
    odd.write_text(log.read_text())

    ran = run(quick[0], odd, *quick[2:], "--output", "here")

    page = (tmp_path / "here/report.html").read_text()
    assert ran.code == 0
    assert "a<b>&[red].csv" in ran.out
    assert "a<b>" not in page
    assert "a&lt;b&gt;&amp;[red].csv" in page


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--slo", "none"], "a plan needs an SLO with at least one limit"),
        (["--slo", ""], "--slo must look like name=value"),
        (["--slo", "ttft=-1"], "ttft must be positive seconds"),
        (["--slo", "ttft=nan"], "ttft must be positive seconds"),
        (["--slo", "ttfb=1"], "--slo has limits ttft, tpot and e2el"),
        (["--attainment", "0"], "attainment must be a share above 0"),
        (["--attainment", "99"], "attainment must be a share above 0"),
        (["--attainment", "nan"], "attainment must be a share above 0"),
        (["--attainment", "most"], "See `queuesmith plan --help`"),
        (["--engine", "llama"], "llama"),
        (["--engine", "constant_1ms", "--engine", "constant_1ms"], "is given twice"),
        (["--policies", ""], "names no policy"),
        (["--policies", "nothing"], "there is no policy 'nothing'"),
        (["--policies", "sjf,sjf"], "given twice"),
        (["--windows", "0"], "num_windows must be at least 1"),
        (["--window-len", "-5"], "window_len must be at least 1"),
        (["--window-len", "1"], "only one request is left"),
        (["--workers", "0"], "num_workers must be at least 1"),
        (["--seed", "-1"], "seed must be at least 0"),
        (["--output-length", "guess"], "none, exact, noisy"),
        (["--part", "tuning"], "--part is for window sets"),
        (["--gpu-memory", "80"], "go with --model-config"),
        (["--output", "log.csv"], "is a file; name a folder"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(refused, log, options, message):
    assert message in refused("plan", log, *options)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("3,10,3\n" * 40, "arrive at the same time"),
        ("3,10,3\n", "only one request is left"),
        ("0,10000000,3\n1,20000000,3\n", "none of the 2 requests can run"),
        ("soon,many,few\n", "no usable row"),
    ],
)
def test_a_trace_that_has_no_rate_is_refused_in_one_line(refused, tmp_path, rows, message):
    (tmp_path / "trace.csv").write_text(f"arrival_time,prompt_len,output_len\n{rows}")

    assert message in refused("plan", "trace.csv", "--policies", "sjf")


def test_a_policy_that_fails_at_some_rate_is_named(refused, log, policy_file):
    path = policy_file("return 1 / (engine.num_running - 1)")

    assert "'mine' failed in waiting_key, line 2" in refused(
        "plan", log, "--policies", "fcfs", "--policy", path
    )


@pytest.mark.parametrize("gap", ["1e9", "1e-9"])
def test_traffic_of_any_speed_is_planned_for(run, tmp_path, gap):
    rows = "".join(f"{row * float(gap)!r},{50 + row % 9},7\n" for row in range(40))
    (tmp_path / "trace.csv").write_text(f"arrival_time,prompt_len,output_len\n{rows}")

    ran = run(
        "plan", "trace.csv", "--policies", "sjf", "--slo", "ttft=1", "--windows", 2, "--unit", "s"
    )

    assert ran.code == 0, ran.err

"""``queuesmith study``: designs listed, planned, run; what is wrong said in one line."""

import json

import pytest

DESIGN = """
name = "tiny"
policies = ["fcfs", "sjf"]
loads = ["heavy"]
engines = ["llama-3.1-8b/a100_sxm"]
window_len = 20
num_windows = 3
metrics = ["ttft_mean"]
sources = [
  { name = "mine", file = "log.csv" },
  { name = "drawn", model = "azure_2023_conv@model" },
]
"""


@pytest.fixture
def design(tmp_path, log, monkeypatch):
    """Write a design of 12 runs on the log beside it; return its path."""
    monkeypatch.delenv("QUEUESMITH_TRACES", raising=False)
    path = tmp_path / "tiny.toml"
    path.write_text(DESIGN)
    return path


def study_run(design, *arguments):
    return ("study", "run", design, "--backend", "threading", "--workers", 1, *arguments)


def test_list_tells_designs_apart(run):
    document = json.loads(run("study", "list", "--json").out)

    assert document["schema"] == "queuesmith.study.list/1"
    assert {"atlas", "lssp", "lssp_fixed"} <= {design["name"] for design in document["designs"]}
    assert "atlas" in run("study", "list").out


def test_a_dry_run_counts_and_writes_nothing(run, design):
    ran = run("study", "run", design, "--dry-run", "--json")

    document = json.loads(ran.out)
    assert ran.code == 0
    assert ran.created == set()
    assert (document["num_runs"], document["num_parts"]) == (12, 6)
    assert document["num_windows"] == {"real": 3, "modelled": 3}
    assert {one["name"]: (one["real"], one["modelled"]) for one in document["sources"]} == {
        "mine": (3, 0),
        "drawn": (0, 3),
    }
    assert document["estimated_seconds"] > 0


def test_atlas_is_planned_without_any_trace(run, monkeypatch):
    monkeypatch.delenv("QUEUESMITH_TRACES", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/nowhere")
    monkeypatch.setattr("queuesmith.study.run.estimate_seconds", lambda parts, workers: 1.0)

    document = json.loads(run("study", "run", "atlas", "--dry-run", "--json").out)

    assert document["num_runs"] >= 4 * 13 * 120 * 6
    assert document["num_windows"] == {"real": 0, "modelled": 120}


def test_a_dry_run_for_people_says_what_is_real(run, design):
    out = run("study", "run", design, "--dry-run").out

    assert "3 real and 3 modelled windows; 12 runs in 6 parts" in out
    assert "azure_2023_conv@model" in out


def test_a_run_keeps_its_parts_and_goes_on(run, design, tmp_path):
    first = run(*study_run(design, "--output", "study"))
    again = run(*study_run(design, "--output", "study"))

    assert (first.code, again.code) == (0, 0)
    assert "study/study.json" in first.created
    assert len([name for name in first.created if name.endswith(".parquet")]) == 7
    assert again.created == set()
    assert "`queuesmith study report study`" in first.err


def test_without_a_folder_a_run_goes_where_the_same_run_finds_it(run, design):
    first = run(*study_run(design))
    again = run(*study_run(design))
    other = run(*study_run(design, "--windows", 1))

    (folder,) = [name for name in first.created if name.count("/") == 1]
    assert folder.startswith("runs/study-tiny-")
    assert again.created == set()
    assert len([name for name in other.created if "/parts/" in name]) == 2


def test_a_run_prints_one_document(run, tmp_path, log, monkeypatch):
    """Enough windows for an analysis, from two sources."""
    monkeypatch.delenv("QUEUESMITH_TRACES", raising=False)
    path = tmp_path / "tiny.toml"
    path.write_text(DESIGN.replace('file = "log.csv"', 'model = "burstgpt@model"'))

    ran = run(*study_run(path, "--json"))

    document = json.loads(ran.out, parse_constant=pytest.fail)
    assert ran.code == 0
    assert document["schema"] == "queuesmith.study/1"
    assert len(document["sha256"]) == 64
    assert document["num_runs"] == 12
    assert document["answers"]
    assert document["analysis"]["agreement_summary"]


BAD = {
    "no such design": (("study", "run", "atlass"), "Did you mean 'atlas'?"),
    "no such file": (("study", "run", "none.toml"), "there is no design 'none.toml'"),
    "no such backend": (("study", "run", "tiny.toml", "--backend", "spark"), "no backend 'spark'"),
    "no workers": (("study", "run", "tiny.toml", "--workers", 0), "num_workers must be at least 1"),
    "no windows": (("study", "run", "tiny.toml", "--windows", 0), "at least 1 window"),
    "output is a file": (("study", "run", "tiny.toml", "--output", "log.csv"), "is a file"),
    "nothing to run": (("study", "run"), "study run --help"),
}


@pytest.mark.parametrize(("arguments", "reason"), BAD.values(), ids=BAD.keys())
def test_bad_usage_is_one_line_and_status_2(refused, design, arguments, reason):
    assert reason in refused(*arguments)


@pytest.mark.parametrize(
    ("find", "replace", "reason"),
    [
        ('"sjf"', '"sfj"', "there is no policy 'sfj'. Did you mean"),
        ('"sjf"', '"fcfs"', "'fcfs' is given twice"),
        ('["heavy"]', '["heavy", 1.5]', "a load is given twice"),
        ("window_len = 20", "window_len = 0", "window_len must be from 2"),
        ('file = "log.csv"', 'file = "lost.csv"', "lost.csv is not beside the design"),
        ("num_windows = 3", "num_windows = 9", "log.csv has 4 of 9 windows"),
        ('name = "drawn"', 'name = "mine"', "source 'mine' is given twice"),
    ],
)
def test_a_bad_design_is_one_line_and_status_2(refused, design, find, replace, reason):
    text = design.read_text()
    assert find in text
    design.write_text(text.replace(find, replace))

    assert reason in refused("study", "run", design)


def test_a_folder_of_another_study_is_refused(run, refused, design):
    run(*study_run(design, "--output", "study"))

    assert "with other windows or settings" in refused(
        *study_run(design, "--output", "study", "--windows", 1)
    )

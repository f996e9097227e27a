"""What a study holds: every run once, the numbers of `evaluate`, and what folders are refused."""

import json
import math
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import queuesmith.study.run
from queuesmith.config import Slo
from queuesmith.documents import seal
from queuesmith.engine import simulate
from queuesmith.errors import ConfigError, PolicyError
from queuesmith.evaluation.evaluate import evaluate
from queuesmith.metrics import METRICS
from queuesmith.study.cells import FURTHER, KEYS, measure, quarters, queued_steps
from queuesmith.study.inputs import source_seed
from queuesmith.study.run import Study, describe, estimate_seconds, plan, run_study
from queuesmith.traces import Trace

AGAIN = {
    "predictions": ["none", "noisy", "exact"],
    "engines": ["llama-3.1-8b/a100_sxm"],
    "loads": ["heavy"],
    "policies": ["fcfs", "spjf"],
}
SERIAL = {"backend": "threading", "num_workers": 1}


@pytest.fixture
def study(small, tmp_path):
    """Run the small design with its sensitivity."""
    return run_study(small(sensitivity=AGAIN), tmp_path / "study", **SERIAL)


def rows_of(study, **wanted):
    return [
        row
        for row in study.runs.to_pylist()
        if all(row[key] == value for key, value in wanted.items())
    ]


def test_every_run_is_there_once(study):
    assert study.runs.column_names == [*KEYS, *METRICS, *FURTHER]
    assert {str(study.runs.schema.field(name).type) for name in [*METRICS, *FURTHER]} == {"double"}
    keys = [tuple(row[name] for name in KEYS if name != "position") for row in rows_of(study)]
    assert len(keys) == len(set(map(str, keys))) == study.document["num_runs"]
    main = rows_of(study, prediction="noisy:0.198")
    assert len(main) == 2 * 2 * 3 * 2  # sources, windows, policies, loads
    for prediction in ("none", "exact"):
        assert len(rows_of(study, prediction=prediction)) == 2 * 2 * 2
    assert len(keys) == 24 + 16


def test_rows_say_what_is_real(study):
    assert {row["kind"] for row in rows_of(study, source="logged")} == {"real"}
    assert {row["kind"] for row in rows_of(study, source="drawn")} == {"modelled"}
    assert study.document["num_windows"] == {"real": 2, "modelled": 2}
    assert [source["real"] for source in study.document["sources"]] == [2, 0]
    assert study.windows["kind"].to_pylist() == ["real"] * 2 + ["modelled"] * 2


def test_numbers_are_those_of_evaluate(study, small):
    design = small()
    entry = design.windows[1]
    preset = design.engines[0]
    cells = evaluate(
        design.policies,
        [entry.window],
        design.loads,
        config=preset.config,
        step_time=preset.step_time,
        output_length=design.output_length,
        slo=Slo(ttft=1.0, tpot=0.05),
        seed=source_seed("logged", 0),
    ).cells.to_pylist()

    ours = rows_of(study, source="logged", window=1, prediction="noisy:0.198")

    for row, cell in zip(ours, cells, strict=True):
        assert (row["policy"], row["load"], row["rho"]) == (
            cell["policy"],
            cell["load"],
            cell["rho"],
        )
        for name in METRICS:
            assert row[name] == pytest.approx(cell[name], rel=0, abs=0, nan_ok=True), name


def test_a_study_is_read_as_it_was_run(study, tmp_path):
    again = Study.load(tmp_path / "study")

    assert str(again.runs.to_pylist()) == str(study.runs.to_pylist())
    assert str(again.windows.to_pylist()) == str(study.windows.to_pylist())
    assert again.document == study.document
    assert again.design.table == study.design.table
    assert again.sha256 == study.sha256


def test_predictions_change_only_those_who_read_them(study):
    for source in ("logged", "drawn"):
        for window in (0, 1):
            by = {
                (row["policy"], row["prediction"]): row["e2el_mean"]
                for row in rows_of(study, source=source, window=window, load="heavy")
            }
            assert by["fcfs", "none"] == by["fcfs", "exact"] == by["fcfs", "noisy:0.198"]
    spjf = {
        name: [row["e2el_mean"] for row in rows_of(study, policy="spjf", prediction=name)]
        for name in ("none", "exact")
    }
    assert spjf["none"] != spjf["exact"]


def test_what_could_not_run_is_counted(small, tmp_path):
    log = tmp_path / "log.csv"
    design = small(
        engines=["llama-3.1-8b/b60"], num_windows=1, sources=[{"name": "logged", "file": "log.csv"}]
    )
    lines = log.read_text().splitlines()
    rows = [line.split(",") for line in lines[1:]]
    too_long = [[arrival, "40000", output] for arrival, _, output in rows[:40]]
    log.write_text("\n".join([lines[0], *(",".join(row) for row in [*too_long, *rows[40:]])]))
    design = replace(design, window_len=80)

    study = run_study(design, tmp_path / "study", **SERIAL)

    assert set(study.runs["num_dropped"].to_pylist()) == {40.0}
    assert set(study.runs["num_requests"].to_pylist()) == {40.0}


def test_a_slower_clock_loosens_every_deadline():
    trace = Trace([0.0] * 4, [10] * 4, [100] * 4, deadline=[0.06, 0.11, 0.11, 1.0])
    result = simulate(trace, engine="constant_1ms")  # each finishes at 0.1 s

    numbers = measure(result)

    met = [numbers[f"anwg_slack_{slack}"] for slack in ("0.5", "2", "4")]
    assert met == [0.25, 1.0, 1.0]
    assert 0.099 < result.requests.last_token_ts.max() < 0.101


def test_quarters_share_out_every_request_by_length():
    rows = quarters(np.array([3, 3, 3, 1, 9]))

    assert [part.tolist() for part in rows] == [[3, 0], [1], [2], [4]]


def test_quarters_of_ttft_average_to_the_whole(study):
    for row in study.runs.to_pylist():
        # 30 requests: quarters of 8, 8, 7 and 7.
        for letter in "qo":
            parts = [row[f"ttft_mean_{letter}{number}"] for number in (1, 2, 3, 4)]
            whole = (8 * parts[0] + 8 * parts[1] + 7 * parts[2] + 7 * parts[3]) / 30
            assert whole == pytest.approx(row["ttft_mean"])


def test_queued_steps_count_steps_and_not_idle_time():
    """Two bursts of two one-token requests, an hour apart, on a seat for one: waits of 0 and 1."""
    from queuesmith.config import EngineConfig
    from queuesmith.engine.presets.step_time import StepTime

    config = EngineConfig(max_num_seqs=1, max_num_batched_tokens=64, instant_prefill=True)
    trace = Trace([0.0, 0.0, 3600.0, 3600.0], [5] * 4, [1] * 4)

    result = simulate(trace, config=config, step_time=StepTime(a=2.0))

    assert queued_steps(result) == pytest.approx(0.5)
    assert math.isnan(queued_steps(replace(result, num_steps=0)))


def test_every_policy_of_a_load_is_told_how_busy_fcfs_was(study):
    for load in ("busy", "heavy"):
        rows = rows_of(study, source="logged", window=0, load=load, prediction="noisy:0.198")
        (steps,) = {row["fcfs_queued_steps"] for row in rows}
        assert steps > 0.1


def test_the_document_says_what_was_run_and_nothing_of_when(study, small, tmp_path):
    document = json.loads((tmp_path / "study" / "study.json").read_text())

    assert document == study.document
    assert document["schema"] == "queuesmith.study/1"
    assert [policy["name"] for policy in document["policies"]] == ["fcfs", "sjf", "spjf"]
    assert document["num_parts"] == len(document["parts"]) == len(set(document["parts"])) == 12
    assert str(tmp_path) not in json.dumps(document)
    assert document == describe(small(sensitivity=AGAIN), plan(small(sensitivity=AGAIN)))


def test_a_folder_of_another_design_is_refused_by_name(study, small, tmp_path):
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.parquet")}

    with pytest.raises(
        ConfigError, match=r"holds the study 'small' with other windows or settings"
    ):
        run_study(small(seed=1), tmp_path / "study", **SERIAL)
    with pytest.raises(ConfigError, match=r"holds the study 'small' and not 'other'"):
        run_study(small(name="other"), tmp_path / "study", **SERIAL)

    assert {path: path.read_bytes() for path in tmp_path.rglob("*.parquet")} == before


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("version", "0.0.1", "made by queuesmith 0.0.1"),
        ("code_sha256", "f" * 64, "made by other code of the same version"),
        ("schema", "queuesmith.study/0", "has schema 'queuesmith.study/0'"),
    ],
)
def test_a_folder_of_another_version_is_refused(study, small, tmp_path, field, value, reason):
    path = tmp_path / "study" / "study.json"
    edited = {**study.document, field: value}
    path.write_text(json.dumps(edited | {"seal": seal(edited)}))

    with pytest.raises(ConfigError, match=reason):
        run_study(small(sensitivity=AGAIN), tmp_path / "study", **SERIAL)


def test_a_folder_of_something_else_is_refused_and_left_alone(small, tmp_path):
    folder = tmp_path / "thesis"
    folder.mkdir()
    (folder / "chapter.txt").write_text("mine")

    with pytest.raises(ConfigError, match=r"holds 'chapter.txt' and no study"):
        run_study(small(), folder, **SERIAL)
    with pytest.raises(ConfigError, match="is a file; name a folder"):
        run_study(small(), folder / "chapter.txt", **SERIAL)

    assert [path.name for path in folder.iterdir()] == ["chapter.txt"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: "[]",
        lambda text: '{"schema": 1}',
        lambda text: text.replace("queuesmith.study/", "queuesmith.stuey/"),
        lambda text: text.replace('"sha256": "', '"sha256": "0'),
        lambda text: text.replace('"parts"', '"pants"'),
        lambda text: text.replace('"name": "small"', '"name": "smell"'),
    ],
)
def test_a_damaged_document_says_how_to_go_on_and_that_is_so(study, small, tmp_path, damage):
    path = tmp_path / "study" / "study.json"
    whole = path.read_text()
    path.write_text(damage(whole))
    assert path.read_text() != whole
    parts = {part: part.stat().st_mtime_ns for part in (path.parent / "parts").iterdir()}

    for act in (
        lambda: run_study(small(sensitivity=AGAIN), path.parent, **SERIAL),
        lambda: Study.load(path.parent),
    ):
        with pytest.raises(ConfigError, match=r"study.json .*; remove it and run its study again"):
            act()
    path.unlink()
    run_study(small(sensitivity=AGAIN), path.parent, **SERIAL)

    assert path.read_text() == whole
    assert {part: part.stat().st_mtime_ns for part in parts} == parts


def test_what_is_no_finished_study_is_not_read(study, tmp_path):
    with pytest.raises(ConfigError, match="holds no study"):
        Study.load(tmp_path)
    next((tmp_path / "study" / "parts").iterdir()).unlink()
    with pytest.raises(ConfigError, match=r"1 of 12 parts are missing or damaged"):
        Study.load(tmp_path / "study")


def test_a_damaged_table_of_windows_is_refused_and_written_again(study, small, tmp_path):
    path = tmp_path / "study" / "windows.parquet"
    path.write_bytes(b"PAR1")

    with pytest.raises(ConfigError, match=r"windows.parquet is missing or damaged"):
        Study.load(tmp_path / "study")
    run_study(small(sensitivity=AGAIN), tmp_path / "study", **SERIAL)

    assert parquet.read_table(path).num_rows == 4


def test_a_policy_that_fails_stops_the_study_and_keeps_what_is_finished(small, tmp_path):
    (tmp_path / "mine.py").write_text(
        "def waiting_key(request, engine):\n    return 1.0 / (request.num_prompt_tokens - 901)\n"
    )
    log = tmp_path / "log.csv"
    design = small(policies=["fcfs", "mine.py"], num_windows=2)
    rows = log.read_text().splitlines()
    place = design.windows[1].window.start_row + 15
    rows[1 + place] = ",".join([rows[1 + place].split(",")[0], "901", "5"])
    log.write_text("\n".join(rows))
    design = small(policies=["fcfs", "mine.py"], num_windows=2)

    with pytest.raises(PolicyError, match="failed in waiting_key, line 2"):
        run_study(design, tmp_path / "study", **SERIAL)

    assert len(list((tmp_path / "study" / "parts").glob("*.parquet"))) >= 1


def test_progress_counts_parts(small, tmp_path):
    seen = []

    run_study(small(), tmp_path / "study", progress=lambda *counts: seen.append(counts), **SERIAL)
    assert seen == [(done, 4) for done in range(5)]
    seen.clear()
    run_study(small(), tmp_path / "study", progress=lambda *counts: seen.append(counts), **SERIAL)
    assert seen == [(4, 4)]


def test_an_estimate_is_for_all_parts(small, monkeypatch):
    clock = iter([0.0, 6.0])
    monkeypatch.setattr(queuesmith.study.run.time, "process_time", lambda: next(clock))
    parts = plan(small())

    assert estimate_seconds(parts, 2) == 6.0 / 6 * 24 / 2  # seconds per run, runs, workers


def test_columns_keep_their_types_when_all_is_undefined(study):
    schema = study.runs.schema

    assert schema.field("jain").type == pa.float64()
    assert all(math.isnan(value) for value in study.runs["multiplier"].to_pylist())
    assert study.runs["window"].type == pa.int64()

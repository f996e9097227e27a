"""What `queuesmith ab` left behind, read as logs, and nothing else taken for it."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest

from queuesmith.checking import check
from queuesmith.config import EngineConfig
from queuesmith.deploy.ab import Store, make_cells
from queuesmith.deploy.arms import Run
from queuesmith.deploy.replay import Served
from queuesmith.deploy.replayed import is_replay, read_replay
from queuesmith.engine import simulate_workload
from queuesmith.engine.compile import compile_policy
from queuesmith.engine.presets.step_time import Preset, StepTime
from queuesmith.errors import TraceError
from queuesmith.evaluation.evaluate import Load
from queuesmith.policies import get_policy
from queuesmith.traces.trace import Trace
from queuesmith.windows import cut_windows
from queuesmith.windows.predictions import OutputLengthKnowledge

#: Too short for some prompts, which `ab` leaves out and numbers the rest anew.
CONFIG = EngineConfig(max_num_seqs=4, max_num_batched_tokens=256, max_model_len=500)
ENGINE = Preset("here", "Here", StepTime(a=0.01, b2=1e-4, c=1e-3), CONFIG)


def requests(seed=0):
    rng = np.random.default_rng(seed)
    return Trace(
        np.cumsum(rng.exponential(0.1, 400)), rng.integers(5, 600, 400), rng.integers(1, 40, 400)
    )


@pytest.fixture
def measured(tmp_path):
    """Write what `ab` would, of a server whose steps take twice as long; return the folder."""
    slow = StepTime(a=0.02, b2=2e-4, c=2e-3)
    windows = cut_windows(requests(), num_windows=3, window_len=60)
    knowledge = OutputLengthKnowledge.parse("noisy")
    loads = [Load("overload", rho=1.1), Load("3/s", rate=3.0)]
    cells = make_cells(windows, loads, [CONFIG, CONFIG], ENGINE.step_time, knowledge, 0)
    folder = tmp_path / "mine"
    store = Store(folder, "key")
    for arm, policy in (("stock", "fcfs"), ("sjf", "sjf")):
        for repeat in range(2):
            for cell in cells:
                result = simulate_workload(
                    cell.workload, compile_policy(get_policy(policy)), CONFIG, slow
                )
                served = [
                    Served(
                        number,
                        float(row.arrival_time),
                        float(row.arrival_time),
                        float(row.first_token_ts),
                        float(row.last_token_ts),
                        int(row.num_output_tokens),
                    )
                    for number, row in enumerate(result.requests)
                ]
                served[3] = replace(served[3], error="HTTP 500", first_token_ts=np.nan)
                store.save(f"{cell.name}-r{repeat}-{arm}", Run(served))
    config = {
        "windows": [
            {"window": one.index, "start_row": one.start_row, "sha256": one.sha256}
            for one in windows
        ],
        "window_len": 60,
        "engine": asdict(CONFIG),
        "policy_engine": {},
    }
    (folder / "ab.json").write_text(json.dumps({"schema": "queuesmith.ab/2", "config": config}))
    return folder


def test_every_run_of_an_arm_is_a_log_of_what_was_asked_and_measured(measured):
    logs = read_replay(measured, requests(), "stock")

    assert len(logs) == 3 * 2 * 2
    assert {log.origin.reader for log in logs} == {"ab"}
    assert logs[0].origin.source == "mine/3-per-s-w0-r0-stock"
    assert all(log.origin.dropped == {"failed request": 1} for log in logs)
    assert all((log.prompt_len < 500).all() for log in logs)


@pytest.mark.parametrize(("arm", "policy"), [("stock", "fcfs"), ("sjf", "sjf")])
def test_a_check_of_them_finds_the_server_s_step_time(measured, arm, policy):
    logs = read_replay(measured, requests(), arm)

    document = check(logs, policy, engine=ENGINE).document

    # One request of each run failed, so that the simulation has a little less to do.
    assert document["scale"]["factor"] == pytest.approx(2.0, rel=0.05)
    assert document["config"]["unit"] == "log"
    assert not any("prefixes" in line for line in document["warnings"])
    assert any("12 requests failed" in line for line in document["warnings"])


def test_windows_of_a_set_are_taken_as_they_are(measured):
    windows = cut_windows(requests(), num_windows=3, window_len=60)

    logs = read_replay(measured, windows, "stock")

    assert [len(log) for log in logs] == [
        len(x) for x in read_replay(measured, requests(), "stock")
    ]


def test_another_trace_is_noticed(measured):
    with pytest.raises(TraceError, match="was not cut from this trace; give the --trace"):
        read_replay(measured, requests(seed=1), "stock")
    with pytest.raises(TraceError, match="was not cut from this trace"):
        read_replay(measured, requests().take(slice(0, 100)), "stock")
    with pytest.raises(TraceError, match=r"window 2 of .* was not cut from this trace"):
        read_replay(measured, cut_windows(requests(), num_windows=3, window_len=60)[:2], "stock")


def test_an_arm_that_never_ran_is_named_beside_those_that_did(measured):
    with pytest.raises(TraceError, match="no run of 'ljf'; there are runs of sjf, stock"):
        read_replay(measured, requests(), "ljf")


def test_a_measurement_that_has_not_ended_is_refused(measured):
    (measured / "ab.json").unlink()

    assert is_replay(measured)
    with pytest.raises(TraceError, match=r"there is no ab.json in .*; let `queuesmith ab` end"):
        read_replay(measured, requests(), "stock")


def test_a_folder_without_runs_is_none(tmp_path):
    assert not is_replay(tmp_path)
    assert not is_replay(tmp_path / "missing")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"served": 3}',
        '{"served": []}',
        '{"served": [{"row": 0}]}',
        '{"served": [{"row": 9999, "arrival_time": 0, "num_output_tokens": 1, "error": "", '
        '"first_token_ts": 1, "last_token_ts": 1}]}',
        '{"served": [{"row": 0, "arrival_time": null, "num_output_tokens": 1, "error": "", '
        '"first_token_ts": 1, "last_token_ts": 1}]}',
        '{"served": [{"row": 0, "arrival_time": 0, "num_output_tokens": "x", "error": "", '
        '"first_token_ts": 1, "last_token_ts": 1}]}',
        '{"served": [{"row": 1e400, "arrival_time": 0, "num_output_tokens": 1, "error": "", '
        '"first_token_ts": 1, "last_token_ts": 1}]}',
    ],
)
def test_a_damaged_run_is_refused(measured, text):
    next((measured / "runs").glob("*-stock.json")).write_text(text)

    with pytest.raises(TraceError, match="measure it again"):
        read_replay(measured, requests(), "stock")


@pytest.mark.parametrize("config", [None, 3, {}, {"windows": [3]}, {"windows": [{"window": 0}]}])
def test_a_damaged_summary_is_refused(measured, config):
    (measured / "ab.json").write_text(json.dumps({"config": config}))

    with pytest.raises(TraceError, match="does not"):
        read_replay(measured, requests(), "stock")

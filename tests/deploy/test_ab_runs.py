"""From a trace to runs: cells, both kinds of server, what is kept, exports."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import hostile_server as hostile
import numpy as np
import pytest

from queuesmith.config import EngineConfig
from queuesmith.deploy.ab import STOCK, Store, left_out, make_cells, measure, plan
from queuesmith.deploy.arms import Run, RunningArm
from queuesmith.deploy.local_server import LocalServer
from queuesmith.deploy.replay import Served, Server
from queuesmith.deploy.schedule import aiperf_lines, timed_trace_lines
from queuesmith.engine.presets.step_time import StepTime
from queuesmith.errors import ConfigError
from queuesmith.evaluation.evaluate import OWN, Load, capacity
from queuesmith.traces.trace import Trace
from queuesmith.windows import cut_windows, offered_rate
from queuesmith.windows.predictions import OutputLengthKnowledge

STEP = StepTime(a=5e-3, b2=1e-5)
CONFIG = EngineConfig()


@pytest.fixture
def windows():
    rows = np.arange(40)
    return cut_windows(Trace(0.3 * rows, 20 + rows, 5 + rows % 3), num_windows=2, window_len=20)


@pytest.fixture
def cells(windows):
    return make_cells(
        windows, [Load("100/s", rate=100.0)], [CONFIG], None, OutputLengthKnowledge(), seed=0
    )


def test_a_rate_is_the_rate_of_the_cell(cells):
    assert [offered_rate(cell.workload.trace) for cell in cells] == pytest.approx([100, 100])


def test_a_rate_is_that_of_all_windows_which_are_sped_up_by_one_factor():
    gaps = np.r_[np.full(10, 1.0), np.full(11, 3.0)]
    trace = Trace(np.cumsum(gaps) - 1.0, np.full(21, 9), np.full(21, 3))
    windows = cut_windows(trace, num_windows=2, window_len=10)
    cells = make_cells(
        windows, [Load("6/s", rate=6.0), OWN], [CONFIG], None, OutputLengthKnowledge(), seed=0
    )
    fast, own_fast, slow, own_slow = cells

    assert fast.rate / own_fast.rate == pytest.approx(slow.rate / own_slow.rate)
    seconds = [cell.workload.trace.duration for cell in (fast, slow)]
    assert 18 / sum(seconds) == pytest.approx(6.0)
    for cell in (own_fast, own_slow):
        assert cell.rate == pytest.approx(offered_rate(cell.window.trace))
        assert cell.workload.trace.arrival_time.tolist() == cell.window.trace.arrival_time.tolist()


def test_requests_that_are_left_out_are_counted_and_the_windows_that_lose_many_are_named():
    lengths = np.r_[np.full(20, 10), np.full(12, 10), np.full(8, 500), np.full(19, 10), [600]]
    trace = Trace(0.1 * np.arange(60), lengths, np.full(60, 3))
    windows = cut_windows(trace, num_windows=3, window_len=20)
    small = EngineConfig(max_model_len=300)
    cells = make_cells(
        windows, [OWN, Load("9/s", rate=9.0)], [small], None, OutputLengthKnowledge(), seed=0
    )
    total, named = left_out(cells, small)

    assert total.startswith("9 of 60 requests (15%) do not fit max_model_len 300")
    assert "The longest prompt has 600 tokens" in total
    assert named.endswith(": 1 (8 of 20)")
    assert (
        left_out(make_cells(windows, [OWN], [CONFIG], None, OutputLengthKnowledge(), 0), CONFIG)
        == []
    )


def test_a_share_is_of_what_the_engine_carries(windows):
    cells = make_cells(
        windows, [Load("0.5", rho=0.5)], [CONFIG], STEP, OutputLengthKnowledge(), seed=0
    )
    carried = [capacity(window.trace, CONFIG, STEP) for window in windows]

    assert [offered_rate(cell.workload.trace) for cell in cells] == pytest.approx(
        [0.5 * each for each in carried]
    )


def test_a_share_of_an_engine_that_nobody_knows_is_refused(windows):
    with pytest.raises(ConfigError, match=r"give --engine FILE .* or a rate: --load 3/s"):
        make_cells(windows, [Load("0.5", rho=0.5)], [CONFIG], None, OutputLengthKnowledge(), seed=0)


def test_what_one_arm_cannot_run_neither_gets(windows):
    small = EngineConfig(max_model_len=50)
    load = [Load("9/s", rate=9.0)]
    cells = make_cells(windows, load, [CONFIG, small], None, OutputLengthKnowledge(), seed=0)

    assert max(cells[0].workload.trace.prompt_len) < 50
    assert len(cells) == 2


class CountingArm:
    """Serves at once, and counts how often it was asked."""

    def __init__(self, error=""):
        self.seeds = []
        self.error = error

    def run(self, workload, seed, folder):
        self.seeds.append(seed)
        return Run(
            [
                Served(row, t, t, t + 1, t + 2, 0 if self.error else 5, self.error)
                for row, t in enumerate(workload.trace.arrival_time.tolist())
            ],
            10,
            0.1,
        )


def measure_all(cells, arms, folder, key="k", repeats=3):
    turns = plan(len(cells), list(arms), repeats, seed=0)
    return list(measure(cells, arms, turns, Store(folder, key)))


def test_runs_that_were_kept_are_not_repeated_and_read_the_same(cells, tmp_path):
    first = measure_all(cells, {STOCK: CountingArm(), "sjf": CountingArm()}, tmp_path)
    arms = {STOCK: CountingArm(), "sjf": CountingArm()}
    second = measure_all(cells, arms, tmp_path)

    assert arms[STOCK].seeds == arms["sjf"].seeds == []
    assert [run.served for _, run in second] == [run.served for _, run in first]
    assert [run.num_steps for _, run in second] == [10] * 12


def test_runs_of_another_configuration_are_measured_again(cells, tmp_path):
    measure_all(cells, {STOCK: CountingArm(), "sjf": CountingArm()}, tmp_path)
    arms = {STOCK: CountingArm(), "sjf": CountingArm()}
    measure_all(cells, arms, tmp_path, key="other")

    assert len(arms[STOCK].seeds) == 6


def test_a_run_in_which_something_failed_is_measured_again(cells, tmp_path):
    arm = CountingArm()
    measure_all(cells[:1], {STOCK: arm, "sjf": CountingArm()}, tmp_path)
    path = next((tmp_path / "runs").glob("*-r1-stock.json"))
    kept = json.loads(path.read_text())
    kept["served"][3]["error"] = "HTTP 500"
    path.write_text(json.dumps(kept))
    arms = {STOCK: CountingArm(), "sjf": CountingArm()}
    measure_all(cells[:1], arms, tmp_path)

    assert (len(arms[STOCK].seeds), len(arms["sjf"].seeds)) == (1, 0)


def test_a_run_half_written_is_measured_again(cells, tmp_path):
    measure_all(cells[:1], {STOCK: CountingArm(), "sjf": CountingArm()}, tmp_path)
    path = next((tmp_path / "runs").glob("*-r1-stock.json"))
    path.write_text(path.read_text()[:50])
    arms = {STOCK: CountingArm(), "sjf": CountingArm()}
    measure_all(cells[:1], arms, tmp_path)

    assert len(arms[STOCK].seeds) == 1


def test_two_measurements_may_keep_the_same_run_at_once(cells, tmp_path, monkeypatch):
    store = Store(tmp_path, "k")
    run = CountingArm().run(cells[0].workload, 1, tmp_path)
    replace = Path.replace

    def late(part, place):
        monkeypatch.setattr(Path, "replace", replace)
        monkeypatch.setattr(os, "getpid", lambda: 1)
        store.save("a", run)  # another process, between writing and naming
        return replace(part, place)

    monkeypatch.setattr(Path, "replace", late)
    store.save("a", run)

    assert store.load("a").served == run.served
    assert [path.name for path in store.folder.iterdir()] == ["a.json"]


def test_no_two_replays_have_the_same_prompts(cells, tmp_path):
    arms = {STOCK: CountingArm(), "sjf": CountingArm()}
    measure_all(cells, arms, tmp_path)
    seeds = arms[STOCK].seeds + arms["sjf"].seeds

    assert len(set(seeds)) == 12


def test_it_stops_when_nobody_answers_any_more(cells, tmp_path):
    arms = {STOCK: CountingArm(), "sjf": CountingArm(error="cannot connect")}
    measured = measure_all(cells, arms, tmp_path)

    assert len(measured) <= 2
    assert measured[-1][1].served[0].error == "cannot connect"
    assert len(list((tmp_path / "runs").glob("*.json"))) == len(measured)


def test_a_running_server_is_warmed_up_and_its_steps_are_counted(cells, tmp_path):
    with hostile.serving() as server:
        arm = RunningArm(Server(server.base_url), hostile.MODEL)
        run = arm.run(cells[0].workload, 1, tmp_path)
        prompts = [body["prompt"] for body in server.bodies]

    assert len(prompts) == 21  # a warm-up request, then the window
    assert len(prompts[0]) == 64
    assert prompts[0][:5] not in [prompt[:5] for prompt in prompts[1:]]
    assert run.num_steps == cells[0].workload.output_len.sum()
    assert run.step_seconds > 0
    assert not any(one.error for one in run.served)


def test_where_the_warm_up_fails_every_request_says_so(cells, tmp_path):
    with hostile.serving(hostile.status(503, "loading")) as server:
        run = RunningArm(Server(server.base_url), hostile.MODEL).run(cells[0].workload, 1, tmp_path)

    assert {one.error for one in run.served} == {
        "not sent: the warm-up request failed: HTTP 503: loading"
    }
    assert len(run.served) == 20


# A server of one's own, played by the fake one in a process of its own.

OWN_SERVER = """
import os, sys
sys.path.insert(0, {folder!r})
import hostile_server as hostile
server = hostile.FakeServer()
server.server_close()
server = hostile.ThreadingHTTPServer(("127.0.0.1", {{port}}), hostile.Handler)
server.behave, server.bodies, server.steps, server.gap = None, [], 0, 0.001
server.lock = hostile.threading.Lock()
print(os.environ["QUEUESMITH_POLICY"], flush=True)
server.serve_forever()
"""


def own_server(tmp_path, code):
    command = [sys.executable, "-c", code]
    return LocalServer("m", "", {"QUEUESMITH_POLICY": "sjf"}, tmp_path / "run", command=command)


def test_a_server_of_ones_own_runs_for_as_long_as_it_is_needed(tmp_path):
    with own_server(tmp_path, OWN_SERVER.format(folder=str(Path(hostile.__file__).parent))) as own:
        assert own.server.find_model() == hostile.MODEL
        server = own.server
    assert not server.is_ready()
    assert (tmp_path / "run" / "server.log").read_text().startswith("sjf")


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_measurement_that_ends_leaves_no_server_behind(tmp_path, how):
    """Nor what the server has started, even where it does not listen to SIGTERM."""
    child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    code = f"import subprocess, sys\nchild = subprocess.Popen([sys.executable, '-c', {child!r}])\n"
    code += "print(child.pid, flush=True)\n"
    code += OWN_SERVER.format(folder=str(Path(hostile.__file__).parent))
    script = f"""
import sys, time
from pathlib import Path
from queuesmith.deploy.local_server import LocalServer
command = [sys.executable, "-c", {code!r}]
with LocalServer("m", "", {{"QUEUESMITH_POLICY": ""}}, Path("run"), command=command) as own:
    print(own.server.base_url, flush=True)
    time.sleep(60)
"""
    with subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        stderr=subprocess.DEVNULL,
    ) as measuring:
        server = Server(measuring.stdout.readline().strip())
        child_id = int((tmp_path / "run" / "server.log").read_text().split()[0])
        assert server.is_ready()
        assert runs(child_id)
        measuring.send_signal(how)
        measuring.wait(20)
    give_up_at = time.monotonic() + 10
    while (server.is_ready() or runs(child_id)) and time.monotonic() < give_up_at:
        time.sleep(0.05)
    assert not server.is_ready()
    assert not runs(child_id)


def runs(process_id):
    """Tell whether a process is there and has not ended."""
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{process_id}/stat")
    # Where nobody collects orphans, they stay as zombies.
    return not (status.exists() and status.read_text().rpartition(")")[2].split()[0] == "Z")


def test_a_server_that_does_not_start_says_why(tmp_path):
    code = "import sys; print('ValueError: no such model'); print('bye'); sys.exit(1)"
    with (
        pytest.raises(ConfigError, match="did not start: ValueError: no such model"),
        own_server(tmp_path, code),
    ):
        pass


# Exports.


def test_aiperf_gets_whole_requests_and_when_to_send_them(cells):
    workload = cells[0].workload
    lines = [json.loads(line) for line in aiperf_lines(workload, "tiny", 0)]

    assert [line["timestamp"] for line in lines] == pytest.approx([10.0 * k for k in range(20)])
    payload = lines[3]["payload"]
    assert len(payload["prompt"]) == workload.trace.prompt_len[3]
    assert payload["max_tokens"] == workload.output_len[3]
    assert (payload["model"], payload["ignore_eos"]) == ("tiny", True)


def test_a_timed_trace_has_as_many_hashes_as_the_prompt_needs_and_none_twice(cells):
    workload = cells[0].workload
    lines = [json.loads(line) for line in timed_trace_lines(workload, "", 0)]
    hashes = [one for line in lines for one in line["hash_ids"]]

    assert len(set(hashes)) == len(hashes)
    for line, prompt_len in zip(lines, workload.trace.prompt_len.tolist(), strict=True):
        assert line["input_length"] == prompt_len
        assert len(line["hash_ids"]) == math.ceil(prompt_len / 16)

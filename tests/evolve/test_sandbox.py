"""The sandbox: right answers in order, limits that hold by themselves, nothing left behind."""

import math
import os
import platform
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuesmith.engine import simulate_workload
from queuesmith.engine.compile import cache_folder, compile_policy
from queuesmith.errors import ConfigError, EngineError
from queuesmith.evolve.sandbox import child
from queuesmith.evolve.sandbox.child import Request
from queuesmith.evolve.sandbox.containment import ANSWERED, DIED, TOO_LONG, TOO_SLOW, Ended
from queuesmith.evolve.sandbox.sandbox import Outcome, Sandbox, SimulationJob
from queuesmith.evolve.sandbox.worker import Lost
from queuesmith.metrics import ttft
from queuesmith.policies import get_policy

from .hostile.cells import SLOW, crowded_cell, small_job
from .hostile.watch import run_raw, watched_folder
from .processes import children_of, gone

CLASSICS = ("fcfs", "sjf", "hrrn", "edf")
SOURCES = [get_policy(name).source for name in CLASSICS]
LOOP = "def waiting_key(request, engine):\n    while True:\n        pass\n"
FAULT = "def waiting_key(request, engine):\n    return 1 / (request.priority * 0)\n"


@pytest.fixture(scope="module")
def job():
    return small_job()


@pytest.fixture(scope="module")
def sandbox(job):
    with Sandbox(job, workers=2) as running:
        yield running


@pytest.fixture(scope="module")
def single(job):
    """One worker, with little time, inside another command."""
    with Sandbox(job, workers=1, cpu_seconds=1, wrap=("env", "WRAPPED=1")) as running:
        yield running


@pytest.fixture
def watched():
    with watched_folder() as folder:
        yield folder


def plain(outcome):
    """An outcome without what may differ from run to run."""
    times = [values.tobytes() for values in outcome.values]
    return outcome.status, outcome.reason, times, outcome.behaviour


# Right answers


def test_candidates_get_the_times_that_the_engine_gives_them_without_a_sandbox(job, sandbox):
    for name, outcome in zip(CLASSICS, sandbox.run(SOURCES), strict=True):
        compiled = compile_policy(get_policy(name))
        expected = [
            ttft(simulate_workload(cell.workload, compiled, cell.config, cell.step_time))
            for cell in job.cells
        ]

        assert outcome.status == "ok"
        assert [times.tobytes() for times in outcome.values] == [
            each.tobytes() for each in expected
        ]
        assert outcome.cpu_seconds > 0


def test_outcomes_come_in_order_and_do_not_depend_on_workers_or_wrapping(sandbox, single):
    texts = [SOURCES[1], LOOP, FAULT, SOURCES[0], "", SOURCES[2], FAULT, SOURCES[0], SOURCES[3]]
    together = [plain(outcome) for outcome in sandbox.run(texts)]
    alone = [plain(outcome) for outcome in single.run(texts)]

    assert together == alone
    statuses = [status for status, *_ in together]
    assert statuses == ["ok", "form", "fault", "ok", "form", "ok", "fault", "ok", "ok"]


def test_equal_behaviour_is_told_by_the_hash(sandbox):
    same = SOURCES[0] + "\nUNUSED = 1.0\n"
    first, again, other = sandbox.run([SOURCES[0], same, SOURCES[1]])

    assert first.behaviour == again.behaviour != other.behaviour


def test_cells_can_be_chosen_for_each_call(sandbox):
    (whole,) = sandbox.run(SOURCES[:1])
    (part,) = sandbox.run(SOURCES[:1], cells=[2, 0])
    (nothing,) = sandbox.run(SOURCES[:1], cells=[])

    assert [times.tolist() for times in part.values] == [
        whole.values[2].tolist(),
        whole.values[0].tolist(),
    ]
    assert part.behaviour != whole.behaviour
    assert (nothing.status, nothing.values) == ("ok", ())
    with pytest.raises(ConfigError, match="cells must be 0 to 2"):
        list(sandbox.run(SOURCES[:1], cells=[3]))


def slow_so_far(numbers, times, limit):
    """Stop once the times that were served sum to more than a limit."""
    assert len(times) <= len(numbers)
    return sum(float(each.sum()) for each in times) > limit


def test_a_candidate_stops_after_the_cell_where_its_rule_says_so(job, sandbox):
    with Sandbox(SimulationJob(job.cells, slow_so_far)) as stopping:
        never, at_once, unasked = stopping.run(SOURCES[:1] * 3, limits=[1e9, 0.0, None])
    (whole,) = sandbox.run(SOURCES[:1])

    assert plain(never) == plain(unasked) == plain(whole)
    assert at_once.status == "ok"
    assert [times.tobytes() for times in at_once.values] == [whole.values[0].tobytes()]


def test_an_answer_of_fewer_cells_is_believed_of_nobody_who_may_not_stop(job):
    part = child.SERVED + np.full(len(job.cells[0].workload.row), 0.5).tobytes()
    request = Request("", (0, 1), limit=1.0)
    stopping = Sandbox(SimulationJob(job.cells, slow_so_far))

    assert len(stopping._read(part, request).values) == 1
    assert stopping._read(part, Request("", (0, 1))).status == "crash"
    assert stopping._read(part[:-8], request).status == "crash"
    assert stopping._read(child.SERVED, request).status == "crash"
    assert Sandbox(job)._read(part, request).status == "crash"


def test_a_fault_names_the_line_and_the_exception(sandbox):
    (outcome,) = sandbox.run([FAULT])

    assert outcome.status == "fault"
    assert "waiting_key, line 2" in outcome.reason
    assert "ZeroDivisionError" in outcome.reason


def test_a_fault_of_one_candidate_changes_nothing_for_the_next(sandbox):
    """Same names, other functions: nothing of a candidate stays in the process."""
    helper = "def f(x):\n    return {}\n\n\ndef waiting_key(request, engine):\n    return f(1)\n"
    texts = [helper.format("x"), helper.format("x / 0"), helper.format("x")]
    first, second, third = sandbox.run(texts)

    assert (first.status, second.status, third.status) == ("ok", "fault", "ok")
    assert plain(first) == plain(third)


def test_texts_of_candidates_are_not_kept_on_disk(sandbox):
    policies = cache_folder() / "policies"
    before = set(policies.glob("*")) if policies.exists() else set()
    assert [outcome.status for outcome in sandbox.run(SOURCES)] == ["ok"] * len(SOURCES)

    after = set(policies.glob("candidate*")) if policies.exists() else set()
    assert after <= before


def test_two_runs_may_take_turns(sandbox):
    first, second = sandbox.run(SOURCES), sandbox.run(SOURCES)
    pairs = list(zip(first, second, strict=True))

    assert all(plain(one) == plain(other) for one, other in pairs)


def test_a_run_may_be_left_in_the_middle(sandbox):
    some = sandbox.run(SOURCES * 3)
    next(some)
    some.close()

    assert next(sandbox.run(SOURCES[:1])).status == "ok"


# Limits, as a Sandbox reports them


def test_a_candidate_that_takes_too_long_is_a_timeout(single):
    slow, fine = single.run([SLOW, SOURCES[0]])

    assert (slow.status, fine.status) == ("timeout", "ok")
    assert "1 s of processor time" in slow.reason
    assert 0.5 < slow.cpu_seconds < 3.0


@pytest.mark.parametrize(
    ("ended", "status", "reason"),
    [
        (Ended(DIED, signal.SIGXCPU, 20.0, 10, b""), "timeout", "20 s of processor time"),
        (Ended(DIED, signal.SIGKILL, 21.0, 10, b""), "timeout", "20 s of processor time"),
        (Ended(DIED, signal.SIGKILL, 1.0, 10, b""), "memory", "the system has killed"),
        (Ended(DIED, signal.SIGSEGV, 1.0, 10, b""), "crash", "died of SIGSEGV"),
        (Ended(DIED, 0, 1.0, 10, b""), "crash", "ended without an answer"),
        (Ended(TOO_SLOW, signal.SIGKILL, 1.0, 10, b""), "timeout", "not answered within 120 s"),
        (Ended(TOO_LONG, signal.SIGKILL, 1.0, 10, b""), "crash", "bytes expected"),
        (Ended(ANSWERED, 9, 1.0, 10, child.OUT_OF_MEMORY), "memory", "512 MiB"),
        (Ended(ANSWERED, 9, 1.0, 10, b""), "crash", "no answer"),
        (Ended(ANSWERED, 9, 1.0, 10, b"f\x1b[2J\nno\x00"), "fault", "[2J no"),
    ],
)
def test_how_a_fork_ended_is_told_in_one_sentence(job, ended, status, reason):
    outcome = Sandbox(job)._judge(ended, Request("", (0,)))

    assert (outcome.status, outcome.cpu_seconds) == (status, ended.cpu_seconds)
    assert reason in outcome.reason
    assert outcome.reason.isprintable()


@given(st.binary(max_size=600))
def test_any_bytes_of_a_fork_make_an_outcome_and_no_times(answer):
    outcome = Sandbox(small_job())._judge(Ended(ANSWERED, 0, 0.1, 1, answer), Request("", (0,)))

    assert isinstance(outcome, Outcome)
    assert outcome.status in ("fault", "memory", "crash")
    assert outcome.values == ()
    assert outcome.reason.isprintable()


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -1e-300, -math.inf])
def test_times_that_no_engine_gives_are_not_believed(job, wrong):
    sandbox, size = Sandbox(job), len(job.cells[0].workload.row)
    times = np.full(size, 0.5)
    fine = sandbox._read(child.SERVED + times.tobytes(), Request("", (0,)))
    short = sandbox._read(child.SERVED + times[:-1].tobytes(), Request("", (0,)))
    times[3] = wrong
    forged = sandbox._read(child.SERVED + times.tobytes(), Request("", (0,)))

    assert (fine.status, short.status, forged.status) == ("ok", "crash", "crash")


# Limits by themselves: texts that nobody has checked, in a contained process


def test_endless_loops_are_killed_by_processor_time_and_sleepers_by_the_wall_clock(watched):
    ignoring = "import signal; signal.signal(signal.SIGXCPU, signal.SIG_IGN)\n"
    loop = "while True:\n    pass"
    _, (busy, stubborn) = run_raw([loop, ignoring + loop], watched, wall_seconds=60.0)
    sleeper = "import threading; threading.Event().wait()"
    _, (idle,) = run_raw([sleeper], watched, wall_seconds=1.0)

    assert (busy["how"], busy["code"]) == (DIED, signal.SIGXCPU)
    assert (stubborn["how"], stubborn["code"]) == (DIED, signal.SIGKILL)
    assert idle["how"] == TOO_SLOW
    assert idle["cpu_seconds"] < 1.0


def test_memory_bombs_meet_the_limit(watched):
    bombs = [
        "x = bytearray(10**9)",
        "x = [0]\nwhile True:\n    x += x",
        "x = set(range(10**8))",
        "import numpy; x = numpy.ones(10**8)",
        "import mmap; x = mmap.mmap(-1, 10**9)",
    ]
    _, ended = run_raw(bombs, watched, cpu_seconds=10, wall_seconds=60.0, memory_mib=64)

    assert [end["answer"].split(":")[0] for end in ended] == [
        *["raised MemoryError"] * 4,
        "raised OSError",
    ]


def test_a_fork_bomb_gets_no_process_and_a_segmentation_fault_costs_one(watched):
    texts = ["import os\nwhile True:\n    os.fork()", "import ctypes; ctypes.string_at(0)", "1"]
    _, (bomb, crash, fine) = run_raw(texts, watched)

    assert bomb["answer"].startswith("raised ")
    assert (crash["how"], crash["code"]) == (DIED, signal.SIGSEGV)
    assert fine["answer"].startswith("finished")


def test_leaving_early_or_answering_too_much_is_no_answer(watched):
    texts = [
        "import os; os._exit(0)",
        "import os; os._exit(7)",
        "import os, struct\nfor d in range(3, 64):\n    try:\n"
        "        os.write(d, struct.pack('<I', 10**9) + b'x' * 10**5)\n"
        "    except OSError:\n        pass\nwhile True:\n    pass",
        "ANSWER = 'x' * 10**6",
    ]
    _, (left, failed, flood, large) = run_raw(texts, watched, answer_bytes=1_000)

    assert (left["how"], failed["how"]) == (DIED, DIED)
    assert (flood["how"], large["how"]) == (TOO_LONG, TOO_LONG)


def test_a_fork_sees_no_environment_no_descriptors_and_an_empty_folder(watched):
    text = (
        "import os\nopen_ones = []\n"
        "for d in range(256):\n    try:\n        os.write(d, b'')\n        open_ones.append(d)\n"
        "    except OSError:\n        pass\n"
        "ANSWER = (len(open_ones), sorted(k for k in os.environ if not k.startswith('NUMBA_')), "
        "os.getcwd())"
    )
    _, (ended,) = run_raw([text], watched)

    # The three standard ones, which lead nowhere, and the pipe for the answer.
    assert ended["answer"] == f"finished (4, [], {str(watched)!r})"


def test_there_is_nothing_in_the_network_of_a_worker():
    script = (
        "import socket\nfrom queuesmith.evolve.sandbox.containment import leave_network\n"
        "left = leave_network()\nprint(left, [name for _, name in socket.if_nameindex()])\n"
        "try:\n    socket.create_connection(('127.0.0.1', 9), 1)\n"
        "except OSError as error:\n    print(error.strerror)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    if done.stdout.startswith("False"):
        pytest.skip("this system lets nobody make a network namespace")

    assert done.stdout.splitlines() == ["True ['lo']", "Network is unreachable"], done.stderr


# Processes that die, interrupts


def test_killed_child_processes_are_replaced_and_no_candidate_is_lost(sandbox):
    before = [plain(outcome) for outcome in sandbox.run(SOURCES)]
    killed = [worker._process.pid for worker in sandbox._workers]
    stop = threading.Timer(0.1, lambda: [os.kill(pid, signal.SIGKILL) for pid in killed])
    stop.start()
    after = [plain(outcome) for outcome in sandbox.run(SOURCES * 3)]
    stop.join()

    assert after == before * 3
    assert gone(killed)


def test_a_candidate_whose_process_is_lost_each_time_is_a_crash(single, monkeypatch):
    worker, restarts = single._workers[0], []

    def lose(*_):
        raise Lost

    monkeypatch.setattr(worker, "ask", lose)
    monkeypatch.setattr(worker, "restart", lambda: restarts.append(1))
    (outcome,) = single.run(SOURCES[:1])
    monkeypatch.undo()
    (fine,) = single.run(SOURCES[:1])

    assert (outcome.status, len(restarts), fine.status) == ("crash", 2, "ok")


SCRIPT = """
import sys, tempfile
sys.path.insert(0, sys.argv[1])
tempfile.tempdir = sys.argv[2]
from evolve.hostile.cells import SLOW, crowded_cell, small_job
from queuesmith.evolve.sandbox.sandbox import Sandbox

with Sandbox(small_job()) as sandbox:
    print("ready", *(worker._process.pid for worker in sandbox._workers), flush=True)
    for outcome in sandbox.run([SLOW + f"\\n\\nX{n} = 1\\n" for n in range(200)]):
        print(outcome.status, flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_outlives_a_parent_that_is_interrupted_or_killed(tmp_path, number):
    tests = Path(__file__).parents[1]
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tests), str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as parent:
        workers = [int(pid) for pid in parent.stdout.readline().split()[1:]]
        forks = []
        while not forks and parent.poll() is None:
            forks = [fork for worker in workers for fork in children_of(worker)]
        parent.send_signal(number)
        _, errors = parent.communicate(timeout=60)

    assert len(workers) == len(forks) == 1
    assert gone(workers + forks)
    if number == signal.SIGINT:  # who is killed cannot tidy up
        assert errors.rstrip().endswith("KeyboardInterrupt")
        assert list(tmp_path.iterdir()) == []


def test_memory_is_told_and_a_sandbox_leaves_no_process_no_folder_and_no_thread(job):
    threads = threading.active_count()
    large = SimulationJob((job.cells[0], crowded_cell(1, num_requests=200_000)))
    with Sandbox(large, memory_mib=16) as running:
        folder, workers = Path(running._folder), [one._process.pid for one in running._workers]
        (fits,) = running.run(SOURCES[:1], cells=[0])
        (exceeds,) = running.run(SOURCES[:1], cells=[1])
        assert list(folder.iterdir()) == []

    assert (fits.status, exceeds.status) == ("ok", "memory")
    assert exceeds.reason == "it takes more than 16 MiB of memory"
    assert gone(workers)
    assert not folder.exists()
    assert threading.active_count() == threads
    with pytest.raises(RuntimeError, match="inside its `with`"):
        next(running.run(SOURCES))


# Starting


def test_what_does_not_start_is_one_line(job, tmp_path):
    with pytest.raises(EngineError, match=r"cannot start .* \(no-such-command\)$"):
        Sandbox(job, wrap=("no-such-command",)).__enter__()
    script = tmp_path / "wrap.sh"
    script.write_text("#!/bin/sh\necho it is full >&2\nexit 3\n")
    script.chmod(0o755)
    with pytest.raises(EngineError, match=r"did not start: it is full$"):
        Sandbox(job, workers=2, wrap=(str(script),)).__enter__()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 0}, "workers must be a whole number of at least 1, got 0"),
        ({"workers": True}, "workers must be"),
        ({"cpu_seconds": 0.5}, "cpu_seconds must be a whole number"),
        ({"memory_mib": -1}, "memory_mib must be"),
        ({"wall_seconds": 0}, "wall_seconds must be positive"),
        ({"wall_seconds": math.nan}, "wall_seconds must be positive"),
    ],
)
def test_limits_that_make_no_sense_are_refused(job, options, message):
    with pytest.raises(ConfigError, match=message):
        Sandbox(job, **options)


def test_a_job_without_cells_is_refused():
    with pytest.raises(ConfigError, match="at least one cell"):
        Sandbox(SimulationJob(()))


def test_the_fences_of_this_system_are_named(sandbox):
    assert sandbox.fences[0] == "resource limits"
    assert set(sandbox.fences) <= {"resource limits", "system call filter", "no network"}
    if sys.platform == "linux" and platform.machine() == "x86_64":
        assert "system call filter" in sandbox.fences

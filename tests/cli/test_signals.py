"""A signal is heard while the compiled kernel runs, in the main thread and in others."""

import signal
import subprocess
import sys

import pytest

SLOW = """
import math

def waiting_key(request, engine):
    total = engine.now
    for step in range(9000):
        total = total + math.sin(total + step)
    return total + request.arrival_time
"""
#: Compiles first, so that the signal comes while requests are simulated.
PROGRAM = """
import sys
import threading
import queuesmith as qs
from queuesmith.cli import main

qs.simulate(qs.Trace([0.0, 0.0], [9, 9], [2, 2]), "slow.py")
threading.Timer(1.0, lambda: print("begun", flush=True)).start()
main(sys.argv[1:])
"""
#: Thousands wait, and to ask each of them takes a second a step: hours in all.
TRACE = ("azure_2023_conv@model", "--json")


@pytest.mark.parametrize(
    ("arguments", "sent", "status"),
    [
        (["simulate", *TRACE, "--policy", "slow.py", "--rho", "3"], signal.SIGINT, 130),
        (["simulate", *TRACE, "--policy", "slow.py", "--rho", "3"], signal.SIGTERM, 143),
        (["compare", *TRACE, "--policies", "fcfs,slow.py", "--loads", "3"], signal.SIGTERM, 143),
    ],
    ids=["simulate-int", "simulate-term", "compare-term"],
)
def test_a_slow_policy_can_be_interrupted(tmp_path, arguments, sent, status):
    (tmp_path / "slow.py").write_text(SLOW)
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout.readline() == "begun\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(2.0)
        process.send_signal(sent)
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == status
    assert out == ""
    assert err.endswith("interrupted; nothing half-written is left\n")

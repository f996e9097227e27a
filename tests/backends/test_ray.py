"""A Ray cluster on this machine: results, mistakes, a killed worker, an address that refuses.

Each test is a program of its own, since a process has one Ray.
"""

import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("ray")

HEAD = """
import os, signal, sys, time
from pathlib import Path
from queuesmith.backends import Backend, clusters, open_pool, spread
from queuesmith.errors import ConfigError, PolicyError

backend = Backend.choose("ray", 2)
"""


def run(body, folder, **environment):
    script = folder / "run.py"
    script.write_text(HEAD + textwrap.dedent(body))
    ran = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, check=False, timeout=300
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.split("\n")


def test_a_killed_worker_costs_nothing_but_time_and_mistakes_are_as_they_were(tmp_path):
    body = """
    def work(task, shared):
        number, folder = task
        if number == 5:
            try:
                (Path(folder) / "died").touch(exist_ok=False)
            except FileExistsError:
                return number + len(shared)
            os.kill(os.getpid(), signal.SIGKILL)
        return number + len(shared)

    def refuse(task):
        if task == 2:
            raise PolicyError("policy 'mine' failed")
        return [][task]

    folder = Path(sys.argv[0]).parent
    mistakes = []
    with open_pool(backend) as pool:
        done = sorted(pool.run(work, [(n, folder) for n in range(20)], bytes(1_000_000)))
        for task in (2, 0):
            try:
                list(pool.run(refuse, [task]))
            except (PolicyError, IndexError) as error:
                mistakes.append(error)
    assert (folder / "died").exists()
    print(done == [(n, n + 1_000_000) for n in range(20)])
    for mistake in mistakes:
        print(type(mistake).__name__, mistake)
    """
    lines = run(body, tmp_path)

    assert lines == [
        "True",
        "PolicyError policy 'mine' failed",
        "IndexError list index out of range",
        "",
    ]


def test_an_address_that_refuses_is_said(tmp_path):
    body = """
    start = time.monotonic()
    try:
        list(spread(abs, [1], Backend.choose("ray", 2, "127.0.0.1:9")))
    except ConfigError as error:
        print(str(error).split(" (")[0], time.monotonic() - start < 60)
    """

    assert run(body, tmp_path)[0] == "no Ray cluster answers at '127.0.0.1:9' True"

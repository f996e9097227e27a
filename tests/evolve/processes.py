"""Child processes as the system shows them, and forks that are killed."""

import os
import signal
import time
from pathlib import Path


def _state(pid):
    """Return the fields behind a process's name, the first of which is its state; none if gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return ["Z", "0"]


def children_of(pid, *, even_over=False):
    """Return the children of a process that are not over, or also those not yet waited for."""
    found = {int(name): _state(name) for name in filter(str.isdigit, os.listdir("/proc"))}
    return [
        child for child, at in found.items() if at[1] == str(pid) and (even_over or at[0] != "Z")
    ]


def gone(pids, seconds=10.0):
    """Whether processes end within so many seconds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if all(_state(pid)[0] == "Z" for pid in pids):
            return True
        time.sleep(0.05)
    return False


def fork_and_kill(work, moment):
    """Run `work(descriptor)` in a fork, kill it once `moment(reader)` returns.

    Returns whether it had to be killed, and the lines that it wrote to the descriptor.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            work(writer)
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answers:
        said = moment(answers)
        os.kill(child, signal.SIGKILL)
        said += answers.readlines()
    return os.WIFSIGNALED(os.waitpid(child, 0)[1]), said

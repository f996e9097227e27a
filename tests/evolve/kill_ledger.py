"""Open held-out windows again and again in forks that are killed: ``python -m``.

A process of its own, so that whoever forks has no threads. Arguments: the ledger, how many kills.
Prints one JSON document: how many forks were killed, which windows each said it had opened, and
which of them it said it had written the result of.
"""

import json
import os
import random
import sys
import time
from functools import partial
from pathlib import Path

from queuesmith.evolve.gates.ledger import HeldOut, Ledger

from .processes import fork_and_kill


def windows(number):
    """Return held-out windows of their own for each number."""
    return HeldOut(((f"{number:064x}", 0, 10, f"{number:064x}"),))


def open_many(path, first, answers):
    """Open set after set, writing the result of each, until somebody ends it."""
    ledger = Ledger(path)
    for number in range(first, first + 10_000):
        opening = ledger.open(windows(number), {"policy": "p", "policy_sha256": "0"})
        os.write(answers, f"o {number}\n".encode())
        ledger.close(opening, {"windows_sha256": opening.entry["windows_sha256"]})
        os.write(answers, f"c {number}\n".encode())


def main():
    """Fork, kill, and collect what was said."""
    path, wanted = Path(sys.argv[1]), int(sys.argv[2])
    delays = random.Random(0)
    killed, said = 0, []
    for fork in range(wanted):

        def moment(answers):
            begun = answers.readline()
            time.sleep(delays.uniform(0.0, 0.03))
            return [begun]

        signalled, lines = fork_and_kill(partial(open_many, path, 10_000 * fork), moment)
        killed += signalled
        said += lines
    numbers = {
        kind: [int(line[2:]) for line in said if line.startswith(kind)] for kind in ("o", "c")
    }
    print(json.dumps({"killed": killed, "opened": numbers["o"], "closed": numbers["c"]}))


if __name__ == "__main__":
    main()

"""Go on with a toy run again and again, each time in a fork that is killed: ``python -m``.

A process of its own, so that whoever forks has no threads. Arguments: the folder, how many kills.
Prints one JSON document: how many forks were killed, and how many rows each had said were written.
"""

import json
import os
import random
import sys
import time
from functools import partial
from pathlib import Path

from queuesmith.evolve import run
from queuesmith.evolve.archive.archive import Archive

from .processes import fork_and_kill
from .toy import Aged, evaluator


def go_on(folder: Path, answers: int, *, pause: float) -> None:
    """Run on, and report every row that was acknowledged."""
    run.make_proposer = lambda share: Aged(share.name)
    run.make_control = lambda config: Aged("random", blind=True)
    run.go_on(
        folder,
        make_evaluator=evaluator(pause),
        progress=lambda now: os.write(answers, f"{now.evaluations}\n".encode()) and None,
    )


def main() -> None:
    """Kill and count, until there were enough kills or the run is done."""
    folder, wanted = Path(sys.argv[1]), int(sys.argv[2])
    delays = random.Random(0)
    killed, lost = 0, []
    for _ in range(wanted):
        seconds = delays.uniform(0.05, 0.5)
        # So long a pause that no machine is done before the kills.
        work = partial(go_on, folder, pause=0.3)
        signalled, lines = fork_and_kill(work, lambda _, seconds=seconds: time.sleep(seconds) or [])
        killed, said = killed + signalled, max(map(int, lines), default=0)
        with Archive.read(folder) as archive:
            if archive.num_evaluated() < said:
                lost.append([said, archive.num_evaluated()])
    with Archive.read(folder) as archive:
        done = "stopped" in archive.run()
    print(json.dumps({"killed": killed, "lost": lost, "done_before": done}))


if __name__ == "__main__":
    main()

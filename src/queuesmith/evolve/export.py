"""Candidates judged for another program: one call from a file to a dict of numbers.

OpenEvolve, GEPA and others bring their own search and want one function that says how good a file
is. `evaluate` is that: the check of the form, the sandbox and the fitness of ``queuesmith evolve``,
on the tuning windows of a configuration and on nothing else, so that validation and held-out
windows stay unseen whoever searches. On the command line:

    python -m queuesmith.evolve.export FILE --config quick --json
"""

import argparse
import json
import math
import os
import sys
import tempfile
import threading
from contextlib import ExitStack
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

import numpy as np

from queuesmith.errors import PolicyError, QueuesmithError
from queuesmith.evaluation.goals import GOALS
from queuesmith.evolve.champion import make_reference, samples
from queuesmith.evolve.config import EvolveConfig, read_config
from queuesmith.evolve.sandbox.evaluator import make_sandbox
from queuesmith.evolve.scoring.cells import Cell, CellResult
from queuesmith.evolve.scoring.scale import Limit, make_scale
from queuesmith.evolve.scoring.standing import gain_of, guard_rows
from queuesmith.evolve.scoring.traffic import freeze_windows, tuning_traffic
from queuesmith.policies.policy import read_source

#: `combined_score` of a candidate that gives no result; of one that does, the least.
FAILED = -1_000.0
WORST = -999.0


class Judge:
    """Evaluates candidates on the tuning windows of a configuration.

    It costs seconds to make and keeps one child process; `close` ends that. For one thread at a
    time, and for the process that made it.
    """

    def __init__(self, config: EvolveConfig) -> None:
        with tempfile.TemporaryDirectory(prefix="queuesmith-") as folder:
            self._traffic = tuning_traffic(config, freeze_windows(config, Path(folder)))
        self._scale = make_scale(self._traffic, config.goal, config.guards)
        self._windows = sorted(self._scale.sources)
        self._reference = make_reference(self._scale)
        self._stack = ExitStack()
        self._evaluator = make_sandbox(config, self._traffic, self._scale, 1, self._stack)

    def evaluate(self, text: str) -> dict[str, Any]:
        """Judge the text of a candidate; see `evaluate`, the function."""
        (outcome,) = self._evaluator.evaluate([text], self._windows, [Limit()])
        if outcome.status != "ok":
            return _failed(outcome.status, outcome.reason)
        return self._answer(dict(outcome.results))

    def _answer(self, results: dict[Cell, CellResult]) -> dict[str, Any]:
        beside = self._reference.lay_beside(samples(self._scale, results))
        fitness = self._scale.stand(results, self._windows, each_window=False).score
        found, scale = beside.configurations, self._scale
        goals = [one for one in GOALS.values() if scale.slo is not None or not one.needs_slo]
        guards = {
            f"{key.source} {key.load}": {
                row["guard"]: _finite(row["change"])
                for row in guard_rows(one, beside.guards)
                if not math.isnan(row["change"])
            }
            for key, one in found.items()
        }
        cells = scale.cell_scores(results).items()
        return {
            "combined_score": _finite(fitness),
            "score": _finite(beside.gain.estimate),
            "goal": self._scale.goal.name,
            "broken_guards": len(beside.broken),
            "reasons": beside.reasons,
            "gains": {
                goal.name: float(np.mean([_finite(gain_of(one, goal)) for one in found.values()]))
                for goal in goals
            },
            "guards": guards,
            "per_window": {
                f"{scale.sources[cell.window]} window {cell.window} {cell.load}": _finite(value)
                for cell, value in cells
            },
            "status": "ok",
            "error": "",
        }

    def close(self) -> None:
        """End the child process."""
        self._stack.close()


def _finite(value: float) -> float:
    """Keep a number within what JSON and averages stand."""
    return min(max(value, WORST), -WORST) if not math.isnan(value) else WORST


def _failed(status: str, reason: str) -> dict[str, Any]:
    scores = {"combined_score": FAILED, "score": FAILED, "goal": "", "broken_guards": 0}
    rest: dict[str, Any] = {"reasons": [], "gains": {}, "guards": {}, "per_window": {}}
    return {**scores, **rest, "status": status, "error": reason}


_lock = threading.Lock()
#: By the process that made them and the text of their configuration: a fork has to make its own,
#: since it would share its parent's child process.
_judges: dict[tuple[int, str], Judge] = {}


def _forget_lock() -> None:
    """Take a new lock in a fork: the old one may be held by a thread that is not there."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_lock)


def evaluate(path: str | os.PathLike[str], config: str = "quick") -> dict[str, Any]:
    """Judge a candidate file on the tuning windows of a configuration.

    The first call in a process takes some seconds to cut the windows and start a child process,
    which are kept; further ones take well under a second. May be called from several processes,
    and from several threads, which wait for one another.

    Parameters
    ----------
    path : str or path
        A policy file. It may be anyone's: it is checked, and runs in a child process with limits.
    config : str
        Name of a configuration that comes with the package, or path of one.

    Returns
    -------
    dict of str to Any
        * ``combined_score``, to maximise: the fitness of ``queuesmith evolve``, 0 for first come,
          first served and below 0 where a guard is broken; -1,000 for a candidate that gives no
          result;
        * ``score``: the gain in the configuration's ``goal``, averaged over configurations (a
          source at a load): the logarithm by which it is better than FCFS's, or of a share the
          difference;
        * ``broken_guards``: how many guards it breaks over all configurations, with ``reasons``;
        * ``gains``: the same gain for every goal;
        * ``guards``: by configuration, the change of every guard beside FCFS's;
        * ``per_window``: the fitness on each window at each load by itself;
        * ``status``: ``ok``, as in `queuesmith.evolve.sandbox.sandbox.Outcome`, or ``unreadable``;
        * ``error``: one sentence, empty when the status is ``ok``.

        All numbers are finite; the same candidate has the same numbers every time.

    Raises
    ------
    QueuesmithError
        If the configuration or its traffic is wrong. A bad candidate raises nothing.
    """
    found = read_config(config)
    try:
        text = read_source(Path(path))
    except PolicyError as error:
        return _failed("unreadable", " ".join(str(error).split()))
    with _lock:
        key = os.getpid(), found.sha256
        if key not in _judges:
            _judges[key] = Judge(found)
            # Runs at the end of processes of `multiprocessing` as well, where atexit does not.
            Finalize(None, close, exitpriority=10)
        return _judges[key].evaluate(text)


def close() -> None:
    """End the child processes that `evaluate` keeps for this process."""
    for process, sha256 in list(_judges):
        if process == os.getpid():
            _judges.pop((process, sha256)).close()


def main(arguments: list[str] | None = None) -> int:
    """Judge a file and print it; return 0, or 1 for a candidate without a result, or 2."""
    parser = argparse.ArgumentParser(
        prog="python -m queuesmith.evolve.export",
        description="Judge a candidate on the tuning windows of a configuration.",
    )
    parser.add_argument("file", help="policy file; it may be anyone's")
    parser.add_argument("--config", default="quick", help="name or .toml file (default: quick)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    given = parser.parse_args(arguments)
    try:
        answer = evaluate(given.file, given.config)
    except QueuesmithError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if given.json:
        print(json.dumps(answer, indent=1))
    elif answer["error"]:
        print(f"{answer['status']}: {answer['error']}")
    else:
        print(
            f"gain {answer['score']:+.3f} in {answer['goal']} (fcfs has 0), combined "
            f"{answer['combined_score']:+.3f}; {answer['broken_guards']} guard(s) broken"
        )
        for reason in answer["reasons"]:
            print(f"  {reason}")
        for name, value in answer["per_window"].items():
            print(f"{value:>+9.3f}  {name}")
    return 1 if answer["error"] else 0


if __name__ == "__main__":
    # Children started from here import the module by its name, with judges of their own.
    sys.exit(main())

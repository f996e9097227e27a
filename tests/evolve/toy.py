"""A run small enough to be made many times: four windows of 60 requests, candidates of one number.

A candidate sorts by arrival and prompt length, as its one number SECONDS_PER_TOKEN weighs them.
Everything else is the real thing: loop, archive, windows, engine, score.
"""

import time
from pathlib import Path

from queuesmith.engine import simulate_workload
from queuesmith.engine.compile import compile_policy
from queuesmith.errors import PolicyError
from queuesmith.evolve import run
from queuesmith.evolve.archive.archive import Archive
from queuesmith.evolve.candidate import Proposal
from queuesmith.evolve.config import parse_config
from queuesmith.evolve.sandbox.evaluator import Evaluated
from queuesmith.evolve.scoring.cells import CellResult
from queuesmith.evolve.scoring.scale import StopRule, hopeless
from queuesmith.policies.policy import load_text

CONFIG = """
name = "toy"
seeds = [3]
loads = ["heavy"]

[[source]]
file = "azure_2023_code@model"
num_requests = 1_000

[windows]
num_windows = 4
window_len = 60
per_generation = 2

[search]
generations = 3
children = 6
islands = 2
depth = 2
parents = 3
migrate_every = 2
classics = ["sjf"]
"""

TEXT = '''"""Shortest first, aged.

Knows:   arrival time and prompt length.
"""

SECONDS_PER_TOKEN = {value!r}


def waiting_key(request, engine):
    return request.arrival_time + SECONDS_PER_TOKEN * request.num_prompt_tokens
'''


def toy_config(*changes):
    """Return the toy configuration with some lines replaced: ``("seeds = [3]", "seeds = [4]")``."""
    text = CONFIG
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return parse_config(text, "toy")


class Aged:
    """Proposes texts with a constant: near a parent's, or anywhere if `blind`."""

    def __init__(self, name="aged", blind=False):
        self.name, self.blind = name, blind

    def propose(self, parents, count, rng):
        return [self._one(parents, rng) for _ in range(count)]

    def _one(self, parents, rng):
        value, numbers = float(10 ** rng.uniform(-6, 0)), ()
        if parents and not self.blind:
            parent = parents[int(rng.integers(len(parents)))]
            numbers = (parent.number,)
            value = parent.meta["value"] * float(10 ** rng.normal(0, 0.3))
        text = TEXT.format(value=float(f"{value:.3g}"))
        if rng.random() < 0.15:
            text = text.replace("import", "").replace("def ", "import os\n\n\ndef ")
        if rng.random() < 0.3:
            text = text.replace("return ", "return -")  # last come, first served
        size = int(rng.integers(3, 9))
        return Proposal(text, self.name, numbers, "aged", size, {"value": value})


class InProcess:
    """The interface of the sandbox without its walls; it remembers what it has run.

    `pause` seconds pass after each candidate, so that there is time to be killed.
    """

    def __init__(self, traffic, scale, pause=0.0, stop_early=True):
        self.traffic, self.scale, self.pause = traffic, scale, pause
        self.rule = StopRule(scale) if stop_early else None
        self.num_runs = self.num_cells = 0

    def evaluate(self, texts, windows, limits):
        cells = self.scale.cells_of(windows)
        for text, limit in zip(texts, limits, strict=True):
            time.sleep(self.pause)
            self.num_runs += 1
            kept = []
            try:
                compiled = compile_policy(load_text("candidate", text, Path("candidate.py")))
                for cell in cells:
                    self.num_cells += 1
                    kept.append(self._keep(compiled, cell))
                    if self.rule and self.rule(cells, kept, limit):
                        break
            except PolicyError as error:
                yield Evaluated("fault", str(error).splitlines()[0], {})
                continue
            results = {
                self.scale.cells[cell]: CellResult(values)
                for cell, values in zip(cells, kept, strict=False)
            }
            stopped = len(kept) < len(cells)
            assert not stopped or hopeless(self.scale.bound(results, windows), limit)
            yield Evaluated("stopped" if stopped else "ok", "", results, 0.001)

    def _keep(self, compiled, cell):
        traffic = self.traffic
        result = simulate_workload(
            traffic.workloads[cell], compiled, traffic.config, traffic.step_time
        )
        return traffic.keep(cell, result)


def use_toys(monkeypatch):
    """Let a run make toy proposers."""
    monkeypatch.setattr(run, "make_proposer", lambda share: Aged(share.name))
    monkeypatch.setattr(run, "make_control", lambda config: Aged("random", blind=True))


def evaluator(pause=0.0, stop_early=True, seen=None):
    """Return a factory of in-process evaluators, for `run.go_on`; `seen` collects them."""

    def make(config, traffic, scale, workers, stack):
        made = InProcess(traffic, scale, pause, stop_early)
        if seen is not None:
            seen.append(made)
        return made

    return make


def contents(archive):
    """Return all that an archive holds, but for what times differ in."""
    tables = {}
    for table, columns in {
        "generations": "seed, track, number, windows, rng, calls, closed",
        "candidates": "number, seed, track, generation, island, place, text, behaviour, proposer, "
        "parents, note, size, meta, status, score, window_scores, clean, verdict, sentence",
        "scores": "candidate, window, load, num_requests, mean, p99, max, kept",
        "members": "*",
        "champions": "*",
    }.items():
        tables[table] = sorted(archive.rows(f"SELECT {columns} FROM {table}"), key=repr)
    return tables


def read(folder):
    """Return the contents of the archive in a folder."""
    with Archive.read(folder) as archive:
        return contents(archive)

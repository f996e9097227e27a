"""One run in a folder of its own: begun, gone on with, and summed up.

The folder holds the archive, the frozen windows and, in the end, the best policies. The archive
holds the configuration's text, so that the folder alone is enough to go on.
"""

import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from queuesmith._version import __version__
from queuesmith.backends import Backend
from queuesmith.errors import PolicyError
from queuesmith.evolve.archive.archive import Archive
from queuesmith.evolve.candidate import Proposal, text_sha256
from queuesmith.evolve.champion import crown
from queuesmith.evolve.config import EvolveConfig, parse_config
from queuesmith.evolve.gp.behaviour import behaviour
from queuesmith.evolve.loop import TRACKS, Loop, Progress
from queuesmith.evolve.proposers import make_control, make_proposer
from queuesmith.evolve.sandbox.allow_list import check_form
from queuesmith.evolve.sandbox.evaluator import EvaluatorFactory, cells_of, make_sandbox
from queuesmith.evolve.sandbox.sandbox import Sandbox, SimulationJob
from queuesmith.evolve.scoring.scale import Scale, Traffic, make_scale
from queuesmith.evolve.scoring.traffic import (
    WINDOWS_FILE,
    freeze_windows,
    kind_of,
    run_windows,
    tuning_traffic,
    who_wins,
)
from queuesmith.policies import get_policy
from queuesmith.policies.policy import load_text
from queuesmith.windows.frozen import WindowSet

SCHEMA = "queuesmith.evolve/1"
BEST_FILE = "best.py"
#: Seconds of processor time in which a candidate has to show what it does to the fixed queues; a
#: thousandth of it is usual.
BEHAVIOUR_SECONDS = 3
#: Proposers whose texts are written by this package.
OWN = ("gp", "random")


def begin(config: EvolveConfig, folder: Path) -> None:
    """Freeze the windows of a run and start its archive, in a folder that is there."""
    Archive.refuse_existing(folder)
    windows = freeze_windows(config, folder)
    Archive.create(
        folder,
        {
            "version": __version__,
            "name": config.name,
            "config": config.text,
            "windows_sha256": windows.sha256,
            "windows_folder": str(windows.folder),
        },
    ).close()


def go_on(
    folder: Path,
    *,
    workers: int = 1,
    backend: str = "threading",
    scheduler_address: str | None = None,
    progress: Callable[[Progress], None] = lambda _: None,
    make_evaluator: EvaluatorFactory | None = None,
) -> dict[str, Any]:
    """Bring a run to its end from wherever it is; return what came of it, as JSON can hold it.

    Parameters
    ----------
    workers : int
        Candidates at a time; the result does not depend on it.
    backend : {"threading", "loky", "dask", "ray"}
        Candidates run in child processes in any case: of this one, or of the workers of a cluster.
    make_evaluator : callable, optional
        Runs candidates in a `Sandbox` when left out.
    """
    chosen = Backend.choose(backend, workers, scheduler_address)
    with Archive.resume(folder) as archive, ExitStack() as stack:
        run = archive.run()
        config = parse_config(run["config"], f"the configuration in {folder}")
        windows = run_windows(folder, run)
        traffic = tuning_traffic(config, windows)
        scale = make_scale(traffic, config.goal, config.guards)
        if "classics" not in run:
            with archive.write() as writer:
                writer.set("classics", json.dumps(_classics(config, traffic, scale)))
        make = make_evaluator or partial(make_sandbox, backend=chosen)
        loop = Loop(
            config,
            archive,
            scale,
            make(config, traffic, scale, workers, stack),
            proposers=[(share, make_proposer(share)) for share in config.proposers],
            control=make_control(config),
            check_form=check_form,
            behaviour=Behaviours(config, traffic, stack),
            progress=progress,
        )
        stopped = loop.run()
        for seed in config.seeds:
            for track in TRACKS:
                crown(loop, seed, track)
        with archive.write() as writer:
            writer.set("stopped", stopped)
        document = summary(archive, folder)
        _write_best(archive, folder, document)
        return document


class Behaviours:
    """What texts do to the fixed queues, each asked in a child process within the limits."""

    def __init__(self, config: EvolveConfig, traffic: Traffic, stack: ExitStack) -> None:
        self._limits, self._stack = config.sandbox, stack
        self._job = SimulationJob(cells_of(traffic, [0]))
        self._sandbox: Sandbox | None = None

    def __call__(self, proposal: Proposal) -> str:
        """Return the behaviour of a text, which has passed the check of its form.

        What the search writes by itself is sums and products of a few terms, and is asked here.
        """
        if proposal.proposer in OWN:
            return behaviour(load_text("candidate", proposal.text, Path("candidate.py")))
        if self._sandbox is None:
            seconds = min(self._limits.cpu_seconds, BEHAVIOUR_SECONDS)
            limits = asdict(self._limits) | {"cpu_seconds": seconds}
            self._sandbox = self._stack.enter_context(Sandbox(self._job, **limits))
        outcome = self._sandbox.ask(proposal.text, "behaviour")
        if outcome.status != "ok":
            raise PolicyError(outcome.reason)
        return outcome.told


def _classics(config: EvolveConfig, traffic: Traffic, scale: Scale) -> list[dict[str, Any]]:
    """Score the classics on all tuning windows, best first, with the cells that each wins."""
    windows = sorted(scale.sources)
    table = who_wins(traffic, config.search.classics, scale)
    wins = table.wins(scale.cells)
    rows = []
    for name in table.scores:
        standing = scale.stand(traffic.measure(get_policy(name)), windows)
        rows.append(
            {
                "policy": name,
                "score": standing.score,
                "window_scores": list(standing.window_scores),
                "clean": standing.clean,
                "reason": standing.reason,
                "wins": wins[name],
                "cells": [
                    {"window": cell.window, "load": cell.load, "score": value}
                    for cell, value in table.scores[name].items()
                ],
            }
        )
    return sorted(rows, key=lambda row: (-row["score"], row["policy"]))


def summary(archive: Archive, folder: Path) -> dict[str, Any]:
    """Sum a run up: who is best of each seed, beside the control and the classics."""
    run = archive.run()
    config = parse_config(run["config"], f"the configuration in {folder}")
    windows = WindowSet.load(folder / WINDOWS_FILE)
    seeds: list[dict[str, Any]] = [
        {"seed": seed, **{track: _champion(archive, seed, track) for track in TRACKS}}
        for seed in config.seeds
    ]
    found = [{"seed": row["seed"], **row["search"]} for row in seeds if row["search"]]
    verdicts = archive.rows(
        "SELECT track, status, verdict, count(*) FROM candidates GROUP BY track, status, verdict"
    )
    return {
        "schema": SCHEMA,
        "version": __version__,
        "name": run["name"],
        "folder": str(folder),
        "config_sha256": config.sha256,
        "windows": {
            "sha256": windows.sha256,
            "sources": [
                {
                    "file": source.file,
                    "kind": kind_of(source.file),
                    **{part: len(cut) for part, cut in source.parts.items()},
                }
                for source in windows.sources
            ],
        },
        "engine": config.engine.name,
        "loads": [asdict(load) for load in config.loads],
        "output_length": config.output_length.describe(),
        "stopped": run.get("stopped", ""),
        "best": max(found, key=lambda one: (one["clean"], one["score"]), default=None),
        "seeds": seeds,
        "classics": archive.parse(run.get("classics", "[]")),
        "evaluations": {track: archive.num_evaluated(track=track) for track in TRACKS},
        "outcomes": [
            {"track": track, "status": status, "verdict": verdict, "count": count}
            for track, status, verdict, count in verdicts
        ],
        "spent": archive.spent(),
    }


def _champion(archive: Archive, seed: int, track: str) -> dict[str, Any] | None:
    best = archive.champion(seed, track)
    if best is None:
        return None
    candidate = archive.candidate(best.candidate)
    known = {name: getattr(candidate, name) for name in ("proposer", "generation", "size")}
    ends = {name: None if end != end else end for name, end in vars(best).items()}
    return {
        **(ends | known),
        "clean": best.clean,
        "reasons": list(best.reasons),
        "text_sha256": text_sha256(candidate.text),
    }


def _write_best(archive: Archive, folder: Path, document: Mapping[str, Any]) -> None:
    """Write the best policy, and that of each seed, as files that `compare` can run."""
    for row in document["seeds"]:
        if row["search"]:
            text = archive.candidate(row["search"]["candidate"]).text
            (folder / f"best_seed_{row['seed']}.py").write_text(text, encoding="utf-8")
    if document["best"]:
        text = archive.candidate(document["best"]["candidate"]).text
        (folder / BEST_FILE).write_text(text, encoding="utf-8")

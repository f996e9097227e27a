"""Why a candidate scores what it scores: who wins where, where it lost and to whom, and who paid.

Everything is measured anew on the tuning and validation windows of a run; held-out windows are
never run. The numbers of a diagnosis are for finding out what to try next, and prove nothing:
whoever acts on validation windows has looked at them.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from queuesmith._version import __version__
from queuesmith.errors import ConfigError
from queuesmith.evaluation.goals import MARGIN
from queuesmith.evaluation.judge import REFERENCE
from queuesmith.evaluation.score import gain_and_excess, search_score
from queuesmith.evaluation.statistics import STATISTICS
from queuesmith.evolve.diagnosis.nearest import rank_by_agreement, rank_by_times
from queuesmith.evolve.diagnosis.payers import who_paid
from queuesmith.evolve.diagnosis.suggestions import suggest
from queuesmith.evolve.gates.case import Case
from queuesmith.evolve.gates.gate import finite
from queuesmith.evolve.gates.gates import CLASSICS
from queuesmith.evolve.gates.measurements import Bench, Measured, configuration_rows, standings
from queuesmith.evolve.gates.proof import plain
from queuesmith.evolve.scoring.cells import Cell, Configuration
from queuesmith.evolve.scoring.standing import gain_of
from queuesmith.evolve.scoring.traffic import WhoWins
from queuesmith.policies import Policy, get_policy

SCHEMA = "queuesmith.diagnosis/1"
#: What is looked at; never the held-out windows.
PARTS = ("tuning", "validation")


def diagnose(
    case: Case,
    candidate: Policy,
    *,
    classics: Sequence[str] = CLASSICS,
    workers: int | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Hold a policy against the classics, window by window; return what is seen, as JSON holds it.

    Parameters
    ----------
    candidate : Policy
        Trusted to end: it runs in this process.
    """
    if candidate.engine:
        raise ConfigError(
            f"{candidate.name} sets {', '.join(candidate.engine)} in ENGINE, and a diagnosis is "
            "about the order alone; remove ENGINE, or use `queuesmith compare`"
        )
    bench = Bench(case.config, case.window_set, workers=workers, progress=progress)
    others = _load([*case.config.search.classics, *classics])
    there = [part for part in PARTS if any(bench.num_windows(part).values())]
    if not there:
        raise ConfigError("there is no tuning or validation window to diagnose a policy on")
    [mine] = bench.measure([candidate], there[0])
    times = rank_by_times(mine, bench.measure(others, there[0]), bench.fcfs(there[0]))
    closest = next(one for one in others if one.name == times[0]["policy"])
    parts = {part: _part(bench, part, candidate, others, closest) for part in there}
    document: dict[str, Any] = plain(
        {
            "schema": SCHEMA,
            "version": __version__,
            "policy": {
                "name": candidate.name,
                "sha256": candidate.sha256,
                "text": candidate.source,
            },
            "config_sha256": case.config.sha256,
            "windows_sha256": case.window_set.sha256,
            "engine": case.config.engine.name,
            "goal": case.config.goal.name,
            "loads": [{"name": load.name, "rho": load.rho} for load in case.config.loads],
            "output_length": case.config.output_length.describe(),
            "sources": bench.sources,
            "classics": [one.name for one in others],
            "nearest": {
                "policy": closest.name,
                "times": times,
                "agreement": rank_by_agreement(candidate, others),
            },
            "parts": parts,
        }
    )
    document["suggestions"] = suggest(document)
    return document


def _load(specs: Sequence[str]) -> list[Policy]:
    """Load each text once, FCFS first."""
    found: dict[str, Policy] = {}
    for policy in map(get_policy, [REFERENCE, *specs]):
        found.setdefault(policy.sha256, policy)
    return list(found.values())


def _part(
    bench: Bench, part: str, candidate: Policy, classics: Sequence[Policy], closest: Policy
) -> dict[str, Any]:
    """Diagnose one part: totals, configurations, cells."""
    fcfs = bench.fcfs(part)
    [mine] = bench.measure([candidate], part)
    measured = bench.measure(classics, part)
    near = next(one for one in measured if one.policy is closest)
    prepared = bench.part(part)
    everyone = [mine, *measured]
    cells, ratios = _cells(everyone, fcfs)
    places = {one.policy.sha256: place for place, one in enumerate(measured, start=1)}
    leaderboard = [
        {**row, "kind": kind, **ratios[0 if kind == "candidate" else places[row["policy_sha256"]]]}
        for kind, group in (("candidate", [mine]), ("classic", measured))
        for row in standings(group)
    ]
    names = [one.policy.name for one in measured]
    table = WhoWins(
        {
            name: {Cell(row["window"], row["load"]): row["scores"][place] for row in cells}
            for place, name in enumerate(names)
        }
    )
    for row in cells:
        row["winners"] = table.winners(Cell(row["window"], row["load"]))
        row["best_classic"] = max(row["scores"])
        row["lost"] = row["score"] < row["best_classic"] - MARGIN
    paid = who_paid(mine, fcfs, prepared)
    rows = []
    for row in configuration_rows(mine, fcfs):
        key = Configuration(row["source"], row["load"])
        beside = [_beside(one, key) for one in measured]
        clean = [one for one in beside if not one["broken"]]  # FCFS is
        best = max(clean, key=lambda one: finite(one["score"]))
        winner = next(one for one in measured if one.policy.name == best["policy"])
        rows.append(
            {
                **row,
                "score": _beside(mine, key)["score"],
                "ttft_p99_fcfs": float(np.quantile(fcfs.samples[key].ttft, 0.99)),
                "best_classic": best,
                "clean": clean,
                "nearest_classic": _beside(near, key),
                "paid": paid[key],
                "best_classic_paid": who_paid(winner, fcfs, prepared, only=key)[key],
            }
        )
    return {
        "num_windows": bench.num_windows(part),
        "leaderboard": leaderboard,
        "wins": table.wins(list(next(iter(table.scores.values())))),
        "configurations": rows,
        "cells": cells,
    }


def _beside(one: Measured, key: Configuration) -> dict[str, Any]:
    """Return how a policy stands in one configuration."""
    beside = one.beside.configurations[key]
    return {
        "policy": one.policy.name,
        "score": gain_of(beside, one.beside.goal),
        "broken": len(beside.broken),
        "mean_ratio": 1 + beside.changes["ttft_mean"].change,
        "p99_ratio": 1 + beside.changes["ttft_p99"].change,
    }


def _cells(
    everyone: Sequence[Measured], fcfs: Measured
) -> tuple[list[dict[str, Any]], list[dict[str, float]]]:
    """Score everybody on every window at every load, alone; the candidate is the first.

    The score is the fitness of the search: the goal's gain, less what guards are worth.

    Returns
    -------
    list of dict
        One for each cell: the candidate's `score`, and the `scores` of the others.
    list of dict
        For each policy `mean_ratio` and `p99_ratio`, the geometric means over cells of TTFT over
        FCFS's.
    """
    rows: list[dict[str, Any]] = []
    logs: list[list[NDArray[np.float64]]] = [[] for _ in everyone]
    shown = [STATISTICS["ttft_mean"], STATISTICS["ttft_p99"]]
    goal, guards = fcfs.beside.goal, fcfs.beside.guards
    for key, base in fcfs.samples.items():
        each = np.eye(len(base.windows), dtype=np.int64)
        scores = []
        for place, one in enumerate(everyone):
            mine = one.samples[key]
            scores.append(search_score(*gain_and_excess(mine, base, goal, guards, each)))
            ratios = [of.contrast(mine, base, each).values for of in shown]
            logs[place].append(np.array(ratios))
        for row, window in enumerate(base.windows.tolist()):
            found = [float(values[row]) for values in scores]
            rows.append(
                {
                    "source": key.source,
                    "load": key.load,
                    "window": window,
                    "score": found[0],
                    "scores": found[1:],
                }
            )
    means = [np.exp(np.concatenate(parts, axis=1).mean(axis=1)).tolist() for parts in logs]
    return rows, [{"mean_ratio": mean, "p99_ratio": p99} for mean, p99 in means]

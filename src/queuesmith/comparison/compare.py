"""Which policy to run on a trace: every policy at every load, scored against FCFS."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from typing import Any

import pyarrow as pa

from queuesmith._version import __version__
from queuesmith.comparison.answer import Answer, answer
from queuesmith.comparison.caveats import caveats
from queuesmith.comparison.panel import (
    DEFAULT_POLICIES,
    describe_choice,
    split_grids,
    with_reference,
    with_tuned,
)
from queuesmith.comparison.rows import LeaderboardRow, LoadRow, leaderboard, load_rows
from queuesmith.config import EngineConfig, Slo
from queuesmith.documents import jsonable
from queuesmith.engine.closed_loop import close_loop
from queuesmith.engine.fleet import Fleet
from queuesmith.engine.presets.step_time import DEFAULT_PRESET, Preset, StepTime, get_preset
from queuesmith.errors import ConfigError
from queuesmith.evaluation.evaluate import Load, evaluate, parse_loads
from queuesmith.evaluation.goals import (
    DEFAULT_GOAL,
    LEAST_FOR_P999,
    Goal,
    Guard,
    get_goal,
    parse_guards,
)
from queuesmith.evaluation.judge import REFERENCE, judge
from queuesmith.evaluation.samples import Samples
from queuesmith.policies import Policy, get_policy, split_policies
from queuesmith.routers import Router, get_router
from queuesmith.traces.trace import Trace
from queuesmith.windows import Window, cut_windows, splice
from queuesmith.windows.predictions import OutputLengthKnowledge

SCHEMA = "queuesmith.compare/2"

DEFAULT_LOADS = ("own", "knee", "heavy")
DEFAULT_SLO = Slo(ttft=1.0, tpot=0.05)
#: As many as give intervals that cover what they say, where the trace has room for them.
DEFAULT_WINDOWS = 32
DEFAULT_ROUTER = "round_robin"
DEFAULT_WINDOW_LEN = 1000


@dataclass(frozen=True, eq=False)
class Comparison:
    """The answer, and everything it was made from.

    Attributes
    ----------
    answer : Answer
    leaderboard : tuple of LeaderboardRow
        Policies that may be recommended first.
    loads : tuple of LoadRow
        One per policy and load.
    goal : Goal
    guards : tuple of Guard
    warnings : tuple of str
    config, origin : dict
        What was run, and where the requests come from.
    cells : pyarrow.Table
        One row per (policy, load, window) with every metric.
    samples : mapping of (policy, load) to Samples
    trace : Trace
    """

    answer: Answer
    leaderboard: tuple[LeaderboardRow, ...]
    loads: tuple[LoadRow, ...]
    goal: Goal
    guards: tuple[Guard, ...]
    warnings: tuple[str, ...]
    config: dict[str, Any]
    origin: dict[str, Any]
    cells: pa.Table
    samples: Mapping[tuple[str, str], Samples]
    trace: Trace

    def __repr__(self) -> str:
        return f"Comparison({' '.join(self.answer.sentences)})"

    def to_json(self) -> dict[str, Any]:
        """Return what ``--json`` prints; ``docs/reference/compare_json.md`` describes it."""
        document: dict[str, Any] = jsonable(
            {
                "schema": SCHEMA,
                "version": __version__,
                "origin": self.origin,
                "config": self.config,
                "answer": self.answer,
                "leaderboard": self.leaderboard,
                "loads": self.loads,
                "cells": self.cells.to_pylist(),
                "warnings": self.warnings,
            }
        )
        return document


def compare(
    trace: Trace | Sequence[Window],
    policies: str | Iterable[str | PathLike[str] | Policy] = DEFAULT_POLICIES,
    loads: str | Iterable[str | float | Load] = DEFAULT_LOADS,
    *,
    engine: str | Preset = DEFAULT_PRESET,
    config: EngineConfig | None = None,
    step_time: StepTime | None = None,
    slo: Slo | None = DEFAULT_SLO,
    goal: str = DEFAULT_GOAL,
    guards: Sequence[str] = (),
    output_length: str | OutputLengthKnowledge = "noisy",
    num_windows: int | None = None,
    window_len: int = DEFAULT_WINDOW_LEN,
    seed: int = 0,
    replicas: int = 1,
    router: str | PathLike[str] | Router = DEFAULT_ROUTER,
    closed_loop: bool = False,
    backend: str = "threading",
    num_workers: int | None = None,
    scheduler_address: str | None = None,
    progress: Callable[[int, int], None] | None = None,
    notes: Sequence[str] = (),
    window_set: Mapping[str, str] | None = None,
) -> Comparison:
    """Compare policies on a trace and say which one to run.

    Parameters
    ----------
    trace : Trace or sequence of Window
        Windows are cut from a trace; windows that are given are taken as they are, with the
        predictions that were published with them.
    policies : names, paths or policies
        An iterable, or text with commas between names. FCFS, the reference, is added when missing.
        ``aged_sjf(SECONDS_PER_TOKEN=0.001|0.01)`` is judged with the value that other windows
        choose.
    loads : iterable of loads
        See :func:`queuesmith.evaluation.evaluate.parse_load`.
    engine : str or Preset
        Gives `config` and `step_time` where those are left out.
    config : EngineConfig, optional
    step_time : StepTime, optional
    slo : Slo, optional
        For goodput and attainment.
    goal : {"ttft", "e2el", "slo", "goodput", "tpot"}
        What the policy is chosen by.
    guards : sequence of str
        Changes to the default guards; see :func:`queuesmith.evaluation.goals.parse_guards`.
    output_length : {"none", "noisy", "noisy:SIGMA", "exact"}
    num_windows : int, optional
        Windows to cut from a trace; 32, or as many as fit, when left out.
    window_len : int
        Requests in each.
    seed : int
        Of windows, predictions, random routers and bootstrap.
    replicas : int
        Engines that serve the traffic together, each with the policy. A load is then the offered
        rate over what all of them carry.
    router : str, path or Router
        Which replica a request is sent to: a built-in name or the path of a file.
    closed_loop : bool
        Let later turns of sessions wait for the answers before; see
        :func:`queuesmith.engine.closed_loop.close_loop`. A load scales first arrivals only.
    backend : {"threading", "loky", "dask", "ray"}
        Threads, processes, or a cluster. The numbers are the same for any choice.
    num_workers : int, optional
        All cores when left out; a cluster that is there has its own number.
    scheduler_address : str, optional
        Of a Dask or Ray cluster; workers are started on this machine when it is left out and
        neither ``DASK_SCHEDULER_ADDRESS`` nor ``RAY_ADDRESS`` names one.
    progress : callable, optional
        Called with the number of finished runs and of all runs.
    notes : sequence of str
        Further warnings to carry in the document.
    window_set : mapping of str to str, optional
        Name, part and hash of the set that the windows come from, to carry in the document.

    Returns
    -------
    Comparison

    Raises
    ------
    QueuesmithError
        If an argument makes no sense, or a policy or the trace cannot be run.
    """
    preset = engine if isinstance(engine, Preset) else get_preset(engine)
    config = config or preset.config
    step_time = step_time or preset.step_time
    if isinstance(output_length, str):
        output_length = OutputLengthKnowledge.parse(output_length)
    if isinstance(policies, str):
        policies = split_policies(policies)
    singles, grids = split_grids(policies)
    chosen = with_reference(singles)
    aim = get_goal(goal, slo)
    watched = parse_guards(guards)
    regions = parse_loads(loads)
    fleet = Fleet(replicas, get_router(router))  # also to find what is wrong with them
    if closed_loop and not isinstance(trace, Trace):
        raise ConfigError("closed_loop needs a trace, and not windows that are cut already")
    if isinstance(trace, Trace):
        if closed_loop:
            trace = close_loop(trace, config, step_time)
        windows = cut_windows(
            trace,
            num_windows=DEFAULT_WINDOWS if num_windows is None else num_windows,
            window_len=window_len,
            seed=seed,
        )
    else:
        windows = list(trace)
        trace = splice([window.trace for window in windows])
    shortest = min(len(window.trace) for window in windows)
    _check_p999(guards, watched, windows)
    running = list(dict.fromkeys([*chosen, *(each for grid in grids for each in grid.members)]))
    num_runs = len(running) * len(regions) * len(windows)
    evaluation = evaluate(
        running,
        windows,
        regions,
        config=config,
        step_time=step_time,
        output_length=output_length,
        slo=slo,
        seed=seed,
        fleet=None if replicas == 1 else fleet,
        backend=backend,
        num_workers=num_workers,
        scheduler_address=scheduler_address,
        progress=None if progress is None else lambda done: progress(done, num_runs),
    )
    names = [load.name for load in regions]
    every = evaluation.samples
    evaluation, tuned = with_tuned(evaluation, chosen, grids, names, aim, watched)
    judged = [*chosen, *(one.policy for one in tuned)]
    standings = judge(judged, names, evaluation.samples, goal=aim, guards=watched, seed=seed)
    passed_over = [policy for policy in running if policy not in judged]
    others = judge(
        [get_policy(REFERENCE), *passed_over], names, every, goal=aim, guards=watched, seed=seed
    )
    how = {
        one.policy.name: describe_choice(grid, one) for grid, one in zip(grids, tuned, strict=True)
    }
    rows = load_rows(standings, evaluation)
    described: dict[str, Any] = {
        "policies": [policy.name for policy in judged],
        "policy_sha256": {policy.name: policy.sha256 for policy in judged},
        "chosen": how,
        "reference": REFERENCE,
        "goal": aim.name,
        "guards": [asdict(guard) for guard in watched],
        "loads": [asdict(load) for load in evaluation.loads],
        "own": asdict(evaluation.own),
        "capacity": evaluation.own.rate / evaluation.own.rho,
        "num_windows": len(windows),
        "window_len": shortest,
        "windows": [
            {
                "window": window.index,
                "num_requests": len(window.trace),
                "start_row": window.start_row,
                "sha256": window.sha256,
                "capacity": float(capacity),
            }
            for window, capacity in zip(windows, evaluation.capacity, strict=True)
        ],
        "preset": preset.name,
        "title": preset.title,
        "provenance": step_time.provenance,
        "engine": asdict(config),
        "step_time": {
            name: value for name, value in asdict(step_time).items() if name != "provenance"
        },
        "host_overhead": step_time.host_overhead,
        "replicas": replicas,
        "router": None if replicas == 1 else fleet.router.name,
        "router_sha256": None if replicas == 1 else fleet.router.sha256,
        "closed_loop": closed_loop,
        "slo": None if slo is None else asdict(slo),
        "output_length": describe_knowledge(output_length, windows),
        "window_set": dict(window_set or {}),
        "seed": seed,
    }
    described["sha256"] = hashlib.sha256(
        json.dumps(described, sort_keys=True, default=str).encode()
    ).hexdigest()
    return Comparison(
        answer=answer(
            standings,
            rows,
            evaluation,
            trace,
            aim,
            step_time.shortest(config.async_scheduling),
            how,
            [one for one in others if one.policy in passed_over],
        ),
        leaderboard=tuple(leaderboard(standings, aim, how)),
        loads=tuple(rows),
        goal=aim,
        guards=watched,
        warnings=(
            *notes,
            *trace.origin.guesses,
            *caveats(judged, config, trace, evaluation, len(windows), num_windows or 0, shortest),
        ),
        config=described,
        origin={**trace.origin.to_json(), "num_requests": len(trace)},
        cells=evaluation.cells,
        samples=evaluation.samples,
        trace=trace,
    )


def _check_p999(texts: Sequence[str], guards: Sequence[Guard], windows: Sequence[Window]) -> None:
    num_requests = sum(len(window.trace) for window in windows)
    asked = any(text.partition("=")[0].strip() == "ttft_p999" for text in texts)
    kept = any(guard.name == "ttft_p999" for guard in guards)
    if asked and kept and num_requests < LEAST_FOR_P999:
        raise ConfigError(
            f"a p99.9 needs {LEAST_FOR_P999:,} requests and these windows hold {num_requests:,}; "
            "give a longer trace, or --guard ttft_p999=off"
        )


def describe_knowledge(output_length: OutputLengthKnowledge, windows: Sequence[Window]) -> str:
    """Say what policies know of output lengths; predictions published with windows come first."""
    published = sum(window.predicted_output_tokens is not None for window in windows)
    if output_length.kind != "noisy" or not published:
        return output_length.describe()
    rest = "" if published == len(windows) else f" In the others: {output_length.describe()}"
    return f"Policies see the predictions published with {published} windows.{rest}"

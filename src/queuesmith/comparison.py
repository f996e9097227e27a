"""Which policy to run on a trace: every policy at every load, scored against FCFS."""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from typing import Any

import pyarrow as pa

from queuesmith._version import __version__
from queuesmith.answer import answer, warnings
from queuesmith.config import EngineConfig, Slo
from queuesmith.engine.fleet import Fleet
from queuesmith.engine.sessions import close_loop
from queuesmith.engine.step_time import DEFAULT_PRESET, Preset, StepTime, get_preset
from queuesmith.errors import ConfigError
from queuesmith.evaluate import Load, Samples, evaluate, parse_loads
from queuesmith.leaderboard import DRAWS, REFERENCE, judge, leaderboard, load_rows
from queuesmith.output_length import OutputLengthKnowledge
from queuesmith.policies import Policy, get_policy, split_policies
from queuesmith.routers import Router, get_router
from queuesmith.traces.trace import Trace
from queuesmith.windows import Window, cut_windows, splice

SCHEMA = "queuesmith.compare/1"

#: What is compared when nothing else is said: one policy of each idea that can be deployed.
DEFAULT_POLICIES = (
    "fcfs",
    "sjf",
    "aged_sjf",
    "sjf_aging",
    "residual_sjf",
    "spjf",
    "srpt",
    "hrrn",
    "preflow",
    "las",
    "edf",
    "fit_first",
)
DEFAULT_LOADS = ("light", "knee", "heavy")
DEFAULT_SLO = Slo(ttft=1.0, tpot=0.05)
DEFAULT_WINDOWS = 8
DEFAULT_ROUTER = "round_robin"
DEFAULT_WINDOW_LEN = 1000


@dataclass(frozen=True, eq=False)
class Comparison:
    """The answer, and everything it was made from.

    Attributes
    ----------
    document : dict
        What ``--json`` prints; ``docs/reference/compare_json.md`` describes it.
    cells : pyarrow.Table
        One row per (policy, load, window) with every metric.
    samples : mapping of (policy, load) to Samples
    trace : Trace
    """

    document: dict[str, Any]
    cells: pa.Table
    samples: Mapping[tuple[str, str], Samples]
    trace: Trace

    def __repr__(self) -> str:
        return f"Comparison({' '.join(self.document['answer']['sentences'])})"


def compare(
    trace: Trace | Sequence[Window],
    policies: str | Iterable[str | PathLike[str] | Policy] = DEFAULT_POLICIES,
    loads: str | Iterable[str | float | Load] = DEFAULT_LOADS,
    *,
    engine: str | Preset = DEFAULT_PRESET,
    config: EngineConfig | None = None,
    step_time: StepTime | None = None,
    slo: Slo | None = DEFAULT_SLO,
    output_length: str | OutputLengthKnowledge = "noisy",
    num_windows: int = DEFAULT_WINDOWS,
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
    loads : iterable of region names or numbers
        Offered rate over the engine's capacity; see :data:`queuesmith.evaluate.LOADS`.
    engine : str or Preset
        Gives `config` and `step_time` where those are left out.
    config : EngineConfig, optional
    step_time : StepTime, optional
    slo : Slo, optional
        For goodput and attainment.
    output_length : {"none", "noisy", "noisy:SIGMA", "exact"}
    num_windows, window_len : int
        How many windows of how many requests are cut from a trace.
    seed : int
        Of windows, predictions, random routers and bootstrap.
    replicas : int
        Engines that serve the traffic together, each with the policy. A load is then the offered
        rate over what all of them carry.
    router : str, path or Router
        Which replica a request is sent to: a built-in name or the path of a file.
    closed_loop : bool
        Let later turns of sessions wait for the answers before; see
        :func:`queuesmith.engine.sessions.close_loop`. A load scales first arrivals only.
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
    chosen = with_reference([get_policy(policy) for policy in policies])
    regions = parse_loads(loads)
    fleet = Fleet(replicas, get_router(router))  # also to find what is wrong with them
    if closed_loop and not isinstance(trace, Trace):
        raise ConfigError("closed_loop needs a trace, and not windows that are cut already")
    if isinstance(trace, Trace):
        if closed_loop:
            trace = close_loop(trace, config, step_time)
        windows = cut_windows(trace, num_windows=num_windows, window_len=window_len, seed=seed)
    else:
        windows = list(trace)
        num_windows = len(windows)
        trace = splice([window.trace for window in windows])
    shortest = min(len(window.trace) for window in windows)
    num_runs = len(chosen) * len(regions) * len(windows)
    evaluation = evaluate(
        chosen,
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
    standings = judge(chosen, regions, evaluation, trace.origin.source, seed)
    rows = load_rows(standings, regions, evaluation)
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "version": __version__,
        "origin": {**trace.origin.to_json(), "num_requests": len(trace)},
        "config": {
            "policies": [policy.name for policy in chosen],
            "policy_sha256": {policy.name: policy.sha256 for policy in chosen},
            "reference": REFERENCE,
            "loads": [{"name": load.name, "rho": load.rho} for load in regions],
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
            "draws": DRAWS,
        },
        "answer": answer(standings, rows, trace, step_time.shortest(config.async_scheduling)),
        "leaderboard": leaderboard(standings),
        "loads": rows,
        "cells": evaluation.cells.to_pylist(),
        "warnings": [
            *notes,
            *warnings(chosen, config, trace, evaluation, len(windows), num_windows, shortest),
        ],
    }
    document["config"]["sha256"] = hashlib.sha256(
        json.dumps(document["config"], sort_keys=True, default=str).encode()
    ).hexdigest()
    return Comparison(without_nan(document), evaluation.cells, evaluation.samples, trace)


def describe_knowledge(output_length: OutputLengthKnowledge, windows: Sequence[Window]) -> str:
    """Say what policies know of output lengths; predictions published with windows come first."""
    published = sum(window.predicted_output_tokens is not None for window in windows)
    if output_length.kind != "noisy" or not published:
        return output_length.describe()
    rest = "" if published == len(windows) else f" In the others: {output_length.describe()}"
    return f"Policies see the predictions published with {published} windows.{rest}"


def with_reference(policies: list[Policy]) -> list[Policy]:
    """Put FCFS first; a name given twice, or FCFS's own for something else, is a mistake."""
    names = [policy.name for policy in policies]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(
                f"policy {name!r} is given twice; rename one file or leave one out, since results "
                "are told apart by name"
            )
    reference = get_policy(REFERENCE)
    if REFERENCE not in names:
        return [reference, *policies]
    if policies[names.index(REFERENCE)] != reference:
        raise ConfigError(
            f"a file named {REFERENCE}.py would stand in for {REFERENCE}, the reference of every "
            "comparison; rename it"
        )
    return policies


def without_nan(value: Any) -> Any:
    """Replace what JSON cannot hold (NaN and infinities) by None."""
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value

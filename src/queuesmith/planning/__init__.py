"""How much traffic an engine carries within an SLO, under which policy.

The capacity of a policy is the offered rate up to which at least a given share of requests meets
the SLO. ``docs/guides/plan.md`` says how it is searched and how far to trust it.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from typing import Any

import numpy as np
import pyarrow as pa

from queuesmith._version import __version__
from queuesmith.backends import Backend
from queuesmith.comparison.compare import DEFAULT_SLO, DEFAULT_WINDOW_LEN, describe_knowledge
from queuesmith.comparison.panel import DEFAULT_POLICIES, split_grids, with_reference
from queuesmith.config import Slo
from queuesmith.documents import jsonable
from queuesmith.engine.presets.step_time import DEFAULT_PRESET, Preset, get_preset
from queuesmith.errors import ConfigError
from queuesmith.evaluation.evaluate import OWN, Load, evaluate
from queuesmith.evaluation.goals import GOALS, MARGIN, Guard, parse_guards
from queuesmith.evaluation.judge import REFERENCE, BrokenGuard, judge
from queuesmith.evaluation.statistics import draw_weights
from queuesmith.planning.answer import answer, warnings
from queuesmith.planning.capacity_search import LIMITS, Service, make_service, search
from queuesmith.planning.curve import GRID, RESOLUTION
from queuesmith.planning.rows import capacity_rows, probe_rows, probe_table
from queuesmith.policies import Policy, split_policies
from queuesmith.traces.trace import Trace
from queuesmith.windows import Window, cut_windows, splice
from queuesmith.windows.predictions import OutputLengthKnowledge

SCHEMA = "queuesmith.plan/2"
DEFAULT_ATTAINMENT = 0.99
#: As many as give intervals that cover what they say, where the trace has room for them.
DEFAULT_WINDOWS = 16
#: Name of the load at which guards are looked at beside the trace's own rate.
AT_CAPACITY = f"{REFERENCE}'s capacity"
#: Draws that say where an interval ends well enough to probe there.
_SEARCH_DRAWS = 2_000


@dataclass(frozen=True, eq=False)
class Plan:
    """The answer, and everything it was made from.

    Attributes
    ----------
    document : dict
        What ``--json`` prints; ``docs/reference/plan_json.md`` describes it.
    probes : pyarrow.Table
        One row per engine, policy, load and window that was simulated.
    """

    document: dict[str, Any]
    probes: pa.Table

    def __repr__(self) -> str:
        return f"Plan({' '.join(self.document['answer']['sentences'])})"


def plan(
    trace: Trace | Sequence[Window],
    *,
    slo: Slo | None = DEFAULT_SLO,
    policies: str | Iterable[str | PathLike[str] | Policy] = DEFAULT_POLICIES,
    engine: str | Preset | Iterable[str | Preset] = DEFAULT_PRESET,
    attainment: float = DEFAULT_ATTAINMENT,
    guards: Sequence[str] = (),
    output_length: str | OutputLengthKnowledge = "noisy",
    num_windows: int | None = None,
    window_len: int = DEFAULT_WINDOW_LEN,
    seed: int = 0,
    num_workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    notes: Sequence[str] = (),
    window_set: Mapping[str, str] | None = None,
) -> Plan:
    """Find out how much of this traffic each policy carries within an SLO.

    Parameters
    ----------
    trace : Trace or sequence of Window
        Windows are cut from a trace; windows that are given are taken as they are.
    slo : Slo
        At least one limit.
    policies : names, paths or policies
        An iterable, or text with commas between names. FCFS, the reference, is added when missing.
        Of ``aged_sjf(SECONDS_PER_TOKEN=0.001|0.01)`` each value is a policy of its own.
    engine : str or Preset, or several
    attainment : float
        Share of requests that must meet the SLO, above 0 and at most 1.
    guards : sequence of str
        Changes to the default guards; see :func:`queuesmith.evaluation.goals.parse_guards`. What
        carries more than FCFS is judged at the trace's own rate and at FCFS's capacity.
    output_length : {"none", "noisy", "noisy:SIGMA", "exact"}
    num_windows : int, optional
        Windows to cut from a trace; 16, or as many as fit, when left out.
    window_len : int
        Requests in each.
    seed : int
        Of windows, predictions and bootstrap.
    num_workers : int, optional
        Threads; all cores when left out. The numbers are the same for any choice.
    progress : callable, optional
        Called with the number of finished runs and of those known to be needed, which grows.
    notes : sequence of str
        Further warnings to carry in the document.
    window_set : mapping of str to str, optional
        Name, part and hash of the set that the windows come from, to carry in the document.

    Returns
    -------
    Plan

    Raises
    ------
    QueuesmithError
        If an argument makes no sense, or a policy or the trace cannot be run.
    """
    if slo is None or all(getattr(slo, name) is None for name in LIMITS):
        raise ConfigError("a plan needs an SLO with at least one limit, such as ttft=1.0,tpot=0.05")
    if not 0 < attainment <= 1:
        raise ConfigError(
            f"attainment must be a share above 0 and at most 1, such as 0.99, got {attainment!r}"
        )
    num_workers = Backend.choose("threading", num_workers).num_workers
    presets = _presets(engine)
    if isinstance(output_length, str):
        output_length = OutputLengthKnowledge.parse(output_length)
    if isinstance(policies, str):
        policies = split_policies(policies)
    singles, grids = split_grids(policies)
    members = [member for grid in grids for member in grid.members]
    chosen = with_reference([*singles, *(one for one in members if one not in singles)])
    watched = parse_guards(guards)
    if isinstance(trace, Trace):
        windows = cut_windows(
            trace,
            num_windows=DEFAULT_WINDOWS if num_windows is None else num_windows,
            window_len=window_len,
            seed=seed,
        )
    else:
        windows = list(trace)
        trace = splice([window.trace for window in windows])
    weights = draw_weights(len(windows), seed).astype(np.float64)

    services, found, points = [], [], []
    rows: list[dict[str, Any]] = []
    done = 0
    for preset in presets:
        service = make_service(preset, chosen, windows, output_length, seed)
        before = done

        def count(finished: int, total: int, before: int = before) -> None:
            nonlocal done
            done = before + finished
            if progress is not None:
                progress(done, before + total)

        probes = search(
            service,
            chosen,
            slo,
            attainment,
            weights=weights[: 1 + _SEARCH_DRAWS],
            num_workers=num_workers,
            progress=count,
        )
        services.append(service)
        found.append(probes)
        mine = capacity_rows(service, chosen, probes, slo, attainment, weights)
        broken = _broken(
            service,
            chosen,
            windows,
            mine,
            slo,
            output_length,
            watched,
            seed,
            num_workers,
            lambda finished, total, over=done - before, count=count: count(  # type: ignore[misc]
                over + finished, over + total
            ),
        )
        rows += [row | {"broken": broken.get(row["policy"])} for row in mine]
        points += probe_rows(service, probes)

    document: dict[str, Any] = {
        "schema": SCHEMA,
        "version": __version__,
        "origin": {**trace.origin.to_json(), "num_requests": len(trace)},
        "config": {
            "policies": [policy.name for policy in chosen],
            "policy_sha256": {policy.name: policy.sha256 for policy in chosen},
            "reference": REFERENCE,
            "slo": asdict(slo),
            "attainment": attainment,
            "num_windows": len(windows),
            "window_len": min(len(window.trace) for window in windows),
            "windows": [
                {
                    "window": window.index,
                    "num_requests": len(window.trace),
                    "start_row": window.start_row,
                    "sha256": window.sha256,
                }
                for window in windows
            ],
            "engines": [_engine_row(service) for service in services],
            "share_together": _share_together(windows),
            "output_length": describe_knowledge(output_length, windows),
            "window_set": dict(window_set or {}),
            "grid": list(GRID),
            "resolution": RESOLUTION,
            "margin": MARGIN,
            "guards": [asdict(guard) for guard in watched],
            "prompt_tokens": float(trace.prompt_len.mean()),
            "output_tokens": float(trace.output_len.mean()),
            "seed": seed,
            "draws": len(weights) - 1,
        },
        "capacities": rows,
        "probes": points,
    }
    document["answer"] = answer(document)
    document["warnings"] = [
        *notes,
        *trace.origin.guesses,
        *warnings(document, trace, num_windows or 0),
    ]
    document["config"]["sha256"] = hashlib.sha256(
        json.dumps(document["config"], sort_keys=True, default=str).encode()
    ).hexdigest()
    return Plan(jsonable(document), probe_table(services, found, windows))


def _share_together(windows: Sequence[Window]) -> float:
    """Return the share of requests that arrive at the instant of the one before, at any rate."""
    gaps = np.concatenate([np.diff(window.trace.arrival_time) for window in windows])
    return float((gaps == 0).mean())


def _presets(engine: str | Preset | Iterable[str | Preset]) -> list[Preset]:
    given = [engine] if isinstance(engine, str | Preset) else list(engine)
    presets = [one if isinstance(one, Preset) else get_preset(one) for one in given]
    if not presets:
        raise ConfigError(f"no engine was given; name one such as {DEFAULT_PRESET}")
    names = [preset.name for preset in presets]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"engine {name!r} is given twice; results are told apart by name")
    return presets


def _engine_row(service: Service) -> dict[str, Any]:
    preset = service.preset
    step_time = asdict(preset.step_time)
    return {
        "name": preset.name,
        "title": preset.title,
        "provenance": step_time.pop("provenance"),
        "engine": asdict(preset.config),
        "step_time": step_time,
        "rate": service.rate,
        "carried": service.carried[preset.config],
        "windows": [
            {"rate": rho * window.capacity, "carried": window.capacity}
            for rho, window in zip(service.of_windows(service.load), service.windows, strict=True)
        ],
        "num_dropped": sum(window.num_dropped for window in service.windows),
        "num_truncated": sum(window.workload.num_truncated for window in service.windows),
    }


def _broken(
    service: Service,
    policies: Sequence[Policy],
    windows: Sequence[Window],
    rows: Sequence[Mapping[str, Any]],
    slo: Slo,
    output_length: OutputLengthKnowledge,
    guards: Sequence[Guard],
    seed: int,
    num_workers: int,
    count: Callable[[int, int], None],
) -> dict[str, tuple[BrokenGuard, ...]]:
    """Judge what carries more than FCFS at the trace's own rate and at FCFS's capacity."""
    by_name = {policy.name: policy for policy in policies}
    more = [
        by_name[row["policy"]] for row in rows if row["kind"] == "policy" and _carries_more(row)
    ]
    if not more:
        return {}
    loads = [OWN]
    rate = next(row["rate"] for row in rows if row["policy"] == REFERENCE)
    if 0 < rate < math.inf:
        loads.append(Load(AT_CAPACITY, rate=rate))
    running = [by_name[REFERENCE], *more]
    total = len(running) * len(loads) * len(windows)
    samples = evaluate(
        running,
        windows,
        loads,
        config=service.preset.config,
        step_time=service.preset.step_time,
        output_length=output_length,
        slo=slo,
        seed=seed,
        num_workers=num_workers,
        progress=lambda finished: count(finished, total),
    ).samples
    names = [load.name for load in loads]
    standings = judge(running, names, samples, goal=GOALS["slo"], guards=guards, seed=seed)
    return {one.policy.name: tuple(one.broken) for one in standings}


def _carries_more(row: Mapping[str, Any]) -> bool:
    """Tell whether a policy might be the answer."""
    return row["rate"] > 0 and not row["ratio"] <= 1 + MARGIN

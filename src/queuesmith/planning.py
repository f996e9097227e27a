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
from queuesmith.attainment import GRID, RESOLUTION, Floats
from queuesmith.backends import Backend
from queuesmith.comparison import (
    DEFAULT_POLICIES,
    DEFAULT_SLO,
    DEFAULT_WINDOW_LEN,
    DEFAULT_WINDOWS,
    describe_knowledge,
    with_reference,
)
from queuesmith.config import Slo
from queuesmith.documents import jsonable
from queuesmith.engine.step_time import DEFAULT_PRESET, Preset, get_preset
from queuesmith.errors import ConfigError
from queuesmith.evaluation.judge import REFERENCE
from queuesmith.output_length import OutputLengthKnowledge
from queuesmith.plan_answer import answer, warnings
from queuesmith.policies import Policy, get_policy, split_policies
from queuesmith.probing import LIMITS, Outcome, Probes, Service, make_service, search
from queuesmith.score import MARGIN, ratio_to
from queuesmith.stats import bootstrap_weights, interval
from queuesmith.traces.trace import Trace
from queuesmith.windows import Window, cut_windows, splice

SCHEMA = "queuesmith.plan/1"
DEFAULT_ATTAINMENT = 0.99
DRAWS = 10_000
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
    output_length: str | OutputLengthKnowledge = "noisy",
    num_windows: int = DEFAULT_WINDOWS,
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
    engine : str or Preset, or several
    attainment : float
        Share of requests that must meet the SLO, above 0 and at most 1.
    output_length : {"none", "noisy", "noisy:SIGMA", "exact"}
    num_windows, window_len : int
        How many windows of how many requests are cut from a trace.
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
    chosen = with_reference([get_policy(policy) for policy in policies])
    if isinstance(trace, Trace):
        windows = cut_windows(trace, num_windows=num_windows, window_len=window_len, seed=seed)
    else:
        windows = list(trace)
        num_windows = len(windows)
        trace = splice([window.trace for window in windows])
    drawn = bootstrap_weights(len(windows), DRAWS, np.random.default_rng(seed)).astype(np.float64)
    weights = drawn if len(windows) > 1 else drawn[:0]

    services, found, rows, points = [], [], [], []
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
            weights=weights[:_SEARCH_DRAWS],
            num_workers=num_workers,
            progress=count,
        )
        services.append(service)
        found.append(probes)
        rows += _capacity_rows(service, chosen, probes, slo, attainment, weights)
        points += _probe_rows(service, probes)

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
            "seed": seed,
            "draws": DRAWS,
        },
        "capacities": rows,
        "probes": points,
    }
    document["answer"] = answer(document)
    document["warnings"] = [*notes, *trace.origin.guesses, *warnings(document, trace, num_windows)]
    document["config"]["sha256"] = hashlib.sha256(
        json.dumps(document["config"], sort_keys=True, default=str).encode()
    ).hexdigest()
    return Plan(jsonable(document), _probe_table(services, found, windows))


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


def kind(policy: Policy) -> str:
    """Return policy, or what sets it apart: bundle (own settings) or oracle (undeployable)."""
    if policy.oracle:
        return "oracle"
    return "bundle" if policy.is_bundle else "policy"


def _capacity_rows(
    service: Service,
    policies: Sequence[Policy],
    probes: Mapping[str, Probes],
    slo: Slo,
    target: float,
    weights: Floats,
) -> list[dict[str, Any]]:
    """One row per policy of an engine, the highest capacity first."""
    every = np.vstack([np.ones((1, len(service.windows))), weights])
    rho = {name: one.curve.capacity(target, every) for name, one in probes.items()}
    # For traffic that lasts, nothing carries more than the engine finishes.
    most = {
        name: service.carried[config] / service.carried[service.preset.config]
        for name, config in service.configs.items()
    }
    lasting = {name: np.minimum(mine, most[name]) for name, mine in rho.items()}
    level = 1 - 0.05 / max(len(policies) - 1, 1)
    rows = []
    for policy in policies:
        mine = rho[policy.name]
        ratio = ratio_to(mine, rho[REFERENCE])
        lasting_ratio = ratio_to(lasting[policy.name], lasting[REFERENCE])
        low, high = _interval(mine)
        ratio_low, ratio_high = _interval(ratio)
        row: dict[str, Any] = {
            "engine": service.preset.name,
            "policy": policy.name,
            "summary": policy.summary,
            "kind": kind(policy),
            "state": "found",
        }
        for name, unit in (
            ("rate", service.carried[service.preset.config]),
            ("rho", 1.0),
            ("multiple", 1 / service.load),
        ):
            row[name] = float(mine[0] * unit)
            row |= {f"{name}_low": low * unit, f"{name}_high": high * unit}
        row |= {
            "ratio": float(ratio[0]),
            "ratio_low": ratio_low,
            "ratio_high": ratio_high,
            "lasting_ratio": float(lasting_ratio[0]),
            "lasting_ratio_lowest": _interval(lasting_ratio, level)[0],
            "verdict": verdict(ratio_low, ratio_high),
        }
        row |= _edge(service, policy, probes[policy.name], slo, target)
        rows.append(row)
    return sorted(rows, key=lambda row: (-row["rate"], row["policy"]))


def _interval(draws: Floats, level: float = 0.95) -> tuple[float, float]:
    """Return the interval of all but the first, which is the estimate; NaN without any."""
    return interval(draws[1:], level) if len(draws) > 1 else (math.nan, math.nan)


def verdict(low: float, high: float) -> str:
    """Say how a capacity compares with the reference's; within the margin is the same."""
    if low > 1 + MARGIN:
        return "more"
    if high < 1 - MARGIN:
        return "less"
    return "same" if low >= 1 - MARGIN and high <= 1 + MARGIN else "unsure"


def _edge(
    service: Service, policy: Policy, probes: Probes, slo: Slo, target: float
) -> dict[str, Any]:
    """Say what happens on both sides of a capacity."""
    curve, config = probes.curve, service.configs[policy.name]
    carried = service.carried[service.preset.config]
    held, broke = curve.bracket(target)
    idle = service.idle(config, slo)
    edge: dict[str, Any] = {
        "held": held * carried if held else math.nan,
        "broke": broke * carried,
        "regained": [rho * carried for rho in curve.regained(target)],
        "idle": _misses(idle),
        "carried": service.carried[config],
        "at_held": None,
        "at_broke": None,
        "num_windows_overloaded": 0,
    }
    if not held:
        edge["state"] = "unreachable" if idle.met < target * idle.num_requests else "below"
    elif broke == np.inf:
        edge["state"] = "above"
    if held:
        edge["at_held"] = _misses(probes.at(held))
        own = carried / service.carried[config]
        edge["num_windows_overloaded"] = int((service.of_windows(held) * own > 1).sum())
    if broke < np.inf:
        edge["at_broke"] = _misses(probes.at(broke))
    return edge


def _misses(outcome: Outcome) -> dict[str, Any]:
    return outcome._asdict() | {"attainment": outcome.met / outcome.num_requests}


def _probe_rows(service: Service, probes: Mapping[str, Probes]) -> list[dict[str, Any]]:
    """One row per policy and load that was probed, all windows together."""
    carried = service.carried[service.preset.config]
    return [
        {
            "engine": service.preset.name,
            "policy": name,
            "rho": rho,
            "rate": rho * carried,
            "multiple": rho / service.load,
        }
        | _misses(one.at(rho))
        for name, one in probes.items()
        for rho in sorted(one.outcomes)
    ]


def _probe_table(
    services: Sequence[Service], found: Sequence[Mapping[str, Probes]], windows: Sequence[Window]
) -> pa.Table:
    rows = []
    for service, probes in zip(services, found, strict=True):
        for name, one in probes.items():
            for rho in sorted(one.outcomes):
                loads = service.of_windows(rho).tolist()
                for window, load, outcome in zip(windows, loads, one.outcomes[rho], strict=True):
                    head = {"engine": service.preset.name, "policy": name, "rho": rho}
                    rows.append(
                        head | {"window": window.index, "window_rho": load} | outcome._asdict()
                    )
    return pa.Table.from_pylist(rows)

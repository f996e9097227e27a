"""Capacities and probes of a plan as rows."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from queuesmith.config import Slo
from queuesmith.evaluation.goals import MARGIN
from queuesmith.evaluation.judge import REFERENCE, kind_of
from queuesmith.planning.capacity_search import Outcome, Probes, Service
from queuesmith.planning.curve import Floats, log_interval
from queuesmith.policies import Policy
from queuesmith.windows import Window


def capacity_rows(
    service: Service,
    policies: Sequence[Policy],
    probes: Mapping[str, Probes],
    slo: Slo,
    target: float,
    weights: Floats,
) -> list[dict[str, Any]]:
    """One row per policy of an engine, the highest capacity first."""
    num_windows = len(service.windows)
    rho = {name: one.curve.capacity(target, weights) for name, one in probes.items()}
    # For traffic that lasts, nothing carries more than the engine finishes.
    most = {
        name: service.carried[config] / service.carried[service.preset.config]
        for name, config in service.configs.items()
    }
    lasting = {name: np.minimum(mine, most[name]) for name, mine in rho.items()}
    rows = []
    for policy in policies:
        mine = rho[policy.name]
        ratio = ratio_to(mine, rho[REFERENCE])
        lasting_ratio = ratio_to(lasting[policy.name], lasting[REFERENCE])
        low, high = log_interval(mine, num_windows)
        ratio_low, ratio_high = log_interval(ratio, num_windows)
        row: dict[str, Any] = {
            "engine": service.preset.name,
            "policy": policy.name,
            "summary": policy.summary,
            "kind": kind_of(policy),
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
            "lasting_ratio_low": log_interval(lasting_ratio, num_windows)[0],
            "verdict": verdict(ratio_low, ratio_high),
        }
        row |= _edge(service, policy, probes[policy.name], slo, target)
        row["at_own"] = _misses(probes[policy.name].at(service.load))
        rows.append(row)
    return sorted(rows, key=lambda row: (-row["rate"], row["policy"]))


def ratio_to(value: Floats, base: Floats) -> Floats:
    """`value` over `base`: 1 where both are 0, NaN where `base` is infinite."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = value / base
    ratio[(value == 0) & (base == 0)] = 1.0
    ratio[np.isinf(base)] = np.nan
    return np.asarray(ratio)


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


def probe_rows(service: Service, probes: Mapping[str, Probes]) -> list[dict[str, Any]]:
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


def probe_table(
    services: Sequence[Service], found: Sequence[Mapping[str, Probes]], windows: Sequence[Window]
) -> pa.Table:
    """One row per engine, policy, load and window that was simulated."""
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

"""Studies whose truth is known, because it was written down: no engine is run.

A value is ``level(source, load, metric, engine) * window's luck * exp(effect) * a little noise``,
where the effect is what `Truth` says of the policy there, so which policy wins where, which order
flips and which condition is a tie follows from the numbers below.

Sources: ``chat`` and ``chat_too`` are alike, in traffic and in who wins (hrrn); ``code`` has longer
prompts and is won by spjf, with hrrn and spjf swapped; ``batch`` is far away and nothing but ljf
differs. At ``light`` load nothing queues, so that nothing differs. On ``constant_1ms`` the order of
hrrn and spjf is swapped on every source.
"""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa

from queuesmith.metrics import METRICS

POLICIES = ("fcfs", "hrrn", "spjf", "lcfs", "ljf")
LOADS = {"light": 0.3, "knee": 0.95, "heavy": 1.5}
H100, FLAT = "llama-3.1-8b/h100_sxm", "constant_1ms"
ENGINES = (H100, FLAT)
SOURCES = ("chat", "chat_too", "code", "batch")
MODELLED = ("batch",)
ANALYSED = ("ttft_mean", "ttft_p99", "e2el_mean", "tpot_mean", "slo_attainment")
MAIN = "noisy:0.198"
STUDY_COLUMNS = (
    *(f"anwg_slack_{slack}" for slack in ("0.5", "2", "4")),
    *(f"ttft_mean_{by}{quarter}" for by in "qo" for quarter in range(1, 5)),
    "fcfs_queued_steps",
)

#: log of a policy's mean TTFT over that of fcfs, where requests queue.
CHAT = {"fcfs": 0.0, "hrrn": -0.7, "spjf": -0.4, "lcfs": 0.3, "ljf": 0.6}
CODE = {"fcfs": 0.0, "hrrn": -0.3, "spjf": -0.8, "lcfs": 0.3, "ljf": 0.6}
BATCH = {"fcfs": 0.0, "hrrn": 0.0, "spjf": 0.0, "lcfs": 0.0, "ljf": 0.5}
EFFECTS = {"chat": CHAT, "chat_too": CHAT, "code": CODE, "batch": BATCH}

#: Median and spread of log features: (gap_cv, count_cv_1s, prompt_p50, ... ), see FEATURES.
FEATURES = (
    "gap_cv",
    "count_cv_1s",
    "prompt_p50",
    "prompt_p99",
    "prompt_cv",
    "output_p50",
    "output_p99",
    "output_cv",
)
TRAFFIC = {
    "chat": (1.0, 0.8, 900, 4000, 1.2, 150, 900, 1.0),
    "chat_too": (1.1, 0.9, 1000, 4500, 1.3, 180, 1000, 1.1),
    "code": (2.0, 1.4, 2000, 7500, 0.8, 15, 250, 2.0),
    "batch": (6.0, 4.0, 200, 700, 0.5, 7, 1200, 5.0),
}


@dataclass(frozen=True)
class Truth:
    """What to change in a synthetic study; the defaults are what the module says."""

    num_windows: int = 10
    noise: float = 0.02
    luck: float = 0.3
    seed: int = 7
    engines: tuple[str, ...] = ENGINES
    sources: tuple[str, ...] = SOURCES
    loads: dict[str, float] = field(default_factory=lambda: dict(LOADS))
    policies: tuple[str, ...] = POLICIES
    predictions: tuple[str, ...] = (MAIN, "none", "exact")


def effect(policy: str, source: str, load: str, engine: str, metric: str, prediction: str) -> float:
    """Return the log ratio to fcfs that the study has for ever of everything."""
    if load == "light":
        return 0.0
    swap = {"hrrn": "spjf", "spjf": "hrrn"} if engine == FLAT else {}
    value = EFFECTS.get(source, CHAT)[swap.get(policy, policy)]
    if metric.startswith(("tpot", "itl")):
        return 0.0
    if "_p99" in metric and policy == "spjf":
        value = 0.5  # the long prompts pay: best or good on the mean, worst in the tail
    if prediction == "exact" and policy == "spjf":
        value -= 0.1
    return value


def synthetic_study(truth: Truth | None = None) -> SimpleNamespace:
    """Return a study with `runs`, `windows`, `document` and `design`, as `Study` has them."""
    truth = truth or Truth()
    rng = np.random.default_rng(truth.seed)
    rows: list[dict[str, Any]] = []
    plan = [(engine, MAIN) for engine in truth.engines]
    plan += [(truth.engines[0], one) for one in truth.predictions if one != MAIN]
    luck = {
        (source, window): np.exp(truth.luck * rng.normal())
        for source in truth.sources
        for window in range(truth.num_windows)
    }
    for engine, prediction in plan:
        for source in truth.sources:
            for window in range(truth.num_windows):
                for load, rho in truth.loads.items():
                    for policy in truth.policies:
                        rows.append(
                            _row(
                                truth,
                                rng,
                                luck[source, window],
                                (engine, source, window, load, rho, prediction, policy),
                            )
                        )
    runs = pa.Table.from_pylist(rows)
    windows = pa.Table.from_pylist(
        [
            _window(truth, rng, source, window)
            for source in truth.sources
            for window in range(truth.num_windows)
        ]
    )
    design = {
        "name": "synthetic",
        "title": "A study whose truth is known",
        "policies": list(truth.policies),
        "engines": list(truth.engines),
        "loads": list(truth.loads),
        "metrics": list(ANALYSED),
        "reference": "fcfs",
        "output_length": "noisy",
        "window_len": 1000,
        "num_windows": truth.num_windows,
        "engine": "queuesmith",
        "sources": [{"name": source} for source in truth.sources],
        "seed": truth.seed,
    }
    kinds = {
        source: {
            "real": 0 if source in MODELLED else truth.num_windows,
            "modelled": truth.num_windows if source in MODELLED else 0,
        }
        for source in truth.sources
    }
    document = {
        "schema": "queuesmith.study/1",
        "name": design["name"],
        "title": design["title"],
        "version": "0.0.0",
        "sha256": "5eed" * 16,
        "design": design,
        "policies": [{"name": name, "is_bundle": False} for name in truth.policies],
        "engines": [{"name": name} for name in truth.engines],
        "loads": [{"name": name, "rho": rho} for name, rho in truth.loads.items()],
        "prediction": MAIN,
        "sources": [
            {"name": source, **kinds[source], "file": f"{source}.csv", "model": "", "notes": []}
            for source in truth.sources
        ],
        "num_windows": {
            kind: sum(kinds[source][kind] for source in truth.sources)
            for kind in ("real", "modelled")
        },
        "num_runs": len(rows),
    }
    return SimpleNamespace(runs=runs, windows=windows, document=document, design=design)


def windows_like(*values, spread=0.05, num_windows=9):
    """Return windows of traffic with these medians, as the windows table has them."""
    rng = np.random.default_rng(3)
    table = {
        name: (value * np.exp(spread * rng.normal(size=num_windows))).tolist()
        for name, value in zip(FEATURES, values, strict=True)
    }
    return table | {"rank_corr": (0.2 + 0.03 * rng.normal(size=num_windows)).tolist()}


def _row(truth: Truth, rng: Any, luck: float, where: tuple[Any, ...]) -> dict[str, Any]:
    engine, source, window, load, rho, prediction, policy = where
    queued = {"light": 0.02, "knee": 1.0, "heavy": 8.0}.get(load, 1.0)
    row: dict[str, Any] = {
        "engine": engine,
        "source": source,
        "window": window,
        "kind": "modelled" if source in MODELLED else "real",
        "position": (window + 0.5) / truth.num_windows,
        "load": load,
        "rho": rho,
        "multiplier": float("nan"),
        "prediction": prediction,
        "policy": policy,
    }
    row |= dict.fromkeys((*METRICS, *STUDY_COLUMNS), float("nan"))

    def latency(level: float, metric: str) -> float:
        change = effect(policy, source, load, engine, metric, prediction)
        noise = 0.0 if load == "light" else truth.noise * rng.normal()
        return float(level * luck * queued * np.exp(change + noise))

    row["ttft_mean"] = latency(1.0, "ttft_mean")
    row["ttft_p99"] = latency(6.0, "ttft_p99")
    row["e2el_mean"] = latency(1.5, "e2el_mean") + 5.0
    row["tpot_mean"] = 0.02 * luck
    row["slo_attainment"] = float(np.exp(-0.3 * row["ttft_mean"]))
    row["anwg"] = float(np.exp(-0.2 * row["ttft_mean"]))
    for slack in ("0.5", "2", "4"):
        row[f"anwg_slack_{slack}"] = float(row["anwg"] ** (1 / float(slack)))
    # Whoever is ahead serves the short ones first; who is behind serves them last.
    change = effect(policy, source, load, engine, "ttft_mean", prediction)
    for by in "qo":
        for quarter in range(1, 5):
            tilt = -change * (quarter - 2.5) / 2
            row[f"ttft_mean_{by}{quarter}"] = float(row["ttft_mean"] * np.exp(tilt))
    row["fcfs_queued_steps"] = 0.5 if load == "light" else 40.0 * queued
    return row


def _window(truth: Truth, rng: Any, source: str, window: int) -> dict[str, Any]:
    values = np.array(TRAFFIC.get(source, TRAFFIC["chat"])) * np.exp(0.08 * rng.normal(size=8))
    return {
        "source": source,
        "window": window,
        "kind": "modelled" if source in MODELLED else "real",
        "start_row": 1000 * window,
        "position": (window + 0.5) / truth.num_windows,
        "num_requests": 1000,
        "sha256": f"{window:064x}",
        "lambda_ref": float("nan"),
        **dict(zip(FEATURES, values.tolist(), strict=True)),
        "rank_corr": float(0.2 + 0.05 * rng.normal()),
        "share_one_client": float("nan"),
    }

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
from queuesmith.config import EngineConfig, Slo
from queuesmith.engine.step_time import DEFAULT_PRESET, StepTime, get_preset
from queuesmith.errors import ConfigError
from queuesmith.evaluate import Evaluation, Load, Samples, evaluate, parse_loads
from queuesmith.metrics import METRICS, censored_quantiles
from queuesmith.output_length import OutputLengthKnowledge
from queuesmith.policies import Policy, get_policy
from queuesmith.score import (
    MIN_WINDOWS,
    Configuration,
    Improvement,
    LoadTest,
    Sample,
    Score,
    Tail,
    improvement,
    load_tests,
    score,
    tail_violation,
    window_wins,
)
from queuesmith.traces.trace import Trace
from queuesmith.windows import cut_windows

SCHEMA = "queuesmith.compare/1"
REFERENCE = "fcfs"

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
DEFAULT_LOADS = ("light", "busy", "overload")
DEFAULT_SLO = Slo(ttft=1.0, tpot=0.05)
DEFAULT_WINDOWS = 8
DEFAULT_WINDOW_LEN = 1000
DRAWS = 10_000


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
    trace: Trace,
    policies: Iterable[str | PathLike[str] | Policy] = DEFAULT_POLICIES,
    loads: str | Iterable[str | float | Load] = DEFAULT_LOADS,
    *,
    engine: str = DEFAULT_PRESET,
    config: EngineConfig | None = None,
    step_time: StepTime | None = None,
    slo: Slo | None = DEFAULT_SLO,
    output_length: str | OutputLengthKnowledge = "noisy",
    num_windows: int = DEFAULT_WINDOWS,
    window_len: int = DEFAULT_WINDOW_LEN,
    seed: int = 0,
    num_workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    notes: Sequence[str] = (),
) -> Comparison:
    """Compare policies on a trace and say which one to run.

    Parameters
    ----------
    trace : Trace
    policies : iterable of names, paths or policies
        FCFS, the reference, is added when it is missing.
    loads : iterable of region names or numbers
        Offered rate over the engine's capacity; see :data:`queuesmith.evaluate.LOADS`.
    engine : str
        Preset that gives `config` and `step_time` where those are left out.
    config : EngineConfig, optional
    step_time : StepTime, optional
    slo : Slo, optional
        For goodput and attainment.
    output_length : {"none", "noisy", "noisy:SIGMA", "exact"}
    num_windows, window_len : int
        How many windows of how many requests are cut from the trace.
    seed : int
        Of windows, predictions and bootstrap.
    num_workers : int, optional
        Threads; all cores when left out. The numbers are the same for any choice.
    progress : callable, optional
        Called with the number of finished runs and of all runs.
    notes : sequence of str
        Further warnings to carry in the document.

    Returns
    -------
    Comparison

    Raises
    ------
    QueuesmithError
        If an argument makes no sense, or a policy or the trace cannot be run.
    """
    preset = get_preset(engine)
    config = config or preset.config
    step_time = step_time or preset.step_time
    if isinstance(output_length, str):
        output_length = OutputLengthKnowledge.parse(output_length)
    chosen = _with_reference([get_policy(policy) for policy in policies])
    regions = parse_loads(loads)
    windows = cut_windows(trace, num_windows=num_windows, window_len=window_len, seed=seed)
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
        num_workers=num_workers,
        progress=None if progress is None else lambda done: progress(done, num_runs),
    )
    judged = _judge(chosen, regions, evaluation, trace.origin.source, seed)
    rows = _per_load(judged, regions, evaluation)
    origin = trace.origin
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "version": __version__,
        "origin": {
            "kind": origin.kind,
            "source": origin.source,
            "sha256": origin.sha256,
            "reader": origin.reader,
            "num_requests": len(trace),
            "dropped": dict(origin.dropped),
            "notes": list(origin.notes),
        },
        "config": {
            "policies": [policy.name for policy in chosen],
            "policy_sha256": {policy.name: policy.sha256 for policy in chosen},
            "reference": REFERENCE,
            "loads": [{"name": load.name, "rho": load.rho} for load in regions],
            "num_windows": len(windows),
            "window_len": len(windows[0].trace),
            "windows": [
                {
                    "window": window.index,
                    "start_row": window.start_row,
                    "sha256": window.sha256,
                    "capacity": float(capacity),
                }
                for window, capacity in zip(windows, evaluation.capacity, strict=True)
            ],
            "preset": engine,
            "title": preset.title,
            "provenance": step_time.provenance,
            "engine": asdict(config),
            "step_time": {
                name: value for name, value in asdict(step_time).items() if name != "provenance"
            },
            "host_overhead": step_time.host_overhead,
            "slo": None if slo is None else asdict(slo),
            "output_length": output_length.describe(),
            "seed": seed,
            "draws": DRAWS,
        },
        "answer": _answer(judged, rows, trace, step_time.a + step_time.host_overhead),
        "leaderboard": _leaderboard(judged),
        "loads": rows,
        "cells": evaluation.cells.to_pylist(),
        "warnings": [
            *notes,
            *_warnings(trace, evaluation, len(windows), num_windows, len(windows[0].trace)),
        ],
    }
    document["config"]["sha256"] = hashlib.sha256(
        json.dumps(document["config"], sort_keys=True, default=str).encode()
    ).hexdigest()
    return Comparison(_without_nan(document), evaluation.cells, evaluation.samples, trace)


def _with_reference(policies: list[Policy]) -> list[Policy]:
    """Put FCFS first; a name given twice is a mistake."""
    names = [policy.name for policy in policies]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(
                f"policy {name!r} is given twice; rename one file or leave one out, since results "
                "are told apart by name"
            )
    if REFERENCE in names:
        return policies
    return [get_policy(REFERENCE), *policies]


@dataclass(frozen=True, eq=False)
class _Judged:
    """One policy beside FCFS; mappings are by load name."""

    policy: Policy
    score: Score
    improvements: Mapping[str, Improvement]
    tails: Mapping[str, Tail]
    tests: Mapping[str, LoadTest]
    counts: tuple[int, int, int]  # windows won, tied and lost over all loads

    @property
    def kind(self) -> str:
        if self.policy.oracle:
            return "oracle"
        return "bundle" if self.policy.is_bundle else "policy"

    @property
    def violations(self) -> list[str]:
        return [f"{load}: {tail.reason}" for load, tail in self.tails.items() if tail.violated]


def _judge(
    policies: Sequence[Policy],
    loads: Sequence[Load],
    evaluation: Evaluation,
    source: str,
    seed: int,
) -> list[_Judged]:
    """Judge every policy against FCFS, best score first."""

    def sample(policy: str, load: str) -> Sample:
        pooled = evaluation.samples[policy, load]
        return Sample(pooled.ttft, pooled.window)

    keys = {load.name: Configuration(source, load.name) for load in loads}
    reference = {key: sample(REFERENCE, load) for load, key in keys.items()}
    judged = []
    for policy in policies:
        samples = {key: sample(policy.name, load) for load, key in keys.items()}
        wins = [window_wins(samples[key], reference[key]) for key in keys.values()]
        tests = load_tests(samples, reference)
        judged.append(
            _Judged(
                policy=policy,
                score=score(samples, reference, draws=DRAWS, seed=seed),
                improvements={
                    load: improvement(samples[key], reference[key], draws=DRAWS, seed=seed)
                    for load, key in keys.items()
                },
                tails={
                    load: tail_violation(samples[key], reference[key], draws=DRAWS, seed=seed)
                    for load, key in keys.items()
                },
                tests={load: tests[key] for load, key in keys.items()},
                counts=(
                    sum(won.wins for won in wins),
                    sum(won.ties for won in wins),
                    sum(won.losses for won in wins),
                ),
            )
        )
    return sorted(judged, key=lambda one: (-_finite(one.score.value), one.policy.name))


def _finite(value: float) -> float:
    return -math.inf if math.isnan(value) else value


def _leaderboard(judged: Sequence[_Judged]) -> list[dict[str, Any]]:
    """One row per policy; equal scores share a rank."""
    rows: list[dict[str, Any]] = []
    for place, one in enumerate(judged, start=1):
        tied = bool(rows) and rows[-1]["score"] == one.score.value
        rows.append(
            {
                "rank": rows[-1]["rank"] if tied else place,
                "policy": one.policy.name,
                "summary": one.policy.summary,
                "kind": one.kind,
                "score": one.score.value,
                "score_low": one.score.low,
                "score_high": one.score.high,
                "wins": one.counts[0],
                "ties": one.counts[1],
                "losses": one.counts[2],
                "tail_violations": len(one.violations),
                "tail_reasons": one.violations,
            }
        )
    return rows


#: Metrics of a load that add up over windows; the others are averaged.
_SUMS = ("num_preemptions", "num_unfinished", "num_requests", "num_dropped", "num_steps")


def _per_load(
    judged: Sequence[_Judged], loads: Sequence[Load], evaluation: Evaluation
) -> list[dict[str, Any]]:
    """One row per policy and load: every metric, and the changes against FCFS.

    TTFT is pooled over windows, as the score is; counts add up and other metrics are means over
    windows. A window without a value leaves the mean without one: nothing is imputed.
    """
    names = evaluation.cells["policy"].to_numpy()
    regions = evaluation.cells["load"].to_numpy()
    columns = {name: evaluation.cells[name].to_numpy() for name in METRICS}
    rows = []
    for load in loads:
        for one in judged:
            mine = (names == one.policy.name) & (regions == load.name)
            row: dict[str, Any] = {"policy": one.policy.name, "load": load.name, "rho": load.rho}
            for name, values in columns.items():
                row[name] = float(values[mine].sum() if name in _SUMS else values[mine].mean())
            ttft = evaluation.samples[one.policy.name, load.name].ttft
            row["ttft_mean"] = float(ttft.mean())
            levels = {"ttft_p50": 0.5, "ttft_p90": 0.9, "ttft_p99": 0.99, "ttft_max": 1.0}
            pooled = censored_quantiles(ttft, list(levels.values()))
            row |= dict(zip(levels, pooled, strict=True))
            change, test = one.improvements[load.name], one.tests[load.name]
            row |= {
                "mean_change": -change.mean,
                "mean_change_low": -change.mean_high,
                "mean_change_high": -change.mean_low,
                "p99_change": -change.p99,
                "p99_change_low": -change.p99_high,
                "p99_change_high": -change.p99_low,
                "tail_violated": one.tails[load.name].violated,
                "wins": test.wins,
                "ties": test.ties,
                "losses": test.losses,
                "p_value": test.p_holm,
            }
            rows.append(row)
    return rows


def _answer(
    judged: Sequence[_Judged], rows: Sequence[Mapping[str, Any]], trace: Trace, step: float
) -> dict[str, Any]:
    """Name the policy to run, and say in sentences why and how surely.

    It is the best score among policies that change order alone, can be deployed, violate no tail
    and whose interval lies above 0; without one it is FCFS.
    """
    able = [
        one for one in judged if one.kind == "policy" and not one.violations and one.score.low > 0
    ]
    by_key = {(row["policy"], row["load"]): row for row in rows}
    loads = list(dict.fromkeys(row["load"] for row in rows))
    idle = [load for load in loads if by_key[REFERENCE, load]["queued_time_mean"] < step]
    sentences = []
    if able:
        best = able[0]
        sentences.append(f"Run {best.policy.name}: {_scored(best)}.")
        for load in loads:
            if load not in idle:
                sentences.append(_change_sentence(load, by_key[best.policy.name, load]))
        rivals = [one.policy.name for one in able[1:] if one.score.value >= best.score.low]
        if rivals:
            sentences.append(
                f"{_listed(rivals)} {'score' if len(rivals) > 1 else 'scores'} within its interval "
                "and would do as well."
            )
    else:
        best = next(one for one in judged if one.policy.name == REFERENCE)
        sentences.append(
            "Stay with fcfs: no other policy that only changes order scores above it beyond its "
            "uncertainty without hurting the tail."
        )
    for one in judged:
        if one.score.value > best.score.value and one is not best:
            sentences.append(_why_not(one))
            break
    if idle:
        sentences.append(
            f"At {_listed(idle)} load fcfs queues for less than one step, so no order can matter."
        )
    if trace.origin.kind == "modelled":
        sentences.append("The traffic is modelled: confirm this on a trace of your own.")
    return {"policy": best.policy.name, "sentences": sentences}


def _scored(one: _Judged) -> str:
    return (
        f"score {one.score.value:+.2f} [{one.score.low:+.2f}, {one.score.high:+.2f}] against fcfs"
    )


def _change_sentence(load: str, row: Mapping[str, Any]) -> str:
    def change(name: str) -> str:
        low, high = row[f"{name}_low"], row[f"{name}_high"]
        interval = "" if math.isnan(low) else f" [{low:+.0%}, {high:+.0%}]"
        return f"{row[name]:+.0%}{interval}"

    return (
        f"At {load} load (rho {row['rho']:g}) mean TTFT {change('mean_change')} and p99 TTFT "
        f"{change('p99_change')}, to {row['ttft_mean']:.3g} s and {row['ttft_p99']:.3g} s."
    )


def _why_not(one: _Judged) -> str:
    """Say what keeps a policy with a better score from being the answer."""
    name = f"{one.policy.name} scores more ({one.score.value:+.2f})"
    if one.kind == "oracle":
        return f"{name} but knows exact output lengths, which no server does."
    if one.kind == "bundle":
        return f"{name} but brings its own engine settings; compare it with those settings for all."
    if one.violations:
        return f"{name} but makes the unluckiest wait too long ({one.violations[0]})."
    return f"{name} but not beyond its uncertainty [{one.score.low:+.2f}, {one.score.high:+.2f}]."


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _warnings(
    trace: Trace, evaluation: Evaluation, num_windows: int, asked_windows: int, window_len: int
) -> list[str]:
    """Say what limits the answer, beginning with what limits it most."""
    warnings = []
    if num_windows < MIN_WINDOWS:
        limit = (
            "there is no interval and nothing can be recommended"
            if num_windows == 1
            else f"sign tests need {MIN_WINDOWS}, and intervals over so few are rough"
        )
        warnings.append(
            f"{num_windows} window{'s' if num_windows > 1 else ''} of {window_len} requests: {limit}"
        )
    elif num_windows < asked_windows:
        warnings.append(
            f"the trace has room for {num_windows} windows of {window_len} requests, not the "
            f"{asked_windows} asked for"
        )
    if window_len < 1000:
        warnings.append(
            f"windows of {window_len} requests hold {window_len / 100:g} beyond their p99; use "
            "1000 and more to judge tails"
        )
    if evaluation.num_dropped:
        warnings.append(
            f"{evaluation.num_dropped} requests can never run on this engine (longer than "
            "max_model_len or the KV cache) and were left out for every policy"
        )
    if evaluation.num_truncated:
        warnings.append(
            f"{evaluation.num_truncated} outputs were cut where the context window or the "
            "client's max_tokens ends them"
        )
    if trace.client is None:
        warnings.append("the trace names no clients: each request is a client of its own")
    return warnings


def _without_nan(value: Any) -> Any:
    """Replace what JSON cannot hold (NaN and infinities) by None."""
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value

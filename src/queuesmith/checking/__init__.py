"""Does the simulator hold on my server? Measured latencies of a log against simulated ones.

The arrivals of a log are replayed through the simulator, and what it makes of each request is set
beside what was measured. Errors are simulated over measured, less 1. What is resampled for their
intervals is a block of consecutive requests, or a log where there are enough, never a request:
those that queue together are late together.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from os import PathLike
from typing import Any

import numpy as np
import pyarrow as pa

from queuesmith._version import __version__
from queuesmith.checking.answer import advice, claim, limits, verdict
from queuesmith.checking.errors import DRAWS, Blocks, Floats, cut_blocks, errors, rank_correlations
from queuesmith.checking.scale import Simulator, fit_scale, scale_step_time
from queuesmith.config import EngineConfig
from queuesmith.documents import jsonable
from queuesmith.engine import Workload, prepare
from queuesmith.engine.compile import compile_policy
from queuesmith.engine.presets.step_time import DEFAULT_PRESET, Preset, StepTime, get_preset
from queuesmith.errors import ConfigError, TraceError
from queuesmith.policies import Policy, get_policy
from queuesmith.stats import quantiles
from queuesmith.traces.measured import LATENCIES
from queuesmith.traces.trace import Trace
from queuesmith.windows.predictions import OutputLengthKnowledge

SCHEMA = "queuesmith.check/1"


@dataclass(frozen=True, eq=False)
class Check:
    """A simulation set beside a measurement.

    Attributes
    ----------
    document : dict
        What ``queuesmith check --json`` prints.
    requests : pyarrow.Table
        One row per simulated request: `log`, `row` in it, `block`, `arrival_time`, `prompt_len`,
        `output_len`, and each latency, ``measured_`` and ``simulated_``, in seconds.
    """

    document: dict[str, Any]
    requests: pa.Table

    def __repr__(self) -> str:
        return f"Check({self.document['answer']['sentences'][0]})"


def check(
    logs: Trace | Sequence[Trace],
    policy: str | PathLike[str] | Policy = "fcfs",
    *,
    engine: str | Preset = DEFAULT_PRESET,
    config: EngineConfig | None = None,
    step_time: StepTime | None = None,
    output_length: str | OutputLengthKnowledge = "noisy",
    within: float | None = None,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
    notes: Sequence[str] = (),
) -> Check:
    """Replay the arrivals of a log and set simulated latencies against measured ones.

    Parameters
    ----------
    logs : Trace or sequence of Trace
        With measured latencies. Each begins with an idle server, so that logs of one server at
        several rates are checked together.
    policy : str, path or Policy
        What the server ran; FCFS is vLLM's own order.
    engine : str or Preset
        Gives `config` and `step_time` where those are left out.
    config : EngineConfig, optional
    step_time : StepTime, optional
    output_length : {"none", "noisy", "noisy:SIGMA", "exact"}
        What the policy may know of output lengths.
    within : float, optional
        The claim to test: every mean, over the whole log, is right within this share.
    seed : int
        Of the bootstrap and of predictions.
    progress : callable, optional
        Called with the number of finished simulations.
    notes : sequence of str
        Further warnings to carry in the document.

    Raises
    ------
    TraceError
        If no log has measured latencies, or no request can run.
    ConfigError, PolicyError, EngineError
        As `queuesmith.simulate`.
    """
    if within is not None and not 0 < within < 10:
        raise ConfigError(f"within must be a share such as 0.15, got {within!r}")
    preset = engine if isinstance(engine, Preset) else get_preset(engine)
    policy = get_policy(policy)
    if isinstance(output_length, str):
        output_length = OutputLengthKnowledge.parse(output_length)
    config = (config or preset.config).override(policy.engine)
    step_time = step_time or preset.step_time
    traces = [logs] if isinstance(logs, Trace) else list(logs)
    _refuse_unmeasured(traces)
    # When a log's requests came is known; nobody need guess it from think times.
    traces = [replace(trace, think_time=None) for trace in traces]
    workloads = [
        prepare(trace, config, output_length.predict(trace, [seed, index]))
        for index, trace in enumerate(traces)
    ]
    simulator = Simulator(workloads, compile_policy(policy), config, step_time, progress)
    measured = _measured(workloads)
    simulated = simulator.at(1.0)
    names = [name for name in LATENCIES if not np.isnan(measured[name]).all()]
    if not names:
        raise TraceError(
            f"none of the requests with measured latencies in {traces[0].origin.source} can run as "
            "they did on this engine; raise its max_model_len"
        )
    blocks = cut_blocks([workload.trace for workload in workloads])
    loads = blocks.loads()
    rows = [
        row
        for load, members in loads
        for name in names
        for row in errors(load, name, measured[name], simulated[name], blocks, members, seed)
    ]
    scale = fit_scale(simulator, measured, blocks, seed)
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "version": __version__,
        "logs": [
            _origin(trace, workload) for trace, workload in zip(traces, workloads, strict=True)
        ],
        "config": {
            "policy": policy.name,
            "policy_sha256": policy.sha256,
            "preset": preset.name,
            "title": preset.title,
            "provenance": step_time.provenance,
            "engine": asdict(config),
            "step_time": {
                name: value for name, value in asdict(step_time).items() if name != "provenance"
            },
            "output_length": output_length.describe(),
            "within": within,
            "unit": blocks.unit,
            "num_units": len(blocks.rate),
            "seed": seed,
            "draws": DRAWS,
        },
        "loads": [
            {
                "load": load,
                "rate_low": float(blocks.rate[members].min()),
                "rate_high": float(blocks.rate[members].max()),
                "num_units": len(members),
                "num_requests": int(np.isin(blocks.block, members).sum()),
            }
            for load, members in loads
        ],
        "errors": rows,
        "correlations": rank_correlations(measured, simulated),
        "scale": scale,
    }
    document["advice"] = advice(document, _offsets(measured, simulated))
    document["answer"] = {"sentences": verdict(document), **claim(document)}
    document["warnings"] = [*notes, *limits(document)]
    document["config"]["sha256"] = hashlib.sha256(
        json.dumps([document["config"], document["logs"]], sort_keys=True, default=str).encode()
    ).hexdigest()
    return Check(jsonable(document), _table(workloads, measured, simulated, blocks))


def corrected_preset(checked: Check, preset: Preset) -> Preset | None:
    """Return the engine with the step times that explain a log; None where no one factor does."""
    scale = checked.document["scale"]
    if scale is None or all(each["reason"] != "step_time" for each in checked.document["advice"]):
        return None
    step_time = replace(
        scale_step_time(preset.step_time, scale["factor"]),
        provenance=f"{preset.step_time.provenance}; times {scale['factor']:.3f}, fitted to a log",
    )
    return replace(preset, name=f"{preset.name}-corrected", step_time=step_time)


def _offsets(measured: Mapping[str, Floats], simulated: Mapping[str, Floats]) -> dict[str, float]:
    """Return by how many seconds measured TTFT is longer: in the middle, and almost always."""
    extra = measured["ttft"] - simulated["ttft"]
    extra = extra[~np.isnan(extra)]
    median, tenth = quantiles(extra, [0.5, 0.1])
    return {"median": median, "p10": tenth}


def _refuse_unmeasured(traces: Sequence[Trace]) -> None:
    if not traces:
        raise TraceError("no log was given; name one with measured latencies")
    for trace in traces:
        if trace.measured is None:
            raise TraceError(
                f"{trace.origin.source} says when requests came but not how long they took; give "
                "results of `vllm bench serve --save-detailed`, AIPerf, GuideLLM or `queuesmith "
                "ab`, answers with vLLM's per-request metrics, vLLM's spans, LiteLLM's spend logs, "
                "or a table with columns ttft and e2el in seconds"
            )


def _measured(workloads: Sequence[Workload]) -> dict[str, Floats]:
    """Return the measured latencies of what was simulated, without answers that were cut."""
    found: dict[str, list[Floats]] = {name: [] for name in LATENCIES}
    for workload in workloads:
        trace = workload.trace
        same = workload.output_len == trace.output_len
        for name, parts in found.items():
            parts.append(np.where(same, getattr(trace.measured, name), np.nan))
    return {name: np.concatenate(parts) for name, parts in found.items()}


def _origin(trace: Trace, workload: Workload) -> dict[str, Any]:
    return {
        **trace.origin.to_json(),
        "num_requests": len(trace),
        "duration": trace.duration,
        "measured": list(trace.measured.known) if trace.measured is not None else [],
        "has_block_hashes": trace.block_hashes is not None,
        "num_dropped": workload.num_dropped,
        "num_truncated": workload.num_truncated,
    }


def _table(
    workloads: Sequence[Workload],
    measured: Mapping[str, Floats],
    simulated: Mapping[str, Floats],
    blocks: Blocks,
) -> pa.Table:
    traces = [workload.trace for workload in workloads]
    columns: dict[str, Any] = {
        "log": np.repeat(np.arange(len(traces)), [len(trace) for trace in traces]),
        "row": np.concatenate([workload.row for workload in workloads]),
        "block": blocks.block,
        **{
            name: np.concatenate([getattr(trace, name) for trace in traces])
            for name in ("arrival_time", "prompt_len", "output_len")
        },
    }
    for name in LATENCIES:
        columns[f"measured_{name}"] = measured[name]
        columns[f"simulated_{name}"] = simulated[name]
    return pa.table(columns)

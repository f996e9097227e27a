"""The simulator: one trace through one engine under one policy."""

import math
from dataclasses import dataclass
from os import PathLike
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from queuesmith.config import EngineConfig
from queuesmith.engine import kernel
from queuesmith.engine.compile import CompiledPolicy, compile_policy
from queuesmith.engine.reference import ReferenceEngine, Request
from queuesmith.engine.result import ITL_EDGES, RESULT_DTYPE, Recording, Result
from queuesmith.engine.step_time import DEFAULT_PRESET, Preset, StepTime, get_preset
from queuesmith.errors import EngineError, PolicyError, TraceError
from queuesmith.output_length import OutputLengthKnowledge
from queuesmith.policies import Policy, get_policy
from queuesmith.request import ENGINE_DTYPE, ENGINE_FIELDS, REQUEST_DTYPE, REQUEST_FIELDS
from queuesmith.traces.trace import Trace

__all__ = [
    "Workload",
    "can_run",
    "prepare",
    "simulate",
    "simulate_reference",
    "simulate_workload",
]


def simulate(
    trace: Trace,
    policy: str | PathLike[str] | Policy = "fcfs",
    *,
    engine: str | Preset = DEFAULT_PRESET,
    config: EngineConfig | None = None,
    step_time: StepTime | None = None,
    output_length: str | OutputLengthKnowledge = "noisy",
    seed: int = 0,
    horizon: float = math.inf,
    record: bool = False,
) -> Result:
    """Replay a trace through one simulated engine under one policy.

    Parameters
    ----------
    trace : Trace
    policy : str, path or Policy
        A built-in name (``"sjf"``, ``"aged_sjf(SECONDS_PER_TOKEN=0.01)"``) or the path of a file.
    engine : str or Preset
        Gives `config` and `step_time` where those are left out.
    config : EngineConfig, optional
        A policy's ``ENGINE`` settings are applied on top.
    step_time : StepTime, optional
    output_length : {"none", "noisy", "noisy:SIGMA", "exact"}
        What the policy may know of output lengths.
    seed : int
        Of the noise on predictions.
    horizon : float
        Seconds on the clock of the trace from which no step starts any more.
    record : bool
        Also keep what every step decided.

    Returns
    -------
    Result

    Raises
    ------
    ConfigError, PolicyError, TraceError
        If an argument makes no sense, the policy breaks its contract, or no request can run.
    EngineError
        If the engine makes no progress.

    Examples
    --------
    >>> trace = Trace([0.0, 0.5], prompt_len=[100, 20], output_len=[7, 9])
    >>> simulate(trace, engine="constant_1ms").requests.last_token_ts.round(6).tolist()
    [0.007, 0.509]
    """
    preset = engine if isinstance(engine, Preset) else get_preset(engine)
    policy = get_policy(policy)
    if isinstance(output_length, str):
        output_length = OutputLengthKnowledge.parse(output_length)
    config = (config or preset.config).override(policy.engine)
    workload = prepare(trace, config, output_length.predict(trace, seed))
    return simulate_workload(
        workload,
        compile_policy(policy),
        config,
        step_time or preset.step_time,
        horizon=horizon,
        record=record,
    )


@dataclass(frozen=True, eq=False)
class Workload:
    """A trace as one engine can run it; made once and simulated under many policies.

    Attributes
    ----------
    trace : Trace
        Less the requests that can never run.
    row : (num_requests,) int64
        Row of each request in the trace that was given.
    output_len : (num_requests,) int64
        Tokens each request will produce: cut where `max_tokens` or the context window ends it.
    predicted_output_tokens : (num_requests,) float64
    max_tokens : (num_requests,) int64
    deadline : (num_requests,) float64
    client : (num_requests,) int64
        Codes from 0; requests of unknown clients are clients of their own.
    num_dropped, num_truncated : int
    """

    trace: Trace
    row: NDArray[np.int64]
    output_len: NDArray[np.int64]
    predicted_output_tokens: NDArray[np.float64]
    max_tokens: NDArray[np.int64]
    deadline: NDArray[np.float64]
    client: NDArray[np.int64]
    num_dropped: int
    num_truncated: int


def can_run(trace: Trace, config: EngineConfig) -> NDArray[np.bool_]:
    """Tell which requests an engine can ever finish, as a (num_requests,) mask.

    vLLM refuses a prompt that fills `max_model_len`; a sequence that exceeds the KV cache could
    never be admitted as a whole.
    """
    # The last output token is never computed, so it needs no KV.
    num_tokens = trace.prompt_len + _cut_outputs(trace, config) - 1
    fits: NDArray[np.bool_] = num_tokens <= config.kv_tokens
    return fits & (trace.prompt_len < config.max_model_len)


def _max_tokens(trace: Trace, config: EngineConfig) -> NDArray[np.int64]:
    """Return the most output tokens vLLM would produce for each request."""
    room = config.max_model_len - trace.prompt_len
    return room if trace.max_tokens is None else np.minimum(room, trace.max_tokens)


def _cut_outputs(trace: Trace, config: EngineConfig) -> NDArray[np.int64]:
    return np.minimum(trace.output_len, _max_tokens(trace, config))


def prepare(
    trace: Trace, config: EngineConfig, predicted_output_tokens: NDArray[np.float64]
) -> Workload:
    """Leave out requests that can never run, and cut outputs as vLLM would.

    Raises
    ------
    TraceError
        If no request is left; the message says how many are too long for what.
    """
    keep = can_run(trace, config)
    if not keep.any():
        too_long = int((trace.prompt_len >= config.max_model_len).sum())
        raise TraceError(
            f"none of the {len(trace)} requests can run: {too_long} prompts reach max_model_len "
            f"({config.max_model_len} tokens) and {len(trace) - too_long} sequences exceed the KV "
            f"cache ({config.kv_tokens} tokens); choose a larger engine or a shorter trace"
        )
    rows = np.flatnonzero(keep)
    kept = trace if keep.all() else trace.take(rows)
    output_len = _cut_outputs(kept, config)
    if kept.client is None:
        client = np.arange(len(kept))
    else:
        unknown = kept.client < 0
        labels = np.where(unknown, -1 - np.arange(len(kept)), kept.client)
        client = np.unique(labels, return_inverse=True)[1].reshape(-1)
    return Workload(
        trace=kept,
        row=rows,
        output_len=output_len,
        predicted_output_tokens=np.asarray(predicted_output_tokens, np.float64)[rows],
        max_tokens=_max_tokens(kept, config),
        deadline=np.full(len(kept), np.inf) if kept.deadline is None else kept.deadline,
        client=client.astype(np.int64),
        num_dropped=len(trace) - len(kept),
        num_truncated=int((output_len < kept.output_len).sum()),
    )


def simulate_workload(
    workload: Workload,
    compiled: CompiledPolicy,
    config: EngineConfig,
    step_time: StepTime,
    *,
    horizon: float = math.inf,
    record: bool = False,
    jump: bool = True,
) -> Result:
    """Run the compiled kernel; `simulate` does this for one trace, `evaluate` for many.

    `jump` says whether stretches of pure decode are taken at once; the results are the same.
    """
    settings = _settings(config, step_time, compiled.policy, horizon, jump and not record)
    sizes = (0, 0, 0)
    if record:  # the first run counts what the second one writes down
        counted = _run(workload, compiled, settings, sizes).state
        sizes = (
            int(counted.num_steps),
            int(counted.num_entries),
            int(counted.num_preemptions),
        )
    run = _run(workload, compiled, settings, sizes)
    return Result(
        policy=compiled.policy.name,
        trace=workload.trace,
        requests=_result_rows(workload, run),
        itl_counts=np.ascontiguousarray(run.itl["count"]),
        num_steps=int(run.state.num_steps),
        num_jumps=int(run.state.num_jumps),
        num_computed_tokens=int(run.state.num_computed_tokens),
        num_recomputed_tokens=int(run.state.num_recomputed_tokens),
        end_time=float(run.state.now),
        num_dropped=workload.num_dropped,
        num_truncated=workload.num_truncated,
        recording=run.recording if record else None,
    )


def simulate_reference(
    workload: Workload,
    policy: Policy,
    config: EngineConfig,
    step_time: StepTime,
    *,
    horizon: float = math.inf,
) -> ReferenceEngine:
    """Run the reference engine on the same workload and return it as it ended."""
    rows = _request_rows(workload, policy)
    requests = [
        Request(
            row=row,
            view=SimpleNamespace(**{name: rows[name][row].item() for name in REQUEST_FIELDS}),
            output_len=int(workload.output_len[row]),
            client=int(workload.client[row]),
        )
        for row in range(len(rows))
    ]
    engine = ReferenceEngine(requests, policy, config, step_time)
    engine.run(horizon)
    return engine


def _settings(
    config: EngineConfig, step_time: StepTime, policy: Policy, horizon: float, jump: bool
) -> Any:
    reads = frozenset().union(*policy.reads.values())
    settings = np.recarray(1, kernel.SETTINGS_DTYPE)
    values = {
        "max_num_seqs": config.max_num_seqs,
        "seats": config.seats,
        "token_budget": config.token_budget,
        "num_gpu_blocks": config.num_gpu_blocks,
        "block_size": config.block_size,
        "max_model_len": config.max_model_len,
        "long_prefill_token_threshold": config.long_prefill_token_threshold,
        "threshold_adaptive": config.long_prefill_token_threshold_adaptive,
        "chunked": config.enable_chunked_prefill,
        "reserve_full_isl": config.scheduler_reserve_full_isl,
        "watermark_blocks": config.watermark_blocks,
        "priority_victims": config.scheduling_policy == "priority",
        "instant_prefill": config.instant_prefill,
        "a": step_time.a + step_time.host_overhead,
        **{name: getattr(step_time, name) for name in ("b1", "b2", "t0", "c", "d", "e", "f")},
        "has_victim_key": policy.victim_key is not None,
        "has_admit": policy.admit is not None,
        "has_hold": policy.hold is not None,
        "preemptive": policy.preemptive,
        "keeps_heap": policy.static and policy.admit is None and not policy.preemptive,
        "reads_clients": "request.client_tokens" in reads,
        "reads_oldest_wait": "engine.oldest_wait" in reads,
        "jump": jump,
        "horizon": horizon,
    }
    for name, value in values.items():
        settings[name] = value
    return settings


def _request_rows(workload: Workload, policy: Policy) -> Any:
    trace = workload.trace
    rows = np.recarray(len(trace), REQUEST_DTYPE)
    rows[:] = np.zeros((), REQUEST_DTYPE)
    rows.arrival_time = trace.arrival_time
    rows.last_token_ts = trace.arrival_time
    rows.num_prompt_tokens = trace.prompt_len
    rows.num_uncached_tokens = trace.prompt_len
    rows.max_tokens = workload.max_tokens
    rows.deadline = workload.deadline
    rows.predicted_output_tokens = (
        workload.output_len if policy.oracle else workload.predicted_output_tokens
    )
    if trace.priority is not None:
        rows.priority = trace.priority
    return rows


@dataclass(frozen=True, eq=False)
class _Run:
    """The arrays of one run of the kernel, as it left them."""

    requests: Any
    state: Any
    work: Any
    itl: Any
    recording: Recording


def _run(
    workload: Workload, compiled: CompiledPolicy, settings: Any, log_sizes: tuple[int, int, int]
) -> _Run:
    requests = _request_rows(workload, compiled.policy)
    num_requests = len(requests)
    engine = _zeros(1, ENGINE_DTYPE)
    state = _zeros(1, kernel.STATE_DTYPE)
    state.now = requests.arrival_time[0]
    state.num_free_blocks = settings.num_gpu_blocks - 1
    state.token_rate = state.recent_ttft = np.nan
    state.step_time = 1.0
    work = _zeros(num_requests, kernel.WORK_DTYPE)
    work.output_len = workload.output_len
    work.client = workload.client
    work.scheduled_ts = work.first_token_ts = work.finished_ts = np.nan
    itl = _zeros(len(ITL_EDGES) - 1, kernel.ITL_DTYPE)
    itl.edge = ITL_EDGES[:-1]
    recording = Recording(
        _zeros(log_sizes[0], kernel.STEP_DTYPE),
        np.zeros((log_sizes[1], 2), np.int64),
        np.zeros(log_sizes[2], np.int64),
    )
    try:
        status = kernel.run(
            requests,
            engine,
            settings,
            state,
            work,
            np.zeros((kernel.NUM_LISTS, num_requests), np.int64),
            _zeros(int(workload.client.max()) + 1, kernel.CLIENT_DTYPE),
            itl,
            np.zeros(int(settings.block_size[0]), np.int64),
            recording.steps,
            recording.tokens,
            recording.preemptions,
            compiled.waiting_key,
            compiled.victim_key,
            compiled.admit,
            compiled.hold,
        )
    except (ArithmeticError, ValueError) as error:
        raise _explain_fault(compiled.policy, requests, engine, state[0], error) from None
    if status != kernel.FINISHED:
        raise _explain_stall(compiled.policy, state[0], status)
    return _Run(requests, state[0], work, itl, recording)


def _zeros(length: int, dtype: np.dtype[Any]) -> Any:
    array = np.recarray(length, dtype)
    array[:] = np.zeros((), dtype)
    return array


def _explain_stall(policy: Policy, state: Any, status: int) -> EngineError:
    if status == kernel.STALLED:
        reason = f"no token in {kernel.MAX_EMPTY_STEPS:,} steps in a row"
        remedy = "look at its admit and hold, which leave nobody to run"
    else:
        reason = f"no request finished in {int(state.num_steps - state.steps_at_finish):,} steps"
        remedy = (
            "look at its victim_key or PREEMPTIVE, by which requests throw each other out before "
            "they get anywhere; scheduler_reserve_full_isl keeps admissions that cannot fit out"
        )
    return EngineError(
        f"policy {policy.name!r} stalls the engine: {reason}, at step {int(state.num_steps):,} "
        f"({float(state.now):g} s) with {int(state.num_running)} running and "
        f"{int(state.num_waiting)} waiting; {remedy}"
    )


def _explain_fault(
    policy: Policy, requests: Any, engine: Any, state: Any, error: Exception
) -> PolicyError:
    """Ask the hook again in plain Python, which knows the line."""
    hook = ("waiting_key", "victim_key", "admit", "hold")[int(state.fault_hook)]
    row = requests[int(state.fault_row)]
    request = SimpleNamespace(**{name: row[name].item() for name in REQUEST_FIELDS})
    view = SimpleNamespace(**{name: engine[0][name].item() for name in ENGINE_FIELDS})
    line = ""
    try:
        getattr(policy, hook)(request, view)
    except Exception as again:
        error = again
        trace = again.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == str(policy.path):
                line = f", line {trace.tb_lineno}"
            trace = trace.tb_next
    return PolicyError(
        f"policy {policy.name!r} failed in {hook}{line} ({policy.path}): "
        f"{type(error).__name__}: {error}. It was asked at {view.now:g} s about a request with "
        f"{request.num_prompt_tokens} prompt tokens; a hook must return a number for every row"
    )


def _result_rows(workload: Workload, run: _Run) -> Any:
    rows = np.recarray(len(run.requests), RESULT_DTYPE)
    rows.row = workload.row
    rows.arrival_time = run.requests.arrival_time
    rows.prompt_len = run.requests.num_prompt_tokens
    rows.output_len = workload.output_len
    rows.predicted_output_tokens = run.requests.predicted_output_tokens
    rows.deadline = run.requests.deadline
    rows.scheduled_ts = run.work.scheduled_ts
    rows.first_token_ts = run.work.first_token_ts
    rows.last_token_ts = run.work.finished_ts
    rows.num_output_tokens = run.requests.num_output_tokens
    rows.num_preemptions = run.requests.num_preemptions
    return rows

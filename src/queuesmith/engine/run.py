"""One workload through the compiled kernel, and what a policy did wrong in it."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from queuesmith.config import EngineConfig
from queuesmith.engine.compile import CompiledPolicy, compile_policy
from queuesmith.engine.kernel import loop as kernel
from queuesmith.engine.kernel.state import (
    ABORTS,
    BLOCK_DTYPE,
    CLIENT_DTYPE,
    CONTENT_DTYPE,
    FIRST_STEP,
    ITL_DTYPE,
    NUM_LISTS,
    SETTINGS_DTYPE,
    STATE_DTYPE,
    STEP_DTYPE,
    WORK_DTYPE,
)
from queuesmith.engine.presets.step_time import StepTime
from queuesmith.engine.result import ITL_EDGES, RESULT_DTYPE, Recording, Result
from queuesmith.engine.workload import Workload, in_vllm_order, request_rows
from queuesmith.errors import EngineError, PolicyError
from queuesmith.policies import HOOKS, Policy
from queuesmith.request import ENGINE_DTYPE, ENGINE_FIELDS, REQUEST_FIELDS

#: What the kernel may do, in steps and questions to a policy, before it first comes back to Python;
#: a question may cost a tenth of a millisecond. Later it comes back about every `SECONDS_PER_TURN`.
FIRST_ALLOWANCE = 2048
SECONDS_PER_TURN = 0.1

if TYPE_CHECKING:
    from queuesmith.engine.fleet import Fleet


def simulate_workload(
    workload: Workload,
    compiled: CompiledPolicy,
    config: EngineConfig,
    step_time: StepTime,
    *,
    horizon: float = math.inf,
    record: bool = False,
    jump: bool = True,
    fleet: "Fleet | None" = None,
) -> Result:
    """Run the compiled kernel; `simulate` does this for one trace, `evaluate` for many.

    `jump` says whether stretches of pure decode are taken at once; the results are the same. With
    a `fleet` there are several engines.
    """
    policy = in_vllm_order(compiled.policy, config.scheduling_policy)
    if policy is not compiled.policy:
        compiled = compile_policy(policy)
    if fleet is not None or workload.next_turn is not None:
        # Only now, since the loop around several engines imports this module for one of them.
        from queuesmith.engine.fleet import ONE_REPLICA, simulate_fleet

        fleet = fleet or ONE_REPLICA
        return simulate_fleet(
            workload, compiled, config, step_time, fleet, horizon=horizon, record=record, jump=jump
        )
    settings = make_settings(workload, config, step_time, compiled.policy, jump and not record)
    sizes = (0, 0, 0)
    if record:  # the first run counts what the second one writes down
        counted = _run(workload, compiled, settings, horizon, sizes).state
        sizes = (
            int(counted.num_steps),
            int(counted.num_entries),
            int(counted.num_preemptions),
        )
    run = _run(workload, compiled, settings, horizon, sizes)
    return Result(
        policy=compiled.policy.name,
        trace=workload.trace,
        requests=result_rows(workload, run.requests, run.work),
        itl_counts=np.ascontiguousarray(run.itl["count"]),
        num_steps=int(run.state.num_steps),
        num_jumps=int(run.state.num_jumps),
        num_computed_tokens=int(run.state.num_computed_tokens),
        num_recomputed_tokens=int(run.state.num_recomputed_tokens),
        num_cached_tokens=int(run.state.num_cached_tokens),
        end_time=float(run.state.now),
        num_dropped=workload.num_dropped,
        num_truncated=workload.num_truncated,
        recording=run.recording if record else None,
    )


def make_settings(
    workload: Workload, config: EngineConfig, step_time: StepTime, policy: Policy, jump: bool
) -> Any:
    """Return the one row of settings that the kernel reads."""
    settings = np.recarray(1, SETTINGS_DTYPE)
    a, least_seconds = step_time.fixed(config.async_scheduling)
    values = {
        "max_num_seqs": config.max_num_seqs,
        "seats": config.seats,
        "token_budget": config.token_budget,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "num_gpu_blocks": config.num_gpu_blocks,
        "block_size": config.block_size,
        "max_model_len": config.max_model_len,
        "long_prefill_token_threshold": config.long_prefill_token_threshold,
        "threshold_adaptive": config.long_prefill_token_threshold_adaptive,
        "chunked": config.enable_chunked_prefill,
        "reserve_full_isl": config.scheduler_reserve_full_isl,
        "watermark_blocks": config.watermark_blocks,
        "caching": workload.contents is not None,
        "async_scheduling": config.async_scheduling,
        "priority_victims": config.scheduling_policy == "priority",
        "passes_preempted": config.passes_preempted,
        "limits_lone_prefill": config.limits_lone_prefill,
        "instant_prefill": config.instant_prefill,
        "has_limits": (config.max_num_queued_reqs, config.max_num_queued_tokens) != (None, None),
        "max_num_queued_reqs": _or_none(config.max_num_queued_reqs),
        "max_num_queued_tokens": _or_none(config.max_num_queued_tokens),
        "a": a,
        "least_seconds": least_seconds,
        **{name: getattr(step_time, name) for name in ("b1", "b2", "t0", "c", "d", "e", "f")},
        "has_victim_key": policy.victim_key is not None,
        "has_admit": policy.admit is not None,
        "has_hold": policy.hold is not None,
        "has_reject": policy.reject is not None,
        "preemptive": policy.preemptive,
        "keeps_heap": policy.static and policy.admit is None and not policy.preemptive,
        "reads_clients": policy.reads_field("request.client_tokens"),
        "reads_prefill": policy.reads_field("request.prefill_tokens_since_arrival"),
        "reads_oldest_wait": policy.reads_field("engine.oldest_wait"),
        "jump": jump,
    }
    for name, value in values.items():
        settings[name] = value
    return settings


def _or_none(limit: int | None) -> int:
    return 2**62 if limit is None else limit


@dataclass(frozen=True, eq=False)
class _Run:
    """The arrays of one run of the kernel, as it left them."""

    requests: Any
    state: Any
    work: Any
    itl: Any
    recording: Recording


def _run(
    workload: Workload,
    compiled: CompiledPolicy,
    settings: Any,
    horizon: float,
    log_sizes: tuple[int, int, int],
) -> _Run:
    requests = request_rows(workload, compiled.policy)
    num_requests = len(requests)
    engine = zeros(1, ENGINE_DTYPE)
    state = zeros(1, STATE_DTYPE)
    set_up(state, settings, float(requests.arrival_time[0]))
    state.until = horizon
    state.num_rows = num_requests
    work = work_rows(workload)
    aborts = np.flatnonzero(workload.abort_time < np.inf)
    aborts = aborts[np.argsort(workload.abort_time[aborts], kind="stable")]
    state.num_aborts = len(aborts)
    lists = np.zeros((num_lists(settings), num_requests), np.int64)
    lists[ABORTS, : len(aborts)] = aborts
    itl = zeros(len(ITL_EDGES) - 1, ITL_DTYPE)
    itl.edge = ITL_EDGES[:-1]
    recording = Recording(
        zeros(log_sizes[0], STEP_DTYPE),
        np.zeros((log_sizes[1], 2), np.int64),
        np.zeros(log_sizes[2], np.int64),
    )
    arguments = (
        requests,
        engine,
        settings,
        state,
        work,
        lists,
        zeros(int(workload.client.max()) + 1, CLIENT_DTYPE),
        itl,
        *block_pool(workload, work, int(settings.num_gpu_blocks[0])),
        np.zeros(int(settings.block_size[0]), np.int64),
        recording.steps,
        recording.tokens,
        recording.preemptions,
        compiled.waiting_key,
        compiled.victim_key,
        compiled.admit,
        compiled.hold,
        compiled.reject,
    )
    try:
        status = in_turns(kernel.run, arguments, state)
    except (ArithmeticError, ValueError, IndexError) as error:
        raise explain_fault(compiled.policy, requests, engine[0], state[0], error) from None
    if status != kernel.FINISHED:
        raise explain_stall(compiled.policy, state[0], status)
    return _Run(requests, state[0], work, itl, recording)


def in_turns(run: Callable[..., int], arguments: Sequence[Any], row: Any) -> int:
    """Run the kernel, coming back to Python often enough for signals to be heard.

    Parameters
    ----------
    run : callable
        Goes on from where it stopped, and returns ``PAUSED`` when the allowance is used up.
    arguments : sequence
        Arrays and hooks.
    row : (1,) record array
        With the `allowance`.
    """
    # numba takes ten times as long to tell the type of a record array as of a plain one.
    plain = [each.view(np.ndarray) if hasattr(each, "view") else each for each in arguments]
    allowance = FIRST_ALLOWANCE
    while True:
        row.allowance = allowance
        start = time.perf_counter()
        status = run(*plain)
        if status != kernel.PAUSED:
            return status
        seconds = max(time.perf_counter() - start, 1e-6)
        growth = min(max(SECONDS_PER_TURN / seconds, 1 / 64), 8.0)
        allowance = max(int(allowance * growth), 1)


def set_up(state: Any, settings: Any, now: float) -> None:
    """Set what does not start at zero in the state of idle engines."""
    state.now = now
    state.num_free_blocks = settings.num_gpu_blocks[0] - 1
    state.token_rate = state.recent_ttft = np.nan
    state.step_time = 1.0
    state.under_way = FIRST_STEP


def num_lists(settings: Any) -> int:
    """Return how many lists of rows an engine keeps."""
    return NUM_LISTS if settings.async_scheduling[0] else FIRST_STEP


def work_rows(workload: Workload) -> Any:
    """Return what the engine knows of requests, as a (num_requests,) record array."""
    work = zeros(len(workload.output_len), WORK_DTYPE)
    work.output_len = workload.output_len
    work.client = workload.client
    work.abort_time = workload.abort_time
    work.scheduled_ts = work.first_token_ts = work.finished_ts = np.nan
    work.aborted_ts = work.rejected_ts = np.nan
    return work


def block_pool(workload: Workload, work: Any, num_gpu_blocks: int) -> tuple[Any, Any, Any]:
    """Return the pool, the contents and the tables; next to nothing without prefix caching."""
    contents = workload.contents
    if contents is None:
        return zeros(1, BLOCK_DTYPE), zeros(1, CONTENT_DTYPE), np.zeros((2, 1), np.int64)
    pool = zeros(num_gpu_blocks, BLOCK_DTYPE)
    blocks = np.arange(num_gpu_blocks)
    pool.next, pool.prev = np.roll(blocks, -1), np.roll(blocks, 1)
    pool.content = pool.newer = pool.older = -1
    cached = zeros(contents.num_contents, CONTENT_DTYPE)
    cached.oldest = cached.newest = -1
    work.table = contents.offsets[:-1]
    return pool, cached, np.vstack([np.zeros_like(contents.numbers), contents.numbers])


def zeros(shape: int | tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """Return records of zeros; memory is taken as it is written to."""
    return np.zeros(shape, dtype).view(np.recarray)


def explain_stall(policy: Policy, state: Any, status: int) -> EngineError:
    """Return the error of a run that got nowhere."""
    if status == kernel.STALLED:
        reason = f"no token in {kernel.MAX_EMPTY_STEPS:,} steps in a row"
        remedy = "look at its admit and hold, which leave nobody to run"
    else:
        reason = f"no request finished in {int(state.num_steps - state.steps_at_end):,} steps"
        remedy = (
            "look at its victim_key or PREEMPTIVE, by which requests preempt each other "
            "before one finishes; scheduler_reserve_full_isl keeps admissions that cannot fit out"
        )
    return EngineError(
        f"policy {policy.name!r} stalls the engine: {reason}, at step {int(state.num_steps):,} "
        f"({float(state.now):g} s) with {int(state.num_running)} running and "
        f"{int(state.num_waiting)} waiting; {remedy}"
    )


def explain_fault(
    policy: Policy, requests: Any, engine: Any, state: Any, error: Exception
) -> PolicyError:
    """Ask the hook again in plain Python, which knows the line."""
    hook = HOOKS[int(state.fault_hook)]
    row = requests[int(state.fault_row)]
    request = SimpleNamespace(**{name: row[name].item() for name in REQUEST_FIELDS})
    view = SimpleNamespace(**{name: engine[name].item() for name in ENGINE_FIELDS})
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
        f"{type(error).__name__}: {error}. It was asked at {float(state.now):g} s about a request "
        f"with {request.num_prompt_tokens} prompt tokens; a hook must return a number for every row"
    )


def result_rows(workload: Workload, requests: Any, work: Any) -> Any:
    """Return what each request experienced, as a (num_requests,) record array."""
    rows = zeros(len(requests), RESULT_DTYPE)
    rows.row = workload.row
    rows.arrival_time = requests.arrival_time
    rows.prompt_len = requests.num_prompt_tokens
    rows.output_len = workload.output_len
    rows.predicted_output_tokens = requests.predicted_output_tokens
    rows.deadline = requests.deadline
    rows.scheduled_ts = work.scheduled_ts
    rows.first_token_ts = work.first_token_ts
    rows.last_token_ts = work.finished_ts
    rows.aborted_ts = work.aborted_ts
    rows.rejected_ts = work.rejected_ts
    rows.num_output_tokens = requests.num_output_tokens
    rows.num_preemptions = requests.num_preemptions
    return rows

"""The simulator against vLLM's own scheduler, step by step, on random traffic and settings.

Each case is drawn, simulated by the compiled kernel with a recording, and simulated by the
reference engine, which must agree. Then vLLM's scheduler, with the plug-in in front of it where a
policy orders, is driven through the recorded steps on the recorded clock: it must give the same
requests the same tokens in the same order, admit and preempt the same, put them on the same KV
blocks and leave as many free. A case in ten may be of the sizes of a real server.
"""

import math
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import real_scheduler as real

from queuesmith.config import EngineConfig
from queuesmith.deploy.options import PluginOptions
from queuesmith.engine import prepare, simulate_reference, simulate_workload
from queuesmith.engine.compile import compile_policy
from queuesmith.engine.presets.step_time import StepTime
from queuesmith.engine.reference.agreement import first_difference
from queuesmith.engine.reference.engine import ReferenceEngine, Step
from queuesmith.errors import QueuesmithError
from queuesmith.policies import get_policy, policy_names
from queuesmith.traces.block_hashes import BlockHashes
from queuesmith.traces.trace import Trace

HOOKS = Path(__file__).parents[1] / "engine" / "hooks"
OWN = Path(__file__).parent / "policies"
STOCK = ("stock fcfs", "stock priority")
#: Orders of vLLM's own, every built-in policy, and files in which every hook and field has a say;
#: without `reject`, which is not asked inside vLLM.
POLICIES = (
    *STOCK,
    *policy_names(),
    *sorted(
        str(path)
        for folder in (HOOKS, OWN)
        for path in folder.glob("*.py")
        if get_policy(path).reject is None
    ),
)

#: Powers of two, so that sums of times are exact and both clocks read the same to the last bit.
STEP_TIME = StepTime(
    a=2.0**-6, b1=2.0**-13, b2=2.0**-12, t0=16, c=2.0**-12, d=2.0**-20, e=2.0**-23, f=2.0**-8
)


@dataclass
class Tally:
    """How much was compared."""

    cases: int = 0
    steps: int = 0
    preemptions: int = 0
    displacements: int = 0
    admissions: int = 0
    stopped_early: int = 0
    cached_tokens: int = 0
    rejected: int = 0
    async_steps: int = 0
    aborted: int = 0
    refused: int = 0
    stock_fcfs_cases: int = 0
    large_cases: int = 0
    v2_cases: int = 0
    steps_with_block_ids: int = 0
    cut_short: int = 0  # compared until somebody had waited for `max_wait`
    by_policy: Counter = field(default_factory=Counter)


#: With the limits that ship, but that of time, which a busy machine would exceed.
SHIPPED = PluginOptions("-", time_limit=math.inf, max_faults=1)


class Mismatch(AssertionError):
    """The two schedulers parted; the message says where, and how to draw the case again."""


def draw_config(rng):
    """Draw settings of an engine that is often short of blocks, seats and tokens."""
    max_model_len = 1100
    block_size = int(rng.choice([16, 16, 32, 128]))
    chunked = bool(rng.random() < 0.8)
    budget = int(rng.choice([128, 512, 2048] if chunked else [1100, 2048]))
    least_blocks = math.ceil(max_model_len / block_size) + 2
    max_num_seqs = int(rng.choice([2, 4, 16, 64]))
    return EngineConfig(
        max_num_seqs=max_num_seqs,
        max_num_active_seqs=int(rng.integers(1, max_num_seqs + 1)) if rng.random() < 0.2 else None,
        max_num_batched_tokens=budget,
        max_num_scheduled_tokens=int(rng.integers(64, budget + 1))
        if chunked and rng.random() < 0.2
        else None,
        num_gpu_blocks=least_blocks
        if rng.random() < 0.3
        else int(rng.integers(least_blocks, max(6000 // block_size, least_blocks + 1))),
        block_size=block_size,
        max_model_len=max_model_len,
        enable_chunked_prefill=chunked,
        long_prefill_token_threshold=int(rng.choice([0, 0, 100, 40])),
        long_prefill_token_threshold_adaptive=bool(rng.random() < 0.3),
        scheduler_reserve_full_isl=bool(rng.random() < 0.67),
        watermark=float(rng.choice([0.0, 0.0, 0.05, 0.2])),
        enable_prefix_caching=bool(rng.random() < 0.4),
        async_scheduling=bool(rng.random() < 0.4),
        max_num_queued_reqs=int(rng.integers(1, 40)) if rng.random() < 0.15 else None,
        max_num_queued_tokens=int(rng.integers(1, 3000)) if rng.random() < 0.15 else None,
    )


def draw_large(rng):
    """Draw the settings of a real server, whose KV cache does not hold what it could run."""
    return EngineConfig(
        max_num_seqs=256,
        max_num_batched_tokens=8192,
        num_gpu_blocks=int(rng.integers(4_000, 12_000)),
        block_size=16,
        max_model_len=32_768,
        enable_prefix_caching=bool(rng.random() < 0.3),
        async_scheduling=bool(rng.random() < 0.5),
    )


def draw_trace(rng, num_requests=60, longest=1050):
    """Draw bursts of short and long requests, with all that a client can tell of them."""
    arrival_time = np.cumsum(rng.choice([0.0, 0.0, 1 / 64, 3 / 64, 1 / 8], num_requests))
    prompt_len = np.where(
        rng.random(num_requests) < 0.3,
        rng.integers(1, longest, num_requests),
        rng.integers(1, 100 if longest == 1050 else longest // 10, num_requests),
    )
    whole = rng.random(num_requests) < 0.2  # prompts that end where a block does
    prompt_len = np.where(whole, -(-prompt_len // 128) * 128, prompt_len)
    output_len = rng.integers(1, 150, num_requests)
    early = rng.random(num_requests) < 0.5  # a stop token comes before the client's cap
    patience = rng.choice([0.0, 1 / 64, 0.25, 1.0, 3.0], num_requests)
    patience[rng.random(num_requests) < rng.choice([0.8, 0.95, 1.0])] = np.inf
    return Trace(
        arrival_time,
        prompt_len,
        output_len,
        client=rng.integers(-1, 4, num_requests),
        priority=rng.integers(0, 3, num_requests),
        max_tokens=np.where(early, output_len + rng.integers(1, 30, num_requests), output_len),
        deadline=arrival_time + rng.choice([0.25, 1.0, 4.0, np.inf], num_requests),
        abort_time=arrival_time + patience,
        block_hashes=draw_prefixes(rng, prompt_len),
    )


def draw_prefixes(rng, prompt_len):
    """Let most prompts start with the first blocks of an earlier one."""
    block_size = int(rng.choice([16, 64]))
    prompts = []
    fresh = 0
    for length in prompt_len.tolist():
        num_blocks = -(-length // block_size)
        shared = []
        if prompts and rng.random() < 0.7:
            earlier, earlier_len = prompts[rng.integers(len(prompts))]
            most = min(earlier_len // block_size, length // block_size)
            shared = earlier[: most if rng.random() < 0.3 else rng.integers(most + 1)]
        own = list(range(fresh, fresh + num_blocks - len(shared)))
        fresh += len(own)
        prompts.append((shared + own, length))
    blocks = [blocks for blocks, _ in prompts]
    offsets = np.concatenate([[0], np.cumsum([len(one) for one in blocks])])
    return BlockHashes(offsets, np.concatenate(blocks), block_size)


def run_case(seed, name, tally, *, reference=simulate_reference, large=False, **settings):
    """Compare one case; return nothing, or raise `Mismatch`.

    Parameters
    ----------
    seed : int
    name : str
        One of `POLICIES`.
    tally : Tally
        Is added to.
    reference : callable
        The reference engine. One that is not the package's own is followed instead of the kernel.
    large : bool
        Whether a case in ten is of the sizes of a real server.
    **settings
        Of the engine, instead of those drawn.
    """
    rng = np.random.default_rng(seed)
    is_large = large and seed % 10 == 3
    config = draw_large(rng) if is_large else draw_config(rng)
    trace = draw_trace(rng, 300, 30_000) if is_large else draw_trace(rng)
    predicted = rng.choice([1.0, 4.0, 30.0, 100.0, np.nan], len(trace))
    settings = {"vllm_version": real.VERSION, **settings}
    if real.IS_OLDER:
        settings = {**real.YOUNGER_SETTINGS, **settings}
    policy = get_policy("fcfs" if name in STOCK else name)
    if name == "stock priority":
        config = replace(config, scheduling_policy="priority")
    try:
        config = replace(config, **settings).override(policy.engine)
        workload = prepare(trace, config, predicted)
        result = None
        if reference is simulate_reference:
            compiled = compile_policy(policy)
            result = simulate_workload(workload, compiled, config, STEP_TIME, record=True)
    except QueuesmithError:  # settings at odds, nothing fits, victims that throw each other out
        tally.refused += 1
        return
    where = f"policy {name!r}, seed {seed}: run_case({seed}, {name!r}, Tally())"
    # A wrong rule may leave the engine standing for ever.
    horizon = math.inf if reference is simulate_reference else 200.0
    with noting_block_ids() as block_ids:
        engine = reference(workload, policy, config, STEP_TIME, horizon=horizon)
    steps = engine.steps
    if result is not None:
        if difference := first_difference(result, engine):
            raise Mismatch(f"{where}: kernel and reference: {difference}")
        steps = list(recorded_steps(result.recording))
        for step, told in zip(steps, engine.steps, strict=True):  # the recording has no order
            step.tokens = {row: step.tokens[row] for row in told.tokens}
    v2_model_runner = bool(rng.random() < 0.3)
    scheduler = real.make_scheduler(
        config,
        None if name in STOCK else policy,
        SHIPPED if rng.random() < 0.5 else real.UNPROTECTED,
        prefix_caching=config.enable_prefix_caching,
        async_scheduling=config.async_scheduling,
        v2_model_runner=v2_model_runner,
    )
    turned_away = {r.row for r in engine.requests if not math.isnan(r.rejected_ts)}
    server = real.ApiServer(config)
    # Without prefix caching no block differs from another, and the simulator only counts them; and
    # where there is enough for all, the plug-in does not order them for `victim_key`.
    is_caching = workload.contents is not None and policy.victim_key is None
    ids = block_ids if is_caching and len(block_ids) == len(steps) else None
    is_async = config.async_scheduling
    follow(where, scheduler, workload, policy, steps, tally, is_async, server, ids)
    if server.rejected != turned_away:
        raise Mismatch(f"{where}: rejected: simulator {turned_away}, vLLM {server.rejected}")
    tally.rejected += len(turned_away)
    tally.cases += 1
    tally.stock_fcfs_cases += name == "stock fcfs"
    tally.large_cases += is_large
    tally.v2_cases += v2_model_runner
    tally.by_policy[Path(name).stem] += len(steps)
    tally.async_steps += len(steps) * config.async_scheduling
    tally.aborted += sum(not math.isnan(request.aborted_ts) for request in engine.requests)
    tally.cached_tokens += engine.num_cached_tokens
    tally.stopped_early += int((workload.output_len < workload.max_tokens).sum())


@contextmanager
def noting_block_ids():
    """Give the blocks of everybody whom the reference engine schedules, step by step."""
    noted = []
    plain = ReferenceEngine.put_under_way

    def put_under_way(engine, tokens, preempted):
        step = plain(engine, tokens, preempted)
        noted.append({r.row: list(r.blocks) for r in engine.running if r.row in tokens})
        return step

    with patch.object(ReferenceEngine, "put_under_way", put_under_way):
        yield noted


def recorded_steps(recording):
    """Take the kernel's recording apart into steps as the reference engine keeps them."""
    entry = preemption = 0
    for row in recording.steps:
        tokens = dict(recording.tokens[entry : row.end_entry].tolist())
        preempted = recording.preemptions[preemption : row.end_preemption].tolist()
        entry, preemption = row.end_entry, row.end_preemption
        yield Step(
            float(row.scheduled),
            float(row.start),
            float(row.duration),
            tokens,
            preempted,
            row.num_free_blocks,
        )


def follow(
    where, scheduler, workload, policy, steps, tally, is_async=False, server=None, block_ids=None
):
    """Drive vLLM's scheduler through the steps of a simulator, in the order of vLLM's engine.

    Messages are taken in before a step is scheduled, and aborts also before its tokens are. If
    scheduling is asynchronous, a step is scheduled when the one before it begins to be computed.
    vLLM's API server in front of it, if there is one, meets every message when it is sent.
    """
    clock = [float(workload.trace.arrival_time[0])]
    scheduler.policy_clock = lambda: clock[0]
    caching = scheduler.kv_cache_manager.enable_caching
    requests = _requests(workload, policy, scheduler.block_size if caching else 0)
    output_len = workload.output_len.tolist()
    messages = [(request.arrival_time, 0, row) for row, request in enumerate(requests)]
    messages += [(time, 1, row) for row, time in enumerate(workload.abort_time.tolist())]
    messages = sorted(message for message in messages if message[0] < math.inf)
    to_server = list(messages)
    running = set()
    is_fcfs = scheduler.policy.value == "fcfs"
    under_way = None
    number = 0

    def token(request_id, place):
        row = int(request_id)
        # No two requests say the same, so that no output is in the cache but one's own.
        return real.STOP_TOKEN if place == output_len[row] - 1 else -1 - 1000 * row - place

    def abort(row):
        scheduler.finish_requests(f"{row:05d}", real.RequestStatus.FINISHED_ABORTED)

    def tell_server(*, is_midway):
        """What comes at the very end of a step comes after its tokens, but an abort before."""
        while server and to_server:
            time, is_abort, row = to_server[0]
            if time > clock[0] or (is_midway and time == clock[0] and not is_abort):
                return
            to_server.pop(0)
            if is_abort:
                server.abort(row)
            else:
                server.arrive(row, requests[row].num_prompt_tokens)

    def take_messages():
        tell_server(is_midway=False)
        while messages and messages[0][0] <= clock[0]:
            _, is_abort, row = messages.pop(0)
            if is_abort:
                abort(row)
            elif server is None or row not in server.rejected:
                scheduler.add_request(requests[row])

    def compare(step, output):
        running.difference_update(step.preempted)
        admitted = step.tokens.keys() - running
        running.update(admitted)
        new = [request.req_id for request in output.scheduled_new_reqs]
        new += output.scheduled_cached_reqs.resumed_req_ids
        free = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        for what, ours, theirs in (
            ("scheduled at", step.scheduled, clock[0]),
            ("tokens", *tokens_of(step, output)),
            ("preempted", sorted(step.preempted), sorted(map(int, output.preempted_req_ids or ()))),
            ("admitted", sorted(admitted), sorted(map(int, new))),
            ("free KV blocks", step.num_free_blocks, free),
            ("block ids", *blocks_of(step)),
            ("queue of vLLM", *queue()),
        ):
            if ours != theirs:
                raise Mismatch(f"{where}, step {number}: {what}: simulator {ours}, vLLM {theirs}")
        monitor = getattr(scheduler, "policy_monitor", None)
        if monitor is not None and monitor.faults:
            raise Mismatch(f"{where}, step {number}: faults {dict(monitor.faults)}")
        tally.steps += 1
        tally.preemptions += len(step.preempted)
        tally.displacements += len(getattr(scheduler, "policy_displaced", ()))
        tally.admissions += len(admitted)

    def tokens_of(step, output):
        ours = list(step.tokens.items())
        theirs = [(int(name), new) for name, new in output.num_scheduled_tokens.items()]
        # Where there is enough for all, the plug-in does not order them for `victim_key`.
        return (ours, theirs) if policy.victim_key is None else (sorted(ours), sorted(theirs))

    def blocks_of(step):
        if block_ids is None:
            return None, None
        tally.steps_with_block_ids += 1
        manager = scheduler.kv_cache_manager
        return block_ids[number], {
            row: list(manager.get_block_ids(f"{row:05d}")[0]) for row in step.tokens
        }

    def queue():
        """By itself vLLM keeps those who wait in order of arrival, whoever was preempted."""
        waiting = [int(request.request_id) for request in scheduler.waiting]
        is_stock = getattr(scheduler, "policy_monitor", None) is None
        return (sorted(waiting), waiting) if is_stock and is_fcfs else (None, None)

    def anybody_is_overdue():
        """Tell whether `max_wait`, which the simulator does not have, could change a decision."""
        if getattr(scheduler, "policy_monitor", None) is None:
            return False
        max_wait = scheduler._policy_options.max_wait
        return any(
            clock[0] - request.queuesmith_row.last_token_ts > max_wait
            for request in scheduler.requests.values()
        )

    def complete(step, output, model_output):
        clock[0] += step.duration
        tell_server(is_midway=True)
        for time, is_abort, row in messages:
            if is_abort and time <= clock[0] and f"{row:05d}" in scheduler.requests:
                abort(row)
        outputs = scheduler.update_from_output(output, model_output)
        if server is not None:
            server.hear(outputs)
        running.intersection_update(int(request.request_id) for request in scheduler.running)

    while messages or scheduler.has_unfinished_requests():
        if not scheduler.has_unfinished_requests() and under_way is None:
            clock[0] = max(clock[0], messages[0][0])
        take_messages()
        scheduled = None
        if anybody_is_overdue():
            tally.cut_short += 1
            return
        if scheduler.has_unfinished_requests():
            if number == len(steps):
                raise Mismatch(f"{where}: the simulator has ended and vLLM has not")
            output = scheduler.schedule()
            compare(steps[number], output)
            scheduled = steps[number], output, real.run_model(scheduler, output, token)
            number += 1
        if is_async:  # the one before is computed meanwhile
            scheduled, under_way = under_way, scheduled
        if scheduled is not None:
            complete(*scheduled)
    if number < len(steps):
        raise Mismatch(f"{where}: vLLM has ended and the simulator has not")


def _requests(workload, policy, hash_blocks):
    """Turn a workload into vLLM's requests; what a policy may know comes as ``vllm_xargs``."""
    trace = workload.trace
    known = workload.output_len if policy.oracle else workload.predicted_output_tokens
    requests = []
    size = trace.block_hashes.block_size
    for row in range(len(trace)):
        place = np.arange(trace.prompt_len[row])
        prompt = 1_000_000 + trace.block_hashes[row][place // size] * size + place % size
        arrival_time = float(trace.arrival_time[row])
        xargs = {
            "predicted_output_tokens": float(known[row]),
            "time_to_deadline": float(trace.deadline[row]) - arrival_time,
            "priority": int(trace.priority[row]),
        }
        if trace.client[row] >= 0:
            xargs["client"] = f"client {trace.client[row]}"
        requests.append(
            real.make_request(
                f"{row:05d}",
                prompt.tolist(),
                int(workload.max_tokens[row]),
                arrival_time=arrival_time,
                priority=int(trace.priority[row]),
                xargs=xargs,
                hash_blocks=hash_blocks,
            )
        )
    return requests

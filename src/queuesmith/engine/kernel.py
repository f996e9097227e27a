"""The compiled step loop. Arrays in, arrays out; the caller has checked them.

Read `run` first: it is one step in order. The rules are those of vLLM 0.32.0's
``Scheduler.schedule``; :mod:`queuesmith.engine.reference` says the same in plain Python. Nothing
here knows a string, raises, or allocates inside the loop; an exception that a policy raises passes
through, and `fault_hook` and `fault_row` of the state say what it was asked.

The parts are in `kv_blocks`, `waiting` and `running`. All are inlined, and take arrays as arguments
of their own, since every use of an array in a tuple costs an atomic reference count.
"""

from contextlib import suppress
from pathlib import Path

import numba
import numpy as np
from numba import njit, types

from queuesmith.engine.kv_blocks import give_back_blocks, more_blocks
from queuesmith.engine.running import (
    displace,
    order_by_victim_key,
    order_matters,
    restore_running,
    schedule_running,
    set_aside_held,
)
from queuesmith.engine.state import (
    BLOCK_DTYPE,
    CLIENT_DTYPE,
    CONTENT_DTYPE,
    ITL_DTYPE,
    PREEMPTED,
    RUNNING,
    SETTINGS_DTYPE,
    STATE_DTYPE,
    STEP_DTYPE,
    TOKENS,
    WAITING,
    WORK_DTYPE,
)
from queuesmith.engine.waiting import enter_waiting, nobody_fits, schedule_waiting
from queuesmith.request import AVERAGE_WEIGHT, ENGINE_DTYPE, REQUEST_DTYPE

REQUEST = numba.from_dtype(REQUEST_DTYPE)
ENGINE = numba.from_dtype(ENGINE_DTYPE)
KEY = types.float64(REQUEST, ENGINE)
FLAG = types.boolean(REQUEST, ENGINE)

_RUN = types.int64(
    REQUEST[::1],
    ENGINE[::1],
    numba.from_dtype(SETTINGS_DTYPE)[::1],
    numba.from_dtype(STATE_DTYPE)[::1],
    numba.from_dtype(WORK_DTYPE)[::1],
    types.int64[:, ::1],
    numba.from_dtype(CLIENT_DTYPE)[::1],
    numba.from_dtype(ITL_DTYPE)[::1],
    numba.from_dtype(BLOCK_DTYPE)[::1],
    numba.from_dtype(CONTENT_DTYPE)[::1],
    types.int64[:, ::1],
    types.int64[::1],
    numba.from_dtype(STEP_DTYPE)[::1],
    types.int64[:, ::1],
    types.int64[::1],
    types.FunctionType(KEY),
    types.FunctionType(KEY),
    types.FunctionType(FLAG),
    types.FunctionType(FLAG),
)

FINISHED, STALLED, LIVELOCK = range(3)  # what `run` returns

MAX_EMPTY_STEPS = 10_000
MAX_STEPS_WITHOUT_FINISH = 2_000_000


@njit(forceinline=True, _nrt=False)
def step_seconds(p, num_prefill_tokens, num_decodes, kv_tokens, attention):
    """Return the seconds of one step; the formula of `StepTime.seconds`, term by term."""
    num_tokens = num_prefill_tokens + num_decodes
    seconds = p.a + p.b1 * min(num_tokens, p.t0)
    seconds += p.b2 * max(num_tokens - p.t0, 0.0)
    seconds += p.c * num_decodes + p.d * kv_tokens + p.e * attention
    if num_prefill_tokens > 0:
        seconds += p.f
    return seconds


@njit(forceinline=True, _nrt=False)
def take_arrivals(requests, e, p, s, work, lists, clients, pool, contents, tables, waiting_key):
    """Let requests that have arrived join `waiting`; a returning client's counter is lifted."""
    while s.next_row < requests.shape[0] and requests[s.next_row].arrival_time <= s.now:
        row = s.next_row
        arrival_time = requests[row].arrival_time
        if row == 1:
            s.mean_gap = arrival_time - s.last_arrival
        elif row > 1:
            s.mean_gap += AVERAGE_WEIGHT * (arrival_time - s.last_arrival - s.mean_gap)
        s.last_arrival = arrival_time
        s.prompt_tokens_seen += requests[row].num_prompt_tokens
        s.next_row += 1
        if p.reads_clients:
            client = work[row].client
            if clients[client].active == 0:
                least = np.inf
                for other in range(clients.shape[0]):
                    if clients[other].active > 0:
                        least = min(least, clients[other].counter)
                if least < np.inf:
                    clients[client].counter = max(clients[client].counter, least)
            clients[client].active += 1
        enter_waiting(
            requests, e, p, s, work, lists, clients, pool, contents, tables, row, waiting_key
        )


@njit(forceinline=True, _nrt=False)
def observe(requests, e, p, s, lists):
    """Write the engine row that all hooks of this step see."""
    e.now = s.now
    e.num_waiting = s.num_waiting
    e.num_running = s.num_running
    e.max_num_seqs = p.max_num_seqs
    e.token_budget = p.token_budget
    num_usable_blocks = p.num_gpu_blocks - 1
    e.kv_usage = (num_usable_blocks - s.num_free_blocks) / num_usable_blocks
    e.free_kv_tokens = s.num_free_blocks * p.block_size
    e.waiting_tokens = s.waiting_tokens
    e.mean_waiting_tokens = 0.0
    e.mean_wait = 0.0
    e.oldest_wait = 0.0
    if s.num_waiting > 0:
        e.mean_waiting_tokens = s.waiting_tokens / s.num_waiting
        mean_arrival = s.waiting_arrivals_us / s.num_waiting * 1e-6
        e.mean_wait = max(s.now - requests[0].arrival_time - mean_arrival, 0.0)
        if p.reads_oldest_wait:
            oldest = lists[WAITING, 0]
            for place in range(1, s.num_waiting):
                oldest = min(oldest, lists[WAITING, place])
            e.oldest_wait = s.now - requests[oldest].arrival_time
    e.step_time = s.step_time
    e.token_rate = 1.0 if np.isnan(s.token_rate) else s.token_rate
    e.recent_ttft = 1.0 if np.isnan(s.recent_ttft) else s.recent_ttft
    e.arrival_rate = 1.0 / s.mean_gap if s.mean_gap > 0.0 else 1.0
    e.mean_prompt_tokens = s.prompt_tokens_seen / s.next_row
    e.backlog_time = s.waiting_tokens / e.token_rate
    s.peak_backlog_time = max(s.peak_backlog_time, e.backlog_time)
    e.peak_backlog_time = s.peak_backlog_time


@njit(forceinline=True, _nrt=False)
def count_gap(s, itl, gap, times):
    """Count a gap between output tokens; most gaps fall where the last one did."""
    place = s.itl_bin
    last = itl.shape[0] - 1
    if gap < itl[place].edge or (place < last and gap >= itl[place + 1].edge):
        low, high = 0, last
        while low < high:  # the last bin whose edge is not above the gap
            middle = (low + high + 1) // 2
            if itl[middle].edge <= gap:
                low = middle
            else:
                high = middle - 1
        place = low
        s.itl_bin = place
    itl[place].count += times


@njit(forceinline=True, _nrt=False)
def finish(p, s, w, clients, pool, tables):
    """Free what a request holds that has produced its last token."""
    w.finished_ts = s.now
    give_back_blocks(p, s, w, pool, tables)
    s.num_finished += 1
    s.steps_at_finish = s.num_steps
    if p.reads_clients:
        clients[w.client].active -= 1


@njit(forceinline=True, _nrt=False)
def emit_token(r, p, s, w, clients, itl, pool, tables, before):
    """Give a request its next output token at `now`; tell whether that was its last.

    Most had one at the start of the step, `before`: those gaps are counted together.
    """
    now = s.now
    if r.num_output_tokens > 0:
        if r.last_token_ts == before:
            s.num_usual_gaps += 1
        else:
            count_gap(s, itl, now - r.last_token_ts, 1)
    else:
        w.first_token_ts = now
        ttft = now - r.arrival_time
        if np.isnan(s.recent_ttft):
            s.recent_ttft = ttft
        else:
            s.recent_ttft += AVERAGE_WEIGHT * (ttft - s.recent_ttft)
    r.num_output_tokens += 1
    r.last_token_ts = now
    if p.reads_clients:
        clients[w.client].counter += 2.0
    if r.num_output_tokens < w.output_len:
        return False
    finish(p, s, w, clients, pool, tables)
    return True


@njit(_nrt=False)
def log_step(e, s, lists, log_steps, log_tokens, log_preemptions, seconds):
    """Record the step: what was scheduled and what was preempted, in the order it happened."""
    step = log_steps[s.num_steps]
    step.start = s.now
    step.duration = seconds
    step.num_prefill_tokens = s.num_prefill_tokens
    step.num_decodes = s.num_decodes
    step.num_waiting = e.num_waiting
    step.num_running = e.num_running
    step.num_free_blocks = s.num_free_blocks
    entry = s.num_entries
    for place in range(s.num_running):
        if lists[TOKENS, place] > 0:
            log_tokens[entry, 0] = lists[RUNNING, place]
            log_tokens[entry, 1] = lists[TOKENS, place]
            entry += 1
    step.end_entry = entry
    for index in range(s.num_preempted):
        log_preemptions[s.num_preemptions - s.num_preempted + index] = lists[PREEMPTED, index]
    step.end_preemption = s.num_preemptions


@njit(_nrt=False)
def give_back_in_order_of_budget(requests, p, s, work, lists, pool, tables):
    """Free what finishes in this step in the order in which vLLM does, that of the step.

    Tokens are handed out in order of admission; only the ring of free blocks knows the difference.
    """
    for place in range(s.num_running):
        row = lists[RUNNING, place]
        r, w = requests[row], work[row]
        missing = r.num_prompt_tokens + r.num_output_tokens - r.num_computed_tokens
        if lists[TOKENS, place] == missing and r.num_output_tokens + 1 == w.output_len:
            give_back_blocks(p, s, w, pool, tables)


@njit(forceinline=True, _nrt=False)
def complete_step(
    requests,
    e,
    p,
    s,
    work,
    lists,
    clients,
    itl,
    pool,
    tables,
    log_steps,
    log_tokens,
    log_preemptions,
):
    """Let the step take its time, then hand out tokens and free what has finished.

    Returns the number of requests that were given tokens.
    """
    seconds = step_seconds(p, s.num_prefill_tokens, s.num_decodes, s.kv_tokens, s.attention)
    if log_steps.shape[0] > 0:
        log_step(e, s, lists, log_steps, log_tokens, log_preemptions, seconds)
    s.num_preempted = 0
    if p.caching and s.out_of_order:
        give_back_in_order_of_budget(requests, p, s, work, lists, pool, tables)
    if s.num_held > 0 or s.out_of_order:
        restore_running(s, work, lists)
    before = s.now
    s.now += seconds
    s.step_time = seconds
    s.num_steps += 1
    if s.num_prefill_tokens > 0:
        rate = s.num_prefill_tokens / seconds if seconds > 0.0 else np.inf
        if np.isnan(s.token_rate):
            s.token_rate = rate
        else:
            s.token_rate += AVERAGE_WEIGHT * (rate - s.token_rate)
    kept = 0
    num_scheduled = 0
    s.num_decoding = 0
    for place in range(s.num_running):
        row = lists[RUNNING, place]
        new = lists[TOKENS, place]
        if new > 0:
            r = requests[row]
            num_scheduled += 1
            s.num_computed_tokens += new
            r.num_computed_tokens += new
            if r.num_computed_tokens == r.num_prompt_tokens + r.num_output_tokens:
                if emit_token(r, p, s, work[row], clients, itl, pool, tables, before):
                    continue
                s.num_decoding += 1
        lists[RUNNING, kept] = row
        kept += 1
    if s.num_usual_gaps > 0:
        count_gap(s, itl, s.now - before, s.num_usual_gaps)
        s.num_usual_gaps = 0
    s.num_running = kept
    s.num_entries += num_scheduled
    if s.num_waiting == 0:
        s.peak_backlog_time = 0.0
    return num_scheduled


@njit(forceinline=True, _nrt=False)
def jump(requests, p, s, work, lists, clients, itl, pool, contents, tables, residues):
    """Take all steps up to the next event at once, when the batch is decodes that cannot change.

    Events are an arrival, a finish, KV blocks running out and the horizon; what finishes in the
    last step is freed. Step times are added one by one in the stepping expression: a closed form
    drifts and can flip a boundary. Returns whether any step was taken.
    """
    num_running = s.num_running
    if num_running == 0 or s.num_decoding < num_running or num_running > p.token_budget:
        return False
    if not nobody_fits(requests, p, s, work, lists, pool, contents, tables):
        return False
    residues[:] = 0
    kv_tokens = 0
    most_steps = np.int64(2**62)
    for place in range(num_running):
        row = lists[RUNNING, place]
        r = requests[row]
        residues[work[row].blocks * p.block_size - r.num_computed_tokens] += 1
        kv_tokens += r.num_computed_tokens
        most_steps = min(most_steps, work[row].output_len - r.num_output_tokens)
    if p.caching:
        most_steps -= 1  # the order in which requests free their blocks matters, and `run` knows it
    next_arrival = np.inf
    if s.next_row < requests.shape[0]:
        next_arrival = requests[s.next_row].arrival_time
    caching, horizon, block_size = p.caching, p.horizon, p.block_size
    num_steps = 0
    residue = 0  # tokens that still fit into the last block; at 0 one more is needed
    while num_steps < most_steps and s.now < next_arrival and s.now < horizon:
        if residues[residue] > s.num_free_blocks:
            break
        next_residue = 0 if residue == block_size - 1 else residue + 1
        if caching and (residues[residue] > 0 or residues[next_residue] > 0):
            break  # blocks are taken or filled: which ones matters, so this step is for `run`
        s.num_free_blocks -= residues[residue]
        residue = next_residue
        seconds = step_seconds(p, 0, num_running, kv_tokens, 0.0)
        before = s.now
        s.now += seconds
        s.step_time = seconds
        count_gap(s, itl, s.now - before, num_running)
        kv_tokens += num_running
        num_steps += 1
    if num_steps == 0:
        return False
    s.num_steps += num_steps
    s.num_jumps += 1
    s.num_computed_tokens += num_steps * num_running
    s.num_entries += num_steps * num_running
    kept = 0
    for place in range(num_running):
        row = lists[RUNNING, place]
        r, w = requests[row], work[row]
        r.num_computed_tokens += num_steps
        r.num_output_tokens += num_steps
        r.last_token_ts = s.now
        w.blocks += more_blocks(r.num_computed_tokens, w.blocks, p.block_size)
        if p.reads_clients:
            clients[w.client].counter += 2.0 * num_steps
        if r.num_output_tokens == w.output_len:
            finish(p, s, w, clients, pool, tables)
            continue
        lists[RUNNING, kept] = row
        kept += 1
    s.num_running = s.num_decoding = kept
    return True


def _forget_stale_code():
    """Remove machine code that is older than what was inlined into it.

    numba's disk cache looks at the file of the outermost function alone.
    """
    folder = Path(__file__).parent
    newest = max(
        (folder / f"{name}.py").stat().st_mtime
        for name in ("kv_blocks", "waiting", "running", "state")
    )
    kept = [folder / "__pycache__", *([Path(path)] if (path := numba.config.CACHE_DIR) else [])]
    for index in (index for place in kept for index in place.rglob("kernel.run-*.nbi")):
        if index.stat().st_mtime < newest:
            index.unlink(missing_ok=True)


with suppress(OSError):  # a folder that cannot be written has no code of ours to go stale
    _forget_stale_code()


@njit(_RUN, cache=True, nogil=True, _nrt=False)
def run(
    requests,
    engine,
    settings,
    state,
    work,
    lists,
    clients,
    itl,
    pool,
    contents,
    tables,
    residues,
    log_steps,
    log_tokens,
    log_preemptions,
    waiting_key,
    victim_key,
    admit,
    hold,
):
    """Simulate until every request has finished or the horizon is reached.

    Everything is changed in place; all arrays but `requests` and `work` start as zeros.

    Parameters
    ----------
    requests : (num_requests,) REQUEST_DTYPE
        In order of arrival.
    engine : (1,) ENGINE_DTYPE
        The row that policies read.
    settings : (1,) SETTINGS_DTYPE
    state : (1,) STATE_DTYPE
        With `now`, `num_free_blocks`, `token_rate`, `recent_ttft` and `step_time` set.
    work : (num_requests,) WORK_DTYPE
    lists : (NUM_LISTS, num_requests) int64
    clients : (num_clients,) CLIENT_DTYPE
    itl : (num_bins,) ITL_DTYPE
    pool : (num_gpu_blocks,) BLOCK_DTYPE
        All blocks in the ring of free ones; a single row without prefix caching.
    contents : (num_contents,) CONTENT_DTYPE
        All -1.
    tables : (2, total) int64
        A stretch per request, from its `table`: blocks, and `Contents.numbers`.
    residues : (block_size,) int64
    log_steps : (num_steps,) STEP_DTYPE
        Empty when nothing is to be recorded; then so are the two others.
    log_tokens : (num_entries, 2) int64
    log_preemptions : (num_preemptions,) int64
    waiting_key, victim_key : float64(request, engine)
    admit, hold : boolean(request, engine)

    Returns
    -------
    int
        ``FINISHED``, ``STALLED`` (no token in `MAX_EMPTY_STEPS` steps in a row) or ``LIVELOCK``
        (no request finished in `MAX_STEPS_WITHOUT_FINISH` steps and ten context windows of them).
    """
    p, s, e = settings[0], state[0], engine[0]
    num_empty_steps = 0
    while s.num_finished < requests.shape[0]:
        if s.num_running == 0 and s.num_waiting == 0:
            s.now = max(s.now, requests[s.next_row].arrival_time)
        if s.now >= p.horizon:
            break
        take_arrivals(requests, e, p, s, work, lists, clients, pool, contents, tables, waiting_key)
        if (
            p.jump
            and not p.has_hold
            and jump(requests, p, s, work, lists, clients, itl, pool, contents, tables, residues)
        ):
            continue

        observe(requests, e, p, s, lists)
        s.keys_are_fresh = False
        if p.has_hold:
            set_aside_held(requests, e, p, s, work, lists, clients, hold)
        if p.preemptive and s.num_waiting > 0 and s.num_running + s.num_held >= p.seats:
            displace(
                requests, e, p, s, work, lists, clients, pool, contents, tables, waiting_key, admit
            )
        if p.has_victim_key and order_matters(requests, p, s, work, lists):
            order_by_victim_key(requests, e, p, s, work, lists, clients, victim_key)
        budget, preempted = schedule_running(
            requests, e, p, s, work, lists, clients, pool, contents, tables, waiting_key
        )
        if not preempted:
            schedule_waiting(
                requests,
                e,
                p,
                s,
                work,
                lists,
                clients,
                pool,
                contents,
                tables,
                waiting_key,
                admit,
                budget,
            )

        num_scheduled = complete_step(
            requests,
            e,
            p,
            s,
            work,
            lists,
            clients,
            itl,
            pool,
            tables,
            log_steps,
            log_tokens,
            log_preemptions,
        )
        num_empty_steps = 0 if num_scheduled > 0 else num_empty_steps + 1
        if num_empty_steps >= MAX_EMPTY_STEPS:
            return STALLED
        if s.num_steps - s.steps_at_finish > MAX_STEPS_WITHOUT_FINISH + 10 * p.max_model_len:
            return LIVELOCK
    return FINISHED

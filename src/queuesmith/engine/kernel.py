"""The compiled step loop. Arrays in, arrays out; the caller has checked them.

Read `run` first: it is one step in order, each part a function below it. The rules are those of
vLLM 0.32.0's ``Scheduler.schedule``; :mod:`queuesmith.engine.reference` says the same in plain
Python. Nothing here knows a string, raises, or allocates inside the loop; an exception that a
policy raises passes through and finds `fault` naming the hook and the row it was asked about.

Everything compiled lives in this one file because numba's disk cache watches only the file of
the outermost function.
"""

import numba
import numpy as np
from numba import njit, types

from queuesmith.engine.state import (
    CLIENT_DTYPE,
    HELD,
    ITL_DTYPE,
    PREEMPTED,
    RUNNING,
    SCRATCH,
    SETTINGS_DTYPE,
    STATE_DTYPE,
    STEP_DTYPE,
    TOKENS,
    WAITING,
    WORK_DTYPE,
)
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
    types.int64[::1],
    numba.from_dtype(STEP_DTYPE)[::1],
    types.int64[:, ::1],
    types.int64[::1],
    types.FunctionType(KEY),
    types.FunctionType(KEY),
    types.FunctionType(FLAG),
    types.FunctionType(FLAG),
)

WAITING_KEY, VICTIM_KEY, ADMIT, HOLD = range(4)  # hooks, as `fault_hook` names them
FINISHED, STALLED, LIVELOCK = range(3)  # what `run` returns

MAX_EMPTY_STEPS = 10_000
MAX_STEPS_WITHOUT_FINISH = 2_000_000


@njit(forceinline=True)
def step_seconds(p, num_prefill_tokens, num_decodes, kv_tokens, attention):
    """Return the seconds of one step; the formula of `StepTime.seconds`, term by term."""
    num_tokens = num_prefill_tokens + num_decodes
    seconds = p.a + p.b1 * min(num_tokens, p.t0)
    seconds += p.b2 * max(num_tokens - p.t0, 0.0)
    seconds += p.c * num_decodes + p.d * kv_tokens + p.e * attention
    if num_prefill_tokens > 0:
        seconds += p.f
    return seconds


@njit(forceinline=True)
def blocks_for(num_tokens, block_size):
    """Return the KV blocks that hold `num_tokens`."""
    return (num_tokens + block_size - 1) // block_size


@njit(forceinline=True)
def more_blocks(num_tokens, blocks, block_size):
    """Return the KV blocks that `num_tokens` need beyond the `blocks` at hand.

    Most often none, which a multiplication finds out faster than a division.
    """
    if num_tokens <= blocks * block_size:
        return 0
    return blocks_for(num_tokens, block_size) - blocks


@njit(forceinline=True)
def comes_before(work, row, other):
    """Tell whether `row` is admitted before `other`: by key, then by arrival, which is the row."""
    key, other_key = work[row].key, work[other].key
    return key < other_key or (key == other_key and row < other)


@njit(forceinline=True)
def sift_up(work, lists, place):
    """Move the waiting request at `place` up its heap until its parent comes before it."""
    row = lists[WAITING, place]
    while place > 0:
        parent = (place - 1) // 2
        if not comes_before(work, row, lists[WAITING, parent]):
            break
        lists[WAITING, place] = lists[WAITING, parent]
        place = parent
    lists[WAITING, place] = row


@njit(forceinline=True)
def sift_down(work, lists, size, place):
    """Move the waiting request at `place` down its heap until it comes before both children."""
    row = lists[WAITING, place]
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and comes_before(
            work, lists[WAITING, child + 1], lists[WAITING, child]
        ):
            child += 1
        if not comes_before(work, lists[WAITING, child], row):
            break
        lists[WAITING, place] = lists[WAITING, child]
        place = child
    lists[WAITING, place] = row


@njit(forceinline=True)
def ask_key(requests, e, p, s, work, clients, hook, row, key):
    """Ask a key hook about one row; NaN counts as +inf."""
    s.fault_hook = hook
    s.fault_row = row
    if p.reads_clients:
        requests[row].client_tokens = clients[work[row].client].counter
    value = key(requests[row], e)
    return np.inf if np.isnan(value) else value


@njit(forceinline=True)
def ask_flag(requests, e, p, s, work, clients, hook, row, flag):
    """Ask `admit` or `hold` about one row."""
    s.fault_hook = hook
    s.fault_row = row
    if p.reads_clients:
        requests[row].client_tokens = clients[work[row].client].counter
    return flag(requests[row], e)


@njit(forceinline=True)
def enter_waiting(requests, e, p, s, work, lists, clients, row, waiting_key):
    """Add a request, new or preempted, to `waiting`."""
    r = requests[row]
    r.num_uncached_tokens = r.num_prompt_tokens + r.num_output_tokens
    s.waiting_tokens += r.num_uncached_tokens
    s.waiting_arrivals_us += np.int64(round(r.arrival_time * 1e6))
    lists[WAITING, s.num_waiting] = row
    s.num_waiting += 1
    if p.keeps_heap:
        work[row].key = ask_key(requests, e, p, s, work, clients, WAITING_KEY, row, waiting_key)
        s.num_candidates = s.num_waiting
        sift_up(work, lists, s.num_waiting - 1)


@njit(forceinline=True)
def take_arrivals(requests, e, p, s, work, lists, clients, waiting_key):
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
        enter_waiting(requests, e, p, s, work, lists, clients, row, waiting_key)


@njit(forceinline=True)
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
        e.mean_wait = max(s.now - mean_arrival, 0.0)
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


@njit(forceinline=True)
def rank_waiting(requests, e, p, s, work, lists, clients, waiting_key, admit):
    """Bring admissible requests to the front of `waiting`, as a heap by (key, arrival, row)."""
    s.num_candidates = s.num_waiting
    if p.has_admit:
        place = 0
        while place < s.num_candidates:
            if ask_flag(requests, e, p, s, work, clients, ADMIT, lists[WAITING, place], admit):
                place += 1
            else:
                s.num_candidates -= 1
                lists[WAITING, place], lists[WAITING, s.num_candidates] = (
                    lists[WAITING, s.num_candidates],
                    lists[WAITING, place],
                )
        if s.num_candidates == 0 and s.num_running == 0 and s.num_held == 0:
            s.num_candidates = s.num_waiting  # an engine with nothing to do ignores `admit`
    for place in range(s.num_candidates):
        row = lists[WAITING, place]
        work[row].key = ask_key(requests, e, p, s, work, clients, WAITING_KEY, row, waiting_key)
    for place in range(s.num_candidates // 2 - 1, -1, -1):
        sift_down(work, lists, s.num_candidates, place)
    s.keys_are_fresh = True


@njit(forceinline=True)
def set_aside_held(requests, e, p, s, work, lists, clients, hold):
    """Move requests that `hold` names from `running` to `held`, unless nobody would stay."""
    kept = 0
    s.num_held = 0
    for place in range(s.num_running):
        row = lists[RUNNING, place]
        if ask_flag(requests, e, p, s, work, clients, HOLD, row, hold):
            lists[HELD, s.num_held] = row
            s.num_held += 1
        else:
            lists[SCRATCH, kept] = row
            kept += 1
    if kept == 0 or s.num_held == 0:
        s.num_held = 0
        return
    for place in range(kept):
        lists[RUNNING, place] = lists[SCRATCH, place]
    s.num_running = kept
    s.out_of_order = True


@njit(forceinline=True)
def preempt(requests, e, p, s, work, lists, clients, row, waiting_key):
    """Take all KV blocks of a request that has left `running` and let it wait again."""
    r = requests[row]
    s.num_free_blocks += work[row].blocks
    work[row].blocks = 0
    s.num_recomputed_tokens += r.num_computed_tokens
    r.num_computed_tokens = 0
    r.num_preemptions += 1
    lists[PREEMPTED, s.num_preempted] = row
    s.num_preempted += 1
    s.num_preemptions += 1
    enter_waiting(requests, e, p, s, work, lists, clients, row, waiting_key)


@njit(forceinline=True)
def displace(requests, e, p, s, work, lists, clients, waiting_key, admit):
    """Let the best waiting requests take the seats of the worst running ones.

    The j-th best admissible waiting request displaces the j-th worst running one while its key is
    strictly smaller. Candidates are popped to look at them and pushed back.
    """
    rank_waiting(requests, e, p, s, work, lists, clients, waiting_key, admit)
    for place in range(s.num_running):
        row = lists[RUNNING, place]
        work[row].key = ask_key(requests, e, p, s, work, clients, WAITING_KEY, row, waiting_key)
    num_candidates = s.num_candidates
    num_displaced = 0
    while s.num_candidates > 0:
        worst = -1
        for place in range(s.num_running):
            row = lists[RUNNING, place]
            if requests[row].num_output_tokens <= work[row].output_at_admission:
                continue  # no token since its admission: without this rule two could swap forever
            if worst < 0 or work[row].key >= work[lists[RUNNING, worst]].key:
                worst = place
        if worst < 0 or not work[lists[WAITING, 0]].key < work[lists[RUNNING, worst]].key:
            break
        s.num_candidates -= 1
        best = lists[WAITING, 0]
        lists[WAITING, 0] = lists[WAITING, s.num_candidates]
        lists[WAITING, s.num_candidates] = best
        sift_down(work, lists, s.num_candidates, 0)
        lists[SCRATCH, num_displaced] = lists[RUNNING, worst]
        num_displaced += 1
        for place in range(worst, s.num_running - 1):
            lists[RUNNING, place] = lists[RUNNING, place + 1]
        s.num_running -= 1
    while s.num_candidates < num_candidates:
        s.num_candidates += 1
        sift_up(work, lists, s.num_candidates - 1)
    for index in range(num_displaced):
        preempt(requests, e, p, s, work, lists, clients, lists[SCRATCH, index], waiting_key)


@njit(forceinline=True)
def most_tokens_per_request(p, s):
    """Return the most tokens that one request may compute in this step."""
    num_present = s.num_waiting + s.num_running + s.num_held
    threshold = p.long_prefill_token_threshold
    if threshold <= 0 or num_present <= 1:
        return p.max_model_len
    if p.threshold_adaptive:
        threshold = max(threshold, p.token_budget // num_present)
    return threshold


@njit(forceinline=True)
def num_new_tokens(r, p, most, budget):
    """Return the tokens that a running request is given out of `budget`."""
    missing = r.num_prompt_tokens + r.num_output_tokens - r.num_computed_tokens
    if p.instant_prefill:
        return missing
    new = min(missing, most, budget)
    return min(new, p.max_model_len - r.num_computed_tokens - 1)


@njit(forceinline=True)
def order_matters(requests, p, s, work, lists):
    """Tell whether blocks or budget are too short for all of `running`.

    Otherwise every order gives everybody the same, and sorting can be left out.
    """
    most = most_tokens_per_request(p, s)
    budget = p.token_budget
    free = s.num_free_blocks
    for place in range(s.num_running):
        row = lists[RUNNING, place]
        new = num_new_tokens(requests[row], p, most, p.token_budget)
        budget -= 1 if p.instant_prefill else new
        num_tokens = requests[row].num_computed_tokens + new
        free -= more_blocks(num_tokens, work[row].blocks, p.block_size)
        if budget < 0 or free < 0:
            return True
    return False


@njit(forceinline=True)
def order_by_victim_key(requests, e, p, s, work, lists, clients, victim_key):
    """Sort `running` by (victim_key, admission), so that the victim stands last."""
    num_running = s.num_running
    values = np.empty(num_running, np.float64)
    for place in range(num_running):
        row = lists[RUNNING, place]
        values[place] = ask_key(requests, e, p, s, work, clients, VICTIM_KEY, row, victim_key)
        lists[SCRATCH, place] = row
    order = np.argsort(values, kind="mergesort")  # stable, and `running` is in admission order
    for place in range(num_running):
        lists[RUNNING, place] = lists[SCRATCH, order[place]]
    s.out_of_order = True


@njit(forceinline=True)
def remove_running(s, lists, place):
    """Remove one place from `running` and `tokens`."""
    for later in range(place, s.num_running - 1):
        lists[RUNNING, later] = lists[RUNNING, later + 1]
        lists[TOKENS, later] = lists[TOKENS, later + 1]
    s.num_running -= 1


@njit(forceinline=True)
def find_priority_victim(requests, s, lists):
    """Return the place of the largest (priority, arrival); ties go to the earlier place."""
    victim = 0
    for place in range(1, s.num_running):
        a, b = requests[lists[RUNNING, place]], requests[lists[RUNNING, victim]]
        if a.priority > b.priority or (
            a.priority == b.priority and a.arrival_time > b.arrival_time
        ):
            victim = place
    return victim


@njit(forceinline=True)
def count_scheduled(p, s, r, new, sign):
    """Add what computing `new` tokens of a request costs to the step, or take it back."""
    computed = r.num_computed_tokens
    missing = r.num_prompt_tokens + r.num_output_tokens - computed
    if (missing == 1 and r.num_output_tokens > 0) or p.instant_prefill:
        s.num_decodes += sign
        s.kv_tokens += sign * computed
    else:
        s.num_prefill_tokens += sign * new
        s.attention += sign * (new * (computed + 0.5 * new))


@njit(forceinline=True)
def schedule_running(requests, e, p, s, work, lists, clients, waiting_key):
    """Give running requests their tokens, preempting when KV blocks run out.

    Returns the budget that is left and whether anybody was preempted.
    """
    most = most_tokens_per_request(p, s)
    budget = p.token_budget
    preempted = False
    s.num_prefill_tokens = s.num_decodes = s.kv_tokens = 0
    s.attention = 0.0
    place = 0
    while place < s.num_running and budget > 0:
        row = lists[RUNNING, place]
        r, w = requests[row], work[row]
        new = num_new_tokens(r, p, most, budget)
        lists[TOKENS, place] = new
        if new == 0:
            place += 1
            continue
        more = more_blocks(r.num_computed_tokens + new, w.blocks, p.block_size)
        fits = True
        while more > s.num_free_blocks:
            victim_place = s.num_running - 1
            if p.priority_victims and not p.has_victim_key:
                victim_place = find_priority_victim(requests, s, lists)
            victim = lists[RUNNING, victim_place]
            if victim_place < place:
                refund = lists[TOKENS, victim_place]
                if refund > 0:
                    count_scheduled(p, s, requests[victim], refund, -1)
                    budget += 1 if p.instant_prefill else refund
                place -= 1
            remove_running(s, lists, victim_place)
            preempt(requests, e, p, s, work, lists, clients, victim, waiting_key)
            preempted = True
            if victim == row:
                fits = False
                break
        if not fits:
            break
        s.num_free_blocks -= more
        w.blocks += more
        count_scheduled(p, s, r, new, 1)
        budget -= 1 if p.instant_prefill else new
        place += 1
    for later in range(place, s.num_running):
        lists[TOKENS, later] = 0
    return budget, preempted


@njit(forceinline=True)
def tokens_at_admission(requests, p, s, row, budget):
    """Return the tokens that a waiting request would be given now; 0 when it cannot be admitted."""
    r = requests[row]
    missing = r.num_prompt_tokens + r.num_output_tokens
    new = missing
    if not p.instant_prefill:
        new = min(missing, most_tokens_per_request(p, s))
        if new > budget and not p.chunked:
            return 0
        new = min(new, budget)
    watermark = p.watermark_blocks if s.num_running > 0 else 0
    full = missing if p.reserve_full_isl else new
    if blocks_for(full, p.block_size) + watermark > s.num_free_blocks:
        return 0
    return new


@njit(forceinline=True)
def schedule_waiting(requests, e, p, s, work, lists, clients, waiting_key, admit, budget):
    """Admit waiting requests in order until budget, seats or the first that does not fit."""
    if s.num_waiting == 0 or budget <= 0 or s.num_running + s.num_held >= p.seats:
        return
    if not p.keeps_heap and not s.keys_are_fresh:
        rank_waiting(requests, e, p, s, work, lists, clients, waiting_key, admit)
    while s.num_candidates > 0 and budget > 0 and s.num_running + s.num_held < p.seats:
        row = lists[WAITING, 0]
        new = tokens_at_admission(requests, p, s, row, budget)
        if new == 0:
            break
        s.num_candidates -= 1
        s.num_waiting -= 1
        lists[WAITING, 0] = lists[WAITING, s.num_candidates]
        lists[WAITING, s.num_candidates] = lists[WAITING, s.num_waiting]
        if s.num_candidates > 0:
            sift_down(work, lists, s.num_candidates, 0)
        r = requests[row]
        s.waiting_tokens -= r.num_prompt_tokens + r.num_output_tokens
        s.waiting_arrivals_us -= np.int64(round(r.arrival_time * 1e6))
        work[row].blocks = blocks_for(new, p.block_size)
        s.num_free_blocks -= work[row].blocks
        if np.isnan(work[row].scheduled_ts):
            work[row].scheduled_ts = s.now
            if p.reads_clients:
                clients[work[row].client].counter += r.num_prompt_tokens
        work[row].admission = s.num_admissions
        work[row].output_at_admission = r.num_output_tokens
        s.num_admissions += 1
        lists[RUNNING, s.num_running] = row
        lists[TOKENS, s.num_running] = new
        s.num_running += 1
        count_scheduled(p, s, r, new, 1)
        budget -= 1 if p.instant_prefill else new


@njit(forceinline=True)
def restore_running(s, work, lists):
    """Return what was held to `running` and `running` to admission order, with its tokens."""
    for index in range(s.num_held):
        lists[RUNNING, s.num_running] = lists[HELD, index]
        lists[TOKENS, s.num_running] = 0
        s.num_running += 1
    s.num_held = 0
    s.out_of_order = False
    num_running = s.num_running
    admissions = np.empty(num_running, np.int64)
    tokens = lists[TOKENS, :num_running].copy()
    for place in range(num_running):
        lists[SCRATCH, place] = lists[RUNNING, place]
        admissions[place] = work[lists[RUNNING, place]].admission
    order = np.argsort(admissions)
    for place in range(num_running):
        lists[RUNNING, place] = lists[SCRATCH, order[place]]
        lists[TOKENS, place] = tokens[order[place]]


@njit(forceinline=True)
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


@njit(forceinline=True)
def finish(p, s, w, clients):
    """Free what a request holds that has produced its last token."""
    w.finished_ts = s.now
    s.num_free_blocks += w.blocks
    w.blocks = 0
    s.num_finished += 1
    s.steps_at_finish = s.num_steps
    if p.reads_clients:
        clients[w.client].active -= 1


@njit(forceinline=True)
def emit_token(r, p, s, w, clients, itl):
    """Give a request its next output token at `now`; tell whether that was its last."""
    now = s.now
    if r.num_output_tokens > 0:
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
    finish(p, s, w, clients)
    return True


@njit(forceinline=True)
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


@njit(forceinline=True)
def complete_step(
    requests, e, p, s, work, lists, clients, itl, log_steps, log_tokens, log_preemptions
):
    """Let the step take its time, then hand out tokens and free what has finished.

    Returns the number of requests that were given tokens.
    """
    seconds = step_seconds(p, s.num_prefill_tokens, s.num_decodes, s.kv_tokens, s.attention)
    if log_steps.shape[0] > 0:
        log_step(e, s, lists, log_steps, log_tokens, log_preemptions, seconds)
    s.num_preempted = 0
    if s.num_held > 0 or s.out_of_order:
        restore_running(s, work, lists)
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
                if emit_token(r, p, s, work[row], clients, itl):
                    continue
                s.num_decoding += 1
        lists[RUNNING, kept] = row
        kept += 1
    s.num_running = kept
    s.num_entries += num_scheduled
    if s.num_waiting == 0:
        s.peak_backlog_time = 0.0
    return num_scheduled


@njit(forceinline=True)
def nobody_fits(requests, p, s, lists):
    """Tell whether no waiting request could be admitted beside a batch of decodes."""
    if s.num_waiting == 0 or (s.num_running >= p.seats and not p.preemptive):
        return True
    if p.preemptive:
        return False
    budget = p.token_budget - s.num_running
    if budget <= 0:
        return True
    num_tried = 1 if p.keeps_heap else s.num_waiting  # the head of a heap stays the head
    for place in range(num_tried):
        if tokens_at_admission(requests, p, s, lists[WAITING, place], budget) > 0:
            return False
    return True


@njit(forceinline=True)
def jump(requests, p, s, work, lists, clients, itl, residues):
    """Take all steps up to the next event at once, when the batch is decodes that cannot change.

    Events are an arrival, a finish, KV blocks running out and the horizon; what finishes in the
    last step is freed. Step times are added
    one by one in the stepping expression: a closed form drifts and can flip a boundary. Returns
    whether any step was taken.
    """
    num_running = s.num_running
    if num_running == 0 or s.num_decoding < num_running or num_running > p.token_budget:
        return False
    if not nobody_fits(requests, p, s, lists):
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
    next_arrival = np.inf
    if s.next_row < requests.shape[0]:
        next_arrival = requests[s.next_row].arrival_time
    num_steps = 0
    residue = 0  # tokens that still fit into the last block; at 0 one more is needed
    while num_steps < most_steps and s.now < next_arrival and s.now < p.horizon:
        if residues[residue] > s.num_free_blocks:
            break
        s.num_free_blocks -= residues[residue]
        residue = 0 if residue == p.block_size - 1 else residue + 1
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
            finish(p, s, w, clients)
            continue
        lists[RUNNING, kept] = row
        kept += 1
    s.num_running = s.num_decoding = kept
    return True


@njit(_RUN, cache=True, nogil=True)
def run(
    requests,
    engine,
    settings,
    state,
    work,
    lists,
    clients,
    itl,
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
        take_arrivals(requests, e, p, s, work, lists, clients, waiting_key)
        if p.jump and not p.has_hold and jump(requests, p, s, work, lists, clients, itl, residues):
            continue

        observe(requests, e, p, s, lists)
        s.keys_are_fresh = False
        if p.has_hold:
            set_aside_held(requests, e, p, s, work, lists, clients, hold)
        if p.preemptive and s.num_waiting > 0 and s.num_running + s.num_held >= p.seats:
            displace(requests, e, p, s, work, lists, clients, waiting_key, admit)
        if p.has_victim_key and order_matters(requests, p, s, work, lists):
            order_by_victim_key(requests, e, p, s, work, lists, clients, victim_key)
        budget, preempted = schedule_running(requests, e, p, s, work, lists, clients, waiting_key)
        if not preempted:
            schedule_waiting(requests, e, p, s, work, lists, clients, waiting_key, admit, budget)

        num_scheduled = complete_step(
            requests, e, p, s, work, lists, clients, itl, log_steps, log_tokens, log_preemptions
        )
        num_empty_steps = 0 if num_scheduled > 0 else num_empty_steps + 1
        if num_empty_steps >= MAX_EMPTY_STEPS:
            return STALLED
        if s.num_steps - s.steps_at_finish > MAX_STEPS_WITHOUT_FINISH + 10 * p.max_model_len:
            return LIVELOCK
    return FINISHED

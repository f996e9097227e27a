"""Compiled: who waits, in which order, and who is admitted.

`waiting` is a list of rows whose first `num_candidates` are a heap by (key, row). Where keys cannot
change while a request waits the heap is kept from step to step; otherwise it is built anew.
"""

import numpy as np
from numba import njit

from queuesmith.engine.kernel.kv_blocks import (
    blocks_for,
    find_hits,
    remember_blocks,
    share_blocks,
    take_blocks,
)
from queuesmith.engine.kernel.state import ADMIT, RUNNING, TOKENS, WAITING, WAITING_KEY


@njit(forceinline=True, _nrt=False)
def comes_before(work, row, other):
    """Tell whether `row` is admitted before `other`: by key, then by arrival, which is the row."""
    key, other_key = work[row].key, work[other].key
    return key < other_key or (key == other_key and row < other)


@njit(forceinline=True, _nrt=False)
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


@njit(forceinline=True, _nrt=False)
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


@njit(forceinline=True, _nrt=False)
def show(k, hook, row):
    """Bring a row up to date that a hook is about to be asked about."""
    p, s = k.settings, k.state
    s.allowance -= 1
    s.fault_hook = hook
    s.fault_row = row
    if p.reads_clients:
        k.requests[row].client_tokens = k.clients[k.work[row].client].counter
    if p.reads_prefill:
        since = s.prefill_tokens - k.work[row].prefill_at_arrival
        k.requests[row].prefill_tokens_since_arrival = since


@njit(forceinline=True, _nrt=False)
def ask_key(k, hook, row, key):
    """Ask a key hook about one row; NaN counts as +inf."""
    show(k, hook, row)
    value = key(k.requests[row], k.engine)
    return np.inf if np.isnan(value) else value


@njit(forceinline=True, _nrt=False)
def ask_flag(k, hook, row, flag):
    """Ask `admit` or `hold` about one row."""
    show(k, hook, row)
    return flag(k.requests[row], k.engine)


@njit(forceinline=True, _nrt=False)
def arrival_us(requests, r):
    """Return whole microseconds from the first arrival: since 1970 their sum would overflow."""
    return np.int64(round((r.arrival_time - requests[0].arrival_time) * 1e6))


@njit(forceinline=True, _nrt=False)
def enter_waiting(k, row):
    """Add a request, new or preempted, to `waiting`."""
    p, s = k.settings, k.state
    work = k.work
    r = k.requests[row]
    num_hits, _ = find_hits(r, p, work[row], k.pool, k.contents, k.tables)
    r.num_uncached_tokens = r.num_prompt_tokens + r.num_output_tokens - num_hits * p.block_size
    s.waiting_tokens += r.num_uncached_tokens
    s.waiting_arrivals_us += arrival_us(k.requests, r)
    k.lists[WAITING, s.num_waiting] = row
    s.num_waiting += 1
    if p.keeps_heap:
        work[row].key = ask_key(k, WAITING_KEY, row, k.waiting_key)
        s.num_candidates = s.num_waiting
        sift_up(work, k.lists, s.num_waiting - 1)


@njit(_nrt=False)
def find_waiting(s, lists, row):
    """Return the place of a request in `waiting`."""
    place = 0
    while lists[WAITING, place] != row:
        place += 1
    return place


@njit(_nrt=False)
def leave_waiting(k, row):
    """Take a request that has ended off `waiting`, between steps."""
    s = k.state
    requests, lists = k.requests, k.lists
    place = find_waiting(s, lists, row)
    s.num_waiting -= 1
    lists[WAITING, place] = lists[WAITING, s.num_waiting]
    s.waiting_tokens -= requests[row].num_uncached_tokens
    s.waiting_arrivals_us -= arrival_us(requests, requests[row])
    if k.settings.keeps_heap:
        s.num_candidates = s.num_waiting
        if place < s.num_waiting:
            sift_up(k.work, lists, place)
            sift_down(k.work, lists, s.num_waiting, place)


@njit(_nrt=False)
def grow_waiting(k, row):
    """Take note of a token that came for a request after its preemption."""
    s = k.state
    work, lists = k.work, k.lists
    k.requests[row].num_uncached_tokens += 1
    s.waiting_tokens += 1
    if k.settings.keeps_heap:
        work[row].key = ask_key(k, WAITING_KEY, row, k.waiting_key)
        place = find_waiting(s, lists, row)
        sift_up(work, lists, place)
        sift_down(work, lists, s.num_waiting, place)


@njit(forceinline=True, _nrt=False)
def pop_candidate(k):
    """Take the first candidate out of the heap, for this step; it goes on waiting."""
    s = k.state
    lists = k.lists
    s.num_candidates -= 1
    row = lists[WAITING, 0]
    lists[WAITING, 0] = lists[WAITING, s.num_candidates]
    lists[WAITING, s.num_candidates] = row
    sift_down(k.work, lists, s.num_candidates, 0)


@njit(forceinline=True, _nrt=False)
def rank_waiting(k):
    """Bring admissible requests to the front of `waiting`, as a heap by (key, arrival, row)."""
    s = k.state
    lists = k.lists
    s.num_candidates = s.num_waiting
    if k.settings.has_admit:
        place = 0
        while place < s.num_candidates:
            if ask_flag(k, ADMIT, lists[WAITING, place], k.admit):
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
        k.work[row].key = ask_key(k, WAITING_KEY, row, k.waiting_key)
    for place in range(s.num_candidates // 2 - 1, -1, -1):
        sift_down(k.work, lists, s.num_candidates, place)
    s.keys_are_fresh = True


@njit(forceinline=True, _nrt=False)
def note_backlog(s):
    """Keep the largest backlog since `waiting` was last empty, and return the present one, s."""
    token_rate = 1.0 if np.isnan(s.token_rate) else s.token_rate
    backlog_time = s.waiting_tokens / token_rate
    s.peak_backlog_time = max(s.peak_backlog_time, backlog_time)
    return backlog_time


@njit(forceinline=True, _nrt=False)
def observe(k):
    """Write the engine row that all hooks of this step see."""
    e, p, s = k.engine, k.settings, k.state
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
        e.mean_wait = max(s.now - k.requests[0].arrival_time - mean_arrival, 0.0)
        if p.reads_oldest_wait:
            oldest = k.lists[WAITING, 0]
            for place in range(1, s.num_waiting):
                oldest = min(oldest, k.lists[WAITING, place])
            e.oldest_wait = s.now - k.requests[oldest].arrival_time
    e.step_time = s.step_time
    e.token_rate = 1.0 if np.isnan(s.token_rate) else s.token_rate
    e.recent_ttft = 1.0 if np.isnan(s.recent_ttft) else s.recent_ttft
    e.arrival_rate = 1.0 / s.mean_gap if s.mean_gap > 0.0 else 1.0
    e.mean_prompt_tokens = s.prompt_tokens_accepted / max(s.num_accepted, 1)
    e.backlog_time = note_backlog(s)
    e.peak_backlog_time = s.peak_backlog_time


@njit(forceinline=True, _nrt=False)
def most_tokens_per_request(p, s):
    """Return the most tokens that one request may compute in this step."""
    num_present = s.num_waiting + s.num_running + s.num_held
    threshold = p.long_prefill_token_threshold
    if threshold <= 0 or (num_present <= 1 and not p.limits_lone_prefill):
        return p.max_model_len
    if p.threshold_adaptive:
        threshold = max(threshold, p.max_num_batched_tokens // num_present)
    return threshold


@njit(forceinline=True, _nrt=False)
def count_scheduled(p, s, r, w, new, sign):
    """Add what computing `new` tokens of a request costs to the step, or take it back."""
    computed = r.num_computed_tokens
    num_output_tokens = r.num_output_tokens + w.placeholders
    missing = r.num_prompt_tokens + num_output_tokens - computed
    if (missing == 1 and num_output_tokens > 0) or p.instant_prefill:
        s.num_decodes += sign
        s.kv_tokens += sign * computed
    else:
        s.num_prefill_tokens += sign * new
        s.attention += sign * (new * (computed + 0.5 * new))


@njit(forceinline=True, _nrt=False)
def tokens_at_admission(r, p, s, num_hits, num_idle_hits, budget):
    """Return the tokens that a waiting request would be given now; 0 when it cannot be admitted."""
    num_tokens = r.num_prompt_tokens + r.num_output_tokens
    cached = num_hits * p.block_size
    new = num_tokens - cached
    if not p.instant_prefill:
        new = min(new, most_tokens_per_request(p, s))
        if new > budget and not p.chunked:
            return 0
        new = min(new, budget)
    watermark = p.watermark_blocks if s.num_running > 0 else 0
    whole = num_tokens if p.reserve_full_isl else cached + new
    # Hits that nobody holds sit among the free blocks and will not be free any more.
    needed = blocks_for(whole, p.block_size) - num_hits + num_idle_hits
    return 0 if needed + watermark > s.num_free_blocks else new


@njit(forceinline=True, _nrt=False)
def schedule_waiting(k, budget):
    """Admit waiting requests in order until budget, seats or the first that does not fit."""
    p, s = k.settings, k.state
    work, lists = k.work, k.lists
    if s.num_waiting == 0 or budget <= 0 or s.num_running + s.num_held >= p.seats:
        return
    if not p.keeps_heap and not s.keys_are_fresh:
        rank_waiting(k)
    while s.num_candidates > 0 and budget > 0 and s.num_running + s.num_held < p.seats:
        row = lists[WAITING, 0]
        r, w = k.requests[row], work[row]
        if w.stale_tokens > 0:  # vLLM passes it over until the token that is under way has come
            pop_candidate(k)
            continue
        num_hits, num_idle_hits = find_hits(r, p, w, k.pool, k.contents, k.tables)
        new = tokens_at_admission(r, p, s, num_hits, num_idle_hits, budget)
        if new == 0:
            break
        s.num_candidates -= 1
        s.num_waiting -= 1
        lists[WAITING, 0] = lists[WAITING, s.num_candidates]
        lists[WAITING, s.num_candidates] = lists[WAITING, s.num_waiting]
        if s.num_candidates > 0:
            sift_down(work, lists, s.num_candidates, 0)
        s.waiting_tokens -= r.num_uncached_tokens
        s.waiting_arrivals_us -= arrival_us(k.requests, r)
        if p.caching:
            cached = num_hits * p.block_size
            share_blocks(k, w, num_hits)
            r.num_computed_tokens = cached
            s.num_cached_tokens += cached
            if r.num_preemptions > 0:
                s.num_recomputed_tokens -= cached
        more = blocks_for(r.num_computed_tokens + new, p.block_size) - w.blocks
        take_blocks(k, w, more)
        remember_blocks(k, w, r.num_computed_tokens + new)
        if np.isnan(w.scheduled_ts):
            w.scheduled_ts = s.now
            if p.reads_clients:
                k.clients[w.client].counter += r.num_prompt_tokens
        w.admission = s.num_admissions
        w.output_at_admission = r.num_output_tokens
        s.num_admissions += 1
        lists[RUNNING, s.num_running] = row
        lists[TOKENS, s.num_running] = new
        s.num_running += 1
        count_scheduled(p, s, r, w, new, 1)
        budget -= 1 if p.instant_prefill else new
    while p.keeps_heap and s.num_candidates < s.num_waiting:  # who was passed over returns
        s.num_candidates += 1
        sift_up(work, lists, s.num_candidates - 1)


@njit(forceinline=True, _nrt=False)
def nobody_fits(k):
    """Tell whether no waiting request could be admitted beside a batch of decodes."""
    p, s = k.settings, k.state
    if s.num_waiting == 0 or (s.num_running >= p.seats and not p.preemptive):
        return True
    if p.preemptive:
        return False
    budget = p.token_budget - s.num_running
    if budget <= 0:
        return True
    num_tried = 1 if p.keeps_heap else s.num_waiting  # the head of a heap stays the head
    for place in range(num_tried):
        row = k.lists[WAITING, place]
        r = k.requests[row]
        num_hits, num_idle_hits = find_hits(r, p, k.work[row], k.pool, k.contents, k.tables)
        if tokens_at_admission(r, p, s, num_hits, num_idle_hits, budget) > 0:
            return False
    return True

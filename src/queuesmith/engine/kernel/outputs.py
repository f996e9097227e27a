"""Compiled: a step takes its time, its tokens are handed out, and what has finished is freed.

`complete_step` does that for a step that has just been scheduled. Under asynchronous scheduling
`put_under_way` keeps what was scheduled while the step before it is computed, and `deliver` hands
its tokens out when its own turn is over.
"""

import numpy as np
from numba import njit

from queuesmith.engine.kernel.client_events import take_aborts
from queuesmith.engine.kernel.kv_blocks import give_back_blocks, remember_blocks
from queuesmith.engine.kernel.running import restore_running
from queuesmith.engine.kernel.state import (
    FIRST_STEP,
    NUM_STEP_LISTS,
    PREEMPTED,
    RUNNING,
    STEP_BUDGET,
    STEP_IS_WHOLE,
    STEP_ROWS,
    STEP_TOKENS,
    TOKENS,
)
from queuesmith.engine.kernel.waiting import grow_waiting, leave_waiting
from queuesmith.request import AVERAGE_WEIGHT


@njit(forceinline=True, _nrt=False)
def step_seconds(p, num_prefill_tokens, num_decodes, kv_tokens, attention):
    """Return the seconds of one step; the formula of `StepTime.seconds`, term by term."""
    num_tokens = num_prefill_tokens + num_decodes
    seconds = p.a + p.b1 * min(num_tokens, p.t0)
    seconds += p.b2 * max(num_tokens - p.t0, 0.0)
    seconds += p.c * num_decodes + p.d * kv_tokens + p.e * attention
    if num_prefill_tokens > 0:
        seconds += p.f
    return max(seconds, p.least_seconds)


@njit(forceinline=True, _nrt=False)
def note_state(s):
    """Note what can be seen of the engine from here to the end of the step that is computed."""
    s.seen_waiting = s.num_waiting
    s.seen_running = s.num_running + s.num_held
    s.seen_waiting_tokens = s.waiting_tokens
    s.seen_free_blocks = s.num_free_blocks


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
def begin_delivery(s):
    """Begin to count what comes at the end of a step, `now`."""
    s.num_finished_now = s.first_prompt_tokens_now = s.num_left = 0


@njit(forceinline=True, _nrt=False)
def finish(k, w):
    """Free what a request holds that has produced its last token."""
    s = k.state
    w.finished_ts = s.now
    w.ended = True
    s.num_finished_now += 1
    give_back_blocks(k, w)
    s.num_ended += 1
    s.steps_at_end = s.num_steps
    if k.settings.reads_clients:
        k.clients[w.client].active -= 1


@njit(forceinline=True, _nrt=False)
def note_token(r, s, w, itl):
    """Note that a request has its first token `now`, or how long after its last one it has it."""
    if r.num_output_tokens > 0:
        count_gap(s, itl, s.now - r.last_token_ts, 1)
        return
    w.first_token_ts = s.now
    s.queued_prompt_tokens -= r.num_prompt_tokens
    s.first_prompt_tokens_now += r.num_prompt_tokens
    ttft = s.now - r.arrival_time
    if np.isnan(s.recent_ttft):
        s.recent_ttft = ttft
    else:
        s.recent_ttft += AVERAGE_WEIGHT * (ttft - s.recent_ttft)


@njit(forceinline=True, _nrt=False)
def emit_token(k, r, w, before):
    """Give a request its next output token at `now`; tell whether that was its last.

    Most had one at the start of the step, `before`: those gaps are counted together.
    """
    s = k.state
    if r.num_output_tokens > 0 and r.last_token_ts == before:
        s.num_usual_gaps += 1
    else:
        note_token(r, s, w, k.itl)
    r.num_output_tokens += 1
    r.last_token_ts = s.now
    if k.settings.reads_clients:
        k.clients[w.client].counter += 2.0
    if r.num_output_tokens < w.output_len:
        return False
    finish(k, w)
    return True


@njit(_nrt=False)
def log_step(k, start, seconds):
    """Record the step: what was scheduled and what was preempted, in the order it happened."""
    e, s = k.engine, k.state
    lists = k.lists
    step = k.log_steps[s.num_steps]
    step.scheduled = s.now
    step.start = start
    step.duration = seconds
    step.num_prefill_tokens = s.num_prefill_tokens
    step.num_decodes = s.num_decodes
    step.num_waiting = e.num_waiting
    step.num_running = e.num_running
    step.num_free_blocks = s.num_free_blocks
    entry = s.num_entries
    for place in range(s.num_running):
        if lists[TOKENS, place] > 0:
            k.log_tokens[entry, 0] = lists[RUNNING, place]
            k.log_tokens[entry, 1] = lists[TOKENS, place]
            entry += 1
    step.end_entry = entry
    for index in range(s.num_preempted):
        k.log_preemptions[s.num_preemptions - s.num_preempted + index] = lists[PREEMPTED, index]
    step.end_preemption = s.num_preemptions


@njit(_nrt=False)
def give_back_in_order_of_budget(k):
    """Free what finishes in this step in the order in which vLLM does, that of the step.

    Tokens are handed out in order of admission; only the ring of free blocks knows the difference.
    """
    for place in range(k.state.num_running):
        row = k.lists[RUNNING, place]
        r, w = k.requests[row], k.work[row]
        missing = r.num_prompt_tokens + r.num_output_tokens - r.num_computed_tokens
        if k.lists[TOKENS, place] == missing and r.num_output_tokens + 1 == w.output_len:
            give_back_blocks(k, w)


@njit(forceinline=True, _nrt=False)
def count_prefill(s, num_prefill_tokens, seconds):
    """Count the prefill tokens of a step that has ended, and how fast they came."""
    if num_prefill_tokens > 0:
        s.prefill_tokens += num_prefill_tokens
        rate = num_prefill_tokens / seconds if seconds > 0.0 else np.inf
        if np.isnan(s.token_rate):
            s.token_rate = rate
        else:
            s.token_rate += AVERAGE_WEIGHT * (rate - s.token_rate)


@njit(forceinline=True, _nrt=False)
def complete_step(k):
    """Let the step take its time, then hand out tokens and free what has finished.

    Returns the number of requests that were scheduled.
    """
    p, s = k.settings, k.state
    lists = k.lists
    seconds = step_seconds(p, s.num_prefill_tokens, s.num_decodes, s.kv_tokens, s.attention)
    if k.log_steps.shape[0] > 0:
        log_step(k, s.now, seconds)
    s.num_preempted = 0
    before = s.now
    s.now += seconds
    begin_delivery(s)
    s.num_steps += 1
    num_scheduled = 0
    if s.next_abort < s.num_aborts:  # whoever gives up now was computed for all the same
        num_scheduled = take_aborts(k)
    if p.caching and s.out_of_order:
        give_back_in_order_of_budget(k)
    if s.num_held > 0 or s.out_of_order:
        restore_running(k)
    count_prefill(s, s.num_prefill_tokens, seconds)
    kept = 0
    s.num_decoding = 0
    for place in range(s.num_running):
        row = lists[RUNNING, place]
        new = lists[TOKENS, place]
        if new > 0:
            r = k.requests[row]
            num_scheduled += 1
            s.num_computed_tokens += new
            r.num_computed_tokens += new
            if r.num_computed_tokens == r.num_prompt_tokens + r.num_output_tokens:
                if emit_token(k, r, k.work[row], before):
                    continue
                s.num_decoding += 1
        lists[RUNNING, kept] = row
        kept += 1
    if s.num_usual_gaps > 0:
        count_gap(s, k.itl, s.now - before, s.num_usual_gaps)
        s.num_usual_gaps = 0
    s.num_running = kept
    if num_scheduled > 0:
        s.step_time = seconds
    s.num_entries += num_scheduled
    if s.num_waiting == 0:
        s.peak_backlog_time = 0.0
    return num_scheduled


@njit(forceinline=True, _nrt=False)
def is_whole_with(r, w, new):
    """Tell whether all tokens of a request are computed, or under way to be, with `new` more."""
    return r.num_computed_tokens + new >= r.num_prompt_tokens + r.num_output_tokens + w.placeholders


@njit(_nrt=False)
def put_under_way(k, first):
    """Keep what was scheduled, in lists from `first` on; its tokens count as computed from now on.

    Returns the requests of the step, those whose tokens are all computed by it, and its seconds: 0
    when there is nothing to compute.
    """
    p, s = k.settings, k.state
    lists = k.lists
    if p.caching:
        num_whole = 0
        for place in range(s.num_running):  # in order of budget
            row, new = lists[RUNNING, place], lists[TOKENS, place]
            if new > 0 and is_whole_with(k.requests[row], k.work[row], new):
                lists[first + STEP_BUDGET, num_whole] = row
                num_whole += 1
    if s.num_held > 0 or s.out_of_order:
        restore_running(k)
    num_scheduled = 0
    s.num_decoding = 0
    for place in range(s.num_running):
        row, new = lists[RUNNING, place], lists[TOKENS, place]
        if new == 0:
            continue
        r, w = k.requests[row], k.work[row]
        is_whole = is_whole_with(r, w, new)
        lists[first + STEP_ROWS, num_scheduled] = row
        lists[first + STEP_TOKENS, num_scheduled] = new
        lists[first + STEP_IS_WHOLE, num_scheduled] = is_whole
        s.num_computed_tokens += new
        r.num_computed_tokens += new
        w.tokens_under_way += new
        w.placeholders += is_whole
        s.num_decoding += is_whole
        num_scheduled += 1
    seconds = 0.0
    if num_scheduled > 0:
        seconds = step_seconds(p, s.num_prefill_tokens, s.num_decodes, s.kv_tokens, s.attention)
    if k.log_steps.shape[0] > 0:
        start = s.now + s.seconds_under_way if s.is_under_way else s.now
        log_step(k, start, seconds)
    s.num_preempted = 0
    s.num_steps += 1
    s.num_entries += num_scheduled
    return num_scheduled, s.num_decoding, seconds


@njit(forceinline=True, _nrt=False)
def deliver(k):
    """Let the step that is under way take its time, and hand out its tokens."""
    s = k.state
    work, lists = k.work, k.lists
    first = s.under_way
    before = s.now
    s.now += s.seconds_under_way
    begin_delivery(s)
    if s.next_abort < s.num_aborts:
        take_aborts(k)
    count_prefill(s, s.prefill_under_way, s.seconds_under_way)
    if s.num_under_way > 0:
        s.step_time = s.seconds_under_way
    if (
        k.settings.caching
    ):  # blocks are filled and freed in order of budget; others find them in that order
        for place in range(s.num_whole_under_way):
            row = lists[first + STEP_BUDGET, place]
            r, w = k.requests[row], work[row]
            if w.ended or w.stale_tokens > 0:
                continue
            known = r.num_computed_tokens - (w.placeholders - 1)
            remember_blocks(k, w, known)
            if r.num_output_tokens + 1 == w.output_len:
                give_back_blocks(k, w)
    num_ended = s.num_ended
    for place in range(s.num_under_way):
        row = lists[first + STEP_ROWS, place]
        r, w = k.requests[row], work[row]
        if w.ended:
            continue
        w.tokens_under_way -= lists[first + STEP_TOKENS, place]
        is_stale = w.stale_tokens > 0  # it was preempted since, and waits
        if is_stale:
            w.stale_tokens -= lists[first + STEP_TOKENS, place]
        if lists[first + STEP_IS_WHOLE, place] == 0:
            continue
        if not is_stale:
            w.placeholders -= 1
        has_finished = emit_token(k, r, w, before)
        if is_stale and has_finished:
            leave_waiting(k, row)
        elif is_stale:
            grow_waiting(k, row)
        elif has_finished:
            s.num_decoding -= w.placeholders
    if s.num_usual_gaps > 0:
        count_gap(s, k.itl, s.now - before, s.num_usual_gaps)
        s.num_usual_gaps = 0
    if s.num_ended > num_ended:
        kept = 0
        for place in range(s.num_running):
            row = lists[RUNNING, place]
            if not work[row].ended:
                lists[RUNNING, kept] = row
                kept += 1
        s.num_running = kept
    if s.num_waiting == 0:
        s.peak_backlog_time = 0.0


@njit(forceinline=True, _nrt=False)
def overlap(k, is_scheduled):
    """Hand out the step that is under way, and let the one just scheduled, if any, follow it.

    Returns the number of requests in both.
    """
    s = k.state
    num_scheduled = num_whole = num_prefill_tokens = 0
    seconds = 0.0
    first = 2 * FIRST_STEP + NUM_STEP_LISTS - s.under_way  # of the two, the other one
    if is_scheduled:
        num_scheduled, num_whole, seconds = put_under_way(k, first)
        num_prefill_tokens = s.num_prefill_tokens
    num_delivered = 0
    if s.is_under_way:
        num_delivered = s.num_under_way
        deliver(k)
    s.is_under_way = is_scheduled
    s.under_way = first
    s.num_under_way = num_scheduled
    s.num_whole_under_way = num_whole
    s.seconds_under_way = seconds
    s.prefill_under_way = num_prefill_tokens
    return num_scheduled + num_delivered

"""Compiled: many steps at once, where a batch of decodes cannot change."""

import numpy as np
from numba import njit

from queuesmith.engine.kernel.client_events import next_abort_time
from queuesmith.engine.kernel.kv_blocks import more_blocks
from queuesmith.engine.kernel.outputs import (
    begin_delivery,
    count_gap,
    count_prefill,
    finish,
    note_state,
    note_token,
    step_seconds,
)
from queuesmith.engine.kernel.state import (
    RUNNING,
    STEP_BUDGET,
    STEP_IS_WHOLE,
    STEP_ROWS,
    STEP_TOKENS,
)
from queuesmith.engine.kernel.waiting import nobody_fits, note_backlog


@njit(forceinline=True, _nrt=False)
def can_jump(k):
    """Tell whether everybody in `running` decodes, with nobody to be admitted beside them.

    If scheduling is asynchronous, the step under way gives each of them a token.
    """
    p, s = k.settings, k.state
    if s.num_running == 0 or s.num_decoding < s.num_running or s.num_running > p.token_budget:
        return False
    if p.async_scheduling and p.caching and p.has_victim_key:
        return False  # blocks are filled and freed in another order than that of `running`
    return nobody_fits(k)


@njit(forceinline=True, _nrt=False)
def is_ending_after(r, w, num_steps):
    """Tell whether the token that comes `num_steps` from now is the last that may come."""
    return w.output_len == r.max_tokens and r.num_output_tokens + num_steps == w.output_len


@njit(forceinline=True, _nrt=False)
def note_unusual_tokens(k, before):
    """Note first tokens, and gaps of those whose token before did not come at `before`."""
    s = k.state
    requests = k.requests
    for place in range(s.num_running):
        row = k.lists[RUNNING, place]
        if requests[row].num_output_tokens == 0 or requests[row].last_token_ts != before:
            note_token(requests[row], s, k.work[row], k.itl)


@njit(forceinline=True, _nrt=False)
def jump(k):
    """Take all steps up to the next event at once, when the batch is decodes that cannot change.

    Events are an arrival, a client that gives up, a finish, KV blocks running out and `until`;
    what finishes in the last step is freed. Step times are added one by one in the stepping
    expression: a closed form drifts and can flip a boundary. Under asynchronous scheduling each
    round schedules a step and hands out the tokens of the one before it, and the last may leave out
    who is ending. Returns whether any step was taken.
    """
    p, s = k.settings, k.state
    requests, work, lists = k.requests, k.work, k.lists
    residues = k.residues
    if not can_jump(k):
        return False
    num_running, is_async = s.num_running, p.async_scheduling
    residues[:] = 0
    kv_tokens = 0
    most_steps = np.int64(2**62)
    num_ending = num_unusual = 0
    for place in range(num_running):
        row = lists[RUNNING, place]
        r = requests[row]
        residues[work[row].blocks * p.block_size - r.num_computed_tokens] += 1
        kv_tokens += r.num_computed_tokens
        remaining = work[row].output_len - r.num_output_tokens
        if remaining < most_steps:
            most_steps = remaining
            num_ending = 0
        if is_async:
            num_ending += remaining == most_steps and work[row].output_len == r.max_tokens
            num_unusual += r.num_output_tokens == 0 or r.last_token_ts != s.now
    if p.caching or (num_ending > 0 and s.num_waiting > 0 and num_running < p.seats):
        # The order in which requests free their blocks matters, or what they leave of the budget
        # could be for who waits: `run` knows.
        most_steps -= 1
        num_ending = 0
    next_arrival = np.inf
    if s.next_row < s.num_rows:
        next_arrival = requests[s.next_row].arrival_time
    next_abort = next_abort_time(k)
    caching, until, block_size = p.caching, s.until, p.block_size
    note_backlog(s)
    num_decodes = num_running
    num_steps = 0
    residue = 0  # tokens that still fit into the last block; at 0 one more is needed
    while num_steps < most_steps and s.now < next_arrival and s.now < until:
        if num_ending > 0 and num_steps == most_steps - 1:
            for place in range(num_running):
                r, w = requests[lists[RUNNING, place]], work[lists[RUNNING, place]]
                if is_ending_after(r, w, most_steps):
                    residues[(w.blocks * block_size - r.num_computed_tokens) % block_size] -= 1
                    kv_tokens -= r.num_computed_tokens + num_steps
            num_decodes -= num_ending
        if residues[residue] > s.num_free_blocks:
            break
        next_residue = 0 if residue == block_size - 1 else residue + 1
        if caching and (residues[residue] > 0 or residues[next_residue] > 0):
            break  # blocks are taken or filled: which ones matters, so this step is for `run`
        scheduled = step_seconds(p, 0, num_decodes, kv_tokens, 0.0) if num_decodes > 0 else 0.0
        seconds = s.seconds_under_way if is_async else scheduled
        if s.now + seconds >= next_abort:
            break  # whoever gives up meanwhile gets no token of this step
        s.num_free_blocks -= residues[residue]
        residue = next_residue
        before = s.now
        s.now += seconds
        s.step_time = seconds
        begin_delivery(s)
        count_gap(s, k.itl, s.now - before, num_running - num_unusual)
        if is_async:
            s.seconds_under_way = scheduled
            count_prefill(s, s.prefill_under_way, seconds)
            s.prefill_under_way = 0
            if num_unusual > 0:
                note_unusual_tokens(k, before)
                num_unusual = 0
        kv_tokens += num_running
        num_steps += 1
    if num_steps == 0:
        return False
    if num_steps < most_steps:
        num_ending = 0
    s.num_steps += num_steps
    s.num_jumps += 1
    s.num_computed_tokens += num_steps * num_running - num_ending
    s.num_entries += num_steps * num_running - num_ending
    if num_steps > 1:
        note_backlog(s)  # the first step may have changed the rate
    note_state(s)
    kept = num_under_way = 0
    for place in range(num_running):
        row = lists[RUNNING, place]
        r, w = requests[row], work[row]
        r.num_computed_tokens += num_steps
        if num_ending > 0 and is_ending_after(r, w, num_steps):
            r.num_computed_tokens -= 1
            w.placeholders = 0
        elif is_async:
            lists[s.under_way + STEP_ROWS, num_under_way] = row
            lists[s.under_way + STEP_TOKENS, num_under_way] = 1
            lists[s.under_way + STEP_IS_WHOLE, num_under_way] = 1
            lists[s.under_way + STEP_BUDGET, num_under_way] = row
            num_under_way += 1
            w.tokens_under_way = 1
        r.num_output_tokens += num_steps
        r.last_token_ts = s.now
        w.blocks += more_blocks(r.num_computed_tokens, w.blocks, block_size)
        if p.reads_clients:
            k.clients[w.client].counter += 2.0 * num_steps
        if r.num_output_tokens == w.output_len:
            finish(k, w)
            continue
        lists[RUNNING, kept] = row
        kept += 1
    s.num_under_way = s.num_whole_under_way = num_under_way
    s.num_running = s.num_decoding = kept
    if s.num_waiting == 0:
        s.peak_backlog_time = 0.0
    return True

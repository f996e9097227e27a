"""Compiled: what clients send, a request or that they have given up, in order of time."""

import numpy as np
from numba import njit

from queuesmith.engine.kernel.kv_blocks import find_hits, give_back_blocks
from queuesmith.engine.kernel.running import leave_running
from queuesmith.engine.kernel.state import ABORTS, LEFT, REJECT
from queuesmith.engine.kernel.waiting import ask_flag, enter_waiting, leave_waiting, observe
from queuesmith.request import AVERAGE_WEIGHT


@njit(_nrt=False)
def exceeds_limits(k, row):
    """Tell whether vLLM's API server turns an arrival away, by what it knew at that time.

    It has met all messages since, and has heard of what came at the ends of steps until then: what
    came `now` it had not heard of, unless the request comes `now` as well.
    """
    p, s = k.settings, k.state
    arrival_time = k.requests[row].arrival_time
    num_unfinished = s.next_row - 1 - s.num_ended
    queued_tokens = s.queued_prompt_tokens
    if arrival_time < s.now:
        num_unfinished += s.num_finished_now
        queued_tokens += s.first_prompt_tokens_now
        for place in range(s.num_left):
            other = k.lists[LEFT, place]
            if k.work[other].abort_time >= arrival_time:
                num_unfinished += 1
                if np.isnan(k.work[other].first_token_ts):
                    queued_tokens += k.requests[other].num_prompt_tokens
    return num_unfinished >= p.max_num_queued_reqs or queued_tokens >= p.max_num_queued_tokens


@njit(forceinline=True, _nrt=False)
def is_rejected(k, row):
    """Tell whether an arrival is turned away, by vLLM's limits or by the policy."""
    p = k.settings
    requests = k.requests
    if p.has_limits and exceeds_limits(k, row):
        return True
    if not p.has_reject:
        return False
    observe(k)
    num_hits, _ = find_hits(requests[row], p, k.work[row], k.pool, k.contents, k.tables)
    requests[row].num_uncached_tokens = requests[row].num_prompt_tokens - num_hits * p.block_size
    return ask_flag(k, REJECT, row, k.reject)


@njit(forceinline=True, _nrt=False)
def take_arrival(k):
    """Let the next request join `waiting`; a returning client's counter is lifted."""
    s = k.state
    requests, work, clients = k.requests, k.work, k.clients
    row = s.next_row
    arrival_time = requests[row].arrival_time
    mean_gap, last_arrival = s.mean_gap, s.last_arrival
    if s.num_accepted == 1:
        s.mean_gap = arrival_time - s.last_arrival
    elif s.num_accepted > 1:
        s.mean_gap += AVERAGE_WEIGHT * (arrival_time - s.last_arrival - s.mean_gap)
    s.last_arrival = arrival_time
    s.num_accepted += 1
    s.prompt_tokens_accepted += requests[row].num_prompt_tokens
    s.prompt_tokens_seen += requests[row].num_prompt_tokens
    s.next_row += 1
    work[row].prefill_at_arrival = s.prefill_tokens
    if is_rejected(k, row):
        # vLLM's scheduler never hears of it, so averages are of the others.
        s.mean_gap, s.last_arrival = mean_gap, last_arrival
        s.num_accepted -= 1
        s.prompt_tokens_accepted -= requests[row].num_prompt_tokens
        work[row].rejected_ts = s.now
        work[row].ended = True
        s.num_ended += 1
        s.steps_at_end = s.num_steps
        return
    s.queued_prompt_tokens += requests[row].num_prompt_tokens
    if k.settings.reads_clients:
        client = work[row].client
        if clients[client].active == 0:
            least = np.inf
            for other in range(clients.shape[0]):
                if clients[other].active > 0:
                    least = min(least, clients[other].counter)
            if least < np.inf:
                clients[client].counter = max(clients[client].counter, least)
        clients[client].active += 1
    enter_waiting(k, row)


@njit(_nrt=False)
def abort(k, row):
    """Forget a request whose client has given up, with the KV it holds.

    Returns the tokens it has in the step that ends.
    """
    s = k.state
    w = k.work[row]
    tokens = 0
    if w.blocks > 0:
        tokens = leave_running(s, k.lists, row)
        give_back_blocks(k, w)
        s.num_decoding = 0  # nothing is jumped over until a step has counted anew
    else:
        leave_waiting(k, row)
    if np.isnan(w.first_token_ts):
        s.queued_prompt_tokens -= k.requests[row].num_prompt_tokens
    k.lists[LEFT, s.num_left] = row
    s.num_left += 1
    w.aborted_ts = w.abort_time
    w.ended = True
    s.num_ended += 1
    s.steps_at_end = s.num_steps
    if k.settings.reads_clients:
        k.clients[w.client].active -= 1
    return tokens


@njit(forceinline=True, _nrt=False)
def next_abort_time(k):
    """Return when the next client gives up, unless it has been served by then; +inf for never."""
    s = k.state
    while s.next_abort < s.num_aborts and k.work[k.lists[ABORTS, s.next_abort]].ended:
        s.next_abort += 1
    if s.next_abort == s.num_aborts:
        return np.inf
    return k.work[k.lists[ABORTS, s.next_abort]].abort_time


@njit(forceinline=True, _nrt=False)
def take_messages(k):
    """Take in what was sent up to now, between two steps."""
    s = k.state
    while True:
        abort_time = next_abort_time(k)
        arrival_time = np.inf
        if s.next_row < s.num_rows:
            arrival_time = k.requests[s.next_row].arrival_time
        if min(arrival_time, abort_time) > s.now:
            return
        if arrival_time <= abort_time:
            take_arrival(k)
        else:
            row = k.lists[ABORTS, s.next_abort]
            abort(k, row)


@njit(_nrt=False)
def take_aborts(k):
    """Take in who has given up while a step was computed, before its tokens are handed out.

    vLLM looks for these alone then; whoever came and left during the step is met after it. Returns
    how many of them had tokens in the step.
    """
    s = k.state
    num_scheduled = 0
    for place in range(s.next_abort, s.num_aborts):
        row = k.lists[ABORTS, place]
        if k.work[row].abort_time > s.now:
            break
        if row < s.next_row and not k.work[row].ended:
            tokens = abort(k, row)
            if (
                tokens > 0 and not k.settings.async_scheduling
            ):  # which counts them when they are scheduled
                num_scheduled += 1
                s.num_computed_tokens += tokens
    return num_scheduled

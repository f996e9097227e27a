"""Compiled: who runs, who is held, who is preempted, and who gets how many tokens."""

from numba import njit

from queuesmith.engine.kernel.kv_blocks import (
    give_back_blocks,
    more_blocks,
    remember_blocks,
    take_blocks,
)
from queuesmith.engine.kernel.state import (
    HELD,
    HOLD,
    PREEMPTED,
    RUNNING,
    SCRATCH,
    TOKENS,
    VICTIM_KEY,
    WAITING,
    WAITING_KEY,
)
from queuesmith.engine.kernel.waiting import (
    ask_flag,
    ask_key,
    count_scheduled,
    enter_waiting,
    most_tokens_per_request,
    pop_candidate,
    rank_waiting,
    sift_up,
)


@njit(_nrt=False)
def set_aside_held(k):
    """Move requests that `hold` names from `running` to `held`, unless nobody would stay."""
    s = k.state
    lists = k.lists
    kept = 0
    s.num_held = 0
    for place in range(s.num_running):
        row = lists[RUNNING, place]
        if ask_flag(k, HOLD, row, k.hold):
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


@njit(_nrt=False)
def preempt(k, row):
    """Take all KV blocks of a request that has left `running` and let it wait again."""
    s = k.state
    r = k.requests[row]
    w = k.work[row]
    give_back_blocks(k, w)
    w.stale_tokens = w.tokens_under_way
    w.placeholders = 0
    s.num_recomputed_tokens += r.num_computed_tokens
    r.num_computed_tokens = 0
    r.num_preemptions += 1
    k.lists[PREEMPTED, s.num_preempted] = row
    s.num_preempted += 1
    s.num_preemptions += 1
    enter_waiting(k, row)


@njit(forceinline=True, _nrt=False)
def is_ending(r, w):
    """Tell whether the token under way is the last that `max_tokens` allows; as vLLM says it."""
    reach = r.num_computed_tokens + 2 - w.placeholders
    return w.placeholders > 0 and reach >= r.num_prompt_tokens + r.max_tokens


@njit(_nrt=False)
def displace(k):
    """Let the best waiting requests take the seats of the worst running ones.

    The j-th best admissible waiting request displaces the j-th worst running one while its key is
    strictly smaller. Candidates are popped to look at them and pushed back.
    """
    s = k.state
    work, lists = k.work, k.lists
    rank_waiting(k)
    for place in range(s.num_running):
        row = lists[RUNNING, place]
        work[row].key = ask_key(k, WAITING_KEY, row, k.waiting_key)
    num_candidates = s.num_candidates
    num_displaced = 0
    while s.num_candidates > 0:
        if work[lists[WAITING, 0]].stale_tokens > 0:  # could not take a seat in this step
            pop_candidate(k)
            continue
        worst = -1
        for place in range(s.num_running):
            row = lists[RUNNING, place]
            if k.requests[row].num_output_tokens <= work[row].output_at_admission:
                continue  # no token since its admission: without this rule two could swap forever
            if is_ending(k.requests[row], work[row]):
                continue  # its seat is about to be free
            if worst < 0 or work[row].key >= work[lists[RUNNING, worst]].key:
                worst = place
        if worst < 0 or not work[lists[WAITING, 0]].key < work[lists[RUNNING, worst]].key:
            break
        pop_candidate(k)
        lists[SCRATCH, num_displaced] = lists[RUNNING, worst]
        num_displaced += 1
        for place in range(worst, s.num_running - 1):
            lists[RUNNING, place] = lists[RUNNING, place + 1]
        s.num_running -= 1
    while s.num_candidates < num_candidates:
        s.num_candidates += 1
        sift_up(work, lists, s.num_candidates - 1)
    for index in range(num_displaced):
        preempt(k, lists[SCRATCH, index])


@njit(forceinline=True, _nrt=False)
def num_new_tokens(r, w, p, most, budget):
    """Return the tokens that a running request is given out of `budget`."""
    if p.async_scheduling and is_ending(r, w):
        return 0
    missing = r.num_prompt_tokens + r.num_output_tokens + w.placeholders - r.num_computed_tokens
    if p.instant_prefill:
        return missing
    new = min(missing, most, budget)
    return min(new, p.max_model_len - r.num_computed_tokens - 1)


@njit(forceinline=True, _nrt=False)
def order_matters(k):
    """Tell whether blocks or budget are too short for all of `running`.

    Otherwise every order gives everybody the same, and sorting can be left out; but under prefix
    caching the order also says which of two blocks with one content was cached first.
    """
    p, s = k.settings, k.state
    if p.caching:
        return True
    most = most_tokens_per_request(p, s)
    budget = p.token_budget
    free = s.num_free_blocks
    for place in range(s.num_running):
        row = k.lists[RUNNING, place]
        new = num_new_tokens(k.requests[row], k.work[row], p, most, p.token_budget)
        budget -= 1 if p.instant_prefill else new
        num_tokens = k.requests[row].num_computed_tokens + new
        free -= more_blocks(num_tokens, k.work[row].blocks, p.block_size)
        if budget < 0 or free < 0:
            return True
    return False


@njit(forceinline=True, _nrt=False)
def stands_before(work, row, other):
    """Tell whether `row` is before `other` in `running`: by `order`, then by admission."""
    a, b = work[row], work[other]
    return a.order < b.order or (a.order == b.order and a.admission < b.admission)


@njit(_nrt=False)
def sort_running(k):
    """Sort `running` by (order, admission): a heap sort, which needs no memory of its own."""
    lists = k.lists
    size = k.state.num_running
    for start in range(size // 2 - 1 + size, -1, -1):
        # First the heap is built from the last parent up, then its root is taken again and again.
        if start >= size:
            place, end = start - size, size
        else:
            end = start
            place = 0
            lists[RUNNING, 0], lists[RUNNING, end] = lists[RUNNING, end], lists[RUNNING, 0]
        row = lists[RUNNING, place]
        while 2 * place + 1 < end:
            child = 2 * place + 1
            if child + 1 < end and stands_before(
                k.work, lists[RUNNING, child], lists[RUNNING, child + 1]
            ):
                child += 1
            if not stands_before(k.work, row, lists[RUNNING, child]):
                break
            lists[RUNNING, place] = lists[RUNNING, child]
            place = child
        lists[RUNNING, place] = row


@njit(_nrt=False)
def order_by_victim_key(k):
    """Sort `running` by (victim_key, admission), so that the victim stands last."""
    s = k.state
    for place in range(s.num_running):
        row = k.lists[RUNNING, place]
        k.work[row].order = ask_key(k, VICTIM_KEY, row, k.victim_key)
    sort_running(k)
    s.out_of_order = True


@njit(_nrt=False)
def remove_running(s, lists, place):
    """Remove one place from `running` and `tokens`."""
    for later in range(place, s.num_running - 1):
        lists[RUNNING, later] = lists[RUNNING, later + 1]
        lists[TOKENS, later] = lists[TOKENS, later + 1]
    s.num_running -= 1


@njit(_nrt=False)
def find_priority_victim(k):
    """Return the place of the largest (priority, arrival); ties go to the earlier place."""
    victim = 0
    for place in range(1, k.state.num_running):
        a, b = k.requests[k.lists[RUNNING, place]], k.requests[k.lists[RUNNING, victim]]
        if a.priority > b.priority or (
            a.priority == b.priority and a.arrival_time > b.arrival_time
        ):
            victim = place
    return victim


@njit(forceinline=True, _nrt=False)
def schedule_running(k):
    """Give running requests their tokens, preempting when KV blocks run out.

    Returns the budget that is left and whether anybody was preempted.
    """
    p, s = k.settings, k.state
    lists = k.lists
    most = most_tokens_per_request(p, s)
    budget = p.token_budget
    preempted = False
    s.num_prefill_tokens = s.num_decodes = s.kv_tokens = 0
    s.attention = 0.0
    is_plain, is_async, block_size = not p.caching, p.async_scheduling, p.block_size
    num_plain_decodes = 0
    kv_tokens = 0
    place = 0
    while place < s.num_running and budget > 0:
        row = lists[RUNNING, place]
        r, w = k.requests[row], k.work[row]
        computed = r.num_computed_tokens
        if (
            is_plain
            and r.num_output_tokens + w.placeholders > 0
            and r.num_prompt_tokens + r.num_output_tokens + w.placeholders - computed == 1
            and computed < w.blocks * block_size
            and not (is_async and is_ending(r, w))
        ):  # nearly all are decodes whose token still fits into a block they hold
            lists[TOKENS, place] = 1
            num_plain_decodes += 1
            kv_tokens += computed
            budget -= 1
            place += 1
            continue
        new = num_new_tokens(r, w, p, most, budget)
        lists[TOKENS, place] = new
        if new == 0:
            place += 1
            continue
        more = more_blocks(computed + new, w.blocks, p.block_size)
        fits = True
        while more > s.num_free_blocks:
            victim_place = s.num_running - 1
            if p.priority_victims and not p.has_victim_key:
                victim_place = find_priority_victim(k)
            victim = lists[RUNNING, victim_place]
            if victim_place < place:
                refund = lists[TOKENS, victim_place]
                if refund > 0:
                    count_scheduled(p, s, k.requests[victim], k.work[victim], refund, -1)
                    budget += 1 if p.instant_prefill else refund
                place -= 1
            remove_running(s, lists, victim_place)
            preempt(k, victim)
            preempted = True
            if victim == row:
                fits = False
                break
        if not fits:
            if p.passes_preempted:  # the next request has moved up to this place
                continue
            break
        take_blocks(k, w, more)
        known = min(computed + new, r.num_prompt_tokens + r.num_output_tokens)
        remember_blocks(k, w, known)
        count_scheduled(p, s, r, w, new, 1)
        budget -= 1 if p.instant_prefill else new
        place += 1
    for later in range(place, s.num_running):
        lists[TOKENS, later] = 0
    s.num_decodes += num_plain_decodes
    s.kv_tokens += kv_tokens
    return budget, preempted


@njit(_nrt=False)
def leave_running(s, lists, row):
    """Take a request off `running`, or off those of `running` that are held in this step.

    Returns the tokens it has in this step.
    """
    for place in range(s.num_running):
        if lists[RUNNING, place] == row:
            tokens = lists[TOKENS, place]
            remove_running(s, lists, place)
            return tokens
    s.num_held -= 1
    for place in range(s.num_held + 1):
        if lists[HELD, place] == row:
            lists[HELD, place] = lists[HELD, s.num_held]  # their order is restored by sorting
    return 0


@njit(_nrt=False)
def restore_running(k):
    """Return what was held to `running` and `running` to admission order, with its tokens."""
    s = k.state
    lists = k.lists
    for index in range(s.num_held):
        lists[RUNNING, s.num_running] = lists[HELD, index]
        lists[TOKENS, s.num_running] = 0
        s.num_running += 1
    s.num_held = 0
    s.out_of_order = False
    for place in range(s.num_running):
        w = k.work[lists[RUNNING, place]]
        w.order = 0.0
        w.tokens = lists[TOKENS, place]
    sort_running(k)
    for place in range(s.num_running):
        lists[TOKENS, place] = k.work[lists[RUNNING, place]].tokens

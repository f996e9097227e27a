"""Compiled: one event loop over several engines, with a router before them.

A request is handed to an engine when it arrives, and no engine starts a step at a time at which a
request could still arrive that is not known yet. Such a request is a later turn of a session: it
comes at the earliest `lookahead` after the earliest of the engines' clocks, since nobody thinks
for less. So all engines advance to that time, or to the next known arrival, whichever comes first;
who has ended is looked up, their next turns are put into the heap of arrivals, and so on.

This is the conservative simulation of parallel processes of Chandy and Misra (1979), with the
bounded lag of Lubachevsky (1989). What each engine decides is `loop.run`, untouched.
"""

from contextlib import suppress

import numba
import numpy as np
from numba import njit, types

from queuesmith.engine.compile import ROUTE_SIGNATURE
from queuesmith.engine.kernel.arrivals import look_for_ends, pop_arrival
from queuesmith.engine.kernel.kv_blocks import find_hits
from queuesmith.engine.kernel.loop import (
    ENGINE,
    FINISHED,
    FLAG,
    KEY,
    PARTS,
    PAUSED,
    REQUEST,
    forget_stale_code,
    next_start,
    run,
)
from queuesmith.engine.kernel.state import (
    ABORTS,
    BLOCK_DTYPE,
    CLIENT_DTYPE,
    CONTENT_DTYPE,
    FLEET_DTYPE,
    ITL_DTYPE,
    LINE_DTYPE,
    PLACED_REPLICA,
    PLACED_ROW,
    SETTINGS_DTYPE,
    STATE_DTYPE,
    STEP_DTYPE,
    WORK_DTYPE,
)
from queuesmith.routers.rows import REPLICA_DTYPE, SENT_DTYPE

SENT = numba.from_dtype(SENT_DTYPE)
REPLICA = numba.from_dtype(REPLICA_DTYPE)


@njit(_nrt=False)
def show_replica(v, p, s, line, now):
    """Write what a router sees of a replica at `now`, which may be in the midst of a step."""
    num_sent_since = s.num_rows - s.next_row
    is_computing = s.now > now
    num_free_blocks = s.seen_free_blocks if is_computing else s.num_free_blocks
    v.num_waiting = (s.seen_waiting if is_computing else s.num_waiting) + num_sent_since
    v.num_running = s.seen_running if is_computing else s.num_running
    waiting_tokens = s.seen_waiting_tokens if is_computing else s.waiting_tokens
    v.waiting_tokens = waiting_tokens + line.sent_tokens - s.prompt_tokens_seen
    num_usable_blocks = p.num_gpu_blocks - 1
    v.kv_usage = (num_usable_blocks - num_free_blocks) / num_usable_blocks
    v.used_kv_tokens = (num_usable_blocks - num_free_blocks) * p.block_size


@njit(_nrt=False)
def insert_abort(s, lists, work, row):
    """Keep the requests of an engine that have an `abort_time` in its order."""
    place = s.num_aborts
    while place > s.next_abort:
        before = lists[ABORTS, place - 1]
        if work[before].abort_time <= work[row].abort_time:
            break
        lists[ABORTS, place] = before
        place -= 1
    lists[ABORTS, place] = row
    s.num_aborts += 1


@njit(_nrt=False)
def send(row, arrival_time, source, source_work, requests, work, lists, s):
    """Hand a request to an engine, as its last row."""
    last = s.num_rows
    s.num_rows += 1
    requests[last] = source[row]
    work[last] = source_work[row]
    r, w = requests[last], work[last]
    delay = arrival_time - r.arrival_time
    if delay != 0.0:
        r.deadline += delay
        w.abort_time = max(w.abort_time + delay, arrival_time)  # rounding must not part them
        r.arrival_time = arrival_time
        r.last_token_ts = arrival_time
    if w.abort_time < np.inf:
        insert_abort(s, lists, work, last)


@njit(_nrt=False)
def route(
    f,
    sent,
    row,
    now,
    settings,
    state,
    source_work,
    pool,
    contents,
    tables,
    views,
    lines,
    ranks,
    source,
    route_key,
):
    """Return the replica with the smallest key; ties go to the lowest number, NaN is +inf."""
    p = settings[0]
    best, best_key = 0, np.inf
    f.is_routing = True
    f.fault_row = row
    for k in range(views.shape[0]):
        v = views[k]
        if f.reads_engines:
            show_replica(v, p, state[k, 0], lines[k], now)
        if f.reads_hits:
            num_hits, _ = find_hits(source[row], p, source_work[row], pool[k], contents[k], tables)
            v.num_cached_tokens = num_hits * p.block_size
        if ranks.shape[0] > 0:
            v.random_rank = ranks[row, k]
        f.fault_replica = k
        key = route_key(sent[row], v)
        if key < best_key:
            best, best_key = k, key
    f.is_routing = False
    views[best].num_sent += 1
    views[best].last_sent_ts = now
    return best


with suppress(OSError):  # a folder that cannot be written has no code of ours to go stale
    forget_stale_code("fleet_loop.run_fleet", ("loop", "arrivals", *PARTS))

_FLEET = types.int64(
    REQUEST[::1],
    numba.from_dtype(WORK_DTYPE)[::1],
    SENT[::1],
    types.float64[::1],
    types.int64[::1],
    types.int64[::1],
    types.float64[::1],
    types.int64[:, ::1],
    numba.from_dtype(FLEET_DTYPE)[::1],
    numba.from_dtype(LINE_DTYPE)[::1],
    REPLICA[::1],
    types.int64[:, ::1],
    types.int64[:, ::1],
    REQUEST[:, ::1],
    ENGINE[:, ::1],
    numba.from_dtype(SETTINGS_DTYPE)[::1],
    numba.from_dtype(STATE_DTYPE)[:, ::1],
    numba.from_dtype(WORK_DTYPE)[:, ::1],
    types.int64[:, :, ::1],
    numba.from_dtype(CLIENT_DTYPE)[:, ::1],
    numba.from_dtype(ITL_DTYPE)[:, ::1],
    numba.from_dtype(BLOCK_DTYPE)[:, ::1],
    numba.from_dtype(CONTENT_DTYPE)[:, ::1],
    types.int64[:, ::1],
    types.int64[::1],
    numba.from_dtype(STEP_DTYPE)[:, ::1],
    types.int64[:, :, ::1],
    types.int64[:, ::1],
    types.FunctionType(KEY),
    types.FunctionType(KEY),
    types.FunctionType(FLAG),
    types.FunctionType(FLAG),
    types.FunctionType(FLAG),
    types.FunctionType(ROUTE_SIGNATURE),
)


@njit(_FLEET, cache=True, nogil=True, _nrt=False)
def run_fleet(
    source,
    source_work,
    sent,
    arrival,
    heap,
    next_turn,
    think_time,
    placed,
    fleet,
    lines,
    views,
    watched,
    ranks,
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
    reject,
    route_key,
):
    """Simulate until every request has ended or the horizon is reached.

    It also returns when `allowance` of the fleet is used up; called again it goes on. Everything is
    changed in place. Arrays of `loop.run` have a dimension more in front, the replica;
    `settings`, `tables` and `residues` are shared.

    Parameters
    ----------
    source, source_work, sent : (num_requests,) REQUEST_DTYPE, WORK_DTYPE, SENT_DTYPE
        The requests in the order of the trace, as engines and router will see them.
    arrival : (num_requests,) float64
        When each arrives; of later turns it is written as it is known.
    heap : (num_requests,) int64
        ``heap[:num_future]`` are the rows whose arrival is known, as a heap by (arrival, row).
    next_turn : (num_requests,) int64
        Row that waits for the end of each row; -1 for none.
    think_time : (num_requests,) float64
    placed : (2, num_requests) int64
        All -1.
    fleet : (1,) FLEET_DTYPE
    lines : (num_replicas,) LINE_DTYPE
    views : (num_replicas,) REPLICA_DTYPE
    watched : (num_replicas, num_requests or 0) int64
    ranks : (num_requests or 0, num_replicas) int64
        A random order of the replicas for each request.

    Returns
    -------
    int
        What `loop.run` returned that was not ``FINISHED``, from `fault_replica`; else that.
    """
    f = fleet[0]
    num_replicas = views.shape[0]
    is_closed = f.lookahead < np.inf
    while True:
        now = arrival[heap[0]] if f.num_future > 0 else np.inf
        goes_on = f.num_future > 0 and not (f.reads_engines or f.reads_hits or is_closed)
        while not goes_on:
            earliest = np.inf
            limit = min(now, f.horizon)
            for k in range(num_replicas):
                s = state[k, 0]
                if s.num_ended < s.num_rows:
                    start = next_start(requests[k], s)
                    if start < limit:
                        earliest = min(earliest, start)
            if earliest == np.inf:
                break
            # At times so large that the lookahead is lost in rounding, one step after the other.
            until = min(limit, max(earliest + f.lookahead, np.nextafter(earliest, np.inf)))
            for k in range(num_replicas):
                s = state[k, 0]
                if s.num_ended == s.num_rows or next_start(requests[k], s) >= until:
                    continue
                s.until = until
                s.allowance = f.allowance
                f.fault_replica = k
                status = run(
                    requests[k],
                    engine[k],
                    settings,
                    state[k],
                    work[k],
                    lists[k],
                    clients[k],
                    itl[k],
                    pool[k],
                    contents[k],
                    tables,
                    residues,
                    log_steps[k],
                    log_tokens[k],
                    log_preemptions[k],
                    waiting_key,
                    victim_key,
                    admit,
                    hold,
                    reject,
                )
                f.allowance = s.allowance
                line = lines[k]
                if is_closed and (s.num_ended > line.num_ended or line.next_abort <= s.now):
                    look_for_ends(
                        f,
                        line,
                        s,
                        work[k],
                        placed,
                        watched[k],
                        next_turn,
                        think_time,
                        arrival,
                        heap,
                    )
                if status != FINISHED:
                    return status
            if f.num_future > 0:
                now = arrival[heap[0]]
        if f.num_future == 0:
            return FINISHED
        if f.allowance <= 0:
            return PAUSED
        f.allowance -= num_replicas
        row = pop_arrival(f, heap, arrival)
        now = arrival[row]
        delay = now - sent[row].arrival_time
        if delay != 0.0:  # a later turn; what is counted from its arrival moves with it
            sent[row].arrival_time = now
            sent[row].deadline += delay
        k = route(
            f,
            sent,
            row,
            now,
            settings,
            state,
            source_work,
            pool,
            contents,
            tables,
            views,
            lines,
            ranks,
            source,
            route_key,
        )
        s, line = state[k, 0], lines[k]
        placed[PLACED_REPLICA, row] = k
        placed[PLACED_ROW, row] = s.num_rows
        send(row, now, source, source_work, requests[k], work[k], lists[k], s)
        line.sent_tokens += source[row].num_prompt_tokens
        if is_closed and next_turn[row] >= 0:
            watched[k, line.num_watched] = row
            line.num_watched += 1
            line.next_abort = min(line.next_abort, work[k, s.num_rows - 1].abort_time)
            if line.next_abort <= s.now:
                look_for_ends(
                    f,
                    line,
                    s,
                    work[k],
                    placed,
                    watched[k],
                    next_turn,
                    think_time,
                    arrival,
                    heap,
                )

"""Compiled: who arrives next, where the next turn of a session waits for the answer before."""

import numpy as np
from numba import njit

from queuesmith.engine.kernel.state import PLACED_ROW


@njit(forceinline=True, _nrt=False)
def comes_first(arrival, row, other):
    """Tell whether `row` arrives before `other`: by time, then by row."""
    return arrival[row] < arrival[other] or (arrival[row] == arrival[other] and row < other)


@njit(_nrt=False)
def push_arrival(f, heap, arrival, row):
    """Put a request into the heap of arrivals."""
    place = f.num_future
    f.num_future += 1
    while place > 0:
        parent = (place - 1) // 2
        if not comes_first(arrival, row, heap[parent]):
            break
        heap[place] = heap[parent]
        place = parent
    heap[place] = row


@njit(_nrt=False)
def pop_arrival(f, heap, arrival):
    """Take the request that arrives first out of the heap."""
    first = heap[0]
    f.num_future -= 1
    row = heap[f.num_future]
    place = 0
    while True:
        child = 2 * place + 1
        if child >= f.num_future:
            break
        if child + 1 < f.num_future and comes_first(arrival, heap[child + 1], heap[child]):
            child += 1
        if not comes_first(arrival, heap[child], row):
            break
        heap[place] = heap[child]
        place = child
    heap[place] = row
    return first


@njit(_nrt=False)
def look_for_ends(f, line, s, work, placed, watched, next_turn, think_time, arrival, heap):
    """Let those arrive next who were waiting for what has ended at one replica."""
    kept = 0
    line.next_abort = np.inf
    line.num_ended = s.num_ended
    for place in range(line.num_watched):
        row = watched[place]
        w = work[placed[PLACED_ROW, row]]
        end = np.nan
        if w.ended:
            end = w.finished_ts
            if np.isnan(end):
                end = w.rejected_ts if np.isnan(w.aborted_ts) else w.aborted_ts
        elif w.abort_time <= s.now:  # given up, which the engine finds out at its next step
            end = w.abort_time
        if np.isnan(end):
            line.next_abort = min(line.next_abort, w.abort_time)
            watched[kept] = row
            kept += 1
        else:
            after = next_turn[row]
            arrival[after] = end + think_time[after]
            if arrival[after] < f.horizon:
                push_arrival(f, heap, arrival, after)
    line.num_watched = kept

"""Compiled: many steps at once, where a batch of decodes cannot change."""

import numpy as np
from numba import njit

from queuesmith.engine.delivery import count_gap, finish, note_state, step_seconds
from queuesmith.engine.kv_blocks import more_blocks
from queuesmith.engine.messages import next_abort_time
from queuesmith.engine.state import RUNNING
from queuesmith.engine.waiting import nobody_fits


@njit(forceinline=True, _nrt=False)
def jump(requests, p, s, work, lists, clients, itl, pool, contents, tables, residues):
    """Take all steps up to the next event at once, when the batch is decodes that cannot change.

    Events are an arrival, a client that gives up, a finish, KV blocks running out and `until`;
    what finishes in the last step is freed. Step times are added one by one in the stepping
    expression: a closed form drifts and can flip a boundary. Returns whether any step was taken.
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
    if s.next_row < s.num_rows:
        next_arrival = requests[s.next_row].arrival_time
    next_abort = next_abort_time(s, work, lists)
    caching, until, block_size = p.caching, s.until, p.block_size
    num_steps = 0
    residue = 0  # tokens that still fit into the last block; at 0 one more is needed
    while num_steps < most_steps and s.now < next_arrival and s.now < until:
        if residues[residue] > s.num_free_blocks:
            break
        next_residue = 0 if residue == block_size - 1 else residue + 1
        if caching and (residues[residue] > 0 or residues[next_residue] > 0):
            break  # blocks are taken or filled: which ones matters, so this step is for `run`
        seconds = step_seconds(p, 0, num_running, kv_tokens, 0.0)
        if s.now + seconds >= next_abort:
            break  # whoever gives up meanwhile gets no token of this step
        s.num_free_blocks -= residues[residue]
        residue = next_residue
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
    note_state(s)
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

"""Fit conversations: requests whose prompts repeat the whole of an earlier one."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from queuesmith.errors import TraceError
from queuesmith.traces import load_trace
from queuesmith.traces.fit import (
    expect_files,
    finish,
    fit_arrivals,
    fit_client,
    length_levels,
    provenance,
    round_number,
    table_of,
)
from queuesmith.traces.models.sessions import Sessions
from queuesmith.traces.synthetic import WorkloadModel
from queuesmith.traces.trace import Trace

#: Of a record, in s, at either end, in which turns before or after it may be missing.
_UNKNOWN = 600.0
#: Turns that are told apart; later ones are pooled.
_NUM_TURNS = 6


def fit_mooncake(files: Sequence[Path], name: str) -> WorkloadModel:
    """Fit conversations whose turns are known by the blocks that their prompts repeat.

    Times come in batches; the requests of one are spread at random over the time to the next. A
    request continues the latest one that shares its longest known run of blocks, if these are all
    the whole blocks of that one and more than what every prompt begins with. Requests of the first
    `_UNKNOWN` seconds may continue unseen ones and are no evidence for first turns; those of
    the last are none for whether a next turn comes.
    """
    (path,) = expect_files(files, 1, "conversation_trace.jsonl")
    trace = load_trace(path)
    blocks = trace.block_hashes
    if blocks is None:
        raise TraceError(f"{path.name} has no hash_ids, by which turns are known")
    arrival_time = spread_batches(trace.arrival_time)
    parent = _find_parents(trace)
    later = parent >= 0
    turn = np.zeros(len(trace), np.int64)
    for row in np.flatnonzero(later):
        turn[row] = turn[parent[row]] + 1
    first = np.flatnonzero(~later & (arrival_time > _UNKNOWN))
    starts = Trace(
        arrival_time[first] - arrival_time[first[0]],
        trace.prompt_len[first],
        trace.output_len[first],
        origin=trace.origin,
    )
    followed = np.zeros(len(trace), bool)
    followed[parent[later]] = True
    asked = arrival_time < arrival_time[-1] - _UNKNOWN
    next_turn = [followed[asked & (turn == number)].mean() for number in range(_NUM_TURNS)]
    next_turn.append(followed[asked & (turn >= _NUM_TURNS)].mean())
    known = np.flatnonzero(later)
    before = parent[known]
    levels = length_levels(len(known))
    growth = trace.prompt_len[known] - trace.prompt_len[before] - trace.output_len[before]
    # First turns are known worse than all turns, whose rate swings with theirs.
    client = replace(fit_client(starts, name), **fit_arrivals(arrival_time))
    sessions = Sessions(
        next_turn=np.round(next_turn, 4),
        levels=levels,
        think_time=np.round(
            np.quantile((arrival_time[known] - arrival_time[before])[asked[before]], levels), 2
        ),
        growth=table_of(growth, levels),
        output_len=table_of(trace.output_len[known], levels),
        block_size=blocks.block_size,
        num_common_blocks=1,
    )
    # What began before the record counts as begun in it, so first turns come a little less often.
    rate = round_number(len(trace) / float(arrival_time[-1]) / sessions.mean_turns)
    notes = [
        "times come in batches of 3 s and are spread at random over them",
        f"{len(known)} requests continue another by their blocks",
    ]
    return finish(
        name,
        [replace(client, rate=rate, sessions=sessions)],
        provenance(files, name, "mooncake", len(trace), notes),
    )


def spread_batches(arrival_time: NDArray[np.float64]) -> NDArray[np.float64]:
    """Spread the requests of one time at random over the time until the next."""
    times, counts = np.unique(arrival_time, return_counts=True)
    until_next = np.append(np.diff(times), np.diff(times)[-1])
    place = np.random.default_rng(0).random(len(arrival_time))
    return np.sort(np.repeat(times, counts) + place * np.repeat(until_next, counts))


def _find_parents(trace: Trace) -> NDArray[np.int64]:
    """Return the request that each one continues, or -1."""
    blocks = trace.block_hashes
    assert blocks is not None
    parents = np.full(len(trace), -1)
    latest: dict[int, int] = {}
    whole = trace.prompt_len // blocks.block_size
    taken: set[int] = set()
    for row in range(len(trace)):
        hashes = blocks[row].tolist()
        shared = 0
        while shared < len(hashes) and hashes[shared] in latest:
            shared += 1
        if shared > 1:
            candidate = latest[hashes[shared - 1]]
            if shared >= whole[candidate] and candidate not in taken:
                parents[row] = candidate
                taken.add(candidate)
        latest.update(dict.fromkeys(hashes, row))
    return parents

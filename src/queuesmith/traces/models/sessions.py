"""Conversations in a workload model: a request may be followed by another that repeats its text."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from queuesmith.traces.block_hashes import BlockHashes

#: Conversations that began so long before a draw, in s, are still going on in it.
WARM_UP = 3600.0
_MAX_TURNS = 200


@dataclass(frozen=True, eq=False)
class Sessions:
    """How conversations go on.

    Attributes
    ----------
    next_turn : (num_turns,) float64
        Probability that turn 0, 1, ... has a next one; later turns are like the last.
    levels : (num_levels,) float64
        From 0 to 1.
    think_time : (num_levels,) float64
        Quantiles of the time from one turn's arrival to the next one's, s.
    growth : (num_levels,) float64
        Quantiles of what the next prompt has beyond this prompt and its answer, in tokens; below
        0 where an answer comes back shortened.
    output_len : (num_levels,) float64
        Quantiles of the answers to later turns, in tokens.
    block_size : int
        Tokens in a block of a prompt.
    num_common_blocks : int
        With which every prompt begins.
    """

    next_turn: NDArray[np.float64]
    levels: NDArray[np.float64]
    think_time: NDArray[np.float64]
    growth: NDArray[np.float64]
    output_len: NDArray[np.float64]
    block_size: int
    num_common_blocks: int

    @property
    def mean_turns(self) -> float:
        """Requests per conversation."""
        reached = np.cumprod(self.next_turn)
        return float(1 + reached[:-1].sum() + reached[-1] / (1 - self.next_turn[-1]))


@dataclass(frozen=True, eq=False)
class Draw:
    """Requests in order of arrival, complete up to a time.

    Attributes
    ----------
    arrival_time : (num_requests,) float64
        Seconds from the start.
    prompt_len, output_len : (num_requests,) int64
    complete_until : float
        No request before that is missing.
    session, turn : (num_requests,) int64, optional
    """

    arrival_time: NDArray[np.float64]
    prompt_len: NDArray[np.int64]
    output_len: NDArray[np.int64]
    complete_until: float
    session: NDArray[np.int64] | None = None
    turn: NDArray[np.int64] | None = None


def follow_up(first: Draw, sessions: Sessions, seeds: np.random.SeedSequence) -> Draw:
    """Add the later turns of conversations to their first turns, and leave out the warm-up."""
    session = np.arange(len(first.arrival_time))
    last = (first.arrival_time, first.prompt_len, first.output_len, session)
    turns = [last]
    for turn in range(_MAX_TURNS):
        rngs = [np.random.default_rng(seed) for seed in seeds.spawn(4)]
        arrival_time, prompt_len, output_len, session = last
        odds = sessions.next_turn[min(turn, len(sessions.next_turn) - 1)]
        goes_on = rngs[0].random(len(session)) < odds
        session = session[goes_on]
        think_time, growth, answer = (
            np.interp(rng.random(len(session)), sessions.levels, table)
            for rng, table in zip(
                rngs[1:],
                (sessions.think_time, sessions.growth, sessions.output_len),
                strict=True,
            )
        )
        repeated = prompt_len[goes_on] + output_len[goes_on]
        # At the least, what was asked before is asked again with one word more.
        longer = np.maximum(repeated + np.rint(growth).astype(np.int64), prompt_len[goes_on] + 1)
        last = (
            arrival_time[goes_on] + think_time,
            longer,
            np.rint(answer).astype(np.int64),
            session,
        )
        if not len(session):
            break
        turns.append(last)
    columns = [np.concatenate(column) for column in zip(*turns, strict=True)]
    number = np.repeat(np.arange(len(turns)), [len(one[0]) for one in turns])
    order = np.lexsort((columns[3], columns[0]))
    order = order[columns[0][order] >= WARM_UP]
    return Draw(
        columns[0][order] - WARM_UP,
        columns[1][order],
        columns[2][order],
        first.complete_until - WARM_UP,
        columns[3][order],
        number[order],
    )


def name_blocks(
    prompt_len: NDArray[np.int64],
    session: NDArray[np.int64],
    turn: NDArray[np.int64],
    sessions: Sessions,
) -> BlockHashes:
    """Give blocks of prompts their numbers; a turn repeats the whole blocks of the one before."""
    # Only here: numba takes time to import, and reading a file needs none of it.
    from queuesmith.traces.models.walk import number_blocks

    num_blocks = -(-prompt_len // sessions.block_size)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(num_blocks)])
    hashes = number_blocks(
        offsets, prompt_len, session, turn, sessions.block_size, sessions.num_common_blocks
    )
    return BlockHashes(offsets, hashes, sessions.block_size)

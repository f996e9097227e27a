"""A trace as one engine can run it: what fits, how long it runs, what may be known of it."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from queuesmith.config import EngineConfig
from queuesmith.errors import ConfigError, TraceError
from queuesmith.policies import Policy, get_policy
from queuesmith.request import REQUEST_DTYPE
from queuesmith.traces.trace import Trace

#: Seconds that an answer takes at least to reach whoever asks again.
LEAST_THINK_TIME = 1e-6


@dataclass(frozen=True, eq=False)
class Contents:
    """What the KV blocks of every request will hold, as numbers from 0.

    Equal numbers mean equal tokens and an equal past. A block that the trace does not describe,
    such as one with output tokens, has a number of its own: nobody else finds it, but its request
    does when it returns from a preemption.

    Attributes
    ----------
    offsets : (num_requests + 1,) int64
    numbers : (offsets[-1],) int64
        Of the blocks of request k at ``offsets[k]`` to ``offsets[k + 1]``; the last one of each
        request, which is never full, is -1.
    num_contents : int
    """

    offsets: NDArray[np.int64]
    numbers: NDArray[np.int64]
    num_contents: int


@dataclass(frozen=True, eq=False)
class Workload:
    """A trace as one engine can run it; made once and simulated under many policies.

    Attributes
    ----------
    trace : Trace
        Less the requests that can never run.
    row : (num_requests,) int64
        Row of each request in the trace that was given.
    output_len : (num_requests,) int64
        Tokens each request will produce: cut where `max_tokens` or the context window ends it.
    predicted_output_tokens : (num_requests,) float64
    max_tokens : (num_requests,) int64
    deadline : (num_requests,) float64
    abort_time : (num_requests,) float64
    client : (num_requests,) int64
        Codes from 0; requests of unknown clients are clients of their own.
    num_dropped, num_truncated : int
    contents : Contents or None
        What KV blocks will hold; None without prefix caching, and where the trace has no hashes,
        so that nobody knows which prompts start alike.
    next_turn : (num_requests,) int64, optional
        Row of the request that waits for the answer to this one; -1 for none. None when every
        request arrives at its `arrival_time`, whatever happens to others.
    think_time : (num_requests,) float64, optional
        Of requests that wait for an answer: seconds from then to their arrival.
    """

    trace: Trace
    row: NDArray[np.int64]
    output_len: NDArray[np.int64]
    predicted_output_tokens: NDArray[np.float64]
    max_tokens: NDArray[np.int64]
    deadline: NDArray[np.float64]
    abort_time: NDArray[np.float64]
    client: NDArray[np.int64]
    num_dropped: int
    num_truncated: int
    contents: Contents | None
    next_turn: NDArray[np.int64] | None = None
    think_time: NDArray[np.float64] | None = None

    def contents_of(self, row: int) -> list[int]:
        """Return what each full block of a request will hold; nothing without prefix caching."""
        if self.contents is None:
            return []
        first, end = self.contents.offsets[row : row + 2]
        numbers: list[int] = self.contents.numbers[first : end - 1].tolist()
        return numbers


def in_vllm_order(policy: Policy, scheduling_policy: str) -> Policy:
    """Return the policy that orders requests where vLLM runs with a ``--scheduling-policy``.

    The built-in ``fcfs`` stands for vLLM as it is, whose order is then that of the built-in
    ``priority``: by priority, arrival and row. Every other policy orders as its file says.

    Examples
    --------
    >>> in_vllm_order(get_policy("fcfs"), "priority")
    Policy(fcfs, by priority as vLLM)
    >>> in_vllm_order(get_policy("sjf"), "priority")
    Policy(sjf)
    """
    if scheduling_policy == "priority" and policy == get_policy("fcfs"):
        return replace(get_policy("priority"), name="fcfs, by priority as vLLM")
    return policy


def can_run(trace: Trace, config: EngineConfig) -> NDArray[np.bool_]:
    """Tell which requests an engine can ever finish, as a (num_requests,) mask.

    vLLM refuses a prompt that fills `max_model_len`; a sequence that exceeds the KV cache could
    never be admitted as a whole.
    """
    # The last output token is never computed, so it needs no KV.
    num_tokens = trace.prompt_len + _cut_outputs(trace, config) - 1
    fits: NDArray[np.bool_] = num_tokens <= config.kv_tokens
    return fits & (trace.prompt_len < config.max_model_len)


def _max_tokens(trace: Trace, config: EngineConfig) -> NDArray[np.int64]:
    """Return the most output tokens vLLM would produce for each request."""
    room = config.max_model_len - trace.prompt_len
    return room if trace.max_tokens is None else np.minimum(room, trace.max_tokens)


def _cut_outputs(trace: Trace, config: EngineConfig) -> NDArray[np.int64]:
    return np.minimum(trace.output_len, _max_tokens(trace, config))


def prepare(
    trace: Trace, config: EngineConfig, predicted_output_tokens: NDArray[np.float64]
) -> Workload:
    """Leave out requests that can never run, and cut outputs as vLLM would.

    Raises
    ------
    TraceError
        If no request is left; the message says how many are too long for what.
    """
    keep = can_run(trace, config)
    if not keep.any():
        too_long = int((trace.prompt_len >= config.max_model_len).sum())
        raise TraceError(
            f"none of the {len(trace)} requests can run: {too_long} prompts reach max_model_len "
            f"({config.max_model_len} tokens) and {len(trace) - too_long} sequences exceed the KV "
            f"cache ({config.kv_tokens} tokens); choose a larger engine or a shorter trace"
        )
    rows = np.flatnonzero(keep)
    kept = trace if keep.all() else trace.take(rows)
    output_len = _cut_outputs(kept, config)
    if kept.client is None:
        client = np.arange(len(kept))
    else:
        unknown = kept.client < 0
        labels = np.where(unknown, -1 - np.arange(len(kept)), kept.client)
        client = np.unique(labels, return_inverse=True)[1].reshape(-1)
    next_turn, think_time = _turns(kept)
    return Workload(
        trace=kept,
        row=rows,
        output_len=output_len,
        predicted_output_tokens=np.asarray(predicted_output_tokens, np.float64)[rows],
        max_tokens=_max_tokens(kept, config),
        deadline=np.full(len(kept), np.inf) if kept.deadline is None else kept.deadline,
        abort_time=np.full(len(kept), np.inf) if kept.abort_time is None else kept.abort_time,
        client=client.astype(np.int64),
        num_dropped=len(trace) - len(kept),
        num_truncated=int((output_len < kept.output_len).sum()),
        contents=_contents(kept, output_len, config)
        if config.enable_prefix_caching and kept.block_hashes is not None
        else None,
        next_turn=next_turn,
        think_time=think_time,
    )


def _turns(trace: Trace) -> tuple[NDArray[np.int64] | None, NDArray[np.float64] | None]:
    """Return who waits for each request's answer and how long they think; None if nobody does.

    The first request of a session that is left arrives when the trace says, since whom it waited
    for is not there.
    """
    if trace.think_time is None or trace.session is None:
        return None, None
    order = np.argsort(trace.session, kind="stable")
    before, after = order[:-1], order[1:]
    waits = (
        (trace.session[after] >= 0)
        & (trace.session[after] == trace.session[before])
        & ~np.isnan(trace.think_time[after])
    )
    if not waits.any():
        return None, None
    next_turn = np.full(len(trace), -1)
    next_turn[before[waits]] = after[waits]
    return next_turn, np.maximum(trace.think_time, LEAST_THINK_TIME)


def _contents(trace: Trace, output_len: NDArray[np.int64], config: EngineConfig) -> Contents:
    """Turn the trace's blocks, of its own size, into the engine's."""
    size = config.block_size
    # The last output token is never computed, so it fills no block.
    num_full = (trace.prompt_len + output_len - 1) // size
    offsets = np.concatenate([[0], np.cumsum(num_full + 1)])
    request = np.repeat(np.arange(len(trace)), num_full + 1)
    place = np.arange(offsets[-1]) - offsets[request]
    hashes = trace.block_hashes
    assert hashes is not None
    if hashes.block_size % size and size % hashes.block_size:
        raise ConfigError(
            f"block_size ({size}) must divide the trace's blocks of {hashes.block_size} tokens "
            "or be a multiple of them, for prefixes to be shared as in the trace; set block_size "
            "(--block-size), or enable_prefix_caching to false (--no-enable-prefix-caching)"
        )
    per_hash, per_block = max(hashes.block_size // size, 1), max(size // hashes.block_size, 1)
    # Hashes are chained, so the last one that a block covers stands for all before it.
    covered = ((place + 1) * per_block - 1) // per_hash
    known = ((place + 1) * size <= trace.prompt_len[request]) & (
        covered < hashes.num_blocks[request]
    )
    distinct, code = np.unique(hashes.hashes, return_inverse=True)
    code = code.reshape(-1)[hashes.offsets[request[known]] + covered[known]]
    numbers = np.empty(len(place), np.int64)
    numbers[known] = code * per_hash + place[known] % per_hash
    num_shared = len(distinct) * per_hash
    own = ~known & (place < num_full[request])
    numbers[own] = num_shared + np.arange(own.sum())
    numbers[place == num_full[request]] = -1
    return Contents(offsets, numbers, num_shared + int(own.sum()))


def request_rows(workload: Workload, policy: Policy) -> Any:
    """Return the rows a policy will see, as a (num_requests,) record array of REQUEST_DTYPE."""
    trace = workload.trace
    rows = np.recarray(len(trace), REQUEST_DTYPE)
    rows[:] = np.zeros((), REQUEST_DTYPE)
    rows.arrival_time = trace.arrival_time
    rows.last_token_ts = trace.arrival_time
    rows.num_prompt_tokens = trace.prompt_len
    rows.num_uncached_tokens = trace.prompt_len
    rows.max_tokens = workload.max_tokens
    rows.deadline = workload.deadline
    rows.predicted_output_tokens = (
        workload.output_len if policy.oracle else workload.predicted_output_tokens
    )
    if trace.priority is not None:
        rows.priority = trace.priority
    return rows

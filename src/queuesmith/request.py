"""The two rows that a policy sees: one request, and the engine as a whole.

Field names are those of vLLM's ``Request`` wherever vLLM has the field, so that one policy file
runs on a NumPy record in the compiled kernel, on a plain object in the reference engine, and on
vLLM's own requests. Times are seconds on the clock of ``engine.now``; lengths are tokens.

The true output length is in neither row: what a policy cannot know in production it cannot read
here. ``docs/reference/contract.md`` explains every field at length.
"""

import numpy as np

REQUEST_DTYPE = np.dtype(
    [
        ("arrival_time", "f8"),  # s
        ("num_prompt_tokens", "i8"),
        ("num_computed_tokens", "i8"),  # tokens whose KV exists; 0 again after a preemption
        ("num_output_tokens", "i8"),  # produced so far
        ("num_preemptions", "i8"),
        ("max_tokens", "i8"),  # the client's cap on the output, not its true length
        ("priority", "i8"),  # smaller is more urgent
        ("num_uncached_tokens", "i8"),  # prefill tokens left when it last entered `waiting`
        ("predicted_output_tokens", "f8"),  # NaN when nothing is known
        ("deadline", "f8"),  # s; +inf when there is none
        ("last_token_ts", "f8"),  # s; the arrival time until the first token
        ("client_tokens", "f8"),  # VTC counter of this request's client
        ("prefill_tokens_since_arrival", "i8"),  # computed since then, for anybody
    ],
    align=True,
)

ENGINE_DTYPE = np.dtype(
    [
        ("now", "f8"),  # s
        ("num_waiting", "i8"),
        ("num_running", "i8"),
        ("max_num_seqs", "i8"),
        ("token_budget", "i8"),  # the full budget of a step
        ("kv_usage", "f8"),  # 0-1
        ("free_kv_tokens", "i8"),
        ("waiting_tokens", "i8"),  # prefill tokens left over all waiting requests
        ("mean_waiting_tokens", "f8"),
        ("mean_wait", "f8"),  # s
        ("oldest_wait", "f8"),  # s
        ("step_time", "f8"),  # s, of the last step that computed anything; 1.0 before the first
        ("token_rate", "f8"),  # prefill tokens/s, moving average; 1.0 before the first
        ("recent_ttft", "f8"),  # s, moving average; 1.0 before the first
        ("arrival_rate", "f8"),  # /s, from a moving average of gaps; 1.0 before the first gap
        ("mean_prompt_tokens", "f8"),  # over all requests seen so far
        ("backlog_time", "f8"),  # s, waiting_tokens / token_rate
        ("peak_backlog_time", "f8"),  # s, its largest since `waiting` was last empty
    ],
    align=True,
)

#: Fields of a request that change with what others are served, hence while it waits.
SHARED_FIELDS = ("client_tokens", "prefill_tokens_since_arrival")

REQUEST_FIELDS: tuple[str, ...] = tuple(REQUEST_DTYPE.names or ())
ENGINE_FIELDS: tuple[str, ...] = tuple(ENGINE_DTYPE.names or ())

#: Weight of a new sample in the moving averages of the engine row.
AVERAGE_WEIGHT = 0.1

#: Fields that may be any whole number of 64 bits, and those that add up over requests or steps.
_ANY_FIELDS = ("priority", "client", "session")
_SUM_FIELDS = ("prefill_tokens_since_arrival", "free_kv_tokens", "used_kv_tokens", "waiting_tokens")


def integer_ranges(rows: dict[str, np.dtype]) -> dict[str, tuple[int, int]]:
    """Return the smallest and the largest value of every field that is a whole number.

    Parameters
    ----------
    rows : dict of str to dtype
        The fields of each row, by the name under which a hook sees it.
    """
    ranges = {}
    for row, dtype in rows.items():
        for name in dtype.names or ():
            if dtype[name].kind == "i":
                ranges[f"{row}.{name}"] = (0, 2**53 if name in _SUM_FIELDS else 2**31)
            if name in _ANY_FIELDS:
                ranges[f"{row}.{name}"] = (-(2**63), 2**63 - 1)
    return ranges

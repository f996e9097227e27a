"""The two rows that a router sees: the request to send, and one of the replicas it may go to.

A router stands before the engines, so it knows what clients tell it, what it has done itself, and
what replicas report: their load as of the step that they are computing, to which it adds the
requests that it has sent since. How long a request will really run is in neither row.
``docs/reference/routers.md`` explains every field at length.
"""

import numpy as np

#: What a router sees of the request that has just arrived.
SENT_DTYPE = np.dtype(
    [
        ("arrival_time", "f8"),  # s; it is sent at once, so this is also the time now
        ("num_prompt_tokens", "i8"),
        ("max_tokens", "i8"),  # the client's cap on the output, not its true length
        ("priority", "i8"),  # smaller is more urgent
        ("predicted_output_tokens", "f8"),  # NaN when nothing is known
        ("deadline", "f8"),  # s; +inf when there is none
        ("client", "i8"),  # -1 when unknown
        ("session", "i8"),  # -1 when unknown
    ],
    align=True,
)

#: What a router sees of one replica.
REPLICA_DTYPE = np.dtype(
    [
        ("index", "i8"),  # from 0
        ("num_replicas", "i8"),
        ("num_waiting", "i8"),  # sent, and in no batch yet
        ("num_running", "i8"),
        ("waiting_tokens", "i8"),  # prefill tokens left over all waiting requests
        ("kv_usage", "f8"),  # 0-1
        ("used_kv_tokens", "i8"),  # that the KV blocks of running requests hold or could
        ("num_cached_tokens", "i8"),  # of this request's prompt; 0 without prefix caching
        ("num_sent", "i8"),  # so far
        ("last_sent_ts", "f8"),  # s; -inf before the first
        ("random_rank", "i8"),  # its place in an order drawn anew for every request, from 0
    ],
    align=True,
)

SENT_FIELDS: tuple[str, ...] = tuple(SENT_DTYPE.names or ())
REPLICA_FIELDS: tuple[str, ...] = tuple(REPLICA_DTYPE.names or ())

#: Fields that are the same whatever the engines do.
OWN_FIELDS = ("index", "num_replicas", "num_sent", "last_sent_ts", "random_rank")

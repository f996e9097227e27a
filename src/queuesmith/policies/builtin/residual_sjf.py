"""Fewest uncached prefill blocks first; whoever has waited too long goes first come, first served.

Knows:   prefill left after prefix-cache hits, and the queue's recent worst backlog.
Source:  the residual SJF proposed for vLLM and xLLM (2026). There the longest wait is a number of
         seconds; here it is a multiple of the wait that FCFS would have caused.
Caution: in a long overload every request passes the limit and the order becomes FCFS.
"""

MAX_BACKLOGS = 2.0
BLOCK_SIZE = 16


def waiting_key(request, engine):
    wait = engine.now - request.arrival_time
    if wait > MAX_BACKLOGS * engine.peak_backlog_time:
        return -wait  # below every number of blocks, the longest wait first
    return (request.num_uncached_tokens + BLOCK_SIZE - 1) // BLOCK_SIZE

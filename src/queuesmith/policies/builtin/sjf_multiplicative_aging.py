"""Shortest prompt first, each prompt counting for less the longer it has waited.

Knows:   prefill left and the wait so far.
Source:  TensorRT-LLM's pull request 13096 (2026): tokens left to compute times
         max(0, 1 - AGING_FACTOR x wait).
Caution: after 1 / AGING_FACTOR seconds all requests count for nothing and are served first come,
         first served. The factor is absolute, so it is tied to the load it was tuned on.
"""

AGING_FACTOR = 0.1  # per second


def waiting_key(request, engine):
    waited = engine.now - request.arrival_time
    return request.num_uncached_tokens * max(0.0, 1.0 - AGING_FACTOR * waited)

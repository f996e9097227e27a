"""Shortest prompt first with aging, both measured against what is typical in the queue.

Knows:   prefill left, the wait so far, and the queue's mean of both.
Source:  TensorRT-LLM's proposed SJF waiting queue (2026), with its weights. There the typical
         length and wait are settings; here they are the means over the queue, so that neither
         needs tuning to a load.
Caution: when all wait equally long, the weights decide and not the clock: no bound on the wait
         of one long prompt is promised.
"""

LENGTH_WEIGHT = 0.5
WAIT_WEIGHT = 0.5


def waiting_key(request, engine):
    score = LENGTH_WEIGHT / (1.0 + ratio(request.num_uncached_tokens, engine.mean_waiting_tokens))
    score += WAIT_WEIGHT * ratio(engine.now - request.arrival_time, engine.mean_wait)
    return -score


def ratio(value, typical):
    return value / typical if typical > 0.0 else 1.0

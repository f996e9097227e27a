"""Smallest memory first, with a share of the KV cache kept for requests about to be late.

Knows:   deadline, prompt length, predicted output, KV use and the engine's recent speed.
Source:  `kv_constrained_online` of LSSP (2026), whose laxity assumes steps of 1 ms and whose
         priorities are all alike; here laxity is in seconds of this engine, priority left out.
Caution: without deadlines nothing is ever urgent and large requests starve.
"""

import math

MAX_KV_USAGE = 0.82
URGENT_LAXITY = 0.25  # s
OUTPUT_SHARE = 0.25  # of the predicted output counts as memory


def waiting_key(request, engine):
    size = request.num_prompt_tokens + OUTPUT_SHARE * predicted(request)
    if laxity(request, engine) <= URGENT_LAXITY:
        return -1.0 / (1.0 + size)  # before all others, again the smallest first
    return size


def admit(request, engine):
    if laxity(request, engine) <= URGENT_LAXITY:
        return True
    if engine.kv_usage >= MAX_KV_USAGE:
        return False
    # usage + prompt / capacity <= limit, where free = (1 - usage) x capacity
    prompt = request.num_prompt_tokens * (1.0 - engine.kv_usage)
    return prompt <= (MAX_KV_USAGE - engine.kv_usage) * engine.free_kv_tokens


def laxity(request, engine):
    service = request.num_uncached_tokens / engine.token_rate
    service += predicted(request) * engine.step_time
    return request.deadline - engine.now - service


def predicted(request):
    if math.isnan(request.predicted_output_tokens):
        return 0.0
    return request.predicted_output_tokens

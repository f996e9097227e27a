"""Least prefill work first: the square of the work, halved with every doubling time of age.

Knows:   prompt length, prefill left, arrival time and the recent time to first token.
Source:  PREFLOW, proposed for vllm-ascend (2026): the largest 2^(age / D) / (P x R), with the work
         of n tokens n(n + 1) / 2, P what the request needed at first and R what is left; while it
         waits they are equal. D is a number of seconds there, here DOUBLINGS x recent TTFT.
Caution: a prompt twice as long has about four times the work, so long ones wait long.
"""

import math

DOUBLINGS = 1.0


def waiting_key(request, engine):
    # The logarithm keeps the order, and the power of two from overflowing.
    work = math.log2(triangle(request))
    age = (engine.now - request.arrival_time) / max(DOUBLINGS * engine.recent_ttft, 0.000001)
    return 2.0 * work - age


def triangle(request):
    total = float(request.num_prompt_tokens + request.num_output_tokens)
    left = float(max(request.num_uncached_tokens, 1))
    cached = max(total - left, 0.0)
    # total (total + 1) / 2 - cached (cached + 1) / 2, without the difference of large numbers
    return left * (left + 2.0 * cached + 1.0) / 2.0

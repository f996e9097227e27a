"""Least laxity first: the least time to spare before the deadline cannot be met.

Knows:   deadline, prefill left, predicted output, and the engine's recent speed, all in seconds.
Source:  Mok (1983); the LRS scheduler of Vidur. LSSP's version subtracts steps from seconds.
Caution: in overload it serves what is already lost; without predictions the output counts nothing.
"""

import math


def waiting_key(request, engine):
    # `now` is the same for all and would only cost digits.
    service = request.num_uncached_tokens / engine.token_rate
    if not math.isnan(request.predicted_output_tokens):
        left = max(request.predicted_output_tokens - request.num_output_tokens, 0.0)
        service += left * engine.step_time
    return request.deadline - service

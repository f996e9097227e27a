"""Arrival time less a boost for short prompts, between shortest first and first come, first served.

Knows:   arrival time, prefill left, the engine's prefill rate and its recent time to first token.
Source:  the gamma-boost of UniBoost (arXiv 2606.18431), after Yu and Scully, "Strongly
         tail-optimal scheduling in the light-tailed M/G/1" (2024): boost(s) is
         -log(1 - exp(-gamma s)) / gamma for service s. There gamma is fitted to a load; here it is
         GAMMA / recent time to first token, about the decay of the tail.
Caution: when the recent time to first token jumps, so does the order of those who wait.
"""

import math

GAMMA = 1.0  # towards 0 shortest first, towards infinity first come, first served


def waiting_key(request, engine):
    gamma = GAMMA / max(engine.recent_ttft, 0.000001)
    service = max(request.num_uncached_tokens, 1) / engine.token_rate
    share = -math.expm1(-max(gamma * service, 1e-12))
    return request.arrival_time + math.log(share) / gamma

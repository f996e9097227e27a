"""Shortest remaining work first with the exact output length: a bound, not a policy to deploy.

Knows:   the true output length, which nobody has in production.
Source:  Schrage, "A proof of the optimality of the SRPT discipline" (1968). Optimal for the mean on
         one server without recomputation; neither holds here, so it may be beaten.
Caution: cannot be deployed; starves long requests, and what is displaced is computed again.
"""

import math

PREEMPTIVE = True
ORACLE = True
OUTPUT_WEIGHT = 2.0  # an output token against a prompt token, as the VTC counters weigh them


def waiting_key(request, engine):
    return work_left(request)


def victim_key(request, engine):
    return work_left(request)


def work_left(request):
    if math.isnan(request.predicted_output_tokens):
        return math.inf
    # While a request runs, `num_uncached_tokens` is what it was at admission.
    missing = request.num_prompt_tokens + request.num_output_tokens - request.num_computed_tokens
    prefill = min(request.num_uncached_tokens, missing)
    output = max(request.predicted_output_tokens - request.num_output_tokens, 1.0)
    return prefill + OUTPUT_WEIGHT * output

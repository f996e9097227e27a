"""Shortest remaining work first, by prediction; a shorter one displaces the longest that runs.

Knows:   prefill left, output so far and the predicted output length; unpredicted requests go last.
Source:  Schrage, "A proof of the optimality of the SRPT discipline" (1968); vllm-ltr (2024) for
         the order by predicted tokens left.
Caution: starves long requests, and what is displaced is computed again; a prediction that was too
         short counts as one token left.
"""

import math

PREEMPTIVE = True
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

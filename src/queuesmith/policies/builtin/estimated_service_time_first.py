"""Least estimated service first: half a unit per prompt token, one per predicted output token.

Knows:   prompt length and the predicted output length; without a prediction a request goes last.
Source:  the policy of this name in the LLM-serving scheduler robustness benchmark (LSSP, 2026).
Caution: starves large requests; the weights are the benchmark's, not fitted to any engine.
"""

import math

PROMPT_WEIGHT = 0.5
OUTPUT_WEIGHT = 1.0


def waiting_key(request, engine):
    if math.isnan(request.predicted_output_tokens):
        return math.inf
    prompt = PROMPT_WEIGHT * request.num_prompt_tokens
    return prompt + OUTPUT_WEIGHT * request.predicted_output_tokens

"""Shortest predicted output first; what has no prediction goes last.

Knows:   the predicted output length, as good as the predictor.
Source:  the shortest-predicted-job-first baselines of learned schedulers such as vllm-ltr,
         "Efficient LLM Scheduling by Learning to Rank" (2024), and PARS (2025).
Caution: starves long answers; ignores the prompt, so a huge prompt with a short answer goes first.
"""

import math


def waiting_key(request, engine):
    if math.isnan(request.predicted_output_tokens):
        return math.inf
    return request.predicted_output_tokens

"""Shortest prompt first, softened by age: every prompt token costs a fixed delay.

Knows:   arrival time and the prefill left; no prediction of the output length.
Source:  the "aged-SJF" baselines of TANREN episode 4 (2026); published weights 0.001-0.1 s/token.
Caution: SECONDS_PER_TOKEN is absolute, so it is tied to the load it was tuned on.
"""

SECONDS_PER_TOKEN = 0.003


def waiting_key(request, engine):
    return request.arrival_time + SECONDS_PER_TOKEN * request.num_uncached_tokens

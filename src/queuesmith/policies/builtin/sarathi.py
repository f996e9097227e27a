"""First come, first served in small steps: 512 tokens, decodes first, the rest prefill chunks.

Knows:   arrival time. A bundle: it also sets the token budget of a step.
Source:  Sarathi-Serve (arXiv 2403.02310).
Caution: tokens come more evenly and prompts more slowly; compare it with fcfs at the same budget
         before crediting the order.
"""

CHUNK_SIZE = 512  # tokens

ENGINE = {"max_num_scheduled_tokens": CHUNK_SIZE}


def waiting_key(request, engine):
    return request.arrival_time

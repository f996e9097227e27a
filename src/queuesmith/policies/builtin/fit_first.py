"""First come, first served, but past a request that does not fit in the free KV cache.

Knows:   prompt and output so far, free KV tokens, and the recent time to first token.
Source:  requests to vLLM for filling memory behind a blocked head; the backfilling of cluster
         schedulers, Lifka, "The ANL/IBM SP scheduling system" (1995).
Caution: a large request waits while smaller ones slip past, until it has waited PATIENCE times
         the recent time to first token and blocks the queue as under fcfs.
"""

PATIENCE = 4.0


def waiting_key(request, engine):
    return request.arrival_time


def admit(request, engine):
    if engine.now - request.arrival_time > PATIENCE * engine.recent_ttft:
        return True
    return request.num_prompt_tokens + request.num_output_tokens <= engine.free_kv_tokens

"""Skip-join multi-level feedback queue: enter where the prefill fits, sink as tokens are computed.

Knows:   prompt length, tokens so far, the time since the last token, and the engine's prefill rate.
Source:  FastServe (arXiv 2305.05920): quanta of 10 ms x 2^level, promotion after 3 s without
         service. Quanta are turned into tokens by the engine's own prefill rate.
Caution: vLLM preempts by recomputing where FastServe swaps, so sinking costs more here.
"""

PREEMPTIVE = True
FIRST_QUANTUM = 0.010  # s
NUM_LEVELS = 16
PROMOTE_AFTER = 3.0  # s


def waiting_key(request, engine):
    if engine.now - request.last_token_ts > PROMOTE_AFTER:
        return 0
    quantum = FIRST_QUANTUM * engine.token_rate
    attained = request.num_computed_tokens
    if request.num_output_tokens > 0:  # also after a preemption
        attained = request.num_prompt_tokens + request.num_output_tokens
    level = 0
    allowed = 0.0
    for _ in range(NUM_LEVELS - 1):
        if quantum >= request.num_prompt_tokens:
            allowed += quantum
        # Below the level of entry nothing is allowed yet, so the request skips on.
        if attained >= allowed:
            level += 1
            quantum *= 2.0
    return level

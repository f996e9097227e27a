"""Shortest prompt first, with decodes held back until just before their next token is due.

Knows:   prefill left, the time of the last token and of the last step, KV use.
Source:  SLAI (arXiv 2508.01002) and its model in LSSP (2026), whose margin is 5 steps of 1 ms,
         twice that when the KV cache is nearly full, and whose limit is 0.5 s. Steps here are the
         engine's, and a token comes at the end of its step, so 2 are the least that can do.
Caution: TIME_BETWEEN_TOKENS is your objective, so set it; every answer slows down to it while
         prompts wait. Where MARGIN steps take longer, nothing is held. Long prompts starve.
"""

TIME_BETWEEN_TOKENS = 0.1  # s
MARGIN = 2.0  # steps
MARGIN_WHEN_FULL = 4.0
FULL = 0.96


def waiting_key(request, engine):
    return request.num_uncached_tokens


def hold(request, engine):
    missing = request.num_prompt_tokens + request.num_output_tokens - request.num_computed_tokens
    if engine.num_waiting == 0 or request.num_output_tokens == 0 or missing > 1:
        return False  # nobody to make room for, or still in prefill
    margin = MARGIN_WHEN_FULL if engine.kv_usage >= FULL else MARGIN
    due = request.last_token_ts + TIME_BETWEEN_TOKENS
    return engine.now < due - margin * engine.step_time

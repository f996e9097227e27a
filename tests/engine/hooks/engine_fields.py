"""A key that depends on every engine field, and on what the engine counts for each request."""


def waiting_key(request, engine):
    mix = engine.kv_usage * 3.0 + engine.free_kv_tokens + engine.token_budget
    mix = mix + engine.mean_waiting_tokens * 1.7 + engine.mean_wait * 11.0
    mix = mix + engine.oldest_wait * 5.0 + engine.step_time * 101.0 + engine.token_rate * 0.01
    mix = mix + engine.recent_ttft * 13.0 + engine.arrival_rate * 0.1
    mix = mix + engine.mean_prompt_tokens + engine.backlog_time * 3.0
    mix = mix + engine.peak_backlog_time * 17.0 + engine.waiting_tokens
    mix = mix + engine.num_waiting + engine.num_running + engine.max_num_seqs
    spread = (mix * (request.num_prompt_tokens % 7 + 1)) % 13.0
    spread = spread + request.prefill_tokens_since_arrival % 11
    return spread + (engine.now - request.last_token_ts) * request.num_uncached_tokens


def victim_key(request, engine):
    progress = request.num_computed_tokens + request.prefill_tokens_since_arrival
    return (engine.peak_backlog_time * 1000.0 + progress) % 7.0

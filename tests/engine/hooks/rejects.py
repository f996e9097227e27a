"""Turns requests away by what every engine field says, also when nobody waits."""


def waiting_key(request, engine):
    return request.num_uncached_tokens


def reject(request, engine):
    mix = engine.num_waiting + engine.num_running + engine.waiting_tokens
    mix = mix + engine.mean_wait * 11.0 + engine.oldest_wait * 5.0 + engine.peak_backlog_time * 17.0
    mix = mix + engine.recent_ttft * 13.0 + engine.arrival_rate * 0.1 + engine.mean_prompt_tokens
    mix = mix + engine.free_kv_tokens + request.client_tokens + request.num_uncached_tokens
    return (mix + request.prefill_tokens_since_arrival) % 7.0 < 1.0

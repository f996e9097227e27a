"""Admits by times overtaken, preemptions and work share, preempts by backlog steps, relative KV,
queue ratio and progress.

Knows:   prefill served since the arrival, prefill left, preemptions, the worst backlog since nobody
         waited, prefill left of all who wait, tokens computed, how many wait.
Source:  bred by `queuesmith evolve`; its proof sheet tells lineage and scores.
Caution: found by search on a few windows; compare it on your own traffic before use.
"""

TIMES_OVERTAKEN_LIMIT = 2.34
PROGRESS_WEIGHT = 0.782


def waiting_key(request, engine):
    worst_backlog = max(engine.peak_backlog_time, engine.step_time)
    # Prefill served to anybody since it came, over its own.
    times_overtaken = request.prefill_tokens_since_arrival / request.num_uncached_tokens
    # How often it lost its KV.
    preemptions = float(request.num_preemptions)
    # Time of its own prefill, over the worst backlog.
    work_share = request.num_uncached_tokens / engine.token_rate / worst_backlog
    if times_overtaken > TIMES_OVERTAKEN_LIMIT:
        return preemptions
    return work_share


def victim_key(request, engine):
    num_tokens = request.num_prompt_tokens + request.num_output_tokens
    # Full steps that the prefill of all who wait would fill.
    backlog_steps = engine.waiting_tokens / engine.token_budget
    # Tokens that a preemption would lose, over the mean prompt.
    relative_kv = request.num_computed_tokens / max(engine.mean_prompt_tokens, 1.0)
    # Waiting requests for each seat.
    queue_ratio = engine.num_waiting / engine.max_num_seqs
    # Share of its tokens that is computed; next to 1 in decode.
    progress = request.num_computed_tokens / num_tokens
    if backlog_steps + relative_kv > queue_ratio:
        return PROGRESS_WEIGHT * progress
    return backlog_steps

"""Admits by backlogs served, relative work and relative prompt, preempts by relative KV.

Knows:   prefill served since the arrival, the worst backlog since nobody waited, prefill left,
         prompt length, tokens computed.
Source:  bred by `queuesmith evolve`; its proof sheet tells lineage and scores.
Caution: found by search on a few windows; compare it on your own traffic before use.
"""

import math

BACKLOGS_SERVED_LIMIT = 0.95
BACKLOGS_SERVED_KEY_ABOVE = -30.0
RELATIVE_WORK_LIMIT = 0.32
RELATIVE_PROMPT_CEILING = 2.0
BACKLOGS_SERVED_WEIGHT = 4.5
RELATIVE_WORK_KEY_BELOW = -10.0


def waiting_key(request, engine):
    worst_backlog = max(engine.peak_backlog_time, engine.step_time)
    # Prefill served to anybody since it came, over the worst backlog.
    backlogs_served = request.prefill_tokens_since_arrival / engine.token_rate / worst_backlog
    # Prefill left, over the mean of all who wait.
    relative_work = request.num_uncached_tokens / max(engine.mean_waiting_tokens, 1.0)
    # Its prompt, over the mean of all so far.
    relative_prompt = request.num_prompt_tokens / max(engine.mean_prompt_tokens, 1.0)
    if backlogs_served > BACKLOGS_SERVED_LIMIT:
        return BACKLOGS_SERVED_KEY_ABOVE
    if relative_work > RELATIVE_WORK_LIMIT:
        capped_relative_prompt = min(relative_prompt, RELATIVE_PROMPT_CEILING)
        log_relative_prompt = math.log1p(capped_relative_prompt)
        return log_relative_prompt - BACKLOGS_SERVED_WEIGHT * backlogs_served
    return RELATIVE_WORK_KEY_BELOW


def victim_key(request, engine):
    # Tokens that a preemption would lose, over the mean prompt.
    relative_kv = request.num_computed_tokens / max(engine.mean_prompt_tokens, 1.0)
    return -relative_kv

"""Admits by backlogs served, backlogs waited, relative prompt and relative work, preempts by
relative KV.

Knows:   prefill served since the arrival, the worst backlog since nobody waited, the wait so far,
         prompt length, prefill left, tokens computed.
Source:  bred by `queuesmith evolve`; its proof sheet tells lineage and scores.
Caution: found by search on a few windows; compare it on your own traffic before use.
"""

import math

BACKLOGS_WAITED_LIMIT = 1.73
BACKLOGS_WAITED_KEY_ABOVE = 0.265
BACKLOGS_WAITED_KEY_BELOW = 0.768
BACKLOGS_SERVED_KEY_ABOVE = -25.2
RELATIVE_PROMPT_WEIGHT = 27.5
RELATIVE_PROMPT_CEILING = 5.02
RELATIVE_WORK_OFFSET = 3.56


def waiting_key(request, engine):
    wait = engine.now - request.arrival_time
    worst_backlog = max(engine.peak_backlog_time, engine.step_time)
    # Prefill served to anybody since it came, over the worst backlog.
    backlogs_served = request.prefill_tokens_since_arrival / engine.token_rate / worst_backlog
    # Its wait, over what first come, first served would make the unluckiest wait.
    backlogs_waited = wait / worst_backlog
    # Its prompt, over the mean of all so far.
    relative_prompt = request.num_prompt_tokens / max(engine.mean_prompt_tokens, 1.0)
    # Prefill left, over the mean of all who wait.
    relative_work = request.num_uncached_tokens / max(engine.mean_waiting_tokens, 1.0)
    if backlogs_waited > BACKLOGS_WAITED_LIMIT:
        choice = BACKLOGS_WAITED_KEY_ABOVE
    else:
        choice = BACKLOGS_WAITED_KEY_BELOW
    if backlogs_served > choice:
        return BACKLOGS_SERVED_KEY_ABOVE
    weighted_relative_prompt = RELATIVE_PROMPT_WEIGHT * relative_prompt
    log_relative_prompt = math.log1p(weighted_relative_prompt)
    capped_relative_prompt = min(log_relative_prompt, RELATIVE_PROMPT_CEILING)
    product = backlogs_served * (RELATIVE_WORK_OFFSET - relative_work)
    return capped_relative_prompt - product


def victim_key(request, engine):
    # Tokens that a preemption would lose, over the mean prompt.
    relative_kv = request.num_computed_tokens / max(engine.mean_prompt_tokens, 1.0)
    return -relative_kv

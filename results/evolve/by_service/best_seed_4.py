"""Admits by backlogs served, backlogs waited, relative prompt and KV use, preempts by relative KV.

Knows:   prefill served since the arrival, the worst backlog since nobody waited, the wait so far,
         prompt length, KV use, tokens computed.
Source:  bred by `queuesmith evolve`; its proof sheet tells lineage and scores.
Caution: found by search on a few windows; compare it on your own traffic before use.
"""

import math

BACKLOGS_WAITED_LIMIT = 1.98
BACKLOGS_WAITED_KEY_ABOVE = 0.301
BACKLOGS_WAITED_KEY_BELOW = 0.852
BACKLOGS_SERVED_KEY_ABOVE = -38.1
RELATIVE_PROMPT_WEIGHT = 14.5
RELATIVE_PROMPT_CEILING = 8.78


def waiting_key(request, engine):
    wait = engine.now - request.arrival_time
    worst_backlog = max(engine.peak_backlog_time, engine.step_time)
    # Prefill served to anybody since it came, over the worst backlog.
    backlogs_served = request.prefill_tokens_since_arrival / engine.token_rate / worst_backlog
    # Its wait, over what first come, first served would make the unluckiest wait.
    backlogs_waited = wait / worst_backlog
    # Its prompt, over the mean of all so far.
    relative_prompt = request.num_prompt_tokens / max(engine.mean_prompt_tokens, 1.0)
    # Share of the KV blocks in use.
    kv_use = engine.kv_usage
    if backlogs_waited > BACKLOGS_WAITED_LIMIT:
        choice = BACKLOGS_WAITED_KEY_ABOVE
    else:
        choice = BACKLOGS_WAITED_KEY_BELOW
    if backlogs_served > choice:
        return BACKLOGS_SERVED_KEY_ABOVE
    weighted_relative_prompt = RELATIVE_PROMPT_WEIGHT * relative_prompt
    log_relative_prompt = math.log1p(weighted_relative_prompt)
    capped_relative_prompt = min(log_relative_prompt, RELATIVE_PROMPT_CEILING)
    return capped_relative_prompt - backlogs_served * kv_use


def victim_key(request, engine):
    # Tokens that a preemption would lose, over the mean prompt.
    relative_kv = request.num_computed_tokens / max(engine.mean_prompt_tokens, 1.0)
    return -relative_kv

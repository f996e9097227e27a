"""Admits by backlogs served, relative work and backlogs waited, preempts by relative KV.

Knows:   prefill served since the arrival, the worst backlog since nobody waited, prefill left, the
         wait so far, tokens computed.
Source:  bred by `queuesmith evolve`; its proof sheet tells lineage and scores.
Caution: found by search on a few windows; compare it on your own traffic before use.
"""

BACKLOGS_SERVED_LIMIT = 1.63
BACKLOGS_SERVED_KEY_ABOVE = -29.9
RELATIVE_WORK_LIMIT = 0.349
RELATIVE_WORK_WEIGHT = 0.306
BACKLOGS_SERVED_WEIGHT = 7.37
RELATIVE_WORK_KEY_BELOW = -6.64


def waiting_key(request, engine):
    wait = engine.now - request.arrival_time
    worst_backlog = max(engine.peak_backlog_time, engine.step_time)
    # Prefill served to anybody since it came, over the worst backlog.
    backlogs_served = request.prefill_tokens_since_arrival / engine.token_rate / worst_backlog
    # Prefill left, over the mean of all who wait.
    relative_work = request.num_uncached_tokens / max(engine.mean_waiting_tokens, 1.0)
    # Its wait, over what first come, first served would make the unluckiest wait.
    backlogs_waited = wait / worst_backlog
    if backlogs_served > BACKLOGS_SERVED_LIMIT:
        return BACKLOGS_SERVED_KEY_ABOVE
    if relative_work > RELATIVE_WORK_LIMIT:
        difference = RELATIVE_WORK_WEIGHT * relative_work - backlogs_waited
        return difference - BACKLOGS_SERVED_WEIGHT * backlogs_served
    return RELATIVE_WORK_KEY_BELOW


def victim_key(request, engine):
    # Tokens that a preemption would lose, over the mean prompt.
    relative_kv = request.num_computed_tokens / max(engine.mean_prompt_tokens, 1.0)
    return -relative_kv

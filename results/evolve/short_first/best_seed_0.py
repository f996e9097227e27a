"""Admits by backlogs served, relative work and work share, preempts by relative KV.

Knows:   prefill served since the arrival, the worst backlog since nobody waited, prefill left,
         tokens computed.
Source:  bred by `queuesmith evolve`; its proof sheet tells lineage and scores.
Caution: found by search on a few windows; compare it on your own traffic before use.
"""

BACKLOGS_SERVED_KEY_ABOVE = -35.3
RELATIVE_WORK_LIMIT = 0.31
WORK_SHARE_WEIGHT = 14.6
BACKLOGS_SERVED_WEIGHT = 5.15
RELATIVE_WORK_KEY_BELOW = -9.11


def waiting_key(request, engine):
    worst_backlog = max(engine.peak_backlog_time, engine.step_time)
    # Prefill served to anybody since it came, over the worst backlog.
    backlogs_served = request.prefill_tokens_since_arrival / engine.token_rate / worst_backlog
    # Prefill left, over the mean of all who wait.
    relative_work = request.num_uncached_tokens / max(engine.mean_waiting_tokens, 1.0)
    # Time of its own prefill, over the worst backlog.
    work_share = request.num_uncached_tokens / engine.token_rate / worst_backlog
    if backlogs_served > 1.0:
        return BACKLOGS_SERVED_KEY_ABOVE
    if relative_work > RELATIVE_WORK_LIMIT:
        weighted_work_share = WORK_SHARE_WEIGHT * work_share
        return weighted_work_share - BACKLOGS_SERVED_WEIGHT * backlogs_served
    return RELATIVE_WORK_KEY_BELOW


def victim_key(request, engine):
    # Tokens that a preemption would lose, over the mean prompt.
    relative_kv = request.num_computed_tokens / max(engine.mean_prompt_tokens, 1.0)
    return -relative_kv

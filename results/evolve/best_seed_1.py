"""Admits by backlogs waited and relative work, preempts by output ratio.

Knows:   the wait so far, the worst backlog since nobody waited, prefill left, tokens produced.
Source:  bred by `queuesmith evolve`; its proof sheet tells lineage and scores.
Caution: found by search on a few windows; compare it on your own traffic before use.
"""

BACKLOGS_WAITED_LIMIT = 0.681
BACKLOGS_WAITED_KEY_ABOVE = 0.279


def waiting_key(request, engine):
    wait = engine.now - request.arrival_time
    worst_backlog = max(engine.peak_backlog_time, engine.step_time)
    # Its wait, over what first come, first served would make the unluckiest wait.
    backlogs_waited = wait / worst_backlog
    # Prefill left, over the mean of all who wait.
    relative_work = request.num_uncached_tokens / max(engine.mean_waiting_tokens, 1.0)
    if backlogs_waited > BACKLOGS_WAITED_LIMIT:
        return BACKLOGS_WAITED_KEY_ABOVE
    return relative_work


def victim_key(request, engine):
    # Tokens produced, over its prompt.
    output_ratio = request.num_output_tokens / request.num_prompt_tokens
    return output_ratio

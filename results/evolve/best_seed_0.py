"""Admits by backlogs waited, preemptions and relative work, preempts by backlog share and progress.

Knows:   the wait so far, the worst backlog since nobody waited, preemptions, prefill left, the
         backlog, tokens computed.
Source:  bred by `queuesmith evolve`; its proof sheet tells lineage and scores.
Caution: found by search on a few windows; compare it on your own traffic before use.
"""

BACKLOGS_WAITED_LIMIT = 0.801


def waiting_key(request, engine):
    wait = engine.now - request.arrival_time
    worst_backlog = max(engine.peak_backlog_time, engine.step_time)
    # Its wait, over what first come, first served would make the unluckiest wait.
    backlogs_waited = wait / worst_backlog
    # How often it lost its KV.
    preemptions = float(request.num_preemptions)
    # Prefill left, over the mean of all who wait.
    relative_work = request.num_uncached_tokens / max(engine.mean_waiting_tokens, 1.0)
    if backlogs_waited > BACKLOGS_WAITED_LIMIT:
        return preemptions
    return relative_work


def victim_key(request, engine):
    num_tokens = request.num_prompt_tokens + request.num_output_tokens
    worst_backlog = max(engine.peak_backlog_time, engine.step_time)
    # The backlog now, over the worst since nobody waited.
    backlog_share = engine.backlog_time / worst_backlog
    # Share of its tokens that is computed; next to 1 in decode.
    progress = request.num_computed_tokens / num_tokens
    return backlog_share * progress

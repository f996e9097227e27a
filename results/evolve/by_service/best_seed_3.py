"""Admits by backlogs waited, wait share and relative work.

Knows:   the wait so far, the worst backlog since nobody waited, the longest wait, prefill left.
Source:  bred by `queuesmith evolve`; its proof sheet tells lineage and scores.
Caution: found by search on a few windows; compare it on your own traffic before use.
"""

BACKLOGS_WAITED_LIMIT = 0.7


def waiting_key(request, engine):
    wait = engine.now - request.arrival_time
    worst_backlog = max(engine.peak_backlog_time, engine.step_time)
    # Its wait, over what first come, first served would make the unluckiest wait.
    backlogs_waited = wait / worst_backlog
    # Its wait, over the longest of all who wait.
    wait_share = wait / max(engine.oldest_wait, engine.step_time)
    # Prefill left, over the mean of all who wait.
    relative_work = request.num_uncached_tokens / max(engine.mean_waiting_tokens, 1.0)
    if backlogs_waited > BACKLOGS_WAITED_LIMIT:
        return -wait_share
    return relative_work

"""Admits by longest wait, relative work and seats taken.

Knows:   the longest wait, the worst backlog since nobody waited, prefill left, how many run.
Source:  bred by `queuesmith evolve`; its proof sheet tells lineage and scores.
Caution: nothing in it grows with the wait, so whoever is passed over may be so for ever.
"""

CEILING = 0.31


def waiting_key(request, engine):
    worst_backlog = max(engine.peak_backlog_time, engine.step_time)
    # The longest wait, over the worst backlog.
    longest_wait = engine.oldest_wait / worst_backlog
    # Prefill left, over the mean of all who wait.
    relative_work = request.num_uncached_tokens / max(engine.mean_waiting_tokens, 1.0)
    # Share of the seats that is taken.
    seats_taken = engine.num_running / engine.max_num_seqs
    return min(longest_wait * (relative_work + seats_taken), CEILING)

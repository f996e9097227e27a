"""Admits by relative work and preemptions, preempts by relative KV.

Knows:   prefill left, preemptions, tokens computed.
Source:  bred by `queuesmith evolve`; its proof sheet tells lineage and scores.
Caution: nothing in it grows with the wait, so whoever is passed over may be so for ever.
"""

RELATIVE_WORK_LIMIT = 0.35
RELATIVE_WORK_KEY_ABOVE = -0.763


def waiting_key(request, engine):
    # Prefill left, over the mean of all who wait.
    relative_work = request.num_uncached_tokens / max(engine.mean_waiting_tokens, 1.0)
    # How often it lost its KV.
    preemptions = float(request.num_preemptions)
    if relative_work < RELATIVE_WORK_LIMIT:
        return RELATIVE_WORK_KEY_ABOVE
    return preemptions


def victim_key(request, engine):
    # Tokens that a preemption would lose, over the mean prompt.
    relative_kv = request.num_computed_tokens / max(engine.mean_prompt_tokens, 1.0)
    return relative_kv

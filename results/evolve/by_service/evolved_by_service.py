"""Short prompts first, until others have been served as much as under first come, first served.

Knows:   prompt length, prefill served since the arrival, the wait, the backlog and its peak.
Source:  queuesmith. The measure is one that searches came upon, the rule was written by hand from
         what they found, and its constants were tuned by CMA-ES on tuning windows.
Caution: made for the time to first token; under load long prompts wait longer for it.
"""

import math

LIMIT = 0.92
STUCK = 2.0
LIMIT_WHEN_STUCK = 0.3
OVERDUE = -30.0
PROMPT_WEIGHT = 20.0
PROMPT_CEILING = 4.0
PACE = 3.6
PACE_SAVED_AT_THE_PEAK = 2.4


def waiting_key(request, engine):
    worst_backlog = max(engine.peak_backlog_time, engine.step_time)
    # Prefill served to anybody since it came, over the worst backlog since nobody waited. First
    # come, first served would serve no more than 1 before it.
    served = request.prefill_tokens_since_arrival / engine.token_rate / worst_backlog
    # Time runs ahead of service where KV blocks, not prefill, hold up the queue.
    waited = (engine.now - request.arrival_time) / worst_backlog
    if waited > STUCK:
        limit = LIMIT_WHEN_STUCK
    else:
        limit = LIMIT
    if served > limit:
        return OVERDUE  # first come, first served among these
    # A prompt twice as long yields the same to others whatever its length; the longest ones alike.
    relative_prompt = request.num_prompt_tokens / max(engine.mean_prompt_tokens, 1.0)
    size = min(math.log1p(PROMPT_WEIGHT * relative_prompt), PROMPT_CEILING)
    # While the backlog is at its worst it may still grow, and there is more time to be fair.
    pace = PACE - PACE_SAVED_AT_THE_PEAK * engine.backlog_time / worst_backlog
    return size - pace * served


def victim_key(request, engine):
    # Whoever loses the least KV, and has the least to compute again.
    return -float(request.num_computed_tokens)

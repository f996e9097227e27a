"""Short prompts first, within what first come, first served would do; the answered wait last.

Knows:   prefill left, prompt length, tokens produced, prefill served since the arrival, the mean
         of all who wait, the backlog's peak.
Source:  queuesmith. A search came upon the short class and upon service as the measure of a wait;
         the rule was written by hand from what searches found, its constants tuned by CMA-ES.
Caution: made for the time to first token. Where KV blocks run out, who has had much of an answer
         waits for the rest of it until all others have had their first token.
"""

import math

SHORT = 0.325
SERVED_LIMIT = 0.94
PACE = 6.0
PROMPT_CEILING = 2.0
ANSWERED = 0.5

OVERDUE = -2_000.0
SHORT_FIRST = -1_000.0
LAST = 1_000.0


def waiting_key(request, engine):
    # Preempted while somebody had much to read already; nobody who has nothing waits for it.
    if request.num_output_tokens > ANSWERED * request.num_prompt_tokens:
        return LAST
    # Prefill served to anybody since it came, over the worst backlog since nobody waited. First
    # come, first served would serve no more than 1 before it.
    worst_backlog = max(engine.peak_backlog_time, engine.step_time)
    served = request.prefill_tokens_since_arrival / engine.token_rate / worst_backlog
    if served > SERVED_LIMIT:
        return OVERDUE  # first come, first served among these
    # Together they are little work, so that all others wait little longer.
    if request.num_uncached_tokens < SHORT * engine.mean_waiting_tokens:
        return SHORT_FIRST
    relative_prompt = request.num_prompt_tokens / max(engine.mean_prompt_tokens, 1.0)
    return math.log1p(min(relative_prompt, PROMPT_CEILING)) - PACE * served


def victim_key(request, engine):
    # Whoever has the longest answer beside what would have to be computed again.
    return float(request.num_output_tokens - request.num_prompt_tokens)

"""Highest response ratio next, in tokens: the longest wait in proportion to the prefill left.

Knows:   the prefill tokens that the engine has computed since the request came, and its own left.
Source:  SGLang's `hrrn` (`schedule_policy.py`, 2026), after Brinch Hansen (1971), who divides the
         wait in seconds. In tokens the ratio says how often the request could have been served in
         the meantime, whatever the engine's speed.
Caution: a request of thousands of tokens waits as many times longer than one of a few.
"""


def waiting_key(request, engine):
    return -request.prefill_tokens_since_arrival / request.num_uncached_tokens

"""Highest response ratio next: the longest wait in proportion to the prefill left.

Knows:   arrival time and prefill left.
Source:  Brinch Hansen (1971), (wait + service) / service. SGLang's `hrrn` (2026) counts the tokens
         prefilled since the arrival instead of the wait, which no field here tells; the two order
         alike only while the prefill rate is steady. This is the classic form.
Caution: a request of thousands of tokens waits as many times longer than one of a few.
"""


def waiting_key(request, engine):
    wait = engine.now - request.arrival_time
    return -wait / max(request.num_uncached_tokens, 1)

"""First come, first served: vLLM's default order.

Knows:   arrival time.
Source:  vLLM's default; Sarathi-Serve, `sarathi/core/policy.py`.
Caution: one long prompt at the head of the queue delays everybody behind it.
"""


def waiting_key(request, engine):
    return request.arrival_time

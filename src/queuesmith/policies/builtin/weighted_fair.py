"""Fair between clients: the client that was served the fewest tokens goes first.

Knows:   the counter of the request's client, one per prompt token and two per output token.
Source:  VTC, Sheng et al., "Fairness in Serving Large Language Models" (arXiv 2401.00588).
Caution: fair to clients, not to requests; where a trace knows no clients all share one counter,
         and this is fcfs.
"""


def waiting_key(request, engine):
    return request.client_tokens

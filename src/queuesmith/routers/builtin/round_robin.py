"""One replica after the other.

Knows:   how many requests it has sent to each; nothing of requests or engines.
Source:  the default of most proxies (nginx, Envoy, Kubernetes services).
Caution: every replica gets the same number of requests, not the same work.
"""


def route_key(request, replica):
    return replica.num_sent

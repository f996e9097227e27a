"""A replica drawn at random.

Knows:   nothing.
Source:  proxies without state; the plain hash of a request.
Caution: the null hypothesis of every comparison of routers, not a recommendation.
"""


def route_key(request, replica):
    return replica.random_rank

"""The less loaded of two replicas drawn at random.

Knows:   how many requests wait and run at the replicas it has drawn.
Source:  Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing" (2001);
         Vvedenskaya, Dobrushin and Karpelevich (1996).
Caution: made for where asking all replicas is too dear; with few of them `least_loaded` is better.
"""

import math

CHOICES = 2


def route_key(request, replica):
    if replica.random_rank >= CHOICES:
        return math.inf
    return replica.num_waiting + replica.num_running

"""The replica with the fewest requests, waiting or running.

Knows:   how many requests wait and run at each replica.
Source:  join the shortest queue (Winston 1977).
Caution: a request counts as one, whatever its length.
"""


def route_key(request, replica):
    return replica.num_waiting + replica.num_running

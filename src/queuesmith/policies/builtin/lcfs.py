"""Last come, first served: the newest request first.

Knows:   arrival time.
Source:  the textbook discipline; a lower bound on fairness for the other policies to beat.
Caution: starves whoever has waited longest for as long as the queue does not empty.
"""


def waiting_key(request, engine):
    return -request.arrival_time

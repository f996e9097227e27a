"""Earliest deadline first; requests without one go last, in order of arrival.

Knows:   the deadline.
Source:  Liu and Layland (1973).
Caution: in overload it serves what is already late before what could still be saved; where a
         trace sets no deadlines, this is fcfs.
"""


def waiting_key(request, engine):
    return request.deadline

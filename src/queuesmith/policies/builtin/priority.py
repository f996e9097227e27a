"""The most urgent first: the lower `priority`, as vLLM counts it.

Knows:   the priority that the client gave; equal ones are served in order of arrival.
Source:  vLLM, `--scheduling-policy priority`, its order of `waiting`. The request to preempt stays
         the engine's choice: set `scheduling_policy` to "priority" for vLLM's whole rule.
Caution: starves low priorities; where a trace has none, this is fcfs.
"""


def waiting_key(request, engine):
    return request.priority

"""How vLLM spreads requests over its own data-parallel engines.

Knows:   how many requests wait and run at each replica, and how full its KV cache is.
Source:  vLLM 0.32.0, `DPLBAsyncMPClient.get_core_engine_for_request`.
Caution: vLLM hears of its engines every 100 ms and breaks ties in turn; here what is known is
         current, and ties go to the lowest number.
"""

PENALTY = 6.0
FREE_USAGE = 0.5


def route_key(request, replica):
    penalty = PENALTY * max(0.0, replica.kv_usage - FREE_USAGE)
    return replica.num_waiting + replica.num_running + penalty * replica.num_waiting

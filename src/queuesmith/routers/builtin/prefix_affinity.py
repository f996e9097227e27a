"""The replica with the least to do, where a prefix that it has cached is not to be done again.

Knows:   the prefill tokens that wait at each replica, the KV cache in use, and how much of the
         request's prompt each replica has cached.
Source:  the cost function of NVIDIA Dynamo's KV router (2025): prefill that is left and KV in use.
Caution: needs prefix caching and a trace with block hashes; without them it goes by load alone.
"""

PREFILL_WEIGHT = 1.0


def route_key(request, replica):
    prefill = replica.waiting_tokens + request.num_prompt_tokens - replica.num_cached_tokens
    return PREFILL_WEIGHT * prefill + replica.used_kv_tokens

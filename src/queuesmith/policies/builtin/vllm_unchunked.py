"""First come, first served with whole prompts: each is computed in one step.

Knows:   arrival time. A bundle: it switches chunked prefill off, which needs a budget as large as
         the longest request.
Source:  vLLM before chunked prefill became its default.
Caution: one long prompt stalls every running answer for the length of its prefill.
"""

ENGINE = {"enable_chunked_prefill": False, "max_num_batched_tokens": 131072}


def waiting_key(request, engine):
    return request.arrival_time

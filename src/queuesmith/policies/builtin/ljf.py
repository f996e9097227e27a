"""Longest prompt first, counting only the prefill that is left to compute.

Knows:   prompt length less prefix-cache hits; no prediction of the output length.
Source:  the textbook reverse of shortest job first, close to SGLang's `lof`; what to avoid.
Caution: starves short prompts, which are most of them; made to be compared with, not to be used.
"""


def waiting_key(request, engine):
    return -request.num_uncached_tokens

"""Shortest prompt first, counting only the prefill that is left to compute.

Knows:   prompt length less prefix-cache hits; no prediction of the output length.
Source:  BLIS, `sim/scheduler.go`; the shortest-job-first baselines of sched-sim and TANREN.
Caution: starves long prompts for as long as shorter ones keep arriving.
"""


def waiting_key(request, engine):
    # After a preemption this counts the tokens to recompute, output included, which is the work
    # that an admission would really cost.
    return request.num_uncached_tokens

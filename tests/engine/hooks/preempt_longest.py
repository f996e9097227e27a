"""Displacement by a key that grows with progress, the case that could livelock."""

PREEMPTIVE = True


def waiting_key(request, engine):
    return request.num_computed_tokens + request.num_output_tokens * 3

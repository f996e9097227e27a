"""Every hook at once, each with an opinion that changes from step to step."""

PREEMPTIVE = True


def waiting_key(request, engine):
    return request.num_prompt_tokens - (engine.now - request.arrival_time) * 37.0


def victim_key(request, engine):
    return (request.num_prompt_tokens * 7 + request.num_output_tokens) % 5


def admit(request, engine):
    return (request.num_prompt_tokens + engine.num_running) % 3 > 0


def hold(request, engine):
    return (request.num_output_tokens + engine.num_waiting) % 4 == 1

"""Fairness counters read by every hook, with requests held."""


def waiting_key(request, engine):
    return request.client_tokens + request.priority


def victim_key(request, engine):
    return request.client_tokens


def hold(request, engine):
    return request.client_tokens > 60 and request.num_output_tokens > 0 and engine.num_running > 1

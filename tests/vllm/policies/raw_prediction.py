"""Shortest predicted output first, without a thought for the NaN of an unknown one."""


def waiting_key(request, engine):
    return request.predicted_output_tokens


def victim_key(request, engine):
    return -request.predicted_output_tokens

"""Least laxity first for what can still meet its deadline; under pressure long answers wait.

Knows:   deadline, prefill left, predicted output, and how full seats, queue and KV cache are.
Source:  SCORPIO (arXiv 2505.23022) as modelled by `scorpio_style_slo_guard` in LSSP (2026). Its
         credits, which count admissions over steps, need memory that a pure function lacks; its
         score adds seconds to tokens, which here is all seconds.
Caution: what is already lost goes last, so in overload it waits until the load recedes.
"""

import math

KV_PRESSURE = 0.65
SEAT_PRESSURE = 0.70
QUEUE_PRESSURE = 3.0  # waiting requests for each seat
LONG_ANSWER = 256  # tokens
URGENT_LAXITY = 0.5  # s
GUARD_WEIGHT = 0.35


def waiting_key(request, engine):
    spare = laxity(request, engine)
    if spare < 0.0:
        return math.inf
    if guarded(engine):
        # A long answer holds its seat, the more so the fewer there are.
        spare += GUARD_WEIGHT * decode_time(request, engine) * seats(engine)
    return spare


def admit(request, engine):
    if engine.kv_usage < KV_PRESSURE or not request.predicted_output_tokens > LONG_ANSWER:
        return True
    return laxity(request, engine) < URGENT_LAXITY


def guarded(engine):
    queue = engine.num_waiting / max(engine.max_num_seqs, 1)
    full = engine.kv_usage >= KV_PRESSURE or seats(engine) >= SEAT_PRESSURE
    return full or queue >= QUEUE_PRESSURE


def seats(engine):
    return engine.num_running / max(engine.max_num_seqs, 1)


def laxity(request, engine):
    service = request.num_uncached_tokens / engine.token_rate + decode_time(request, engine)
    return request.deadline - engine.now - service


def decode_time(request, engine):
    if math.isnan(request.predicted_output_tokens):
        return 0.0
    left = max(request.predicted_output_tokens - request.num_output_tokens, 0.0)
    return left * engine.step_time

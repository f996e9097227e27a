"""Least attained service first: whoever has had the fewest tokens computed, preemptively.

Knows:   tokens computed and produced so far; no length is predicted.
Source:  Nuyens and Wierman, "The Foreground-Background queue: a survey" (2008).
Caution: under load every arrival displaces the most served request, whose work is computed again;
         long requests starve.
"""

PREEMPTIVE = True


def waiting_key(request, engine):
    return attained(request)


def victim_key(request, engine):
    return attained(request)


def attained(request):
    # A preemption sets `num_computed_tokens` to 0, yet the service was had.
    if request.num_output_tokens > 0:
        return request.num_prompt_tokens + request.num_output_tokens
    return request.num_computed_tokens

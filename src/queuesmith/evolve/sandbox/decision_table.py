"""What a policy does, as a table: whom it would admit first at low and at high load."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

from queuesmith.policies import Policy, get_policy

#: Prompts of those who wait, in tokens, and how long they have waited, as a share of what first
#: come, first served would make the worst-served request wait.
PROMPTS = {"short": 100, "usual": 1_000, "long": 8_000}
WAITS = {"just came": 0.02, "has waited": 0.4, "has waited long": 0.95, "is overdue": 2.5}
#: Loads by name: how many requests of each kind wait.
LOADS = {"low": 1, "high": 12}
#: The worst backlog since nobody waited, over the one now.
_WORST = 1.25

_TOKEN_RATE = 20_000.0  # prefill tokens/s
_STEP_TIME = 0.1  # s


@dataclass(frozen=True)
class Situation:
    """A request in a queue, and where policies put it."""

    load: str  # a key of ``LOADS``
    request: str  # what it is in words
    num_prompt_tokens: int
    wait: float  # seconds
    place: int  # from 1, the one to be admitted first
    #: place_by_arrival, place_by_prompt: the same under fcfs and sjf.
    place_by_arrival: int
    place_by_prompt: int


def situations(policy: Policy) -> tuple[Situation, ...]:
    """Return where a policy puts requests of all kinds at each load, in the order it admits them.

    The requests are one of each prompt and wait; the engine row agrees with them. No prediction is
    made and no deadline set.

    Examples
    --------
    >>> first = situations(get_policy("sjf"))[0]
    >>> first.load, first.request, first.place_by_arrival
    ('low', 'a short prompt that is overdue', 1)
    """
    return tuple(
        situation for load, copies in LOADS.items() for situation in _at_load(policy, load, copies)
    )


def _at_load(policy: Policy, load: str, copies: int) -> Iterator[Situation]:
    kinds = [(size, what) for what in reversed(WAITS) for size in PROMPTS]
    backlog = copies * sum(PROMPTS[size] for size, _ in kinds) / _TOKEN_RATE
    requests = [
        _request(PROMPTS[size], round(WAITS[what] * _WORST * backlog, 2)) for size, what in kinds
    ]
    engine = _engine(requests, copies)
    places = [_places(each, requests, engine) for each in (policy, *_known())]
    for row in sorted(range(len(kinds)), key=lambda row: places[0][row]):
        size, what = kinds[row]
        request = requests[row]
        yield Situation(
            load,
            f"a {size} prompt that {what}",
            request.num_prompt_tokens,
            round(_NOW - request.arrival_time, 2),
            *(place[row] for place in places),
        )


@cache
def _known() -> tuple[Policy, Policy]:
    return get_policy("fcfs"), get_policy("sjf")


def _places(policy: Policy, requests: list[Any], engine: Any) -> list[int]:
    """Return the place of each request, from 1; equal keys go by arrival."""
    keys = [float(policy.waiting_key(request, engine)) for request in requests]
    known = [key if key == key else float("inf") for key in keys]
    order = sorted(range(len(keys)), key=lambda row: (known[row], requests[row].arrival_time, row))
    return [order.index(row) + 1 for row in range(len(keys))]


_NOW = 1_000.0  # s


def _request(prompt: int, wait: float) -> SimpleNamespace:
    return SimpleNamespace(
        arrival_time=_NOW - wait, num_prompt_tokens=prompt, num_computed_tokens=0,
        num_output_tokens=0, num_preemptions=0, max_tokens=1_024, priority=0,
        num_uncached_tokens=prompt, predicted_output_tokens=float("nan"), deadline=float("inf"),
        last_token_ts=_NOW - wait, client_tokens=1_000.0,
        prefill_tokens_since_arrival=int(wait * _TOKEN_RATE),
    )  # fmt: skip


def _engine(requests: list[Any], copies: int) -> SimpleNamespace:
    """Return an engine whose `waiting` holds so many of each request."""
    waits = [_NOW - request.arrival_time for request in requests]
    num_waiting = copies * len(requests)
    waiting_tokens = copies * sum(request.num_prompt_tokens for request in requests)
    mean_prompt = waiting_tokens / num_waiting
    backlog = waiting_tokens / _TOKEN_RATE
    return SimpleNamespace(
        now=_NOW, num_waiting=num_waiting, num_running=64, max_num_seqs=256, token_budget=2_048,
        kv_usage=0.5, free_kv_tokens=200_000, waiting_tokens=waiting_tokens,
        mean_waiting_tokens=mean_prompt, mean_wait=sum(waits) / len(waits), oldest_wait=max(waits),
        step_time=_STEP_TIME, token_rate=_TOKEN_RATE, recent_ttft=_STEP_TIME + 0.5 * backlog,
        arrival_rate=_TOKEN_RATE / mean_prompt, mean_prompt_tokens=mean_prompt,
        backlog_time=backlog, peak_backlog_time=_WORST * backlog,
    )  # fmt: skip

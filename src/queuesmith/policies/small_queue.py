"""What a policy does with a queue small enough to read."""

import math
from dataclasses import dataclass
from types import SimpleNamespace

from queuesmith.errors import PolicyError
from queuesmith.policies.policy import Policy

#: Seconds waited, tokens of the prompt and of the output predicted, and priority of each request.
WAITING = (
    (8.0, 6000, 400, 0),
    (4.0, 200, 900, 0),
    (2.0, 1500, 50, 1),
    (1.0, 1500, 50, 0),
    (0.5, 100, 20, 2),
    (0.1, 30_000, 10, 0),
)
_NOW = 100.0  # s
_PROMPTS = sum(prompt for _, prompt, _, _ in WAITING)
_WAITS = [wait for wait, _, _, _ in WAITING]
_ENGINE = {
    "now": _NOW, "num_waiting": len(WAITING), "num_running": 20, "max_num_seqs": 64,
    "token_budget": 8192, "kv_usage": 0.5, "free_kv_tokens": 200_000, "waiting_tokens": _PROMPTS,
    "mean_waiting_tokens": _PROMPTS / len(WAITING), "mean_wait": sum(_WAITS) / len(WAITING),
    "oldest_wait": max(_WAITS), "step_time": 0.02, "token_rate": 10_000.0, "recent_ttft": 1.0,
    "arrival_rate": 10.0, "mean_prompt_tokens": 1000.0, "backlog_time": _PROMPTS / 10_000,
    "peak_backlog_time": _PROMPTS / 10_000,
}  # fmt: skip


@dataclass(frozen=True)
class Place:
    """One waiting request and what the policy says of it.

    Attributes
    ----------
    wait : float
        Seconds since it arrived.
    prompt, predicted_output : int
        Tokens.
    priority : int
    key : float
        What `waiting_key` gives; the smallest goes first.
    admitted : bool
        Whether `admit` lets it run in this step; without that hook, always.
    """

    wait: float
    prompt: int
    predicted_output: int
    priority: int
    key: float
    admitted: bool


def small_queue(policy: Policy) -> list[Place]:
    """Return the requests of `WAITING` in the order in which a policy would admit them.

    Raises
    ------
    PolicyError
        If a hook fails on one of them.

    Examples
    --------
    >>> from queuesmith.policies import get_policy
    >>> [place.prompt for place in small_queue(get_policy("sjf"))]
    [100, 200, 1500, 1500, 6000, 30000]
    """
    return sorted((_ask(policy, *each) for each in WAITING), key=_order)


def _ask(policy: Policy, wait: float, prompt: int, output: int, priority: int) -> Place:
    request = SimpleNamespace(
        arrival_time=_NOW - wait,
        num_prompt_tokens=prompt,
        num_computed_tokens=0,
        num_output_tokens=0,
        num_preemptions=0,
        max_tokens=4096,
        priority=priority,
        num_uncached_tokens=prompt,
        predicted_output_tokens=float(output),
        last_token_ts=_NOW - wait,
        deadline=math.inf,
        client_tokens=0.0,
        prefill_tokens_since_arrival=int(10_000 * wait),
    )
    engine = SimpleNamespace(**_ENGINE)
    try:
        key = float(policy.waiting_key(request, engine))
        admitted = bool(policy.admit is None or policy.admit(request, engine))
    except Exception as error:
        raise PolicyError(
            f"{policy.name}: {type(error).__name__} ({error}) for a prompt of {prompt} tokens that "
            f"has waited {wait:g} s; `queuesmith policies FILE --check` says which values fail"
        ) from error
    return Place(wait, prompt, output, priority, key, admitted)


def _order(place: Place) -> tuple[bool, float, float]:
    """Those kept back come last, as does a key that is no number; who came first breaks ties."""
    return not place.admitted, math.inf if math.isnan(place.key) else place.key, -place.wait

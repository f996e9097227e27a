"""What a program can see: ratios of the two rows that mean the same on every machine and load.

A policy that is told seconds and tokens is tied to the engine it was tuned on. Each term here is
such a number over another of its kind: a prompt over the mean of those that wait, a wait over the
worst backlog. A term is a line of the policy file that it ends up in, and is computed from that
same line everywhere else, so that no second meaning can drift away from the first.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: The hooks that a program gives.
HOOKS = ("waiting_key", "victim_key")
#: What some traffic cannot tell; a term that needs it is only used when that is allowed.
KNOWLEDGE = ("deadlines", "predictions")


@dataclass(frozen=True)
class Term:
    """A number without a unit that a program can see."""

    name: str  # of the variable in the policy file
    expression: str  # in the policy language, over `request`, `engine` and quantities
    meaning: str  # the comment above that line
    knows: str  # what a policy that reads it knows, for the docstring
    #: low, high: the least and the largest value in any reachable state. `low` holds by
    #: construction, for any row within the contract; `high` takes the engine's word that its fields
    #: agree.
    low: float = 0.0
    high: float = math.inf
    uses: tuple[str, ...] = ()  # quantities
    hooks: tuple[str, ...] = HOOKS  # hooks in which it says something
    is_common: bool = False  # whether it is the same for all requests of a step
    needs: str = ""  # one of ``KNOWLEDGE``, or empty


#: Lines that terms are made of, which have a unit.
QUANTITIES: Mapping[str, str] = {
    "wait": "engine.now - request.arrival_time",
    "age": "engine.now - request.arrival_time",
    "num_tokens": "request.num_prompt_tokens + request.num_output_tokens",
    "time_to_go": "request.deadline - engine.now",
    "time_allowed": "max(request.deadline - request.arrival_time, engine.step_time)",
    "predicted": "request.predicted_output_tokens",
    # A backlog under one step is none, whatever its ratio to another such.
    "worst_backlog": "max(engine.peak_backlog_time, engine.step_time)",
}

_WAITING = ("waiting_key",)
_VICTIM = ("victim_key",)
#: One token of a million is the least that a ratio of lengths can be: 1 to 100 million tokens.
_LEAST_RATIO = 1e-8
_PEAK = "the worst backlog since nobody waited"

_ALL = (
    # Of a waiting request
    Term("relative_work", "request.num_uncached_tokens / max(engine.mean_waiting_tokens, 1.0)",
         "Prefill left, over the mean of all who wait.", "prefill left", low=_LEAST_RATIO,
         hooks=_WAITING),
    Term("steps_of_work", "request.num_uncached_tokens / engine.token_budget",
         "Full steps that its prefill would fill.", "prefill left", low=_LEAST_RATIO,
         hooks=_WAITING),
    Term("work_share", "request.num_uncached_tokens / engine.token_rate / worst_backlog",
         "Time of its own prefill, over the worst backlog.", f"prefill left, {_PEAK}",
         uses=("worst_backlog",), hooks=_WAITING),
    Term("cached_share", "1.0 - request.num_uncached_tokens / num_tokens",
         "Share of its prompt that the prefix cache holds.", "prefix-cache hits", high=1.0,
         uses=("num_tokens",), hooks=_WAITING),
    Term("wait_share", "wait / max(engine.oldest_wait, engine.step_time)",
         "Its wait, over the longest of all who wait.", "the wait so far, the longest wait",
         high=1.0, uses=("wait",), hooks=_WAITING),
    Term("relative_wait", "wait / max(engine.mean_wait, engine.step_time)",
         "Its wait, over the mean of all who wait.", "the wait so far, the mean wait",
         uses=("wait",), hooks=_WAITING),
    Term("usual_waits", "wait / engine.recent_ttft",
         "Its wait, over the recent time to first token.",
         "the wait so far, the recent time to first token", uses=("wait",), hooks=_WAITING),
    Term("backlogs_waited", "wait / worst_backlog",
         "Its wait, over what first come, first served would make the worst-served request wait.",
         f"the wait so far, {_PEAK}", uses=("wait", "worst_backlog"), hooks=_WAITING),
    Term("backlogs_served",
         "request.prefill_tokens_since_arrival / engine.token_rate / worst_backlog",
         "Prefill served to anybody since it came, over the worst backlog.",
         f"prefill served since the arrival, {_PEAK}", uses=("worst_backlog",), hooks=_WAITING),
    Term("times_overtaken", "request.prefill_tokens_since_arrival / request.num_uncached_tokens",
         "Prefill served to anybody since it came, over its own.",
         "prefill served since the arrival, prefill left", hooks=_WAITING),
    # Of a running request
    Term("progress", "request.num_computed_tokens / num_tokens",
         "Share of its tokens that is computed; next to 1 in decode.", "tokens computed", high=1.0,
         uses=("num_tokens",), hooks=_VICTIM),
    Term("steps_left", "(num_tokens - request.num_computed_tokens) / engine.token_budget",
         "Full steps that its missing tokens would fill.", "prefill left", uses=("num_tokens",),
         hooks=_VICTIM),
    Term("relative_kv", "request.num_computed_tokens / max(engine.mean_prompt_tokens, 1.0)",
         "Tokens that a preemption would lose, over the mean prompt.", "tokens computed",
         hooks=_VICTIM),
    Term("output_ratio", "request.num_output_tokens / request.num_prompt_tokens",
         "Tokens produced, over its prompt.", "tokens produced", hooks=_VICTIM),
    Term("usual_ages", "age / engine.recent_ttft",
         "Time since it came, over the recent time to first token.",
         "arrival time, the recent time to first token", uses=("age",), hooks=_VICTIM),
    Term("stall_share", "(engine.now - request.last_token_ts) / max(age, engine.step_time)",
         "Time since its last token, over the time since it came.", "the time of the last token",
         high=1.0, uses=("age",), hooks=_VICTIM),
    # Of either
    Term("relative_prompt", "request.num_prompt_tokens / max(engine.mean_prompt_tokens, 1.0)",
         "Its prompt, over the mean of all so far.", "prompt length", low=_LEAST_RATIO),
    Term("preemptions", "float(request.num_preemptions)", "How often it lost its KV.",
         "preemptions"),
    Term("time_left", "1.0 if math.isinf(time_allowed) else time_to_go / time_allowed",
         "Share of the time to its deadline that is left.", "the deadline", low=-math.inf,
         high=1.0, uses=("time_to_go", "time_allowed"), needs="deadlines"),
    Term("expected_output",
         "1.0 if math.isnan(predicted) else predicted / request.num_prompt_tokens",
         "Predicted output, over its prompt; 1 when nothing is predicted.",
         "the predicted output length", uses=("predicted",), needs="predictions"),
    # Of the engine
    Term("queue_ratio", "engine.num_waiting / engine.max_num_seqs",
         "Waiting requests for each seat.", "how many wait", is_common=True),
    Term("seats_taken", "engine.num_running / engine.max_num_seqs",
         "Share of the seats that is taken.", "how many run", high=1.0, is_common=True),
    Term("backlog_steps", "engine.waiting_tokens / engine.token_budget",
         "Full steps that the prefill of all who wait would fill.", "prefill left of all who wait",
         is_common=True),
    Term("backlog_share", "engine.backlog_time / worst_backlog",
         "The backlog now, over the worst since nobody waited.", f"the backlog, {_PEAK}", high=1.0,
         uses=("worst_backlog",), is_common=True),
    Term("backlog_growth", "engine.backlog_time / engine.recent_ttft",
         "The backlog now, over the recent time to first token.",
         "the backlog, the recent time to first token", is_common=True),
    Term("longest_wait", "engine.oldest_wait / worst_backlog",
         "The longest wait, over the worst backlog.", f"the longest wait, {_PEAK}",
         uses=("worst_backlog",), is_common=True),
    Term("kv_use", "engine.kv_usage", "Share of the KV blocks in use.", "KV use", high=1.0,
         is_common=True),
)  # fmt: skip

TERMS: Mapping[str, Term] = {term.name: term for term in _ALL}


def usable_terms(hook: str, knowledge: Iterable[str] = ()) -> tuple[Term, ...]:
    """Return the terms that a hook may read where no more than `knowledge` is known."""
    allowed = {"", *knowledge}
    return tuple(term for term in _ALL if hook in term.hooks and term.needs in allowed)


def quantities_of(names: Iterable[str]) -> tuple[str, ...]:
    """Return the quantities that terms are made of."""
    wanted = {use for name in names for use in TERMS[name].uses}
    return tuple(name for name in QUANTITIES if name in wanted)


def term_values(
    hook: str, requests: Sequence[Any], engines: Sequence[Any]
) -> dict[str, NDArray[np.float64]]:
    """Compute every term of a hook on pairs of rows, by its own line in plain Python.

    Returns
    -------
    dict of str to (num_rows,) float64
    """
    terms = usable_terms(hook, KNOWLEDGE)
    names = quantities_of(term.name for term in terms)
    lines = [(name, _code(QUANTITIES[name])) for name in names]
    lines += [(term.name, _code(term.expression)) for term in terms]
    values: dict[str, list[float]] = {term.name: [] for term in terms}
    for request, engine in zip(requests, engines, strict=True):
        known: dict[str, Any] = {"request": request, "engine": engine}
        for name, code in lines:
            known[name] = eval(code, _NAMES, known)
        for name, row in values.items():
            row.append(float(known[name]))
    return {name: np.array(row, np.float64) for name, row in values.items()}


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {"max": max, "min": min, "float": float}
_NAMES: dict[str, Any] = {"__builtins__": {}, "math": math, **_FUNCTIONS}


def _code(expression: str) -> CodeType:
    return compile(expression, "term", "eval")

"""What a policy does, told by the order in which it serves a fixed set of queues.

Two texts that order all of them alike are one candidate, whatever they say; the second need not be
simulated. Equal keys are ordered as an engine orders them, so that ties are part of the behaviour.
The set is drawn from a seed, so hashes are to be compared only where one NumPy made them.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from queuesmith.errors import PolicyError
from queuesmith.evolve.gp.program import Program, evaluate
from queuesmith.evolve.gp.terminals import HOOKS, term_values
from queuesmith.policies import Policy

#: The fixed set: so many queues, drawn from this seed.
NUM_QUEUES = 64
SEED = 20_260
#: Most requests of a drawn queue that are shown; the engine row may speak of many more.
MAX_WAITING, MAX_RUNNING = 24, 12


@dataclass(frozen=True, eq=False)
class Rows:
    """Requests of one kind with the engine row that each is asked about with, queue after queue."""

    #: requests, engines: within a queue in the order in which an engine breaks ties: waiting
    #: requests by arrival, running ones by admission.
    requests: Sequence[Any]
    engines: Sequence[Any]
    queue: NDArray[np.int64]  # (num_rows,) int64: Which queue each is in, rising
    hook: str  # whose terms `values` are

    @cached_property
    def values(self) -> dict[str, NDArray[np.float64]]:
        """Every term of the hook on these rows."""
        return term_values(self.hook, self.requests, self.engines)

    def order(self, keys: NDArray[np.float64]) -> bytes:
        """Return who comes first, second, ... in each queue, by key and then by place."""
        known = np.where(np.isnan(keys), math.inf, keys)
        return np.lexsort((known, self.queue)).astype("<i4").tobytes()


@dataclass(frozen=True, eq=False)
class Queues:
    """States of an engine: who waits, who runs, and the engine row."""

    waiting: Rows
    running: Rows

    @classmethod
    def of(cls, states: Sequence[tuple[Any, Sequence[Any], Sequence[Any]]]) -> "Queues":
        """Build them from states.

        Parameters
        ----------
        states : sequence of (engine, waiting, running)
            An engine row, the waiting requests by arrival, and the running ones by admission, as
            plain objects with the fields of the rows.
        """
        rows = []
        for kind, hook in enumerate(HOOKS):
            requests = [request for state in states for request in state[1 + kind]]
            engines = [state[0] for state in states for _ in state[1 + kind]]
            sizes = [len(state[1 + kind]) for state in states]
            rows.append(Rows(requests, engines, np.repeat(np.arange(len(states)), sizes), hook))
        return cls(*rows)

    def rows(self, hook: str) -> Rows:
        """Return the rows that a hook is asked about."""
        return self.waiting if hook == "waiting_key" else self.running

    @cached_property
    def everyone(self) -> Rows:
        """All requests, whom a preemptive policy compares with each other."""
        both = (self.waiting, self.running)
        queue = np.concatenate([rows.queue for rows in both])
        requests = [request for rows in both for request in rows.requests]
        engines = [engine for rows in both for engine in rows.engines]
        order = np.argsort(queue, kind="stable")
        return Rows(
            [requests[row] for row in order],
            [engines[row] for row in order],
            queue[order],
            "waiting_key",
        )


def behaviour(candidate: Program | Policy, queues: Queues | None = None) -> str:
    """Return a hash of what a program or a policy does to a set of queues.

    Parameters
    ----------
    candidate : Program or Policy
        The hash of a program is that of the policy written from it. The hooks of a policy are
        called, in plain Python.

    Examples
    --------
    >>> from queuesmith.policies import get_policy
    >>> behaviour(get_policy("sjf")) == behaviour(get_policy("fcfs"))
    False
    """
    queues = queues or fixed_queues()
    shown = (
        orders(candidate, queues) if isinstance(candidate, Program) else _asked(candidate, queues)
    )
    return hashlib.blake2b(shown, digest_size=16).hexdigest()


def orders(program: Program, queues: Queues) -> bytes:
    """Return the orders in which a program admits and preempts, one after the other."""
    parts = []
    for hook in HOOKS:
        tree, rows = program.trees.get(hook), queues.rows(hook)
        keys = np.zeros(len(rows.queue))  # without a hook, the engine's own order
        if tree is not None:
            keys = evaluate(tree, rows.values, len(rows.queue))
        parts.append(rows.order(keys))
    return b"".join(parts)


@cache
def fixed_queues() -> Queues:
    """Return the fixed set of queues: from nearly idle to overloaded, on engines of all sizes."""
    return draw_queues(NUM_QUEUES, np.random.default_rng(SEED))


def _asked(policy: Policy, queues: Queues) -> bytes:
    """Return what a policy does, in bytes; what it leaves to the engine adds none."""
    parts = []
    for hook in HOOKS:
        rows, function = queues.rows(hook), policy.hooks.get(hook)
        keys = ask(policy, hook, rows) if function else np.zeros(len(rows.queue))
        parts.append(rows.order(keys))
    if policy.admit and not all(admitted := ask(policy, "admit", queues.waiting)):
        parts.append(b"admit" + admitted.astype(bool).tobytes())
    if policy.hold and any(held := ask(policy, "hold", queues.running)):
        parts.append(b"hold" + held.astype(bool).tobytes())
    if policy.preemptive:
        keys = ask(policy, "waiting_key", queues.everyone)
        parts.append(b"preemptive" + queues.everyone.order(keys))
    if policy.oracle:
        parts.append(b"oracle")
    if policy.engine:
        parts.append(repr(sorted(policy.engine.items())).encode())
    return b"".join(parts)


def ask(policy: Policy, hook: str, rows: Rows) -> NDArray[np.float64]:
    """Return what a hook answers about every request of the queues.

    Raises
    ------
    PolicyError
        If it raises, which it would in an engine too.
    """
    function = policy.hooks[hook]
    try:
        return np.array(
            [
                float(function(request, engine))
                for request, engine in zip(rows.requests, rows.engines, strict=True)
            ],
            np.float64,
        )
    except Exception as error:
        raise PolicyError(
            f"{policy.name}: {hook} raises {type(error).__name__} ({error}) on a queue that an "
            "engine may show; guard against it"
        ) from error


def draw_queues(num_queues: int, rng: np.random.Generator) -> Queues:
    """Draw states of engines: lengths, loads, cache hits and preemptions of all kinds."""
    return Queues.of([_draw_state(rng) for _ in range(num_queues)])


@dataclass(frozen=True)
class _Load:
    """What the requests of a drawn state have in common."""

    now: float
    token_rate: float
    token_budget: int
    step_time: float
    backlog_time: float
    median_prompt: float
    spread: float  # of the logarithm of prompts
    has_deadlines: bool
    has_predictions: bool

    def prompts(self, rng: np.random.Generator, count: int) -> list[int]:
        lengths = rng.lognormal(math.log(self.median_prompt), self.spread, count)
        return [int(length) for length in np.clip(lengths, 1, 120_000)]

    def request(
        self, rng: np.random.Generator, prompt: int, age: float, **known: Any
    ) -> SimpleNamespace:
        arrival_time = self.now - age
        allowed = float(rng.uniform(0.2, 3.0)) * (prompt / self.token_rate + 10.0)
        predicted = float(rng.lognormal(math.log(200), 1.0))
        usual = {
            "arrival_time": arrival_time, "num_prompt_tokens": prompt, "num_computed_tokens": 0,
            "num_output_tokens": 0, "num_preemptions": 0,
            "max_tokens": int(rng.choice([256, 1024, 4096])),
            "priority": int(rng.integers(0, 3)), "num_uncached_tokens": prompt,
            "predicted_output_tokens": predicted if self.has_predictions else math.nan,
            "deadline": arrival_time + allowed if self.has_deadlines else math.inf,
            "last_token_ts": arrival_time,
            "client_tokens": float(rng.lognormal(math.log(5_000), 1.0)),
            "prefill_tokens_since_arrival": int(age * self.token_rate * rng.uniform(0.6, 1.0)),
        }  # fmt: skip
        return SimpleNamespace(**{**usual, **known})


def _draw_state(rng: np.random.Generator) -> tuple[Any, list[Any], list[Any]]:
    """Draw an engine row, waiting requests by arrival, and running ones by admission."""
    token_budget = int(rng.choice([512, 2048, 8192]))
    token_rate = float(rng.lognormal(math.log(20_000), 0.8))
    num_waiting = max(1, int(rng.lognormal(math.log(12), 1.2)))
    median_prompt = float(rng.lognormal(math.log(700), 1.0))
    load = _Load(
        now=float(rng.uniform(50.0, 5_000.0)),
        token_rate=token_rate,
        token_budget=token_budget,
        step_time=float(min(token_budget / token_rate, 0.5) * rng.uniform(0.1, 1.0)),
        backlog_time=num_waiting * 1.3 * median_prompt / token_rate,
        median_prompt=median_prompt,
        spread=float(rng.uniform(0.2, 1.4)),
        has_deadlines=bool(rng.random() < 0.5),
        has_predictions=bool(rng.random() < 0.5),
    )
    max_num_seqs = int(rng.choice([16, 64, 256, 1024]))
    num_running = int(rng.integers(1, min(max_num_seqs, 200) + 1))
    waiting = _draw_waiting(load, min(num_waiting, MAX_WAITING), rng)
    running = _draw_running(load, min(num_running, MAX_RUNNING), rng)
    engine = _draw_engine(load, waiting, num_waiting, rng)
    engine.num_running, engine.max_num_seqs = num_running, max_num_seqs
    return engine, waiting, running


def _draw_waiting(load: _Load, count: int, rng: np.random.Generator) -> list[SimpleNamespace]:
    # A policy that is not first come, first served leaves some behind.
    ages = rng.exponential(load.backlog_time * rng.uniform(0.2, 1.5), count)
    ages[rng.random(count) < 0.1] *= 3.0
    ages = np.sort(ages)[::-1]
    if count > 3 and rng.random() < 0.3:
        ages[2] = ages[1]  # two came at once
    waiting = []
    for prompt, age in zip(load.prompts(rng, count), ages.tolist(), strict=True):
        output = int(rng.integers(1, 200)) if rng.random() < 0.05 else 0  # preempted once
        hits = 16 * int(rng.uniform(0.0, prompt / 16)) if rng.random() < 0.3 else 0
        known = {
            "num_output_tokens": output,
            "num_preemptions": int(output > 0),
            "num_uncached_tokens": max(1, prompt + output - hits),
        }
        waiting.append(load.request(rng, prompt, age, **known))
    return waiting


def _draw_running(load: _Load, count: int, rng: np.random.Generator) -> list[SimpleNamespace]:
    running = []
    for prompt in load.prompts(rng, count):
        decodes = rng.random() < 0.8
        output = int(rng.lognormal(math.log(100), 1.0)) + 1 if decodes else 0
        age = float(rng.exponential(load.backlog_time + load.step_time)) + output * load.step_time
        known = {
            "num_output_tokens": output,
            "num_computed_tokens": prompt + output - 1 if decodes else int(rng.uniform(0, prompt)),
            "num_preemptions": int(rng.random() < 0.1),
            "last_token_ts": load.now - (min(age, load.step_time) if decodes else age),
        }
        running.append(load.request(rng, prompt, age, **known))
    return running


def _draw_engine(
    load: _Load, waiting: list[SimpleNamespace], num_waiting: int, rng: np.random.Generator
) -> SimpleNamespace:
    """Draw an engine row that agrees with who waits; more may wait than are shown."""
    shown_tokens = sum(request.num_uncached_tokens for request in waiting)
    waiting_tokens = shown_tokens * num_waiting // len(waiting)
    waits = [load.now - request.arrival_time for request in waiting]
    backlog_time = waiting_tokens / load.token_rate
    mean_prompt = max(1.0, float(load.median_prompt * rng.uniform(0.7, 2.5)))
    kv_usage = float(rng.beta(2.0, 1.0))
    return SimpleNamespace(
        now=load.now,
        num_waiting=num_waiting,
        token_budget=load.token_budget,
        kv_usage=kv_usage,
        free_kv_tokens=16 * int((1.0 - kv_usage) * rng.lognormal(math.log(3_000), 1.5)),
        waiting_tokens=waiting_tokens,
        mean_waiting_tokens=waiting_tokens / num_waiting,
        mean_wait=sum(waits) / len(waits),
        oldest_wait=max(waits),
        step_time=load.step_time,
        token_rate=load.token_rate,
        recent_ttft=load.step_time + float(backlog_time * rng.lognormal(-0.5, 0.7)),
        arrival_rate=load.token_rate / mean_prompt * float(rng.uniform(0.3, 1.5)),
        mean_prompt_tokens=mean_prompt,
        backlog_time=backlog_time,
        peak_backlog_time=backlog_time * (1.0 + float(rng.exponential(rng.choice([0, 0.3, 2])))),
    )

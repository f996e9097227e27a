"""What a policy wants done in one step, found without changing anything.

All hooks are asked first, on the state at the step's start; only whoever holds the answers changes
vLLM's queues. So a hook that fails leaves the scheduler as it was.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from queuesmith.deploy.rows import RequestRow
from queuesmith.policies import Policy


class HookFault(Exception):
    """A hook failed: which one, and how."""

    def __init__(self, hook: str, cause: str) -> None:
        self.kind = f"{hook}: {cause}"
        super().__init__(self.kind)


@dataclass
class Choice:
    """What a policy wants.

    Attributes
    ----------
    order : list of int or None
        Places in `waiting`, the first to be admitted first; None to leave `waiting` alone.
    aside : list of int
        Places in `waiting` that are not admitted in this step.
    displaced, held : list of RequestRow
    running : list of RequestRow or None
        Who runs, the victim last; None to leave `running` alone.
    reorders : bool
        Whether anything differs from first come, first served.
    num_overdue : int
        Waiting requests that go first because they have waited too long.
    """

    order: list[int] | None = None
    aside: list[int] = field(default_factory=list)
    displaced: list[RequestRow] = field(default_factory=list)
    held: list[RequestRow] = field(default_factory=list)
    running: list[RequestRow] | None = None
    reorders: bool = False
    num_overdue: int = 0


class Questions:
    """Asks hooks of a policy, for no longer than a time limit.

    Parameters
    ----------
    policy : Policy
    engine : Any
        The engine row of this step.
    time_limit : float
        Seconds of CPU for all questions together. The clock is looked at between calls; one call
        ends by itself, since the policy language bounds its loops.
    """

    def __init__(self, policy: Policy, engine: Any, time_limit: float) -> None:
        self.policy = policy
        self.engine = engine
        self._stop_at = time.thread_time() + time_limit

    def ask(self, name: str, rows: Sequence[RequestRow]) -> list[Any]:
        """Return a hook's answer for each row.

        Raises
        ------
        HookFault
            If the hook raises, or time is up.
        """
        hook, engine = getattr(self.policy, name), self.engine
        answers: list[Any] = []
        size = 8
        try:
            while len(answers) < len(rows):
                part = rows[len(answers) : len(answers) + size]
                answers += [hook(row, engine) for row in part]
                size = min(2 * size, 128)
                if time.thread_time() > self._stop_at:
                    raise HookFault(name, "too slow")
        except HookFault:
            raise
        except Exception as error:
            raise HookFault(name, type(error).__name__) from error
        return answers

    def keys(self, name: str, rows: Sequence[RequestRow]) -> list[float]:
        """Return a key for each row; NaN counts as +inf."""
        answers = self.ask(name, rows)
        try:
            keys = list(map(float, answers))
        except (TypeError, ValueError, OverflowError) as error:
            raise HookFault(name, f"returned no number ({type(error).__name__})") from error
        if math.isnan(sum(keys)):  # also where +inf meets -inf, which does no harm
            keys = [math.inf if math.isnan(key) else key for key in keys]
        return keys


def decide(
    questions: Questions,
    waiting: Sequence[RequestRow],
    running: Sequence[RequestRow],
    *,
    anybody_runs: bool,
    max_wait: float,
    seats_are_full: bool,
    order_matters: bool,
    may_displace: bool,
    is_ready: Callable[[RequestRow], bool],
    is_displaceable: Callable[[RequestRow], bool],
) -> Choice:
    """Ask what is needed in this step.

    Parameters
    ----------
    questions : Questions
    waiting : sequence of RequestRow
        In order of arrival.
    running : sequence of RequestRow
        In order of admission; may be empty where no hook asks about it.
    anybody_runs : bool
    max_wait : float
        Seconds without a token after which a request is overdue: it goes first, and is neither set
        aside, held, displaced nor made a victim.
    seats_are_full : bool
        Nobody can be admitted unless somebody is displaced.
    order_matters : bool
        Whether tokens or KV blocks may be too short for all of `running`.
    may_displace : bool
        Whether vLLM is in a state in which requests can be displaced.
    is_ready, is_displaceable : callable
        Whether vLLM could admit a waiting request now, and take the seat of a running one.

    Raises
    ------
    HookFault
    """
    policy = questions.policy
    choice = Choice()
    held: set[RequestRow] = set()
    if policy.hold is not None and running:
        held = _held(questions, running, max_wait)
    displacing = policy.preemptive and seats_are_full and may_displace
    if waiting and (displacing or not seats_are_full):
        keys = _order_waiting(questions, choice, waiting, anybody_runs, max_wait)
        if displacing:
            others = [row for row in running if row not in held]
            _displace(questions, choice, waiting, keys, others, max_wait, is_ready, is_displaceable)
    if held:
        choice.held = [row for row in running if row in held]
    _order_running(questions, choice, running, order_matters, max_wait)
    return choice


def is_overdue(row: RequestRow, now: float, max_wait: float) -> bool:
    """Tell whether a request has had no token for longer than `max_wait`."""
    return bool(now - row.last_token_ts > max_wait)


def _held(questions: Questions, running: Sequence[RequestRow], max_wait: float) -> set[RequestRow]:
    now = questions.engine.now
    answers = questions.ask("hold", running)
    held = {
        row
        for row, hold in zip(running, answers, strict=True)
        if hold and not is_overdue(row, now, max_wait)
    }
    return held if len(held) < len(running) else set()  # somebody must stay


def _order_waiting(
    questions: Questions,
    choice: Choice,
    waiting: Sequence[RequestRow],
    anybody_runs: bool,
    max_wait: float,
) -> list[float]:
    """Fill in `order` and `aside`; return the keys, by place."""
    now = questions.engine.now
    keys = _waiting_keys(questions, waiting)
    order = sorted(range(len(waiting)), key=keys.__getitem__)  # stable: ties in order of arrival
    overdue: set[int] = set()
    if now - waiting[0].arrival_time > max_wait:  # nobody can be overdue before the oldest is old
        overdue = {place for place, row in enumerate(waiting) if is_overdue(row, now, max_wait)}
    if overdue:
        for place in overdue:
            keys[place] = -math.inf
        order = sorted(overdue) + [place for place in order if place not in overdue]
        choice.num_overdue = len(overdue)
    if questions.policy.admit is not None:
        answers = questions.ask("admit", waiting)
        admissible = [bool(yes) or place in overdue for place, yes in enumerate(answers)]
        if anybody_runs or any(admissible):
            choice.aside = [place for place in order if not admissible[place]]
            order = [place for place in order if admissible[place]]
    choice.order = order
    choice.reorders = bool(choice.aside) or order != list(range(len(order)))
    return keys


def _waiting_keys(questions: Questions, waiting: Sequence[RequestRow]) -> list[float]:
    """Ask for keys; those that cannot change while a request waits only once."""
    if not questions.policy.static:
        return questions.keys("waiting_key", waiting)
    new = [row for row in waiting if row.key is None]
    if new:
        for row, key in zip(new, questions.keys("waiting_key", new), strict=True):
            row.key = key
    return [row.key for row in waiting]  # type: ignore[misc]


def _displace(
    questions: Questions,
    choice: Choice,
    waiting: Sequence[RequestRow],
    keys: Sequence[float],
    running: Sequence[RequestRow],
    max_wait: float,
    is_ready: Callable[[RequestRow], bool],
    is_displaceable: Callable[[RequestRow], bool],
) -> None:
    """Match the j-th best waiting request with the j-th worst running one while it is better."""
    now = questions.engine.now
    running_keys = questions.keys("waiting_key", running)
    worst = [
        (key, row)
        for key, row in zip(running_keys, running, strict=True)
        # Without a token since its admission two requests could displace each other for ever.
        if row.num_output_tokens > row.output_at_admission
        and not is_overdue(row, now, max_wait)
        and is_displaceable(row)
    ]
    worst.sort(key=lambda one: (one[0], one[1].admission), reverse=True)
    best = (place for place in choice.order or [] if is_ready(waiting[place]))
    for (worse, victim), place in zip(worst, best, strict=False):
        if not keys[place] < worse:
            break
        choice.displaced.append(victim)
    choice.reorders |= bool(choice.displaced)


def _order_running(
    questions: Questions,
    choice: Choice,
    running: Sequence[RequestRow],
    order_matters: bool,
    max_wait: float,
) -> None:
    """Fill in `running` where hold, displacement or `victim_key` change it."""
    away = {*choice.held, *choice.displaced}
    staying = [row for row in running if row not in away] if away else list(running)
    if questions.policy.victim_key is not None and order_matters:
        now = questions.engine.now
        keys = questions.keys("victim_key", staying)
        keyed = [
            (-math.inf if is_overdue(row, now, max_wait) else key, row.admission, row)
            for key, row in zip(keys, staying, strict=True)
        ]
        keyed.sort(key=lambda one: one[:2])
        ordered = [row for _, _, row in keyed]
        if ordered != staying:
            staying = ordered
            choice.reorders = True
    choice.reorders |= bool(choice.held)
    if away or staying != list(running):
        choice.running = staying

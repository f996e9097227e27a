"""What a policy wants done in one step, found without changing anything.

All hooks are asked first, on the state at the step's start; only whoever holds the answers changes
vLLM's queues. So a hook that fails leaves the scheduler as it was.

Of those who wait only the first matter, as many as could be admitted in this step; nothing is
sorted beyond them.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from queuesmith.deploy.line import Line
from queuesmith.deploy.rows import RequestRow
from queuesmith.policies import Policy

#: Operations of a hook that may be spent on waiting requests in one step, and what a call counts
#: besides its own: together they take about half a millisecond. Where more wait than that allows,
#: `waiting_key` is asked about some of them, and `admit` about the first, though about so many.
OPERATIONS_PER_STEP = 15_000
OPERATIONS_PER_CALL = 10
LEAST_ASKED = 64


class HookFault(Exception):
    """A hook failed: which one, how, and whether it may not be asked again."""

    def __init__(self, hook: str, cause: str, *, fatal: bool = False) -> None:
        self.kind = f"{hook}: {cause}"
        self.fatal = fatal
        super().__init__(self.kind)


@dataclass
class Choice:
    """What a policy wants.

    Attributes
    ----------
    order : list of RequestRow or None
        The waiting requests that may be admitted in this step, the first to be admitted first;
        None to leave `waiting` alone.
    num_aside : int
        Waiting requests that were passed over, since they are not admissible in this step.
    displaced, held : list of RequestRow
    running : list of RequestRow or None
        Who runs, the victim last; None to leave `running` alone.
    reorders : bool
        Whether anything differs from first come, first served.
    num_overdue : int
        Requests that are first in `order` because they have waited too long.
    """

    order: list[RequestRow] | None = None
    num_aside: int = 0
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
        ends by itself, since the policy language bounds its operations.
    prepare : callable
        Is given rows and the name of a hook that is about to read them.
    """

    def __init__(
        self,
        policy: Policy,
        engine: Any,
        time_limit: float,
        prepare: Callable[[Sequence[RequestRow], str], None],
    ) -> None:
        self.policy = policy
        self.engine = engine
        self._stop_at = time.thread_time() + time_limit
        self._prepare = prepare

    def most(self, name: str) -> int:
        """Return how many waiting requests a hook may be asked about in one step."""
        operations = self.policy.operations[name] + OPERATIONS_PER_CALL
        return max(OPERATIONS_PER_STEP // operations, LEAST_ASKED)

    def ask(self, name: str, rows: Sequence[RequestRow]) -> list[Any]:
        """Return a hook's answer for each row.

        Raises
        ------
        HookFault
            If the hook raises, or time is up.
        """
        hook, engine = getattr(self.policy, name), self.engine
        self._prepare(rows, name)
        answers: list[Any] = []
        operations = self.policy.operations[name] + OPERATIONS_PER_CALL
        size, largest = 8, max(min(OPERATIONS_PER_STEP // operations, 128), 1)
        try:
            while len(answers) < len(rows):
                size = min(size, largest)
                part = rows[len(answers) : len(answers) + size]
                answers += [hook(row, engine) for row in part]
                size *= 2
                if time.thread_time() > self._stop_at:
                    raise HookFault(name, "too slow", fatal=True)
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
    line: Line,
    running: Sequence[RequestRow],
    *,
    anybody_runs: bool,
    max_wait: float,
    num_seats: int,
    skips: float,
    order_matters: bool,
    may_displace: bool,
    is_ready: Callable[[RequestRow], bool],
    is_displaceable: Callable[[RequestRow], bool],
) -> Choice:
    """Ask what is needed in this step.

    Parameters
    ----------
    questions : Questions
    line : Line
        Who waits.
    running : sequence of RequestRow
        In order of admission; may be empty where no hook asks about it.
    anybody_runs : bool
    max_wait : float
        Seconds without a token after which a request is overdue: it goes first, and is neither set
        aside, held, displaced nor made a victim.
    num_seats : int
        Free ones. Without any nobody can be admitted unless somebody is displaced.
    skips : float
        How many waiting requests vLLM may pass over, so that as many more of them matter.
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
    policy, waiting = questions.policy, line.rows
    choice = Choice()
    held: set[RequestRow] = set()
    if policy.hold is not None and running:
        held = _held(questions, running, max_wait)
    displacing = policy.preemptive and num_seats <= 0 and may_displace
    if waiting and (displacing or num_seats > 0):
        most = int(min((len(running) if displacing else num_seats) + skips, len(waiting)))
        # Where keys are kept in order, one look at the best is enough if it displaces nobody.
        looks = displacing and policy.static and policy.admit is None and not skips
        first = _first(questions, choice, line, 1 if looks else most, anybody_runs, max_wait)
        if displacing:
            others = [row for row in running if row not in held] if held else running
            keys = questions.keys("waiting_key", others)
            best = next(_bests(choice, first, is_ready), -math.inf if looks else math.inf)
            if best < max(keys, default=-math.inf):
                if looks:
                    first = _first(questions, choice, line, most, anybody_runs, max_wait)
                now = questions.engine.now
                _displace(choice, first, others, keys, now, max_wait, is_ready, is_displaceable)
            if not skips:
                del first[len(choice.displaced) :]
        if choice.displaced or not displacing:
            choice.order = first
            choice.reorders = bool(choice.displaced) or first != waiting[:most]
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
    if not any(answers):  # which is frequent
        return set()
    held = {
        row
        for row, hold in zip(running, answers, strict=True)
        if hold and not now - row.last_token_ts > max_wait
    }
    return held if len(held) < len(running) else set()  # somebody must stay


def _first(
    questions: Questions,
    choice: Choice,
    line: Line,
    most: int,
    anybody_runs: bool,
    max_wait: float,
) -> list[RequestRow]:
    """Return the first `most` of the admissible waiting requests."""
    overdue = _overdue(line.rows, questions.engine.now, max_wait, most)
    choice.num_overdue = len(overdue)
    first = list(overdue)
    if len(first) == most:
        return first
    ranking = _ranking(questions, line)
    if questions.policy.admit is None and not overdue:
        return ranking(most)
    if questions.policy.admit is None:
        known = set(overdue)
        return [*first, *[row for row in ranking(most) if row not in known]][:most]
    return _admissible(questions, choice, line, ranking, first, most, anybody_runs)


def _overdue(
    rows: Sequence[RequestRow], now: float, max_wait: float, most: int
) -> list[RequestRow]:
    """Return the first who are overdue, in order of arrival."""
    found: list[RequestRow] = []
    for row in rows:
        if len(found) == most or not now - row.arrival_time > max_wait:
            break  # those behind are younger
        if is_overdue(row, now, max_wait):
            found.append(row)
    return found


def _ranking(questions: Questions, line: Line) -> Callable[[int], list[RequestRow]]:
    """Ask for keys; return what gives the first so many rows by key, then by arrival."""
    if questions.policy.static:  # asked once, while a request waits
        ranked = line.ranked(lambda new: questions.keys("waiting_key", new))
        return lambda most: [rank[-1] for rank in ranked[:most]]
    line.ask_some(lambda rows: questions.keys("waiting_key", rows), questions.most("waiting_key"))
    return line.best


def _admissible(
    questions: Questions,
    choice: Choice,
    line: Line,
    ranking: Callable[[int], list[RequestRow]],
    first: list[RequestRow],
    most: int,
    anybody_runs: bool,
) -> list[RequestRow]:
    """Fill up `first` with whom `admit` lets in, asking about no more than are needed."""
    overdue = set(first)
    aside: list[RequestRow] = []
    num_asked, size = 0, most
    most_asked = min(len(line.rows), questions.most("admit"))
    while len(first) < most and num_asked < most_asked:
        part = ranking(min(num_asked + size, most_asked))[num_asked:]
        num_asked += len(part)
        part = [row for row in part if row not in overdue]
        for row, yes in zip(part, questions.ask("admit", part), strict=True):
            (first if yes else aside).append(row)
        size = num_asked
    if not first and not anybody_runs:  # an engine with nothing to do ignores `admit`
        return aside[:most]
    choice.num_aside = len(aside)
    del first[most:]
    return first


def _bests(
    choice: Choice, waiting: Sequence[RequestRow], is_ready: Callable[[RequestRow], bool]
) -> Iterator[float]:
    """Yield the keys of those who could be admitted, the best first; who is overdue is best."""
    for place, row in enumerate(waiting):
        if is_ready(row):
            yield -math.inf if place < choice.num_overdue else row.key


def _displace(
    choice: Choice,
    waiting: Sequence[RequestRow],
    running: Sequence[RequestRow],
    keys: Sequence[float],
    now: float,
    max_wait: float,
    is_ready: Callable[[RequestRow], bool],
    is_displaceable: Callable[[RequestRow], bool],
) -> None:
    """Match the j-th best waiting request with the j-th worst running one while it is better."""
    best = _bests(choice, waiting, is_ready)
    better = next(best, math.inf)
    admissions = [row.admission for row in running]
    for key, _, row in sorted(zip(keys, admissions, running, strict=True), reverse=True):
        if not better < key:
            break
        # Without a token since its admission two requests could displace each other for ever.
        if row.num_output_tokens <= row.output_at_admission:
            continue
        if not is_overdue(row, now, max_wait) and is_displaceable(row):
            choice.displaced.append(row)
            better = next(best, math.inf)


def _order_running(
    questions: Questions,
    choice: Choice,
    running: Sequence[RequestRow],
    order_matters: bool,
    max_wait: float,
) -> None:
    """Fill in `running` where hold, displacement or `victim_key` change it."""
    away = {*choice.held, *choice.displaced}
    asks = questions.policy.victim_key is not None and order_matters
    if not away and not asks:
        return
    staying = [row for row in running if row not in away] if away else list(running)
    if asks:
        now = questions.engine.now
        keys = [
            -math.inf if is_overdue(row, now, max_wait) else key
            for key, row in zip(questions.keys("victim_key", staying), staying, strict=True)
        ]
        admissions = [row.admission for row in staying]
        ordered = [row for _, _, row in sorted(zip(keys, admissions, staying, strict=True))]
        if ordered != staying:
            staying = ordered
            choice.reorders = True
    choice.reorders |= bool(choice.held)
    if away or staying != list(running):
        choice.running = staying

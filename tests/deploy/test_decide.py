"""Of those who wait, the first that a policy wants are found without sorting the rest."""

import math
from collections import deque
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuesmith.deploy.decide import HookFault, Questions, decide
from queuesmith.deploy.line import Line
from queuesmith.deploy.rows import RequestRow
from queuesmith.policies.policy import load_text

#: Keys with ties, infinities and NaN; and whether a request is admissible.
STATIC = "def waiting_key(request, engine):\n    return request.deadline\n"
CHANGING = "def waiting_key(request, engine):\n    return request.deadline + 0.0 * engine.now\n"
ADMIT = "\n\ndef admit(request, engine):\n    return request.priority == 0\n"
NOW = 100.0


def make_policy(source):
    return load_text("written", source, Path("written.py"))


def make_row(number, key, priority, silent_for):
    source = SimpleNamespace(
        sampling_params=None,
        arrival_time=NOW - 50.0 + number,
        num_prompt_tokens=10,
        num_tokens=10,
        max_tokens=5,
        priority=priority,
        num_computed_tokens=0,
        num_output_tokens=0,
        num_preemptions=0,
    )
    source = type("Request", (), vars(source))()
    source.queuesmith_row = row = RequestRow(source, number, source.arrival_time)
    row.deadline = key
    row.last_token_ts = max(NOW - silent_for, row.arrival_time)
    return row


def make_line(rows, policy):
    line = Line(ranks=policy.static)
    line.follow(deque(row.source for row in rows))
    return line


def choose(rows, policy, *, num_seats, running=(), prepare=lambda rows, hook: None, **changes):
    engine = SimpleNamespace(now=NOW)
    settings = {
        "anybody_runs": True,
        "max_wait": 20.0,
        "num_seats": num_seats,
        "skips": 0,
        "order_matters": False,
        "may_displace": True,
        "is_ready": lambda row: True,
        "is_displaceable": lambda row: True,
    }
    return decide(
        Questions(policy, engine, math.inf, prepare),
        make_line(rows, policy),
        list(running),
        **settings | changes,
    )


def all_in_order(rows, anybody_runs, max_wait, admits):
    """Say it in the words of the contract: the overdue by arrival, the others by key."""
    overdue = [row for row in rows if NOW - row.last_token_ts > max_wait]
    others = [row for row in rows if row not in overdue]
    others.sort(key=lambda row: math.inf if math.isnan(row.deadline) else row.deadline)
    wanted = [row for row in others if row.priority == 0 or not admits]
    if not overdue and not wanted and not anybody_runs:
        wanted = others
    return overdue + wanted


KEYS = st.sampled_from([-math.inf, -1.0, 0.0, -0.0, 1.0, 2.0, math.inf, math.nan])


@given(
    st.lists(st.tuples(KEYS, st.integers(0, 2), st.sampled_from([0.0, 30.0])), min_size=1),
    st.integers(1, 12),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from([20.0, math.inf]),
)
def test_the_first_are_those_of_the_whole_order(
    requests, num_seats, static, admits, anybody_runs, max_wait
):
    rows = [make_row(number, *one) for number, one in enumerate(requests)]
    policy = make_policy((STATIC if static else CHANGING) + (ADMIT if admits else ""))
    order = all_in_order(rows, anybody_runs, max_wait, admits)

    one = choose(rows, policy, num_seats=num_seats, anybody_runs=anybody_runs, max_wait=max_wait)
    whole = choose(
        rows,
        policy,
        num_seats=num_seats,
        anybody_runs=anybody_runs,
        max_wait=max_wait,
        skips=len(rows),
    )

    assert one.order == order[:num_seats]
    assert whole.order == order
    assert one.reorders == (order[:num_seats] != rows[:num_seats])


@given(
    st.lists(st.tuples(KEYS, st.just(0), st.just(0.0)), min_size=1),
    st.lists(st.tuples(KEYS, st.booleans()), min_size=1, max_size=8),
    st.booleans(),
)
def test_the_best_displace_the_worst(waiting, running, static):
    source = "PREEMPTIVE = True\n\n\n" + (STATIC if static else CHANGING)
    waiting = [make_row(number, *one) for number, one in enumerate(waiting)]
    runners = []
    for number, (key, has_token) in enumerate(running):
        row = make_row(100 + number, key, 0, 0.0)
        row.admission = number
        row.num_output_tokens = int(has_token)
        runners.append(row)

    choice = choose(waiting, make_policy(source), num_seats=0, running=runners)

    def key(row):
        return math.inf if math.isnan(row.deadline) else row.deadline

    best = all_in_order(waiting, True, 20.0, False)
    worst = [row for row in runners if row.num_output_tokens]
    worst.sort(key=lambda row: (key(row), row.admission), reverse=True)
    expected = []
    for better, worse in zip(best, worst, strict=False):
        if not key(better) < key(worse):
            break
        expected.append(worse)
    assert choice.displaced == expected
    assert (choice.order or []) == best[: len(expected)]


def test_admit_is_asked_about_no_more_than_are_needed():
    rows = [make_row(number, float(number), 0, 0.0) for number in range(1000)]
    asked = []

    choice = choose(
        rows,
        make_policy(STATIC + ADMIT),
        num_seats=3,
        prepare=lambda rows, hook: asked.extend(rows if hook == "admit" else []),
    )

    assert choice.order == rows[:3]
    assert asked == rows[:3]


def test_a_fault_is_told_by_its_hook():
    policy = make_policy("def waiting_key(request, engine):\n    return 1.0 / request.priority\n")
    with pytest.raises(HookFault, match="waiting_key: ZeroDivisionError"):
        choose([make_row(0, 0.0, 0, 0.0)], policy, num_seats=1)

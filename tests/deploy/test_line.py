"""The line of those who wait is what vLLM's queue is, whatever vLLM does to it."""

from collections import deque
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuesmith.deploy.line import Line
from queuesmith.deploy.rows import RequestRow


@pytest.fixture
def make_request():
    return _make_request


def _make_request(number, arrival_time, prompt_len=10):
    """Make what the plug-in sees of vLLM's request."""
    request = SimpleNamespace(
        request_id=str(number),
        sampling_params=None,
        arrival_time=arrival_time,
        num_prompt_tokens=prompt_len,
        num_tokens=prompt_len,
        max_tokens=5,
        priority=0,
        num_computed_tokens=0,
        num_output_tokens=0,
        num_preemptions=0,
    )
    # As vLLM's, which are hashed by identity.
    request = type("Request", (), vars(request))()
    request.queuesmith_row = RequestRow(request, number)
    return request


def by_arrival(queue):
    return sorted(
        (request.queuesmith_row for request in queue),
        key=lambda row: (row.arrival_time, row.number),
    )


def ask(rows):
    return [float(row.num_uncached_tokens) for row in rows]


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(
            ["arrive", "abort", "admit", "preempt", "follow", "ask", "exchange", "change", "reset"]
        ),
        st.integers(0, 7),
    ),
    max_size=60,
)


@given(OPERATIONS)
def test_it_follows_whatever_happens_to_the_queue(operations):
    queue, away, line = deque(), [], Line(ranks=True)
    number = 0
    for operation, drawn in operations:
        if operation == "arrive":  # some of them late, and many with the same key
            queue.append(_make_request(number, number - 3.0 * (drawn == 0), 1 + drawn % 3))
            number += 1
        elif operation == "abort" and queue:
            del queue[drawn % len(queue)]
        elif operation == "admit" and queue:
            away.append(queue.popleft())
        elif operation == "preempt" and away:
            request = away.pop(drawn % len(away))
            request.queuesmith_row.num_uncached_tokens += drawn
            request.queuesmith_row.key = None
            line.renew(request.queuesmith_row)
            queue.appendleft(request)
        elif operation == "change" and queue:
            row = queue[drawn % len(queue)].queuesmith_row
            row.num_uncached_tokens += 1
            row.key = None
            line.renew(row)
        elif operation == "reset":
            line.reset()
        elif operation in ("follow", "ask", "exchange"):
            line.follow(queue)
            assert line.rows == by_arrival(queue)
            assert line.in_order == ([row.source for row in line.rows] == list(queue))
        if operation == "ask":
            ranked = [rank[-1] for rank in line.ranked(ask)]
            assert ranked == sorted(
                line.rows, key=lambda row: (row.num_uncached_tokens, row.arrival_time, row.number)
            )
        if operation == "exchange":
            gone = list(queue)[: drawn // 2]
            came, away = away[: drawn % 3], away[drawn % 3 :]
            line.exchange(queue, gone, came)
            away += gone
            assert [row.source for row in line.rows] == list(queue)
            assert line.rows == by_arrival(queue)
            assert line.in_order


def test_a_sum_over_it_is_anew_whenever_it_may_be_another(make_request):
    queue, line = deque([make_request(0, 0.0)]), Line(ranks=False)
    seen = {line.version}
    for change in (
        lambda: line.follow(queue),
        lambda: line.renew(queue[0].queuesmith_row),
        lambda: (queue.append(make_request(1, 1.0)), line.follow(queue)),
        lambda: line.exchange(queue, [queue[0]], []),
        line.reset,
    ):
        change()
        assert line.version not in seen
        seen.add(line.version)
    line.follow(queue)
    version = line.version
    line.follow(queue)
    assert line.version == version


def test_keys_are_asked_for_once(make_request):
    queue = deque(make_request(number, float(number)) for number in range(50))
    line, asked = Line(ranks=True), []
    line.follow(queue)
    line.ranked(lambda rows: asked.extend(rows) or ask(rows))
    queue.append(make_request(50, 50.0))
    line.follow(queue)
    line.ranked(lambda rows: asked.extend(rows) or ask(rows))

    assert [row.number for row in asked] == list(range(51))


def test_a_fault_while_keys_are_asked_for_changes_nothing(make_request):
    queue = deque(make_request(number, float(number), 5 - number) for number in range(4))
    line = Line(ranks=True)
    line.follow(queue)
    with pytest.raises(ZeroDivisionError):
        line.ranked(lambda rows: [1 / 0 for _ in rows])

    assert [rank[-1].number for rank in line.ranked(ask)] == [3, 2, 1, 0]

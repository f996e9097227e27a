"""The line of those who wait is what vLLM's queue is, whatever vLLM does to it."""

from collections import deque
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuesmith.deploy.line import Line, watched
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
    request.queuesmith_row = RequestRow(request, number, arrival_time)
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
            (
                *("arrive", "abort", "admit", "preempt", "follow", "ask", "exchange", "change"),
                *("reset", "pass over", "behind its back"),
            )
        ),
        st.integers(0, 7),
    ),
    max_size=60,
)


class Queue(deque):
    """What vLLM's queue is to the plug-in."""

    def add_request(self, request):
        self.append(request)

    def pop_request(self):
        return self.popleft()

    def prepend_request(self, request):
        self.appendleft(request)

    def prepend_requests(self, requests):
        self.extendleft(requests)

    def remove_request(self, request):
        self.remove(request)

    def remove_requests(self, requests):
        kept = [request for request in self if request not in set(requests)]
        self.clear()
        self.extend(kept)


@given(OPERATIONS, st.booleans(), st.booleans())
def test_it_follows_whatever_happens_to_the_queue(operations, is_watched, ranks):
    queue = watched(Queue)() if is_watched else Queue()
    away, line = [], Line(ranks)
    number = 0
    for operation, drawn in operations:
        if operation == "arrive":  # some of them late, and many with the same key
            queue.add_request(_make_request(number, number - 3.0 * (drawn == 0), 1 + drawn % 3))
            number += 1
        elif operation == "abort" and queue:
            queue.remove_requests({queue[drawn % len(queue)]})
        elif operation == "behind its back" and queue:
            del queue[drawn % len(queue)]
        elif operation == "admit" and queue:
            away.append(queue.pop_request())
        elif operation == "preempt" and away:
            request = away.pop(drawn % len(away))
            request.queuesmith_row.num_uncached_tokens += drawn
            request.queuesmith_row.key = None
            line.renew(request.queuesmith_row)
            queue.prepend_request(request)
        elif operation == "pass over" and queue:
            queue.prepend_requests([queue.pop_request() for _ in range(min(drawn, len(queue)))])
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
            assert line.waiting_tokens == sum(row.num_uncached_tokens for row in line.rows)
            assert line.arrivals_us == sum(row.arrival_us for row in line.rows)
        if operation == "ask":
            if ranks:
                found = [rank[-1] for rank in line.ranked(ask)]
            else:
                line.ask_some(ask, len(line.rows))
                found = line.best(len(line.rows))
                assert line.best(3) == found[:3]
            assert found == sorted(
                line.rows, key=lambda row: (row.num_uncached_tokens, row.arrival_time, row.number)
            )
        if operation == "exchange":
            gone = list(queue)[: drawn // 2]
            came, away = away[: drawn % 3], away[drawn % 3 :]
            line.exchange(queue, gone, came)
            away += gone
            assert [row.source for row in line.rows] == list(queue)
            assert line.rows == by_arrival(queue)


@given(st.integers(5, 40), st.lists(st.integers(0, 99), min_size=41, max_size=120))
def test_where_too_many_wait_some_are_asked_and_everybody_in_turn(most, keys):
    queue = deque(_make_request(number, float(number)) for number in range(len(keys)))
    line, asked = Line(ranks=False), set()
    line.follow(queue)

    def ask_and_note(rows):
        rows = list(rows)
        assert len(rows) <= most
        asked.update(row.number for row in rows)
        return [float(keys[row.number]) for row in rows]

    for _ in range(2 * len(keys)):
        line.ask_some(ask_and_note, most)

    assert asked == set(range(len(keys)))
    order = sorted(range(len(keys)), key=lambda number: (keys[number], number))
    assert [row.number for row in line.best(7)] == order[:7]
    keys[order[50 % len(keys)]] = -1  # a key that falls is found in turn
    for _ in range(2 * len(keys)):
        line.ask_some(ask_and_note, most)
    assert [row.number for row in line.best(1)] == [order[50 % len(keys)]]


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

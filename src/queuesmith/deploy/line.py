"""Who waits, in order of arrival and, where keys cannot change, in order of key.

It is kept from step to step, so that a step costs what has changed and not what waits.
"""

from array import array
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from math import inf, nan
from operator import attrgetter
from typing import Any

import numpy as np

from queuesmith.deploy.rows import RequestRow

#: A key, then what breaks ties; no two requests have the same number.
Rank = tuple[float, float, int, RequestRow]

_PLACE = attrgetter("arrival_time", "number")
#: More new ranks than these are sorted in rather than put in one by one.
_MANY = 32
#: Changes of a queue that are kept until somebody looks; after more the queue is read anew.
_MAX_JOURNAL = 4096
_FIRST, _LAST, _GONE = range(3)


def watched(queue_class: type[Any]) -> type[Any]:
    """Return a class of vLLM's queues that also keeps who came to which end, and who went."""

    class Watched(queue_class):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.journal: list[tuple[int, Any]] = []

        def note(self, what: int, requests: Iterable[Any]) -> None:
            if len(self.journal) < _MAX_JOURNAL:
                self.journal += [(what, request) for request in requests]

        def add_request(self, request: Any) -> None:
            super().add_request(request)
            self.note(_LAST, (request,))

        def prepend_request(self, request: Any) -> None:
            super().prepend_request(request)
            self.note(_FIRST, (request,))

        def prepend_requests(self, requests: Any) -> None:
            requests = list(requests)
            super().prepend_requests(requests)
            self.note(_FIRST, requests)

        def pop_request(self) -> Any:
            request = super().pop_request()
            self.note(_GONE, (request,))
            return request

        def remove_request(self, request: Any) -> None:
            super().remove_request(request)
            self.note(_GONE, (request,))

        def remove_requests(self, requests: Any) -> None:
            requests = list(requests)
            super().remove_requests(requests)
            self.note(_GONE, requests)

    return Watched


class Line:
    """The rows of the requests in vLLM's `waiting`.

    vLLM's queue is the truth: `exchange` changes both, and what vLLM does to it `follow` finds.

    Parameters
    ----------
    ranks : bool
        Whether `ranked` will be asked for, else `ask_some` and `best`.

    Attributes
    ----------
    rows : list of RequestRow
        In order of arrival.
    waiting_tokens, arrivals_us : int
        Sums over `rows` of their uncached tokens and of their arrivals.
    """

    def __init__(self, ranks: bool) -> None:
        self._ranks = ranks
        self.reset()

    def reset(self) -> None:
        """Forget everybody, so that `follow` begins anew."""
        self.rows: list[RequestRow] = []
        self.waiting_tokens = self.arrivals_us = 0
        self._row_of: dict[Any, RequestRow] = {}
        self._ranked: list[Rank] = []
        self._rank_of: dict[RequestRow, Rank] = {}
        self._unranked: dict[RequestRow, None] = {}
        self._keys = array("d")  # of `rows`, as last asked; NaN where never
        self._turn = 0
        self._limit = self._old_limit = inf  # keys beyond are hardly among the best
        #: Who stands elsewhere in vLLM's queue than by arrival; None if that can be anybody.
        self._misplaced: dict[Any, None] | None = None
        self._is_known = False  # whether the queue's journal is all that has changed

    def follow(self, queue: Any) -> None:
        """Find out who has come and gone since the last time."""
        journal = getattr(queue, "journal", None)
        if journal is None or not self._is_known or len(journal) >= _MAX_JOURNAL:
            self._read(queue)
        else:
            for what, request in journal:
                if what == _GONE:
                    self._leave(request)
                elif request not in self._row_of and hasattr(request, "queuesmith_row"):
                    # Else it has ended since, and has left or will leave further on.
                    place = self._enter(request)
                    expected = 0 if what == _FIRST else len(self.rows) - 1
                    if self._misplaced is not None and place != expected:
                        self._misplaced[request] = None
            if len(queue) != len(self.rows):
                self._read(queue)
        if journal:
            journal.clear()

    def exchange(self, queue: Any, gone: Iterable[Any], came: Iterable[Any]) -> None:
        """Take requests out of vLLM's queue, put others in, and leave it in order of arrival."""
        if self._misplaced is None:
            queue.clear()
            queue.extend([row.source for row in self.rows])
        else:
            for request in self._misplaced:
                del queue[_find(queue, request)]
            for row in sorted([self._row_of[one] for one in self._misplaced], key=_PLACE):
                queue.insert(self._place(row), row.source)
        self._misplaced = {}
        for request in gone:
            del queue[self._leave(request)]
        for request in came:
            queue.insert(self._enter(request), request)

    def renew(self, row: RequestRow) -> None:
        """Take note that a row has changed, if it is here."""
        if row.source in self._row_of:
            self.waiting_tokens += row.num_uncached_tokens - row.counted_tokens
            row.counted_tokens = row.num_uncached_tokens
            if self._ranks:
                self._unrank(row)
                self._unranked[row] = None
            else:
                self._keys[self._place(row)] = nan

    def ranked(self, ask: Callable[[Sequence[RequestRow]], Iterable[float]]) -> Sequence[Rank]:
        """Return the ranks of all rows, sorted.

        Parameters
        ----------
        ask : callable
            Gives keys for rows that have none yet. If it raises, nothing has changed.
        """
        if self._unranked:
            new = [row for row in self._unranked if row.key is None]
            keys = dict(zip(new, ask(new), strict=True))
            for row in self._unranked:
                row.key = key = keys[row] if row.key is None else row.key
                self._rank_of[row] = key, row.arrival_time, row.number, row
            ranks = [self._rank_of[row] for row in self._unranked]
            if len(ranks) > _MANY:
                self._ranked += ranks
                self._ranked.sort()
            else:
                for rank in ranks:
                    insort(self._ranked, rank)
            self._unranked.clear()
        return self._ranked

    def ask_some(self, ask: Callable[[Sequence[RequestRow]], Iterable[float]], most: int) -> None:
        """Bring keys that change up to date: of all rows, or of `most` where more wait.

        These are the best by the keys known so far, for one half, and for the other those whose
        turn it is, those who have none yet before all others.
        """
        rows = self.rows
        self._limit = inf
        if len(rows) <= most:
            self._keys = array("d", ask(rows))
            return
        keys = np.array(self._keys)
        new = np.flatnonzero(np.isnan(keys))[: most - most // 2]
        turn = (self._turn + np.arange(most - most // 2 - len(new))) % len(rows)
        self._turn = (self._turn + len(turn)) % len(rows)
        due = np.zeros(len(rows), bool)
        best = _best(keys, most // 2, self._old_limit)
        due[best] = due[new] = due[turn] = True
        places = np.flatnonzero(due)
        asked = ask([rows[place] for place in places.tolist()])
        for place, key in zip(places.tolist(), asked, strict=True):
            self._keys[place] = key
        if len(best):
            self._old_limit = float(keys[best[-1]])
            self._limit = max(self._keys[place] for place in best.tolist())

    def best(self, most: int) -> list[RequestRow]:
        """Return the first so many rows by the keys of `ask_some`, then by arrival."""
        found = []
        for place in _best(np.array(self._keys), most, self._limit).tolist():
            row = self.rows[place]
            row.key = self._keys[place]
            found.append(row)
        return found

    def _read(self, queue: Iterable[Any]) -> None:
        """Compare all of a queue with what is known of it."""
        now = list(queue)
        present = set(now)
        for request in [one for one in self._row_of if one not in present]:
            self._leave(request)
        for request in now:
            if request not in self._row_of:
                self._enter(request)
        self._misplaced = {} if now == [row.source for row in self.rows] else None
        self._is_known = True

    def _place(self, row: RequestRow) -> int:
        return bisect_left(self.rows, _PLACE(row), key=_PLACE)

    def _enter(self, request: Any) -> int:
        """Take in a request; return its place in `rows`."""
        row: RequestRow = request.queuesmith_row
        self._row_of[request] = row
        self.arrivals_us += row.arrival_us
        self.waiting_tokens += row.num_uncached_tokens
        row.counted_tokens = row.num_uncached_tokens
        rows = self.rows
        is_last = not rows or _PLACE(rows[-1]) < _PLACE(row)
        place = len(rows) if is_last else self._place(row)
        rows.insert(place, row)
        if self._ranks:
            self._unranked[row] = None
        else:
            self._keys.insert(place, nan)
        return place

    def _leave(self, request: Any) -> int:
        """Let go of a request, if it is here; return what was its place in `rows`."""
        row = self._row_of.pop(request, None)
        if row is None:
            return -1
        self.arrivals_us -= row.arrival_us
        self.waiting_tokens -= row.counted_tokens
        if self._misplaced:
            self._misplaced.pop(request, None)
        place = self._place(row)
        del self.rows[place]
        if self._ranks:
            self._unrank(row)
        else:
            del self._keys[place]
        return place

    def _unrank(self, row: RequestRow) -> None:
        self._unranked.pop(row, None)
        rank = self._rank_of.pop(row, None)
        if rank is not None:
            del self._ranked[bisect_left(self._ranked, rank)]


def _find(queue: Any, request: Any) -> int:
    """Return the place of a request that is near one of the ends, or else wherever it is."""
    for place, other in enumerate(islice(queue, 64)):
        if other is request:
            return place
    for place, other in enumerate(reversed(queue)):
        if other is request:
            return len(queue) - 1 - place
    raise ValueError(f"request {request.request_id} is not in its queue")


def _best(keys: Any, most: int, limit: float) -> Any:
    """Return the places of the smallest keys, in order; NaN is the largest.

    Those that may be among them are looked for up to `limit`, which costs the less the nearer it is
    to the last of them.
    """
    among = np.flatnonzero(keys <= limit)
    if 0 < most < len(keys):
        if len(among) < most:
            among = np.arange(len(keys))
        if len(among) > 4 * most:
            last = np.partition(keys[among], most - 1)[most - 1]
            if not np.isnan(last):
                among = among[keys[among] <= last]
    elif len(among) < most:
        among = np.arange(len(keys))
    return among[np.argsort(keys[among], kind="stable")][:most]

"""Who waits, in order of arrival and, where keys cannot change, in order of key.

It is kept from step to step, so that a step costs what has changed and not what waits.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any

from queuesmith.deploy.rows import RequestRow

#: A key, then what breaks ties; no two requests have the same number.
Rank = tuple[float, float, int, RequestRow]

_PLACE = attrgetter("arrival_time", "number")
_PLACE_OF_REQUEST = attrgetter("queuesmith_row.arrival_time", "queuesmith_row.number")
#: More new ranks than these are sorted in rather than put in one by one.
_MANY = 32


class Line:
    """The rows of the requests in vLLM's `waiting`.

    vLLM's queue is the truth: `exchange` changes both, and what vLLM does to it `follow` finds.

    Parameters
    ----------
    ranks : bool
        Whether `ranked` will be asked for.

    Attributes
    ----------
    rows : list of RequestRow
        In order of arrival.
    in_order : bool
        Whether vLLM's queue is in that order as well.
    version : int
        Another one whenever a sum over `rows` may be another.
    """

    def __init__(self, ranks: bool) -> None:
        self.rows: list[RequestRow] = []
        self.in_order = True
        self.version = 0
        self._ranks = ranks
        self._seen: list[Any] = []  # vLLM's queue, when last looked at
        self._row_of: dict[Any, RequestRow] = {}
        self._ranked: list[Rank] = []
        self._rank_of: dict[RequestRow, Rank] = {}
        self._unranked: dict[RequestRow, None] = {}

    def follow(self, queue: Iterable[Any]) -> None:
        """Find out who has come and gone since the last time."""
        now = list(queue)
        if now == self._seen:  # the very same requests; some microseconds for a thousand
            return
        seen, self._seen = self._seen, now
        known = len(seen)
        if now[:known] == seen:
            for request in now[known:]:
                place = self._enter(request)
                self.in_order = self.in_order and place == len(self.rows) - 1
            return
        present = set(now)
        for request in [one for one in self._row_of if one not in present]:
            self._leave(request)
        for request in now:
            if request not in self._row_of:
                self._enter(request)
        self.in_order = now == [row.source for row in self.rows]

    def exchange(self, queue: Any, gone: Iterable[Any], came: Iterable[Any]) -> None:
        """Take requests out of vLLM's queue, put others in, and leave it in order of arrival."""
        for request in gone:
            place = self._leave(request)
            if self.in_order:
                del queue[place], self._seen[place]
            else:
                queue.remove(request)
        for request in came:
            place = self._enter(request)
            queue.insert(place, request)
            if self.in_order:
                self._seen.insert(place, request)
        if not self.in_order:
            self._seen = sorted(queue, key=_PLACE_OF_REQUEST)
            queue.clear()
            queue.extend(self._seen)
            self.in_order = True

    def reset(self) -> None:
        """Forget everybody, so that `follow` begins anew."""
        self.version += 1
        self.in_order = True
        for kept in (self.rows, self._seen, self._row_of, self._ranked, self._rank_of):
            kept.clear()
        self._unranked.clear()

    def renew(self, row: RequestRow) -> None:
        """Take note that a row has changed, if it is here."""
        if row.source in self._row_of:
            self.version += 1
            self._unrank(row)
            if self._ranks:
                self._unranked[row] = None

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

    def _enter(self, request: Any) -> int:
        """Take in a request; return its place in `rows`."""
        row = request.queuesmith_row
        self.version += 1
        self._row_of[request] = row
        if self._ranks:
            self._unranked[row] = None
        rows = self.rows
        if not rows or _PLACE(rows[-1]) < _PLACE(row):
            rows.append(row)
            return len(rows) - 1
        place = bisect_left(rows, _PLACE(row), key=_PLACE)
        rows.insert(place, row)
        return place

    def _leave(self, request: Any) -> int:
        """Let go of a request; return what was its place in `rows`."""
        row = self._row_of.pop(request)
        self.version += 1
        self._unrank(row)
        place = bisect_left(self.rows, _PLACE(row), key=_PLACE)
        del self.rows[place]
        return place

    def _unrank(self, row: RequestRow) -> None:
        self._unranked.pop(row, None)
        rank = self._rank_of.pop(row, None)
        if rank is not None:
            del self._ranked[bisect_left(self._ranked, rank)]

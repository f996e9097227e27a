"""Follows vLLM's requests from arrival to end, and tells the ledger.

Only this module knows which of vLLM's counters means what. It changes nothing of vLLM but one
attribute, ``queuesmith_row``, that it hangs on each request.
"""

from collections import deque
from typing import Any

from queuesmith.deploy.line import Line
from queuesmith.deploy.rows import Ledger, RequestRow


class Tracker:
    """The rows of all requests in one vLLM scheduler.

    Parameters
    ----------
    scheduler : Any
        vLLM's.
    ledger : Ledger
    line : Line

    Attributes
    ----------
    prefilling : dict of RequestRow to None
        Running requests whose tokens so far are not all computed, in order of admission.
    unsettled : set of RequestRow
        Preempted while tokens were on their way (asynchronous scheduling).
    last_update : float
        Seconds; the end of the last step.
    """

    def __init__(self, scheduler: Any, ledger: Ledger, line: Line) -> None:
        self._scheduler = scheduler
        self._ledger = ledger
        self._line = line
        self._rows: dict[str, RequestRow] = {}
        self._num_arrived = 0
        self.unsettled: set[RequestRow] = set()
        #: Per step under way: its output, when it began, its prefill tokens, who ended prefill.
        self._steps: deque[tuple[Any, float, int, list[RequestRow]]] = deque()
        self._ended: list[RequestRow] | None = None  # a list while a step is being taken in
        self.prefilling: dict[RequestRow, None] = {}
        self.last_update = -float("inf")

    def arrive(self, request: Any, now: float) -> None:
        """Take in a request that vLLM has just put into `waiting`."""
        if self._scheduler.requests.get(request.request_id) is not request:
            return  # further input of a session that is known
        row = RequestRow(request, self._num_arrived, now)
        self._num_arrived += 1
        request.queuesmith_row = row
        self._rows[request.request_id] = row
        self._ledger.arrive(row)
        self._enter_waiting(row)

    def preempt(self, request: Any) -> None:
        """Take note that vLLM has moved a request from `running` to the front of `waiting`."""
        row = request.queuesmith_row
        self._ledger.preempt(row, self.last_update)
        self.prefilling.pop(row, None)
        self._enter_waiting(row)
        self._line.renew(row)  # which may not know yet that it was admitted
        if request.num_stale_output_tokens:
            self.unsettled.add(row)

    def finish(self, request: Any) -> None:
        """Take note that a request has ended or was aborted."""
        row = request.queuesmith_row
        if self._ended is not None:
            self._ended.append(row)  # its last tokens are yet to be counted
        else:
            self._forget(row)

    def number_admissions(self) -> int:
        """Give numbers to the admitted, the last in `running` that have none; return how many."""
        new: list[RequestRow] = []
        for request in reversed(self._scheduler.running):
            if request.queuesmith_row.admission >= 0:
                break
            new.append(request.queuesmith_row)
        for row in reversed(new):
            self._ledger.admit(row)
            self.prefilling[row] = None
        return len(new)

    def schedule(self, output: Any, start: float) -> None:
        """Take in what vLLM has scheduled in the step that began at `start`."""
        self.number_admissions()
        tokens = output.num_scheduled_tokens
        num_prefill_tokens = 0
        whole = []
        for row in list(self.prefilling):
            request = row.source
            new = tokens.get(request.request_id, 0)
            if new == 0:
                continue
            missing = request.num_tokens - (request.num_computed_tokens - new)
            if not (request.num_output_tokens > 0 and missing == 1):  # else it is a decode
                num_prefill_tokens += new
            if not request.is_prefill_chunk:
                del self.prefilling[row]
                whole.append(row)
        self._steps.append((output, start, num_prefill_tokens, whole))

    def begin_update(self) -> None:
        """Keep the rows of requests that end from now on, until `update`."""
        self._ended = []

    def end_update(self) -> list[RequestRow]:
        """Return the rows of requests that ended since `begin_update`."""
        ended, self._ended = self._ended or [], None
        return ended

    def update(self, output: Any, ended: list[RequestRow], now: float) -> None:
        """Take in the tokens that a step has brought, at its end."""
        ledger, scheduler = self._ledger, self._scheduler
        start, num_prefill_tokens, whole = now, 0, list[RequestRow]()
        while self._steps:
            scheduled, start, num_prefill_tokens, whole = self._steps.popleft()
            if scheduled is output:
                break
        # Steps overlap under asynchronous scheduling; each counts from the end of the last.
        seconds = now - max(start, self.last_update)
        ledger.emit(whole, now)  # first tokens among them, in order of admission
        if ledger.reads_clients:  # whose counters grow by every token
            scheduled_rows = map(self._rows.get, output.num_scheduled_tokens)
            ledger.emit(filter(None, scheduled_rows), now)
        ledger.emit(self.unsettled, now)
        for row in list(self.unsettled):
            self._line.renew(row)
            if not row.source.num_stale_output_tokens:
                self.unsettled.discard(row)
        self.last_update = now
        for row in ended:
            self._forget(row)
        anybody_waits = bool(scheduler.waiting) or bool(scheduler.kv_holding_waiting)
        num_tokens = output.total_num_scheduled_tokens
        ledger.end_step(seconds, num_tokens, num_prefill_tokens, anybody_waits)

    def _enter_waiting(self, row: RequestRow) -> None:
        """Take note of the prefill that is left as a request begins to wait."""
        request, manager = row.source, self._scheduler.kv_cache_manager
        row.num_uncached_tokens = request.num_tokens
        if self._ledger.reads_uncached and manager.prefix_cache_lookup_enabled(request):
            # As vLLM's `get_computed_blocks`, which would also tell listeners of a hit.
            row.num_uncached_tokens -= manager.coordinator.find_longest_cache_hit(
                request.block_hashes, request.num_tokens - 1
            )[1]

    def _forget(self, row: RequestRow) -> None:
        if self._rows.get(row.source.request_id) is row:
            del self._rows[row.source.request_id]
            del row.source.queuesmith_row  # or the two would keep each other in memory
            self.prefilling.pop(row, None)
            self.unsettled.discard(row)
            self._ledger.finish(row)

"""The rows that a policy sees inside vLLM, kept by the simulator's definitions.

:class:`Ledger` is told what happened to requests and keeps the fields that vLLM does not: moving
averages, the counters of clients, the time of the last token. `engine.reference.engine` defines
each of them; the tests marked `vllm` compare the two step by step.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from queuesmith.policies import Policy
from queuesmith.request import AVERAGE_WEIGHT, ENGINE_FIELDS, REQUEST_FIELDS

#: Counters of clients that have nothing in the engine are forgotten beyond so many.
MAX_IDLE_CLIENTS = 100_000


class RequestRow:
    """One request: the fields of `REQUEST_DTYPE`, and what the plug-in knows besides.

    Attributes
    ----------
    source : Any
        vLLM's own request.
    number : int
        In order of arrival at the scheduler.
    client : Any
        Of which `Ledger` keeps a counter.
    key : float or None
        Its `waiting_key` when last asked; None when it is to be asked anew.
    counted_tokens : int
        Its `num_uncached_tokens` as far as a sum over waiting requests knows.
    arrival_us : int
        Microseconds from the first arrival to its own.
    prefill_at_arrival : int
        Prefill tokens that the engine had computed in all when it arrived.
    admission : int
        Number of its last admission; -1 while it waits.
    output_at_admission : int
    was_admitted : bool
        Whether it ever was.
    """

    __slots__ = (
        *REQUEST_FIELDS,
        "admission",
        "arrival_us",
        "client",
        "counted_tokens",
        "key",
        "number",
        "output_at_admission",
        "prefill_at_arrival",
        "source",
        "was_admitted",
    )

    def __init__(self, source: Any, number: int, arrival_time: float) -> None:
        given = _extra_arguments(source)
        self.source = source
        self.number = number
        self.key: Any = None
        self.admission = -1
        self.output_at_admission = 0
        self.was_admitted = False
        client = given.get("client")
        self.client: Any = ("own", number) if client is None else str(client)[:128]
        self.arrival_time = self.last_token_ts = arrival_time
        self.num_prompt_tokens: int = source.num_prompt_tokens
        self.num_uncached_tokens: int = source.num_tokens
        self.counted_tokens = 0
        self.max_tokens = int(_number(given.get("max_tokens"), source.max_tokens, 1, 2.0**31))
        self.priority = int(_number(given.get("priority"), source.priority))
        self.predicted_output_tokens = _number(given.get("predicted_output_tokens"), math.nan, 0)
        self.deadline = self.arrival_time + _number(given.get("time_to_deadline"), math.inf)
        self.client_tokens = 0.0
        self.arrival_us = 0
        self.prefill_at_arrival = 0
        self.prefill_tokens_since_arrival = 0
        self.refresh()

    def refresh(self) -> None:
        """Take over what vLLM counts itself."""
        source = self.source
        self.num_computed_tokens: int = source.num_computed_tokens
        self.num_output_tokens: int = source.num_output_tokens
        self.num_preemptions: int = source.num_preemptions


def _extra_arguments(source: Any) -> Mapping[str, Any]:
    """Return what the client sent as ``vllm_xargs``."""
    parameters = source.sampling_params
    extra = None if parameters is None else parameters.extra_args
    return extra if isinstance(extra, Mapping) else {}


def _number(value: Any, default: float, least: float = -(2.0**53), most: float = 2.0**53) -> float:
    """Read a number that a client sent; what is none is as good as not sent."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return default
    return number if least <= number <= most else default


class EngineRow:
    """The engine as a whole: the fields of `ENGINE_DTYPE`."""

    __slots__ = ENGINE_FIELDS

    def __init__(self, max_num_seqs: int, token_budget: int) -> None:
        for name in ENGINE_FIELDS:
            setattr(self, name, 0.0)
        self.max_num_seqs = max_num_seqs
        self.token_budget = token_budget


class Ledger:
    """What the simulator keeps of requests, clients and steps, kept beside a running vLLM.

    Fields that the policy does not read may be left as they are.

    Parameters
    ----------
    policy : Policy
    max_num_seqs, token_budget : int
    usable_blocks, block_size : int
        KV blocks that requests can hold, and tokens per block.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        max_num_seqs: int,
        token_budget: int,
        usable_blocks: int,
        block_size: int,
    ) -> None:
        self.engine: Any = EngineRow(max_num_seqs, token_budget)
        self._reads = policy.reads
        self.reads_clients = policy.reads_field("request.client_tokens")
        #: Whether running rows must be followed in every step, or else only when they are asked
        #: about, when the last token of each is all but surely that of the last step.
        self.reads_token_times = policy.reads_field("request.last_token_ts")
        read = {name for fields in policy.reads.values() for name in fields}
        backlog = {"engine.backlog_time", "engine.peak_backlog_time"}
        self.reads_peak = "engine.peak_backlog_time" in read
        #: Whether prefix-cache hits must be looked up, which takes up to 0.1 ms a request.
        self.reads_uncached = "request.num_uncached_tokens" in read or bool(
            read & {"engine.waiting_tokens", "engine.mean_waiting_tokens", *backlog}
        )
        self._reads_tokens = bool(
            read & {"engine.waiting_tokens", "engine.mean_waiting_tokens", *backlog}
        )
        self._reads_mean_wait = "engine.mean_wait" in read
        self._usable_blocks = usable_blocks
        self._block_size = block_size
        self.num_admissions = 0
        self._num_arrived = 0
        self._prompt_tokens_seen = 0
        self._first_arrival = math.nan
        self._last_arrival = math.nan
        self._mean_gap = math.nan
        self._token_rate = math.nan
        self._recent_ttft = math.nan
        self._step_time = 1.0
        self._peak_backlog_time = 0.0
        self._num_prefill_tokens = 0
        self._counters: dict[Any, float] = {}
        self._active: dict[Any, int] = {}

    def arrive(self, row: RequestRow) -> None:
        """Take in a new request; the counter of a client that returns is lifted."""
        if self._num_arrived > 0:
            gap = max(row.arrival_time - self._last_arrival, 0.0)
            self._mean_gap = _average(self._mean_gap, gap)
        else:
            self._first_arrival = row.arrival_time
        self._last_arrival = row.arrival_time
        self._num_arrived += 1
        self._prompt_tokens_seen += row.num_prompt_tokens
        row.arrival_us = round((row.arrival_time - self._first_arrival) * 1e6)
        row.prefill_at_arrival = self._num_prefill_tokens
        if not self.reads_clients:
            return
        client, counters = row.client, self._counters
        own = counters.pop(client, 0.0)  # put back at the end, as the youngest
        if client not in self._active and self._active:
            own = max(own, min(counters[other] for other in self._active))
        counters[client] = own
        self._active[client] = self._active.get(client, 0) + 1
        if len(counters) > len(self._active) + MAX_IDLE_CLIENTS:
            del counters[next(other for other in counters if other not in self._active)]

    def admit(self, row: RequestRow) -> None:
        """Note that a request has moved from `waiting` to `running`."""
        row.admission = self.num_admissions
        row.output_at_admission = row.num_output_tokens
        self.num_admissions += 1
        if not row.was_admitted:
            row.was_admitted = True
            if self.reads_clients:
                self._counters[row.client] += row.num_prompt_tokens

    def preempt(self, row: RequestRow, last_update: float) -> None:
        """Note that a request has lost its KV and waits again."""
        if row.source.num_output_tokens > row.num_output_tokens:
            row.last_token_ts = last_update  # as in `follow`
        row.refresh()
        row.admission = -1
        row.key = None

    def emit(self, rows: Iterable[RequestRow], now: float) -> None:
        """Note the tokens that requests have got since this was last asked."""
        for row in rows:
            num_output_tokens = row.source.num_output_tokens
            new = num_output_tokens - row.num_output_tokens
            if new <= 0:
                continue
            if row.num_output_tokens == 0:
                self._recent_ttft = _average(self._recent_ttft, now - row.arrival_time)
            row.num_output_tokens = num_output_tokens
            row.last_token_ts = now
            if row.admission < 0:  # it was preempted while the token was on its way
                row.num_uncached_tokens += new
                row.key = None
            if self.reads_clients:
                self._counters[row.client] += 2.0 * new

    def finish(self, row: RequestRow) -> None:
        """Note that a request has ended, in whatever way."""
        if not self.reads_clients:
            return
        left = self._active[row.client] - 1
        if left:
            self._active[row.client] = left
            return
        del self._active[row.client]
        if not isinstance(row.client, str):
            del self._counters[row.client]

    def end_step(
        self, seconds: float, num_tokens: int, num_prefill_tokens: int, anybody_waits: bool
    ) -> None:
        """Note how long a step took, and how many tokens it computed, of prefill among them."""
        if num_tokens > 0:  # a step without any says nothing of the time of a step
            self._step_time = seconds
        self._num_prefill_tokens += num_prefill_tokens
        if num_prefill_tokens > 0 and seconds > 0:
            self._token_rate = _average(self._token_rate, num_prefill_tokens / seconds)
        if not anybody_waits:
            self._peak_backlog_time = 0.0

    def follow(self, running: Iterable[Any], last_update: float) -> list[RequestRow]:
        """Take over what vLLM counts of running requests; return their rows.

        Tokens that are new came at `last_update`, the end of the last step.
        """
        rows = []
        for request in running:  # in one go, since what they touch is in no cache
            row = request.queuesmith_row
            row.num_computed_tokens = request.num_computed_tokens
            num_output_tokens = request.num_output_tokens
            if row.num_output_tokens != num_output_tokens:
                row.num_output_tokens = num_output_tokens
                row.last_token_ts = last_update
            rows.append(row)
        return rows

    def prepare(self, rows: Sequence[RequestRow], hook: str) -> None:
        """Write into rows what changes with the service of others, before a hook reads it."""
        fields = self._reads[hook]
        if "request.client_tokens" in fields:
            counters = self._counters
            for row in rows:
                row.client_tokens = counters[row.client]
        if "request.prefill_tokens_since_arrival" in fields:
            total = self._num_prefill_tokens
            for row in rows:
                row.prefill_tokens_since_arrival = total - row.prefill_at_arrival

    def observe(
        self,
        now: float,
        rows: Sequence[RequestRow],
        waiting_tokens: int,
        arrivals_us: int,
        num_running: int,
        num_free_blocks: int,
    ) -> Any:
        """Return the engine row that all hooks of this step see.

        Parameters
        ----------
        now : float
            Seconds on the clock of `arrival_time`.
        rows : sequence of RequestRow
            Who waits, in order of arrival.
        waiting_tokens, arrivals_us : int
            Sums over `rows`: whole numbers, which add up to the same in any order.
        num_running, num_free_blocks : int
        """
        e = self.engine
        num_waiting = len(rows)
        e.now = now
        e.num_waiting = num_waiting
        e.num_running = num_running
        e.kv_usage = (self._usable_blocks - num_free_blocks) / self._usable_blocks
        e.free_kv_tokens = num_free_blocks * self._block_size
        e.token_rate = 1.0 if math.isnan(self._token_rate) else self._token_rate
        e.recent_ttft = 1.0 if math.isnan(self._recent_ttft) else self._recent_ttft
        e.arrival_rate = 1.0 / self._mean_gap if self._mean_gap > 0 else 1.0
        e.step_time = self._step_time
        e.mean_prompt_tokens = self._prompt_tokens_seen / max(self._num_arrived, 1)
        e.oldest_wait = now - rows[0].arrival_time if rows else 0.0
        if self._reads_mean_wait:
            e.mean_wait = 0.0
            if rows:
                mean = arrivals_us / num_waiting * 1e-6
                e.mean_wait = max(now - self._first_arrival - mean, 0.0)
        if self._reads_tokens:
            e.waiting_tokens = waiting_tokens
            e.mean_waiting_tokens = e.waiting_tokens / num_waiting if rows else 0.0
            e.backlog_time = e.waiting_tokens / e.token_rate
            self._peak_backlog_time = max(self._peak_backlog_time, e.backlog_time)
            e.peak_backlog_time = self._peak_backlog_time
        return e


def _average(old: float, new: float) -> float:
    """Move an average towards a new sample; the first one initialises it."""
    return new if math.isnan(old) else old + AVERAGE_WEIGHT * (new - old)

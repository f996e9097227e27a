"""The same engine in obvious Python: slow, for tests and for reading.

One step of :class:`ReferenceEngine` is told in the order of vLLM 0.32.0's ``Scheduler.schedule``.
Lists are searched and sorted anew in every step and nothing is remembered that could be derived,
so that what it does can be checked by eye. The kernel must take exactly the same decisions.
"""

import math
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from queuesmith.config import EngineConfig
from queuesmith.engine.presets.step_time import StepTime
from queuesmith.engine.reference.block_pool import BlockPool
from queuesmith.engine.workload import Workload, in_vllm_order, request_rows
from queuesmith.errors import ConfigError, EngineError
from queuesmith.policies import Policy
from queuesmith.request import AVERAGE_WEIGHT, REQUEST_FIELDS

#: Steps in a row without a token after which the engine stalls.
MAX_EMPTY_STEPS = 10_000


def simulate_reference(
    workload: Workload,
    policy: Policy,
    config: EngineConfig,
    step_time: StepTime,
    *,
    horizon: float = math.inf,
) -> "ReferenceEngine":
    """Run the reference engine on a workload and return it as it ended.

    Raises
    ------
    ConfigError
        If a request waits for the answer to another, which needs `simulate_reference_fleet`.
    """
    if workload.next_turn is not None:
        raise ConfigError("sessions that wait for answers need simulate_reference_fleet")
    policy = in_vllm_order(policy, config.scheduling_policy)
    engine = ReferenceEngine(make_requests(workload, policy), policy, config, step_time)
    engine.run(horizon)
    return engine


def make_requests(workload: Workload, policy: Policy) -> list["Request"]:
    """Return the requests of a workload, as they are before they arrive."""
    rows = request_rows(workload, policy)
    return [
        Request(
            row=row,
            view=SimpleNamespace(**{name: rows[name][row].item() for name in REQUEST_FIELDS}),
            output_len=int(workload.output_len[row]),
            client=int(workload.client[row]),
            contents=workload.contents_of(row),
            abort_time=float(workload.abort_time[row]),
        )
        for row in range(len(rows))
    ]


@dataclass(eq=False)
class Request:
    """One request: the row its policy sees, and what the engine knows besides."""

    row: int
    view: SimpleNamespace  # the fields of REQUEST_DTYPE and nothing else
    output_len: int  # the truth
    client: int
    contents: list[int]  # what its full blocks will hold; empty without prefix caching
    abort_time: float = math.inf
    blocks: list[int] = field(default_factory=list)
    num_remembered: int = 0  # of its blocks, whose content the pool knows
    admission: int = -1
    output_at_admission: int = 0
    prefill_at_arrival: int = 0  # `num_prefill_tokens` of the engine then
    tokens_under_way: int = 0  # asynchronous scheduling: scheduled, not computed
    placeholders: int = 0  # output tokens under way
    stale_tokens: int = 0  # of those under way, from before a preemption
    scheduled_ts: float = math.nan
    first_token_ts: float = math.nan
    finished_ts: float = math.nan
    aborted_ts: float = math.nan
    rejected_ts: float = math.nan

    @property
    def num_tokens(self) -> int:
        """Prompt and output so far."""
        return int(self.view.num_prompt_tokens + self.view.num_output_tokens)

    @property
    def missing(self) -> int:
        """Tokens that are not computed, nor under way to be; output under way is among them."""
        return self.num_tokens + self.placeholders - int(self.view.num_computed_tokens)

    @property
    def is_ending(self) -> bool:
        """Whether the token under way is the last that `max_tokens` allows."""
        reach = self.view.num_computed_tokens + 2 - self.placeholders
        return bool(
            self.placeholders > 0 and reach >= self.view.num_prompt_tokens + self.view.max_tokens
        )

    @property
    def has_ended(self) -> bool:
        """Whether it has finished, was aborted or was rejected."""
        ends = (self.finished_ts, self.aborted_ts, self.rejected_ts)
        return not all(math.isnan(end) for end in ends)


@dataclass
class Step:
    """What one step decided."""

    scheduled: float  # when its hooks were asked
    start: float  # of its computation; later than that under asynchronous scheduling
    duration: float
    tokens: dict[int, int]  # scheduled, by row, in order of budget
    preempted: list[int]  # rows, in the order it happened
    num_free_blocks: int  # when all blocks of the step are taken
    num_prefill_tokens: int = 0
    scheduled_requests: list[Request] = field(default_factory=list)  # in order of admission
    whole: list[Request] = field(default_factory=list)  # those that the step gives a token


@dataclass(eq=False)
class ReferenceEngine:
    """vLLM's step rules under a policy, with time given by a formula.

    Attributes
    ----------
    requests : list of Request
        In order of arrival.
    """

    requests: list[Request]
    policy: Policy
    config: EngineConfig
    step_time: StepTime
    now: float = 0.0
    waiting: list[Request] = field(default_factory=list)
    running: list[Request] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    num_arrived: int = 0
    num_prefill_tokens: int = 0  # of all steps that have ended
    num_admissions: int = 0
    num_computed_tokens: int = 0
    num_recomputed_tokens: int = 0
    client_counter: dict[int, float] = field(default_factory=dict)
    mean_gap: float = math.nan
    token_rate: float = math.nan
    recent_ttft: float = math.nan
    last_step_time: float = 1.0
    peak_backlog_time: float = 0.0
    num_cached_tokens: int = 0
    under_way: Step | None = None  # asynchronous scheduling: scheduled, its turn to be computed
    computing: Step | None = None  # from `now` on
    num_empty_steps: int = 0
    pool: BlockPool = field(init=False)

    def __post_init__(self) -> None:
        self.pool = BlockPool(self.config.num_gpu_blocks)

    def run(self, horizon: float = math.inf) -> None:
        """Step until every request has ended or the horizon is reached."""
        self.now = self.requests[0].view.arrival_time
        while self.has_work and self.next_start < horizon:
            self.begin()
            self.end()

    @property
    def has_work(self) -> bool:
        """Whether anybody is here, or on the way."""
        return bool(self.num_arrived < len(self.requests) or self.waiting or self.running)

    @property
    def next_start(self) -> float:
        """When the next step begins: now, or when somebody comes."""
        if self.waiting or self.running or self.under_way:
            return self.now
        return max(self.now, float(self.requests[self.num_arrived].view.arrival_time))

    def begin(self) -> None:
        """Begin a step: take in messages, schedule, and let something be computed."""
        self.now = self.next_start
        self.take_messages()
        step = self.schedule(self.under_way) if self.waiting or self.running else None
        if self.config.async_scheduling:  # the one before is computed meanwhile
            step, self.under_way = self.under_way, step
        self.computing = step

    def end(self) -> None:
        """End the step that is computed."""
        step, self.computing = self.computing, None
        if step is not None:
            self.complete(step)
            self.num_empty_steps = 0 if step.tokens else self.num_empty_steps + 1
        # Under asynchronous scheduling empty steps take no time.
        if self.num_empty_steps >= MAX_EMPTY_STEPS:
            raise EngineError(f"the engine stalls at {self.now:g} s: nothing can be scheduled")

    def schedule(self, under_way: Step | None = None) -> Step:
        """Decide what a step computes; its tokens count as computed from now on."""
        engine = self.observe()
        policy = self.policy
        tokens: dict[int, int] = {}
        preempted: list[Request] = []
        num_present = len(self.waiting) + len(self.running)

        # 1. All hooks are asked once, before anything changes.
        waiting_key = {r: self.key(policy.waiting_key, r, engine) for r in self.waiting}
        if policy.preemptive:
            waiting_key |= {r: self.key(policy.waiting_key, r, engine) for r in self.running}
        admitted = {r: self.flag(policy.admit, r, engine, True) for r in self.waiting}
        held = [r for r in self.running if self.flag(policy.hold, r, engine, False)]
        victim_key = {}
        if policy.victim_key is not None:
            victim_key = {r: self.key(policy.victim_key, r, engine) for r in self.running}

        # 2. Waiting requests in order; some are set aside for this step.
        candidates = sorted(self.waiting, key=lambda r: (waiting_key[r], r.row))
        if self.running or any(admitted.values()):
            candidates = [r for r in candidates if admitted[r]]
        aside = [r for r in self.waiting if r not in candidates]

        # 3. The best waiting requests may displace the worst running ones.
        if len(self.running) == len(held):
            held = []
        if policy.preemptive and len(self.running) >= self.config.seats:
            worst = [
                r
                for r in self.running
                if r not in held
                and r.view.num_output_tokens > r.output_at_admission
                and not r.is_ending
            ]
            worst.sort(key=lambda r: (waiting_key[r], r.admission), reverse=True)
            ready = [r for r in candidates if r.stale_tokens == 0]
            for best, victim in zip(ready, worst, strict=False):
                if not waiting_key[best] < waiting_key[victim]:
                    break
                self.running.remove(victim)
                self.preempt(victim)
                preempted.append(victim)
                aside.append(victim)

        # 4. Running requests in order of budget, the victim last; some are held.
        self.running = [r for r in self.running if r not in held]
        if victim_key:
            self.running.sort(key=lambda r: (victim_key[r], r.admission))

        # 5. vLLM: running first, then waiting unless KV blocks ran out.
        budget = self.config.token_budget
        out_of_blocks: list[Request] = []
        place = 0
        while place < len(self.running) and budget > 0:
            request = self.running[place]
            new = self.num_new_tokens(request, num_present, budget)
            if new == 0:
                place += 1
                continue
            while self.blocks_needed(request, new) > self.num_free_blocks:
                victim = self.find_victim()
                victim_place = self.running.index(victim)
                if victim_place < place:
                    place -= 1
                    if victim.row in tokens:
                        budget += self.charge(tokens.pop(victim.row))
                self.running.remove(victim)
                self.preempt(victim)
                out_of_blocks.append(victim)
                if victim is request:
                    break
            if request not in self.running:
                if self.config.passes_preempted:
                    continue
                break
            request.blocks += self.pool.take(self.blocks_needed(request, new))
            computed = int(request.view.num_computed_tokens) + new
            self.remember(request, min(computed, request.num_tokens))
            tokens[request.row] = new
            budget -= self.charge(new)
            place += 1

        # vLLM passes those over of whom a token is still under way.
        aside += [r for r in candidates if r.stale_tokens > 0]
        candidates = [r for r in candidates if r.stale_tokens == 0]
        while (
            not out_of_blocks
            and candidates
            and budget > 0
            and len(self.running) + len(held) < self.config.seats
        ):
            request = candidates[0]
            hits = self.find_hits(request)
            new = self.num_admitted_tokens(request, hits, num_present, budget)
            if new == 0:
                break
            candidates.pop(0)
            self.admit(request, hits, new)
            tokens[request.row] = new
            budget -= self.charge(new)

        # 6. What was set aside returns.
        self.waiting = candidates + aside + out_of_blocks
        self.running = sorted(self.running + held, key=lambda r: r.admission)
        preempted += out_of_blocks
        step = self.put_under_way(tokens, preempted)
        if under_way is not None:
            step.start += under_way.duration
        self.steps.append(step)
        return step

    def key(self, hook: Any, request: Request, engine: SimpleNamespace) -> float:
        """Ask a key hook; NaN counts as +inf."""
        self.show(request)
        value = float(hook(request.view, engine))
        return math.inf if math.isnan(value) else value

    def flag(self, hook: Any, request: Request, engine: SimpleNamespace, default: bool) -> bool:
        """Ask `admit` or `hold`."""
        self.show(request)
        return default if hook is None else bool(hook(request.view, engine))

    def show(self, request: Request) -> None:
        """Bring a request's row up to date that a hook is about to be asked about."""
        request.view.client_tokens = self.client_counter.get(request.client, 0.0)
        since = self.num_prefill_tokens - request.prefill_at_arrival
        request.view.prefill_tokens_since_arrival = since

    @property
    def num_free_blocks(self) -> int:
        """KV blocks that nobody holds."""
        return len(self.pool.free)

    def take_messages(self) -> None:
        """Take in, in order of time, who has arrived and who has given up by now."""
        arrivals = [
            (request.view.arrival_time, 0, request.row)
            for request in self.requests[self.num_arrived :]
        ]
        aborts = [
            (request.abort_time, 1, request.row)
            for request in self.requests
            if not request.has_ended
        ]
        for time, is_abort, row in sorted(arrivals + aborts):
            if time > self.now:
                break
            if is_abort and not self.requests[row].has_ended:
                self.abort(self.requests[row])
            elif not is_abort:
                self.arrive(self.requests[row])

    def arrive(self, request: Request) -> None:
        """Let a request join `waiting`; a returning client's counter is lifted."""
        mean_gap = self.mean_gap
        if accepted := self.accepted():
            gap = request.view.arrival_time - accepted[-1].view.arrival_time
            if len(accepted) == 1:
                self.mean_gap = gap
            else:
                self.mean_gap += AVERAGE_WEIGHT * (gap - self.mean_gap)
        self.num_arrived += 1
        request.prefill_at_arrival = self.num_prefill_tokens
        self.enter_waiting(request)
        if self.exceeds_limits(request) or (
            self.policy.reject is not None
            and self.flag(self.policy.reject, request, self.observe(), False)
        ):
            request.rejected_ts = self.now
            self.mean_gap = mean_gap  # of whom vLLM's scheduler hears
            return
        active = {r.client for r in self.waiting + self.running}
        if active and request.client not in active:
            least = min(self.client_counter.get(client, 0.0) for client in active)
            own = self.client_counter.get(request.client, 0.0)
            self.client_counter[request.client] = max(own, least)
        self.waiting.append(request)

    def accepted(self) -> list[Request]:
        """Return who has arrived and was not turned away."""
        return [r for r in self.requests[: self.num_arrived] if math.isnan(r.rejected_ts)]

    def exceeds_limits(self, request: Request) -> bool:
        """Tell whether vLLM's API server turns an arrival away, by what it knows at that time."""
        now = request.view.arrival_time
        unfinished = [
            r
            for r in self.accepted()
            if r is not request and not r.finished_ts <= now and not r.aborted_ts < now
        ]
        prefilling = [r for r in unfinished if not r.first_token_ts <= now]
        most_reqs, most_tokens = self.config.max_num_queued_reqs, self.config.max_num_queued_tokens
        if most_reqs is not None and len(unfinished) + 1 > most_reqs:
            return True
        num_tokens = sum(r.view.num_prompt_tokens for r in prefilling)
        return most_tokens is not None and num_tokens >= most_tokens

    def abort(self, request: Request) -> None:
        """Forget a request whose client has given up."""
        (self.running if request in self.running else self.waiting).remove(request)
        self.release(request)
        request.aborted_ts = request.abort_time

    def observe(self) -> SimpleNamespace:
        """Return the engine row that all hooks of this step see."""
        waiting_tokens = sum(r.view.num_uncached_tokens for r in self.waiting)
        usable = self.config.num_gpu_blocks - 1
        token_rate = 1.0 if math.isnan(self.token_rate) else self.token_rate
        backlog_time = waiting_tokens / token_rate
        self.peak_backlog_time = max(self.peak_backlog_time, backlog_time)
        mean_wait = oldest_wait = mean_waiting_tokens = 0.0
        if self.waiting:
            mean_waiting_tokens = waiting_tokens / len(self.waiting)
            first = self.requests[0].view.arrival_time
            # Whole microseconds add up to the same in any order.
            arrivals_us = sum(round((r.view.arrival_time - first) * 1e6) for r in self.waiting)
            mean_wait = max(self.now - first - arrivals_us / len(self.waiting) * 1e-6, 0.0)
            oldest_wait = self.now - min(r.view.arrival_time for r in self.waiting)
        seen = self.accepted()
        return SimpleNamespace(
            now=self.now,
            num_waiting=len(self.waiting),
            num_running=len(self.running),
            max_num_seqs=self.config.max_num_seqs,
            token_budget=self.config.token_budget,
            kv_usage=(usable - self.num_free_blocks) / usable,
            free_kv_tokens=self.num_free_blocks * self.config.block_size,
            waiting_tokens=waiting_tokens,
            mean_waiting_tokens=mean_waiting_tokens,
            mean_wait=mean_wait,
            oldest_wait=oldest_wait,
            step_time=self.last_step_time,
            token_rate=token_rate,
            recent_ttft=1.0 if math.isnan(self.recent_ttft) else self.recent_ttft,
            arrival_rate=1.0 / self.mean_gap if self.mean_gap > 0 else 1.0,
            mean_prompt_tokens=sum(r.view.num_prompt_tokens for r in seen) / max(len(seen), 1),
            backlog_time=backlog_time,
            peak_backlog_time=self.peak_backlog_time,
        )

    def charge(self, num_tokens: int) -> int:
        """Return what computing tokens takes of the budget."""
        return 1 if self.config.instant_prefill else num_tokens

    def most_tokens_per_request(self, num_present: int) -> int:
        """Return the most tokens that one request may compute in this step."""
        threshold = self.config.long_prefill_token_threshold
        if threshold == 0 or (num_present <= 1 and not self.config.limits_lone_prefill):
            return self.config.max_model_len
        if self.config.long_prefill_token_threshold_adaptive:
            threshold = max(threshold, self.config.max_num_batched_tokens // num_present)
        return threshold

    def num_new_tokens(self, request: Request, num_present: int, budget: int) -> int:
        """Return the tokens that a running request is given out of `budget`."""
        if request.is_ending:
            return 0
        if self.config.instant_prefill:
            return request.missing
        room = self.config.max_model_len - int(request.view.num_computed_tokens) - 1
        most = self.most_tokens_per_request(num_present)
        return min(request.missing, most, budget, room)

    def num_admitted_tokens(
        self, request: Request, hits: list[int], num_present: int, budget: int
    ) -> int:
        """Return the tokens a waiting request would be given; 0 when it cannot be admitted."""
        cached = len(hits) * self.config.block_size
        new = request.num_tokens - cached
        if not self.config.instant_prefill:
            new = min(new, self.most_tokens_per_request(num_present))
            if new > budget and not self.config.enable_chunked_prefill:
                return 0
            new = min(new, budget)
        watermark = self.config.watermark_blocks if self.running else 0
        # Hits that nobody holds sit among the free blocks and will not be free any more.
        idle_hits = sum(self.pool.num_holders[block] == 0 for block in hits)
        whole = request.num_tokens if self.config.scheduler_reserve_full_isl else cached + new
        blocks = math.ceil(whole / self.config.block_size) - len(hits)
        if blocks + idle_hits + watermark > self.num_free_blocks:
            return 0
        return new

    def blocks_needed(self, request: Request, new: int) -> int:
        """Return the blocks that `request` lacks to compute `new` more tokens."""
        num_tokens = int(request.view.num_computed_tokens) + new
        return math.ceil(num_tokens / self.config.block_size) - len(request.blocks)

    def find_victim(self) -> Request:
        """Return the running request to preempt when KV blocks run out."""
        if self.config.scheduling_policy == "priority" and self.policy.victim_key is None:
            return max(self.running, key=lambda r: (r.view.priority, r.view.arrival_time))
        return self.running[-1]

    def find_hits(self, request: Request) -> list[int]:
        """Return the cached blocks that a request would start from; one token is always left."""
        most = (request.num_tokens - 1) // self.config.block_size
        return self.pool.find(request.contents[:most])

    def remember(self, request: Request, num_tokens: int) -> None:
        """Tell the pool what the request's blocks hold that its first `num_tokens` fill."""
        if not request.contents:
            return
        num_full = num_tokens // self.config.block_size
        for place in range(request.num_remembered, num_full):
            self.pool.remember(request.blocks[place], request.contents[place])
        request.num_remembered = max(request.num_remembered, num_full)

    def release(self, request: Request) -> None:
        """Give back all blocks of a request."""
        self.pool.give_back(request.blocks)
        request.blocks = []
        request.num_remembered = 0

    def enter_waiting(self, request: Request) -> None:
        """Take note of the prefill that is left as a request begins to wait."""
        cached = len(self.find_hits(request)) * self.config.block_size
        request.view.num_uncached_tokens = request.num_tokens - cached

    def preempt(self, request: Request) -> None:
        """Take a request's KV; what is not cached will be computed again."""
        self.release(request)
        request.stale_tokens = request.tokens_under_way
        request.placeholders = 0
        self.num_recomputed_tokens += request.view.num_computed_tokens
        request.view.num_computed_tokens = 0
        request.view.num_preemptions += 1
        self.enter_waiting(request)

    def admit(self, request: Request, hits: list[int], new: int) -> None:
        """Move a request from `waiting` to `running`."""
        cached = len(hits) * self.config.block_size
        self.pool.share(hits)
        request.blocks = list(hits)
        request.num_remembered = len(hits)
        request.view.num_computed_tokens = cached
        request.blocks += self.pool.take(self.blocks_needed(request, new))
        self.remember(request, cached + new)
        self.num_cached_tokens += cached
        if request.view.num_preemptions > 0:
            self.num_recomputed_tokens -= cached
        request.admission = self.num_admissions
        request.output_at_admission = request.view.num_output_tokens
        self.num_admissions += 1
        self.running.append(request)
        if math.isnan(request.scheduled_ts):
            request.scheduled_ts = self.now
            counter = self.client_counter.get(request.client, 0.0)
            self.client_counter[request.client] = counter + request.view.num_prompt_tokens

    def put_under_way(self, tokens: dict[int, int], preempted: list[Request]) -> Step:
        """Price a step, and count its tokens as computed."""
        scheduled = [r for r in self.running if r.row in tokens]
        decodes = [
            r
            for r in scheduled
            if (r.view.num_output_tokens + r.placeholders > 0 and r.missing == 1)
            or self.config.instant_prefill
        ]
        prefills = [r for r in scheduled if r not in decodes]
        num_prefill_tokens = sum(tokens[r.row] for r in prefills)
        seconds = self.step_time.seconds(
            num_prefill_tokens,
            len(decodes),
            sum(r.view.num_computed_tokens for r in decodes),
            sum(
                tokens[r.row] * (r.view.num_computed_tokens + 0.5 * tokens[r.row]) for r in prefills
            ),
            async_scheduling=self.config.async_scheduling,
        )
        if self.config.async_scheduling and not scheduled:
            seconds = 0.0  # there is nothing to wait for
        whole = []
        for request in scheduled:
            self.num_computed_tokens += tokens[request.row]
            request.view.num_computed_tokens += tokens[request.row]
            request.tokens_under_way += tokens[request.row]
            if request.missing == 0:
                request.placeholders += 1
                whole.append(request)
        return Step(
            self.now,
            self.now,
            seconds,
            tokens,
            [r.row for r in preempted],
            self.num_free_blocks,
            num_prefill_tokens,
            scheduled,
            whole,
        )

    def complete(self, step: Step) -> None:
        """Let a step take its time, hand out its tokens and free what has finished."""
        self.now += step.duration
        for request in sorted(self.requests[: self.num_arrived], key=lambda r: r.abort_time):
            if request.abort_time <= self.now and not request.has_ended:
                self.abort(request)
        if step.tokens:
            self.last_step_time = step.duration
        if step.num_prefill_tokens > 0:
            self.num_prefill_tokens += step.num_prefill_tokens
            rate = step.num_prefill_tokens / step.duration
            if math.isnan(self.token_rate):
                self.token_rate = rate
            else:
                self.token_rate += AVERAGE_WEIGHT * (rate - self.token_rate)
        for request in step.scheduled_requests:
            is_stale = request.stale_tokens > 0  # it was preempted since, and waits
            request.tokens_under_way -= step.tokens[request.row]
            if is_stale:
                request.stale_tokens -= step.tokens[request.row]
            if request in step.whole and not request.has_ended:
                if is_stale:
                    request.view.num_uncached_tokens += 1
                else:
                    request.placeholders -= 1
                self.emit_token(request)
        for row in step.tokens:  # in order of budget, as vLLM does
            request = self.requests[row]
            if request in step.whole and request in self.running:
                self.remember(request, int(request.view.num_computed_tokens) - request.placeholders)
            if not math.isnan(request.finished_ts):
                self.release(request)
        self.running = [r for r in self.running if not r.has_ended]
        self.waiting = [r for r in self.waiting if not r.has_ended]
        if not self.waiting:
            self.peak_backlog_time = 0.0

    def emit_token(self, request: Request) -> None:
        """Give a request its next output token, which may be its last."""
        view = request.view
        view.num_output_tokens += 1
        if view.num_output_tokens == 1:
            request.first_token_ts = self.now
            ttft = self.now - view.arrival_time
            if math.isnan(self.recent_ttft):
                self.recent_ttft = ttft
            else:
                self.recent_ttft += AVERAGE_WEIGHT * (ttft - self.recent_ttft)
        else:
            self.gaps.append(self.now - view.last_token_ts)
        view.last_token_ts = self.now
        self.client_counter[request.client] = self.client_counter.get(request.client, 0.0) + 2.0
        if view.num_output_tokens == request.output_len:
            request.finished_ts = self.now

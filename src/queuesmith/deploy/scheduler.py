"""vLLM's own scheduler with a policy in front of it, as a mixin.

For a step vLLM's `running` is put into the order that the policy wants, and `waiting` is another
queue of its class, in which those who may be admitted stand in that order. Afterwards everybody is
put back; the scheduling is vLLM's and nothing is patched.
"""

import contextlib
import math
import time
from collections.abc import Callable
from operator import attrgetter
from typing import Any

from queuesmith.deploy.decide import Choice, HookFault, Questions, decide
from queuesmith.deploy.line import Line, watched
from queuesmith.deploy.monitor import MAX_NAMED, Monitor, logger
from queuesmith.deploy.options import PluginOptions
from queuesmith.deploy.rows import Ledger, RequestRow
from queuesmith.deploy.tracker import Tracker
from queuesmith.policies import Policy

#: Seconds; a request waits for the end of a step before the scheduler hears of it.
LONGEST_STEP = 5.0
_ADMISSION = attrgetter("queuesmith_row.admission")


class PolicyMixin:
    """To be put before vLLM's ``Scheduler`` or ``AsyncScheduler``.

    Without `attach_policy` it changes nothing. Names with ``policy`` in them are ours.

    Attributes
    ----------
    policy_monitor : Monitor or None
    policy_clock : callable
        Seconds on a clock that nobody sets.
    policy_displaced : list
        vLLM's requests that were displaced in the last step.
    """

    policy_monitor: Monitor | None = None
    policy_clock: Callable[[], float] = staticmethod(time.monotonic)
    policy_displaced: list[Any]
    _policy_aside_running = 0
    _policy_aside_waiting = 0

    def attach_policy(self: Any, policy: Policy, options: PluginOptions) -> None:
        """Follow `policy` from now on, before the first request arrives."""
        from vllm.v1.core.sched.interface import PauseState
        from vllm.v1.core.sched.request_queue import create_request_queue
        from vllm.v1.request import RequestStatus

        self._policy_ready_statuses = (RequestStatus.WAITING, RequestStatus.PREEMPTED)
        self._policy_unpaused = PauseState.UNPAUSED
        self._policy = policy
        self._policy_options = options
        self._policy_ledger = Ledger(
            policy,
            max_num_seqs=self.scheduler_config.max_num_seqs,
            token_budget=self.max_num_scheduled_tokens,
            usable_blocks=self.cache_config.num_gpu_blocks - 1,
            block_size=self.block_size,
        )
        self._policy_runs = RequestStatus.RUNNING
        self._policy_line = Line(ranks=policy.static)
        self._policy_tracker = Tracker(self, self._policy_ledger, self._policy_line)
        self._policy_now = 0.0
        self._policy_first = create_request_queue(self.policy)  # `waiting` during a step
        # `waiting` between steps:
        self._policy_waiting = self.waiting = watched(type(self._policy_first))()
        self.policy_displaced = []
        self.policy_monitor = Monitor(
            policy.name,
            shadow=options.shadow,
            max_faults=options.max_faults,
            record=options.record,
        )
        logger.info(
            "policy %s (%s) orders this server%s; whoever has had no token for %g s goes first",
            policy.name,
            policy.sha256[:12],
            " in shadow mode, that is, not at all" if options.shadow else "",
            options.max_wait,
        )

    # What vLLM calls. Whatever of ours fails, vLLM schedules on as if it were not there.

    def add_request(self: Any, request: Any) -> None:
        """Let a request arrive."""
        super().add_request(request)  # type: ignore[misc]
        self._policy_note(self._policy_arrive, request)

    def schedule(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Schedule one step in the order that the policy wants."""
        step = self._policy_begin()
        try:
            output = super().schedule(*args, **kwargs)  # type: ignore[misc]
        finally:
            self._policy_end(step)
        if step is not None:
            self._policy_note(self._policy_scheduled, step, output)
        return output

    def update_from_output(self: Any, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Take in what a step has computed."""
        self._policy_note(self._policy_begin_update)
        outputs = super().update_from_output(  # type: ignore[misc]
            scheduler_output, model_runner_output
        )
        self._policy_note(self._policy_update, scheduler_output)
        return outputs

    def get_request_counts(self: Any) -> tuple[int, int]:
        """Return the numbers of running and waiting requests, those set aside included."""
        running, waiting = super().get_request_counts()  # type: ignore[misc]
        return running + self._policy_aside_running, waiting + self._policy_aside_waiting

    def shutdown(self: Any) -> None:
        """Close what is open."""
        if self.policy_monitor is not None:
            with contextlib.suppress(Exception):
                self.policy_monitor.close()
        super().shutdown()  # type: ignore[misc]

    def _preempt_request(self: Any, request: Any, *args: Any, **kwargs: Any) -> None:
        super()._preempt_request(request, *args, **kwargs)  # type: ignore[misc]
        self._policy_note(self._policy_preempted, request)

    def _free_request(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        freed = super()._free_request(request, *args, **kwargs)  # type: ignore[misc]
        self._policy_note(self._policy_finished, request)
        return freed

    # What is noted of it.

    def _policy_note(self: Any, note: Callable[..., None], *arguments: Any) -> None:
        """Keep the rows; a fault would leave them wrong, so it switches the policy off."""
        if self.policy_monitor is None or not self.policy_monitor.on:
            return
        try:
            note(*arguments)
        except Exception as error:  # whatever it is, the server goes on
            self.policy_monitor.fault(f"rows: {type(error).__name__}", error, fatal=True)

    def policy_arrival(self: Any, request: Any) -> float:
        """Return when a request that comes now arrived, on `policy_clock`.

        vLLM's ``Request.arrival_time`` is of the wall clock, which may be set: no more is believed
        of it than that a request came up to `LONGEST_STEP` ago, while a step was computed.
        """
        ago = time.time() - float(request.arrival_time)
        now: float = self.policy_clock()
        return now - ago if 0.0 < ago < LONGEST_STEP else now

    def _policy_arrive(self: Any, request: Any) -> None:
        self._policy_tracker.arrive(request, self.policy_arrival(request))

    def _policy_scheduled(self: Any, step: "_Step", output: Any) -> None:
        self._policy_tracker.schedule(output, step.start)
        if step.choice is not None:
            self.policy_monitor.overhead(step.seconds)

    def _policy_begin_update(self: Any) -> None:
        self._policy_tracker.begin_update()

    def _policy_update(self: Any, output: Any) -> None:
        tracker = self._policy_tracker
        self._policy_now = now = max(self.policy_clock(), self._policy_now)
        tracker.update(output, tracker.end_update(), now)
        self.policy_monitor.tick(now, idle=not self.running and not self.waiting)

    def _policy_preempted(self: Any, request: Any) -> None:
        self._policy_tracker.preempt(request)

    def _policy_finished(self: Any, request: Any) -> None:
        self._policy_tracker.finish(request)

    # Before a step.

    def _policy_begin(self: Any) -> "_Step | None":
        """Ask the policy and put the queues into its order; None where it is off."""
        monitor = self.policy_monitor
        if monitor is None or not monitor.on:
            return None
        step = _Step()
        try:
            begun = time.perf_counter()
            self.policy_displaced = []
            step.start = self._policy_now = max(self.policy_clock(), self._policy_now)
            choice = None
            if self._pause_state == self._policy_unpaused:
                choice = self._policy_choose()
            if choice is not None:
                self._policy_count(choice)
                if not self._policy_options.shadow:
                    step.before = self.waiting, list(self.running), self.max_num_active_reqs
                    self._policy_rearrange(choice)
            step.choice = choice
            step.seconds = time.perf_counter() - begun
        except HookFault as fault:
            monitor.fault(fault.kind, fault.__cause__, fatal=fault.fatal)
        except Exception as error:  # whatever it is, the server goes on
            monitor.fault(f"plug-in: {type(error).__name__}", error)
            self._policy_undo(step)
        return step

    def _policy_end(self: Any, step: "_Step | None") -> None:
        """Put the queues back into order of arrival."""
        if step is None or step.before is None:
            return
        try:
            begun = time.perf_counter()
            self.max_num_active_reqs = step.before[-1]
            self._policy_restore(step.choice)
            step.seconds += time.perf_counter() - begun
        except Exception as error:  # whatever it is, the server goes on
            self.policy_monitor.fault(f"plug-in: {type(error).__name__}", error, fatal=True)
            self._policy_undo(step)

    def _policy_undo(self: Any, step: "_Step") -> None:
        """Let everybody be where vLLM has them, however far a change has come."""
        self._policy_line.reset()
        before, step.before = step.before, None
        self._policy_aside_running = self._policy_aside_waiting = 0
        if before is None:
            return
        waiting, running, self.max_num_active_reqs = before
        everybody = dict.fromkeys([*self.policy_displaced, *running, *self.running, *waiting])
        everybody.update(dict.fromkeys(self.waiting))
        there = [one for one in everybody if self.requests.get(one.request_id) is one]
        self.waiting, self.running = (
            waiting,
            [one for one in there if one.status == self._policy_runs],
        )
        self._policy_first.clear()
        waiting.clear()
        waiting.extend([one for one in there if one.status != self._policy_runs])

    def _policy_count(self: Any, choice: Choice) -> None:
        monitor = self.policy_monitor
        monitor.count(
            decisions=1,
            reorderings=int(choice.reorders),
            displaced=len(choice.displaced),
            held=len(choice.held),
            set_aside=choice.num_aside,
            overdue=choice.num_overdue,
        )
        if choice.reorders and monitor.records:
            self._policy_record(choice)

    def _policy_choose(self: Any) -> Choice | None:
        policy, ledger, line = self._policy, self._policy_ledger, self._policy_line
        running = self.running
        num_seats = self.max_num_active_reqs - len(running) - self.num_waiting_for_streaming_input
        order_matters = policy.victim_key is not None and self._policy_order_matters()
        asks_waiting = bool(self.waiting) and (policy.preemptive or num_seats > 0)
        asks_running = bool(running) and (policy.hold is not None or order_matters)
        rows = []
        if running and (asks_running or policy.preemptive or ledger.reads_token_times):
            rows = ledger.follow(running, self._policy_tracker.last_update)
        if not (asks_waiting or asks_running or ledger.reads_peak):
            return None
        line.follow(self.waiting)
        engine = ledger.observe(
            self._policy_now,
            line.rows,
            line.waiting_tokens,
            line.arrivals_us,
            len(running),
            self.kv_cache_manager.block_pool.get_num_free_blocks(),
        )
        if not (asks_waiting or asks_running):
            return None
        return decide(
            Questions(policy, engine, self._policy_options.time_limit, ledger.prepare),
            line,
            rows,
            anybody_runs=bool(running),
            max_wait=self._policy_options.max_wait,
            num_seats=num_seats,
            skips=self._policy_skips(),
            order_matters=order_matters,
            may_displace=not self.kv_holding_waiting,
            is_ready=self._policy_is_ready,
            is_displaceable=self._policy_is_displaceable,
        )

    def _policy_skips(self: Any) -> float:
        """Return how many waiting requests vLLM may pass over to admit one behind them."""
        if self.lora_config or self.connector is not None or self.ec_connector is not None:
            return math.inf
        return len(self.deferred_waiting) + len(self._policy_tracker.unsettled)

    def _policy_order_matters(self: Any) -> bool:
        """Tell whether tokens or KV blocks may not be enough for all that run.

        Under prefix caching the order always matters: by it blocks are taken that others find.
        """
        if self.kv_cache_manager.enable_caching:
            return True
        most = len(self.running) * (1 + self.num_spec_tokens)
        prefill = 0
        for row in self._policy_tracker.prefilling:
            if row.source.has_encoder_inputs:  # which have a budget of their own
                return True
            prefill += row.source.num_tokens - row.source.num_computed_tokens
        free = self.kv_cache_manager.block_pool.get_num_free_blocks()
        return bool(
            self.max_num_scheduled_tokens < most + prefill
            or free < most + prefill // self.block_size
        )

    def _policy_is_ready(self: Any, row: RequestRow) -> bool:
        """Tell whether vLLM could admit a waiting request now."""
        request = row.source
        return request.status in self._policy_ready_statuses and not (
            request.num_stale_output_tokens and not request.drop_stale_output
        )

    def _policy_is_displaceable(self: Any, row: RequestRow) -> bool:
        """Tell whether preempting a running request would give its KV and its seat to another."""
        request = row.source
        if not self._request_blocks_can_be_freed(request):
            return False
        # Asynchronous scheduling: with its last token on the way, its seat is about to be free.
        in_flight = request.num_output_placeholders
        reach = request.num_computed_tokens + 2 - in_flight
        return not (in_flight > 0 and reach >= request.num_prompt_tokens + request.max_tokens)

    def _policy_record(self: Any, choice: Choice) -> None:
        rows = self._policy_line.rows
        first = choice.order or []
        self.policy_monitor.write(
            now=self._policy_now,
            num_waiting=len(rows),
            first=[row.source.request_id for row in first[:MAX_NAMED]],
            fcfs=[row.source.request_id for row in rows[: min(len(first), MAX_NAMED)]],
            num_set_aside=choice.num_aside,
            displaced=[row.source.request_id for row in choice.displaced],
            held=[row.source.request_id for row in choice.held],
        )

    # Around a step.

    def _policy_rearrange(self: Any, choice: Choice) -> None:
        """Carry out a choice."""
        if choice.order is not None:
            self._policy_waiting, self.waiting = self.waiting, self._policy_first
            self.waiting.extend([row.source for row in choice.order])
            self._policy_aside_waiting = len(self._policy_waiting) - len(choice.order)
        for row in choice.displaced:
            request = row.source
            self.running.remove(request)
            self._preempt_request(
                request, time.monotonic(), drop_stale_output=self.requires_kv_delivery
            )
            self.policy_displaced.append(request)
            # vLLM has put it to the front of `waiting`, where this step would admit it again.
            self.waiting.remove(request)
            self._policy_aside_waiting += 1
        if choice.running is not None:
            self.running = [row.source for row in choice.running]
        self._policy_aside_running = len(choice.held)
        # Held requests keep their seats.
        self.max_num_active_reqs -= len(choice.held)

    def _policy_restore(self: Any, choice: Choice) -> None:
        """Put `running` back into order of admission and `waiting` into that of arrival.

        Whatever the step did, nobody may be lost or be there twice.
        """
        self._policy_aside_running = self._policy_aside_waiting = 0
        num_admitted = self._policy_tracker.number_admissions()
        if choice.running is not None:
            self.running.extend([row.source for row in choice.held])
            self.running.sort(key=_ADMISSION)
        if choice.order is None:
            return
        first, self.waiting = self.waiting, self._policy_waiting
        if num_admitted or choice.displaced or len(first) != len(choice.order):
            offered = {row.source for row in choice.order}
            left = {*first, *self.policy_displaced}
            self._policy_line.exchange(self.waiting, offered - left, left - offered)
        first.clear()


class _Step:
    """What is known of a step under way.

    Attributes
    ----------
    start : float
    seconds : float
        That the plug-in has taken.
    choice : Choice or None
    before : tuple or None
        `waiting`, who ran and how many seats there were, where a choice was carried out.
    """

    def __init__(self) -> None:
        self.start = 0.0
        self.seconds = 0.0
        self.choice: Choice | None = None
        self.before: tuple[Any, list[Any], int] | None = None

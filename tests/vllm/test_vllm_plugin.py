"""What keeps a server safe from a policy: each rule holds, and without it something breaks."""

import dataclasses
import io
import logging
import math
import subprocess
import sys
import types
from pathlib import Path
from types import SimpleNamespace

import pytest
from _pytest.outcomes import Failed

pytest.importorskip("vllm.v1.core.sched.scheduler", reason="vLLM is not installed here")

import numpy as np
import real_scheduler as real
from runner_mirror import RunnerMirror
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.request import RequestStatus

import queuesmith.deploy.decide
import queuesmith.deploy.monitor
import queuesmith.deploy.plugin
import queuesmith.deploy.rows
import queuesmith.deploy.scheduler
import queuesmith.deploy.tracker
from queuesmith.config import EngineConfig
from queuesmith.deploy.options import PluginOptions
from queuesmith.deploy.plugin import check_deployable
from queuesmith.errors import ConfigError, PolicyError
from queuesmith.policies import get_policy
from queuesmith.policies.policy import load_text

pytestmark = pytest.mark.vllm

DECIDE, SCHEDULER = queuesmith.deploy.decide, queuesmith.deploy.scheduler
MONITOR, TRACKER = queuesmith.deploy.monitor, queuesmith.deploy.tracker
PLUGIN, ROWS = queuesmith.deploy.plugin, queuesmith.deploy.rows

FCFS = "def waiting_key(request, engine):\n    return request.arrival_time\n"
LCFS = (
    "PREEMPTIVE = True\n\n\ndef waiting_key(request, engine):\n    return -request.arrival_time\n"
)


def policy(*parts):
    return load_text("written", "\n\n".join(parts), Path("written.py"))


def hook(name, expression):
    return f"def {name}(request, engine):\n    return {expression}\n"


def make(source, *, max_wait=math.inf, async_scheduling=False, **settings):
    """Make a scheduler for 2 running requests under a policy, with a clock that the test turns."""
    options = PluginOptions("-", max_wait=max_wait, time_limit=math.inf, max_faults=3)
    config = EngineConfig(
        **{
            "max_num_seqs": 2,
            "max_num_batched_tokens": 256,
            "num_gpu_blocks": 200,
            "block_size": 16,
            "max_model_len": 1024,
            **settings,
        }
    )
    scheduler = real.make_scheduler(
        config, policy(source), options, async_scheduling=async_scheduling
    )
    scheduler.now = 100.0
    scheduler.policy_clock = lambda: scheduler.now
    return scheduler


def add(scheduler, name, prompt_len=50, max_tokens=20, arrival_time=0.0, **options):
    request = real.make_request(
        name, [5] * prompt_len, max_tokens, arrival_time=arrival_time, **options
    )
    scheduler.add_request(request)
    return request


def names(requests):
    return [request.request_id for request in requests]


# Rules: each is a situation that goes well, and that a change to the plug-in's text would spoil.


def held_requests_keep_their_seat():
    scheduler = make(FCFS + hook("hold", "request.arrival_time == 0 and engine.num_waiting > 0"))
    for row in range(4):
        add(scheduler, f"r{row}", arrival_time=float(row))

    while scheduler.has_unfinished_requests():
        real.step(scheduler)
        assert len(scheduler.running) <= 2


def requests_set_aside_are_counted():
    source = FCFS + hook("admit", "request.arrival_time == 0")
    scheduler = make(source, long_prefill_token_threshold=40)
    add(scheduler, "alone", prompt_len=200, arrival_time=0.0)
    add(scheduler, "set aside", arrival_time=1.0)

    assert real.step(scheduler).num_scheduled_tokens == {"alone": 40}


def held_requests_are_counted():
    decodes = "request.num_prompt_tokens == 50 and request.num_output_tokens > 0"
    scheduler = make(FCFS + hook("hold", decodes), long_prefill_token_threshold=40)
    add(scheduler, "held")
    real.step(scheduler)
    real.step(scheduler)
    add(scheduler, "alone", prompt_len=200, arrival_time=1.0)
    while len(scheduler.running) < 2:
        real.step(scheduler)

    assert real.step(scheduler).num_scheduled_tokens == {"alone": 40}


def the_displaced_are_not_admitted_in_the_same_step():
    scheduler = make(LCFS, max_num_seqs=1)
    add(scheduler, "old")
    real.step(scheduler)
    real.step(scheduler)
    add(scheduler, "too large", prompt_len=900, arrival_time=1.0)
    scheduler.kv_cache_manager.block_pool.get_num_free_blocks = lambda: 5

    output = scheduler.schedule()

    assert output.preempted_req_ids == {"old"}
    assert output.num_scheduled_tokens == {}
    assert names(scheduler.waiting) == ["old", "too large"]


def somebody_stays_when_all_are_held():
    scheduler = make(FCFS + hook("hold", "True"))
    for row in range(3):
        add(scheduler, f"r{row}", arrival_time=float(row))

    assert real.drain(scheduler, most_steps=200) < 200


def somebody_is_admitted_when_nothing_runs():
    scheduler = make(FCFS + hook("admit", "False"))
    add(scheduler, "a")

    assert real.drain(scheduler, most_steps=50) < 50


def a_paused_server_displaces_nobody():
    scheduler = make(LCFS)
    for row in range(2):
        add(scheduler, f"r{row}", arrival_time=float(row))
    for _ in range(3):
        real.step(scheduler)
    add(scheduler, "new", arrival_time=9.0)
    scheduler.set_pause_state(PauseState.PAUSED_ALL)

    assert not scheduler.schedule().preempted_req_ids


def nobody_is_displaced_for_a_request_that_is_not_ready():
    scheduler = make(LCFS)
    for row in range(2):
        add(scheduler, f"r{row}", arrival_time=float(row))
    for _ in range(3):
        real.step(scheduler)
    request = real.make_request("grammar", [5] * 50, 20, arrival_time=9.0)
    request.structured_output_request = SimpleNamespace(grammar=None)
    request.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
    scheduler.add_request(request)

    assert not scheduler.schedule().preempted_req_ids


def whoever_stands_behind_a_request_that_is_not_ready_is_admitted():
    scheduler = make(hook("waiting_key", "-request.arrival_time"), max_num_seqs=1)
    for row in range(2):
        add(scheduler, f"r{row}", arrival_time=float(row))
    request = real.make_request("grammar", [5] * 50, 20, arrival_time=9.0)
    request.structured_output_request = SimpleNamespace(grammar=None)
    request.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
    scheduler.add_request(request)

    assert set(scheduler.schedule().num_scheduled_tokens) == {"r1"}
    assert names(scheduler.waiting) == ["r0", "grammar"]


def whoever_stands_behind_a_request_with_a_token_on_its_way_is_admitted():
    scheduler = make(FCFS, async_scheduling=True, max_num_seqs=1)
    first = add(scheduler, "first")
    scheduler.schedule()
    add(scheduler, "second", arrival_time=1.0)
    scheduler.running.remove(first)  # as where KV blocks run out
    scheduler._preempt_request(first, 0.0)

    assert set(scheduler.schedule().num_scheduled_tokens) == {"second"}


def nobody_is_displaced_before_a_token():
    source = "PREEMPTIVE = True\n\n" + hook("waiting_key", "request.num_computed_tokens")
    scheduler = make(source, max_num_seqs=1, max_num_batched_tokens=64)
    for row in range(3):
        add(scheduler, f"r{row}", prompt_len=200, arrival_time=float(row))

    assert real.drain(scheduler, most_steps=1000) < 1000


def nobody_is_displaced_while_others_hold_kv_outside():
    scheduler = make(LCFS)
    for row in range(2):
        add(scheduler, f"r{row}", arrival_time=float(row))
    for _ in range(3):
        real.step(scheduler)
    loading = real.make_request("loading", [5] * 50, 20, arrival_time=3.0)
    loading.status = RequestStatus.WAITING_FOR_REMOTE_KVS
    scheduler.add_request(loading)
    add(scheduler, "new", arrival_time=9.0)

    assert not scheduler.schedule().preempted_req_ids


def nobody_is_displaced_whose_blocks_are_still_written():
    scheduler = make(LCFS)
    for row in range(2):
        add(scheduler, f"r{row}", arrival_time=float(row))
    for _ in range(3):
        real.step(scheduler)
    add(scheduler, "new", arrival_time=9.0)
    scheduler._request_blocks_can_be_freed = lambda request: False

    assert not scheduler.schedule().preempted_req_ids


def nobody_is_displaced_whose_last_token_is_on_its_way():
    scheduler = make(LCFS, async_scheduling=True, max_num_seqs=1)
    add(scheduler, "ending", max_tokens=2)
    first = scheduler.schedule()
    first_out = real.run_model(scheduler, first)
    second = scheduler.schedule()  # computes the last token
    real.run_model(scheduler, second)
    scheduler.update_from_output(first, first_out)
    add(scheduler, "new", arrival_time=9.0)

    assert not scheduler.schedule().preempted_req_ids


def whoever_has_waited_too_long_goes_first():
    source = hook("waiting_key", "-request.arrival_time") + "\n" + hook("admit", "False")
    scheduler = make(source, max_wait=10.0, max_num_seqs=1)
    add(scheduler, "long ago", arrival_time=80.0)
    add(scheduler, "now", arrival_time=99.0)

    real.step(scheduler)

    assert names(scheduler.running) == ["long ago"]


def whoever_has_waited_too_long_is_admissible():
    source = FCFS + hook("admit", "request.arrival_time > 90.0")
    scheduler = make(source, max_wait=10.0)
    add(scheduler, "long ago", arrival_time=80.0)
    add(scheduler, "now", arrival_time=99.0)

    assert set(real.step(scheduler).num_scheduled_tokens) == {"long ago", "now"}


def whoever_has_had_no_token_for_long_is_not_held():
    source = FCFS + hook("hold", "request.arrival_time == 99.0")
    scheduler = make(source, max_wait=10.0)
    add(scheduler, "held", arrival_time=99.0, max_tokens=500)
    add(scheduler, "other", arrival_time=99.5, max_tokens=500)
    real.step(scheduler)
    assert set(real.step(scheduler).num_scheduled_tokens) == {"other"}

    scheduler.now += 11.0

    assert set(real.step(scheduler).num_scheduled_tokens) == {"other", "held"}


def whoever_has_had_no_token_for_long_is_no_victim():
    source = FCFS + hook("victim_key", "-request.arrival_time")  # the oldest is the victim
    scheduler = make(source, max_wait=10.0, num_gpu_blocks=67, max_num_batched_tokens=2048)
    add(scheduler, "old", prompt_len=512, arrival_time=99.0, max_tokens=400)
    add(scheduler, "new", prompt_len=528, arrival_time=99.5, max_tokens=400)
    real.step(scheduler)
    old = next(one for one in scheduler.running if one.request_id == "old")
    preempted = set()
    while not preempted:
        # As if it had been left without tokens, by whatever.
        old.queuesmith_row.last_token_ts = scheduler.now - 11.0
        preempted = real.step(scheduler).preempted_req_ids or set()

    assert preempted == {"new"}


def whoever_has_had_no_token_for_long_is_not_displaced():
    scheduler = make(LCFS, max_wait=10.0, max_num_seqs=1)
    add(scheduler, "old", arrival_time=99.0)
    for _ in range(3):
        real.step(scheduler)
    scheduler.now += 11.0
    add(scheduler, "new", arrival_time=scheduler.now)

    assert not real.step(scheduler).preempted_req_ids
    assert real.step(scheduler).preempted_req_ids == {"old"}  # which has had a token now


def whoever_has_waited_too_long_displaces():
    scheduler = make(LCFS, max_wait=10.0, max_num_seqs=1)
    add(scheduler, "new", arrival_time=99.0)
    for _ in range(3):
        real.step(scheduler)
    add(scheduler, "long ago", arrival_time=80.0)

    assert real.step(scheduler).preempted_req_ids == {"new"}


def whoever_has_a_key_that_is_no_number_goes_last():
    scheduler = make(hook("waiting_key", "request.predicted_output_tokens"), max_num_seqs=1)
    for row, predicted in enumerate(["unknown", 30, "unknown", 20, 10]):
        xargs = {"predicted_output_tokens": predicted}
        add(scheduler, f"r{row}", arrival_time=float(row), max_tokens=2, xargs=xargs)

    assert served_in_order(scheduler) == ["r4", "r3", "r1", "r0", "r2"]


def a_key_is_asked_for_anew_when_a_token_comes_late():
    source = hook("waiting_key", "request.num_output_tokens")
    scheduler = make(source, async_scheduling=True, max_num_seqs=1)
    first = add(scheduler, "first")
    output = scheduler.schedule()
    model_output = real.run_model(scheduler, output)
    scheduler.running.remove(first)  # as where KV blocks run out
    scheduler._preempt_request(first, 0.0)
    add(scheduler, "second", arrival_time=1.0, max_tokens=2)
    add(scheduler, "third", arrival_time=2.0)
    second = scheduler.schedule()
    second_output = real.run_model(scheduler, second)
    scheduler.update_from_output(output, model_output)
    scheduler.update_from_output(second, second_output)

    assert served_in_order(scheduler) == ["second", "third", "first"]


def served_in_order(scheduler):
    order = []
    while scheduler.has_unfinished_requests():
        order += [name for name in real.step(scheduler).num_scheduled_tokens if name not in order]
    return order


def a_fault_costs_one_step_its_order_and_nothing_else():
    scheduler = make(
        hook("waiting_key", "1 / (request.num_prompt_tokens - 60)")
        + hook("hold", "engine.now == 100.0")
    )
    add(scheduler, "first", prompt_len=60)
    add(scheduler, "second", prompt_len=50, arrival_time=1.0)
    add(scheduler, "third", prompt_len=50, arrival_time=2.0)

    assert list(scheduler.schedule().num_scheduled_tokens) == ["first", "second"]
    assert names(scheduler.waiting) == ["third"]
    assert scheduler.max_num_active_reqs == 2
    assert dict(scheduler.policy_monitor.faults) == {"waiting_key: ZeroDivisionError": 1}


def a_fault_of_the_plug_in_costs_one_step_its_order():
    scheduler = make(hook("waiting_key", "-request.arrival_time"), max_num_seqs=1)
    scheduler._policy_line.follow = lambda queue: 1 / 0
    for row in range(3):
        add(scheduler, f"r{row}", arrival_time=float(row))

    assert set(real.step(scheduler).num_scheduled_tokens) == {"r0"}


def books_that_may_be_wrong_are_not_followed():
    scheduler = make(hook("waiting_key", "-request.arrival_time"), max_num_seqs=1)
    scheduler._policy_tracker.schedule = lambda output, start: 1 / 0
    for row in range(3):
        add(scheduler, f"r{row}", arrival_time=float(row), max_tokens=2)

    assert served_in_order(scheduler) == ["r2", "r0", "r1"]
    assert not scheduler.policy_monitor.on


def a_policy_that_fails_too_often_is_not_asked_any_more():
    scheduler = make(hook("waiting_key", "1 / (request.num_prompt_tokens - 50)"), max_num_seqs=1)
    for row in range(5):
        add(scheduler, f"r{row}", arrival_time=float(row), max_tokens=2)
    real.drain(scheduler)

    assert scheduler.policy_monitor.faults.total() == 3
    assert not scheduler.policy_monitor.on


def a_slow_policy_costs_one_step_its_order():
    body = "def waiting_key(request, engine):\n    total = 0.0\n    for step in range(5000):\n"
    body += "        total += step\n    return -request.arrival_time\n"
    scheduler = make(body)
    scheduler._policy_options = PluginOptions("-", time_limit=0.001)
    for row in range(200):
        add(scheduler, f"r{row:03d}", arrival_time=50.0 + row / 10)
    real.step(scheduler)

    assert dict(scheduler.policy_monitor.faults) == {"waiting_key: too slow": 1}
    assert names(scheduler.running) == ["r000", "r001"]


def nobody_is_lost_when_vllm_itself_fails():
    source = hook("waiting_key", "-request.arrival_time") + hook(
        "admit", "request.arrival_time < 3"
    )
    scheduler = make(source + hook("hold", "request.arrival_time == 0"))
    for row in range(2):
        add(scheduler, f"r{row}", arrival_time=float(row))
    real.step(scheduler)
    for row in range(2, 5):
        add(scheduler, f"r{row}", arrival_time=float(row))
    running = set(names(scheduler.running))

    def fail(*arguments):
        raise OSError("out of luck")

    scheduler.max_num_active_reqs = 3
    scheduler.kv_cache_manager.new_step_starts = fail
    with pytest.raises(OSError, match="out of luck"):
        scheduler.schedule()

    assert set(names(scheduler.running)) == running
    assert names(scheduler.waiting) == ["r2", "r3", "r4"]
    assert scheduler.max_num_active_reqs == 3


def shadow_mode_orders_nothing():
    scheduler = make(FCFS, max_num_seqs=1)
    options = PluginOptions("-", shadow=True, max_wait=math.inf, time_limit=math.inf)
    scheduler.attach_policy(policy(hook("waiting_key", "-request.arrival_time")), options)
    for row in range(3):
        add(scheduler, f"r{row}", arrival_time=float(row), max_tokens=2)

    assert served_in_order(scheduler) == ["r0", "r1", "r2"]
    assert scheduler.policy_monitor.totals["reorderings"] > 0


def what_a_client_sends_wrongly_is_as_good_as_not_sent():
    scheduler = make(FCFS)
    add(scheduler, "a", xargs={"predicted_output_tokens": [1], "time_to_deadline": "soon"})
    real.drain(scheduler)

    assert scheduler.policy_monitor.on


def clients_that_are_gone_are_forgotten():
    scheduler = make(hook("waiting_key", "request.client_tokens"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(type(scheduler._policy_ledger).arrive.__globals__, "MAX_IDLE_CLIENTS", 3)
        for row in range(8):
            add(scheduler, f"r{row}", max_tokens=2, xargs={"client": f"client {row}"})
            add(scheduler, f"of its own {row}", max_tokens=2)
            real.drain(scheduler)

    assert len(scheduler._policy_ledger._counters) <= 4
    assert not scheduler._policy_tracker._rows


def metrics_that_cannot_be_written_do_not_stop_the_server():
    scheduler = make(FCFS)
    add(scheduler, "a")

    def fail():
        raise OSError("disk full")

    scheduler.policy_monitor._export = fail
    real.drain(scheduler)


def a_record_that_cannot_be_written_ends():
    scheduler = make(hook("waiting_key", "-request.arrival_time"), max_num_seqs=1)

    class Full(io.StringIO):
        def write(self, text):
            raise OSError("disk full")

    scheduler.policy_monitor._record = Full()
    for row in range(3):
        add(scheduler, f"r{row}", arrival_time=float(row), max_tokens=2)

    assert served_in_order(scheduler) == ["r2", "r1", "r0"]
    assert not scheduler.policy_monitor.faults


def configuration(**changes):
    settings = {"policy": "fcfs", "async_scheduling": False, "max_num_scheduled_tokens": None}
    return SimpleNamespace(
        scheduler_config=SimpleNamespace(**settings | changes.pop("scheduling", {})),
        cache_config=SimpleNamespace(),
        parallel_config=SimpleNamespace(
            pipeline_parallel_size=changes.pop("pipeline_parallel_size", 1)
        ),
        **{"kv_transfer_config": None, "speculative_config": None, **changes},
    )


#: A policy, a configuration, and why the server does not start with them.
REFUSED = [
    ("srpt_oracle", {}, "true output length"),
    ("sjf", {"scheduling": {"policy": "priority"}}, "--scheduling-policy priority"),
    ("sarathi", {}, "add --max-num-scheduled-tokens 512"),
    ("las", {"kv_transfer_config": object()}, "KV connectors"),
    ("las", {"pipeline_parallel_size": 2}, "pipeline parallelism"),
    (
        "slai",
        {"scheduling": {"async_scheduling": True}, "speculative_config": object()},
        "--no-async-scheduling",
    ),
]


def what_cannot_be_deployed_does_not_start():
    for name, changes, error in REFUSED:
        with pytest.raises((ConfigError, PolicyError), match=error):
            PLUGIN.check_deployable(get_policy(name), configuration(**changes))


def an_untested_version_does_not_start():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PLUGIN.check_version.__globals__, "installed_version", lambda: "0.34.0")
        with pytest.raises(ConfigError, match=r"vLLM 0\.34\.0 is installed and .* 0\.33 only"):
            PLUGIN.check_version(allow_untested=False)
        PLUGIN.check_version(allow_untested=True)
        patch.setitem(PLUGIN.check_version.__globals__, "installed_version", lambda: None)
        with pytest.raises(ConfigError, match="vLLM is not installed"):
            PLUGIN.check_version(allow_untested=True)


RULES = {
    held_requests_keep_their_seat: [
        (SCHEDULER, "self.max_num_active_reqs -= len(choice.held)", "pass"),
    ],
    held_requests_are_counted: [
        (SCHEDULER, "running + self._policy_aside_running", "running"),
    ],
    requests_set_aside_are_counted: [
        (SCHEDULER, "waiting + self._policy_aside_waiting", "waiting"),
    ],
    the_displaced_are_not_admitted_in_the_same_step: [
        (SCHEDULER, "self.waiting.remove(request)", "pass"),
        (SCHEDULER, "left = {*first, *self.policy_displaced}", "left = {*first}"),
    ],
    somebody_stays_when_all_are_held: [
        (DECIDE, "return held if len(held) < len(running) else set()", "return held"),
    ],
    somebody_is_admitted_when_nothing_runs: [
        (DECIDE, "if not first and not anybody_runs:", "if False:"),
    ],
    a_paused_server_displaces_nobody: [
        (SCHEDULER, "if self._pause_state == self._policy_unpaused:", "if True:"),
    ],
    nobody_is_displaced_for_a_request_that_is_not_ready: [
        (DECIDE, "if is_ready(row):", "if True:"),
    ],
    whoever_stands_behind_a_request_that_is_not_ready_is_admitted: [
        (SCHEDULER, "len(self.deferred_waiting) +", "0 +"),
    ],
    whoever_stands_behind_a_request_with_a_token_on_its_way_is_admitted: [
        (SCHEDULER, "+ len(self._policy_tracker.unsettled)", ""),
    ],
    nobody_is_displaced_before_a_token: [
        (DECIDE, "if row.num_output_tokens <= row.output_at_admission:", "if False:"),
    ],
    nobody_is_displaced_while_others_hold_kv_outside: [
        (SCHEDULER, "may_displace=not self.kv_holding_waiting", "may_displace=True"),
    ],
    nobody_is_displaced_whose_blocks_are_still_written: [
        (SCHEDULER, "if not self._request_blocks_can_be_freed(request):", "if False:"),
    ],
    nobody_is_displaced_whose_last_token_is_on_its_way: [
        (SCHEDULER, "return not (in_flight > 0 and", "return True or not (in_flight > 0 and"),
    ],
    whoever_has_waited_too_long_goes_first: [
        (DECIDE, "if is_overdue(row, now, max_wait):", "if False:"),
    ],
    whoever_has_waited_too_long_is_admissible: [
        (DECIDE, "    first = list(overdue)", "    first = []"),
    ],
    whoever_has_had_no_token_for_long_is_not_held: [
        (DECIDE, "if hold and not now - row.last_token_ts > max_wait", "if hold"),
    ],
    whoever_has_had_no_token_for_long_is_no_victim: [
        (DECIDE, "-math.inf if is_overdue(row, now, max_wait) else key", "key"),
    ],
    whoever_has_had_no_token_for_long_is_not_displaced: [
        (DECIDE, "if not is_overdue(row, now, max_wait) and is_displaceable(row)",
         "if is_displaceable(row)"),
    ],
    whoever_has_waited_too_long_displaces: [
        (DECIDE, "-math.inf if place < choice.num_overdue else row.key", "row.key"),
    ],
    whoever_has_a_key_that_is_no_number_goes_last: [
        (DECIDE, "[math.inf if math.isnan(key) else key for key in keys]", "keys"),
    ],
    a_key_is_asked_for_anew_when_a_token_comes_late: [
        (TRACKER, "self._line.renew(row)\n            if not row", "if not row"),
        (ROWS, "row.num_uncached_tokens += new\n                row.key = None",
         "row.num_uncached_tokens += new"),
    ],
    a_fault_costs_one_step_its_order_and_nothing_else: [
        (DECIDE, "raise HookFault(name, type(error).__name__) from error", "answers = [0] * 9"),
    ],
    a_fault_of_the_plug_in_costs_one_step_its_order: [
        (SCHEDULER, "except Exception as error:  # whatever it is, the server goes on\n"
         "            monitor.fault", "except OSError as error:\n            monitor.fault"),
    ],
    books_that_may_be_wrong_are_not_followed: [
        (SCHEDULER, "fault(f\"rows: {type(error).__name__}\", error, fatal=True)",
         "fault(f\"rows: {type(error).__name__}\", error)"),
        (SCHEDULER, "except Exception as error:  # whatever it is, the server goes on\n"
         "            self.policy_monitor.fault(f\"rows",
         "except OSError as error:\n            self.policy_monitor.fault(f\"rows"),
    ],
    a_policy_that_fails_too_often_is_not_asked_any_more: [
        (MONITOR, "self.faults.total() >= self._max_faults", "False"),
        (SCHEDULER, "if monitor is None or not monitor.on:", "if monitor is None:"),
    ],
    a_slow_policy_costs_one_step_its_order: [
        (DECIDE, "if time.thread_time() > self._stop_at:", "if False:"),
    ],
    nobody_is_lost_when_vllm_itself_fails: [
        (SCHEDULER, "finally:\n            self._policy_end(step)",
         "except ZeroDivisionError:\n            raise\n        self._policy_end(step)"),
        (SCHEDULER, "self.max_num_active_reqs = step.before[-1]\n", "pass\n"),
        (SCHEDULER, "self.running.extend([row.source for row in choice.held])", "pass"),
    ],
    shadow_mode_orders_nothing: [
        (SCHEDULER, "if not self._policy_options.shadow:", "if True:"),
    ],
    what_a_client_sends_wrongly_is_as_good_as_not_sent: [
        (ROWS, "except (TypeError, ValueError, OverflowError):\n        return default",
         "except ZeroDivisionError:\n        return default"),
    ],
    clients_that_are_gone_are_forgotten: [
        (ROWS, "if len(counters) > len(self._active) + MAX_IDLE_CLIENTS:", "if False:"),
        (ROWS, "del self._counters[row.client]", "pass"),
        (TRACKER, "del self._rows[row.source.request_id]", "pass"),
    ],
    metrics_that_cannot_be_written_do_not_stop_the_server: [
        (MONITOR, "except Exception as error:  # a full disk", "except KeyError as error:  #"),
    ],
    a_record_that_cannot_be_written_ends: [
        (MONITOR, "except OSError as error:\n            logger.warning(\"nothing more",
         "except KeyError as error:\n            logger.warning(\"nothing more"),
    ],
    what_cannot_be_deployed_does_not_start: [
        (PLUGIN, "if policy.oracle:", "if False:"),
        (PLUGIN, 'if scheduling.policy != "fcfs":', "if False:"),
        (PLUGIN, "if found != value:", "if False:"),
        (PLUGIN, "if changes_running and vllm_config.kv_transfer_config is not None:", "if False:"),
        (PLUGIN, "if changes_running and vllm_config.parallel_config.pipeline_parallel_size > 1:",
         "if False:"),
        (PLUGIN, "if policy.hold and scheduling.async_scheduling and", "if False and"),
    ],
    an_untested_version_does_not_start: [
        (PLUGIN, "not in known and not allow_untested:", "is None:"),
        (PLUGIN, "if found is None:", "if found is None:\n        return\n    if False:"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule(rule):
    rule()


@pytest.mark.parametrize(
    ("rule", "change"),
    [(rule, change) for rule, changes in RULES.items() for change in changes],
    ids=lambda value: getattr(value, "__name__", "without it"),
)
def test_the_rule_is_needed(rule, change, monkeypatch):
    module, right, wrong = change
    source = Path(module.__file__).read_text()
    assert source.count(right) == 1, f"the rule is written otherwise now; look for {right!r}"
    spoilt = types.ModuleType("spoilt")
    monkeypatch.setitem(sys.modules, "spoilt", spoilt)
    exec(compile(source.replace(right, wrong), "spoilt", "exec"), spoilt.__dict__)
    if module is MONITOR:  # a process may have them once
        spoilt._collectors = MONITOR._collectors
    for user, name in USES[module]:
        monkeypatch.setattr(user, name, getattr(spoilt, name))

    with pytest.raises(FAILURES):
        rule()


#: Where what a module defines is used.
USES = {
    DECIDE: [(SCHEDULER, "decide"), (SCHEDULER, "Questions"), (SCHEDULER, "HookFault")],
    SCHEDULER: [(PLUGIN, "PolicyMixin")],
    MONITOR: [(SCHEDULER, "Monitor")],
    TRACKER: [(SCHEDULER, "Tracker")],
    ROWS: [(SCHEDULER, "Ledger"), (TRACKER, "RequestRow")],
    PLUGIN: [(PLUGIN, "check_deployable"), (PLUGIN, "check_version")],
}
#: How a spoilt rule shows: what it protects does not hold, or vLLM or the plug-in trips over it.
FAILURES = (AssertionError, RuntimeError, KeyError, OSError, ArithmeticError, TypeError, Failed)


# Faults.


@pytest.fixture
def log(caplog):
    """What the plug-in logs, whatever vLLM has done to its loggers."""
    logger = logging.getLogger("vllm.queuesmith")
    before = logger.propagate
    logger.propagate = False
    logger.addHandler(caplog.handler)
    yield caplog
    logger.removeHandler(caplog.handler)
    logger.propagate = before


def test_a_fault_costs_one_step_its_order_and_nothing_else(log):
    a_fault_costs_one_step_its_order_and_nothing_else()

    assert "this step runs first come, first served" in log.text


def test_after_a_fault_of_the_plug_in_itself_it_looks_anew_who_waits():
    scheduler = make(hook("waiting_key", "-request.arrival_time"), max_num_seqs=1)
    for row in range(3):
        add(scheduler, f"r{row}", arrival_time=float(row))
    enter, failing = scheduler._policy_line._enter, iter([False, True])

    def enter_or_fail(request):
        return 1 / 0 if next(failing, False) else enter(request)

    scheduler._policy_line._enter = enter_or_fail

    assert served_in_order(scheduler) == ["r0", "r2", "r1"]
    assert dict(scheduler.policy_monitor.faults) == {"plug-in: ZeroDivisionError": 1}


def test_faults_are_logged_once_and_then_the_policy_is_off(log):
    scheduler = make(hook("waiting_key", "1 / 0.0 * request.priority"), max_num_seqs=1)
    for row in range(3):
        add(scheduler, f"r{row}", arrival_time=float(row), max_tokens=2)

    real.drain(scheduler)

    monitor = scheduler.policy_monitor
    assert not monitor.on
    assert monitor.faults.total() == 3
    errors = [record.getMessage() for record in log.records if record.levelname == "ERROR"]
    assert len(errors) == 2
    assert "failed in waiting_key: ZeroDivisionError" in errors[0]
    assert "is switched off after 3 fault(s)" in errors[1]


@pytest.mark.parametrize(
    ("expression", "kind"),
    [("None", "TypeError"), ("2 ** 5000", "OverflowError")],
)
def test_an_answer_that_is_no_number_is_a_fault(expression, kind):
    scheduler = make(FCFS)
    scheduler._policy = dataclasses.replace(
        policy(FCFS), waiting_key=lambda request, engine: eval(expression)
    )
    add(scheduler, "a")
    real.step(scheduler)

    assert dict(scheduler.policy_monitor.faults) == {f"waiting_key: returned no number ({kind})": 1}


def test_a_fault_of_the_plug_in_itself_switches_it_off_and_the_server_goes_on():
    scheduler = make(LCFS)
    add(scheduler, "a")
    scheduler._policy_tracker.arrive = lambda request, now: 1 / 0
    add(scheduler, "b", arrival_time=1.0)
    add(scheduler, "c", arrival_time=2.0)
    real.drain(scheduler)

    assert not scheduler.policy_monitor.on
    assert dict(scheduler.policy_monitor.faults) == {"rows: ZeroDivisionError": 1}


def test_metrics_that_cannot_be_written_do_not_stop_the_server(log, monkeypatch):
    scheduler = make(LCFS)
    add(scheduler, "a")

    def fail():
        raise OSError("disk full")

    monkeypatch.setattr(scheduler.policy_monitor, "_export", fail)
    real.drain(scheduler)

    assert scheduler.policy_monitor.on
    assert log.text.count("disk full") == 1


def test_a_record_that_cannot_be_written_is_refused_at_the_start(tmp_path):
    options = PluginOptions("-", record=str(tmp_path / "nowhere" / "record"))
    with pytest.raises(ConfigError, match=r"record cannot be written: No such file"):
        make(FCFS).attach_policy(policy(FCFS), options)


# What a row holds.


@pytest.mark.parametrize("name", ["waiting_key", "admit", "hold", "victim_key"])
def test_a_row_counts_the_prefill_tokens_since_its_arrival(name):
    """Of steps that have ended, for anybody; a preemption does not begin anew."""
    source = hook(name, "request.prefill_tokens_since_arrival * 0 + 1")
    scheduler = make(source if name == "waiting_key" else FCFS + source, max_num_seqs=3)
    told = {}
    plain = getattr(scheduler._policy, name)

    def told_hook(request, engine):
        told[request.source.request_id] = request.prefill_tokens_since_arrival
        return bool(plain(request, engine)) if name == "admit" else 0.0

    scheduler._policy = dataclasses.replace(scheduler._policy, **{name: told_hook})
    waits = name in ("waiting_key", "admit")

    def ask():
        told.clear()
        if waits:  # somebody must wait, and a seat be free
            add(scheduler, "asked", prompt_len=10, arrival_time=50.0)
            scheduler.schedule()
        else:
            scheduler._policy_order_matters = lambda: True
            scheduler.schedule()
        return told

    first = add(scheduler, "first", prompt_len=300, max_tokens=50)  # in chunks of 256 and 44
    real.step(scheduler)
    second = add(scheduler, "second", prompt_len=30, max_tokens=50, arrival_time=1.0)
    real.step(scheduler)
    if waits:
        for request in (first, second):
            scheduler.running.remove(request)
            scheduler._preempt_request(request, 0.0)

    expected = {"first": 330, "second": 74}
    assert ask() == (expected | {"asked": 0} if waits else expected)


# Whole runs.


def random_run(scheduler, seed, *, aborts=True, mirror=None, async_scheduling=False):
    """Serve 60 random requests; return the tokens that each got, and those of each step."""
    rng = np.random.default_rng(seed)
    pending = [
        (int(step), f"r{row:03d}", int(rng.integers(1, 300)), int(rng.integers(1, 60)))
        for row, step in enumerate(np.sort(rng.integers(0, 120, 60)))
    ]
    given, outputs, in_flight = {}, [], []
    step = 0
    while pending or in_flight or scheduler.has_unfinished_requests():
        scheduler.now = 100.0 + step / 64
        while pending and pending[0][0] <= step:
            _, name, prompt_len, max_tokens = pending.pop(0)
            add(scheduler, name, prompt_len, max_tokens, arrival_time=scheduler.now)
        if aborts and rng.random() < 0.1 and scheduler.requests:
            victim = str(rng.choice(sorted(scheduler.requests)))
            scheduler.finish_requests(victim, RequestStatus.FINISHED_ABORTED)
        known = [*names(scheduler.running), *names(scheduler.waiting)]
        assert sorted(known) == sorted(scheduler.requests)
        step += 1
        assert step < 20_000
        if scheduler.has_unfinished_requests():
            output = scheduler.schedule()
            if mirror:
                mirror.step(output, scheduler)
            in_flight.append((output, real.run_model(scheduler, output)))
            outputs.append(dict(output.num_scheduled_tokens))
            if async_scheduling and len(in_flight) < 2 and scheduler.has_unfinished_requests():
                continue
        if in_flight:
            output, model_output = in_flight.pop(0)
            for engine_outputs in scheduler.update_from_output(output, model_output).values():
                for one in engine_outputs.outputs:
                    given[one.request_id] = given.get(one.request_id, 0) + len(one.new_token_ids)
    return given, outputs


ALL_HOOKS = get_policy(
    Path(__file__).parents[1] / "engine" / "hooks" / "all_hooks.py"
).source  # every hook at once
SMALL = {"max_num_seqs": 6, "num_gpu_blocks": 70, "max_num_batched_tokens": 128}


@pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("seed", range(6))
def test_a_model_runner_could_follow_every_step(seed, async_scheduling):
    """Also with requests that are aborted while they wait, run or are held."""
    scheduler = make(ALL_HOOKS, async_scheduling=async_scheduling, **SMALL)
    mirror = RunnerMirror(6, async_scheduling)

    random_run(scheduler, seed, mirror=mirror, async_scheduling=async_scheduling)

    assert scheduler.policy_monitor.on
    assert not scheduler.policy_monitor.faults
    assert scheduler.policy_monitor.totals["displaced"] > 0
    assert scheduler.policy_monitor.totals["held"] > 0
    tracker = scheduler._policy_tracker
    assert not tracker._rows
    assert not tracker.prefilling
    assert not tracker.unsettled


@pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])
def test_fcfs_through_the_plug_in_is_vllm_as_it_is(async_scheduling):
    for seed in range(4):
        plain = make(FCFS, async_scheduling=async_scheduling, **SMALL)
        plain.policy_monitor = None
        ordered = make(FCFS, async_scheduling=async_scheduling, **SMALL)

        assert random_run(ordered, seed, async_scheduling=async_scheduling) == random_run(
            plain, seed, async_scheduling=async_scheduling
        )


def test_shadow_mode_orders_nothing_and_records_what_would_have_been(tmp_path):
    record = tmp_path / "decisions.jsonl"
    plain = make(FCFS, **SMALL)
    plain.policy_monitor = None
    shadow = make(FCFS, **SMALL)
    options = PluginOptions("-", shadow=True, record=str(record), time_limit=math.inf)
    shadow.attach_policy(policy(ALL_HOOKS), options)

    assert random_run(shadow, 1) == random_run(plain, 1)
    shadow.policy_monitor.close()
    totals = shadow.policy_monitor.totals
    assert totals["reorderings"] > 10
    assert totals["held"] > 10
    lines = record.read_text().splitlines()
    assert len(lines) == totals["reorderings"]
    assert '"fcfs": ["r' in lines[-1] or '"held": ["r' in lines[-1]


# What a client can say, and what an operator can set.


def test_what_clients_send_reaches_the_policy():
    scheduler = make(FCFS)
    xargs = {
        "predicted_output_tokens": 12,
        "time_to_deadline": 2.5,
        "client": "team a",
        "priority": -3,
        "max_tokens": 7,
    }
    row = add(scheduler, "a", arrival_time=3.0, xargs=xargs).queuesmith_row

    assert (row.predicted_output_tokens, row.deadline, row.client) == (12.0, 5.5, "team a")
    assert (row.priority, row.max_tokens) == (-3, 7)


@pytest.mark.parametrize("nonsense", ["x", [1, 2], "nan", 1e300, None, {}, True])
def test_what_clients_send_wrongly_is_as_good_as_not_sent(nonsense):
    scheduler = make(FCFS)
    names_ = ("predicted_output_tokens", "time_to_deadline", "client", "priority", "max_tokens")
    request = add(scheduler, "a", xargs=dict.fromkeys(names_, nonsense))
    real.drain(scheduler)

    assert scheduler.policy_monitor.on
    assert request.num_output_tokens == 20


def test_what_can_be_deployed_is_not_refused():
    check_deployable(get_policy("sjf"), configuration(kv_transfer_config=object()))
    check_deployable(
        get_policy("sarathi"), configuration(scheduling={"max_num_scheduled_tokens": 512})
    )


def test_the_server_never_imports_numba_or_the_simulator():
    code = (
        "import sys, queuesmith.deploy.plugin as p\n"
        "p.get_policy('sjf')\n"
        "heavy = {'numba', 'scipy', 'pyarrow', 'queuesmith.engine', 'queuesmith.traces'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

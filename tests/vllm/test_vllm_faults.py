"""Whatever a policy, another version of vLLM or the clock does, the server serves on."""

import math
import sys
import time

import pytest

pytest.importorskip("vllm.v1.core.sched.scheduler", reason="vLLM is not installed here")

import real_scheduler as real
from test_vllm_plugin import ALL_HOOKS, FCFS, SMALL, add, hook, make, names, policy, random_run
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from queuesmith.deploy.options import PluginOptions
from queuesmith.deploy.plugin import attach
from queuesmith.errors import ConfigError

pytestmark = pytest.mark.vllm

# What vLLM does not have.

OURS = ("policy_", "_policy_", "queuesmith_", "__")


@pytest.fixture
def watch(monkeypatch):
    """Tell a function what of vLLM's objects the plug-in looks at, before it is given it."""
    told = []

    def wrap(owner):
        plain = owner.__getattribute__

        def get(self, name):
            caller = sys._getframe(1).f_globals.get("__name__", "")
            if told and caller.startswith("queuesmith.deploy") and not name.startswith(OURS):
                told[-1](owner.__name__, name)
            return plain(self, name)

        monkeypatch.setattr(owner, "__getattribute__", get)

    for owner in (Scheduler, Request, SchedulerOutput, KVCacheManager):
        wrap(owner)
    return told


def run(is_async, seed, **settings):
    """Serve without and with the plug-in; return what it did, or None if it did not start."""
    try:
        scheduler = make(ALL_HOOKS, async_scheduling=is_async, **SMALL, **settings)
    except AttributeError:
        return None  # `make_scheduler` says so in one line
    given, outputs = random_run(scheduler, seed, aborts=False, async_scheduling=is_async)
    return scheduler.policy_monitor, given, outputs


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_nothing_that_vllm_lacks_stops_the_server(watch, is_async):
    plain = make(FCFS, async_scheduling=is_async, **SMALL)
    plain.policy_monitor = None
    given, outputs = random_run(plain, 3, aborts=False, async_scheduling=is_async)
    used = set()
    watch.append(lambda *attribute: used.add(attribute))
    run(is_async, 3)
    num_stopped = 0

    assert len(used) > 40
    for missing in sorted(used):

        def take_away(*attribute, missing=missing):
            if attribute == missing:
                raise AttributeError(f"{missing[0]} object has no attribute {missing[1]!r}")

        watch.append(take_away)
        ran = run(is_async, 3)
        if ran is None:
            continue
        monitor, ours, steps = ran
        assert ours == given, missing  # every request got every token
        assert monitor.faults, missing
        if not monitor.totals["decisions"]:
            num_stopped += 1
            assert steps == outputs, missing  # first come, first served, as vLLM by itself
    assert num_stopped > 10


def test_what_cannot_be_attached_is_refused_in_one_line():
    scheduler = make(FCFS)
    del scheduler.max_num_scheduled_tokens

    with pytest.raises(ConfigError, match=r"lacks what this plug-in needs: .*max_num_scheduled"):
        attach(scheduler, policy(FCFS), PluginOptions("-"))


@pytest.mark.parametrize("name", ["_policy_rearrange", "_policy_restore"])
@pytest.mark.parametrize("at", ["before", "within", "after"])
def test_a_change_that_fails_half_way_is_undone(name, at, monkeypatch):
    scheduler = make(ALL_HOOKS, **SMALL)
    plain = getattr(scheduler, name)
    calls = []

    def fail(choice):
        calls.append(choice)
        if len(calls) != 40:
            return plain(choice)
        if at == "within":
            queue_class = type(scheduler._policy_first)
            method = "remove" if name == "_policy_rearrange" else "clear"
            monkeypatch.setattr(queue_class, method, fail_once(getattr(queue_class, method)))
        elif at == "after":
            plain(choice)
        if at != "within":
            raise KeyError("half way")
        return plain(choice)

    monkeypatch.setattr(scheduler, name, fail)
    given, _ = random_run(scheduler, 2, aborts=False)  # which looks that nobody is lost or twice

    assert len(calls) >= 40
    assert len(given) == 60


def fail_once(method):
    state = iter([True])

    def failing(self, *arguments):
        if next(state, False):
            raise KeyError("half way")
        return method(self, *arguments)

    return failing


# A policy that does not end.


def slowest_step(source, num_waiting=60):
    """Serve under a policy and the limits that ship; return CPU seconds of the slowest step."""
    scheduler = make(source)
    options = PluginOptions("-", max_wait=math.inf)
    scheduler.attach_policy(policy(source), options)
    for row in range(num_waiting):
        add(scheduler, f"r{row:02d}", prompt_len=313 if row % 7 == 3 else 50, max_tokens=3)
    seconds = []
    while scheduler.has_unfinished_requests():
        begun = time.thread_time()
        output = scheduler.schedule()
        seconds.append(time.thread_time() - begun)
        scheduler.update_from_output(output, real.run_model(scheduler, output))
    return max(seconds), scheduler.policy_monitor


SQUARES = """
def waiting_key(request, engine):
    x = 3
    if request.num_prompt_tokens == 313:
        x = request.num_prompt_tokens
        for i in range(60):
            x = x * x
    return request.arrival_time + x
"""
LONG = """
def waiting_key(request, engine):
    x = 1.0
    for i in range(9000):
        x = x * 1.0000001 + 0.5
    return x + engine.now
"""


@pytest.mark.parametrize("hook_name", ["waiting_key", "victim_key", "hold", "admit"])
@pytest.mark.parametrize("body", [SQUARES, LONG], ids=["squares", "long loop"])
def test_every_step_ends_and_every_request_is_answered(body, hook_name):
    source = body.replace("waiting_key", hook_name)
    if hook_name in ("hold", "admit"):
        source = source.replace("return ", "return 0.0 > ")
    if hook_name != "waiting_key":
        source = FCFS + source
    slowest, monitor = slowest_step(source)

    assert slowest < 1.0  # milliseconds; without limits it never ends, or takes many times that
    if body is SQUARES and hook_name == "waiting_key":
        assert monitor.faults["waiting_key: OverflowError"] > 0


def test_one_fault_by_time_switches_the_policy_off():
    scheduler = make(FCFS + hook("hold", "False"))
    scheduler._policy_options = PluginOptions("-", time_limit=1e-9)
    add(scheduler, "a")
    add(scheduler, "b")
    real.step(scheduler)
    real.step(scheduler)

    assert not scheduler.policy_monitor.on
    assert scheduler.policy_monitor.faults.total() == 1


# Whatever the clock does.


def test_whoever_waits_too_long_goes_first_though_the_wall_clock_is_set_back(monkeypatch):
    scheduler = make(
        hook("waiting_key", "-request.num_prompt_tokens"), max_wait=30.0, max_num_seqs=1
    )
    assert type(scheduler).policy_clock is time.monotonic
    wall, monotonic = [1.7e9], [5000.0]
    monkeypatch.setattr(time, "time", lambda: wall[0])
    scheduler.policy_clock = lambda: monotonic[0]
    del scheduler.policy_arrival  # that of the tests
    add(scheduler, "short", prompt_len=10, max_tokens=2, arrival_time=wall[0])
    wall[0] -= 3600.0
    order = []
    for row in range(40):
        monotonic[0] += 1.0
        wall[0] += 1.0
        add(scheduler, f"long {row}", prompt_len=50, max_tokens=2, arrival_time=wall[0])
        real.step(scheduler)
        order += [name for name in names(scheduler.running) if name not in order]

    assert "short" in order

"""What the plug-in adds to a step of vLLM's scheduler with thousands of requests waiting.

Run in the environment that has vLLM, for all policies or for those that are named:

    requirements/with_vllm.sh python benchmarks/plugin.py [--waiting 1000 5000 20000] [policy ...]

vLLM's own ``Scheduler`` runs without a model, with 256 requests in it. What is added is the CPU
time of `schedule` and `update_from_output` less that of vLLM's own methods within them: the median
of 100 steps, and of four repeats the best, since a busy machine can only make it longer.
"""

import argparse
import gc
import logging
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "vllm"))

import real_scheduler as real
from vllm.v1.core.sched.scheduler import Scheduler

from queuesmith.config import EngineConfig
from queuesmith.deploy.options import PluginOptions
from queuesmith.deploy.scheduler import PolicyMixin
from queuesmith.policies import get_policy

EVOLVED = Path(__file__).parents[1] / "results" / "evolve"
POLICIES = (
    "fcfs",
    "sjf",
    "aged_sjf",
    "edf",
    "hrrn",
    "residual_sjf",
    "fit_first",
    "scorpio_guard",
    "slai",
    "srpt",
    "las",
    str(EVOLVED / "short_first" / "evolved_short_first.py"),
    str(EVOLVED / "by_service" / "evolved_by_service.py"),
)
NUM_RUNNING = 256
NUM_REPEATS = 4
NUM_STEPS = 100
#: Settings of the engine, and whether requests end, whereupon others take their seats.
SITUATIONS = {
    # The watermark lets nobody in, so that the policy is asked in every step, in vain.
    "seats free, nobody fits": ({"max_num_seqs": 512, "watermark": 0.99}, False),
    "seats fall free, and as many arrive": ({"max_num_seqs": NUM_RUNNING}, True),
    "batch full": ({"max_num_seqs": NUM_RUNNING}, False),
}


def within_vllm(name):
    """Wrap a method of vLLM's scheduler so that its CPU time is noted, if it is not nested."""

    def method(self, *args, **kwargs):
        if self.is_within:
            return getattr(Scheduler, name)(self, *args, **kwargs)
        self.is_within = True
        begin = time.thread_time()
        try:
            return getattr(Scheduler, name)(self, *args, **kwargs)
        finally:
            self.vllm_seconds += time.thread_time() - begin
            self.is_within = False

    return method


class Noted(PolicyMixin):
    """The plug-in, whose notes are not vLLM's time although they are taken within it."""

    def _policy_note(self, note, *arguments):
        begin = time.thread_time()
        super()._policy_note(note, *arguments)
        if self.is_within:
            self.vllm_seconds -= time.thread_time() - begin


class Timed(Scheduler):
    """vLLM's scheduler with a stopwatch."""

    is_within = False
    vllm_seconds = 0.0


for name in ("schedule", "update_from_output", "_preempt_request"):
    setattr(Timed, name, within_vllm(name))
real.scheduler_class = lambda config: type("Measured", (Noted, Timed), {})


class Load:
    """A scheduler with requests in it."""

    def __init__(self, policy, settings, ends, num_waiting):
        config = EngineConfig(
            max_num_batched_tokens=8192,
            num_gpu_blocks=100_000,
            block_size=16,
            max_model_len=8192,
            **settings,
        )
        options = PluginOptions("-", max_wait=float("inf"), time_limit=float("inf"))
        self.scheduler = real.make_scheduler(config, get_policy(policy), options)
        self.ends = ends
        self.num_waiting = num_waiting
        self.num_arrived = 0
        self.scheduler.policy_clock = time.time  # that of the arrivals below
        now = time.time()
        for row in range(NUM_RUNNING):
            # Where requests end, they do so one after another.
            self.arrive(now - 20 + row * 0.001, 32, 100 + row % 100 if ends else 3000)
        for _ in range(60):  # until they hold more than the watermark leaves
            real.step(self.scheduler)
        for row in range(num_waiting):
            self.arrive(now - 10 + row * 10 / num_waiting, 10 + row * 7919 % 900)

    def arrive(self, arrival_time, prompt_len, max_tokens=100):
        """Let a request arrive."""
        row = self.num_arrived
        self.num_arrived += 1
        known = {
            "predicted_output_tokens": 1 + row * 7907 % 200,
            "time_to_deadline": 30.0 + row * 7901 % 60,
        }
        self.scheduler.add_request(
            real.make_request(
                f"r{row}", [5] * prompt_len, max_tokens, arrival_time=arrival_time, xargs=known
            )
        )

    def step(self):
        """Take a step; return the CPU seconds of all, and of vLLM's own methods in it."""
        scheduler = self.scheduler
        scheduler.vllm_seconds = 0.0
        begin = time.thread_time()
        output = scheduler.schedule()
        spent = time.thread_time() - begin
        model_output = real.run_model(scheduler, output)
        begin = time.thread_time()
        outputs = scheduler.update_from_output(output, model_output)
        spent += time.thread_time() - begin
        del outputs  # which takes a while, and vLLM keeps them for longer
        vllm = scheduler.vllm_seconds
        while self.ends and len(scheduler.requests) < NUM_RUNNING + self.num_waiting:
            self.arrive(time.time(), 10 + self.num_arrived * 7919 % 900)
        return spent, vllm


def measure(load):
    """Return the median microseconds of vLLM itself, and what the plug-in adds."""
    vllm, added = [], []
    for _ in range(NUM_REPEATS):
        steps = [load.step() for _ in range(NUM_STEPS)]
        vllm.append(1e6 * statistics.median(own for _, own in steps))
        added.append(1e6 * statistics.median(all_ - own for all_, own in steps))
    return min(vllm), min(added)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--waiting", type=int, nargs="+", default=[1000])
    parser.add_argument("policies", nargs="*")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    cases = [(name, number) for name in SITUATIONS for number in arguments.waiting]
    for situation, num_waiting in cases:
        settings, ends = SITUATIONS[situation]
        print(f"{situation}, {num_waiting:,} waiting:")
        for policy in arguments.policies or POLICIES:
            load = Load(policy, settings, ends, num_waiting)
            gc.collect()
            gc.freeze()  # as vLLM's engine does
            vllm, added = measure(load)
            gc.unfreeze()
            monitor = load.scheduler.policy_monitor
            assert not monitor.faults, monitor.faults
            print(
                f"  {Path(policy).stem:20} {added:5.0f} us a step, vLLM {vllm:.0f}; asked in "
                f"{monitor.totals['decisions']} steps, {monitor.totals['held']} held, "
                f"{monitor.totals['displaced']} displaced",
                flush=True,
            )


if __name__ == "__main__":
    main()

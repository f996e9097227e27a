"""What the plug-in adds to a step of vLLM's scheduler with 1,000 requests waiting.

Run in the environment that has vLLM:

    requirements/with_vllm.sh python benchmarks/plugin.py

vLLM's own ``Scheduler`` runs without a model, with up to 256 requests in it. Every policy takes
turns with vLLM alone, ten steps each, so that a noisy machine is noisy for both; what is added is
the difference of the medians of `schedule` and `update_from_output` together, in CPU time.
"""

import gc
import logging
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "vllm"))

import real_scheduler as real

from queuesmith.config import EngineConfig
from queuesmith.deploy.options import PluginOptions
from queuesmith.policies import get_policy

POLICIES = (
    "fcfs",
    "sjf",
    "aged_sjf",
    "hrrn",
    "uniboost",
    "residual_sjf",
    "fit_first",
    "slai",
    "las",
)
NUM_STEPS = 200
#: Where seats are free the watermark lets nobody in, so that the policy is asked in every step.
SITUATIONS = {
    "seats free, nobody fits": {"max_num_seqs": 512, "watermark": 0.99},
    "batch full": {"max_num_seqs": 256},
}


def build(policy, settings):
    config = EngineConfig(
        max_num_batched_tokens=8192,
        num_gpu_blocks=100_000,
        block_size=16,
        max_model_len=8192,
        **settings,
    )
    options = PluginOptions("-", max_wait=float("inf"), time_limit=float("inf"))
    scheduler = real.make_scheduler(config, policy and get_policy(policy), options)
    now = time.time()
    for row in range(256):
        request = real.make_request(f"r{row}", [5] * 32, 3000, arrival_time=now - 20 + row * 0.001)
        scheduler.add_request(request)
    for _ in range(60):  # until they hold more than the watermark leaves
        real.step(scheduler)
    for row in range(1000):
        prompt = [5] * (10 + row * 7919 % 900)
        request = real.make_request(f"w{row}", prompt, 100, arrival_time=now - 10 + row * 0.01)
        scheduler.add_request(request)
    return scheduler


def measure(scheduler):
    """Take a step; return the seconds of CPU that the scheduler took."""
    begin = time.thread_time()
    output = scheduler.schedule()
    spent = time.thread_time() - begin
    model_output = real.run_model(scheduler, output)
    begin = time.thread_time()
    scheduler.update_from_output(output, model_output)
    return spent + time.thread_time() - begin


def main() -> None:
    logging.disable(logging.WARNING)
    for situation, settings in SITUATIONS.items():
        for name in POLICIES:
            alone, ordered = build(None, settings), build(name, settings)
            gc.collect()
            gc.freeze()  # as vLLM's engine does
            seconds = {id(alone): [], id(ordered): []}
            for _ in range(NUM_STEPS // 10):
                for scheduler in (alone, ordered):
                    measure(scheduler)  # the other one was in the processor's cache
                    seconds[id(scheduler)] += [measure(scheduler) for _ in range(9)]
            stock = statistics.median(seconds[id(alone)])
            added = statistics.median(seconds[id(ordered)]) - stock
            if name == POLICIES[0]:
                print(
                    f"{situation}: {len(alone.running)} running, {len(alone.waiting)} waiting, "
                    f"vLLM alone {1e3 * stock:.2f} ms a step"
                )
            asked = ordered.policy_monitor.totals["decisions"]
            print(f"  {name:14} {1e3 * added:+.3f} ms, asked in {asked} steps", flush=True)
            gc.unfreeze()


if __name__ == "__main__":
    main()

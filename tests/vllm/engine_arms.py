"""Serve the same requests with vLLM's CPU engine in several ways; for `test_vllm_engine`.

A process of its own, as an engine would have: vLLM looks at every module that is loaded, and fails
over those of a compiler that tests of the simulator load.
"""

import json
import os
import sys

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ["VLLM_CPU_KVCACHE_SPACE"] = "1"

import numpy as np
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.executor.abstract import Executor

from vllm import EngineArgs, SamplingParams

NUM_REQUESTS = 18
PLUGIN = "queuesmith.deploy.plugin.make_scheduler"


def requests():
    """Draw prompts, half of them with a start in common, and output lengths."""
    rng = np.random.default_rng(3)
    shared = rng.integers(10, 3900, 96).tolist()
    drawn = []
    for row in range(NUM_REQUESTS):
        own = rng.integers(10, 3900, int(rng.integers(5, 150))).tolist()
        start = shared[: int(rng.integers(32, 97))] if row % 2 else []
        drawn.append((row // 3, start + own, int(rng.integers(8, 40))))
    return drawn


def serve(model, policy=None, *, async_scheduling=False, **settings):
    """Serve the requests; return their tokens, and what went on."""
    if policy is not None:
        os.environ["QUEUESMITH_POLICY"] = policy
        os.environ["QUEUESMITH_MAX_WAIT"] = os.environ["QUEUESMITH_TIME_LIMIT"] = "inf"
    arguments = EngineArgs(
        model,
        dtype="float32",
        seed=0,
        enforce_eager=True,
        skip_tokenizer_init=True,
        max_num_seqs=6,
        max_num_batched_tokens=128,
        block_size=32,
        max_model_len=512,
        num_gpu_blocks_override=24,
        **{"enable_prefix_caching": False, **settings},
        **({} if policy is None else {"scheduler_cls": PLUGIN}),
    )
    config = arguments.create_engine_config()
    config.scheduler_config.async_scheduling = async_scheduling
    engine = LLMEngine(
        vllm_config=config,
        executor_class=Executor.get_class(config),
        log_stats=False,
        multiprocess_mode=False,
    )
    scheduler = engine.engine_core.engine_core.scheduler
    schedule, num_drafts = scheduler.schedule, 0

    def counted(*arguments):
        nonlocal num_drafts
        output = schedule(*arguments)
        num_drafts += sum(map(len, output.scheduled_spec_decode_tokens.values()))
        return output

    scheduler.schedule = counted
    tokens, pending, step = {}, requests(), 0
    while pending or engine.has_unfinished_requests():
        while pending and pending[0][0] <= step:
            _, prompt, max_tokens = pending.pop(0)
            engine.add_request(
                str(NUM_REQUESTS - len(pending)),
                {"prompt_token_ids": prompt},
                SamplingParams(
                    max_tokens=max_tokens, ignore_eos=True, temperature=0.0, detokenize=False
                ),
            )
        step += 1
        for output in engine.step():
            if output.finished:
                # vLLM makes ids unique by something random after a dash.
                name = output.request_id.partition("-")[0]
                tokens[name] = list(output.outputs[0].token_ids)
    engine.engine_core.shutdown()
    monitor = getattr(scheduler, "policy_monitor", None)
    return {
        "tokens": tokens,
        "scheduler": type(scheduler).__name__,
        "num_drafts": num_drafts,
        "on": monitor is None or monitor.on,
        "faults": {} if monitor is None else dict(monitor.faults),
        "totals": {} if monitor is None else dict(monitor.totals),
    }


if __name__ == "__main__":
    model, arms = sys.argv[1], json.loads(sys.argv[2])
    print(json.dumps({name: serve(model, **settings) for name, settings in arms.items()}))

"""vLLM's own scheduler, with the plug-in, on a clock of the step-time model.

Requests arrive and steps end on simulated time, so that the result is the same on every machine:
what is real is the scheduler, its KV cache manager and the plug-in; there is no model, and each
step costs what the formula says. It must equal the simulator, and a test says so.
"""

import functools
import json
import math
import os
import tempfile
from operator import attrgetter
from pathlib import Path
from typing import Any

from queuesmith.config import EngineConfig
from queuesmith.deploy.options import PluginOptions
from queuesmith.deploy.plugin import check_deployable, check_version, scheduler_class
from queuesmith.deploy.prompts import known_to_policies
from queuesmith.deploy.replay import Served
from queuesmith.deploy.steps import step_work
from queuesmith.engine.presets.step_time import StepTime
from queuesmith.engine.workload import Workload
from queuesmith.errors import ConfigError, EngineError
from queuesmith.policies import Policy

#: Steps in a row in which nothing was scheduled, after which the policy is taken to stall.
MAX_EMPTY_STEPS = 10_000
#: The least that vLLM wants to know of a model; it is never loaded.
_MODEL: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 32_000,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}
_TOKEN = 7
_STOP_TOKEN = 8


def serve_on_virtual_clock(
    workload: Workload, policy: Policy | None, config: EngineConfig, step_time: StepTime
) -> tuple[list[Served], float, int]:
    """Serve a workload by vLLM's scheduler.

    Parameters
    ----------
    workload : Workload
    policy : Policy or None
        None is vLLM as it is, first come, first served, without the plug-in.
    config : EngineConfig
    step_time : StepTime

    Returns
    -------
    served : list of Served
    seconds : float
        That steps took in all.
    num_steps : int

    Raises
    ------
    ConfigError
        If vLLM is not installed or of an untested version, or cannot be configured so.
    PolicyError
        If the policy cannot be deployed.
    EngineError
        If nothing is scheduled any more.
    """
    scheduler, clock = _build(policy, config)
    requests = _requests(workload)
    arrivals = workload.trace.arrival_time.tolist()
    first: dict[int, float] = {}
    last: dict[int, float] = {}
    num_tokens = [0] * len(arrivals)
    arrived = num_steps = empty = 0
    seconds_in_all = 0.0
    clock[0] = arrivals[0]
    under_way: tuple[Any, Any, float] | None = None
    while arrived < len(arrivals) or scheduler.has_unfinished_requests():
        if not scheduler.has_unfinished_requests() and under_way is None:
            clock[0] = max(clock[0], arrivals[arrived])
        while arrived < len(arrivals) and arrivals[arrived] <= clock[0]:
            scheduler.add_request(requests[arrived])
            arrived += 1
        step: tuple[Any, Any, float] | None = None
        if scheduler.has_unfinished_requests():
            output = scheduler.schedule()
            seconds = step_time.seconds(
                *step_work(scheduler, output), async_scheduling=config.async_scheduling
            )
            if config.async_scheduling and not output.num_scheduled_tokens:
                seconds = 0.0  # there is nothing to wait for
            step = output, _run_model(scheduler, output, workload), seconds
            seconds_in_all += seconds
            num_steps += 1
            empty = 0 if output.num_scheduled_tokens else empty + 1
        if config.async_scheduling:  # the one before is computed meanwhile
            step, under_way = under_way, step
        if step is not None:
            output, model_output, seconds = step
            clock[0] += seconds
            for outputs in scheduler.update_from_output(output, model_output).values():
                for one in outputs.outputs:
                    row = int(one.request_id)
                    num_tokens[row] += len(one.new_token_ids)
                    first.setdefault(row, clock[0])
                    last[row] = clock[0]
        if empty > MAX_EMPTY_STEPS:
            raise EngineError(
                f"nothing was scheduled in {empty:,} steps in a row, at {clock[0]:g} s; look at "
                "admit and hold of the policy"
            )
    monitor = scheduler.policy_monitor
    if monitor is not None and monitor.faults:
        raise EngineError(f"the policy failed: {dict(monitor.faults)}")
    served = [
        Served(row, arrival, arrival, first[row], last[row], num_tokens[row])
        for row, arrival in enumerate(arrivals)
    ]
    return served, seconds_in_all, num_steps


def _build(policy: Policy | None, config: EngineConfig) -> tuple[Any, list[float]]:
    """Return the scheduler and the clock it reads."""
    # Before vLLM is imported: it looks at these once.
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    check_version(allow_untested=False)
    import torch  # type: ignore[import-not-found,unused-ignore]
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    settings = _vllm_config(config)
    attention = FullAttentionSpec(
        block_size=config.block_size, num_kv_heads=1, head_size=1, dtype=torch.float32
    )
    scheduler = scheduler_class(settings)(
        vllm_config=settings,
        kv_cache_config=KVCacheConfig(
            num_blocks=config.num_gpu_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], attention)],
        ),
        block_size=config.block_size,
        structured_output_manager=StructuredOutputManager(settings),
    )
    clock = [0.0]
    scheduler.policy_clock = lambda: clock[0]
    scheduler.policy_arrival = attrgetter("arrival_time")  # on the same clock
    if policy is not None:
        check_deployable(policy, settings)
        # The policy decides alone, as in the simulator; the guards read the machine's own clock.
        options = PluginOptions(policy.name, max_wait=math.inf, time_limit=math.inf, max_faults=1)
        scheduler.attach_policy(policy, options)
    return scheduler, clock


def _vllm_config(config: EngineConfig) -> Any:
    from vllm.config import CacheConfig, SchedulerConfig, VllmConfig

    if config.instant_prefill:
        raise ConfigError(
            "instant_prefill is not in vLLM, so this engine cannot run on the virtual clock; "
            "choose another --engine"
        )
    settings = VllmConfig(
        scheduler_config=SchedulerConfig(
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_num_active_seqs=config.max_num_active_seqs,
            max_num_scheduled_tokens=config.max_num_scheduled_tokens,
            max_model_len=config.max_model_len,
            enable_chunked_prefill=config.enable_chunked_prefill,
            long_prefill_token_threshold=config.long_prefill_token_threshold,
            long_prefill_token_threshold_adaptive=config.long_prefill_token_threshold_adaptive,
            scheduler_reserve_full_isl=config.scheduler_reserve_full_isl,
            watermark=config.watermark,
            policy=config.scheduling_policy,
            async_scheduling=config.async_scheduling,
            is_encoder_decoder=False,
        ),
        model_config=_model_config(config.max_model_len),
        # Every prompt is unlike every other, as in a replay over HTTP.
        cache_config=CacheConfig(block_size=config.block_size, enable_prefix_caching=False),
    )
    # What vLLM changes by itself on a CPU.
    settings.scheduler_config.async_scheduling = config.async_scheduling
    settings.scheduler_config.enable_chunked_prefill = config.enable_chunked_prefill
    settings.cache_config.num_gpu_blocks = config.num_gpu_blocks
    return settings


@functools.cache
def _model_config(max_model_len: int) -> Any:
    from vllm.config import ModelConfig

    with tempfile.TemporaryDirectory(prefix="queuesmith-") as folder:
        longest = max(max_model_len, _MODEL["max_position_embeddings"])
        description = {**_MODEL, "max_position_embeddings": longest}
        (Path(folder) / "config.json").write_text(json.dumps(description))
        return ModelConfig(
            model=folder, seed=0, skip_tokenizer_init=True, max_model_len=max_model_len
        )


def _requests(workload: Workload) -> list[Any]:
    from vllm.sampling_params import SamplingParams
    from vllm.v1.request import Request

    trace = workload.trace
    return [
        Request(
            request_id=str(row),
            prompt_token_ids=[_TOKEN] * int(trace.prompt_len[row]),
            sampling_params=SamplingParams(
                # As in the simulator, vLLM knows the cap and finds the end out by the token.
                max_tokens=int(workload.max_tokens[row]),
                ignore_eos=True,
                stop_token_ids=[_STOP_TOKEN],
                extra_args=known_to_policies(workload, row),
            ),
            pooling_params=None,
            arrival_time=float(trace.arrival_time[row]),
            priority=0 if trace.priority is None else int(trace.priority[row]),
        )
        for row in range(len(trace))
    ]


def _run_model(scheduler: Any, output: Any, workload: Workload) -> Any:
    """Make up a token for everybody whose tokens are all computed; call right after `schedule`."""
    from vllm.v1.outputs import ModelRunnerOutput

    ids = list(output.num_scheduled_tokens)
    sampled: list[list[int]] = []
    for request_id in ids:
        request = scheduler.requests[request_id]
        if request.is_prefill_chunk:
            sampled.append([])
            continue
        # Computed tokens are counted already, and under asynchronous scheduling run ahead.
        place = request.num_computed_tokens - request.num_prompt_tokens
        is_last = place == workload.output_len[int(request_id)] - 1
        sampled.append([_STOP_TOKEN if is_last else _TOKEN])
    return ModelRunnerOutput(
        req_ids=ids,
        req_id_to_index={request_id: index for index, request_id in enumerate(ids)},
        sampled_token_ids=sampled,
    )

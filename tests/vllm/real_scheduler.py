"""vLLM's own scheduler without a model: requests in, a made-up output of the model runner back."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")

import dataclasses
import functools
import json
import tempfile
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace

import torch
from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.exceptions import MaxQueuedTokensError, QueueOverflowError
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.output_processor import OutputProcessor
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from queuesmith.deploy.options import PluginOptions
from queuesmith.deploy.plugin import installed_version, scheduler_class

__all__ = ["RequestStatus"]

init_none_hash(sha256)

STOP_TOKEN = 31_999
TINY_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 32_000,
    "max_position_embeddings": 32_768,
    "torch_dtype": "bfloat16",
}
#: The policy decides alone: what protects a server is tested by itself.
UNPROTECTED = PluginOptions("-", max_wait=float("inf"), time_limit=float("inf"), max_faults=1)


@functools.cache
def model_config(max_model_len):
    """Describe a model that is never loaded."""
    folder = Path(tempfile.mkdtemp(prefix="tiny-llama-"))
    (folder / "config.json").write_text(json.dumps(TINY_LLAMA))
    return ModelConfig(
        model=str(folder), seed=0, skip_tokenizer_init=True, max_model_len=max_model_len
    )


#: Settings that vLLM 0.29 and 0.30 do not have, with the values under which they change nothing.
YOUNGER_SETTINGS = {"max_num_active_seqs": None, "long_prefill_token_threshold_adaptive": False}
VERSION = ".".join(installed_version().split(".")[:2])
IS_OLDER = "max_num_active_seqs" not in {
    field.name for field in dataclasses.fields(SchedulerConfig)
}


def vllm_config(config, *, async_scheduling=False, prefix_caching=False):
    """Say in vLLM's words what an `EngineConfig` says."""
    younger = {name: getattr(config, name) for name in YOUNGER_SETTINGS}
    if IS_OLDER:
        assert younger == YOUNGER_SETTINGS
        younger = {}
    scheduling = SchedulerConfig(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_num_scheduled_tokens=config.max_num_scheduled_tokens,
        max_model_len=config.max_model_len,
        enable_chunked_prefill=config.enable_chunked_prefill,
        long_prefill_token_threshold=config.long_prefill_token_threshold,
        scheduler_reserve_full_isl=config.scheduler_reserve_full_isl,
        watermark=config.watermark,
        policy=config.scheduling_policy,
        async_scheduling=async_scheduling,
        is_encoder_decoder=False,
        **younger,
    )
    found = VllmConfig(
        scheduler_config=scheduling,
        model_config=model_config(config.max_model_len),
        cache_config=CacheConfig(
            block_size=config.block_size, enable_prefix_caching=prefix_caching
        ),
    )
    # What vLLM changes by itself on a CPU.
    found.scheduler_config.async_scheduling = async_scheduling
    found.scheduler_config.enable_chunked_prefill = config.enable_chunked_prefill
    found.cache_config.num_gpu_blocks = config.num_gpu_blocks
    return found


def make_scheduler(
    config,
    policy=None,
    options=UNPROTECTED,
    *,
    async_scheduling=False,
    prefix_caching=False,
    v2_model_runner=False,
):
    """Build vLLM's scheduler; with a policy, the plug-in in front of it."""
    found = vllm_config(config, async_scheduling=async_scheduling, prefix_caching=prefix_caching)
    attention = FullAttentionSpec(
        block_size=config.block_size, num_kv_heads=1, head_size=1, dtype=torch.float32
    )
    base = AsyncScheduler if async_scheduling else Scheduler
    scheduler = (scheduler_class(found) if policy else base)(
        vllm_config=found,
        kv_cache_config=KVCacheConfig(
            num_blocks=config.num_gpu_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], attention)],
        ),
        block_size=config.block_size,
        structured_output_manager=StructuredOutputManager(found),
    )
    if v2_model_runner:  # as on a GPU; nothing but what the scheduler hands to it differs
        scheduler.use_v2_model_runner = True
    if policy:
        scheduler.attach_policy(policy, options)
        scheduler.policy_arrival = attrgetter("arrival_time")  # on the clock of the test
    return scheduler


def make_request(
    request_id, prompt, max_tokens, *, arrival_time=0.0, priority=0, xargs=None, hash_blocks=0
):
    """Make a request; `hash_blocks` is the block size where prefixes are cached."""
    return Request(
        request_id=request_id,
        prompt_token_ids=list(prompt),
        sampling_params=SamplingParams(
            max_tokens=max_tokens,
            ignore_eos=True,
            stop_token_ids=[STOP_TOKEN],
            extra_args=xargs,
        ),
        pooling_params=None,
        arrival_time=arrival_time,
        priority=priority,
        block_hasher=get_request_block_hasher(hash_blocks, sha256) if hash_blocks else None,
    )


class ApiServer:
    """vLLM's own admission check, over what its API server would know of the requests.

    Attributes
    ----------
    rejected : set of int
        Rows that were turned away.
    """

    def __init__(self, config):
        self.scheduler_config = config  # of which the check reads two fields, named as vLLM's
        self.admission_stats = None
        self.request_states = {}
        self.rejected = set()

    def get_num_unfinished_requests(self):
        return OutputProcessor.get_num_unfinished_requests(self)

    def get_num_queued_tokens(self):
        return OutputProcessor.get_num_queued_tokens(self)

    def _record_admission_rejection(self, reason):
        pass

    def arrive(self, row, num_prompt_tokens):
        """Let vLLM check a request that comes."""
        try:
            AsyncLLM.check_admission(self, request_id=str(row))
        except (QueueOverflowError, MaxQueuedTokensError):
            self.rejected.add(row)
            return
        self.request_states[row] = SimpleNamespace(prompt_len=num_prompt_tokens, is_prefilling=True)

    def abort(self, row):
        """Forget a request whose client has given up."""
        self.request_states.pop(row, None)

    def hear(self, outputs):
        """Take in what the engine sends at the end of a step."""
        for sent in outputs.values():
            for output in sent.outputs:
                row = int(output.request_id)
                if row in self.request_states:
                    self.request_states[row].is_prefilling = False
                    if output.finish_reason is not None:
                        del self.request_states[row]


def run_model(scheduler, output, token=lambda request_id, place: 7):
    """Sample a token for everybody whose tokens are all computed; call right after `schedule`."""
    ids = list(output.num_scheduled_tokens)
    sampled = []
    for request_id in ids:
        request = scheduler.requests[request_id]
        # Computed tokens are counted already, and under asynchronous scheduling run ahead.
        place = request.num_computed_tokens - request.num_prompt_tokens
        sampled.append([] if request.is_prefill_chunk else [token(request_id, place)])
    return ModelRunnerOutput(
        req_ids=ids,
        req_id_to_index={request_id: index for index, request_id in enumerate(ids)},
        sampled_token_ids=sampled,
    )


def step(scheduler, token=lambda request_id, place: 7):
    """Take one step; return what was scheduled."""
    output = scheduler.schedule()
    scheduler.update_from_output(output, run_model(scheduler, output, token))
    return output


def drain(scheduler, most_steps=20_000):
    """Step until nothing is left; return the number of steps."""
    for number in range(most_steps):
        if not scheduler.has_unfinished_requests():
            return number
        step(scheduler)
    raise AssertionError(f"not finished after {most_steps} steps")

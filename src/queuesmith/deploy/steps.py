"""What every step of a running vLLM computed, and how long it took.

``--scheduler-cls queuesmith.deploy.steps.make_scheduler`` starts vLLM with its own scheduler, or
with the plug-in where a policy is named, and writes one line of JSON per step to the file in
``QUEUESMITH_STEP_RECORD``. `calibrate` fits step times to such records; `ab` compares the machines
that its arms saw. Runs in vLLM's engine process, so it needs neither numba nor the simulator.
"""

import json
import os
import time
from collections import deque
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from queuesmith.deploy.options import PluginOptions
from queuesmith.deploy.plugin import (
    attach,
    check_deployable,
    check_version,
    installed_version,
    scheduler_class,
)
from queuesmith.errors import ConfigError
from queuesmith.policies import get_policy

RECORD_VARIABLE = "QUEUESMITH_STEP_RECORD"

#: Settings of vLLM that a record begins with, under the simulator's names for them.
_SCHEDULER_SETTINGS = (
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_num_active_seqs",
    "max_num_scheduled_tokens",
    "enable_chunked_prefill",
    "long_prefill_token_threshold",
    "long_prefill_token_threshold_adaptive",
    "scheduler_reserve_full_isl",
    "watermark",
)


class StepWork(NamedTuple):
    """What a step computes: P, D, KV and A of `queuesmith.engine.presets.step_time.StepTime`."""

    num_prefill_tokens: int
    num_decodes: int
    kv_tokens: int
    attention: float


def step_work(scheduler: Any, output: Any) -> StepWork:
    """Return what vLLM has just scheduled; call right after ``schedule``."""
    num_prefill_tokens = num_decodes = kv_tokens = 0
    attention = 0.0
    requests = scheduler.requests
    for request_id, new in output.num_scheduled_tokens.items():
        request = requests[request_id]
        computed = request.num_computed_tokens - new  # vLLM has counted them already
        # A decode: it has output, and exactly one token was missing.
        if new == 1 and computed >= request.num_prompt_tokens and not request.is_prefill_chunk:
            num_decodes += 1
            kv_tokens += computed
        else:
            num_prefill_tokens += new
            attention += new * (computed + new / 2)
    return StepWork(num_prefill_tokens, num_decodes, kv_tokens, attention)


class RecordingMixin:
    """Writes down every step; to be put before a scheduler class of vLLM."""

    def record_steps(self: Any, path: Path) -> None:
        """Begin to record; the first line says with which settings."""
        self._steps_file: TextIO = path.open("a", buffering=1, encoding="utf-8")
        self._steps_under_way: deque[tuple[Any, float, StepWork]] = deque()
        self._steps_last_end = -float("inf")
        self._steps_busy = False  # whether anybody was left when the last step ended
        self._steps_file.write(json.dumps(_header(self)) + "\n")

    def schedule(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Schedule one step."""
        start = time.perf_counter()
        output = super().schedule(*args, **kwargs)  # type: ignore[misc]
        self._steps_under_way.append((output, start, step_work(self, output)))
        return output

    def update_from_output(self: Any, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Take in what a step has computed."""
        outputs = super().update_from_output(  # type: ignore[misc]
            scheduler_output, model_runner_output
        )
        end = time.perf_counter()
        while self._steps_under_way:
            output, start, work = self._steps_under_way.popleft()
            if output is scheduler_output:
                # In a busy engine a step lasts from the end of the one before, so that what vLLM
                # does between steps is in it; under asynchronous scheduling the two overlap.
                begun = self._steps_last_end if self._steps_busy else start
                line = {"t": end, "seconds": end - begun, **work._asdict()}
                self._steps_file.write(json.dumps(line) + "\n")
                break
        self._steps_last_end = end
        self._steps_busy = bool(self.running) or bool(self.waiting)
        return outputs

    def shutdown(self: Any) -> None:
        """Close the record."""
        self._steps_file.close()
        super().shutdown()  # type: ignore[misc]


def make_scheduler(vllm_config: Any, **arguments: Any) -> Any:
    """Build vLLM's scheduler, with the policy of ``QUEUESMITH_POLICY`` if any, and a record.

    Raises
    ------
    ConfigError
        If no file is named, or vLLM's version was not tested.
    PolicyError
        If the policy cannot be deployed.
    """
    path = os.environ.get(RECORD_VARIABLE)
    if not path:
        raise ConfigError(f"set {RECORD_VARIABLE} to the file that is to hold a line for each step")
    base = scheduler_class(vllm_config)  # without `attach_policy` it is vLLM's own
    recording = type(f"Recording{base.__name__}", (RecordingMixin, base), {})
    options = None
    if os.environ.get("QUEUESMITH_POLICY"):
        options = PluginOptions.read(os.environ, vllm_config.additional_config)
        policy = get_policy(options.policy)
        check_deployable(policy, vllm_config)
    check_version(options is not None and options.allow_untested)
    scheduler = recording(vllm_config=vllm_config, **arguments)
    if options is not None:
        attach(scheduler, policy, options)
    scheduler.record_steps(Path(path))
    return scheduler


def _header(scheduler: Any) -> dict[str, Any]:
    settings = {name: getattr(scheduler.scheduler_config, name) for name in _SCHEDULER_SETTINGS}
    return {
        "vllm": installed_version(),
        "engine": {
            **{name: value for name, value in settings.items() if value is not None},
            "max_model_len": scheduler.max_model_len,
            "num_gpu_blocks": scheduler.cache_config.num_gpu_blocks,
            "block_size": scheduler.block_size,
            "enable_prefix_caching": bool(scheduler.cache_config.enable_prefix_caching),
            "async_scheduling": bool(scheduler.scheduler_config.async_scheduling),
        },
    }

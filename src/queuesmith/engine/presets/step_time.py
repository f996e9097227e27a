"""Seconds for one engine step, as a formula with seven coefficients, and presets of it."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any, Self

from queuesmith.config import EngineConfig
from queuesmith.engine.presets.vllm_options import VLLM_VERSION
from queuesmith.errors import ConfigError, did_you_mean


@dataclass(frozen=True)
class StepTime:
    """Seconds for a step: ``a + b1 min(T, t0) + b2 max(T - t0, 0) + c D + d KV + e A + f [P > 0]``.

    P are the prefill tokens of the step, D its decodes (requests with output and exactly one token
    missing) and T = P + D; KV sums the computed tokens of the decodes before the step, A sums
    ``new * (computed + new / 2)`` over the prefills. The CPU's share of a step, `host_overhead`,
    is added; under asynchronous scheduling it passes while the GPU computes the step before, so
    that a step takes the longer of the two.

    Attributes
    ----------
    a, b1, b2, c, d, e, f : float
        Seconds; not negative.
    t0 : float
        Tokens; where the cost of a token changes from `b1` to `b2`.
    host_overhead : float
        Seconds of CPU time of every step.
    provenance : str
        Where the coefficients come from.

    Raises
    ------
    ConfigError
        If a coefficient is negative or not finite, or a step without tokens takes no time.
    """

    a: float
    b1: float = 0.0
    b2: float = 0.0
    t0: float = 0.0
    c: float = 0.0
    d: float = 0.0
    e: float = 0.0
    f: float = 0.0
    host_overhead: float = 0.0
    provenance: str = "given by the user"

    def __post_init__(self) -> None:
        for name in ("a", "b1", "b2", "t0", "c", "d", "e", "f", "host_overhead"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 <= value < 1e9:
                raise ConfigError(f"{name} must be a number from 0 up, got {value!r}")
        if self.a + self.host_overhead <= 0:
            raise ConfigError(
                "a step must take some time: set `a` or `host_overhead` above 0 seconds"
            )

    def with_host_overhead(self, seconds: float) -> Self:
        """Return the same formula with `seconds` of CPU time in every step."""
        return replace(self, host_overhead=seconds)

    def fixed(self, async_scheduling: bool) -> tuple[float, float]:
        """Return what every step adds, and what it takes at least, in seconds."""
        if async_scheduling:
            return self.a, self.host_overhead
        return self.a + self.host_overhead, 0.0

    def shortest(self, async_scheduling: bool) -> float:
        """Return the seconds of a step that computes nothing."""
        return max(self.fixed(async_scheduling))

    def seconds(
        self,
        num_prefill_tokens: int,
        num_decodes: int,
        kv_tokens: int,
        attention: float,
        *,
        async_scheduling: bool = False,
    ) -> float:
        """Return the seconds of one step with P, D, KV and A as in the class docstring."""
        num_tokens = num_prefill_tokens + num_decodes
        added, least = self.fixed(async_scheduling)
        seconds = added + self.b1 * min(num_tokens, self.t0)
        seconds += self.b2 * max(num_tokens - self.t0, 0.0)
        seconds += self.c * num_decodes + self.d * kv_tokens + self.e * attention
        if num_prefill_tokens > 0:
            seconds += self.f
        return max(seconds, least)


@dataclass(frozen=True)
class Preset:
    """A model on a GPU: how long its steps take and what vLLM would set by default.

    Attributes
    ----------
    name : str
        ``model/gpu``, such as ``llama-3.1-8b/h100_sxm``.
    title : str
    step_time : StepTime
    config : EngineConfig
    memory_gib, reserved_gib : float
        GPU memory as vLLM finds it, and what weights and activations take of it.
    kv_bytes_per_token : float
        0 when the KV cache does not come from the memory of a GPU.
    own_max_model_len : int
        The model's own context; 0 when unknown. `config` has less where the KV cache holds less,
        since vLLM would refuse to start.
    settings_source : str
        Where `config` comes from.
    """

    name: str
    title: str
    step_time: StepTime
    config: EngineConfig
    memory_gib: float = 0.0
    reserved_gib: float = 0.0
    kv_bytes_per_token: float = 0.0
    own_max_model_len: int = 0
    settings_source: str = ""

    def describe_settings(self) -> str:
        """Return in words what `config` says, where it comes from, and what the CPU adds."""
        config = self.config
        is_async = config.async_scheduling
        milliseconds = 1e3 * self.step_time.host_overhead
        return (
            f"{self.settings_source or 'settings'}: {config.num_gpu_blocks:,} KV blocks of "
            f"{config.block_size} tokens, {config.token_budget:,} tokens and {config.seats:,} "
            f"requests a step, max_model_len {config.max_model_len:,}, prefix caching "
            f"{'on' if config.enable_prefix_caching else 'off'}, async scheduling "
            f"{'on' if is_async else 'off'}; CPU time of a step {milliseconds:g} ms, "
            f"{'hidden behind the GPU' if is_async else 'added'}"
        )

    def num_gpu_blocks(self, gpu_memory_utilization: float, block_size: int) -> int:
        """Return the KV blocks that fit beside the weights.

        Raises
        ------
        ConfigError
            If not even two blocks do, or this preset has no GPU memory to divide.
        """
        if not self.kv_bytes_per_token:
            raise ConfigError(
                f"engine {self.name!r} has no GPU memory to divide; set --num-gpu-blocks-override"
            )
        left_gib = gpu_memory_utilization * self.memory_gib - self.reserved_gib
        num_blocks = int(left_gib * 2**30 / (block_size * self.kv_bytes_per_token))
        if num_blocks < 2:
            raise ConfigError(
                f"no KV cache fits: {gpu_memory_utilization:g} of {self.memory_gib:g} GiB less "
                f"{self.reserved_gib:g} GiB for weights and activations; raise "
                "--gpu-memory-utilization or choose a larger GPU"
            )
        return num_blocks


DEFAULT_PRESET = "llama-3.1-8b/h100_sxm"

#: vLLM's own.
GPU_MEMORY_UTILIZATION = 0.92
BLOCK_SIZE = 16


def preset_names() -> list[str]:
    """Return the names of all presets, the default one first."""
    names = sorted(_presets())
    names.remove(DEFAULT_PRESET)
    return [DEFAULT_PRESET, *names]


def get_preset(name: str) -> Preset:
    """Return a preset by name.

    Raises
    ------
    ConfigError
        If there is none of that name.
    """
    presets = _presets()
    if name not in presets:
        raise ConfigError(
            f"there is no engine {name!r}.{did_you_mean(name, presets)} "
            f"Known: {', '.join(preset_names())}"
        )
    return presets[name]


def engine_defaults(memory_gib: float, gpu: str) -> tuple[int, int]:
    """Return vLLM's ``(max_num_batched_tokens, max_num_seqs)`` for an API server on a GPU."""
    if memory_gib >= 160:
        return 16384, 1024
    large = memory_gib >= 70 and "a100" not in gpu.lower()
    return (8192, 1024) if large else (2048, 256)


def make_preset(
    name: str,
    title: str,
    step_time: StepTime,
    *,
    gpu: str,
    memory_gib: float,
    reserved_gib: float,
    kv_bytes_per_token: float,
    max_model_len: int,
) -> Preset:
    """Build a preset with vLLM's defaults for that memory, and a context that the KV cache holds.

    `step_time` has no host overhead of its own.
    """
    max_num_batched_tokens, max_num_seqs = engine_defaults(memory_gib, gpu)
    preset = Preset(
        name,
        title,
        step_time,
        EngineConfig(),
        memory_gib,
        reserved_gib,
        kv_bytes_per_token,
        max_model_len,
        f"the defaults of vLLM {VLLM_VERSION} on this GPU (gpu_memory_utilization "
        f"{GPU_MEMORY_UTILIZATION})",
    )
    num_gpu_blocks = preset.num_gpu_blocks(GPU_MEMORY_UTILIZATION, BLOCK_SIZE)
    config = EngineConfig(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        num_gpu_blocks=num_gpu_blocks,
        block_size=BLOCK_SIZE,
        max_model_len=min(max_model_len, (num_gpu_blocks - 1) * BLOCK_SIZE),
        enable_prefix_caching=True,
        async_scheduling=True,
    )
    step_time = step_time.with_host_overhead(_data()["host_overhead"]["milliseconds"] / 1e3)
    return replace(preset, config=config, step_time=step_time)


@cache
def _data() -> dict[str, Any]:
    table = files("queuesmith.engine.presets") / "step_times.toml"
    text = table.read_text(encoding="utf-8")
    return tomllib.loads(text)


@cache
def _presets() -> Mapping[str, Preset]:
    data = _data()
    presets = {"constant_1ms": _constant_1ms(data["provenance"]["lssp"])}
    for row in data["presets"]:
        step_time = StepTime(
            **{name: row[name] / 1e3 for name in ("a", "b1", "b2", "c", "d", "e", "f")},
            t0=row["t0"],
            provenance=data["provenance"][row["provenance"]],
        )
        preset = _on_gpu(data, row["model"], row["gpu"], step_time)
        presets[preset.name] = preset
    for gpu, card in data["gpus"].items():
        if "bandwidth" not in card:
            continue
        for model, shape in data["models"].items():
            step_time = StepTime(
                **roofline_coefficients(
                    weight_bytes=2 * shape["num_read"],
                    flops_per_token=2 * shape["num_read"],
                    kv_bytes_per_token=shape["kv_bytes_per_token"],
                    attention_flops=shape["attention_flops"],
                    bandwidth=card["bandwidth"],
                    flops=card["flops"],
                ),
                provenance=data["provenance"]["roofline"],
            )
            preset = _on_gpu(data, model, gpu, step_time)
            presets[preset.name] = preset
    return presets


def _on_gpu(data: dict[str, Any], model: str, gpu: str, step_time: StepTime) -> Preset:
    shape, card = data["models"][model], data["gpus"][gpu]
    return make_preset(
        f"{model}/{gpu}",
        f"{shape['title']} on {card['title']}",
        step_time,
        gpu=gpu,
        memory_gib=card["memory_gib"],
        reserved_gib=shape["weights_gib"] + shape["activations_gib"],
        kv_bytes_per_token=shape["kv_bytes_per_token"],
        max_model_len=shape["max_model_len"],
    )


def _constant_1ms(provenance: str) -> Preset:
    """Price steps as the LSSP study's campaign did, on our step rules."""
    config = EngineConfig(
        max_num_seqs=64,
        max_num_batched_tokens=4096,
        num_gpu_blocks=131_072 // 16 + 1,
        max_model_len=131_072,
        instant_prefill=True,
    )
    title = "1 ms a step, instant prefill"
    step_time, source = (
        StepTime(a=1e-3, provenance=provenance),
        "those of the LSSP study's campaign",
    )
    return Preset("constant_1ms", title, step_time, config, settings_source=source)


def roofline_coefficients(
    *,
    weight_bytes: float,
    flops_per_token: float,
    kv_bytes_per_token: float,
    attention_flops: float,
    bandwidth: float,
    flops: float,
) -> dict[str, float]:
    """Return `StepTime` coefficients of a GPU that always reaches its peak.

    A step reads all weights (`a`) or computes its tokens, whichever takes longer: tokens are free
    up to the ridge `t0`. Decodes read their KV (`d`), prefills compute their attention (`e`).

    Parameters
    ----------
    weight_bytes : float
        Read by every step.
    flops_per_token : float
        Two per weight.
    kv_bytes_per_token : float
    attention_flops : float
        Per token and token of context: ``4 * num_layers * num_heads * head_dim``.
    bandwidth : float
        Bytes/s.
    flops : float
        FLOP/s at the precision of the weights.

    References
    ----------
    Williams, Waterman and Patterson, "Roofline", CACM 52(4), 2009.
    """
    for name, value in (("bandwidth", bandwidth), ("flops", flops)):
        if not 0 < value < 1e21:
            raise ConfigError(f"GPU {name} must be positive and finite, got {value!r}")
    a = weight_bytes / bandwidth
    b2 = flops_per_token / flops
    return {
        "a": a,
        "b1": 0.0,
        "b2": b2,
        "t0": a / b2,
        "d": kv_bytes_per_token / bandwidth,
        "e": attention_flops / flops,
    }

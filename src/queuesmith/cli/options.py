"""Options that several verbs share, and what they turn into."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from queuesmith.config import Slo
from queuesmith.errors import ConfigError, NotOneTrace

if TYPE_CHECKING:
    from queuesmith.engine.presets.step_time import Preset
    from queuesmith.traces.trace import Trace
    from queuesmith.windows import Window


@Parameter(name="*")
@dataclass
class TrafficOptions:
    """How to read the trace.

    Attributes
    ----------
    columns
        Which column holds what: arrival_time=ts,prompt_len=usage.input_tokens,output_len=out, with
        dots for keys within others. Also client, session, priority, max_tokens and deadline, and
        for `queuesmith check` ttft, tpot, e2el and queued_time. Usual names need no mapping.
    unit
        Of numeric times and latencies whose name has no unit such as _ms: s, ms, us or ns; or of
        single columns: arrival_time=us,ttft=ms.
    hash_block_size
        Tokens in each hashed block of a prompt, if the file's numbers do not tell; 0 leaves hashes
        out.
    num_requests
        How many to draw from a model (NAME@model), or the first so many of a file.
    """

    columns: str | None = None
    unit: str | None = None
    hash_block_size: int | None = None
    num_requests: int | None = None


@Parameter(name="*")
@dataclass
class EngineOptions:
    """The engine to simulate.

    Attributes
    ----------
    engine
        Preset: MODEL/GPU, constant_1ms, or the .toml file that `queuesmith calibrate` wrote.
    engine_args
        Options of your own `vllm serve`, in quotes, on top of the preset.
    model_config
        A model's config.json, for a roofline engine (unmeasured) instead of a preset; needs
        --gpu-bandwidth, --gpu-flops and --gpu-memory.
    gpu_bandwidth
        Memory bandwidth, bytes/s, such as 3.35e12.
    gpu_flops
        Peak FLOP/s at the precision of the weights, such as 989e12.
    gpu_memory
        GiB.
    host_overhead
        Seconds of CPU time of every step, in place of the preset's. Under asynchronous scheduling
        they pass while the GPU computes.
    vllm_version
        Whose rules the scheduler follows, 0.29 to 0.33, where they differ; 0.32 when left out.
    """

    engine: str = "llama-3.1-8b/h100_sxm"
    engine_args: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None
    model_config: Path | None = None
    gpu_bandwidth: float | None = None
    gpu_flops: float | None = None
    gpu_memory: float | None = None
    host_overhead: float | None = None
    vllm_version: str | None = None


def load(source: str, traffic: TrafficOptions, seed: int) -> "Trace":
    """Read or draw the trace that the user named."""
    from queuesmith.traces import load_trace
    from queuesmith.windows.frozen import is_window_set

    if is_window_set(Path(source)):
        raise ConfigError(f"{source} is a window set; `queuesmith compare` runs it")
    return load_trace(
        source,
        columns=None if traffic.columns is None else parse_pairs("--columns", traffic.columns),
        unit=traffic.unit,
        hash_block_size=traffic.hash_block_size,
        num_requests=traffic.num_requests,
        seed=seed,
    )


def load_windows(
    source: str, traffic: TrafficOptions, seed: int, part: str | None
) -> "tuple[Trace | list[Window], dict[str, str]]":
    """Read or draw what the user named: a trace, a table of windows, or a part of a window set.

    Also returns the name, the part and the hash of a window set.
    """
    from queuesmith.windows.frozen import WindowSet, is_window_set

    if is_window_set(Path(source)):
        if traffic != TrafficOptions():
            raise ConfigError(f"{source} is a window set, which says how to read its sources")
        windows = WindowSet.load(source)
        named = {"name": windows.name, "part": part or "tuning", "sha256": windows.sha256}
        return windows.windows(named["part"]), named
    if part is not None:
        raise ConfigError(f"--part is for window sets, and {source} is none")
    return _load_trace_or_windows(source, traffic, seed), {}


def _load_trace_or_windows(
    source: str, traffic: TrafficOptions, seed: int
) -> "Trace | list[Window]":
    try:
        return load(source, traffic, seed)
    except NotOneTrace:
        from queuesmith.windows.tables import read_windows

        return read_windows(source)


def build_engine(options: EngineOptions) -> tuple["Preset", list[str]]:
    """Return the engine that the user described, and notes on what it does not follow."""
    from dataclasses import replace

    from queuesmith.engine.presets.engine_args import parse_engine_args
    from queuesmith.engine.presets.roofline import read_model_config, roofline_preset
    from queuesmith.engine.presets.step_time import get_preset

    gpu = (options.gpu_bandwidth, options.gpu_flops, options.gpu_memory)
    if options.model_config is not None:
        bandwidth, flops, memory = gpu
        if bandwidth is None or flops is None or memory is None:
            raise ConfigError(
                "--model-config needs the GPU too: --gpu-bandwidth BYTES/S --gpu-flops FLOP/S "
                "--gpu-memory GIB"
            )
        preset = roofline_preset(
            read_model_config(options.model_config),
            bandwidth=bandwidth,
            flops=flops,
            memory_gib=memory,
        )
    elif any(value is not None for value in gpu):
        raise ConfigError("--gpu-bandwidth, --gpu-flops and --gpu-memory go with --model-config")
    elif options.engine.endswith(".toml"):
        from queuesmith.deploy.engine_file import read_preset

        preset = read_preset(Path(options.engine))
    else:
        preset = get_preset(options.engine)
    notes: list[str] = []
    defaults = preset.config
    if options.engine_args is not None:
        config, notes = parse_engine_args(options.engine_args, preset)
        source = f"{preset.settings_source or preset.name} and --engine-args"
        preset = replace(preset, config=config, settings_source=source)
    if preset.config.max_model_len == defaults.max_model_len < preset.own_max_model_len:
        notes.insert(
            0,
            f"{preset.name} runs with --max-model-len {defaults.max_model_len}: its KV cache holds "
            f"no more, and vLLM would refuse the model's own {preset.own_max_model_len}",
        )
    if options.vllm_version is not None:
        config = preset.config.override({"vllm_version": options.vllm_version})
        preset = replace(preset, config=config)
    if options.host_overhead is not None:
        step_time = preset.step_time.with_host_overhead(options.host_overhead)
        preset = replace(preset, step_time=step_time)
    provenance = f"{preset.step_time.provenance}; {preset.describe_settings()}"
    return replace(preset, step_time=replace(preset.step_time, provenance=provenance)), notes


def write_engine(path: Path, preset: "Preset") -> None:
    """Write an engine as the file that ``--engine`` reads."""
    from queuesmith.cli.output import write_whole
    from queuesmith.deploy.engine_file import preset_toml

    write_whole(path, lambda place: place.write_text(preset_toml(preset, {}), encoding="utf-8"))


def parse_pairs(option: str, text: str) -> dict[str, str]:
    """Read ``a=b,c=d``."""
    pairs = {}
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not (key and equals and value):
            raise ConfigError(f"{option} must look like name=value,name=value, got {text!r}")
        if key in pairs:
            raise ConfigError(f"{option} names {key!r} twice: {text!r}")
        pairs[key] = value
    return pairs


def parse_slo(text: str) -> Slo | None:
    """Read ``ttft=1.0,tpot=0.05``, in seconds; ``none`` for no limits."""
    if text.strip().lower() == "none":
        return None
    limits: dict[str, float] = {}
    for name, value in parse_pairs("--slo", text).items():
        if name not in ("ttft", "tpot", "e2el"):
            raise ConfigError(f"--slo has limits ttft, tpot and e2el, got {name!r}")
        try:
            limits[name] = float(value)
        except ValueError:
            raise ConfigError(f"--slo {name} must be seconds such as 0.5, got {value!r}") from None
    return Slo(**limits)

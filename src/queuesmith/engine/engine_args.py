"""Engine settings as a vLLM user knows them: the options of ``vllm serve``."""

import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from queuesmith.config import EngineConfig
from queuesmith.engine.step_time import Preset
from queuesmith.errors import ConfigError

#: About what a command line can carry; taking words apart gets slower with the square of it.
MAX_CHARACTERS = 100_000
#: vLLM reads "8k" as 8,000 and "8K" as 8,192.
_SUFFIXES = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}

#: Options that change what vLLM schedules but not what this engine does.
_NOT_MODELLED = {
    "speculative-config": "speculative decoding",
    "spec-method": "speculative decoding",
    "pipeline-parallel-size": "pipeline parallelism",
    "data-parallel-size": "several replicas",
    "kv-transfer-config": "KV transfer",
    "enable-lora": "LoRA adapters",
    "max-num-partial-prefills": "concurrent partial prefills",
    "kv-offloading-size": "KV offloading",
    "scheduler-cls": "a custom scheduler class; name the policy itself",
}

#: Options that change how long a step takes or how much KV fits, which a preset fixes.
_IN_THE_PRESET = {
    "model": "the model",
    "tensor-parallel-size": "tensor parallelism",
    "quantization": "quantisation",
    "kv-cache-dtype": "the KV cache's type",
    "dtype": "the weights' type",
}

#: Short names of options that deserve a note.
_SHORT = {
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
    "-q": "--quantization",
}

_FLAGS = {
    "enable-chunked-prefill",
    "long-prefill-token-threshold-adaptive",
    "scheduler-reserve-full-isl",
    "enable-prefix-caching",
    "async-scheduling",
    "enable-lora",
}


def parse_engine_args(text: str, preset: Preset) -> tuple[EngineConfig, list[str]]:
    """Read a ``vllm serve`` command line, or just its options, on top of a preset.

    Parameters
    ----------
    text : str
        Such as ``"--max-num-seqs 128 --no-enable-chunked-prefill"``. Dashes and underscores are
        the same, ``--option=value`` and ``--option value`` too.
    preset : Preset
        Gives what is not said, and the memory that ``--gpu-memory-utilization`` divides.

    Returns
    -------
    EngineConfig, list of str
        The settings, and a note for each option that this engine does not follow.

    Raises
    ------
    ConfigError
        If an option's value cannot be read, or vLLM would refuse the combination.

    Examples
    --------
    >>> from queuesmith.engine.step_time import get_preset
    >>> config, _ = parse_engine_args("--max-num-seqs 128", get_preset("llama-3.1-8b/h100_sxm"))
    >>> config.max_num_seqs
    128
    """
    given, notes = _split(text)
    settings: dict[str, Any] = {}
    for option, (name, read) in _SETTINGS.items():
        if option in given:
            settings[name] = read(option, given[option])
    block_size = settings.get("block_size", preset.config.block_size)
    if "num_gpu_blocks" not in settings:
        settings["num_gpu_blocks"] = _num_gpu_blocks(given, preset, block_size)
    config = _complete(settings, preset)
    if config.max_model_len > config.kv_tokens:
        raise ConfigError(
            f"max_model_len ({config.max_model_len}) is larger than the KV cache "
            f"({config.kv_tokens} tokens), which vLLM refuses; lower --max-model-len or raise "
            "--gpu-memory-utilization"
        )
    return config, notes


def _complete(settings: dict[str, Any], preset: Preset) -> EngineConfig:
    """Fill in what vLLM derives from what was said."""
    if settings.get("max_model_len") == -1:  # vLLM: the longest that fits
        kv_tokens = (settings["num_gpu_blocks"] - 1) * settings.get(
            "block_size", preset.config.block_size
        )
        settings["max_model_len"] = min(preset.config.max_model_len, kv_tokens)
    config = preset.config
    if not settings.get("enable_chunked_prefill", True):
        max_model_len = settings.get("max_model_len", config.max_model_len)
        settings.setdefault(
            "max_num_batched_tokens", max(config.max_num_batched_tokens, max_model_len)
        )
    if "max_num_batched_tokens" in settings and "max_num_seqs" not in settings:
        # vLLM lowers a default, never a value that was given.
        settings["max_num_seqs"] = min(config.max_num_seqs, settings["max_num_batched_tokens"])
    return replace(config, **settings)


def _num_gpu_blocks(given: dict[str, str], preset: Preset, block_size: int) -> int:
    if "kv-cache-memory-bytes" in given:
        if not preset.kv_bytes_per_token:
            raise ConfigError(
                f"engine {preset.name!r} does not say how large a token's KV is; use "
                "--num-gpu-blocks-override"
            )
        memory = _integer("kv-cache-memory-bytes", given["kv-cache-memory-bytes"])
        return int(memory / (block_size * preset.kv_bytes_per_token))
    if "gpu-memory-utilization" in given:
        share = _share("gpu-memory-utilization", given["gpu-memory-utilization"])
        return preset.num_gpu_blocks(share, block_size)
    # The same memory in blocks of another size; one block is the null block.
    return (preset.config.num_gpu_blocks - 1) * preset.config.block_size // block_size + 1


def _split(text: str) -> tuple[dict[str, str], list[str]]:
    """Return the options that are followed, and notes on the others."""
    if len(text) > MAX_CHARACTERS:
        raise ConfigError(
            f"--engine-args has {len(text):,} characters; at most {MAX_CHARACTERS:,} are read"
        )
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"--engine-args cannot be read: {error}; check the quotes") from None
    given: dict[str, str] = {}
    notes = []
    ignored = []
    place = 0
    while place < len(words):
        word = _SHORT.get(words[place], words[place])
        place += 1
        if not word.startswith("--"):
            if word.partition("=")[0].replace("_", "-") in _SETTINGS:
                raise ConfigError(f"--engine-args: options begin with two dashes, as in --{word}")
            continue  # "vllm serve MODEL", or the value of an option that is ignored
        option, equals, value = word[2:].partition("=")
        option = option.replace("_", "-")
        negated = option.startswith("no-") and option[3:] in _FLAGS
        option = option[3:] if negated else option
        if option in _FLAGS and not equals:
            value = "false" if negated else "true"
        elif not equals and place < len(words) and not words[place].startswith("--"):
            value = words[place]
            place += 1
        if option in _SETTINGS or option in ("gpu-memory-utilization", "kv-cache-memory-bytes"):
            if not value:
                raise ConfigError(f"--{option} needs a value, as in `--{option} 128`")
            given[option] = value
        elif (family := option.partition(".")[0]) in _NOT_MODELLED:  # --speculative-config.method
            if value != "false":  # switched off is what is simulated
                notes.append(f"--{option}: {_NOT_MODELLED[family]} is not simulated")
        elif option in _IN_THE_PRESET:
            notes.append(f"--{option}: {_IN_THE_PRESET[option]} comes from the engine preset")
        elif close := get_close_matches(option, [*_SETTINGS, *_FLAGS], n=1, cutoff=0.8):
            raise ConfigError(f"--engine-args: there is no --{option}. Did you mean --{close[0]}?")
        else:
            ignored.append(f"--{option}")
    if ignored:
        notes.append(f"options that are not about scheduling were ignored: {', '.join(ignored)}")
    return given, notes


def _integer(option: str, value: str) -> int:
    found = re.fullmatch(r"(-?\d{1,15}(?:\.\d{1,15})?)([kmgKMG]?)", value)
    if found:
        number = float(found[1]) * _SUFFIXES.get(found[2], 1)
        if number == int(number):
            return int(number)
    raise ConfigError(
        f"--{option} must be a whole number such as 8192, 8k (8,000) or 8K (8,192), got {value!r}"
    )


def _max_model_len(option: str, value: str) -> int:
    return -1 if value in ("auto", "-1") else _integer(option, value)


def _share(option: str, value: str) -> float:
    try:
        share = float(value)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise ConfigError(f"--{option} must be a number from 0 to 1, got {value!r}")
    return share


def _boolean(option: str, value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise ConfigError(f"--{option} is a switch: --{option} or --no-{option}, got {value!r}")
    return value.lower() == "true"


def _word(_option: str, value: str) -> str:
    return value


_SETTINGS: dict[str, tuple[str, Callable[[str, str], Any]]] = {
    "max-num-seqs": ("max_num_seqs", _integer),
    "max-num-active-seqs": ("max_num_active_seqs", _integer),
    "max-num-batched-tokens": ("max_num_batched_tokens", _integer),
    "max-num-scheduled-tokens": ("max_num_scheduled_tokens", _integer),
    "num-gpu-blocks-override": ("num_gpu_blocks", _integer),
    "block-size": ("block_size", _integer),
    "max-model-len": ("max_model_len", _max_model_len),
    "enable-chunked-prefill": ("enable_chunked_prefill", _boolean),
    "long-prefill-token-threshold": ("long_prefill_token_threshold", _integer),
    "long-prefill-token-threshold-adaptive": ("long_prefill_token_threshold_adaptive", _boolean),
    "scheduler-reserve-full-isl": ("scheduler_reserve_full_isl", _boolean),
    "watermark": ("watermark", _share),
    "enable-prefix-caching": ("enable_prefix_caching", _boolean),
    "async-scheduling": ("async_scheduling", _boolean),
    "scheduling-policy": ("scheduling_policy", _word),
}

"""Engine settings as a vLLM user knows them: the options of ``vllm serve``."""

import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from queuesmith.config import EngineConfig
from queuesmith.documents import hide_secrets
from queuesmith.engine.presets.step_time import Preset
from queuesmith.engine.presets.vllm_options import (
    VLLM_VERSION,
    VllmOption,
    find_option,
    vllm_options,
)
from queuesmith.errors import ConfigError

#: About what a command line can carry; taking words apart gets slower with the square of it.
MAX_CHARACTERS = 100_000
#: vLLM reads "8k" as 8,000 and "8K" as 8,192.
_DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


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
        The settings, and what to say of the options that this engine does not follow.

    Raises
    ------
    ConfigError
        If an option's value cannot be read, or vLLM would refuse it or the combination.

    Examples
    --------
    >>> from queuesmith.engine.presets.step_time import get_preset
    >>> config, _ = parse_engine_args("--max-num-seqs 128", get_preset("llama-3.1-8b/h100_sxm"))
    >>> config.max_num_seqs
    128
    """
    given, model, notes = _read(text)
    if "model" in given:
        model = given.pop("model")
    another = model is not None and not _is_simulated(model, preset)
    if another:
        notes.append(f"{model} is not what is simulated: {preset.title} is, the engine preset")
    notes += _notes(given)
    settings: dict[str, Any] = {}
    for option, (name, read) in _SETTINGS.items():
        if option in given:
            settings[name] = read(option, given[option])
    block_size = settings.get("block_size", preset.config.block_size)
    if "num_gpu_blocks" not in settings:
        settings["num_gpu_blocks"] = _num_gpu_blocks(given, preset, block_size)
    mode = given.get("performance-mode", "balanced")
    if mode not in ("balanced", "interactivity", "throughput"):
        raise ConfigError(
            f"--performance-mode must be balanced, interactivity or throughput, got {mode!r}"
        )
    if mode == "interactivity":
        notes.append("--performance-mode interactivity: CUDA graphs come from the engine preset")
    config = _complete(settings, preset, 2 if mode == "throughput" else 1)
    own = preset.own_max_model_len
    if 0 < own < config.max_model_len and not another and "hf-overrides" not in given:
        raise ConfigError(
            f"vLLM would refuse to start: --max-model-len {config.max_model_len} is above the "
            f"{own} that {preset.title} was made for; give {own} or less"
        )
    if config.max_model_len > config.kv_tokens:
        raise ConfigError(_too_long(config, preset))
    return config, notes


def _complete(settings: dict[str, Any], preset: Preset, times: int) -> EngineConfig:
    """Fill in what vLLM derives from what was said; its defaults are taken `times` over."""
    config = preset.config
    if settings.get("max_model_len") == -1:  # vLLM: the longest that fits
        kv_tokens = (settings["num_gpu_blocks"] - 1) * settings.get("block_size", config.block_size)
        settings["max_model_len"] = min(preset.own_max_model_len or config.max_model_len, kv_tokens)
    max_model_len = settings.get("max_model_len", config.max_model_len)
    max_num_seqs = settings.get("max_num_seqs", times * config.max_num_seqs)
    if "max_num_batched_tokens" not in settings:
        budget = times * config.max_num_batched_tokens
        if not settings.get("enable_chunked_prefill", config.enable_chunked_prefill):
            budget = max(budget, max_model_len)
        settings["max_num_batched_tokens"] = max(min(budget, max_num_seqs * max_model_len), 1)
    if "max_num_seqs" not in settings:
        # vLLM lowers a default, never a value that was given.
        settings["max_num_seqs"] = min(max_num_seqs, settings["max_num_batched_tokens"])
    return replace(config, **settings)


def _too_long(config: EngineConfig, preset: Preset) -> str:
    longest = max(config.kv_tokens, 1)
    memory = ""
    if preset.kv_bytes_per_token:
        needed, there = (
            tokens * preset.kv_bytes_per_token / 2**30
            for tokens in (config.max_model_len, config.kv_tokens)
        )
        memory = f" ({needed:.2f} GiB are needed, {there:.2f} GiB are available)"
    return (
        f"vLLM would refuse to start: max_model_len ({config.max_model_len}) is larger than the KV "
        f"cache ({config.kv_tokens} tokens){memory}; give --max-model-len {longest} or less, or "
        "raise --gpu-memory-utilization"
    )


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


def _is_simulated(model: str, preset: Preset) -> bool:
    """Tell whether a model's name says that it is the preset's."""
    name = model.lower().rstrip("/").rpartition("/")[2].removeprefix("meta-")
    name = name.removesuffix("-instruct").removesuffix("-base")
    return (
        name == preset.name.partition("/")[0].lower() or f" {name} " in f" {preset.title.lower()} "
    )


# What was given


def _read(text: str) -> tuple[dict[str, str], str | None, list[str]]:
    """Return the values of vLLM's options, the model named, and notes on words that are none."""
    if len(text) > MAX_CHARACTERS:
        raise ConfigError(
            f"--engine-args has {len(text):,} characters; at most {MAX_CHARACTERS:,} are read"
        )
    try:
        words = _options_of(shlex.split(text))
    except ValueError as error:
        raise ConfigError(f"--engine-args cannot be read: {error}; check the quotes") from None
    given: dict[str, str] = {}
    model: str | None = None
    notes = []
    while words:
        word = words.pop(0)
        if _is_value(word):
            if word.partition("=")[0].replace("_", "-") in vllm_options():
                raise ConfigError(f"--engine-args: options begin with two dashes, as in --{word}")
            if model is not None:
                raise ConfigError(
                    f"--engine-args: vLLM {VLLM_VERSION} would not recognise "
                    f"{hide_secrets([word])[0]!r}, which belongs to no option"
                )
            model = word
            continue
        if word.startswith("-O"):  # -O3, -O=3 and -O 3
            word = f"--optimization-level={word[2:].removeprefix('=')}".rstrip("=")
        spelling, equals, value = word.partition("=")
        spelling, dot, _ = spelling.partition(".")  # --speculative-config.method ngram
        option, negated = find_option(spelling)
        if option is None:
            if not equals and words and _is_value(words[0]):
                words.pop(0)
            notes.append(f"{spelling} is no option of vLLM {VLLM_VERSION} and was not read")
        elif option.takes in ("switch", "flag") and not dot:
            if not equals and words and words[0].lower() in ("true", "false"):
                value = words.pop(0).lower()
                notes.append(
                    f"{spelling} {value}: read as in older versions; vLLM {VLLM_VERSION} takes no "
                    "word after a switch"
                )
            given[option.name] = _switch(option, negated, value or "true")
        elif equals:
            given[option.name] = value
        else:
            given[option.name] = _values(option, words)
    return given, model, notes


def _options_of(words: list[str]) -> list[str]:
    """Return what follows the command or the container's image, if there is one."""
    for place, word in enumerate(words):
        if re.match(r"(?:.*/)?vllm-openai(?:[:@]|$)", word):
            return words[place + 1 :]
    for place, word in enumerate(words):
        if word.startswith("-") and word != "-m":
            break
        if word in ("serve", "vllm.entrypoints.openai.api_server"):
            return words[place + 1 :]
    return words


def _is_value(word: str) -> bool:
    return not re.match(r"-(?![\d.]|$)", word)


def _values(option: VllmOption, words: list[str]) -> str:
    """Take an option's values off the words; the last is what counts."""
    found = ""
    while words and _is_value(words[0]):
        found = words.pop(0)
        if option.takes != "values":
            break
    if not found and option.takes != "optional":
        raise ConfigError(f"--{option.name} needs a value")
    return found


def _switch(option: VllmOption, negated: bool, value: str) -> str:
    if value.lower() not in ("true", "false"):
        off = f" or --no-{option.name}" if option.takes == "switch" else ""
        raise ConfigError(f"--{option.name} is a switch: --{option.name}{off}, got {value!r:.80}")
    return "false" if (value.lower() == "false") != negated else "true"


def _notes(given: dict[str, str]) -> list[str]:
    """Say of each option that is not followed why; one note for all that have no effect."""
    notes = []
    without_effect = []
    for name, value in given.items():
        option = vllm_options()[name]
        unless = option.unless or (("false",) if option.takes in ("switch", "flag") else ())
        if option.kind == "no effect":
            without_effect.append(f"--{name}")
        elif option.kind != "followed" and value not in unless:
            notes.append(f"--{name}: {option.words.format(value=value)}")
    if without_effect:
        notes.append(f"options without effect on scheduling: {', '.join(without_effect)}")
    return notes


# Values


def _integer(option: str, value: str) -> int:
    found = re.fullmatch(r"(-?\d{1,15}(?:\.\d{1,15})?)([kmgtKMGT]?)", value)
    if found and found[2] in _BINARY and "." in found[1]:
        raise ConfigError(
            f"--{option}: vLLM takes no decimals with {found[2]}; did you mean "
            f"{found[1]}{found[2].lower()}?"
        )
    if found:
        number = float(found[1]) * (_DECIMAL | _BINARY).get(found[2], 1)
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


def _boolean(_option: str, value: str) -> bool:
    return value == "true"


def _word(_option: str, value: str) -> str:
    return value


_SETTINGS: dict[str, tuple[str, Callable[[str, str], Any]]] = {
    "max-num-seqs": ("max_num_seqs", _integer),
    "max-num-active-seqs": ("max_num_active_seqs", _integer),
    "max-num-batched-tokens": ("max_num_batched_tokens", _integer),
    "max-num-scheduled-tokens": ("max_num_scheduled_tokens", _integer),
    "max-num-queued-reqs": ("max_num_queued_reqs", _integer),
    "max-num-queued-tokens": ("max_num_queued_tokens", _integer),
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

"""An engine nobody has measured: from a model's ``config.json`` and a GPU's data sheet."""

from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from queuesmith.documents import parse_json, read_file
from queuesmith.engine.presets.step_time import Preset, StepTime, make_preset, roofline_coefficients
from queuesmith.errors import ConfigError

PROVENANCE = "roofline, unmeasured: bandwidth and peak FLOP/s only"

#: GiB that activations and CUDA graphs take beside the weights, as in the presets.
ACTIVATIONS_GIB = 2.0


@dataclass(frozen=True)
class ModelShape:
    """What a roofline needs to know of a dense decoder.

    Attributes
    ----------
    num_parameters, num_read : int
        All parameters, and those that every step reads: all but the input embedding.
    kv_values_per_token : int
        Numbers of KV cache that a token takes over all layers.
    attention_flops : int
        FLOP of attention per token and token of context.
    max_model_len : int
    """

    num_parameters: int
    num_read: int
    kv_values_per_token: int
    attention_flops: int
    max_model_len: int


def read_model_config(path: str | PathLike[str]) -> ModelShape:
    """Read the shape of a dense decoder from a Hugging Face ``config.json``.

    Raises
    ------
    ConfigError
        If the file cannot be read, a size is missing, or the model is a mixture of experts or
        compresses its KV cache, for which a step does not read all weights or all of a head.
    """
    path = Path(path)
    try:
        config = parse_json(read_file(path))
    except OSError as error:
        raise ConfigError(
            f"{path}: {error.strerror or error}; give a model's config.json"
        ) from None
    except ValueError:
        raise ConfigError(f"{path} is not JSON; give a model's config.json") from None
    if not isinstance(config, dict):
        raise ConfigError(f"{path} holds no JSON object; give a model's config.json")
    if isinstance(config.get("text_config"), dict):  # multimodal models keep the decoder there
        config = config["text_config"]
    for key, what in (
        ("num_local_experts", "a mixture of experts"),
        ("num_experts", "a mixture of experts"),
        ("n_routed_experts", "a mixture of experts"),
        ("kv_lora_rank", "a model with compressed KV cache"),
    ):
        if config.get(key):
            raise ConfigError(
                f"{path} describes {what} ({key} {config[key]}), which this roofline cannot price; "
                "fit step times to measurements instead"
            )

    def size(key: str, default: int | None = None) -> int:
        value = config.get(key, default)
        if value is None and default is not None:
            value = default
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(
                f"{path}: {key} must be a whole number from 1 up, got {value!r}; is this the "
                "config.json of a decoder?"
            )
        return value

    hidden, layers = size("hidden_size"), size("num_hidden_layers")
    heads = size("num_attention_heads")
    kv_heads = size("num_key_value_heads", heads)
    head_dim = size("head_dim", max(hidden // heads, 1))
    vocabulary = size("vocab_size") * hidden
    attention = hidden * head_dim * (2 * heads + 2 * kv_heads)
    gated = 3 if "silu" in str(config.get("hidden_act", "silu")) else 2
    feed_forward = gated * hidden * size("intermediate_size", 4 * hidden)
    num_read = layers * (attention + feed_forward + 2 * hidden) + hidden + vocabulary
    tied = bool(config.get("tie_word_embeddings", False))
    return ModelShape(
        num_parameters=num_read + (0 if tied else vocabulary),
        num_read=num_read,
        kv_values_per_token=2 * layers * kv_heads * head_dim,
        attention_flops=4 * layers * heads * head_dim,
        max_model_len=size("max_position_embeddings", 131_072),
    )


def roofline_preset(
    shape: ModelShape,
    *,
    bandwidth: float,
    flops: float,
    memory_gib: float,
    bytes_per_value: float = 2.0,
    name: str = "roofline",
) -> Preset:
    """Build an engine for a model on a GPU that always reaches its peak.

    Parameters
    ----------
    shape : ModelShape
    bandwidth : float
        Of the GPU's memory, bytes/s.
    flops : float
        Peak FLOP/s at the precision of the weights.
    memory_gib : float
    bytes_per_value : float
        Of weights and KV cache; 2 for bfloat16.

    Raises
    ------
    ConfigError
        If a value is not positive, or the weights do not fit.

    References
    ----------
    Williams, Waterman and Patterson, "Roofline", CACM 52(4), 2009.
    """
    for what, value in (("memory", memory_gib), ("bytes per value", bytes_per_value)):
        if not 0 < value < 1e9:
            raise ConfigError(f"GPU {what} must be positive and finite, got {value!r}")
    coefficients: dict[str, Any] = roofline_coefficients(
        weight_bytes=bytes_per_value * shape.num_read,
        flops_per_token=2.0 * shape.num_read,
        kv_bytes_per_token=bytes_per_value * shape.kv_values_per_token,
        attention_flops=shape.attention_flops,
        bandwidth=bandwidth,
        flops=flops,
    )
    return make_preset(
        name,
        f"roofline of {shape.num_parameters / 1e9:.1f} billion parameters, unmeasured",
        StepTime(**coefficients, provenance=PROVENANCE),
        gpu=name,
        memory_gib=memory_gib,
        reserved_gib=bytes_per_value * shape.num_parameters / 2**30 + ACTIVATIONS_GIB,
        kv_bytes_per_token=bytes_per_value * shape.kv_values_per_token,
        max_model_len=shape.max_model_len,
    )

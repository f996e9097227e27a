"""Engines made of a model's config.json and a GPU's data sheet."""

import json
import re

import pytest

import queuesmith as qs
from queuesmith.engine.presets.roofline import ModelShape, read_model_config, roofline_preset
from queuesmith.engine.presets.step_time import get_preset
from queuesmith.errors import ConfigError
from queuesmith.traces.trace import Trace

LLAMA = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
QWEN3 = {
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
# 0.5 billion parameters, head_dim derived, embeddings shared by input and output.
QWEN2_SMALL = {
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
}


@pytest.fixture
def shape_of(tmp_path):
    def read(config):
        path = tmp_path / "config.json"
        path.write_text(config if isinstance(config, str) else json.dumps(config))
        return read_model_config(path)

    return read


def test_llama_3_1_8b(shape_of):
    shape = shape_of(LLAMA)

    assert shape.num_parameters == 8_030_261_248
    assert shape.num_read == 8_030_261_248 - 128256 * 4096
    assert 2 * shape.kv_values_per_token == 131_072  # bytes in bfloat16
    assert shape.attention_flops == 524_288
    assert shape.max_model_len == 131_072


def test_qwen3_8b(shape_of):
    shape = shape_of(QWEN3)

    assert 2 * shape.kv_values_per_token == 147_456
    assert shape.attention_flops == 589_824
    # The 36 x 2 x 128 weights of its query and key norms are left out.
    assert shape.num_parameters == 8_190_735_360 - 36 * 2 * 128


def test_shared_embeddings_are_counted_once_and_read_as_output(shape_of):
    shape = shape_of(QWEN2_SMALL)

    # 494,032,768 in all; the biases of query, key and value are left out.
    assert shape.num_parameters == 494_032_768 - 24 * (896 + 2 * 128)
    assert shape.num_read == shape.num_parameters
    assert shape.kv_values_per_token == 2 * 24 * 2 * 64


def test_what_is_left_out_has_the_usual_default(shape_of):
    config = {name: LLAMA[name] for name in LLAMA if name != "num_key_value_heads"}

    assert shape_of(config).kv_values_per_token == 2 * 32 * 32 * 128  # no grouped queries
    assert shape_of(LLAMA | {"head_dim": None}) == shape_of(LLAMA)
    assert shape_of(LLAMA | {"hidden_act": "gelu"}).num_read == (
        shape_of(LLAMA).num_read - 32 * 4096 * 14336  # two matrices instead of three
    )


def test_the_decoder_of_a_multimodal_model_is_found(shape_of):
    assert shape_of({"model_type": "seen", "text_config": LLAMA}) == shape_of(LLAMA)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (LLAMA | {"num_local_experts": 8}, "a mixture of experts (num_local_experts 8)"),
        (LLAMA | {"n_routed_experts": 64}, "a mixture of experts"),
        (LLAMA | {"kv_lora_rank": 512}, "a model with compressed KV cache (kv_lora_rank 512)"),
        ({"model_type": "bert"}, "hidden_size must be a whole number from 1 up, got None"),
        (LLAMA | {"num_hidden_layers": 0}, "num_hidden_layers must be a whole number from 1 up"),
        (LLAMA | {"hidden_size": "4096"}, "hidden_size must be a whole number from 1 up"),
        ("not json", "is not JSON"),
        ("[1]", "holds no JSON object"),
    ],
)
def test_what_cannot_be_priced_is_refused(shape_of, config, message):
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        shape_of(config)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.json: No such file or directory"):
        read_model_config(tmp_path / "nowhere.json")


# The engine made of it


def test_an_engine_by_hand(shape_of):
    preset = roofline_preset(shape_of(LLAMA), bandwidth=2e12, flops=300e12, memory_gib=40)
    weights = 8_030_261_248 - 128256 * 4096

    seconds = preset.step_time.seconds(0, 1, 1000, 0.0, async_scheduling=True)
    assert seconds == pytest.approx((2 * weights + 131_072 * 1000) / 2e12)
    # 4,096 prompt tokens compute for longer than the weights are read.
    seconds = preset.step_time.seconds(4096, 0, 0, 4096**2 / 2, async_scheduling=True)
    assert seconds == pytest.approx((4096 * 2 * weights + 524_288 * 4096**2 / 2) / 300e12)
    left_gib = 0.92 * 40 - 2 * 8_030_261_248 / 2**30 - 2.0
    assert preset.config.num_gpu_blocks == int(left_gib * 512)
    assert (preset.config.max_num_batched_tokens, preset.config.max_num_seqs) == (2048, 256)
    assert preset.config.max_model_len == min(131_072, preset.config.kv_tokens)
    assert "unmeasured" in preset.step_time.provenance
    assert "8.0 billion parameters" in preset.title


def test_smaller_values_are_read_faster_and_leave_more_room(shape_of):
    options = {"bandwidth": 2e12, "flops": 300e12, "memory_gib": 40}
    half = roofline_preset(shape_of(LLAMA), **options, bytes_per_value=1.0)
    full = roofline_preset(shape_of(LLAMA), **options)

    assert half.step_time.a == pytest.approx(full.step_time.a / 2)
    assert half.config.num_gpu_blocks > 2 * full.config.num_gpu_blocks


def test_the_gb10_preset_is_about_the_roofline_of_its_model(shape_of):
    preset = roofline_preset(shape_of(LLAMA), bandwidth=231e9, flops=125e12, memory_gib=119.6)
    shipped = get_preset("llama-3.1-8b/gb10")

    for step in ((0, 1, 1000, 0.0), (0, 64, 64_000, 0.0), (8192, 0, 0, 8192**2 / 2)):
        ours, theirs = preset.step_time.seconds(*step), shipped.step_time.seconds(*step)
        assert ours == pytest.approx(theirs, rel=0.01)


def test_it_simulates(shape_of):
    preset = roofline_preset(shape_of(QWEN3), bandwidth=2e12, flops=300e12, memory_gib=80)

    result = qs.simulate(Trace([0.0, 0.1], [100, 2000], [10, 20]), engine=preset)
    assert (result.requests.num_output_tokens == [10, 20]).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bandwidth": 0.0}, "GPU bandwidth must be positive and finite, got 0.0"),
        ({"flops": float("nan")}, "GPU flops must be positive and finite, got nan"),
        ({"memory_gib": -1}, "GPU memory must be positive and finite, got -1"),
        ({"bytes_per_value": 0}, "GPU bytes per value must be positive and finite, got 0"),
        ({"memory_gib": 16}, "no KV cache fits: 0.92 of 16 GiB less 16.9575 GiB"),
    ],
)
def test_a_gpu_that_cannot_be_is_refused(changes, message):
    shape = ModelShape(8_030_261_248, 7_504_924_672, 65_536, 524_288, 131_072)
    options = {"bandwidth": 2e12, "flops": 300e12, "memory_gib": 80}

    with pytest.raises(ConfigError, match=re.escape(message)):
        roofline_preset(shape, **options | changes)

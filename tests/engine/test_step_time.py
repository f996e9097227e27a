"""Seconds of a step: the formula, the presets, and the kernel's copy of the formula."""

import re
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queuesmith.config import EngineConfig
from queuesmith.engine.kernel.outputs import step_seconds
from queuesmith.engine.presets.step_time import (
    DEFAULT_PRESET,
    StepTime,
    engine_defaults,
    get_preset,
    preset_names,
    roofline_coefficients,
)
from queuesmith.engine.run import make_settings
from queuesmith.errors import ConfigError
from queuesmith.policies import get_policy

# Powers of two apart, so that a sum shows which terms it is made of.
PLAIN = StepTime(a=1, b1=2, b2=4, t0=10, c=64, d=128, e=256, f=512)

# Milliseconds, by GPU: t0, a, b1, b2, c, d, e, f.
TABLE = {
    "llama-3.1-8b/a100_sxm": (96, 11.8, 0.0115, 0.0549, 0.00306, 8.13e-05, 2.95e-06, 0.161),
    "llama-3.1-8b/h100_sxm": (384, 6.36, 0.00666, 0.0205, 0.00428, 4.31e-05, 7.89e-07, 0.373),
    "llama-3.1-8b/b60": (256, 36.8, 0.0883, 0.173, 0.00229, 0.00025, 7.18e-06, 0.207),
    "qwen3-8b/h200_sxm": (384, 5.03, 0.00957, 0.0202, 0.0036, 3.41e-05, 9.01e-07, 1.04),
    "qwen3-8b/rtx_pro_6000_server": (256, 11.2, 0.0187, 0.0391, 0, 9.88e-05, 1.91e-06, 1.13),
    "qwen3-8b/b300_sxm": (384, 3.47, 0.00417, 0.00892, 0.00132, 2.06e-05, 3.53e-07, 1.42),
}


@pytest.mark.parametrize(
    ("step", "seconds"),
    [
        ((0, 0, 0, 0.0), 1),  # an empty step costs a
        ((0, 3, 50, 0.0), 1 + 2 * 3 + 64 * 3 + 128 * 50),  # decodes; no f
        ((7, 0, 0, 24.5), 1 + 2 * 7 + 256 * 24.5 + 512),  # a prefill below t0
        ((10, 0, 0, 0.0), 1 + 2 * 10 + 512),  # at t0
        ((11, 0, 0, 0.0), 1 + 2 * 10 + 4 * 1 + 512),  # one token above it
        ((6, 5, 9, 2.0), 1 + 2 * 10 + 4 * 1 + 64 * 5 + 128 * 9 + 256 * 2 + 512),  # mixed
    ],
)
def test_the_formula_by_hand(step, seconds):
    assert PLAIN.seconds(*step) == seconds


def test_the_host_overhead_is_added_to_every_step():
    slower = PLAIN.with_host_overhead(0.5)

    assert slower.seconds(6, 5, 9, 2.0) == PLAIN.seconds(6, 5, 9, 2.0) + 0.5
    assert slower.seconds(0, 0, 0, 0.0) == slower.shortest(False) == 1.5
    assert PLAIN.host_overhead == 0.0


def test_the_gpu_hides_the_host_overhead_under_asynchronous_scheduling():
    slower = PLAIN.with_host_overhead(15)

    assert slower.seconds(0, 7, 0, 0.0, async_scheduling=True) == PLAIN.seconds(0, 7, 0, 0.0)
    assert slower.seconds(0, 0, 0, 0.0, async_scheduling=True) == 15 == slower.shortest(True)
    assert PLAIN.seconds(0, 0, 0, 0.0, async_scheduling=True) == 1


COEFFICIENT = st.floats(0, 1e3)
COUNT = st.integers(0, 10**9)


@settings(max_examples=300, deadline=None)
@given(
    coefficients=st.fixed_dictionaries(
        dict.fromkeys(("b1", "b2", "c", "d", "e", "f", "t0", "host_overhead"), COEFFICIENT)
    ),
    a=st.floats(1e-6, 1e3),
    step=st.tuples(COUNT, COUNT, COUNT, st.floats(0, 1e12)),
    asynchronous=st.booleans(),
)
def test_the_kernel_gives_the_same_bits(coefficients, a, step, asynchronous):
    step_time = StepTime(a=a, **coefficients)
    config = EngineConfig(async_scheduling=asynchronous)
    row = make_settings(
        SimpleNamespace(contents=None), config, step_time, get_policy("fcfs"), jump=True
    )

    seconds = step_time.seconds(*step, async_scheduling=asynchronous)
    assert step_seconds(row[0], *step) == seconds


@pytest.mark.parametrize("name", ["a", "b1", "b2", "t0", "c", "d", "e", "f", "host_overhead"])
@pytest.mark.parametrize("value", [-1e-9, float("nan"), float("inf"), "1"])
def test_a_coefficient_must_be_a_number_from_0_up(name, value):
    with pytest.raises(ConfigError, match=f"^{name} must be a number from 0 up, got"):
        StepTime(**{"a": 1.0, name: value})


def test_a_step_must_take_some_time():
    with pytest.raises(ConfigError, match="a step must take some time"):
        StepTime(a=0.0, b1=1.0)
    assert StepTime(a=0.0, host_overhead=1e-3).seconds(0, 0, 0, 0.0) == 1e-3


# Presets


@pytest.mark.parametrize("name", TABLE)
def test_presets_hold_the_published_coefficients(name):
    step_time = get_preset(name).step_time
    t0, *milliseconds = TABLE[name]

    found = [getattr(step_time, letter) for letter in ("a", "b1", "b2", "c", "d", "e", "f")]
    assert found == pytest.approx([value * 1e-3 for value in milliseconds], rel=1e-12)
    assert step_time.t0 == t0


def test_every_preset_is_complete():
    names = preset_names()
    assert names[0] == DEFAULT_PRESET
    assert len(names) == len(set(names)) == 2 * 10 + 1
    for name in names:
        preset = get_preset(name)
        assert preset.name == name
        assert preset.title
        assert len(preset.step_time.provenance) > 20
        assert preset.settings_source
        # vLLM would start: what the context window allows fits into the KV cache.
        assert preset.config.max_model_len <= preset.config.kv_tokens


def test_gb10_says_that_nobody_has_measured_it():
    for model in ("llama-3.1-8b", "qwen3-8b"):
        step_time = get_preset(f"{model}/gb10").step_time
        assert "unmeasured" in step_time.provenance
        # 15 GB of weights at 231 GB/s; one user saw 76 ms for Qwen3-8B.
        assert 0.06 < step_time.seconds(0, 1, 1000, 0.0) < 0.08


def test_one_step_of_the_default_preset_is_plausible():
    step_time = get_preset(DEFAULT_PRESET).step_time

    # One decode; the CPU's 2 ms are hidden, or not.
    assert 0.006 < step_time.seconds(0, 1, 1000, 0.0, async_scheduling=True) < 0.007
    assert 0.008 < step_time.seconds(0, 1, 1000, 0.0) < 0.009
    assert 0.15 < step_time.seconds(8192, 0, 0, 8192**2 / 2) < 0.25  # a full prefill step


def test_constant_1ms_prices_every_step_alike():
    preset = get_preset("constant_1ms")

    assert preset.config.instant_prefill
    assert preset.step_time.seconds(5000, 60, 10**6, 1e9) == 1e-3
    with pytest.raises(ConfigError, match="has no GPU memory to divide"):
        preset.num_gpu_blocks(0.9, 16)


def test_kv_blocks_are_what_the_weights_leave():
    preset = get_preset("llama-3.1-8b/h100_sxm")
    left = 0.92 * preset.memory_gib - preset.reserved_gib

    # 128 KiB a token, 16 tokens a block: 2 MiB.
    assert preset.num_gpu_blocks(0.92, 16) == int(left * 512)
    assert preset.num_gpu_blocks(0.92, 16) == preset.config.num_gpu_blocks
    assert preset.num_gpu_blocks(0.92, 32) == int(left * 256)
    with pytest.raises(ConfigError, match=r"no KV cache fits: 0\.2 of .* GiB less"):
        preset.num_gpu_blocks(0.2, 16)


@pytest.mark.parametrize(
    ("memory_gib", "gpu", "defaults"),
    [
        (79.6, "h100_sxm", (8192, 1024)),
        (79.6, "a100_sxm", (2048, 256)),
        (44.5, "l40s", (2048, 256)),
        (140.0, "h200_sxm", (8192, 1024)),
        (159.9, "mi300", (8192, 1024)),
        (160.0, "b200_sxm", (16384, 1024)),
        (69.9, "unknown", (2048, 256)),
    ],
)
def test_defaults_are_those_of_vllm_for_that_memory(memory_gib, gpu, defaults):
    assert engine_defaults(memory_gib, gpu) == defaults


@pytest.mark.parametrize(
    ("model", "num_parameters"), [("llama-3.1-8b", 8_030_261_248), ("qwen3-8b", 8_190_735_360)]
)
def test_weights_are_counted_in_gib(model, num_parameters):
    activations = 2.0
    weights = get_preset(f"{model}/b60").reserved_gib - activations

    assert weights == pytest.approx(2 * num_parameters / 2**30, abs=0.005)


def test_presets_have_vllms_defaults():
    b60, b200 = get_preset("llama-3.1-8b/b60"), get_preset("llama-3.1-8b/b200_sxm")

    # (0.92 * 22.7 - 14.96 - 2) GiB in blocks of 2 MiB; one block is vLLM's own.
    assert b60.config.num_gpu_blocks == 2009
    assert (b60.config.max_model_len, b60.own_max_model_len) == (2008 * 16, 131_072)
    assert (b200.config.max_num_batched_tokens, b200.config.max_num_seqs) == (16384, 1024)
    for preset in (b60, b200):
        assert preset.config.async_scheduling
        assert preset.config.enable_prefix_caching
        assert "gpu_memory_utilization 0.92" in preset.describe_settings()


def test_an_unknown_preset_is_answered_with_the_closest():
    with pytest.raises(ConfigError, match=re.escape("Did you mean 'llama-3.1-8b/h100_sxm'?")):
        get_preset("llama-3.1-8b/h100")


def test_a_roofline_reads_weights_or_computes_tokens():
    found = StepTime(
        **roofline_coefficients(
            weight_bytes=16e9,
            flops_per_token=16e9,
            kv_bytes_per_token=131_072,
            attention_flops=524_288,
            bandwidth=2e12,
            flops=1e15,
        )
    )

    # 8 ms to read the weights; 16 us a token; tokens are free up to 500 of them.
    assert found.seconds(0, 1, 0, 0.0) == pytest.approx(8e-3)
    assert found.seconds(500, 0, 0, 0.0) == pytest.approx(8e-3)
    assert found.seconds(1500, 0, 0, 0.0) == pytest.approx(24e-3)
    assert found.d == pytest.approx(131_072 / 2e12)
    assert found.e == pytest.approx(524_288 / 1e15)

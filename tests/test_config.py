"""Settings refuse what makes no sense, in words."""

import dataclasses
import re

import pytest

from queuesmith.config import EngineConfig, Slo
from queuesmith.errors import ConfigError, QueuesmithError

# EngineConfig


def test_defaults_are_consistent_and_frozen():
    config = EngineConfig()

    assert config.max_model_len <= config.kv_tokens
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.max_num_seqs = 1


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("max_num_seqs", 1),
        ("max_num_batched_tokens", 1),
        ("num_gpu_blocks", 2),
        ("block_size", 1),
        ("max_model_len", 1),
        ("max_num_active_seqs", 1),
        ("max_num_scheduled_tokens", 1),
        ("long_prefill_token_threshold", 0),
    ],
)
@pytest.mark.parametrize("value", ["below", 2**40, 1.5, "8", True, float("nan")])
def test_counts_are_whole_numbers_in_range(name, least, value):
    value = least - 1 if value == "below" else value

    with pytest.raises(
        ConfigError,
        match=re.escape(f"{name} must be a whole number of at least {least}, got {value!r}"),
    ):
        EngineConfig(**{name: value})


@pytest.mark.parametrize("name", ["max_num_seqs", "num_gpu_blocks", "long_prefill_token_threshold"])
def test_only_optional_counts_may_be_none(name):
    with pytest.raises(ConfigError, match=f"{name} must be a whole number"):
        EngineConfig(**{name: None})
    assert EngineConfig(max_num_active_seqs=None, max_num_scheduled_tokens=None) == EngineConfig()


@pytest.mark.parametrize(
    "name",
    [
        "enable_chunked_prefill",
        "long_prefill_token_threshold_adaptive",
        "scheduler_reserve_full_isl",
        "instant_prefill",
    ],
)
def test_switches_are_true_or_false(name):
    with pytest.raises(ConfigError, match=f"{name} must be true or false, got 1"):
        EngineConfig(**{name: 1})


@pytest.mark.parametrize("watermark", [-0.01, 1.0, float("nan"), "0.1", None])
def test_the_watermark_is_a_share(watermark):
    with pytest.raises(ConfigError, match="watermark must be at least 0 and below 1, got"):
        EngineConfig(watermark=watermark)


def test_the_scheduling_policy_is_one_of_vllms():
    with pytest.raises(ConfigError, match="must be 'fcfs' or 'priority', got 'sjf'"):
        EngineConfig(scheduling_policy="sjf")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"max_num_seqs": 9, "max_num_batched_tokens": 8},
            "max_num_batched_tokens (8) must be at least max_num_seqs (9)",
        ),
        (
            {"enable_chunked_prefill": False, "max_model_len": 8193},
            "without chunked prefill max_num_batched_tokens (8192) must be at least "
            "max_model_len (8193)",
        ),
        (
            {
                "enable_chunked_prefill": False,
                "max_model_len": 8192,
                "max_num_scheduled_tokens": 512,
            },
            "without chunked prefill max_num_batched_tokens (512) must be at least",
        ),
        (
            {"max_model_len": 100, "long_prefill_token_threshold": 101},
            "long_prefill_token_threshold (101) must not be above max_model_len (100)",
        ),
    ],
)
def test_settings_that_contradict_each_other(settings, message):
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        EngineConfig(**settings)
    assert "\n" not in str(caught.value)


def test_the_edges_of_those_rules_are_allowed():
    EngineConfig(max_num_seqs=8, max_num_batched_tokens=8)
    EngineConfig(enable_chunked_prefill=False, max_model_len=8192)
    EngineConfig(max_model_len=100, long_prefill_token_threshold=100)


def test_the_lower_of_two_limits_counts():
    config = EngineConfig(max_num_seqs=10, max_num_batched_tokens=100)
    assert (config.seats, config.token_budget) == (10, 100)

    lower = config.override({"max_num_active_seqs": 4, "max_num_scheduled_tokens": 50})
    assert (lower.seats, lower.token_budget) == (4, 50)

    higher = config.override({"max_num_active_seqs": 40})
    assert higher.seats == 10


def test_blocks_are_counted_without_the_null_block():
    config = EngineConfig(num_gpu_blocks=101, block_size=16, watermark=0.0399)

    assert config.kv_tokens == 1600
    assert config.watermark_blocks == 4  # 4.03 of all 101


def test_override_replaces_and_checks():
    config = EngineConfig()

    assert config.override({"block_size": 32}).block_size == 32
    assert config.override({}) == config
    with pytest.raises(ConfigError, match="block_size must be a whole number of at least 1"):
        config.override({"block_size": 0})


def test_an_unknown_setting_is_answered_with_the_closest():
    with pytest.raises(ConfigError) as caught:
        EngineConfig().override({"max_num_seq": 4})

    message = str(caught.value)
    assert message.startswith(
        "there is no engine setting 'max_num_seq'. Did you mean 'max_num_seqs'? Known: "
    )
    assert "long_prefill_token_threshold" in message


# Slo


def test_an_slo_may_leave_limits_out():
    assert Slo() == Slo(ttft=None, tpot=None, e2el=None)
    assert Slo(ttft=1).ttft == 1


@pytest.mark.parametrize("name", ["ttft", "tpot", "e2el"])
@pytest.mark.parametrize("limit", [0, -1.0, float("nan"), True, "1"])
def test_a_limit_is_a_positive_number(name, limit):
    with pytest.raises(ConfigError, match=re.escape(f"{name} must be positive seconds, got")):
        Slo(**{name: limit})


def test_settings_errors_are_value_errors_too():
    assert issubclass(ConfigError, QueuesmithError)
    assert issubclass(ConfigError, ValueError)

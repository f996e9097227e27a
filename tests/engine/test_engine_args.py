"""Settings read from a ``vllm serve`` command line."""

import pytest

from queuesmith.engine.engine_args import parse_engine_args
from queuesmith.engine.step_time import get_preset
from queuesmith.errors import ConfigError

H100 = get_preset("llama-3.1-8b/h100_sxm")
A100 = get_preset("llama-3.1-8b/a100_sxm")


def parse(text, preset=H100):
    return parse_engine_args(text, preset)


def test_nothing_said_is_the_preset():
    assert parse("") == (H100.config, [])


@pytest.mark.parametrize(
    ("option", "name", "value"),
    [
        ("--max-num-seqs 128", "max_num_seqs", 128),
        ("--max-num-active-seqs 64", "max_num_active_seqs", 64),
        ("--max-num-batched-tokens 4096", "max_num_batched_tokens", 4096),
        ("--max-num-scheduled-tokens 2048", "max_num_scheduled_tokens", 2048),
        ("--num-gpu-blocks-override 20000", "num_gpu_blocks", 20000),
        ("--max-model-len 32768", "max_model_len", 32768),
        ("--long-prefill-token-threshold 512", "long_prefill_token_threshold", 512),
        (
            "--long-prefill-token-threshold-adaptive",
            "long_prefill_token_threshold_adaptive",
            True,
        ),
        ("--enable-chunked-prefill", "enable_chunked_prefill", True),
        ("--no-enable-chunked-prefill", "enable_chunked_prefill", False),
        ("--no-scheduler-reserve-full-isl", "scheduler_reserve_full_isl", False),
        ("--scheduler-reserve-full-isl=false", "scheduler_reserve_full_isl", False),
        ("--watermark 0.01", "watermark", 0.01),
        ("--scheduling-policy priority", "scheduling_policy", "priority"),
    ],
)
def test_each_option_sets_its_setting(option, name, value):
    # The small preset's window, so that a switched-off chunked prefill needs no larger one.
    config, notes = parse(f"--max-model-len 65536 {option}")

    assert getattr(config, name) == value
    assert notes == []


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve meta-llama/Llama-3.1-8B --max-num-seqs 128 --watermark 0.5",
        "--max-num-seqs=128 --watermark=0.5",
        "--max_num_seqs 128 --watermark '0.5'",
        "--watermark 0.5\n  --max-num-seqs 128",
        "--max-num-seqs 99 --max-num-seqs 128 --watermark 0.5",  # the last one counts
    ],
)
def test_spellings_of_the_same(text):
    config, notes = parse(text)

    assert (config.max_num_seqs, config.watermark) == (128, 0.5)
    assert notes == []


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("8192", 8192), ("8k", 8000), ("8K", 8192), ("2.5k", 2500), ("0.5M", 2**19), ("1m", 10**6)],
)
def test_numbers_may_carry_a_suffix(text, tokens):
    assert parse(f"--max-num-batched-tokens {text}")[0].max_num_batched_tokens == tokens


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("--max-num-seqs many", "--max-num-seqs must be a whole number such as 8192, 8k"),
        ("x" * 1_000_000, "--engine-args has 1,000,000 characters; at most 100,000 are read"),
        (f"--max-num-seqs {'9' * 400}", "--max-num-seqs must be a whole number"),
        (f"--max-num-seqs 8.{'0' * 5000}", "--max-num-seqs must be a whole number"),
        ("--max-num-seqs 1.5", "--max-num-seqs must be a whole number"),
        ("--max-num-seqs", "--max-num-seqs needs a value"),
        ("--max-num-seqs --watermark 0.5", "--max-num-seqs needs a value"),
        ("--max-num-seqs 0", "max_num_seqs must be a whole number of at least 1, got 0"),
        ("--max-num-seqs -4", "max_num_seqs must be a whole number of at least 1, got -4"),
        ("--watermark lots", "--watermark must be a number from 0 to 1, got 'lots'"),
        ("--watermark nan", "--watermark must be a number from 0 to 1, got 'nan'"),
        ("--gpu-memory-utilization 1.5", "--gpu-memory-utilization must be a number from 0 to 1"),
        ("--gpu-memory-utilization 0.2", "no KV cache fits: 0.2 of"),
        ("--enable-chunked-prefill=maybe", "--enable-chunked-prefill is a switch"),
        ("--scheduling-policy sjf", "scheduling_policy must be 'fcfs' or 'priority', got 'sjf'"),
        ("--max-num-seqs 16 --max-num-batched-tokens 8", r"max_num_batched_tokens \(8\) must be"),
        ("--num-gpu-blocks-override 1000", r"larger than the KV cache \(15984 tokens\)"),
        ("--max-num-seqs '128", "--engine-args cannot be read: No closing quotation"),
    ],
)
def test_what_cannot_be_read_or_would_be_refused_by_vllm(text, message):
    with pytest.raises(ConfigError, match=message) as caught:
        parse(text)
    assert "\n" not in str(caught.value)


# What vLLM derives


def test_memory_is_divided_into_blocks():
    assert parse("--gpu-memory-utilization 0.9")[0] == H100.config
    more, _ = parse("--gpu-memory-utilization 0.95")
    # 2 MiB a block: 512 a GiB.
    assert more.num_gpu_blocks - H100.config.num_gpu_blocks == pytest.approx(
        0.05 * H100.memory_gib * 512, abs=1
    )


def test_a_block_size_divides_the_same_memory_anew():
    config, _ = parse("--block-size 32")

    assert config.kv_tokens == pytest.approx(H100.config.kv_tokens, abs=32)
    assert config.block_size == 32


def test_the_size_of_the_kv_cache_can_be_said_in_bytes():
    config, _ = parse("--kv-cache-memory-bytes 40G")

    assert config.num_gpu_blocks == 40 * 512
    with pytest.raises(ConfigError, match="does not say how large a token's KV is"):
        parse("--kv-cache-memory-bytes 40G", get_preset("constant_1ms"))
    with pytest.raises(ConfigError, match="has no GPU memory to divide"):
        parse("--gpu-memory-utilization 0.9", get_preset("constant_1ms"))


@pytest.mark.parametrize("value", ["-1", "auto"])
def test_the_longest_context_that_fits_can_be_asked_for(value):
    config, _ = parse(f"--num-gpu-blocks-override 1001 --max-model-len {value}")
    assert config.max_model_len == 16_000
    config, _ = parse(f"--max-model-len {value}")
    assert config.max_model_len == 131_072  # the model's own


def test_a_small_budget_lowers_a_default_number_of_seats_but_not_a_given_one():
    assert parse("--max-num-batched-tokens 512")[0].max_num_seqs == 512
    assert parse("--max-num-batched-tokens 512 --max-num-seqs 100")[0].max_num_seqs == 100
    with pytest.raises(ConfigError, match="max_num_batched_tokens"):
        parse("--max-num-batched-tokens 512 --max-num-seqs 600")


def test_without_chunked_prefill_the_budget_grows_to_the_context():
    config, _ = parse("--no-enable-chunked-prefill", A100)
    assert config.max_num_batched_tokens == A100.config.max_model_len
    config, _ = parse("--no-enable-chunked-prefill --max-model-len 4096", A100)
    assert config.max_num_batched_tokens == 4096
    config, _ = parse("--no-enable-chunked-prefill --max-model-len 1024", A100)
    assert config.max_num_batched_tokens == 2048  # vLLM's default is larger already
    with pytest.raises(ConfigError, match="without chunked prefill"):
        parse("--no-enable-chunked-prefill --max-num-batched-tokens 4096", A100)


# Notes


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("--enable-lora", "--enable-lora: LoRA adapters is not simulated"),
        (
            '--speculative-config \'{"method": "ngram"}\'',
            "--speculative-config: speculative decoding is not simulated",
        ),
        (
            "--speculative-config.method ngram",
            "--speculative-config.method: speculative decoding is not simulated",
        ),
        ("-pp 2", "--pipeline-parallel-size: pipeline parallelism is not simulated"),
        ("-dp 2", "--data-parallel-size: several replicas is not simulated"),
        ("--tensor-parallel-size 4", "--tensor-parallel-size: tensor parallelism comes from the"),
        ("-tp 4", "--tensor-parallel-size: tensor parallelism comes from the engine preset"),
        ("-q awq", "--quantization: quantisation comes from the engine preset"),
        ("--model meta-llama/Llama-3.1-8B", "--model: the model comes from the engine preset"),
        ("--kv-cache-dtype fp8", "--kv-cache-dtype: the KV cache's type comes from the engine"),
    ],
)
def test_what_is_not_followed_is_said(text, note):
    config, notes = parse(f"--max-num-seqs 128 {text} --watermark 0.5")

    assert len(notes) == 1
    assert notes[0].startswith(note)
    assert (config.max_num_seqs, config.watermark) == (128, 0.5)


@pytest.mark.parametrize(
    "text", ["--no-enable-prefix-caching", "--no-async-scheduling", "--enable-lora=false"]
)
def test_switching_off_what_is_not_simulated_needs_no_note(text):
    assert parse(text) == (H100.config, [])


def test_options_of_the_server_are_listed_once():
    _, notes = parse("--port 8000 --host 0.0.0.0 --disable-log-requests --max-num-seqs 8")

    assert notes == [
        "options that are not about scheduling were ignored: --port, --host, --disable-log-requests"
    ]

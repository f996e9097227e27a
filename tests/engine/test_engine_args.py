"""Settings read from a ``vllm serve`` command line."""

import re

import pytest

from queuesmith.engine.presets.engine_args import parse_engine_args
from queuesmith.engine.presets.step_time import get_preset
from queuesmith.engine.presets.vllm_options import vllm_options
from queuesmith.errors import ConfigError

H100 = get_preset("llama-3.1-8b/h100_sxm")
A100 = get_preset("llama-3.1-8b/a100_sxm")


def parse(text, preset=H100):
    return parse_engine_args(text, preset)


def test_a_context_above_the_models_own_is_refused_as_vllm_does():
    with pytest.raises(ConfigError, match=r"131073 is above the 131072 .* give 131072 or less"):
        parse("--max-model-len 131073")
    assert parse("--max-model-len 131072")[0].max_model_len == 131_072
    longer = "--max-model-len 140000 --hf-overrides '{}'"
    assert parse(longer)[0].max_model_len == 140_000
    assert parse("some/other-model --max-model-len 140000")[0].max_model_len == 140_000


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
        ("--max-num-queued-reqs 166", "max_num_queued_reqs", 166),
        ("--max-num-queued-tokens 360k", "max_num_queued_tokens", 360_000),
        ("--no-enable-prefix-caching", "enable_prefix_caching", False),
        ("--no-async-scheduling", "async_scheduling", False),
        ("--max-num-b 4096", "max_num_batched_tokens", 4096),  # as argparse takes it
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
        "VLLM_USE_V1=1 python3 -m vllm.entrypoints.openai.api_server --max-num-seqs 128 "
        "--watermark 0.5 --model meta-llama/Meta-Llama-3.1-8B-Instruct",
        "docker run --gpus all -p 1:1 vllm/vllm-openai:v0.32.0 --max-num-seqs 128 --watermark 0.5",
        "--max-num-seqs 99 --max-num-seqs 128 --watermark 0.5",  # the last one counts
    ],
)
def test_spellings_of_the_same(text):
    config, notes = parse(text)

    assert (config.max_num_seqs, config.watermark) == (128, 0.5)
    assert notes == []


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("8192", 8192), ("8k", 8000), ("8K", 8192), ("2.5k", 2500), ("1m", 10**6)],
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
        ("--max-num-batched-tokens 0.5M", "vLLM takes no decimals with M; did you mean 0.5m"),
        ("--max-num-queued-reqs -1", "max_num_queued_reqs must be a whole number of at least 0"),
        ("--performance-mode fast", "must be balanced, interactivity or throughput, got 'fast'"),
        ("--max-num 7", "--max-num may be --max-num-active-seqs, --max-num-batched-tokens"),
        ("--max-num-sebs 7", "vLLM 0.32.0 has no --max-num-sebs. Did you mean --max-num-seqs"),
        ("--port", "--port needs a value"),
        ("serve a-model another", "would not recognise 'another', which belongs to no option"),
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
    assert parse("--gpu-memory-utilization 0.92")[0] == H100.config
    assert parse("--device-memory-utilization 0.5") == parse("--gpu-memory-utilization 0.5")
    more, _ = parse("--gpu-memory-utilization 0.95")
    # 2 MiB a block: 512 a GiB.
    assert more.num_gpu_blocks - H100.config.num_gpu_blocks == pytest.approx(
        0.03 * H100.memory_gib * 512, abs=1
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


def test_few_and_short_requests_lower_a_default_budget():
    assert parse("--max-num-seqs 2 --max-model-len 1024")[0].max_num_batched_tokens == 2048


def test_throughput_mode_doubles_the_defaults_but_not_what_is_given():
    config, notes = parse("--performance-mode throughput")

    assert (config.max_num_batched_tokens, config.max_num_seqs) == (16384, 2048)
    assert notes == []
    config, _ = parse("--performance-mode throughput --max-num-seqs 100")
    assert (config.max_num_batched_tokens, config.max_num_seqs) == (16384, 100)


def test_a_context_that_the_kv_cache_cannot_hold_is_refused_with_vllms_advice():
    with pytest.raises(ConfigError, match=r"131072\) is larger .*16.00 GiB are needed") as caught:
        parse("--gpu-memory-utilization 0.4")
    longest = re.search(r"give --max-model-len (\d+) or less", str(caught.value))[1]
    config, _ = parse(f"--gpu-memory-utilization 0.4 --max-model-len {longest}")
    assert config.max_model_len == config.kv_tokens
    # A preset whose model is too long for its GPU has a context that fits, as given by hand.
    b60 = get_preset("llama-3.1-8b/b60")
    assert parse("", b60) == (b60.config, [])
    with pytest.raises(ConfigError, match="vLLM would refuse to start"):
        parse("--max-model-len 131072", b60)


def test_without_chunked_prefill_the_budget_grows_to_the_context():
    config, _ = parse("--no-enable-chunked-prefill", A100)
    assert config.max_num_batched_tokens == A100.config.max_model_len
    config, _ = parse("--no-enable-chunked-prefill --max-model-len 4096", A100)
    assert config.max_num_batched_tokens == 4096
    config, _ = parse("--no-enable-chunked-prefill --max-model-len 1024", A100)
    assert config.max_num_batched_tokens == 2048  # vLLM's default is larger already
    with pytest.raises(ConfigError, match="without chunked prefill"):
        parse("--no-enable-chunked-prefill --max-num-batched-tokens 4096", A100)


# What is said


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("--enable-lora", "--enable-lora: LoRA adapters are not simulated"),
        (
            '--speculative-config \'{"method": "ngram"}\'',
            "--speculative-config: speculative decoding is not simulated",
        ),
        ("--speculative-config.method ngram", "--speculative-config: speculative decoding is not"),
        ("--spec-tokens 3", "--spec-tokens: speculative decoding is not simulated"),
        ("-pp 2", "--pipeline-parallel-size: pipeline parallelism is not simulated"),
        ("-dp 4", "--data-parallel-size: one engine is simulated; --replicas 4 --router vllm_data"),
        ("--tensor-parallel-size 4", "--tensor-parallel-size: tensor parallelism comes from the"),
        ("-tp=4", "--tensor-parallel-size: tensor parallelism comes from the engine preset"),
        ("-q awq", "--quantization: quantisation comes from the engine preset"),
        ("-O3", "--optimization-level: CUDA graphs and compilation come from the engine preset"),
        ("--kv-cache-dtype fp8", "--kv-cache-dtype: the KV cache's type comes from the engine"),
        ("--dbo-prefill-token-threshold 512", "--dbo-prefill-token-threshold: dual-batch overlap"),
        ("--prefill-schedule-interval 4", "--prefill-schedule-interval: admission every so many"),
        ("--config vllm.yaml", "--config: the options in the file were not read; give them here"),
        ("--scheduler-cls my.Sched", "--scheduler-cls: a scheduler class of your own is not"),
        ("--max-long-partial-prefills 2", "--max-long-partial-prefills: several long prompts in"),
        ("--num-scheduler-steps 8", "--num-scheduler-steps: several steps per schedule, gone"),
        ("--performance-mode interactivity", "--performance-mode interactivity: CUDA graphs"),
        ("--enable-chunked-prefill true", "--enable-chunked-prefill true: read as in older"),
        ("--model some/Llama-3.1-405B", "some/Llama-3.1-405B is not what is simulated: Llama-3.1-"),
        ("some/Llama-3.1-8B-FP8", "some/Llama-3.1-8B-FP8 is not what is simulated: Llama-3.1-8B"),
        ("--brand-new 3", "--brand-new is no option of vLLM 0.32.0 and was not read"),
        ("--port 80 --api-key a b --host c", "options without effect on scheduling: --port, --api"),
    ],
)
def test_what_is_not_followed_is_said(text, note):
    config, notes = parse(f"--max-num-seqs 128 {text} --watermark 0.5")

    assert len(notes) == 1
    assert notes[0].startswith(note)
    assert (config.max_num_seqs, config.watermark) == (128, 0.5)


@pytest.mark.parametrize(
    "text",
    [
        "--enable-lora=false",
        "-tp 1 -dp 1 -pp=1",
        "--kv-cache-dtype auto --dtype bfloat16",
        "serve meta-llama/Llama-3.1-8B-Instruct",
    ],
)
def test_what_changes_nothing_needs_no_note(text):
    assert parse(text) == (H100.config, [])


def test_a_switch_may_be_followed_by_a_word_as_it_once_was():
    config, notes = parse("--enable-chunked-prefill false")

    assert not config.enable_chunked_prefill
    assert len(notes) == 1


VALUES = {
    "scheduling-policy": "priority",
    "performance-mode": "throughput",
    "gpu-memory-utilization": "0.8",
    "kv-cache-memory-bytes": "40G",
    "watermark": "0.25",
    "block-size": "32",
    "num-gpu-blocks-override": "9000",
    "max-model-len": "70000",
    "enable-chunked-prefill": "false",
    "enable-prefix-caching": "false",
    "async-scheduling": "false",
    "scheduler-reserve-full-isl": "false",
}


@pytest.mark.parametrize("option", vllm_options().values(), ids=lambda option: option.name)
def test_no_option_is_dropped_in_silence(option):
    """Each changes the settings or is named in a note, and none in both ways."""
    number = "7000" if option.kind == "followed" else "3"
    value = VALUES.get(option.name, "true" if option.takes in ("switch", "flag") else number)
    config, notes = parse(f"--{option.name}={value}")

    assert (config != H100.config) == (option.kind == "followed")
    if option.kind == "followed":
        assert notes == []
    elif option.name == "model":
        assert notes[0].startswith("3 is not what is simulated")
    else:
        assert f"--{option.name}" in notes[0]


def test_the_value_of_a_key_is_in_no_note_or_error():
    for text in ("--api-key sk-0123456789abcdef", "x sk-0123456789abcdef"):
        try:
            said = str(parse(text)[1])
        except ConfigError as error:
            said = str(error)
        assert "0123456789" not in said

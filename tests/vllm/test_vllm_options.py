"""The table of vLLM's options against the parser of the installed vLLM."""

import pytest

pytest.importorskip("vllm.v1.core.sched.scheduler", reason="vLLM is not installed here")

from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

from queuesmith.engine.presets.engine_args import parse_engine_args
from queuesmith.engine.presets.step_time import engine_defaults, get_preset
from queuesmith.engine.presets.vllm_options import vllm_options

pytestmark = pytest.mark.vllm

TAKES = {None: "value", "+": "values", "?": "optional"}


@pytest.fixture(scope="module")
def parser():
    return make_arg_parser(FlexibleArgumentParser())


def takes(action):
    if action.nargs == 0:
        negated = any(one.startswith("--no-") for one in action.option_strings)
        return "switch" if negated else "flag"
    return TAKES[action.nargs]


def test_every_option_is_in_the_table_with_its_names_and_no_other(parser):
    theirs = {
        frozenset(action.option_strings): takes(action)
        for action in parser._actions
        if action.option_strings
    }
    ours = {}
    for option in vllm_options().values():
        if option.kind != "gone":
            negated = [f"--no-{option.name}"] if option.takes == "switch" else []
            ours[frozenset([f"--{option.name}", *option.also, *negated])] = option.takes

    assert ours == theirs
    assert len(ours) > 300


def test_what_is_gone_is_gone(parser):
    known = {name for action in parser._actions for name in action.option_strings}
    gone = [f"--{option.name}" for option in vllm_options().values() if option.kind == "gone"]

    assert gone
    assert not known & set(gone)


@pytest.mark.parametrize(
    ("memory_gib", "name"),
    [(22, "Arc"), (79.3, "NVIDIA A100-SXM4-80GB"), (79.6, "H100"), (140, "H200"), (160, "A100")],
)
def test_the_defaults_of_a_gpu_are_those_that_vllm_takes(monkeypatch, memory_gib, name):
    from vllm.engine import arg_utils
    from vllm.usage.usage_lib import UsageContext

    class Gpu:
        def get_device_total_memory(self):
            return int(memory_gib * 2**30)

        def get_device_name(self):
            return name

        def is_tpu(self):
            return False

        is_cpu = is_tpu

    monkeypatch.setattr("vllm.platforms.current_platform", Gpu())
    monkeypatch.setattr(arg_utils, "current_platform", Gpu())
    budget, seats = arg_utils.EngineArgs.get_batch_defaults(1)

    server = UsageContext.OPENAI_API_SERVER
    assert engine_defaults(memory_gib, name) == (budget[server], seats[server])


def test_the_default_share_of_memory_is_vllms(parser):
    preset = get_preset("llama-3.1-8b/h100_sxm")
    share = parser.get_default("gpu_memory_utilization")

    assert parse_engine_args(f"--gpu-memory-utilization {share}", preset)[0] == preset.config


@pytest.mark.parametrize(
    "line",
    [
        "--max-num-seqs 7 --max_num_batched_tokens=8k",
        "-tp=4 -dp 2 --no-enable-chunked-prefill",
        "--max-num-b 4K --device-memory-utilization 0.5",
        "-O3 --speculative-config.method ngram --api-key a b --watermark 0.01",
        "some/model --long-prefill-token-threshold 512 --no-async-scheduling",
    ],
)
def test_lines_are_read_as_vllm_reads_them(parser, line):
    theirs = vars(parser.parse_args(line.split()))
    ours, _ = parse_engine_args(line, get_preset("llama-3.1-8b/h100_sxm"))

    for name in (
        "max_num_seqs",
        "max_num_batched_tokens",
        "enable_chunked_prefill",
        "async_scheduling",
        "watermark",
        "long_prefill_token_threshold",
    ):
        if theirs[name] != parser.get_default(name):
            assert getattr(ours, name) == theirs[name]


@pytest.mark.parametrize("line", ["--max-num 7", "--foo 1", "a b", "--enable-lora=1", "--port"])
def test_what_vllm_refuses_is_not_read_in_silence(parser, line):
    with pytest.raises(SystemExit):
        parser.parse_args(line.split())
    try:
        _, notes = parse_engine_args(line, get_preset("llama-3.1-8b/h100_sxm"))
    except ValueError:
        return
    assert notes

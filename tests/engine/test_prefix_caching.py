"""Prefix caching: what is found, what is forgotten, and that both engines agree on it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queuesmith.config import EngineConfig
from queuesmith.engine import prepare, simulate_reference, simulate_workload
from queuesmith.engine.compile import compile_policy
from queuesmith.engine.presets.step_time import StepTime
from queuesmith.engine.reference.agreement import first_difference
from queuesmith.errors import ConfigError, EngineError, TraceError
from queuesmith.evaluation.evaluate import capacity
from queuesmith.policies import get_policy
from queuesmith.traces.block_hashes import BlockHashes
from queuesmith.traces.trace import Trace

STEP_TIME = StepTime(a=0.01, b1=1e-4, b2=3e-4, t0=16, c=2e-4, d=1e-6, e=1e-7, f=5e-3)
HOOKS = Path(__file__).parent / "hooks"
POLICIES = ["fcfs", "priority", "sjf", "least_computed_victim", "las", HOOKS / "all_hooks.py"]

CONFIG = EngineConfig(
    max_num_seqs=4,
    max_num_batched_tokens=64,
    num_gpu_blocks=41,
    block_size=4,
    max_model_len=64,
    enable_prefix_caching=True,
)


def make_trace(arrivals, prompts, output_len=1):
    """Prompts are text, one letter a token, hashed in blocks of 4 as vLLM chains them."""
    numbers, offsets, hashes = {}, [0], []
    for prompt in prompts:
        for end in range(4, len(prompt) + 1, 4):
            hashes.append(numbers.setdefault(prompt[:end], len(numbers)))
        offsets.append(len(hashes))
    lengths = [len(prompt) for prompt in prompts]
    return Trace(
        arrivals,
        prompt_len=lengths,
        output_len=np.broadcast_to(output_len, len(prompts)),
        block_hashes=BlockHashes(offsets, hashes, 4),
    )


def run(trace, policy="fcfs", config=CONFIG):
    """Simulate with both engines, which must agree, and return the result of the kernel."""
    policy = get_policy(policy)
    workload = prepare(trace, config, np.full(len(trace), np.nan))
    compiled = compile_policy(policy)
    result = simulate_workload(workload, compiled, config, STEP_TIME, record=True)
    reference = simulate_reference(workload, policy, config, STEP_TIME)
    assert first_difference(result, reference) == ""
    jumped = simulate_workload(workload, compiled, config, STEP_TIME)
    assert jumped.requests.tobytes() == result.requests.tobytes()
    assert all(not request.blocks for request in reference.requests)
    assert set(reference.pool.free) == set(range(1, config.num_gpu_blocks))
    return result


def test_a_request_starts_from_the_blocks_it_shares_with_an_earlier_one():
    result = run(make_trace([0.0, 1.0], ["abcdefghij", "abcdefghXY"]))

    assert result.num_cached_tokens == 8
    assert [int(new) for _, new in result.recording.tokens] == [10, 2]


def test_a_prompt_that_is_cached_whole_still_computes_its_last_block():
    result = run(make_trace([0.0, 1.0], ["abcdefgh", "abcdefgh"]))

    assert [int(new) for _, new in result.recording.tokens] == [8, 4]


def test_a_request_of_the_same_step_finds_the_blocks_of_the_one_before_it():
    result = run(make_trace([0.0, 0.0], ["abcdefgh1", "abcdefgh2"]))

    assert len(result.recording.steps) == 1
    assert result.num_cached_tokens == 8


def test_equal_tokens_after_different_beginnings_are_not_shared():
    result = run(make_trace([0.0, 1.0], ["abcdXXXX1", "efghXXXX1"]))

    assert result.num_cached_tokens == 0


def test_nothing_is_found_without_prefix_caching_or_without_hashes():
    trace = make_trace([0.0, 1.0], ["abcdefghij", "abcdefghXY"])

    without = replace(CONFIG, enable_prefix_caching=False)
    assert run(trace, config=without).num_cached_tokens == 0
    bare = Trace(trace.arrival_time, trace.prompt_len, trace.output_len)
    assert run(bare).num_cached_tokens == 0


def test_blocks_are_forgotten_when_others_need_them():
    """Eleven blocks: the second prompt takes all but one, the first comes back to find nothing."""
    config = replace(CONFIG, num_gpu_blocks=12)
    long_prompt = "".join(chr(200 + letter) for letter in range(44))
    result = run(
        make_trace([0.0, 1.0, 2.0], ["abcdefgh1", long_prompt, "abcdefgh2"]), config=config
    )

    assert result.num_cached_tokens == 0


def test_the_end_of_a_sequence_is_forgotten_before_its_start():
    """Of the first prompt's four cached blocks the last two are overwritten."""
    config = replace(CONFIG, num_gpu_blocks=8)  # seven to use
    first = "abcdefghijklmnop1"  # five blocks, four of them full; three others are free
    second = "".join(chr(200 + letter) for letter in range(20))  # five blocks
    result = run(make_trace([0.0, 1.0, 2.0], [first, second, first]), config=config)

    assert result.num_cached_tokens == 8


def test_a_preempted_request_finds_its_own_blocks_again():
    """Twelve blocks are too few for two requests of seven each at their end."""
    config = replace(CONFIG, num_gpu_blocks=13)
    trace = make_trace([0.0, 0.0], ["abcdefghijkl", "mnopqrstuvwx"], output_len=16)
    with_cache = run(trace, config=config)
    without = run(trace, config=replace(config, enable_prefix_caching=False))

    assert with_cache.num_preemptions == without.num_preemptions == 1
    assert with_cache.num_cached_tokens > 0
    assert with_cache.num_recomputed_tokens < without.num_recomputed_tokens
    total = int((trace.prompt_len + trace.output_len - 1).sum())
    assert with_cache.num_computed_tokens == total + with_cache.num_recomputed_tokens


@pytest.mark.parametrize("block_size", [2, 4, 8])
def test_blocks_of_the_trace_are_cut_or_joined_to_those_of_the_engine(block_size):
    config = replace(CONFIG, block_size=block_size)
    result = run(make_trace([0.0, 1.0], ["abcdefghijkl1", "abcdefghijXX2"]), config=config)

    assert result.num_cached_tokens == 8


def test_blocks_that_do_not_divide_are_refused():
    trace = make_trace([0.0], ["abcdefgh"])

    with pytest.raises(ConfigError, match=r"block_size \(6\) must divide"):
        prepare(trace, replace(CONFIG, block_size=6), np.array([np.nan]))


def test_capacity_counts_what_a_trace_shares_within_itself_only():
    """Twice the same trace must not look twice as fast because the second copy is cached."""
    prompts = ["".join(chr(200 + 40 * row + letter) for letter in range(40)) for row in range(12)]
    unshared = make_trace(np.arange(12.0), prompts)
    shared = make_trace(np.arange(12.0), [prompts[0][:36] + prompt[36:] for prompt in prompts])
    plain = replace(CONFIG, enable_prefix_caching=False)

    assert capacity(unshared, CONFIG, STEP_TIME) == capacity(unshared, plain, STEP_TIME)
    assert capacity(shared, CONFIG, STEP_TIME) > 1.5 * capacity(shared, plain, STEP_TIME)


@st.composite
def crowded_windows(draw):
    """Requests whose prompts begin alike, in an engine small enough to forget and preempt."""
    num_requests = draw(st.integers(1, 20))
    prompts = [
        draw(st.sampled_from(["aaaaaaaaaaaaaaaa", "aaaabbbbccccdddd", "zzzz"]))[
            : draw(st.integers(0, 16))
        ]
        + chr(1000 + row) * draw(st.integers(1, 20))
        for row in range(num_requests)
    ]
    gaps = draw(
        st.lists(
            st.sampled_from([0.0, 0.0, 0.01, 0.05, 0.3]),
            min_size=num_requests,
            max_size=num_requests,
        )
    )
    lengths = st.lists(st.integers(1, 12), min_size=num_requests, max_size=num_requests)
    trace = make_trace(np.cumsum(gaps), prompts, draw(lengths))
    chunked = draw(st.booleans())
    block_size = draw(st.sampled_from([2, 4, 8]))
    config = EngineConfig(
        max_num_seqs=draw(st.integers(1, 8)),
        max_num_batched_tokens=draw(st.sampled_from([8, 32])) if chunked else 64,
        num_gpu_blocks=draw(st.integers(50, 120)) // block_size + 2,
        block_size=block_size,
        max_model_len=64,
        enable_chunked_prefill=chunked,
        long_prefill_token_threshold=draw(st.sampled_from([0, 0, 5])),
        scheduler_reserve_full_isl=draw(st.booleans()),
        watermark=draw(st.sampled_from([0.0, 0.1])),
        scheduling_policy=draw(st.sampled_from(["fcfs", "priority"])),
        enable_prefix_caching=True,
    )
    return trace, config


@pytest.mark.parametrize("policy", POLICIES, ids=lambda name: Path(name).stem)
@settings(max_examples=80, deadline=None)
@given(window=crowded_windows())
def test_kernel_equals_reference_with_shared_prefixes(policy, window):
    trace, config = window

    try:
        run(trace, policy, config)
    except EngineError:  # without the reserve, victims may throw each other out for ever
        assert not config.scheduler_reserve_full_isl or policy not in ("fcfs", "sjf")
    except TraceError:  # nothing fits
        assert config.kv_tokens < 64


def test_requests_that_finish_together_free_their_blocks_in_order_of_budget(tmp_path):
    """Seven blocks. The longer prompt is the victim, so it stands last and is forgotten last.

    The third request takes the two blocks that hold nothing and the two of the shorter prompt;
    freed in order of admission it would have taken the longer one's, which then comes again.
    """
    policy = tmp_path / "longest_last.py"
    policy.write_text(
        "def waiting_key(request, engine):\n    return request.arrival_time\n"
        "def victim_key(request, engine):\n    return request.num_prompt_tokens\n"
    )
    config = replace(CONFIG, num_gpu_blocks=8)
    prompts = ["abcdefghijkl", "mnopqrst", "0123456789ABCDEF", "abcdefghijkL"]
    trace = make_trace([0.0, 0.0, 10.0, 20.0], prompts, [4, 4, 1, 1])

    assert run(trace, policy, config).num_cached_tokens == 8

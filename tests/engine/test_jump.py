"""Jumping over stretches in which nothing changes gives the same bits as taking every step."""

from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queuesmith.config import EngineConfig
from queuesmith.engine import prepare, simulate_workload
from queuesmith.engine import run as execute
from queuesmith.engine.compile import compile_policy
from queuesmith.engine.fleet import Fleet
from queuesmith.engine.presets.step_time import StepTime
from queuesmith.errors import EngineError
from queuesmith.policies import get_policy
from queuesmith.routers import get_router
from queuesmith.traces.block_hashes import BlockHashes
from queuesmith.traces.trace import Trace

HOOKS = Path(__file__).parent / "hooks"
POLICIES = [
    "fcfs", "sjf", "weighted_fair", "least_computed_victim", "srpt", HOOKS / "engine_fields.py",
    HOOKS / "rejects.py",
]  # fmt: skip
STEP_TIME = StepTime(a=0.01, b1=1e-4, b2=3e-4, t0=16, c=2e-4, d=1e-6, e=1e-7, f=5e-3)


@st.composite
def traces(draw):
    """Few requests with long answers: most steps are decodes of the same batch."""
    num_requests = draw(st.integers(1, 14))

    def column(*values):
        return draw(st.lists(st.sampled_from(values), min_size=num_requests, max_size=num_requests))

    arrival_time = np.cumsum(column(0.0, 0.0, 0.013, 0.1, 0.7, 3.0))
    output_len = np.array(column(1, 1, 2, 7, 30, 31, 80))
    # A stop token comes unforeseen, the client's cap does not.
    max_tokens = output_len + np.array(column(0, 0, 0, 1, 50))
    abort_time = arrival_time + np.array(column(np.inf, np.inf, 0.0, 0.02, 0.3, 1.0))
    prompt_len = np.array(column(1, 2, 15, 16, 17, 40, 90))
    return Trace(
        arrival_time,
        prompt_len,
        output_len,
        max_tokens=max_tokens,
        abort_time=abort_time if draw(st.booleans()) else None,
        client=column(-1, 0, 1),
        priority=column(0, 1),
        block_hashes=_hashes(prompt_len) if draw(st.booleans()) else None,
    )


def _hashes(prompt_len):
    """Prompts begin alike, as far as they go."""
    num_blocks = prompt_len // 4
    offsets = np.concatenate([[0], np.cumsum(num_blocks)])
    return BlockHashes(offsets, np.concatenate([np.arange(n) for n in num_blocks]), 4)


@st.composite
def configs(draw):
    block_size = draw(st.sampled_from([1, 4, 16]))
    max_model_len = 256
    chunked = draw(st.booleans())
    max_num_seqs = draw(st.integers(1, 8))
    return EngineConfig(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=draw(st.sampled_from([8, 64])) if chunked else max_model_len,
        max_num_scheduled_tokens=draw(st.sampled_from([None, 3])) if chunked else None,
        num_gpu_blocks=draw(st.sampled_from([180, 300, 2000])) // block_size + 2,
        block_size=block_size,
        max_model_len=max_model_len,
        enable_chunked_prefill=chunked,
        long_prefill_token_threshold=draw(st.sampled_from([0, 0, 10])),
        scheduler_reserve_full_isl=draw(st.booleans()),
        watermark=draw(st.sampled_from([0.0, 0.2])),
        scheduling_policy=draw(st.sampled_from(["fcfs", "priority"])),
        enable_prefix_caching=draw(st.booleans()),
        async_scheduling=draw(st.sampled_from([True, True, False])),
        max_num_queued_reqs=draw(st.sampled_from([None, None, 3])),
        max_num_queued_tokens=draw(st.sampled_from([None, None, 30])),
        instant_prefill=draw(st.sampled_from([False, False, True])),
    )


def run(trace, policy, config, *, jump, fleet=None, horizon=np.inf):
    policy = get_policy(policy)
    workload = prepare(trace, config, trace.output_len.astype(float))
    return simulate_workload(
        workload,
        compile_policy(policy),
        config,
        STEP_TIME,
        jump=jump,
        fleet=fleet,
        horizon=horizon,
    )


def assert_equal(jumped, stepped):
    assert jumped.requests.tobytes() == stepped.requests.tobytes()
    assert jumped.itl_counts.tobytes() == stepped.itl_counts.tobytes()
    for name in ("num_steps", "end_time", "num_computed_tokens", "num_recomputed_tokens"):
        assert getattr(jumped, name) == getattr(stepped, name), name


@pytest.mark.parametrize("policy", POLICIES, ids=lambda name: Path(name).stem)
@settings(max_examples=120, deadline=None)
@given(trace=traces(), config=configs(), horizon=st.sampled_from([np.inf, np.inf, 0.5, 2.0]))
def test_jumping_changes_nothing(policy, trace, config, horizon):
    try:
        jumped = run(trace, policy, config, jump=True, horizon=horizon)
    except EngineError:  # without the reserve, victims may throw each other out for ever
        assert not config.scheduler_reserve_full_isl
        return
    assert_equal(jumped, run(trace, policy, config, jump=False, horizon=horizon))


@pytest.mark.parametrize("router", ["least_loaded", "prefix_affinity"])
@settings(max_examples=60, deadline=None)
@given(trace=traces(), config=configs())
def test_a_router_that_looks_in_midway_sees_the_same(router, trace, config):
    fleet = Fleet(2, get_router(router))
    try:
        jumped = run(trace, "fcfs", config, jump=True, fleet=fleet)
    except EngineError:
        assert not config.scheduler_reserve_full_isl
        return
    assert_equal(jumped, run(trace, "fcfs", config, jump=False, fleet=fleet))


@pytest.mark.parametrize("router", [None, "round_robin", "least_loaded"])
@settings(max_examples=60, deadline=None)
@given(trace=traces(), config=configs(), think_time=st.sampled_from([0.0, 0.02, 1.0]))
def test_coming_back_to_python_at_every_step_changes_nothing(router, trace, config, think_time):
    """As it does when signals are to be heard; with turns that wait for the answer before."""
    fleet = None if router is None else Fleet(2, get_router(router))
    think = np.where(np.arange(len(trace)) > 1, think_time, np.nan)
    turns = replace(trace, session=np.arange(len(trace)) % 2, think_time=think)
    for each in (trace, turns):
        try:
            at_once = run(each, "sjf", config, jump=True, fleet=fleet)
        except EngineError:
            assert not config.scheduler_reserve_full_isl
            return
        with patch.multiple(execute, FIRST_ALLOWANCE=1, SECONDS_PER_TURN=0.0):
            assert_equal(run(each, "sjf", config, jump=True, fleet=fleet), at_once)


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_most_steps_of_a_quiet_engine_are_jumped_over(async_scheduling):
    trace = Trace([0.0, 1.0, 9.0], [20, 30, 40], [100, 60, 200], max_tokens=[100, 99, 200])
    config = EngineConfig(
        max_num_seqs=4, max_num_batched_tokens=64, max_model_len=512, num_gpu_blocks=200,
        async_scheduling=async_scheduling,
    )  # fmt: skip
    result = run(trace, "fcfs", config, jump=True)

    assert result.num_steps > 270
    assert 3 <= result.num_jumps <= 10


def test_prefix_caching_is_off_where_no_prompt_is_known_to_start_like_another():
    rng = np.random.default_rng(0)
    trace = Trace(np.cumsum(rng.exponential(0.1, 50)), rng.integers(1, 90, 50), [40] * 50)
    config = EngineConfig(
        max_num_seqs=8, max_num_batched_tokens=64, max_model_len=256, num_gpu_blocks=40
    )
    plain = run(trace, "fcfs", config, jump=True)
    cached = run(trace, "fcfs", config.override({"enable_prefix_caching": True}), jump=True)

    assert plain.num_preemptions > 0
    assert_equal(cached, plain)
    assert cached.num_jumps == plain.num_jumps > 0

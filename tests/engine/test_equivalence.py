"""The kernel and the reference engine take the same decisions, and jumping changes nothing."""

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
from queuesmith.errors import EngineError, TraceError
from queuesmith.policies import get_policy, policy_names
from queuesmith.traces.trace import Trace

HOOKS = Path(__file__).parent / "hooks"
POLICIES = [*policy_names(), *sorted(str(path) for path in HOOKS.glob("*.py"))]

STEP_TIME = StepTime(a=0.01, b1=1e-4, b2=3e-4, t0=16, c=2e-4, d=1e-6, e=1e-7, f=5e-3)


@st.composite
def traces(draw):
    """A few requests, short so that ties, preemptions and full batches are common."""
    num_requests = draw(st.integers(1, 24))
    gaps = st.sampled_from([0.0, 0.0, 0.01, 0.013, 0.05, 0.3])

    def column(elements):
        return draw(st.lists(elements, min_size=num_requests, max_size=num_requests))

    arrival_time = np.cumsum(column(gaps))
    output_len = np.array(column(st.integers(1, 12)))
    patience = column(st.sampled_from([np.inf, np.inf, np.inf, 0.0, 0.02, 0.1, 0.4]))
    return Trace(
        arrival_time,
        prompt_len=column(st.integers(1, 40)),
        output_len=output_len,
        max_tokens=output_len + column(st.sampled_from([0, 0, 1, 9])),
        abort_time=arrival_time + patience if draw(st.booleans()) else None,
        client=column(st.integers(-1, 3)),
        priority=column(st.integers(0, 2)),
        deadline=column(st.sampled_from([0.1, 0.5, 2.0, np.inf])),
    )


@st.composite
def configs(draw):
    block_size = draw(st.sampled_from([1, 2, 4, 16]))
    max_model_len = draw(st.sampled_from([32, 64]))
    chunked = draw(st.booleans())
    budget = draw(st.sampled_from([8, 16, 64])) if chunked else max_model_len
    max_num_seqs = draw(st.integers(1, 8))
    return EngineConfig(
        max_num_seqs=max_num_seqs,
        max_num_active_seqs=draw(st.sampled_from([None, 2])),
        max_num_batched_tokens=budget,
        max_num_scheduled_tokens=draw(st.sampled_from([None, 5])) if chunked else None,
        num_gpu_blocks=draw(st.integers(40, 140)) // block_size + 2,
        block_size=block_size,
        max_model_len=max_model_len,
        enable_chunked_prefill=chunked,
        long_prefill_token_threshold=draw(st.sampled_from([0, 0, 3, 10])),
        long_prefill_token_threshold_adaptive=draw(st.booleans()),
        scheduler_reserve_full_isl=draw(st.booleans()),
        watermark=draw(st.sampled_from([0.0, 0.05, 0.2])),
        scheduling_policy=draw(st.sampled_from(["fcfs", "priority"])),
        async_scheduling=draw(st.booleans()),
        max_num_queued_reqs=draw(st.sampled_from([None, None, 0, 1, 4])),
        max_num_queued_tokens=draw(st.sampled_from([None, None, 20, 60])),
        instant_prefill=draw(st.booleans()),
    )


def assert_same(trace, policy, config, predicted, horizon=np.inf):
    """Compare every decision of every step, and every instant."""
    try:
        workload = prepare(trace, config, predicted)
    except TraceError:
        return 0
    compiled = compile_policy(policy)
    try:
        jumped = simulate_workload(workload, compiled, config, STEP_TIME, horizon=horizon)
    except EngineError:  # without the reserve, victims may throw each other out for ever
        assert not config.scheduler_reserve_full_isl or policy.victim_key or policy.preemptive
        return 0
    stepped = simulate_workload(workload, compiled, config, STEP_TIME, horizon=horizon, record=True)
    reference = simulate_reference(workload, policy, config, STEP_TIME, horizon=horizon)

    assert jumped.requests.tobytes() == stepped.requests.tobytes()
    assert jumped.num_steps == stepped.num_steps
    assert jumped.end_time == stepped.end_time
    assert jumped.num_computed_tokens == stepped.num_computed_tokens
    assert (jumped.itl_counts == stepped.itl_counts).all()

    assert first_difference(stepped, reference) == ""
    return stepped.num_preemptions


@pytest.mark.parametrize("name", POLICIES, ids=lambda name: Path(name).stem)
@settings(max_examples=60, deadline=None)
@given(trace=traces(), config=configs(), noise=st.integers(0, 99))
def test_kernel_equals_reference_on_random_windows(name, trace, config, noise):
    policy = get_policy(name)
    predicted = np.random.default_rng(noise).choice([1.0, 4.0, 9.0, np.nan], len(trace))

    assert_same(trace, policy, config, predicted)

"""Asynchronous scheduling: a step is scheduled when the one before it begins to be computed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import queuesmith as qs
from queuesmith.config import EngineConfig
from queuesmith.engine.presets.step_time import DEFAULT_PRESET, StepTime, get_preset
from queuesmith.traces.trace import Trace

ASYNC = EngineConfig(
    max_num_seqs=2,
    max_num_batched_tokens=64,
    num_gpu_blocks=100,
    max_model_len=128,
    async_scheduling=True,
)


def test_each_step_is_scheduled_one_step_ahead(decide):
    ran = decide(Trace([5.0], [10], [3], max_tokens=[3]), ASYNC)

    assert ran.tokens == [{0: 10}, {0: 1}, {0: 1}, {}]
    steps = ran.result.recording.steps
    assert steps.scheduled.tolist() == [5.0, 5.0, 6.0, 7.0]
    assert steps.start.tolist() == [5.0, 6.0, 7.0, 8.0]
    assert steps.duration.tolist() == [1.0, 1.0, 1.0, 0.0]  # nothing is computed in the last
    assert ran.result.requests.last_token_ts[0] == 8.0


def test_a_stop_token_is_found_out_one_step_late(decide):
    ran = decide(Trace([0.0], [10], [3], max_tokens=[9]), ASYNC)

    assert ran.tokens == [{0: 10}, {0: 1}, {0: 1}, {0: 1}]  # the last for nothing
    assert ran.result.requests.last_token_ts[0] == 3.0
    assert ran.result.num_computed_tokens == 13


def test_a_seat_is_free_one_step_later(decide, steps_of):
    trace = Trace([0.0, 0.0, 0.0], [10, 10, 10], [3, 20, 5], max_tokens=[3, 20, 5])

    waits_for_a_seat = decide(trace, ASYNC).result
    at_once = qs.simulate(trace, config=_sync(ASYNC), step_time=StepTime(a=1.0))

    assert at_once.requests.first_token_ts.tolist() == [1.0, 1.0, 4.0]
    assert waits_for_a_seat.requests.first_token_ts.tolist() == [1.0, 1.0, 5.0]


def test_the_token_of_a_preempted_request_comes_while_it_waits(decide):
    """Three blocks of 4 tokens; both decode until the second must give its KV away."""
    config = EngineConfig(
        max_num_seqs=2,
        max_num_batched_tokens=16,
        num_gpu_blocks=4,
        block_size=4,
        max_model_len=12,
        async_scheduling=True,
        scheduler_reserve_full_isl=False,
    )
    ran = decide(Trace([0.0, 0.0], [4, 3], [6, 6], max_tokens=[6, 6]), config)

    # S0 computes both prompts, S1 a token of each: row 0 takes its second block, the last one.
    # S2, at 1 s: row 1 needs a second block; it is the last in `running`, so its own victim.
    assert ran.tokens[:3] == [{0: 4, 1: 3}, {0: 1, 1: 1}, {0: 1}]
    assert ran.preempted[:3] == [[], [], [1]]
    second = ran.result.requests[1]
    assert second.num_preemptions == 1
    assert second.num_output_tokens == 6
    # The token of S1 came at 2 s all the same: resumed, it computes 3 + 2 tokens anew.
    resumed = next(step for step in ran.steps[3:] if 1 in step.tokens)
    assert resumed.tokens[1] == 5


@settings(max_examples=60, deadline=None)
@given(
    prompt_len=st.integers(1, 300),
    output_len=st.integers(1, 40),
    slack=st.integers(0, 5),
    budget=st.integers(2, 64),
)
def test_a_lone_request_is_served_as_fast(prompt_len, output_len, slack, budget):
    trace = Trace([0.0], [prompt_len], [output_len], max_tokens=[output_len + slack])
    config = EngineConfig(
        max_num_seqs=2, max_num_batched_tokens=budget, num_gpu_blocks=40, async_scheduling=True,
        max_model_len=500,
    )  # fmt: skip
    step_time = get_preset(DEFAULT_PRESET).step_time.with_host_overhead(0.0)  # which async hides
    ahead = qs.simulate(trace, config=config, step_time=step_time)
    plain = qs.simulate(trace, config=_sync(config), step_time=step_time)

    for name in ("first_token_ts", "last_token_ts"):
        assert ahead.requests[name][0] == pytest.approx(plain.requests[name][0], abs=1e-12)
    wasted = ahead.num_computed_tokens - plain.num_computed_tokens
    assert wasted == (1 if slack else 0)


def test_every_request_gets_all_of_its_tokens_under_pressure():
    rng = np.random.default_rng(3)
    trace = Trace(
        np.sort(rng.uniform(0, 20, 300)), rng.integers(1, 60, 300), rng.integers(1, 40, 300)
    )
    config = EngineConfig(
        max_num_seqs=16, max_num_batched_tokens=64, num_gpu_blocks=12, block_size=16,
        max_model_len=128, async_scheduling=True, scheduler_reserve_full_isl=False,
    )  # fmt: skip
    result = qs.simulate(trace, config=config)

    assert result.num_preemptions > 20
    assert (result.requests.num_output_tokens == trace.output_len).all()


def _sync(config):
    return config.override({"async_scheduling": False})

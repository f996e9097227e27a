"""``max_num_scheduled_tokens``: what it lowers, and what it does not."""

import numpy as np

from queuesmith.config import EngineConfig
from queuesmith.engine import prepare, simulate_reference, simulate_workload
from queuesmith.engine.compile import compile_policy
from queuesmith.engine.presets.step_time import StepTime
from queuesmith.engine.reference.agreement import first_difference
from queuesmith.policies import get_policy
from queuesmith.traces.trace import Trace


def first_step(prompts, **settings):
    """Return the tokens of each row in the first step; both engines must agree on all steps."""
    config = EngineConfig(max_num_seqs=8, max_num_batched_tokens=128, max_model_len=512, **settings)
    trace = Trace(np.zeros(len(prompts)), prompts, np.ones(len(prompts), int))
    workload = prepare(trace, config, np.full(len(prompts), np.nan))
    policy, step_time = get_policy("fcfs"), StepTime(a=0.01)
    result = simulate_workload(workload, compile_policy(policy), config, step_time, record=True)
    reference = simulate_reference(workload, policy, config, step_time)
    assert first_difference(result, reference) == ""
    return reference.steps[0].tokens


def test_it_lowers_the_budget_and_never_raises_it():
    assert first_step([300], max_num_scheduled_tokens=90) == {0: 90}
    assert first_step([300], max_num_scheduled_tokens=200) == {0: 128}


def test_the_adaptive_threshold_is_a_share_of_what_can_be_batched():
    """Two requests may have 128 // 2 = 64 tokens each, of a budget of 90."""
    tokens = first_step(
        [100, 100],
        max_num_scheduled_tokens=90,
        long_prefill_token_threshold=10,
        long_prefill_token_threshold_adaptive=True,
    )

    assert tokens == {0: 64, 1: 26}

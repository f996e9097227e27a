"""``--scheduling-policy priority``: the order of `waiting` is followed, not only the victim."""

import numpy as np
import pytest

import queuesmith as qs
from queuesmith.config import EngineConfig
from queuesmith.engine.workload import in_vllm_order
from queuesmith.policies import get_policy, policy_names
from queuesmith.traces.trace import Trace

BY_PRIORITY = EngineConfig(
    max_num_seqs=1,
    max_num_batched_tokens=64,
    num_gpu_blocks=100,
    max_model_len=128,
    scheduling_policy="priority",
)


def test_the_lower_priority_is_admitted_first_then_the_earlier(decide):
    trace = Trace([0.0, 0.1, 0.2, 0.3, 0.4], [9] * 5, [1] * 5, priority=[5, 10, 0, 10, 0])
    ran = decide(trace, BY_PRIORITY)

    assert ran.rows == [0, 2, 4, 1, 3]
    assert ran.result.policy == "fcfs, by priority as vLLM"


def test_a_policy_of_ones_own_orders_by_its_key(decide, policy_from):
    trace = Trace([0.0, 0.1, 0.2], [9, 9, 5], [1] * 3, priority=[5, 10, 20])

    assert decide(trace, BY_PRIORITY, "sjf").rows == [0, 2, 1]
    own = policy_from(get_policy("fcfs").source, "mine")
    assert decide(trace, BY_PRIORITY, own).rows == [0, 1, 2]


def test_only_fcfs_stands_for_vllm_as_it_is():
    for name in policy_names():
        policy = get_policy(name)
        assert in_vllm_order(policy, "fcfs") is policy
        assert (in_vllm_order(policy, "priority") is policy) == (name != "fcfs")


@pytest.mark.parametrize("replicas", [1, 3])
def test_urgent_requests_wait_as_under_the_policy_named_priority(replicas):
    """Two classes in overload: the urgent must not wait for the others."""
    rng = np.random.default_rng(0)
    trace = Trace(
        np.cumsum(rng.exponential(0.01, 400)),
        rng.integers(1, 60, 400),
        rng.integers(1, 30, 400),
        priority=rng.choice([0, 10], 400, p=[0.2, 0.8]),
    )
    config = BY_PRIORITY.override({"max_num_seqs": 4})
    as_run = qs.simulate(trace, config=config, replicas=replicas)
    by_policy = qs.simulate(trace, "priority", config=config, replicas=replicas)
    fcfs = qs.simulate(
        trace, config=config.override({"scheduling_policy": "fcfs"}), replicas=replicas
    )

    assert as_run.requests.tobytes() == by_policy.requests.tobytes()
    wait = as_run.requests.first_token_ts - trace.arrival_time
    urgent = trace.priority == 0
    assert wait[urgent].mean() < 0.3 * wait[~urgent].mean()
    assert wait[urgent].mean() < 0.5 * (fcfs.requests.first_token_ts - trace.arrival_time).mean()

"""Requests that are turned away when they come: by vLLM's limits, or by a policy's `reject`."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import queuesmith as qs
from queuesmith.config import EngineConfig, Slo
from queuesmith.engine.presets.step_time import StepTime
from queuesmith.errors import ConfigError, PolicyError
from queuesmith.evaluation.evaluate import capacity
from queuesmith.metrics import summarize
from queuesmith.testing import check_policy
from queuesmith.traces.trace import Trace

ONE_SEAT = EngineConfig(
    max_num_seqs=1, max_num_batched_tokens=64, num_gpu_blocks=100, max_model_len=128
)


def rejected(result):
    return np.flatnonzero(~np.isnan(result.requests.rejected_ts)).tolist()


def test_those_that_wait_and_run_count_until_they_end(decide):
    """Two seconds each: at 2.0 s the first has ended, at 1.9 s it has not."""
    config = ONE_SEAT.override({"max_num_queued_reqs": 2})
    ran = decide(Trace([0.0, 0.0, 0.1, 1.9, 2.0, 2.1], [9] * 6, [2] * 6), config)

    assert rejected(ran.result) == [2, 3, 5]
    assert ran.rows == [0, 0, 1, 1, 4, 4]
    assert ran.result.num_rejected == 3


def test_prompts_count_whole_until_their_first_token(decide):
    """Prompts of 40 tokens, of which 16 a step are computed; the limit is met, not passed."""
    config = ONE_SEAT.override({"max_num_queued_tokens": 40, "max_num_scheduled_tokens": 16})
    trace = Trace([0.0, 2.9, 3.0, 3.5, 6.0, 6.1], [40] * 6, [5] * 6)
    ran = decide(trace, config)

    # The first token comes at 3 s; then a second prompt waits, until it has its own at 10 s.
    assert rejected(ran.result) == [1, 3, 4, 5]


def test_a_client_that_has_given_up_does_not_count(decide):
    config = ONE_SEAT.override({"max_num_queued_reqs": 2})
    trace = Trace([0.0, 0.1, 0.5, 0.6], [9] * 4, [4] * 4, abort_time=[np.inf, 0.55, np.inf, np.inf])
    ran = decide(trace, config)

    assert rejected(ran.result) == [2]
    assert ran.rows == [0] * 4 + [3] * 4


@pytest.mark.parametrize("of_accepted", ["mean_prompt_tokens < 20", "arrival_rate > 9"])
def test_averages_are_of_whom_the_scheduler_hears(decide, policy_from, of_accepted):
    """The last one is turned away: prompts are 49 / 3 tokens on average, and gaps 0.1 s."""
    sign = f"(1 if engine.{of_accepted} else -1)"
    policy = policy_from(
        f"def waiting_key(request, engine):\n    return {sign} * request.num_prompt_tokens\n"
    )
    config = ONE_SEAT.override({"max_num_queued_reqs": 3})
    ran = decide(Trace([0.0, 0.1, 0.2, 1.3], [9, 30, 10, 60], [2] * 4), config, policy)

    assert rejected(ran.result) == [3]
    assert ran.rows == [0, 0, 2, 2, 1, 1]


def test_a_limit_of_none_at_all_turns_everybody_away(decide):
    for is_async in (False, True):
        config = ONE_SEAT.override({"max_num_queued_reqs": 0, "async_scheduling": is_async})
        result = qs.simulate(Trace(np.arange(12_000.0), [9] * 12_000, [4] * 12_000), config=config)
        assert result.num_rejected == 12_000
        assert result.num_steps == 0


def test_who_is_turned_away_missed_every_limit_and_has_no_latency():
    config = ONE_SEAT.override({"max_num_queued_reqs": 1})
    result = qs.simulate(
        Trace([0.0, 0.5, 9.0], [9] * 3, [2] * 3), config=config, step_time=StepTime(a=1.0)
    )
    numbers = summarize(result, Slo(ttft=100.0))

    assert numbers["num_rejected"] == 1
    assert numbers["num_aborted"] == 0
    assert numbers["slo_attainment"] == pytest.approx(2 / 3)
    assert np.isnan(numbers["ttft_mean"])
    assert numbers["ttft_p50"] == 1.0
    assert numbers["ttft_max"] == np.inf


def test_the_next_turn_of_a_session_comes_after_the_refusal():
    trace = Trace(
        [0.0, 0.5, 1.0],
        [9] * 3,
        [10, 2, 2],
        session=[0, 1, 1],
        think_time=[np.nan, np.nan, 30.0],
    )
    config = ONE_SEAT.override({"max_num_queued_reqs": 1})
    result = qs.simulate(trace, config=config, step_time=StepTime(a=1.0))

    assert rejected(result) == [1]
    assert result.requests.arrival_time[2] == 31.0  # the engine met the refused one at 1 s
    assert result.requests.last_token_ts[2] == 33.0


def test_each_replica_counts_its_own():
    config = ONE_SEAT.override({"max_num_queued_reqs": 1})
    trace = Trace([0.0, 0.0, 0.1, 0.1], [9] * 4, [2] * 4)
    result = qs.simulate(trace, config=config, step_time=StepTime(a=1.0), replicas=2)

    assert rejected(result) == [2, 3]


def test_capacity_is_that_of_the_engine_whoever_is_turned_away():
    trace = Trace(np.arange(20.0), [30] * 20, [5] * 20)
    limited = ONE_SEAT.override({"max_num_queued_reqs": 1, "max_num_queued_tokens": 1})

    assert capacity(trace, limited, StepTime(a=1.0)) == capacity(trace, ONE_SEAT, StepTime(a=1.0))


@pytest.mark.parametrize("name", ["max_num_queued_reqs", "max_num_queued_tokens"])
@pytest.mark.parametrize("value", [-1, 1.5, True, "3"])
def test_a_limit_is_a_whole_number_or_none(name, value):
    with pytest.raises(ConfigError, match=name):
        EngineConfig(**{name: value})


REJECT = """
MOST = 3

def waiting_key(request, engine):
    return request.arrival_time

def reject(request, engine):
    return engine.num_waiting + engine.num_running + 1 > MOST
"""


@settings(max_examples=60, deadline=None)
@given(
    gaps=st.lists(st.integers(0, 3), min_size=1, max_size=30),
    output_len=st.lists(st.integers(1, 8), min_size=30, max_size=30),
    seats=st.integers(1, 3),
    is_async=st.booleans(),
)
def test_a_hook_that_counts_as_vllm_does_turns_the_same_away(
    decide, policy_from, gaps, output_len, seats, is_async
):
    """Where requests come between steps, what the engine knows is what the server knows."""
    arrivals = np.cumsum(gaps).astype(float)
    trace = Trace(arrivals, [9] * len(gaps), output_len[: len(gaps)])
    config = ONE_SEAT.override({"max_num_seqs": seats, "async_scheduling": is_async})
    by_hook = decide(trace, config, policy_from(REJECT))
    by_limit = decide(trace, config.override({"max_num_queued_reqs": 3}))

    assert rejected(by_hook.result) == rejected(by_limit.result)
    assert by_hook.tokens == by_limit.tokens


def test_the_hook_is_asked_once_with_the_engine_as_it_is_then(policy_from):
    """Of three that come at once the second sees the first wait."""
    policy = policy_from("""
def waiting_key(request, engine):
    return request.arrival_time

def reject(request, engine):
    return engine.num_waiting == 1 and engine.waiting_tokens == 9
""")
    result = qs.simulate(Trace([0.0] * 3, [9] * 3, [1] * 3), policy, config=ONE_SEAT)

    assert rejected(result) == [1, 2]


def test_a_hook_that_fails_is_named(policy_from):
    policy = policy_from("""
def waiting_key(request, engine):
    return request.arrival_time

def reject(request, engine):
    return 1.0 / engine.num_waiting > 3.0
""")
    with pytest.raises(PolicyError, match=r"failed in reject, line 6 .*ZeroDivisionError"):
        qs.simulate(Trace([0.0], [9], [1]), policy, config=ONE_SEAT)
    with pytest.raises(PolicyError, match=r"reject raises ZeroDivisionError"):
        check_policy(policy)


def test_the_hook_is_checked_as_the_others_are(policy_from):
    report = check_policy(policy_from(REJECT))
    assert "keeps the contract" in str(report)
    with pytest.raises(PolicyError, match="reject must return True or False"):
        check_policy(policy_from(REJECT.replace("> MOST", "")))

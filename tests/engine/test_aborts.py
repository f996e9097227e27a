"""Clients that give up: what they wait for is forgotten, and what they hold is free."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import queuesmith as qs
from queuesmith.config import EngineConfig, Slo
from queuesmith.engine.presets.step_time import StepTime
from queuesmith.errors import TraceError
from queuesmith.metrics import summarize
from queuesmith.traces.trace import Trace

ONE_SEAT = EngineConfig(
    max_num_seqs=1, max_num_batched_tokens=64, num_gpu_blocks=100, max_model_len=128
)
NEVER = np.inf


def test_whoever_gives_up_while_waiting_never_runs(decide):
    trace = Trace([0.0, 0.0, 0.0], [9, 9, 9], [5, 5, 5], abort_time=[NEVER, 3.5, NEVER])
    ran = decide(trace, ONE_SEAT)

    assert {row for step in ran.tokens for row in step} == {0, 2}
    rows = ran.result.requests
    assert rows.aborted_ts[1] == 3.5
    assert np.isnan(rows.last_token_ts[1])
    assert rows.first_token_ts[2] == 6.0


def test_whoever_gives_up_while_running_frees_the_seat_and_the_blocks(decide):
    trace = Trace([0.0, 0.0], [9, 9], [50, 2], abort_time=[2.5, NEVER])
    ran = decide(trace, ONE_SEAT)

    # Steps begin at 0, 1 and 2 s; the third is computed, and its token is for nobody.
    assert ran.rows == [0, 0, 0, 1, 1]
    assert ran.result.requests.num_output_tokens.tolist() == [2, 2]
    assert ran.result.requests.first_token_ts[1] == 4.0
    assert ran.free[-1] == 98


def test_at_the_very_end_of_a_step_the_client_is_gone_before_its_token(decide):
    ran = decide(Trace([0.0], [9], [2], abort_time=[2.0]), ONE_SEAT)

    assert ran.result.requests.num_output_tokens[0] == 1
    assert ran.result.requests.aborted_ts[0] == 2.0


def test_a_step_for_somebody_who_is_gone_took_its_time_all_the_same(decide, policy_from):
    """Its one request gives up at its end; `step_time` is that of this step from then on."""
    policy = policy_from("""
def waiting_key(request, engine):
    if engine.step_time == 2.0:
        return -request.num_prompt_tokens
    return request.num_prompt_tokens
""")
    trace = Trace([0.0] * 3, [8, 1, 2], [1, 1, 1], abort_time=[2.0, NEVER, NEVER])
    longest_first = StepTime(a=1.0, b1=1 / 8, t0=99)  # 2 s for eight tokens
    ran = decide(trace, ONE_SEAT, "fcfs", step_time=longest_first)
    assert ran.starts == [0.0, 2.0, 3.125]

    trace = Trace([0.0, 0.5, 0.5], [8, 1, 2], [1, 1, 1], abort_time=[2.0, NEVER, NEVER])
    ran = decide(trace, ONE_SEAT, policy, step_time=longest_first)
    assert ran.rows == [0, 2, 1]


def test_giving_up_after_the_last_token_changes_nothing(decide):
    trace = Trace([0.0, 1.0], [9, 9], [2, 2])
    patient = Trace([0.0, 1.0], [9, 9], [2, 2], abort_time=[2.5, 100.0])

    assert decide(patient, ONE_SEAT).result.requests.tobytes() == (
        decide(trace, ONE_SEAT).result.requests.tobytes()
    )


def test_coming_and_going_within_one_step_is_never_seen(decide):
    trace = Trace([0.0, 0.2, 0.3], [9, 9, 9], [3, 3, 3], abort_time=[NEVER, 0.4, 0.3])
    ran = decide(trace, ONE_SEAT)

    assert ran.rows == [0, 0, 0]
    assert ran.result.requests.aborted_ts.tolist()[1:] == [0.4, 0.3]


@pytest.mark.parametrize("policy", ["fcfs", "sjf", "hrrn", "las", "weighted_fair"])
def test_with_all_gone_the_run_ends(decide, policy):
    trace = Trace(np.arange(5.0) / 8, [9] * 5, [50] * 5, abort_time=np.arange(5.0) + 1)
    ran = decide(trace, ONE_SEAT, policy)

    assert not np.isnan(ran.result.requests.aborted_ts).any()


def test_the_aborted_have_met_no_limit_and_are_counted():
    trace = Trace([0.0, 0.0], [9, 9], [50, 2], abort_time=[2.5, NEVER])
    result = qs.simulate(trace, config=ONE_SEAT, step_time=StepTime(a=1.0))
    numbers = summarize(result, Slo(e2el=60.0))

    assert numbers["slo_attainment"] == 0.5
    assert numbers["num_aborted"] == 1
    assert numbers["num_unfinished"] == 1


def test_nobody_gives_up_before_asking():
    with pytest.raises(TraceError, match=r"abort_time must not be before arrival_time \(1 s\)"):
        Trace([1.0], [9], [9], abort_time=[0.5])


def test_patience_keeps_its_length_when_arrivals_are_scaled_or_cut():
    from queuesmith.windows import Window, scale_arrivals

    trace = Trace([1.0, 3.0], [9, 9], [9, 9], abort_time=[2.0, NEVER])

    assert scale_arrivals(trace, 0.5).abort_time.tolist() == [1.5, NEVER]
    assert Window.of(trace, 0, 0, 2).trace.abort_time.tolist() == [1.0, NEVER]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 999), asynchronous=st.booleans())
def test_everybody_is_either_served_or_gone(seed, asynchronous):
    rng = np.random.default_rng(seed)
    arrival_time = np.sort(rng.uniform(0, 2, 40))
    trace = Trace(
        arrival_time,
        rng.integers(1, 60, 40),
        rng.integers(1, 30, 40),
        abort_time=arrival_time + rng.choice([0.01, 0.2, 1.0, NEVER], 40),
    )
    config = EngineConfig(
        max_num_seqs=4, max_num_batched_tokens=64, num_gpu_blocks=12, block_size=16,
        max_model_len=128, async_scheduling=asynchronous,
    )  # fmt: skip
    rows = qs.simulate(trace, config=config).requests

    served, gone = ~np.isnan(rows.last_token_ts), ~np.isnan(rows.aborted_ts)
    assert (served != gone).all()
    assert (rows.last_token_ts[served] < trace.abort_time[served]).all()

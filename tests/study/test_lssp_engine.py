"""LSSP's slot engine, by hand and against plain Python; test_lssp.py has the published numbers."""

import lssp_twin
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queuesmith.errors import ConfigError
from queuesmith.study.lssp_engine import SlotRequests, simulate_slots
from queuesmith.study.lssp_panel import NAMES


def requests_of(*rows):
    """Make requests of (arrival, prompt, output, predicted, deadline)."""
    columns = list(zip(*rows, strict=True))
    return SlotRequests(
        np.array(columns[0], float),
        *(np.array(column, np.int64) for column in columns[1:4]),
        np.array(columns[4], float),
    )


def same(policy, requests, **limits):
    """Compare with the twin and return the result."""
    result = simulate_slots(
        policy,
        requests,
        max_num_seqs=limits.get("max_seqs", 64),
        max_kv_tokens=limits.get("max_kv", 131_072),
        drain_steps=limits.get("drain", 50_000),
    )
    twin, num_steps, end_time = lssp_twin.simulate(policy, requests, **limits)
    for name, ours in (
        ("admitted", "admitted_ts"),
        ("first", "first_token_ts"),
        ("last", "last_token_ts"),
        ("preemptions", "num_preemptions"),
        ("produced", "num_output_tokens"),
    ):
        expected = np.array([getattr(one, name) for one in twin], float)
        np.testing.assert_array_equal(result.rows[ours], expected, err_msg=f"{policy}: {name}")
    assert (result.num_steps, result.end_time) == (num_steps, end_time)
    return result


# Short lengths and small numbers, so that ties, full seats and full memory are common.
@st.composite
def traffic(draw):
    num_requests = draw(st.integers(1, 40))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    pace = draw(st.sampled_from([0.0, 0.0002, 0.001, 0.004, 0.3]))
    arrival = np.cumsum(np.round(rng.exponential(pace, num_requests), 4)) if pace else None
    prompt = rng.choice(
        draw(st.sampled_from([[1, 16, 40], [30, 300, 700], [500, 2560]])), num_requests
    )
    output = rng.integers(1, draw(st.sampled_from([2, 8, 40])) + 1, num_requests)
    predicted = np.maximum(1, output + rng.integers(-2, 300, num_requests))
    slack = rng.choice(draw(st.sampled_from([[0.01, 0.05], [0.2, 0.6, 5.0]])), num_requests)
    arrival = np.zeros(num_requests) if arrival is None else arrival - arrival[0]
    return SlotRequests(arrival, prompt, output, predicted, arrival + slack)


@pytest.mark.parametrize("policy", NAMES)
@settings(max_examples=40)
@given(
    requests=traffic(),
    max_seqs=st.sampled_from([1, 3, 8, 64]),
    max_kv=st.sampled_from([800, 1_600, 4_096, 20_000]),
)
def test_every_policy_decides_as_its_twin_in_plain_python(policy, requests, max_seqs, max_kv):
    # What can never be admitted must not cost the twin 50,000 steps.
    same(policy, requests, max_seqs=max_seqs, max_kv=max_kv, drain=300)


def test_a_token_comes_at_the_end_of_the_step_of_admission_and_one_each_step_after():
    result = simulate_slots("fifo", requests_of((0.0, 900, 5, 5, 9.0), (0.0005, 7, 1, 1, 9.0)))

    # The second arrives within the first step and meets the second one, at 1 ms.
    assert result.rows.admitted_ts.tolist() == [0.0, 0.001]
    assert result.rows.first_token_ts.tolist() == [0.001, 0.002]
    assert result.rows.last_token_ts.tolist() == [0.005, 0.002]
    assert (result.num_steps, result.end_time) == (5, 0.004)


def test_an_idle_engine_skips_to_the_step_before_the_next_arrival():
    result = simulate_slots("fifo", requests_of((0.0, 1, 1, 1, 9.0), (100.0, 1, 1, 1, 109.0)))

    assert result.rows.admitted_ts.tolist() == [0.0, 100.0]
    assert result.num_steps <= 4


def test_64_seats_and_what_does_not_fit_is_skipped():
    small = [(0.0, 1, 3, 3, 9.0)] * 62
    result = simulate_slots(
        "fifo", requests_of((0.0, 131_000, 3, 3, 9.0), (0.0, 100, 1, 1, 9.0), *small)
    )

    # 72 tokens are left: the second waits, those behind it do not.
    assert result.rows.admitted_ts.tolist() == [0.0, 0.003] + [0.0] * 62
    result = simulate_slots("fifo", requests_of(*[(0.0, 10, 3, 3, 9.0)] * 66))
    assert result.rows.admitted_ts.tolist() == [0.0] * 64 + [0.003] * 2


def test_memory_grows_with_the_answer_and_is_never_taken_away():
    # The first grows from 100 to 150 tokens; 131,072 - 150 would fit at its start only.
    first = (0.0, 100, 50, 50, 9.0)
    result = simulate_slots("fifo", requests_of(first, (0.01, 131_072 - 105, 1, 1, 9.0)))
    assert result.rows.admitted_ts[1] == 0.05

    result = simulate_slots("fifo", requests_of(first, (0.01, 131_072 - 110, 90, 90, 9.0)))
    assert result.rows.admitted_ts[1] == 0.01
    assert result.finished.all()


def test_a_run_is_cut_off_50000_steps_after_the_last_arrival():
    result = simulate_slots(
        "fifo", requests_of((0.0, 131_073, 1, 1, 9.0), (0.5, 10, 60_000, 1, 9.0))
    )

    # One could never start, one was still at it.
    assert result.finished.tolist() == [False, False]
    assert np.isnan(result.rows.admitted_ts).tolist() == [True, False]
    assert result.rows.num_output_tokens.tolist() == [0, 50_000]
    assert result.end_time == pytest.approx(50.499)


def test_what_is_preempted_loses_its_progress_and_goes_to_the_front():
    # 4 blocks; each holds prompt + first token in one block and needs a second one after 15 more.
    requests = requests_of(*[(0.0, 16, 40, 40, 9.0)] * 3, (0.001, 5, 3, 3, 9.0))
    result = same("vllm_faithful", requests, max_kv=6 * 16)

    assert result.rows.num_preemptions.sum() > 0
    assert result.finished.all()
    first = result.rows.first_token_ts - result.rows.admitted_ts
    np.testing.assert_allclose(first, 0.001)


def test_a_policy_that_is_not_in_the_panel_is_refused():
    with pytest.raises(ConfigError, match="Did you mean 'fifo'"):
        simulate_slots("fifi", requests_of((0.0, 1, 1, 1, 1.0)))

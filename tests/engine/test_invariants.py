"""What is true of every run, whatever the policy, the traffic and the settings."""

import math

import numpy as np
import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from queuesmith.config import EngineConfig
from queuesmith.engine import prepare, simulate_workload
from queuesmith.engine.compile import compile_policy
from queuesmith.engine.presets.step_time import StepTime
from queuesmith.policies import get_policy, policy_names
from queuesmith.traces.trace import Trace

STEP_TIME = StepTime(a=0.01, b1=1e-4, b2=3e-4, t0=16, c=2e-4, d=1e-6, e=1e-7, f=5e-3)
BLIND = [name for name in policy_names() if not get_policy(name).oracle]
#: Policies that leave nobody aside and nobody out, so that only seats, tokens and blocks can.
PLAIN = [
    name
    for name in policy_names()
    if not (get_policy(name).admit or get_policy(name).hold or get_policy(name).preemptive)
]


@st.composite
def traces(draw):
    num_requests = draw(st.integers(1, 30))
    gaps = st.sampled_from([0.0, 0.01, 0.02, 0.1, 0.5])

    def column(elements):
        return draw(st.lists(elements, min_size=num_requests, max_size=num_requests))

    return Trace(
        np.cumsum(column(gaps)) - draw(st.sampled_from([0.0, 3.0])),
        prompt_len=column(st.integers(1, 60)),
        output_len=column(st.integers(1, 20)),
        client=column(st.integers(0, 3)),
        priority=column(st.integers(0, 2)),
        deadline=column(st.sampled_from([0.2, 1.0, np.inf])),
    )


@st.composite
def configs(draw):
    """Everything fits alone (60 + 20 tokens), and seldom all together."""
    block_size = draw(st.sampled_from([1, 4, 16]))
    chunked = draw(st.booleans())
    return EngineConfig(
        max_num_seqs=draw(st.integers(1, 10)),
        max_num_batched_tokens=draw(st.sampled_from([10, 24, 96])) if chunked else 96,
        num_gpu_blocks=draw(st.integers(96, 300)) // block_size + 2,
        block_size=block_size,
        max_model_len=96,
        enable_chunked_prefill=chunked,
        long_prefill_token_threshold=draw(st.sampled_from([0, 0, 7])),
        watermark=draw(st.sampled_from([0.0, 0.1])),
        scheduling_policy=draw(st.sampled_from(["fcfs", "priority"])),
    )


def run(trace, policy, config, *, output_length="exact", **options):
    """Simulate; a bundle's own settings are left out, since they would not fit these lengths."""
    known = np.full(len(trace), np.nan) if output_length == "none" else trace.output_len * 1.0
    workload = prepare(trace, config, known)
    return simulate_workload(workload, compile_policy(policy), config, STEP_TIME, **options)


class Ledger:
    """Who holds which tokens, kept from the record of a run and nothing else."""

    def __init__(self, result, config):
        self.result, self.config = result, config
        self.computed = np.zeros(len(result.requests), int)
        self.produced = np.zeros(len(result.requests), int)
        self.preemptions = np.zeros(len(result.requests), int)
        self.first_token_ts = np.full(len(result.requests), np.nan)
        self.last_token_ts = np.full(len(result.requests), np.nan)
        self.is_running = np.zeros(len(result.requests), bool)

    @property
    def blocks(self):
        return -(-self.computed // self.config.block_size) * self.is_running

    def enter(self, step):
        for row in step.preempted:
            assert self.is_running[row]
            self.preemptions[row] += 1
            self.computed[row] = 0
            self.is_running[row] = False
        for row, tokens in step.tokens.items():
            assert tokens > 0
            self.is_running[row] = True
            self.computed[row] += tokens

    def leave(self, step, end):
        """Hand out the tokens of a step; return the rows that finished in it."""
        finished = []
        for row in step.tokens:
            total = self.result.requests.prompt_len[row] + self.produced[row]
            assert self.computed[row] <= total
            if self.computed[row] == total:
                if self.produced[row] == 0:
                    self.first_token_ts[row] = end
                self.produced[row] += 1
                if self.produced[row] == self.result.requests.output_len[row]:
                    finished.append(row)
                    self.last_token_ts[row] = end
                    self.is_running[row] = False
        return finished


def check_step(ledger, step, row_of_step, config, arrived, finished, *, plain):
    """Check one step of a record; the ledger stands where its tokens are scheduled."""
    num_tokens = sum(step.tokens.values())
    num_running = int(ledger.is_running.sum())
    # 4. Budget and seats.
    assert num_tokens <= config.token_budget
    assert num_running <= config.seats
    assert row_of_step["num_prefill_tokens"] + row_of_step["num_decodes"] == num_tokens
    # 3. Blocks in use and blocks free are all there are.
    assert ledger.blocks.sum() + step.free == config.num_gpu_blocks - 1
    # 6. Whoever is passed over lacks a seat, tokens or blocks.
    waiting = np.flatnonzero(arrived & ~finished & ~ledger.is_running)
    if plain and not step.preempted and len(waiting):
        assert step.tokens
        budget = config.token_budget - num_tokens
        if budget > 0 and num_running < config.seats:
            missing = ledger.result.requests.prompt_len[waiting] + ledger.produced[waiting]
            needed = -(-missing // config.block_size) + config.watermark_blocks
            too_long = not config.enable_chunked_prefill and missing.max() > budget
            assert needed.max() > step.free or too_long


@settings(max_examples=160, deadline=None)
@given(trace=traces(), config=configs(), name=st.sampled_from(policy_names()))
def test_the_record_of_a_run_adds_up(trace, config, name, steps_of):
    policy = get_policy(name)
    result = run(trace, policy, config, record=True)
    requests = result.requests
    ledger = Ledger(result, config)
    finished = np.zeros(len(requests), bool)
    now = -math.inf

    for step, row in zip(steps_of(result), result.recording.steps, strict=True):
        assert step.start >= now
        assert row["duration"] > 0
        now = step.start + row["duration"]
        arrived = requests.arrival_time <= step.start
        assert arrived[list(step.tokens)].all()
        assert not finished[list(step.tokens)].any()
        ledger.enter(step)
        check_step(ledger, step, row, config, arrived, finished, plain=name in PLAIN)
        finished[ledger.leave(step, now)] = True

    event(f"preemptions: {min(result.num_preemptions, 3)}")
    # 1 and 5. Everybody finished, with all output, whatever was preempted.
    assert finished.all()
    assert (requests.num_output_tokens == requests.output_len).all()
    assert (requests.num_preemptions == ledger.preemptions).all()
    assert result.num_computed_tokens == (
        (requests.prompt_len + requests.output_len - 1).sum() + result.num_recomputed_tokens
    )
    # 2. Instants in their order, and those of the record.
    assert (requests.arrival_time <= requests.scheduled_ts).all()
    assert (requests.scheduled_ts < requests.first_token_ts).all()
    assert (requests.first_token_ts <= requests.last_token_ts).all()
    np.testing.assert_allclose(requests.first_token_ts, ledger.first_token_ts, rtol=0, atol=1e-9)
    np.testing.assert_allclose(requests.last_token_ts, ledger.last_token_ts, rtol=0, atol=1e-9)
    assert result.end_time == requests.last_token_ts.max()
    assert result.itl_counts.sum() == (requests.output_len - 1).sum()


@settings(max_examples=120, deadline=None)
@given(
    trace=traces(),
    config=configs(),
    name=st.sampled_from(policy_names()),
    horizon=st.floats(-3.0, 3.0),
)
def test_at_a_horizon_every_request_is_finished_running_or_waiting(trace, config, name, horizon):
    result = run(trace, get_policy(name), config, horizon=horizon)
    requests = result.requests
    is_finished = ~np.isnan(requests.last_token_ts)
    is_started = ~np.isnan(requests.scheduled_ts)

    assert (is_finished == (requests.num_output_tokens == requests.output_len)).all()
    assert (np.isnan(requests.first_token_ts) == (requests.num_output_tokens == 0)).all()
    assert (is_started | (requests.num_output_tokens == 0)).all()
    assert (requests.scheduled_ts[is_started] < horizon).all()
    assert is_started.any() == (horizon > trace.arrival_time[0])
    event(f"finished: {is_finished.all()}")


@settings(max_examples=60, deadline=None)
@given(trace=traces(), config=configs(), name=st.sampled_from(policy_names()))
def test_two_runs_give_the_same_bytes(trace, config, name):
    first, second = (run(trace, get_policy(name), config, record=True) for _ in range(2))

    assert first.requests.tobytes() == second.requests.tobytes()
    assert first.recording.steps.tobytes() == second.recording.steps.tobytes()
    assert first.recording.tokens.tobytes() == second.recording.tokens.tobytes()
    assert first.itl_counts.tobytes() == second.itl_counts.tobytes()


@settings(max_examples=160, deadline=None)
@given(
    trace=traces(),
    config=configs(),
    name=st.sampled_from(BLIND),
    horizon=st.floats(0.05, 1.5),
    seed=st.integers(0, 99),
    record=st.booleans(),
)
def test_output_that_is_not_yet_produced_decides_nothing(
    trace, config, name, horizon, seed, record
):
    policy = get_policy(name)
    horizon += trace.arrival_time[0]
    before = run(trace, policy, config, output_length="none", horizon=horizon, record=record)
    is_open = np.isnan(before.requests.last_token_ts)
    assume(is_open.any())
    produced = before.requests.num_output_tokens
    other = produced + np.random.default_rng(seed).integers(1, np.maximum(21 - produced, 2))
    changed = Trace(
        trace.arrival_time,
        trace.prompt_len,
        np.where(is_open, other, trace.output_len),
        client=trace.client,
        priority=trace.priority,
        deadline=trace.deadline,
    )
    assume((changed.output_len != trace.output_len).any())

    after = run(changed, policy, config, output_length="none", horizon=horizon, record=record)

    for column in before.requests.dtype.names:
        if column != "output_len":
            np.testing.assert_array_equal(after.requests[column], before.requests[column])
    assert after.num_steps == before.num_steps
    assert after.end_time == before.end_time
    if record:
        assert after.recording.steps.tobytes() == before.recording.steps.tobytes()
        assert after.recording.tokens.tobytes() == before.recording.tokens.tobytes()


@pytest.mark.parametrize("name", policy_names())
def test_jumping_over_decodes_changes_nothing_on_a_realistic_window(name):
    rng = np.random.default_rng(1)
    num_requests = 250
    trace = Trace(
        np.cumsum(rng.exponential(0.25, num_requests)),
        np.clip(rng.lognormal(6, 1, num_requests), 1, 3000).astype(int),
        np.clip(rng.lognormal(4.5, 1, num_requests), 1, 900).astype(int),
        client=rng.integers(0, 9, num_requests),
        priority=rng.integers(0, 3, num_requests),
        deadline=np.cumsum(np.full(num_requests, 0.25)) + 20.0,
    )
    config = EngineConfig(
        max_num_seqs=48, max_num_batched_tokens=4096, max_model_len=4096, num_gpu_blocks=1400
    )
    policy = get_policy(name)

    jumped = run(trace, policy, config)
    stepped = run(trace, policy, config, jump=False)

    assert jumped.requests.tobytes() == stepped.requests.tobytes()
    assert jumped.itl_counts.tobytes() == stepped.itl_counts.tobytes()
    for total in ("num_steps", "num_computed_tokens", "num_recomputed_tokens", "end_time"):
        assert getattr(jumped, total) == getattr(stepped, total)
    assert stepped.num_jumps == 0
    assert (jumped.num_jumps > 0) == (policy.hold is None)
    assert jumped.num_preemptions > 0

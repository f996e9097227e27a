"""The engine reduced to one server obeys the theory of queues.

With one seat and one-token answers a request is served in one step, whose length is linear in the
prompt: the engine is a single-server queue. With many-token answers and steps of one second it
serves one unit of work a step and takes it up again after a preemption without loss, because the
tokens of a displaced request are computed again in the step that gives it its next one.
"""

import heapq
import math

import numpy as np
import pytest
from scipy import stats

from queuesmith.config import EngineConfig
from queuesmith.engine import simulate
from queuesmith.engine.presets.step_time import StepTime
from queuesmith.traces.trace import Trace

ONE_SEAT = EngineConfig(
    max_num_seqs=1, max_num_batched_tokens=4096, num_gpu_blocks=1000, max_model_len=8192
)
LINEAR = StepTime(a=0.5, b1=0.01, t0=1e6)  # a prompt of p tokens is served in 0.5 + 0.01 p seconds
ONE_SECOND = StepTime(a=1.0)

#: Chance that a right engine would fail one of the interval tests if seeds were not fixed.
ALPHA = 1e-5
NUM_RUNS = 30

BY_PREDICTION = """
def waiting_key(request, engine):
    return request.predicted_output_tokens
"""
BY_WORK_LEFT = """
PREEMPTIVE = True


def waiting_key(request, engine):
    return request.predicted_output_tokens - request.num_output_tokens
"""


def draw_trace(rng, prompts, probabilities, rho, num_requests=10_000, priority=False):
    """Poisson arrivals at load `rho` on the single server."""
    prompt_len = rng.choice(prompts, num_requests, p=probabilities)
    mean_service = np.dot(LINEAR.a + LINEAR.b1 * np.array(prompts), probabilities)
    arrivals = np.cumsum(rng.exponential(mean_service / rho, num_requests))
    order = {value: place for place, value in enumerate(sorted(prompts, reverse=True))}
    priorities = [order[value] for value in prompt_len] if priority else None
    return Trace(arrivals, prompt_len, np.ones(num_requests, int), priority=priorities)


def serve(trace, policy):
    return simulate(trace, policy, config=ONE_SEAT, step_time=LINEAR).requests


def waits(requests):
    return requests.scheduled_ts - requests.arrival_time


def interval(samples):
    """Confidence interval of the mean of independent samples, at level 1 - ALPHA."""
    half = stats.t.ppf(1 - ALPHA / 2, len(samples) - 1) * stats.sem(samples)
    return np.mean(samples) - half, np.mean(samples) + half


def assert_mean_is(expected, samples):
    low, high = interval(samples)
    assert low <= expected <= high
    assert high - low < 0.4 * expected  # or the interval would prove nothing


def pollaczek_khinchine(prompts, probabilities, rho):
    """Mean wait of M/G/1 under any order that does not look at service times."""
    service = LINEAR.a + LINEAR.b1 * np.array(prompts)
    mean, second_moment = np.dot(service, probabilities), np.dot(service**2, probabilities)
    return (rho / mean) * second_moment / (2 * (1 - rho))


SERVICES = {
    "deterministic": ([50], [1.0]),
    "two sizes": ([10, 450], [0.9, 0.1]),
    "spread": ([1, 50, 150, 1000], [0.25, 0.5, 0.2, 0.05]),
}


@pytest.mark.parametrize("rho", [0.3, 0.7])
@pytest.mark.parametrize("service", SERVICES)
def test_mean_wait_is_that_of_pollaczek_and_khinchine(service, rho):
    samples = []
    for seed in range(NUM_RUNS):
        trace = draw_trace(np.random.default_rng(seed), *SERVICES[service], rho)
        samples.append(waits(serve(trace, "fcfs"))[1000:].mean())

    assert_mean_is(pollaczek_khinchine(*SERVICES[service], rho), samples)


def test_an_order_blind_to_length_does_not_change_the_mean_wait():
    samples = []
    for seed in range(NUM_RUNS):
        trace = draw_trace(np.random.default_rng(seed), *SERVICES["two sizes"], 0.7)
        samples.append(waits(serve(trace, "lcfs"))[1000:].mean())

    assert_mean_is(pollaczek_khinchine(*SERVICES["two sizes"], 0.7), samples)


@pytest.mark.parametrize(
    ("policy", "order"), [("sjf", [0, 1, 2, 3]), ("ljf", [3, 2, 1, 0]), ("priority", [3, 2, 1, 0])]
)
def test_mean_wait_of_each_class_is_that_of_cobham(policy, order):
    """Without preemption, class k waits W0 / ((1 - rho_1..k-1) (1 - rho_1..k))."""
    rho = 0.7
    prompts, probabilities = SERVICES["spread"]
    service = LINEAR.a + LINEAR.b1 * np.array(prompts)
    rate = rho / np.dot(service, probabilities)
    residual = rate * np.dot(service**2, probabilities) / 2
    samples = {place: [] for place in order}
    for seed in range(NUM_RUNS):
        trace = draw_trace(np.random.default_rng(seed), prompts, probabilities, rho, priority=True)
        requests = serve(trace, policy)[1000:]
        for place in order:
            samples[place].append(waits(requests)[requests.prompt_len == prompts[place]].mean())

    before = 0.0
    for place in order:
        up_to = before + rate * probabilities[place] * service[place]
        assert_mean_is(residual / ((1 - before) * (1 - up_to)), samples[place])
        before = up_to


def test_every_wait_follows_from_the_one_before():
    """Lindley's recursion, request by request: no interval needed."""
    trace = draw_trace(np.random.default_rng(7), *SERVICES["spread"], 0.9, num_requests=2000)
    service = LINEAR.a + LINEAR.b1 * trace.prompt_len
    gaps = np.diff(trace.arrival_time)
    expected = [0.0]
    for served, gap in zip(service, gaps, strict=False):
        expected.append(max(0.0, expected[-1] + served - gap))

    np.testing.assert_allclose(waits(serve(trace, "fcfs")), expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize("policy", ["sjf", "ljf", "lcfs", "random", "hrrn", "aged_sjf", "mlfq"])
def test_work_in_the_queue_is_conserved(policy):
    """Kleinrock: no order that keeps the server busy changes the sum of service x wait."""
    trace = draw_trace(np.random.default_rng(3), *SERVICES["spread"], 0.9, num_requests=3000)
    service = LINEAR.a + LINEAR.b1 * trace.prompt_len
    first_come, other = waits(serve(trace, "fcfs")), waits(serve(trace, policy))

    assert np.dot(service, other) == pytest.approx(np.dot(service, first_come), rel=1e-9)
    assert not np.allclose(first_come, other)


# One unit of work a second


def whole_second_trace(seed, num_requests=300):
    """Arrivals on whole seconds, so that nobody arrives during a step; load about 0.9."""
    rng = np.random.default_rng(seed)
    output_len = np.minimum(rng.geometric(0.15, num_requests), 60)
    arrivals = np.cumsum(rng.geometric(0.9 / output_len.mean(), num_requests)).astype(float)
    return Trace(arrivals, np.ones(num_requests, int), output_len)


def mean_response(trace, policy):
    result = simulate(trace, policy, config=ONE_SEAT, step_time=ONE_SECOND, output_length="exact")
    return float(np.mean(result.requests.last_token_ts - result.requests.arrival_time))


def shortest_remaining_first(trace):
    """Mean response of SRPT in discrete time, told apart from any engine."""
    finished, queue, now, row = [], [], 0, 0
    while len(finished) < len(trace):
        if not queue:
            now = max(now, int(trace.arrival_time[row]))
        while row < len(trace) and trace.arrival_time[row] <= now:
            heapq.heappush(queue, (int(trace.output_len[row]), row))
            row += 1
        left, served = heapq.heappop(queue)
        now += 1
        if left > 1:
            heapq.heappush(queue, (left - 1, served))
        else:
            finished.append(now - trace.arrival_time[served])
    return float(np.mean(finished))


@pytest.mark.parametrize("seed", range(5))
def test_knowing_more_and_displacing_never_hurts_the_mean(seed, policy_from):
    """FCFS >= shortest first >= shortest remaining first, which is the least there is."""
    trace = whole_second_trace(seed)
    remaining = mean_response(trace, policy_from(BY_WORK_LEFT))
    shortest = mean_response(trace, policy_from(BY_PREDICTION))
    first_come = mean_response(trace, "fcfs")

    assert remaining < shortest < first_come
    assert remaining == pytest.approx(shortest_remaining_first(trace), rel=1e-12)
    for policy in ("las", "srpt", "srpt_oracle", "lcfs", "random", "mlfq"):
        assert remaining <= mean_response(trace, policy) * (1 + 1e-12)


@pytest.mark.parametrize("policy", ["fcfs", "sjf", "lcfs", "hrrn"])
def test_littles_law_holds_for_waiting_and_for_running(policy):
    """Seconds that steps saw requests add up to the seconds that requests spent."""
    rng = np.random.default_rng(11)
    num_requests = 400
    trace = Trace(
        np.cumsum(rng.integers(0, 3, num_requests)).astype(float),
        rng.integers(1, 30, num_requests),
        rng.integers(1, 20, num_requests),
    )
    config = EngineConfig(max_num_seqs=8, max_num_batched_tokens=4096, num_gpu_blocks=1000)
    result = simulate(trace, policy, config=config, step_time=ONE_SECOND, record=True)
    steps, requests = result.recording.steps, result.requests

    # Nobody arrives during a step, so queues are what they were at its start, less who entered.
    num_running = np.diff(steps["end_entry"], prepend=0)
    num_admitted = num_running - steps["num_running"]
    waiting = np.dot(steps["num_waiting"] - num_admitted, steps["duration"])
    running = np.dot(num_running, steps["duration"])
    assert result.num_preemptions == 0
    assert waiting == pytest.approx(waits(requests).sum())
    assert running == pytest.approx((requests.last_token_ts - requests.scheduled_ts).sum())
    assert waiting > running > 0


@pytest.mark.parametrize("policy", ["fcfs", "sjf", "srpt", "las", "hrrn", "weighted_fair", "edf"])
@pytest.mark.parametrize("factor", [0.25, 8.0])
def test_a_clock_that_runs_slower_changes_nothing_but_the_times(policy, factor):
    """Multiplying all times by a power of two multiplies all results by it, to the bit."""
    rng = np.random.default_rng(5)
    num_requests = 500
    arrivals = np.cumsum(rng.exponential(0.05, num_requests))
    columns = {
        "prompt_len": rng.integers(1, 400, num_requests),
        "output_len": rng.integers(1, 100, num_requests),
        "client": rng.integers(0, 5, num_requests),
    }
    seconds = {"a": 0.01, "b1": 1e-4, "b2": 2e-4, "c": 3e-5, "d": 1e-8, "e": 1e-9, "f": 2e-3}
    config = EngineConfig(max_num_seqs=16, max_num_batched_tokens=256, num_gpu_blocks=150)

    def run(scale):
        trace = Trace(scale * arrivals, **columns, deadline=scale * (arrivals + 5.0))
        step_time = StepTime(**{name: scale * value for name, value in seconds.items()}, t0=64)
        return simulate(trace, policy, config=config, step_time=step_time)

    plain, scaled = run(1.0), run(factor)
    for name in ("scheduled_ts", "first_token_ts", "last_token_ts"):
        assert (scaled.requests[name] == factor * plain.requests[name]).all()
    assert scaled.end_time == factor * plain.end_time
    assert scaled.num_steps == plain.num_steps
    assert plain.num_preemptions > 0
    assert math.isfinite(plain.end_time)

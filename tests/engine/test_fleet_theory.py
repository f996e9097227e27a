"""Replicas that are single servers obey what is known of queues in parallel, and of closed ones.

One seat and one-token answers make each replica a single server whose service is linear in the
prompt; prompts in thousandths of a second of service make that service as good as exponential.
"""

import math

import numpy as np
import pytest
from scipy import optimize, sparse
from scipy.sparse.linalg import spsolve
from test_theory import assert_mean_is, interval

from queuesmith.config import EngineConfig
from queuesmith.engine import simulate
from queuesmith.engine.presets.step_time import StepTime
from queuesmith.traces.trace import Trace

ONE_SEAT = EngineConfig(
    max_num_seqs=1, max_num_batched_tokens=32768, num_gpu_blocks=2050, max_model_len=32768
)
LINEAR = StepTime(a=1e-9, b1=1e-3, t0=1e6)  # a prompt of p tokens is served in p ms; 1 s on average
RHO = 0.7
NUM_RUNS = 16


def draw_trace(rng, num_replicas, num_requests=12_000):
    """Poisson arrivals at load RHO of all replicas together, exponential service."""
    service = np.maximum(np.rint(1000 * rng.exponential(1.0, num_requests)), 1).astype(int)
    arrivals = np.cumsum(rng.exponential(1.0 / (RHO * num_replicas), num_requests))
    return Trace(arrivals, service, np.ones(num_requests, int))


def serve(trace, router, num_replicas, seed=0):
    return simulate(
        trace,
        config=ONE_SEAT,
        step_time=LINEAR,
        replicas=num_replicas,
        router=router,
        seed=seed,
    ).requests


def mean_waits(router, num_replicas, num_runs=NUM_RUNS, num_requests=12_000):
    samples = []
    for seed in range(num_runs):
        trace = draw_trace(np.random.default_rng(seed), num_replicas, num_requests)
        requests = serve(trace, router, num_replicas, seed)[num_requests // 6 :]
        samples.append((requests.scheduled_ts - requests.arrival_time).mean())
    return samples


def test_random_replicas_are_queues_of_their_own():
    """Each is M/M/1, which waits rho / (1 - rho)."""
    assert_mean_is(RHO / (1 - RHO), mean_waits("random", 4, num_requests=16_000))


@pytest.mark.parametrize("num_replicas", [2, 4])
def test_turns_make_arrivals_erlang(num_replicas):
    """E_N/M/1: the root sigma of A*(1 - sigma) = sigma gives the wait sigma / (1 - sigma)."""
    rate = RHO * num_replicas

    def excess(sigma):
        return (rate / (rate + 1 - sigma)) ** num_replicas - sigma

    sigma = optimize.brentq(excess, 0.0, 1.0 - 1e-6)
    assert_mean_is(sigma / (1 - sigma), mean_waits("round_robin", num_replicas))


def shortest_of_two(rate, most=60):
    """Mean wait of join-the-shortest-queue at two servers of rate 1, by its Markov chain."""
    places = np.arange(most * most).reshape(most, most)
    rows, columns, rates = [], [], []

    def move(source, target, at):
        rows.extend([target, source])
        columns.extend([source, source])
        rates.extend([at, -at])

    for one in range(most):
        for two in range(most):
            here = places[one, two]
            if one <= two and one + 1 < most:  # ties go to the first, as in the engine
                move(here, places[one + 1, two], rate)
            if two < one and two + 1 < most:
                move(here, places[one, two + 1], rate)
            if one > 0:
                move(here, places[one - 1, two], 1.0)
            if two > 0:
                move(here, places[one, two - 1], 1.0)
    balance = sparse.coo_array((rates, (rows, columns)), (most**2, most**2)).tolil()
    balance[0, :] = 1.0  # the probabilities add up to one
    right = np.zeros(most**2)
    right[0] = 1.0
    probability = spsolve(balance.tocsc(), right).reshape(most, most)
    number = np.add.outer(np.arange(most), np.arange(most))
    return (probability * number).sum() / rate - 1.0


def erlang_c_wait(servers, rate):
    """Mean wait of M/M/c, one queue for all."""
    terms = [rate**k / math.factorial(k) for k in range(servers)]
    last = rate**servers / math.factorial(servers) / (1 - rate / servers)
    return last / (sum(terms) + last) / (servers - rate)


def test_the_shortest_of_two_queues_waits_as_its_markov_chain_says():
    exact = shortest_of_two(2 * RHO)

    assert erlang_c_wait(2, 2 * RHO) < exact < RHO / (1 - RHO)
    assert_mean_is(exact, mean_waits("least_loaded", 2))


def test_two_choices_of_two_replicas_are_the_shortest_queue():
    trace = draw_trace(np.random.default_rng(5), 2, 2_000)
    two, shortest = (serve(trace, router, 2) for router in ("power_of_two", "least_loaded"))

    assert two.tobytes() == shortest.tobytes()


def test_two_choices_of_many_replicas_wait_as_mitzenmacher_says():
    """In the limit a share rho ** (2**k - 1) of servers has k requests or more."""
    limit = sum(RHO ** (2**k - 1) for k in range(1, 20)) / RHO - 1.0
    samples = mean_waits("power_of_two", 50, num_requests=8_000)
    low, high = interval(samples)

    # Of 50 servers the mean is a little above that of infinitely many.
    assert low <= limit * 1.05
    assert high >= limit
    assert high - low < 0.2 * limit
    # One choice would wait more than three times as long.
    assert high < RHO / (1 - RHO) / 3


def test_knowing_more_of_the_replicas_waits_less():
    waits = {
        router: np.mean(mean_waits(router, 4, num_runs=4))
        for router in ("random", "round_robin", "power_of_two", "least_loaded")
    }

    assert list(waits) == sorted(waits, key=waits.get, reverse=True)
    assert waits["least_loaded"] > erlang_c_wait(4, 4 * RHO)


# Users who think, ask, and read the answer


def users_trace(rng, num_users, num_turns, think=4.0):
    """Users with exponential think times and services; rows by turn, as nominal times demand."""
    first = np.sort(rng.exponential(think, num_users))
    size = num_users * num_turns
    arrivals = np.concatenate([first, np.full(size - num_users, first[-1])])
    service = np.maximum(np.rint(1000 * rng.exponential(1.0, size)), 1).astype(int)
    return Trace(
        arrivals,
        service,
        np.ones(size, int),
        session=np.tile(np.arange(num_users), num_turns),
        think_time=rng.exponential(think, size),
    )


def response_times(trace):
    requests = simulate(trace, config=ONE_SEAT, step_time=LINEAR).requests
    return requests, requests.last_token_ts - requests.arrival_time


def repairman(num_users, think):
    """Mean response time of M/M/1//N: throughput is the share of time that the server is busy."""
    weights = [
        math.factorial(num_users) / math.factorial(num_users - k) / think**k
        for k in range(num_users + 1)
    ]
    throughput = 1.0 - weights[0] / sum(weights)
    return num_users / throughput - think


@pytest.mark.parametrize("num_users", [2, 8])
def test_users_at_one_server_wait_as_machines_for_their_repairman(num_users):
    samples = []
    for seed in range(NUM_RUNS):
        trace = users_trace(np.random.default_rng(seed), num_users, 1500)
        _, response = response_times(trace)
        # Users end at different times; the last turns would meet fewer of them.
        samples.append(response[len(trace) // 10 : -len(trace) // 5].mean())

    assert_mean_is(repairman(num_users, 4.0), samples)


@pytest.mark.parametrize("replicas", [1, 3])
def test_the_response_time_law_holds_for_every_user(replicas):
    """N = X (R + Z): what a user is there for is responses and think times, and nothing else."""
    num_users, num_turns = 12, 40
    trace = users_trace(np.random.default_rng(3), num_users, num_turns)
    requests = serve(trace, "least_loaded", replicas)
    response = (requests.last_token_ts - requests.arrival_time).reshape(num_turns, num_users)
    think = trace.think_time.reshape(num_turns, num_users)[1:]
    began, ended = requests.arrival_time[:num_users], requests.last_token_ts[-num_users:]

    np.testing.assert_allclose(ended - began, response.sum(axis=0) + think.sum(axis=0), rtol=1e-12)
    assert response.min() >= 0.001 * (1 - 1e-6)

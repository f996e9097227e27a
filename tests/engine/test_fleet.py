"""Several replicas behind a router, and sessions whose turns wait for answers."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_equivalence import HOOKS, POLICIES, STEP_TIME, configs, traces

from queuesmith.config import EngineConfig
from queuesmith.engine import prepare, simulate, simulate_reference, simulate_workload
from queuesmith.engine.compile import compile_policy
from queuesmith.engine.fleet import MAX_REPLICAS, Fleet
from queuesmith.engine.presets.step_time import StepTime
from queuesmith.engine.reference.agreement import first_difference
from queuesmith.engine.reference.fleet import simulate_reference_fleet
from queuesmith.errors import ConfigError, EngineError, PolicyError, TraceError
from queuesmith.policies import get_policy
from queuesmith.routers import get_router, router_names
from queuesmith.routers.router import load_router
from queuesmith.traces.block_hashes import BlockHashes
from queuesmith.traces.trace import Trace

#: Reads every field there is, and gives some replicas no number.
READS_ALL = load_router(
    "reads_all",
    '''"""Everything at once."""
import math


def route_key(request, replica):
    load = replica.num_waiting * 3 + replica.num_running * 2 + replica.waiting_tokens * 0.125
    load += replica.kv_usage + replica.used_kv_tokens * 0.01 - replica.num_cached_tokens
    if request.session >= 0 and request.session % replica.num_replicas == replica.index:
        return load - 5.0
    if request.client % 3 == replica.index:
        return math.nan
    if replica.last_sent_ts > request.arrival_time - 0.02:
        load += 4 * replica.num_sent + request.num_prompt_tokens
    if request.deadline < request.arrival_time + 1.0 and request.priority > 0:
        load += request.max_tokens * replica.random_rank
    return load + replica.random_rank
''',
    Path("reads_all.py"),
)
ROUTERS = [*router_names(), READS_ALL]


@st.composite
def sessions(draw, trace):
    """Give a trace sessions whose turns may wait for each other."""

    def column(values):
        return draw(st.lists(values, min_size=len(trace), max_size=len(trace)))

    thinks = st.sampled_from([np.nan, 0.0, 1e-4, 0.01, 0.05, 0.3])
    return replace(
        trace, session=np.array(column(st.integers(-1, 4))), think_time=np.array(column(thinks))
    )


@st.composite
def shared_prefixes(draw, trace):
    """Give a trace prompts that begin alike."""
    numbers, offsets, hashes = {}, [0], []
    for prompt_len in trace.prompt_len:
        family = draw(st.integers(0, 2))
        own = draw(st.integers(0, 8))
        for block in range(int(prompt_len) // 4):
            name = (family, block) if block < own else (family, own, block)
            hashes.append(numbers.setdefault(name, len(numbers)))
        offsets.append(len(hashes))
    return replace(trace, block_hashes=BlockHashes(offsets, hashes, 4))


@st.composite
def cases(draw, closed):
    trace, config = draw(traces()), draw(configs())
    if closed:
        trace = draw(sessions(trace))
    if draw(st.booleans()) and config.block_size in (1, 2, 4):
        trace = draw(shared_prefixes(trace))
        config = replace(config, enable_prefix_caching=True)
    horizon = draw(st.sampled_from([np.inf, np.inf, np.inf, 0.05, 0.4]))
    noise = draw(st.integers(0, 99))
    predicted = np.random.default_rng(noise).choice([1.0, 4.0, 9.0, np.nan], len(trace))
    return trace, config, predicted, horizon


def make_workload(trace, config, predicted):
    try:
        return prepare(trace, config, predicted)
    except TraceError:
        return None


def run(workload, policy, config, fleet, horizon=np.inf, step_time=STEP_TIME, **options):
    """Simulate; None where a policy stalls the engine."""
    compiled = compile_policy(policy)
    try:
        return simulate_workload(
            workload, compiled, config, step_time, horizon=horizon, fleet=fleet, **options
        )
    except EngineError:
        assert not config.scheduler_reserve_full_isl or policy.victim_key or policy.preemptive
        return None


def assert_same_result(one, other):
    assert one.requests.tobytes() == other.requests.tobytes()
    assert (one.itl_counts == other.itl_counts).all()
    for name in ("num_steps", "num_computed_tokens", "num_recomputed_tokens", "num_cached_tokens"):
        assert getattr(one, name) == getattr(other, name)
    assert one.end_time == other.end_time


@pytest.mark.parametrize("name", POLICIES, ids=lambda name: Path(name).stem)
@settings(max_examples=8, deadline=None)
@given(case=cases(closed=False), router=st.sampled_from(ROUTERS))
def test_one_replica_is_the_engine_itself_to_the_bit(name, case, router):
    trace, config, predicted, horizon = case
    policy = get_policy(name)
    if (workload := make_workload(trace, config, predicted)) is None:
        return
    alone = run(workload, policy, config, None, horizon)
    fleet = run(workload, policy, config, Fleet(1, get_router(router)), horizon)

    assert (alone is None) == (fleet is None)
    if alone is not None:
        assert_same_result(fleet, alone)


def assert_same_as_reference(case, policy, fleet):
    """Compare where every request went, when it came, and every step of every replica."""
    trace, config, predicted, horizon = case
    if (workload := make_workload(trace, config, predicted)) is None:
        return
    result = run(workload, policy, config, fleet, horizon, record=True)
    if result is None:
        return
    jumped = run(workload, policy, config, fleet, horizon)
    assert_same_result(jumped, result)

    reference = simulate_reference_fleet(
        workload, policy, config, STEP_TIME, fleet, horizon=horizon
    )
    sent_to = [reference.replica.get(row, -1) for row in range(len(workload.trace))]
    assert result.requests.replica.tolist() == sent_to
    assert len(result.replicas) == fleet.num_replicas
    for ours, theirs in zip(result.replicas, reference.replicas, strict=True):
        assert ours.requests.row.tolist() == workload.row[theirs.rows].tolist()
        arrivals = [request.view.arrival_time for request in theirs.engine.requests]
        assert ours.requests.arrival_time == pytest.approx(arrivals, abs=1e-9)
        assert first_difference(ours, theirs.engine) == ""


@pytest.mark.parametrize("router", ROUTERS, ids=str)
@settings(max_examples=20, deadline=None)
@given(
    case=cases(closed=False),
    name=st.sampled_from(["fcfs", "sjf", "srpt", "las", "weighted_fair", HOOKS / "all_hooks.py"]),
    num_replicas=st.integers(2, 4),
    seed=st.integers(0, 3),
)
def test_kernel_and_reference_agree_on_several_replicas(router, case, name, num_replicas, seed):
    fleet = Fleet(num_replicas, get_router(router), seed)

    assert_same_as_reference(case, get_policy(name), fleet)


@pytest.mark.parametrize("router", ROUTERS, ids=str)
@settings(max_examples=20, deadline=None)
@given(
    case=cases(closed=True),
    name=st.sampled_from(["fcfs", "sjf", "srpt", "las", "weighted_fair", HOOKS / "all_hooks.py"]),
    num_replicas=st.integers(1, 4),
)
def test_kernel_and_reference_agree_on_turns_that_wait(router, case, name, num_replicas):
    assert_same_as_reference(case, get_policy(name), Fleet(num_replicas, get_router(router)))


# By hand: one seat, one-token answers, steps of one second

ONE_SEAT = EngineConfig(
    max_num_seqs=1, max_num_batched_tokens=64, num_gpu_blocks=100, max_model_len=64
)
ONE_SECOND = StepTime(a=1.0)


def serve(trace, router="round_robin", replicas=2, **options):
    return simulate(
        trace, config=ONE_SEAT, step_time=ONE_SECOND, replicas=replicas, router=router, **options
    ).requests


def ones(arrivals, **columns):
    count = len(arrivals)
    return Trace(arrivals, np.ones(count, int), np.ones(count, int), **columns)


def test_requests_take_turns_whatever_the_load():
    assert serve(ones([0.0] * 7), replicas=3).replica.tolist() == [0, 1, 2, 0, 1, 2, 0]


def test_the_replica_with_fewest_requests_is_chosen_and_ties_go_to_the_lowest():
    # The first replica is done at 1 s, and has been seen to be so by the request of that instant.
    requests = serve(ones([0.0, 0.5, 0.75, 1.0, 1.25]), "least_loaded")

    assert requests.replica.tolist() == [0, 1, 0, 0, 1]
    assert requests.last_token_ts.tolist() == [1.0, 1.5, 2.0, 3.0, 2.5]


def test_a_router_does_not_see_the_end_of_a_step_before_it_comes():
    assert serve(ones([0.0, 0.999]), "least_loaded").replica.tolist() == [0, 1]
    assert serve(ones([0.0, 1.0]), "least_loaded").replica.tolist() == [0, 0]


def test_what_was_sent_while_a_step_is_computed_counts_at_once():
    requests = serve(ones([0.0, 0.125, 0.25, 0.375, 0.5]), "least_loaded")

    assert requests.replica.tolist() == [0, 1, 0, 1, 0]


def test_a_random_router_draws_the_same_for_every_policy_and_another_for_every_seed():
    trace = ones(np.arange(200.0))

    one, again, other = (
        serve(trace, "random", policy=policy, seed=seed).replica
        for policy, seed in (("fcfs", 1), ("lcfs", 1), ("fcfs", 2))
    )
    assert (one == again).all()
    assert (one != other).any()
    assert 60 < one.sum() < 140


def test_a_prefix_is_sent_to_where_it_is_cached():
    hashes = BlockHashes([0, 2, 4, 6, 8], [1, 2, 11, 12, 11, 12, 1, 2], 4)
    trace = Trace([0.0, 0.5, 9.0, 19.0], [9] * 4, [1] * 4, block_hashes=hashes)
    config = replace(ONE_SEAT, block_size=4, enable_prefix_caching=True)
    result = simulate(
        trace, config=config, step_time=ONE_SECOND, replicas=2, router="prefix_affinity"
    )

    assert result.requests.replica.tolist() == [0, 1, 1, 0]
    assert result.num_cached_tokens == 16


def test_a_turn_arrives_a_think_time_after_the_answer_before():
    session = {"session": [7, 7, -1], "think_time": [5.0, 2.5, 1.0]}
    requests = serve(ones([0.0, 0.0, 0.25], **session), replicas=1)

    # The first turn thinks of nothing, and who is in no session waits for nobody.
    assert requests.arrival_time.tolist() == [0.0, 3.5, 0.25]
    assert requests.last_token_ts.tolist() == [1.0, 4.5, 2.0]


def test_a_turn_without_a_think_time_waits_for_nobody():
    requests = serve(ones([0.0, 0.25], session=[7, 7], think_time=[np.nan] * 2), replicas=1)

    assert requests.arrival_time.tolist() == [0.0, 0.25]


def test_whoever_gives_up_asks_again_after_that():
    trace = ones(
        [0.0, 0.25, 0.25], session=[1, 2, 2], think_time=[np.nan, np.nan, 1.5],
        abort_time=[np.inf, 0.5, np.inf], deadline=[9.0, 9.0, 2.25],
    )  # fmt: skip
    requests = serve(trace, replicas=1)

    assert requests.aborted_ts[1] == 0.5
    assert requests.arrival_time[2] == 2.0
    assert requests.deadline[2] == 4.0  # two seconds after the arrival, as in the trace


def test_a_router_is_told_when_a_turn_has_come_and_how_long_it_has_from_then():
    text = (
        "def route_key(request, replica):\n"
        "    return abs(request.deadline - request.arrival_time - replica.index)\n"
    )
    trace = ones([0.0, 0.0], session=[1, 1], think_time=[np.nan, 3.0], deadline=[0.0, 2.0])
    requests = serve(trace, load_router("by_slack", text, Path("by_slack.py")), replicas=3)

    assert requests.arrival_time.tolist() == [0.0, 4.0]
    assert requests.replica.tolist() == [0, 2]


def test_a_turn_that_would_come_after_the_horizon_never_comes():
    trace = ones([0.0, 0.0], session=[1, 1], think_time=[np.nan, 3.0])
    requests = serve(trace, replicas=1, horizon=3.5)

    assert requests.replica.tolist() == [0, -1]
    assert np.isnan(requests.arrival_time[1])
    assert np.isnan(requests.last_token_ts[1])


def test_a_turn_whose_predecessor_cannot_run_arrives_as_the_trace_says():
    trace = Trace(
        [0.0, 4.0], [500, 1], [1, 1], session=[1, 1], think_time=[np.nan, 3.0]
    )  # the first exceeds the context window
    requests = serve(trace, replicas=1)

    assert requests.row.tolist() == [1]
    assert requests.arrival_time.tolist() == [4.0]


# Mistakes


@pytest.mark.parametrize("replicas", [0, -1, MAX_REPLICAS + 1])
def test_an_impossible_number_of_replicas_is_refused(replicas):
    with pytest.raises(ConfigError, match=f"replicas must be between 1 and 1,000, got {replicas}"):
        serve(ones([0.0]), replicas=replicas)


def test_a_router_that_fails_is_named_with_its_line():
    text = "def route_key(request, replica):\n    return 1 / replica.num_sent\n"
    router = load_router("mine", text, Path("mine.py"))

    with pytest.raises(PolicyError, match=r"router 'mine' failed in route_key, line 2 .*division"):
        serve(ones([0.0]), router)


def test_a_policy_that_fails_in_one_replica_is_named_with_its_line(policy_from):
    policy = policy_from("def waiting_key(request, engine):\n    return 1 / engine.num_running\n")

    with pytest.raises(
        PolicyError, match=r"'written' failed in waiting_key, line 2 .*asked at 2 s"
    ):
        serve(ones([2.0]), policy=policy)


def test_think_times_need_sessions_and_sense():
    with pytest.raises(TraceError, match="think_time needs session"):
        ones([0.0], think_time=[1.0])
    with pytest.raises(TraceError, match="at least 0, got -1 in row 0"):
        ones([0.0], session=[1], think_time=[-1.0])


def test_the_plain_reference_refuses_turns_that_wait():
    trace = ones([0.0, 0.0], session=[1, 1], think_time=[0.0, 1.0])
    workload = prepare(trace, ONE_SEAT, np.full(2, np.nan))

    with pytest.raises(ConfigError, match="simulate_reference_fleet"):
        simulate_reference(workload, get_policy("fcfs"), ONE_SEAT, ONE_SECOND)

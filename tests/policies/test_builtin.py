"""Every built-in policy keeps the contract and orders as its file promises."""

import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from queuesmith.config import EngineConfig
from queuesmith.policies import get_policy, policy_names
from queuesmith.testing import check_policy


def request(**fields):
    """A waiting request that arrived at 0 with 100 prompt tokens, none of them cached."""
    row = {
        "arrival_time": 0.0,
        "num_prompt_tokens": 100,
        "num_computed_tokens": 0,
        "num_output_tokens": 0,
        "num_preemptions": 0,
        "max_tokens": 4096,
        "priority": 0,
        "predicted_output_tokens": 50.0,
        "deadline": math.inf,
        "client_tokens": 0.0,
    } | fields
    # As if the engine had computed 1000 tokens in each second since.
    row.setdefault("prefill_tokens_since_arrival", int(1000 * (100 - row["arrival_time"])))
    row.setdefault("last_token_ts", row["arrival_time"])
    row.setdefault("num_uncached_tokens", row["num_prompt_tokens"] + row["num_output_tokens"])
    return SimpleNamespace(**row)


def engine(**fields):
    """An engine at 100 s with some load: 1000 prefill tokens/s, 0.02 s a step."""
    row = {
        "now": 100.0,
        "num_waiting": 4,
        "num_running": 8,
        "max_num_seqs": 16,
        "token_budget": 8192,
        "kv_usage": 0.5,
        "free_kv_tokens": 5000,
        "waiting_tokens": 4000,
        "mean_waiting_tokens": 1000.0,
        "mean_wait": 10.0,
        "oldest_wait": 100.0,
        "step_time": 0.02,
        "token_rate": 1000.0,
        "recent_ttft": 10.0,
        "arrival_rate": 1.0,
        "mean_prompt_tokens": 1000.0,
        "backlog_time": 4.0,
        "peak_backlog_time": 20.0,
    }
    return SimpleNamespace(**(row | fields))


def order(name, *requests, **state):
    """Positions of the requests in the order of admission: by key, then as given."""
    key, now = get_policy(name).waiting_key, engine(**state)
    keys = [key(row, now) for row in requests]
    keys = [math.inf if key != key else key for key in keys]
    return sorted(range(len(requests)), key=lambda position: keys[position])


def preempted_first(name, *requests, **state):
    """The position of the request that is preempted first."""
    key, now = get_policy(name).victim_key, engine(**state)
    return max(range(len(requests)), key=lambda position: key(requests[position], now))


@pytest.mark.parametrize("name", policy_names())
def test_a_built_in_keeps_the_contract(name):
    report = check_policy(name)

    assert report.policy.name == name


@pytest.mark.parametrize("name", policy_names())
def test_a_built_in_tells_what_it_is_knows_and_risks(name):
    policy = get_policy(name)

    assert policy.summary.endswith(".")
    assert policy.knows
    assert policy.origin
    assert policy.caution
    assert len(policy.source.splitlines()) <= 60


@pytest.mark.parametrize("name", policy_names())
def test_equal_requests_keep_the_order_of_arrival(name):
    """Ties are the engine's business, so equal rows must give equal keys."""
    assert order(name, request(), request(), request()) == [0, 1, 2]


EARLY, LATE = request(arrival_time=10.0), request(arrival_time=90.0)
SHORT, LONG = request(num_prompt_tokens=10), request(num_prompt_tokens=10_000)


@pytest.mark.parametrize(
    "name", ["fcfs", "fit_first", "least_computed_victim", "sarathi", "vllm_unchunked"]
)
def test_first_come_is_first_served(name):
    assert order(name, LATE, EARLY) == [1, 0]


def test_lcfs_takes_the_newest():
    assert order("lcfs", EARLY, LATE) == [1, 0]


def test_priority_takes_the_lowest_number_whatever_the_age():
    urgent = request(priority=-1, arrival_time=90.0)

    assert order("priority", request(priority=3), EARLY, urgent) == [2, 1, 0]


@pytest.mark.parametrize("name", ["sjf", "slai"])
def test_sjf_takes_the_shortest_prompt_whatever_the_age(name):
    assert order(name, LONG, request(num_prompt_tokens=10, arrival_time=99.0)) == [1, 0]


@pytest.mark.parametrize("name", ["sjf", "slai", "residual_sjf"])
def test_sjf_does_not_count_what_is_in_the_prefix_cache(name):
    cached = request(num_prompt_tokens=10_000, num_uncached_tokens=16, arrival_time=99.0)
    other = request(num_prompt_tokens=100, arrival_time=99.0)

    assert order(name, other, cached) == [1, 0]


def test_sjf_counts_the_output_that_a_preemption_lost():
    preempted = request(num_prompt_tokens=100, num_output_tokens=500, num_preemptions=1)

    assert order("sjf", preempted, request(num_prompt_tokens=300)) == [1, 0]


def test_ljf_takes_the_longest_prompt():
    assert order("ljf", SHORT, LONG) == [1, 0]


def test_aged_sjf_trades_tokens_for_seconds():
    earlier = request(num_prompt_tokens=1100)
    later = request(num_prompt_tokens=100, arrival_time=2.9)

    assert order("aged_sjf", earlier, later) == [1, 0]
    later.arrival_time = 3.1
    assert order("aged_sjf", earlier, later) == [0, 1]
    assert order("aged_sjf(SECONDS_PER_TOKEN=0.1)", earlier, later) == [1, 0]


def test_sjf_aging_takes_the_short_until_the_long_has_waited_long_enough():
    new = request(num_prompt_tokens=100, arrival_time=99.0)
    old = request(num_prompt_tokens=10_000, arrival_time=95.0)

    assert order("sjf_aging", old, new) == [1, 0]
    assert order("sjf_aging", old, new, mean_wait=1.0) == [0, 1]


def test_sjf_aging_needs_no_wait_to_compare_with():
    assert order("sjf_aging", LONG, SHORT, mean_wait=0.0) == [1, 0]


def test_residual_sjf_turns_to_fcfs_after_the_longest_wait():
    new = request(num_prompt_tokens=10, arrival_time=99.0)
    old = request(num_prompt_tokens=10_000, arrival_time=50.0)
    older = request(num_prompt_tokens=90_000, arrival_time=40.0)

    assert order("residual_sjf", new, old, older, peak_backlog_time=40.0) == [0, 1, 2]
    assert order("residual_sjf", new, old, older, peak_backlog_time=20.0) == [2, 1, 0]


def test_residual_sjf_counts_blocks_so_that_small_differences_are_ties():
    rows = [request(num_prompt_tokens=n, arrival_time=99.0) for n in (32, 17, 16)]

    assert order("residual_sjf", *rows) == [2, 0, 1]


def test_spjf_takes_the_shortest_predicted_output_and_the_unknown_last():
    rows = [request(predicted_output_tokens=value) for value in (math.nan, 900.0, 3.0)]

    assert order("spjf", *rows) == [2, 1, 0]


def test_estimated_service_time_weighs_a_prompt_token_as_half_an_output_token():
    talker = request(num_prompt_tokens=100, predicted_output_tokens=300.0)  # 350
    reader = request(num_prompt_tokens=500, predicted_output_tokens=90.0)  # 340
    unknown = request(predicted_output_tokens=math.nan)

    assert order("estimated_service_time_first", unknown, talker, reader) == [2, 1, 0]


@pytest.mark.parametrize("name", ["srpt", "srpt_oracle"])
def test_srpt_counts_what_is_left_of_prompt_and_output(name):
    half_done = request(
        num_prompt_tokens=1000,
        num_output_tokens=90,
        num_computed_tokens=1089,
        predicted_output_tokens=100.0,
        num_uncached_tokens=1000,
    )  # 1 + 2 x 10
    fresh = request(num_prompt_tokens=10, predicted_output_tokens=8.0)  # 10 + 2 x 8
    unknown = request(num_prompt_tokens=1, predicted_output_tokens=math.nan)
    overdue = request(num_output_tokens=60, num_computed_tokens=159, num_uncached_tokens=100)

    keys = [get_policy(name).waiting_key(row, engine()) for row in (half_done, fresh, overdue)]
    assert keys == [21.0, 26.0, 3.0]
    assert order(name, unknown, half_done, fresh, overdue) == [3, 1, 2, 0]
    assert preempted_first(name, half_done, fresh, overdue) == 1
    assert get_policy(name).preemptive


def test_only_the_oracle_is_told_the_output_length():
    assert [name for name in policy_names() if get_policy(name).oracle] == ["srpt_oracle"]


def test_hrrn_weighs_the_wait_against_the_prompt():
    # Tokens that were computed for others meanwhile, over those it needs itself: 8, 7.2 and 16.
    long = request(num_prompt_tokens=1000, prefill_tokens_since_arrival=8000)
    short = request(num_prompt_tokens=100, prefill_tokens_since_arrival=720)
    shorter = request(num_prompt_tokens=10, prefill_tokens_since_arrival=160)

    assert order("hrrn", short, long, shorter) == [2, 1, 0]


def test_preflow_halves_the_work_with_every_doubling_time():
    quick = request(num_prompt_tokens=1000, arrival_time=100.0)
    slow = request(num_prompt_tokens=2000, arrival_time=100.0)  # 4 x the work, squared: 16 x

    assert order("preflow", slow, quick) == [1, 0]
    slow.arrival_time = 61.0  # 3.9 doublings
    assert order("preflow", slow, quick) == [1, 0]
    slow.arrival_time = 59.0  # 4.1 doublings
    assert order("preflow", quick, slow) == [1, 0]


def test_preflow_knows_that_tokens_after_a_long_cached_prefix_cost_more():
    cached = request(num_prompt_tokens=10_000, num_uncached_tokens=1000, arrival_time=99.0)
    whole = request(num_prompt_tokens=1000, arrival_time=99.0)

    assert order("preflow", cached, whole) == [1, 0]


def test_las_takes_who_was_served_least_even_after_a_preemption():
    preempted = request(num_output_tokens=5, num_preemptions=1)
    halfway = request(num_computed_tokens=60)

    assert order("las", preempted, halfway, request()) == [2, 1, 0]
    assert preempted_first("las", halfway, preempted) == 1
    assert get_policy("las").preemptive


def level(**fields):
    """The queue of mlfq; the first quantum is 10 tokens at 1000 tokens/s."""
    fields.setdefault("last_token_ts", 99.0)
    return get_policy("mlfq").waiting_key(request(**fields), engine())


def test_mlfq_enters_the_first_queue_whose_quantum_covers_the_prompt():
    assert [level(num_prompt_tokens=n) for n in (10, 11, 20, 21, 320)] == [0, 1, 1, 2, 5]


def test_mlfq_sinks_when_its_quanta_are_used_up():
    def after(output):
        computed = 9 + output
        return level(num_prompt_tokens=10, num_output_tokens=output, num_computed_tokens=computed)

    # Quanta of 10, 20 and 40 tokens, so 10, 30 and 70 in all; the prompt is 10 of them.
    assert [after(output) for output in (1, 19, 20, 59, 60)] == [1, 1, 2, 2, 3]


def test_mlfq_promotes_who_got_nothing_for_three_seconds():
    assert level(num_prompt_tokens=320, last_token_ts=97.1) == 5
    assert level(num_prompt_tokens=320, last_token_ts=96.9) == 0


def test_mlfq_has_a_last_queue():
    assert level(num_prompt_tokens=100_000_000) == 15


def test_edf_takes_the_earliest_deadline_and_those_without_one_last():
    rows = [request(deadline=value) for value in (math.inf, 200.0, 50.0)]

    assert order("edf", *rows) == [2, 1, 0]


def test_llf_subtracts_seconds_from_seconds():
    """2000 prompt tokens take 2 s and 50 output tokens 1 s on this engine."""
    long = request(deadline=110.0, num_prompt_tokens=2000, predicted_output_tokens=50.0)
    key = get_policy("llf").waiting_key

    assert key(long, engine()) == pytest.approx(110.0 - 2.0 - 1.0)
    assert order("llf", request(deadline=108.0, num_prompt_tokens=100), long) == [0, 1]
    assert order("llf", request(deadline=109.0, num_prompt_tokens=100), long) == [1, 0]


def test_llf_without_a_prediction_counts_the_prompt_only():
    unknown = request(deadline=110.0, predicted_output_tokens=math.nan)

    assert get_policy("llf").waiting_key(unknown, engine()) == pytest.approx(109.9)


def test_weighted_fair_takes_the_client_served_least():
    rows = [request(client_tokens=value) for value in (500.0, 20.0)]

    assert order("weighted_fair", *rows) == [1, 0]


def test_kv_constrained_takes_the_urgent_first_then_the_smallest():
    large = request(num_prompt_tokens=5000, deadline=900.0)
    small = request(num_prompt_tokens=50, deadline=900.0)
    urgent = request(num_prompt_tokens=5000, deadline=100.0)

    assert order("kv_constrained", large, small, urgent) == [2, 1, 0]


def test_kv_constrained_keeps_a_share_of_memory_for_the_urgent():
    """Half of 10,000 tokens is used, so 3,200 more reach the limit of 82 %."""
    admit = get_policy("kv_constrained").admit
    calm = {"deadline": 900.0}

    assert admit(request(num_prompt_tokens=3199, **calm), engine())
    assert not admit(request(num_prompt_tokens=3201, **calm), engine())
    assert admit(request(num_prompt_tokens=3201, deadline=100.0), engine())
    assert not admit(request(num_prompt_tokens=1, **calm), engine(kv_usage=1.0, free_kv_tokens=0))


def test_fit_first_sets_aside_what_does_not_fit_until_it_has_waited_too_long():
    admit = get_policy("fit_first").admit
    fits = request(num_prompt_tokens=4000, num_output_tokens=1000, arrival_time=99.0)
    too_large = request(num_prompt_tokens=5001, arrival_time=99.0)

    assert admit(fits, engine())
    assert not admit(too_large, engine())
    assert admit(request(num_prompt_tokens=5001, arrival_time=59.0), engine())


def decode(**fields):
    """A request that has its prompt and 5 tokens, the last one at 100 s."""
    row = {"num_output_tokens": 5, "num_computed_tokens": 104, "last_token_ts": 100.0}
    return request(**(row | fields))


def test_slai_holds_a_decode_until_its_next_token_is_nearly_due():
    hold = get_policy("slai").hold  # due 0.1 s after the last, less 2 steps of 25 ms

    assert hold(decode(), engine(now=100.04, step_time=0.025))
    assert not hold(decode(), engine(now=100.06, step_time=0.025))
    assert not hold(decode(), engine(now=100.04, step_time=0.025, kv_usage=0.97))


def test_slai_holds_nothing_without_need():
    hold = get_policy("slai").hold
    state = {"now": 100.0, "step_time": 0.01}

    assert hold(decode(), engine(**state))
    assert not hold(decode(), engine(**state, num_waiting=0))
    assert not hold(decode(num_computed_tokens=50), engine(**state)), "it is computed anew"
    assert not hold(request(num_computed_tokens=50), engine(**state)), "it is in prefill"


def test_scorpio_takes_the_least_laxity_and_the_lost_last():
    tight, loose, lost = (request(deadline=value) for value in (104.0, 180.0, 99.0))

    assert order("scorpio_guard", lost, loose, tight) == [2, 1, 0]


def test_scorpio_under_pressure_puts_long_answers_back():
    long = request(deadline=180.0, predicted_output_tokens=2000.0)  # laxity 39.9, guard adds 12.6
    short = request(deadline=145.0, predicted_output_tokens=50.0)  # laxity 43.9, guard adds 0.3

    assert order("scorpio_guard", short, long) == [1, 0]
    assert order("scorpio_guard", short, long, num_running=14) == [0, 1]


def test_scorpio_keeps_long_answers_out_of_a_full_cache_unless_they_are_urgent():
    admit = get_policy("scorpio_guard").admit
    long = {"predicted_output_tokens": 2000.0}

    assert admit(request(**long), engine())
    assert not admit(request(**long), engine(kv_usage=0.7))
    assert admit(request(**long, deadline=140.0), engine(kv_usage=0.7))
    assert admit(request(), engine(kv_usage=0.7))
    assert admit(request(predicted_output_tokens=math.nan), engine(kv_usage=0.7))


def test_uniboost_lies_between_shortest_first_and_first_come():
    old = request(num_prompt_tokens=1000, arrival_time=80.0)
    new = request(num_prompt_tokens=100, arrival_time=99.0)

    # With gamma 0.1 /s: boosts of 10 s x 2.35 for 1 s of service, 10 s x 4.61 for 0.1 s.
    assert order("uniboost", old, new) == [1, 0]
    assert order("uniboost(GAMMA=10)", old, new) == [0, 1]
    assert order("uniboost(GAMMA=1e-6)", request(arrival_time=-1e4), SHORT) == [1, 0]


def test_uniboost_computes_the_gamma_boost():
    row = request(num_prompt_tokens=1000, arrival_time=80.0)
    boost = -math.log(1.0 - math.exp(-0.1 * 1.0)) / 0.1

    assert get_policy("uniboost").waiting_key(row, engine()) == pytest.approx(80.0 - boost)


def test_least_computed_victim_spares_the_most_computed():
    running = [request(num_computed_tokens=n) for n in (500, 40, 900)]

    assert preempted_first("least_computed_victim", *running) == 1


def test_the_bundles_are_known_as_such_and_fit_a_server():
    bundles = {name: get_policy(name) for name in policy_names() if get_policy(name).is_bundle}

    assert list(bundles) == ["sarathi", "vllm_unchunked"]
    small = EngineConfig().override(bundles["sarathi"].engine)
    assert small.token_budget == 512
    whole = EngineConfig().override(bundles["vllm_unchunked"].engine)
    assert not whole.enable_chunked_prefill
    assert whole.token_budget >= whole.max_model_len


SPACINGS = {
    "even": np.arange(2000) * 0.001,
    "seconds": np.arange(2000) * 1.0,
    "a power of two": np.arange(2000) * 2.0**-4,
    "wall clock": 1.8e9 + np.arange(2000) * 0.25,
    "before the origin": -np.arange(2000) * 0.125,
    "exponential": np.cumsum(np.random.default_rng(1).exponential(0.02, 2000)),
}


@pytest.mark.parametrize("spacing", SPACINGS)
@pytest.mark.parametrize("seed", [0, 7])
def test_random_is_uniform_and_unrelated_to_the_arrival(spacing, seed):
    key = get_policy(f"random(SEED={seed})").waiting_key
    arrivals = SPACINGS[spacing]
    keys = np.array([key(request(arrival_time=float(at)), engine()) for at in arrivals])
    shares = keys / 2147483647

    assert stats.kstest(shares, "uniform").pvalue > 1e-4
    assert abs(stats.spearmanr(arrivals, keys).statistic) < 0.1
    for lag in (1, 2, 7):
        assert abs(np.corrcoef(shares[:-lag], shares[lag:])[0, 1]) < 0.1
    ups = np.mean(np.diff(keys) > 0)
    assert 0.45 < ups < 0.55


def test_random_tells_requests_of_one_instant_apart():
    rows = [request(num_prompt_tokens=n) for n in range(1, 200)]

    assert order("random", *rows) != list(range(199))
    assert order("random", *rows) == order("random", *rows)
    assert order("random", *rows) != order("random(SEED=1)", *rows)


@pytest.mark.parametrize("name", policy_names())
def test_a_built_in_is_in_the_reference_as_its_file_has_it(name):
    page = Path(__file__).parents[2] / "docs" / "reference" / "policies.md"
    policy = get_policy(name)

    (row,) = [line for line in page.read_text().splitlines() if line.startswith(f"| `{name}` |")]
    assert policy.summary in row
    for hook in set(policy.hooks) - {"waiting_key"}:
        assert f"`{hook}`" in row
    for parameter, value in policy.parameters.items():
        assert f"`{parameter}={value!r}`" in row

"""What each hook and switch of a policy does to a step, worked out by hand.

Every step takes one second. `decide` runs kernel and reference, which must agree.
"""

from dataclasses import replace

import numpy as np
import pytest

from queuesmith.config import EngineConfig
from queuesmith.engine import prepare, simulate, simulate_reference
from queuesmith.engine.presets.step_time import StepTime
from queuesmith.request import ENGINE_FIELDS, REQUEST_FIELDS
from queuesmith.traces.trace import Trace

BY_ARRIVAL = """
def waiting_key(request, engine):
    return request.arrival_time
"""
BY_PRIORITY = """
def waiting_key(request, engine):
    return request.priority
"""


def roomy(**changes):
    settings = {
        "max_num_seqs": 4,
        "max_num_batched_tokens": 64,
        "num_gpu_blocks": 1001,
        "block_size": 1,
        "max_model_len": 64,
    }
    return EngineConfig(**settings | changes)


def together(prompt_len, output_len, **columns):
    return Trace([0.0] * len(prompt_len), prompt_len, output_len, **columns)


# waiting_key


def test_smaller_keys_are_admitted_first(decide):
    found = decide(together([3, 1, 2], [1, 1, 1]), roomy(max_num_seqs=1), "sjf")

    assert found.tokens == [{1: 1}, {2: 2}, {0: 3}]


def test_equal_keys_go_to_the_earlier_arrival_and_then_the_lower_row(decide):
    trace = Trace([0.0, 0.25, 0.25, 0.5], [9, 5, 5, 5], [1, 1, 1, 1])

    found = decide(trace, roomy(max_num_seqs=1), "sjf")
    assert found.rows == [0, 1, 2, 3]


def test_a_key_that_is_nan_counts_as_infinite(decide, policy_from):
    policy = policy_from("""
import math


def waiting_key(request, engine):
    if request.priority == 0:
        return math.nan
    if request.priority == 1:
        return math.inf
    return 5.0
""")
    trace = together([1, 1, 1, 1], [1, 1, 1, 1], priority=[1, 0, 1, 2])

    found = decide(trace, roomy(max_num_seqs=1), policy)
    assert found.rows == [3, 0, 1, 2]


def test_keys_that_change_with_time_are_asked_again(decide, policy_from):
    policy = policy_from("""
def waiting_key(request, engine):
    if engine.now < 2.0:
        return request.arrival_time
    return -request.arrival_time
""")
    trace = Trace([0.0, 0.125, 0.25, 0.375], [1, 1, 1, 1], [1, 1, 1, 1])

    found = decide(trace, roomy(max_num_seqs=1), policy)
    assert found.rows == [0, 1, 3, 2]


def test_a_preempted_request_is_asked_for_its_key_again(decide):
    # After the preemption row 1 has 4 + 2 uncached tokens and no longer beats row 2, with 5.
    trace = Trace([0.0, 0.0, 1.5], [4, 4, 5], [4, 4, 1])

    found = decide(trace, roomy(num_gpu_blocks=11), "sjf")
    assert found.preempted[2] == [1]
    assert found.tokens[4] == {2: 5}
    assert found.tokens[5] == {1: 6}


# admit

SHORT_ONLY = (
    BY_ARRIVAL
    + """

def admit(request, engine):
    return request.num_prompt_tokens < 5
"""
)


def test_who_is_not_admitted_does_not_block_those_behind(decide, policy_from):
    found = decide(together([3, 8, 2], [3, 1, 1]), roomy(), policy_from(SHORT_ONLY))

    assert found.tokens[0] == {0: 3, 2: 2}


def test_admit_is_ignored_when_nothing_runs_and_nobody_is_left(decide, policy_from):
    found = decide(together([3, 8, 2], [3, 1, 1]), roomy(), policy_from(SHORT_ONLY))

    assert found.tokens == [{0: 3, 2: 2}, {0: 1}, {0: 1}, {1: 8}]


def test_when_admit_is_ignored_all_are_candidates(decide, policy_from):
    found = decide(together([8, 9], [1, 1]), roomy(), policy_from(SHORT_ONLY))

    assert found.tokens == [{0: 8, 1: 9}]


def test_admit_is_kept_while_somebody_else_may_enter(decide, policy_from):
    # Nothing runs, yet row 1 is left, so row 0 stays set aside although it is first.
    found = decide(together([8, 2], [1, 1]), roomy(), policy_from(SHORT_ONLY))

    assert found.tokens == [{1: 2}, {0: 8}]


# hold


def holding(condition):
    return (
        BY_ARRIVAL
        + f"""

def hold(request, engine):
    return {condition}
"""
    )


def test_a_held_request_is_left_out_and_goes_on_later(decide, policy_from):
    policy = policy_from(holding("request.priority == 1 and 1.0 <= engine.now < 3.0"))

    found = decide(together([1, 1], [3, 4], priority=[1, 0]), roomy(), policy)
    assert found.tokens == [{0: 1, 1: 1}, {1: 1}, {1: 1}, {0: 1, 1: 1}, {0: 1}]
    assert found.result.requests.last_token_ts.tolist() == [5.0, 4.0]


def test_a_held_request_keeps_its_seat_and_its_kv(decide, policy_from):
    policy = policy_from(holding("request.priority == 1 and engine.now == 1.0"))
    trace = together([5, 1, 1], [3, 2, 1], priority=[1, 0, 0])

    found = decide(trace, roomy(max_num_seqs=2), policy)
    assert found.tokens == [{0: 5, 1: 1}, {1: 1}, {0: 1, 2: 1}, {0: 1}]
    assert found.free == [994, 993, 993, 993]


def test_the_seat_of_a_held_request_is_taken_however_many_wait(decide, policy_from):
    policy = policy_from(holding("request.priority == 1 and engine.now == 1.0"))
    trace = Trace([0.0, 0.0, 0.5, 0.5], [1] * 4, [3, 3, 1, 1], priority=[1, 0, 0, 0])

    # At 1 row 0 is held and row 1 runs: of three seats one is free.
    found = decide(trace, roomy(max_num_seqs=3), policy)
    assert found.tokens[:2] == [{0: 1, 1: 1}, {1: 1, 2: 1}]


def test_a_held_request_leaves_its_budget_to_others(decide, policy_from):
    policy = policy_from(holding("request.priority == 1 and engine.now >= 1.0"))
    trace = together([1, 20], [2, 1], priority=[1, 0])

    found = decide(trace, roomy(max_num_batched_tokens=4), policy)
    assert found.tokens[:3] == [{0: 1, 1: 3}, {1: 4}, {1: 4}]


def test_a_held_request_is_never_a_victim(decide, policy_from):
    # Row 2 is last in `running`, but held while row 0 lacks a block: row 1 gives up its own.
    policy = policy_from(holding("request.priority == 1 and engine.now >= 1.0"))
    trace = together([2, 2, 2], [4, 3, 3], priority=[0, 0, 1])

    found = decide(trace, roomy(num_gpu_blocks=9), policy)
    assert found.preempted[:3] == [[], [], [1]]
    assert found.tokens[:3] == [{0: 2, 1: 2, 2: 2}, {0: 1, 1: 1}, {0: 1}]
    assert found.free[:3] == [2, 0, 2]


def test_a_held_request_is_present_for_the_threshold(decide, policy_from):
    policy = policy_from(holding("request.priority == 1 and engine.now >= 1.0"))
    trace = Trace([0.0, 0.5], [1, 9], [3, 1], priority=[1, 0])

    # Row 0 runs alone, so it is not held; from second 2 on it is, and row 1 is still cut.
    found = decide(trace, roomy(long_prefill_token_threshold=4), policy)
    assert found.tokens[:4] == [{0: 1}, {0: 1, 1: 4}, {1: 4}, {1: 1}]


def test_hold_is_ignored_when_nobody_would_stay(decide, policy_from):
    found = decide(together([1, 1], [2, 2]), roomy(), policy_from(holding("True")))

    assert found.tokens == [{0: 1, 1: 1}, {0: 1, 1: 1}]


def test_running_returns_to_admission_order_after_a_hold(decide, policy_from):
    # Row 0 is held once; afterwards row 1, admitted later, is still the victim.
    policy = policy_from(holding("request.priority == 1 and engine.now == 1.0"))
    trace = together([4, 4], [5, 5], priority=[1, 0])

    found = decide(trace, roomy(num_gpu_blocks=12), policy)
    assert found.preempted[3] == [1]


# victim_key


def with_victim_key(key):
    return (
        BY_ARRIVAL
        + f"""

def victim_key(request, engine):
    return {key}
"""
    )


@pytest.mark.parametrize(
    ("key", "victim"),
    [
        ("request.priority", 0),  # 9 is the largest
        ("-request.priority", 2),
        ("0.0", 2),  # ties: admitted last
        ("request.num_computed_tokens", 2),
    ],
)
def test_the_largest_victim_key_is_preempted_first(decide, policy_from, key, victim):
    trace = together([2, 2, 2], [4, 4, 4], priority=[9, 5, 1])

    # 9 blocks: full after step 2.
    found = decide(trace, roomy(num_gpu_blocks=10), policy_from(with_victim_key(key)))
    assert found.preempted[2] == [victim]


def test_a_victim_key_that_is_nan_is_preempted_before_any_finite_one(decide, policy_from):
    policy = policy_from("import math\n" + with_victim_key("math.nan if request.priority else 1e9"))
    trace = together([2, 2, 2], [4, 4, 4], priority=[0, 1, 0])

    assert decide(trace, roomy(num_gpu_blocks=10), policy).preempted[2] == [1]


def test_victim_key_takes_the_place_of_priority_preemption(decide, policy_from):
    policy = policy_from(with_victim_key("-request.priority"))
    config = roomy(num_gpu_blocks=10, scheduling_policy="priority")
    trace = together([2, 2, 2], [4, 4, 4], priority=[9, 5, 1])

    assert decide(trace, config, policy).preempted[2] == [2]


def test_victim_key_is_the_order_of_the_budget(decide, policy_from):
    # Row 2 is served before the decodes of rows 0 and 1 while its prompt is longer than theirs.
    policy = policy_from(with_victim_key("-request.num_prompt_tokens"))

    found = decide(together([1, 1, 9], [3, 3, 1]), roomy(max_num_batched_tokens=4), policy)
    assert found.tokens == [{0: 1, 1: 1, 2: 2}, {2: 4}, {0: 1, 2: 3}, {0: 1, 1: 1}, {1: 1}]


def test_the_order_of_victims_lasts_one_step(decide, policy_from):
    # After step 2 the admission order counts again, as the ties of step 3 show.
    policy = policy_from(with_victim_key("-request.num_prompt_tokens if engine.now < 2 else 0"))

    found = decide(together([1, 1, 12], [9, 9, 1]), roomy(max_num_batched_tokens=4), policy)
    assert found.tokens[:3] == [{0: 1, 1: 1, 2: 2}, {2: 4}, {0: 1, 1: 1, 2: 2}]


# PREEMPTIVE

PREEMPTIVE = "PREEMPTIVE = True\n" + BY_PRIORITY


def test_a_strictly_better_waiting_request_takes_the_seat(decide, policy_from):
    trace = Trace([0.0, 0.5], [2, 1], [3, 1], priority=[5, 1])

    found = decide(trace, roomy(max_num_seqs=1), policy_from(PREEMPTIVE))

    # The displaced request computes its 2 + 1 tokens again and goes on.
    assert found.tokens == [{0: 2}, {1: 1}, {0: 3}, {0: 1}]
    assert found.preempted == [[], [0], [], []]
    assert found.result.requests.num_preemptions.tolist() == [1, 0]
    assert found.result.num_recomputed_tokens == 2


def test_an_equal_key_displaces_nobody(decide, policy_from):
    trace = Trace([0.0, 0.5], [2, 1], [3, 1], priority=[5, 5])

    found = decide(trace, roomy(max_num_seqs=1), policy_from(PREEMPTIVE))
    assert found.result.num_preemptions == 0


def test_nobody_is_displaced_while_a_seat_is_free(decide, policy_from):
    trace = Trace([0.0, 0.5], [2, 1], [3, 1], priority=[5, 1])

    found = decide(trace, roomy(max_num_seqs=2), policy_from(PREEMPTIVE))
    assert found.tokens == [{0: 2}, {0: 1, 1: 1}, {0: 1}]


def test_max_num_active_seqs_are_the_seats_to_fight_for(decide, policy_from):
    trace = Trace([0.0, 0.5], [2, 1], [3, 1], priority=[5, 1])

    found = decide(trace, roomy(max_num_active_seqs=1), policy_from(PREEMPTIVE))
    assert found.preempted == [[], [0], [], []]


def test_without_the_switch_nobody_is_displaced(decide, policy_from):
    trace = Trace([0.0, 0.5], [2, 1], [3, 1], priority=[5, 1])

    found = decide(trace, roomy(max_num_seqs=1), policy_from(BY_PRIORITY))
    assert found.tokens == [{0: 2}, {0: 1}, {0: 1}, {1: 1}]


def test_nobody_is_displaced_before_a_token_since_the_last_admission(decide, policy_from):
    trace = Trace([0.0, 0.5], [20, 1], [3, 1], priority=[5, 1])

    found = decide(trace, roomy(max_num_seqs=1, max_num_batched_tokens=8), policy_from(PREEMPTIVE))
    assert found.preempted == [[], [], [], [0], [], [], [], []]
    assert found.tokens[:4] == [{0: 8}, {0: 8}, {0: 4}, {1: 1}]


def test_a_readmitted_request_is_safe_until_its_next_token(decide, policy_from):
    # Row 0 is displaced at 3 by row 1 and readmitted at 4; row 2 comes before 5, but the 21
    # tokens of row 0 take until 7.
    trace = Trace([0.0, 0.5, 4.5], [20, 1, 1], [3, 1, 1], priority=[5, 1, 1])

    found = decide(trace, roomy(max_num_seqs=1, max_num_batched_tokens=8), policy_from(PREEMPTIVE))
    assert [step.start for step in found.steps if step.preempted] == [3.0, 7.0]


def test_the_best_waiting_one_meets_the_worst_running_one_and_so_on(decide, policy_from):
    # Running: 3, 9, 7. Waiting: 5, 8, 2. In order 2 beats 9, 5 beats 7, 8 does not beat 3.
    trace = Trace([0.0, 0.0, 0.0, 0.5, 0.5, 0.5], [1] * 6, [5] * 6, priority=[3, 9, 7, 5, 8, 2])

    found = decide(trace, roomy(max_num_seqs=3), policy_from(PREEMPTIVE))
    assert found.preempted[1] == [1, 2]
    assert found.tokens[1] == {0: 1, 5: 1, 3: 1}


def test_of_equally_bad_running_requests_the_later_admitted_goes_first(decide, policy_from):
    trace = Trace([0.0, 0.0, 0.5], [1, 1, 1], [5, 5, 1], priority=[5, 5, 1])

    found = decide(trace, roomy(max_num_seqs=2), policy_from(PREEMPTIVE))
    assert found.preempted[1] == [1]


def test_a_held_request_is_not_displaced(decide, policy_from):
    policy = policy_from(
        PREEMPTIVE
        + """

def hold(request, engine):
    return request.priority == 9
"""
    )
    trace = Trace([0.0, 0.0, 0.5], [1, 1, 1], [3, 5, 1], priority=[5, 9, 1])

    found = decide(trace, roomy(max_num_seqs=2), policy)
    assert found.preempted[1] == [0]
    assert found.tokens[1] == {2: 1}


def test_who_is_not_admitted_displaces_nobody(decide, policy_from):
    policy = policy_from(
        PREEMPTIVE
        + """

def admit(request, engine):
    return request.priority != 1
"""
    )
    trace = Trace([0.0, 0.5, 0.5], [1, 1, 1], [3, 1, 1], priority=[5, 1, 3])

    found = decide(trace, roomy(max_num_seqs=1), policy)
    assert found.tokens[:2] == [{0: 1}, {2: 1}]


def test_displacement_does_not_block_admission_but_running_out_of_blocks_does(decide, policy_from):
    # At 1 row 2 displaces row 1 and is admitted in the same step.
    trace = Trace([0.0, 0.0, 0.5], [4, 4, 1], [5, 5, 1], priority=[0, 5, 1])
    config = roomy(max_num_seqs=2, num_gpu_blocks=11)

    assert decide(trace, config, policy_from(PREEMPTIVE)).tokens[1] == {0: 1, 2: 1}

    # Row 0 takes the block that row 1 gave up; row 2 lacks one and preempts itself. So row 3 is
    # not admitted, although 4 blocks and a seat are free.
    trace = Trace([0.0, 0.0, 0.0, 0.5], [4, 1, 4, 1], [5, 5, 5, 1], priority=[0, 5, 0, 1])
    config = roomy(max_num_seqs=3, num_gpu_blocks=10)
    found = decide(trace, config, policy_from(PREEMPTIVE))
    assert found.preempted[1] == [1, 2]
    assert found.tokens[1] == {0: 1}
    assert found.free[1] == 4


def test_the_displaced_is_set_aside_for_the_rest_of_the_step(decide, policy_from):
    # Its key falls with every preemption, so in the next step it is the best again.
    policy = policy_from(
        "PREEMPTIVE = True\n"
        """
def waiting_key(request, engine):
    return request.priority - 100 * request.num_preemptions
"""
    )
    trace = Trace([0.0, 0.5], [2, 1], [3, 3], priority=[5, 1])

    found = decide(trace, roomy(max_num_seqs=1), policy)
    assert found.tokens[:3] == [{0: 2}, {1: 1}, {0: 3}]
    assert found.preempted[:3] == [[], [0], [1]]


# ENGINE, ORACLE


def test_engine_overrides_the_settings(decide, policy_from):
    policy = policy_from('ENGINE = {"max_num_seqs": 1, "block_size": 4}\n' + BY_ARRIVAL)

    found = decide(together([3, 3], [1, 1]), roomy(), policy)
    assert found.tokens == [{0: 3}, {1: 3}]
    assert found.free == [999, 999]


BY_PREDICTION = """
def waiting_key(request, engine):
    return request.predicted_output_tokens
"""


def test_an_oracle_is_told_the_truth_whatever_is_known(decide, policy_from):
    trace = together([1, 1, 1], [3, 1, 2])
    oracle = policy_from("ORACLE = True\n" + BY_PREDICTION)

    for known in ("none", "noisy:2", "exact"):
        found = decide(trace, roomy(max_num_seqs=1), oracle, output_length=known)
        assert found.rows == [1, 2, 2, 0, 0, 0]
        assert found.result.requests.predicted_output_tokens.tolist() == [3.0, 1.0, 2.0]


def test_who_is_no_oracle_knows_what_is_known(decide, policy_from):
    trace = together([1, 1, 1], [3, 1, 2])
    policy = policy_from(BY_PREDICTION)

    blind = decide(trace, roomy(max_num_seqs=1), policy, output_length="none")
    assert blind.rows == [0, 0, 0, 1, 2, 2]
    assert np.isnan(blind.result.requests.predicted_output_tokens).all()
    exact = decide(trace, roomy(max_num_seqs=1), policy, output_length="exact")
    assert exact.rows == [1, 2, 2, 0, 0, 0]


def test_an_oracle_knows_the_output_as_the_context_window_cuts_it(decide, policy_from):
    trace = together([30, 2], [9, 5])
    oracle = policy_from("ORACLE = True\n" + BY_PREDICTION)

    # 32 - 30 = 2 tokens are left to row 0.
    found = decide(trace, roomy(max_num_seqs=1, max_model_len=32), oracle)
    assert list(found.tokens[0]) == [0]
    assert found.result.num_truncated == 1


# client_tokens


def test_a_client_pays_one_for_a_prompt_token_and_two_for_an_output_token(decide, policy_from):
    # Row 0 costs its client 10 + 2 * 2 = 14, row 1 its own 8 + 2 * 1 = 10; both stay active.
    trace = Trace([0.0, 0.0, 0.0, 0.0], [10, 8, 1, 1], [2, 1, 1, 1], client=[7, 8, 7, 8])

    found = decide(trace, roomy(max_num_seqs=1), "weighted_fair")
    assert found.rows == [0, 0, 1, 3, 2]


# Row 2 is preempted at 1, when row 1 lacks a block, and fits again at 2, when row 1 has finished;
# row 0 runs all the time, so that `admit` counts.
CROWDED = {
    "prompt_len": [4, 4, 4, 1],
    "output_len": [7, 2, 3, 1],
    "client": [3, 4, 5, 5],
    "priority": [0, 0, 6, 1],
}
CROWDED_CONFIG = roomy(num_gpu_blocks=14)


def test_a_prompt_is_paid_for_when_it_is_first_admitted_and_not_again(decide, policy_from):
    # Row 2 costs its client 4 + 2 * 3 = 10 and finishes at 4; row 3 shows that to the token.
    policy = policy_from(
        BY_ARRIVAL
        + """

def admit(request, engine):
    return request.priority != 1 or request.client_tokens == 10.0
"""
    )

    found = decide(Trace([0.0] * 4, **CROWDED), CROWDED_CONFIG, policy)
    assert found.preempted[1] == [2]
    assert found.tokens[:5] == [
        {0: 4, 1: 4, 2: 4},
        {0: 1, 1: 1},
        {0: 1, 2: 5},
        {0: 1, 2: 1},
        {0: 1, 3: 1},
    ]


def test_a_client_that_returns_is_lifted_to_the_least_active_counter(decide):
    # Client 1 comes at 1.5, when client 0 has been charged 14. Without the lift its row 2 would
    # go before row 1, which came earlier.
    trace = Trace([0.0, 0.5, 1.5, 1.5], [10, 10, 10, 10], [2, 2, 2, 2], client=[0, 0, 1, 1])

    found = decide(trace, roomy(max_num_seqs=1), "weighted_fair")
    assert found.rows[::2] == [0, 1, 2, 3]


def test_a_client_that_was_here_before_is_lifted_too(decide):
    # Client 1 pays 1 + 2 with row 0 and comes back at 2.5, when client 0 has paid 14 for row 1.
    trace = Trace([0.0, 0.25, 0.5, 2.5], [1, 10, 10, 10], [1, 2, 2, 2], client=[1, 0, 0, 1])

    found = decide(trace, roomy(max_num_seqs=1), "weighted_fair")
    assert found.rows == [0, 1, 1, 2, 2, 3, 3]


def test_a_client_that_has_paid_more_is_not_lowered(decide):
    # Client 1 pays 40 + 2 with row 0. Row 2 and then row 4 of client 0 (14, then 28) go first.
    trace = Trace(
        [0.0, 0.25, 0.5, 2.5, 2.75], [40, 10, 10, 10, 10], [1, 2, 2, 2, 2], client=[1, 0, 0, 1, 0]
    )

    found = decide(trace, roomy(max_num_seqs=1), "weighted_fair")
    assert found.rows == [0, 1, 1, 2, 2, 4, 4, 3, 3]


def test_a_client_that_stays_active_is_not_lifted(decide):
    # Row 1 waits from the start with a counter of 0, so client 1 goes first as soon as it can.
    trace = Trace([0.0, 0.25, 0.5, 0.5], [10, 10, 1, 10], [2, 2, 1, 2], client=[0, 1, 0, 1])

    found = decide(trace, roomy(max_num_seqs=1), "weighted_fair")
    assert found.rows == [0, 0, 1, 1, 2, 3, 3]


@pytest.mark.parametrize(
    ("client", "second_step"), [(None, {0: 1, 1: 3}), ([-1, -1], {0: 1, 1: 3}), ([5, 5], {0: 1})]
)
def test_requests_of_unknown_clients_share_no_counter(decide, policy_from, client, second_step):
    policy = policy_from(
        BY_ARRIVAL
        + """

def admit(request, engine):
    return request.client_tokens == 0.0
"""
    )

    found = decide(together([4, 4], [3, 1], client=client), roomy(max_num_batched_tokens=4), policy)
    assert found.tokens[1] == second_step


# The rows that a policy sees

HALF_SECOND = StepTime(a=0.5)


def condition(row, values):
    """Python text that holds where a row has these values."""
    return " and ".join(f"abs({row}.{name} - {value!r}) < 1e-9" for name, value in values.items())


def spying_key():
    """A waiting_key by arrival that keeps copies of the rows it sees."""
    seen = []

    def waiting_key(request, engine):
        seen.append((dict(vars(request)), dict(vars(engine))))
        return request.arrival_time

    return waiting_key, seen


def test_every_engine_field_is_what_one_computes_by_hand(decide, policy_from):
    # Steps of 0.5 s, 8 tokens each, blocks of 2, 20 of them.
    # 0.0: row 0 computes its 6 tokens (12 tokens/s) and answers at 0.5 (TTFT 0.5).
    # 0.5: row 1 came at 0.25 (gap 0.25) and gets 7 tokens (14/s).
    # 1.0: row 2 came at 1.0 (gap 0.75); row 1 gets 5 (10/s) and answers at 1.5 (TTFT 1.25).
    # 1.5: row 3 came at 1.5 (gap 0.5). The engine row is compared, and admits row 2.
    # 2.0: row 2 has computed 3 tokens (6/s), answered (TTFT 1.0) and finished. Compared again.
    rate = 12 + 0.1 * (14 - 12)
    rate += 0.1 * (10 - rate)
    ttft = 0.5 + 0.1 * (1.25 - 0.5)
    gap = 0.25 + 0.1 * (0.75 - 0.25)
    gap += 0.1 * (0.5 - gap)
    third = {
        "now": 1.5,
        "num_waiting": 2,
        "num_running": 2,
        "max_num_seqs": 3,
        "token_budget": 8,
        "kv_usage": (4 + 6) / 20,
        "free_kv_tokens": 20,
        "waiting_tokens": 3 + 5,
        "mean_waiting_tokens": 4.0,
        "mean_wait": (0.5 + 0.0) / 2,
        "oldest_wait": 0.5,
        "step_time": 0.5,
        "token_rate": rate,
        "recent_ttft": ttft,
        "arrival_rate": 1 / gap,
        "mean_prompt_tokens": (6 + 12 + 3 + 5) / 4,
        "backlog_time": 8 / rate,
        "peak_backlog_time": 8 / rate,  # 12 / 12 s at 0.5 is forgotten: `waiting` was empty since
    }
    later_rate = rate + 0.1 * (6 - rate)
    fourth = third | {
        "now": 2.0,
        "num_waiting": 1,
        "kv_usage": (5 + 7) / 20,
        "free_kv_tokens": 16,
        "waiting_tokens": 5,
        "mean_waiting_tokens": 5.0,
        "mean_wait": 0.5,
        "oldest_wait": 0.5,
        "token_rate": later_rate,
        "recent_ttft": ttft + 0.1 * (1.0 - ttft),
        "backlog_time": 5 / later_rate,
    }
    assert set(third) == set(ENGINE_FIELDS)
    policy = policy_from(
        BY_ARRIVAL
        + f"""

def admit(request, engine):
    if request.priority == 1:
        return {condition("engine", third)}
    if request.priority == 2:
        return {condition("engine", fourth)}
    return True
"""
    )
    trace = Trace([0.0, 0.25, 1.0, 1.5], [6, 12, 3, 5], [20, 5, 1, 1], priority=[0, 0, 1, 2])
    config = roomy(max_num_seqs=3, max_num_batched_tokens=8, num_gpu_blocks=21, block_size=2)

    # The reference shows which field is wrong, if one is.
    waiting_key, seen = spying_key()
    workload = prepare(trace, config, np.full(4, np.nan))
    simulate_reference(workload, replace(policy, waiting_key=waiting_key), config, HALF_SECOND)
    for expected in (third, fourth):
        row = next(engine for _, engine in seen if engine["now"] == expected["now"])
        assert row == pytest.approx(expected, abs=1e-9)
    # The kernel admits rows 2 and 3 at 1.5 and 2.0 only where all fields are right.
    found = decide(trace, config, policy, step_time=HALF_SECOND)
    assert found.tokens[3:5] == [{0: 1, 1: 1, 2: 3}, {0: 1, 1: 1, 3: 5}]


def test_before_the_first_sample_averages_are_one(decide, policy_from):
    first = {
        "now": 4.0,
        "num_waiting": 2,
        "num_running": 0,
        "kv_usage": 0.0,
        "free_kv_tokens": 1000,
        "step_time": 1.0,
        "token_rate": 1.0,
        "recent_ttft": 1.0,
        "arrival_rate": 1.0,  # two that come together have no rate
        "mean_wait": 0.0,
        "oldest_wait": 0.0,
        "backlog_time": 5.0 + 6.0,
        "peak_backlog_time": 5.0 + 6.0,
    }
    policy = policy_from(f"""
def waiting_key(request, engine):
    if {condition("engine", first)}:
        return -request.num_prompt_tokens
    return request.num_prompt_tokens
""")

    found = decide(
        Trace([4.0, 4.0], [5, 6], [1, 1]), roomy(max_num_seqs=1), policy, step_time=HALF_SECOND
    )
    assert found.tokens == [{1: 6}, {0: 5}]


def test_every_request_field_is_what_one_computes_by_hand(decide, policy_from):
    columns = {name: values[:3] for name, values in CROWDED.items()}
    trace = Trace([0.25] * 3, **columns, max_tokens=[9, 9, 8], deadline=[50.0, 50.0, 60.0])
    preempted = {
        "arrival_time": 0.25,
        "num_prompt_tokens": 4,
        "num_computed_tokens": 0,
        "num_output_tokens": 1,
        "num_preemptions": 1,
        "max_tokens": 8,
        "priority": 6,
        "num_uncached_tokens": 5,
        "predicted_output_tokens": 3.0,
        "deadline": 60.0,
        "last_token_ts": 1.25,
        "client_tokens": 4 + 2 * 1.0,
        "prefill_tokens_since_arrival": sum(columns["prompt_len"]),  # in the first step
    }
    assert set(preempted) == set(REQUEST_FIELDS)
    policy = policy_from(
        BY_ARRIVAL
        + f"""

def admit(request, engine):
    return request.num_preemptions == 0 or {condition("request", preempted)}
"""
    )

    found = decide(trace, CROWDED_CONFIG, policy)
    assert found.preempted[1] == [2]
    assert found.tokens[2] == {0: 1, 2: 5}


def test_the_last_token_of_a_running_request_was_a_step_ago(decide, policy_from):
    policy = policy_from(holding("engine.now - request.last_token_ts > 0.5"))
    trace = Trace([0.0, 0.0], [1, 9], [4, 1])

    # Row 1 has had no token, so its clock runs since its arrival: it is held from second 1 on, as
    # long as row 0, whose last token came just now, runs beside it.
    found = decide(trace, roomy(max_num_batched_tokens=4), policy)
    assert found.tokens == [{0: 1, 1: 3}, {0: 1}, {0: 1}, {0: 1}, {1: 4}, {1: 2}]


def test_a_running_request_shows_what_it_has_computed(decide, policy_from):
    policy = policy_from(holding("request.num_computed_tokens == 6"))
    trace = Trace([0.0, 0.0], [1, 9], [4, 1])

    found = decide(trace, roomy(max_num_batched_tokens=4), policy)
    assert found.tokens == [{0: 1, 1: 3}, {0: 1, 1: 3}, {0: 1}, {0: 1}, {1: 3}]


def test_waiting_tokens_forget_what_was_admitted_again(decide, policy_from):
    # Row 2, with 4 + 1 tokens, is admitted again at 2; from then on only row 3 waits, with 1.
    policy = policy_from(
        BY_ARRIVAL
        + """

def admit(request, engine):
    if request.priority == 1:
        return engine.now == 4.0 and engine.waiting_tokens == 1 and engine.mean_wait == 4.0
    return True
"""
    )

    found = decide(Trace([0.0] * 4, **CROWDED), CROWDED_CONFIG, policy)
    assert found.tokens[4] == {0: 1, 3: 1}


def test_mean_wait_is_right_on_a_wall_clock(policy_from):
    policy = policy_from("""
def waiting_key(request, engine):
    return request.priority if engine.mean_wait < 5.0 else -request.priority
""")
    num_requests = 6000
    trace = Trace(
        np.full(num_requests, 1.7e9),
        np.ones(num_requests, int),
        np.ones(num_requests, int),
        priority=np.arange(num_requests),
    )

    result = simulate(
        trace,
        policy,
        config=roomy(max_num_seqs=1),
        step_time=StepTime(a=1.0),
        horizon=1.7e9 + 1,
        record=True,
    )
    assert result.recording.tokens.tolist() == [[0, 1]]  # all came just now

"""vLLM's step rules, one at a time, on a handful of requests worked out by hand.

Every step takes one second. `tokens` is what each step computes of each row; kernel and reference
must both say so (`decide` checks that).
"""

from pathlib import Path

import pytest

from queuesmith.config import EngineConfig
from queuesmith.engine.presets.step_time import StepTime
from queuesmith.policies.policy import load_text
from queuesmith.traces.trace import Trace

#: Under ``scheduling_policy="priority"`` the policy fcfs admits by priority; this one does not.
BY_ARRIVAL = load_text(
    "by_arrival",
    "def waiting_key(request, engine):\n    return request.arrival_time\n",
    Path("by_arrival.py"),
)


def roomy(**changes):
    """Four seats, eight tokens a step, and KV blocks of one token that never run out."""
    settings = {
        "max_num_seqs": 4,
        "max_num_batched_tokens": 8,
        "num_gpu_blocks": 1001,
        "block_size": 1,
        "max_model_len": 64,
    }
    return EngineConfig(**settings | changes)


def tight(num_usable_blocks, **changes):
    """The same with so many KV blocks and a budget that never runs out."""
    return roomy(num_gpu_blocks=num_usable_blocks + 1, max_num_batched_tokens=64, **changes)


def together(prompt_len, output_len, **columns):
    """All requests arrive at 0."""
    return Trace([0.0] * len(prompt_len), prompt_len, output_len, **columns)


# Budget and chunked prefill


def test_a_long_prompt_is_computed_a_budget_at_a_time_and_then_decodes(decide):
    found = decide(together([20], [3]), roomy())

    assert found.tokens == [{0: 8}, {0: 8}, {0: 4}, {0: 1}, {0: 1}]
    request = found.result.requests[0]
    assert (request.scheduled_ts, request.first_token_ts, request.last_token_ts) == (0.0, 3.0, 5.0)


def test_running_requests_are_served_before_a_waiting_one_with_a_better_key(decide):
    trace = Trace([0.0, 0.5], [20, 1], [1, 1])

    found = decide(trace, roomy(), "sjf")

    assert found.tokens == [{0: 8}, {0: 8}, {0: 4, 1: 1}]


def test_decodes_come_first_and_prefill_gets_the_rest_of_the_budget(decide):
    found = decide(together([3, 20], [3, 1]), roomy())

    assert found.tokens == [{0: 3, 1: 5}, {0: 1, 1: 7}, {0: 1, 1: 7}, {1: 1}]


def test_several_prompts_share_one_step(decide):
    found = decide(together([3, 3, 9, 1], [1, 1, 1, 1]), roomy())

    assert found.tokens == [{0: 3, 1: 3, 2: 2}, {2: 7, 3: 1}]


def test_max_num_scheduled_tokens_lowers_the_budget(decide):
    found = decide(together([12], [1]), roomy(max_num_scheduled_tokens=5))

    assert found.tokens == [{0: 5}, {0: 5}, {0: 2}]


@pytest.mark.parametrize(
    ("chunked", "expected"),
    [
        # The second prompt does not fit into the 6 tokens left and stops admission: the third,
        # which would fit, waits behind it.
        (False, [{0: 10}, {1: 10, 2: 2}]),
        (True, [{0: 10, 1: 6}, {1: 4, 2: 2}]),
    ],
)
def test_without_chunked_prefill_the_first_prompt_above_the_budget_stops_admission(
    decide, chunked, expected
):
    config = roomy(max_num_batched_tokens=16, max_model_len=16, enable_chunked_prefill=chunked)

    assert decide(together([10, 10, 2], [1, 1, 1]), config).tokens == expected


def test_without_chunked_prefill_a_prompt_of_exactly_the_rest_is_admitted(decide):
    config = roomy(max_num_batched_tokens=16, max_model_len=16, enable_chunked_prefill=False)

    assert decide(together([10, 6], [1, 1]), config).tokens == [{0: 10, 1: 6}]


def test_instant_prefill_charges_a_prompt_as_one_token_and_as_a_decode(decide):
    config = roomy(max_num_batched_tokens=2, max_num_seqs=2, instant_prefill=True)
    step_time = StepTime(a=1.0, b1=0.5, t0=100, c=0.25, f=64.0)

    found = decide(together([50, 60, 10], [2, 1, 1]), config, step_time=step_time)

    assert found.tokens == [{0: 50, 1: 60}, {0: 1, 2: 10}]
    assert found.starts == [0.0, 2.5]  # a + 2 tokens (b1) + 2 decodes (c), and no f


# long_prefill_token_threshold


def test_the_threshold_cuts_prompts_while_others_are_present(decide):
    config = roomy(max_num_batched_tokens=64, long_prefill_token_threshold=3)

    found = decide(together([8, 4], [1, 1]), config)

    assert found.tokens == [{0: 3, 1: 3}, {0: 3, 1: 1}, {0: 2}]


def test_the_threshold_spares_a_request_that_is_alone(decide):
    config = roomy(max_num_batched_tokens=64, long_prefill_token_threshold=3)

    assert decide(together([8], [1]), config).tokens == [{0: 8}]


def test_a_waiting_request_is_present_too(decide):
    config = roomy(max_num_batched_tokens=64, long_prefill_token_threshold=3, max_num_seqs=1)
    trace = Trace([0.0, 0.5], [8, 2], [2, 1])

    # Alone in its first step, so whole; with a request waiting the decode is below the threshold.
    assert decide(trace, config).tokens == [{0: 8}, {0: 1}, {1: 2}]
    assert decide(together([8, 2], [2, 1]), config).tokens[:3] == [{0: 3}, {0: 3}, {0: 2}]


def test_the_adaptive_threshold_is_at_least_an_equal_share_of_the_budget(decide):
    config = roomy(
        max_num_batched_tokens=16,
        long_prefill_token_threshold=3,
        long_prefill_token_threshold_adaptive=True,
    )

    # Two are present: 16 // 2 = 8 each. In the third step four are: 16 // 4 = 4.
    found = decide(Trace([0, 0, 1.5, 1.5], [30, 30, 9, 9], [1, 1, 1, 1]), config)
    assert found.tokens[:3] == [{0: 8, 1: 8}, {0: 8, 1: 8}, {0: 4, 1: 4, 2: 4, 3: 4}]


def test_the_adaptive_threshold_never_falls_below_the_one_given(decide):
    config = roomy(
        max_num_batched_tokens=16,
        long_prefill_token_threshold=7,
        long_prefill_token_threshold_adaptive=True,
    )

    # Three are present: max(7, 16 // 3) = 7, and the last gets what is left.
    found = decide(together([30, 30, 30], [1, 1, 1]), config)
    assert found.tokens[0] == {0: 7, 1: 7, 2: 2}


# Seats


def test_no_more_than_max_num_seqs_run(decide):
    found = decide(together([1, 1, 1], [2, 1, 2]), roomy(max_num_seqs=2))

    assert found.tokens == [{0: 1, 1: 1}, {0: 1, 2: 1}, {2: 1}]


def test_max_num_active_seqs_lowers_the_seats(decide):
    found = decide(together([1, 1], [2, 1]), roomy(max_num_active_seqs=1))

    assert found.tokens == [{0: 1}, {0: 1}, {1: 1}]


def test_max_num_active_seqs_does_not_raise_the_seats(decide):
    config = roomy(max_num_seqs=1, max_num_active_seqs=3)

    assert decide(together([1, 1], [1, 1]), config).tokens == [{0: 1}, {1: 1}]


# KV blocks at admission


def test_one_block_is_lost_to_the_null_block(decide):
    config = roomy(num_gpu_blocks=3, block_size=4)

    found = decide(together([8], [1]), config)
    assert found.free == [0]
    assert decide(together([8, 9], [1, 1]), config).result.num_dropped == 1


def test_the_last_output_token_needs_no_kv(decide):
    # 6 + 3 - 1 = 8 tokens are computed, the two blocks that are there.
    found = decide(together([6], [3]), roomy(num_gpu_blocks=3, block_size=4))

    assert found.result.num_dropped == 0
    assert found.free == [0, 0, 0]


def test_a_request_waits_while_its_blocks_are_taken_and_gets_them_after_the_finish(decide):
    # Blocks of 4: the prompts take 2, 2 and 1 of the 3 there are.
    found = decide(together([5, 5, 1], [2, 1, 1]), tight(3, block_size=4))

    # The third would fit into the free block but stands behind the second.
    assert found.tokens == [{0: 5}, {0: 1}, {1: 5, 2: 1}]
    assert found.free == [1, 1, 0]


def test_blocks_are_taken_as_tokens_are_computed(decide):
    # Blocks of 4: 8, 16 and 18 tokens of the prompt, then 19, 20, 21 with the output.
    found = decide(together([18], [4]), roomy(block_size=4, num_gpu_blocks=11))

    assert found.tokens == [{0: 8}, {0: 8}, {0: 2}, {0: 1}, {0: 1}, {0: 1}]
    assert found.free == [8, 6, 5, 5, 5, 4]


@pytest.mark.parametrize(
    ("reserve", "tokens", "preempted"),
    [
        # The prompt of 12 needs 3 blocks and 2 are free until the first request finishes.
        (True, [{0: 4}, {0: 1}, {0: 1}, {0: 1}, {1: 4}, {1: 4}, {1: 4}], [[]] * 7),
        # Its first chunk of 3 needs 1 block; the third chunk finds none and preempts itself.
        (
            False,
            [{0: 4}, {0: 1, 1: 3}, {0: 1, 1: 3}, {0: 1}, {1: 4}, {1: 4}, {1: 4}],
            [[], [], [], [1], [], [], []],
        ),
    ],
)
def test_reserve_full_isl_admits_only_what_fits_as_a_whole(decide, reserve, tokens, preempted):
    config = roomy(
        num_gpu_blocks=5,
        block_size=4,
        max_num_batched_tokens=4,
        scheduler_reserve_full_isl=reserve,
    )

    found = decide(together([4, 12], [4, 1]), config)

    assert found.tokens == tokens
    assert found.preempted == preempted


def test_the_watermark_keeps_blocks_free_at_admission_while_anything_runs(decide):
    trace = together([4, 5], [2, 1])

    # 6 of 10 blocks are free and 5 are needed; 20 % of 11 blocks is 2.
    assert decide(trace, tight(10)).tokens == [{0: 4, 1: 5}, {0: 1}]
    assert decide(trace, tight(10, watermark=0.2)).tokens == [{0: 4}, {0: 1}, {1: 5}]


def test_the_watermark_is_counted_in_whole_blocks_of_all_blocks(decide):
    # 0.18 of 11 blocks is 1.98, hence 1 block: 5 + 1 <= 6 and the second is admitted.
    assert decide(together([4, 5], [1, 1]), tight(10, watermark=0.18)).tokens == [{0: 4, 1: 5}]


def test_the_watermark_is_ignored_when_nothing_runs(decide):
    assert decide(together([10], [1]), tight(10, watermark=0.5)).tokens == [{0: 10}]


def test_the_watermark_does_not_hinder_running_requests(decide):
    found = decide(together([8], [3]), tight(10, watermark=0.5))

    assert found.free == [2, 1, 0]


# Preemption

TWO = together([4, 4], [4, 4])  # of 10 blocks the third step lacks one


def test_the_last_in_running_is_preempted_and_computed_again(decide):
    found = decide(TWO, tight(10))

    # Step 3: row 0 needs a block, row 1 gives up its 5. Step 4: its 6 tokens do not fit beside 7.
    # Step 5: prompt and output so far are computed in one go and the next token comes at once.
    assert found.tokens == [{0: 4, 1: 4}, {0: 1, 1: 1}, {0: 1}, {0: 1}, {1: 6}, {1: 1}]
    assert found.preempted == [[], [], [1], [], [], []]
    assert found.free == [2, 0, 4, 3, 4, 3]
    assert found.result.requests.num_preemptions.tolist() == [0, 1]
    assert found.result.num_recomputed_tokens == 5
    assert found.result.num_computed_tokens == 4 + 4 + 2 + 1 + 1 + 6 + 1
    assert found.result.requests.last_token_ts.tolist() == [4.0, 6.0]
    assert found.result.requests.scheduled_ts.tolist() == [0.0, 0.0]  # the first time


def test_nothing_is_admitted_in_a_step_that_preempted(decide):
    # Row 2 comes before step 3 and would fit into the blocks that row 1 gives up.
    trace = Trace([0.0, 0.0, 1.5], [4, 4, 1], [4, 4, 1])

    found = decide(trace, tight(10), "sjf")

    assert found.tokens[2:4] == [{0: 1}, {0: 1, 2: 1}]
    assert found.preempted[2] == [1]


def test_a_preempted_request_goes_back_to_its_place_by_arrival(decide):
    trace = Trace([0.0, 0.0, 1.5], [4, 4, 1], [4, 4, 1])

    found = decide(trace, tight(10))

    # Row 1 does not fit before row 0 has finished, and row 2 waits behind it although it fits.
    assert found.tokens[2:5] == [{0: 1}, {0: 1}, {1: 6, 2: 1}]


def test_a_request_may_preempt_several(decide):
    trace = together([9, 1, 1, 1], [1, 6, 6, 6])
    config = roomy(
        num_gpu_blocks=11,
        max_num_batched_tokens=12,
        long_prefill_token_threshold=4,
        scheduler_reserve_full_isl=False,
    )

    found = decide(trace, config)

    # Step 1 takes 7 blocks. In step 2 row 0 takes the 3 left and 1 more, from row 3; then row 1
    # needs one, which row 2 gives up.
    assert found.tokens[:2] == [{0: 4, 1: 1, 2: 1, 3: 1}, {0: 4, 1: 1}]
    assert found.preempted[:2] == [[], [3, 2]]
    assert found.free[:2] == [3, 0]


def test_under_priority_the_largest_priority_is_preempted(decide):
    config = tight(10, scheduling_policy="priority")
    trace = together([4, 4], [4, 4], priority=[0, 1])

    assert decide(trace, config).preempted[2] == [1]


def test_preempting_oneself_ends_the_loop_even_for_requests_behind(decide):
    config = tight(10, scheduling_policy="priority")
    trace = together([4, 4], [4, 4], priority=[1, 0])

    found = decide(trace, config, BY_ARRIVAL)

    # Step 3 schedules nothing, although row 1 would fit into what row 0 gave up.
    assert found.tokens == [{0: 4, 1: 4}, {0: 1, 1: 1}, {}, {1: 1}, {1: 1}, {0: 6}, {0: 1}]
    assert found.preempted[2] == [0]
    assert found.starts == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]  # an empty step takes its time


def test_among_equal_priorities_the_later_arrival_is_preempted(decide):
    # Under lcfs row 2 is admitted before row 1, so row 1 is the last in `running`.
    trace = Trace([0.0, 0.25, 0.5], [1, 4, 4], [1, 4, 4])

    assert decide(trace, tight(10, scheduling_policy="priority"), "lcfs").preempted[3] == [2]
    assert decide(trace, tight(10), "lcfs").preempted[3] == [1]


def test_ties_of_priority_and_arrival_go_to_the_earliest_in_running(decide):
    assert decide(TWO, tight(10, scheduling_policy="priority")).preempted[2] == [0]
    assert decide(TWO, tight(10, scheduling_policy="fcfs")).preempted[2] == [1]


def test_a_victim_that_was_already_scheduled_gives_its_tokens_back(decide):
    config = roomy(
        num_gpu_blocks=7,
        max_num_seqs=3,
        max_num_batched_tokens=4,
        long_prefill_token_threshold=2,
        scheduler_reserve_full_isl=False,
        scheduling_policy="priority",
    )
    trace = together([6, 1, 5], [1, 5, 1], priority=[9, 0, 0])

    found = decide(trace, config, BY_ARRIVAL)

    # Step 2: row 0 takes 2 tokens and the last 2 of 6 blocks; row 1 needs one and takes all of
    # row 0; of the budget 4 - 2 + 2 - 1 = 3 row 2 gets 2, its threshold. Without the refund it
    # would get 1.
    assert found.tokens[:2] == [{0: 2, 1: 1, 2: 1}, {1: 1, 2: 2}]
    assert found.preempted[:2] == [[], [0]]
    assert found.free[:2] == [2, 1]
    # Step 3: row 2 lacks a block; of two equal ones row 1, scheduled before, is the earlier.
    assert found.tokens[2] == {2: 2}
    assert found.preempted[2] == [1]


def test_a_refund_takes_the_victim_out_of_the_step_time(decide):
    config = roomy(
        num_gpu_blocks=7,
        max_num_seqs=3,
        max_num_batched_tokens=4,
        long_prefill_token_threshold=2,
        scheduler_reserve_full_isl=False,
        scheduling_policy="priority",
    )
    trace = together([6, 1, 5], [1, 5, 1], priority=[9, 0, 0])
    step_time = StepTime(a=1.0, b1=2.0, t0=99, c=16.0, d=128.0, e=1024.0, f=8192.0)

    found = decide(trace, config, BY_ARRIVAL, step_time=step_time)

    # Step 1: P = 2 + 1 + 1, D = 0, A = 2 * 1 + 1 / 2 + 1 / 2 = 3.
    first = 1 + 2 * 4 + 1024 * 3 + 8192
    # Step 2: row 1 decodes over 1 token; row 2 computes 2 after 1: A = 2 * (1 + 1) = 4.
    second = 1 + 2 * 3 + 16 + 128 * 1 + 1024 * 4 + 8192
    assert found.starts[1:3] == [first, first + second]


# Arrivals, finishes and time


def test_the_engine_skips_to_the_next_arrival_when_idle(decide):
    found = decide(Trace([5.0, 100.25], [1, 1], [2, 1]), roomy())

    assert found.starts == [5.0, 6.0, 100.25]


def test_a_request_that_arrives_as_a_step_ends_is_in_the_next_one(decide):
    trace = Trace([0.0, 1.0], [1, 1], [3, 1])

    assert decide(trace, roomy()).tokens == [{0: 1}, {0: 1, 1: 1}, {0: 1}]


def test_a_request_that_arrives_as_one_of_many_decodes_ends_is_in_the_next_step(decide):
    found = decide(Trace([0.0, 3.0], [1, 1], [6, 1]), roomy())

    assert found.tokens == [{0: 1}, {0: 1}, {0: 1}, {0: 1, 1: 1}, {0: 1}, {0: 1}]


def test_a_request_that_arrives_during_a_step_waits_for_its_end(decide):
    trace = Trace([0.0, 1.0625], [1, 1], [3, 1])

    found = decide(trace, roomy())
    assert found.tokens == [{0: 1}, {0: 1}, {0: 1, 1: 1}]
    assert found.result.requests.scheduled_ts.tolist() == [0.0, 2.0]


def test_a_finished_request_frees_its_seat_and_blocks_at_the_end_of_the_step(decide):
    found = decide(together([4, 4], [1, 1]), tight(4))

    assert found.tokens == [{0: 4}, {1: 4}]
    assert found.free == [0, 0]


def test_a_step_takes_the_seconds_of_the_formula(decide):
    # Step 1: P = 3 + 5; step 2: P = 7 and one decode over 3 tokens; step 3: P = 7, decode over 4;
    # step 4: the last prompt token.
    step_time = StepTime(a=1.0, b1=2.0, b2=4.0, t0=4, c=16.0, d=128.0, e=1024.0, f=65536.0)

    found = decide(together([3, 20], [3, 1]), roomy(), step_time=step_time)

    seconds = [
        1 + 2 * 4 + 4 * 4 + 1024 * (3 * 1.5 + 5 * 2.5) + 65536,
        1 + 2 * 4 + 4 * 4 + 16 + 128 * 3 + 1024 * (7 * (5 + 3.5)) + 65536,
        1 + 2 * 4 + 4 * 4 + 16 + 128 * 4 + 1024 * (7 * (12 + 3.5)) + 65536,
        1 + 2 * 1 + 1024 * (1 * (19 + 0.5)) + 65536,
    ]
    assert found.result.recording.steps["duration"].tolist() == seconds
    assert found.result.requests.first_token_ts.tolist() == [seconds[0], sum(seconds)]
    assert found.result.end_time == sum(seconds)


def test_a_recomputed_request_is_a_prefill_until_one_token_is_missing(decide):
    step_time = StepTime(a=1.0, c=16.0, f=256.0)

    found = decide(TWO, tight(10), step_time=step_time)

    # Step 5 computes 6 tokens of a request that has output: prefill, and no decode.
    assert found.result.recording.steps["duration"].tolist() == [257, 33, 17, 17, 257, 17]


def test_a_prefill_whose_last_chunk_is_one_token_is_no_decode(decide):
    step_time = StepTime(a=1.0, c=16.0, f=256.0)

    found = decide(together([9], [1]), roomy(), step_time=step_time)

    assert found.result.recording.steps["duration"].tolist() == [257, 257]


def test_gaps_between_tokens_fall_into_their_bins(decide):
    found = decide(together([1, 1], [3, 2]), roomy(max_num_seqs=2))

    assert found.result.itl_counts.sum() == 3  # 2 + 1 gaps of one second
    assert found.result.itl_counts.max() == 3

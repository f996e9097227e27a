"""What sets each policy of LSSP's panel apart, on queues small enough to work out by hand."""

import numpy as np
import pytest

from queuesmith.study.lssp_engine import SlotRequests, simulate_slots
from queuesmith.study.lssp_panel import NAMES, PRIMARY


def requests_of(*rows):
    """Make requests of (arrival, prompt, output, predicted, deadline)."""
    columns = list(zip(*rows, strict=True))
    return SlotRequests(
        np.array(columns[0], float),
        *(np.array(column, np.int64) for column in columns[1:4]),
        np.array(columns[4], float),
    )


def order(policy, *rows, **limits):
    """Return the rows in the order in which one seat serves them."""
    result = simulate_slots(policy, requests_of(*rows), **{"max_num_seqs": 1, **limits})
    assert result.finished.all()
    return np.argsort(result.rows.admitted_ts, kind="stable").tolist()


def steps_of(policy, *rows, **limits):
    """Return the step of each admission."""
    result = simulate_slots(policy, requests_of(*rows), **limits)
    return np.round(result.rows.admitted_ts / 0.001).tolist()


def test_the_panel_is_eleven_and_two():
    assert len(NAMES) == 13
    assert len(PRIMARY) == 11
    assert set(NAMES) - set(PRIMARY) == {"vllm_style_token_budget", "scorpio_style_slo_guard"}


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("fifo", [0, 1, 2, 3]),
        ("edf", [2, 1, 3, 0]),
        # Estimates in steps: 60, 205, 550, 24.
        ("estimated_service_time_first", [3, 0, 1, 2]),
        ("weighted_fair_share", [3, 0, 1, 2]),
        # Seconds less steps: the longest first, whatever its deadline.
        ("least_laxity_first", [2, 1, 0, 3]),
        # In seconds the deadlines decide: spare 8.94, 1.795, 0.45, 2.976.
        ("admission_control", [2, 1, 3, 0]),
        ("vllm_style_token_budget", [1, 0, 3, 2]),
        # All have more than 0.25 s to spare: memory of 102.5, 401.25, 212.5, 14 tokens.
        ("kv_constrained_online", [3, 0, 2, 1]),
        # Score 1 / laxity: the least laxity first.
        ("scorpio_style_slo_guard", [2, 1, 3, 0]),
        ("slai_faithful", [3, 0, 2, 1]),
    ],
)
def test_the_order_of_a_queue(policy, expected):
    rows = [
        (0.0, 100, 1, 10, 9.0),
        (0.0, 400, 1, 5, 2.0),
        (0.0, 200, 1, 450, 1.0),
        (0.0, 8, 1, 20, 3.0),
    ]
    if policy == "kv_constrained_online":
        rows[2] = (0.0, 200, 1, 50, 1.0)
    assert order(policy, *rows) == expected


def test_kv_constrained_puts_the_urgent_first_and_keeps_a_reserve_for_them():
    patient = (0.0, 82, 9, 1, 9.0)
    urgent = (0.0, 90, 9, 1, 0.2)
    assert order("kv_constrained_online", patient, urgent) == [1, 0]

    # 82 of 100 tokens are allowed, 83 are not; the urgent may have them all.
    limits = {"max_kv_tokens": 100}
    assert steps_of("kv_constrained_online", (0.0, 82, 1, 1, 9.0), **limits) == [0]
    result = simulate_slots(
        "kv_constrained_online", requests_of((0.0, 83, 1, 1, 1.0)), max_kv_tokens=100
    )
    # It waits until 0.25 s are left after its estimate of 42.5 ms.
    assert result.rows.admitted_ts[0] == pytest.approx(0.708)
    assert steps_of("kv_constrained_online", (0.0, 100, 1, 1, 0.29), **limits) == [0]


def test_vllm_takes_2560_prompt_tokens_in_a_step_and_nothing_behind_what_does_not_fit():
    rows = [(0.0, 1_280, 9, 9, 9.0), (0.0, 1_281, 9, 9, 9.0), (0.0, 1, 9, 9, 9.0)]
    # The second is one token too many; the third would fit but stands behind it.
    assert steps_of("vllm_faithful", *rows) == [0, 1, 1]
    assert steps_of("fifo", *rows) == [0, 0, 0]


def test_vllm_counts_a_token_for_each_running_answer():
    running = [(0.0, 1, 9, 9, 9.0)] * 3
    assert steps_of("vllm_faithful", *running, (0.0005, 2_557, 1, 1, 9.0))[-1] == 1
    assert steps_of("vllm_faithful", *running, (0.0005, 2_558, 1, 1, 9.0))[-1] == 9


def test_a_prompt_above_2560_tokens_blocks_vllm_to_the_end_of_the_run():
    result = simulate_slots(
        "vllm_faithful",
        requests_of((0.0, 5, 3, 3, 9.0), (0.001, 2_561, 1, 1, 9.0), (0.002, 5, 3, 3, 9.0)),
    )

    assert result.finished.tolist() == [True, False, False]
    assert result.num_steps > 50_000
    # Chunked, it is no obstacle.
    for policy in ("vllm_chunked_prefill_faithful", "sarathi_faithful", "slai_faithful"):
        rows = [(0.0, 5, 3, 3, 9.0), (0.001, 2_561, 1, 1, 9.0), (0.002, 5, 3, 3, 9.0)]
        assert simulate_slots(policy, requests_of(*rows)).finished.all()


def test_vllm_keeps_a_hundredth_of_its_blocks_and_a_slot_for_the_first_token():
    # 200 blocks of 16, of which 2 stay free: 198 hold 3,168 tokens, one of them the first token.
    limits = {"max_kv_tokens": 3_200}
    holder = (0.0, 2_528, 9, 9, 9.0)  # 159 blocks with its first token; 39 are left: 624 tokens
    assert steps_of("vllm_faithful", holder, (0.001, 623, 1, 1, 9.0), **limits) == [0, 1]
    assert steps_of("vllm_faithful", holder, (0.001, 624, 1, 1, 9.0), **limits) == [0, 9]


@pytest.mark.parametrize("policy", ["vllm_chunked_prefill_faithful", "sarathi_faithful"])
def test_prefills_that_cost_nothing_still_use_up_512_tokens_a_step(policy):
    rows = [(0.0, 1_000, 30, 30, 9.0), (0.0, 100, 30, 30, 9.0), (0.0, 600, 30, 30, 9.0)]
    # Step 0: 512 of the first. Step 1: its other 488, and 24 of the second. Step 2: one decode
    # and 76 of the second, which leaves 435 for the third.
    assert steps_of(policy, *rows) == [0, 1, 2]
    # The engine gave the first its tokens all the same.
    first = simulate_slots(policy, requests_of(*rows)).rows.first_token_ts
    assert first.tolist() == pytest.approx([0.001, 0.002, 0.003])


def test_out_of_blocks_chunked_vllm_preempts_the_last_and_sarathi_the_last_that_decodes():
    # 95 blocks, all taken: in step 2 the first needs one more, while the second is in prefill.
    rows = [(0.0, 511, 40, 40, 9.0), (0.0, 1_000, 40, 40, 9.0)]
    limits = {"max_kv_tokens": 95 * 16}
    chunked = simulate_slots("vllm_chunked_prefill_faithful", requests_of(*rows), **limits)
    sarathi = simulate_slots("sarathi_faithful", requests_of(*rows), **limits)

    assert chunked.rows.num_preemptions.tolist() == [0, 1]
    assert chunked.rows.last_token_ts[0] == pytest.approx(0.040)
    # No other decodes, so the first goes itself and begins again a step later.
    assert sarathi.rows.num_preemptions[0] == 1
    assert sarathi.rows.last_token_ts[0] == pytest.approx(0.043)


def test_slai_admits_the_shortest_prompt_and_holds_decodes_that_can_wait():
    # The short one takes a token of budget, the long one 511 of its 2,000.
    rows = [(0.0, 1, 3, 3, 9.0), (0.0, 2_000, 9, 9, 9.0)]
    result = simulate_slots("slai_faithful", requests_of(*rows))

    # Step 0 emits one token of each. Steps 1 and 2: 1,024 of the prefill use up all budget, so
    # the decode is held. Step 3: 465 are left of the prefill, so there is budget for the decode.
    assert result.rows.first_token_ts.tolist() == [0.001, 0.001]
    assert result.rows.last_token_ts.tolist() == pytest.approx([0.005, 0.009])
    # Nobody else holds anything.
    assert simulate_slots("sarathi_faithful", requests_of(*rows)).rows.last_token_ts[0] == 0.003


def test_slai_gives_what_is_left_of_the_budget_to_the_earlier_of_two_that_are_due_alike():
    # Both are admitted in step 0, the shorter first. In step 1 a prompt leaves one token.
    rows = [(0.0, 3, 2, 2, 9.0), (0.0, 1, 2, 2, 9.0), (0.001, 511, 1, 1, 9.0)]
    result = simulate_slots("slai_faithful", requests_of(*rows))

    assert result.rows.last_token_ts.tolist() == [0.002, 0.003, 0.002]


def test_slai_lets_a_decode_wait_for_495_steps_at_most():
    # Shorter prompts keep coming, one whole budget a step, for 600 steps.
    steady = [(0.001 * step, 512, 1, 1, 9.0) for step in range(600)]
    result = simulate_slots("slai_faithful", requests_of((0.0, 1, 3, 3, 9.0), *steady))

    # Ready to decode in step 1, it is due at 1 + 500 - 5 ms; served then and, with the prompts
    # at an end, 104 steps later.
    assert result.rows.first_token_ts[0] == 0.001
    second = simulate_slots("slai_faithful", requests_of((0.0, 1, 2, 3, 9.0), *steady))
    assert second.rows.last_token_ts[0] == pytest.approx(0.497)
    assert result.rows.last_token_ts[0] == pytest.approx(0.601, abs=0.002)


def test_token_budget_charges_whole_blocks_within_a_step_only():
    limits = {"max_kv_tokens": 64}
    rows = [(0.0, 17, 3, 1, 9.0), (0.0, 17, 3, 2, 9.0), (0.0, 17, 3, 3, 9.0)]
    # 32 + 32 is all; a step later what is active counts 18 tokens each.
    assert steps_of("vllm_style_token_budget", *rows, **limits) == [0, 0, 3]
    rows[2] = (0.0, 15, 3, 3, 9.0)
    assert steps_of("vllm_style_token_budget", *rows, **limits) == [0, 0, 1]


def test_scorpio_never_serves_what_is_late_and_spends_credits_when_guarded():
    result = simulate_slots(
        "scorpio_style_slo_guard",
        requests_of((0.0, 100, 1, 1, 0.05), (0.0, 100, 1, 1, 0.052)),
    )
    # Its estimate is 51 ms. The one that is 1 ms short waits to the end of the run.
    assert result.finished.tolist() == [False, True]
    assert result.num_steps == 50_000

    # 45 of 64 seats arm the guard: 4 credits, then 2 gained a step.
    rows = [(0.0, 1, 99, 1, 9.0)] * 45 + [(0.001, 1, 99, 1, 9.0)] * 10
    assert steps_of("scorpio_style_slo_guard", *rows)[45:] == [1] * 4 + [2] * 2 + [3] * 2 + [4] * 2


def test_scorpio_lets_long_answers_wait_while_memory_is_short():
    holder = (0.0, 66, 9, 1, 9.0)
    limits = {"max_kv_tokens": 100}
    rows = [holder, (0.001, 1, 1, 257, 9.0), (0.001, 1, 1, 256, 9.0)]
    assert steps_of("scorpio_style_slo_guard", *rows, **limits) == [0, 9, 1]
    # Nearly late: with less than 0.5 s to spare it goes.
    rows[1] = (0.001, 1, 1, 257, 0.75)
    assert steps_of("scorpio_style_slo_guard", *rows, **limits) == [0, 1, 1]

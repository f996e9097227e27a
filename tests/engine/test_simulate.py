"""The public call: what it takes, what it leaves behind, and what it refuses."""

import re
import subprocess
import sys

import numpy as np
import pytest

import queuesmith as qs
from queuesmith.config import EngineConfig
from queuesmith.engine import can_run, prepare
from queuesmith.engine.presets.step_time import DEFAULT_PRESET, StepTime, get_preset
from queuesmith.engine.result import ITL_EDGES
from queuesmith.errors import ConfigError, QueuesmithError, TraceError, UnknownPolicy
from queuesmith.traces.trace import Trace
from queuesmith.windows.predictions import OutputLengthKnowledge

ONE_SECOND = StepTime(a=1.0)
SMALL = EngineConfig(
    max_num_seqs=2, max_num_batched_tokens=8, num_gpu_blocks=21, block_size=1, max_model_len=16
)


def simulate(trace, policy="fcfs", config=SMALL, **options):
    return qs.simulate(trace, policy, config=config, step_time=ONE_SECOND, **options)


def a_busy_trace(num_requests=200, seed=0):
    rng = np.random.default_rng(seed)
    return Trace(
        np.cumsum(rng.exponential(0.02, num_requests)),
        rng.integers(1, 2000, num_requests),
        rng.integers(1, 300, num_requests),
    )


# What comes back


def test_one_request():
    result = simulate(Trace([0.0], [5], [3]))

    request = result.requests[0]
    assert (request.row, request.prompt_len, request.output_len) == (0, 5, 3)
    assert (request.scheduled_ts, request.first_token_ts, request.last_token_ts) == (0.0, 1.0, 3.0)
    assert (request.num_output_tokens, request.num_preemptions) == (3, 0)
    assert (result.num_steps, result.end_time, result.num_computed_tokens) == (3, 3.0, 7)
    assert (result.num_dropped, result.num_truncated, result.num_recomputed_tokens) == (0, 0, 0)
    assert result.recording is None


def test_a_result_says_what_it_is():
    assert repr(simulate(Trace([0.0], [5], [3]))) == (
        "Result(fcfs: 1 requests, 3 steps, 0 preemptions, 3 s)"
    )


def test_one_token_answers_have_no_gaps():
    result = simulate(Trace([0.0, 0.0], [5, 3], [1, 1]))

    assert result.itl_counts.sum() == 0
    assert (result.requests.first_token_ts == result.requests.last_token_ts).all()


def test_gaps_are_counted_between_their_edges():
    # Rows 0 and 1 decode together: steps of 1 + 2 x 0.25 s; then row 0 alone: 1.25 s.
    step_time = StepTime(a=1.0, c=0.25)
    trace = Trace([0.0, 0.0], [1, 1], [4, 2])
    for record in (False, True):
        result = qs.simulate(trace, config=SMALL, step_time=step_time, record=record)
        expected = np.histogram([1.5, 1.5, 1.25, 1.25], ITL_EDGES)[0]
        assert (result.itl_counts == expected).all()


@pytest.mark.parametrize("place", [1, 400])
def test_a_gap_on_an_edge_belongs_to_the_bin_above(place):
    step_time = StepTime(a=float(ITL_EDGES[place]))
    result = qs.simulate(Trace([0.0], [1], [2]), config=SMALL, step_time=step_time)

    assert np.flatnonzero(result.itl_counts).tolist() == [place]


@pytest.mark.parametrize(("seconds", "place"), [(1e-6, 0), (1e5, -1)])
def test_gaps_beyond_the_edges_fall_into_the_outer_bins(seconds, place):
    result = qs.simulate(Trace([0.0], [1], [9]), config=SMALL, step_time=StepTime(a=seconds))

    assert result.itl_counts[place] == result.itl_counts.sum() == 8


@pytest.mark.parametrize("record", [False, True])
def test_a_recording_changes_no_result(record):
    trace = a_busy_trace()
    plain, other = qs.simulate(trace), qs.simulate(trace, record=record)

    assert other.requests.tobytes() == plain.requests.tobytes()
    assert (other.recording is not None) == record


def test_a_recording_holds_every_step_once():
    config = get_preset(DEFAULT_PRESET).config.override({"async_scheduling": False})
    result = qs.simulate(a_busy_trace(), config=config, record=True)
    steps = result.recording.steps

    assert len(steps) == result.num_steps
    assert steps["end_entry"][-1] == len(result.recording.tokens)
    assert result.recording.tokens[:, 1].sum() == result.num_computed_tokens
    assert steps["start"][-1] + steps["duration"][-1] == result.end_time


# Time


@pytest.mark.parametrize("origin", [-1000.0, 0.0, 4.0, 86_400.0])
def test_results_stand_on_the_clock_of_the_trace(origin):
    at_zero = simulate(Trace([0.0, 0.5, 9.0], [5, 3, 2], [3, 2, 1]))
    shifted = simulate(Trace(np.array([0.0, 0.5, 9.0]) + origin, [5, 3, 2], [3, 2, 1]))

    for name in ("arrival_time", "scheduled_ts", "first_token_ts", "last_token_ts"):
        assert (shifted.requests[name] == at_zero.requests[name] + origin).all()
    assert shifted.end_time == at_zero.end_time + origin


def test_equal_arrivals_are_served_in_the_order_of_the_trace():
    result = simulate(Trace([2.0] * 5, [1] * 5, [1] * 5))

    assert result.requests.scheduled_ts.tolist() == [2.0, 2.0, 3.0, 3.0, 4.0]


def test_no_step_starts_at_the_horizon_or_later():
    trace = Trace([0.0, 0.0, 0.0, 5.0], [5, 5, 1, 1], [4, 1, 1, 1])

    result = simulate(trace, horizon=2.0)

    # Two steps: row 0 has two tokens, row 1 (3, then 2 tokens) one; two did not get a seat or
    # were not there yet.
    requests = result.requests
    assert result.num_steps == 2
    assert requests.num_output_tokens.tolist() == [2, 1, 0, 0]
    np.testing.assert_array_equal(requests.scheduled_ts, [0.0, 0.0, np.nan, np.nan])
    np.testing.assert_array_equal(requests.first_token_ts, [1.0, 2.0, np.nan, np.nan])
    np.testing.assert_array_equal(requests.last_token_ts, [np.nan, 2.0, np.nan, np.nan])
    assert result.end_time == 2.0


def test_a_step_that_has_begun_before_the_horizon_is_completed():
    assert simulate(Trace([0.0], [1], [9]), horizon=2.25).end_time == 3.0


@pytest.mark.parametrize("horizon", [0.0, -5.0])
def test_a_horizon_before_the_first_arrival_leaves_everything_undone(horizon):
    result = simulate(Trace([0.0], [1], [1]), horizon=horizon)

    assert result.num_steps == 0
    assert np.isnan(result.requests.scheduled_ts).all()


def test_a_horizon_cuts_a_jump_where_it_cuts_the_steps():
    trace = Trace([0.0], [1], [14])
    for horizon in (3.0, 3.5, 4.0):
        jumped, stepped = simulate(trace, horizon=horizon), simulate(trace, "slai", horizon=horizon)
        assert jumped.requests.tobytes() == stepped.requests.tobytes()
        assert jumped.end_time == stepped.end_time == np.ceil(horizon)


# What does not fit


def test_requests_that_can_never_run_are_dropped_and_counted():
    # The prompt of 16 fills the context window; the second of 15 has one token of room.
    trace = Trace([0.0, 1.0, 2.0, 3.0], [16, 15, 5, 40], [1, 1, 1, 1])

    result = simulate(trace)

    assert result.num_dropped == 2
    assert result.requests.row.tolist() == [1, 2]
    assert result.requests.arrival_time.tolist() == [1.0, 2.0]
    assert len(result.trace) == 2


def test_a_sequence_above_the_kv_cache_is_dropped():
    config = EngineConfig(num_gpu_blocks=4, block_size=4, max_model_len=64)
    trace = Trace([0.0] * 4, [12, 12, 1, 1], [1, 2, 12, 13])

    # 12 tokens of KV; the last output token needs none.
    assert can_run(trace, config).tolist() == [True, False, True, False]


def test_the_context_window_cuts_the_output():
    result = simulate(Trace([0.0, 0.0], [12, 1], [9, 2]))

    assert result.requests.output_len.tolist() == [4, 2]
    assert result.requests.num_output_tokens.tolist() == [4, 2]
    assert result.num_truncated == 1


def test_max_tokens_cuts_the_output_and_what_is_cut_may_fit():
    trace = Trace([0.0, 0.0], [12, 5], [9, 9], max_tokens=[2, 12])
    config = EngineConfig(num_gpu_blocks=14, block_size=1, max_model_len=64)

    result = simulate(trace, config=config)
    assert result.requests.output_len.tolist() == [2, 9]
    assert (result.num_dropped, result.num_truncated) == (0, 1)


def test_what_is_predicted_of_dropped_requests_is_not_told_to_others():
    trace = Trace([0.0, 0.0, 0.0], [40, 5, 6], [1, 2, 3])

    result = simulate(trace, output_length="exact")
    assert result.requests.predicted_output_tokens.tolist() == [2.0, 3.0]


def test_when_no_request_can_run_the_message_counts_them():
    trace = Trace([0.0, 0.0, 0.0], [16, 1_000_000, 9], [1, 1, 5])
    config = EngineConfig(num_gpu_blocks=11, block_size=1, max_model_len=16)

    with pytest.raises(TraceError) as caught:
        simulate(trace, config=config)
    assert str(caught.value) == (
        "none of the 3 requests can run: 2 prompts reach max_model_len (16 tokens) and 1 sequences "
        "exceed the KV cache (10 tokens); choose a larger engine or a shorter trace"
    )


def test_a_million_token_prompt_is_refused_by_every_preset():
    with pytest.raises(TraceError, match=r"none of the 1 requests can run: 1 prompts reach"):
        qs.simulate(Trace([0.0], [1_000_000], [1]))


def test_an_empty_trace_is_refused():
    with pytest.raises(TraceError, match="none of the 0 requests can run"):
        qs.simulate(Trace([], [], []))


# What is known of output lengths


def test_seeds_make_the_noise():
    trace = a_busy_trace()
    first, again, other = (qs.simulate(trace, "srpt", seed=seed) for seed in (1, 1, 2))

    assert first.requests.tobytes() == again.requests.tobytes()
    assert (first.requests.predicted_output_tokens != other.requests.predicted_output_tokens).any()


def test_what_is_known_can_be_text_or_an_object():
    trace = a_busy_trace()
    text = qs.simulate(trace, "srpt", output_length="noisy:0.5")
    same = qs.simulate(trace, "srpt", output_length=OutputLengthKnowledge("noisy", 0.5))

    assert text.requests.tobytes() == same.requests.tobytes()
    assert np.isnan(qs.simulate(trace, output_length="none").requests.predicted_output_tokens).all()


# Engines and settings


def test_the_engine_gives_what_is_not_said():
    trace = a_busy_trace()
    preset = get_preset("qwen3-8b/a100_sxm")
    by_name = qs.simulate(trace, engine="qwen3-8b/a100_sxm")
    by_hand = qs.simulate(trace, config=preset.config, step_time=preset.step_time)

    assert by_name.requests.tobytes() == by_hand.requests.tobytes()
    assert by_name.requests.tobytes() == qs.simulate(trace, engine=preset).requests.tobytes()
    assert by_name.end_time != qs.simulate(trace).end_time


def test_the_settings_of_a_bundle_are_applied_on_top():
    trace = a_busy_trace()
    sarathi = qs.simulate(trace, "sarathi")
    config = get_preset("llama-3.1-8b/h100_sxm").config

    cut = qs.simulate(trace, "fcfs", config=config.override({"max_num_scheduled_tokens": 512}))
    assert sarathi.requests.tobytes() == cut.requests.tobytes()


def test_a_policy_can_be_a_file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("def waiting_key(request, engine):\n    return -request.arrival_time\n")
    trace = a_busy_trace()

    result = qs.simulate(trace, path)
    assert result.policy == "mine"
    assert result.requests.tobytes() == qs.simulate(trace, str(path)).requests.tobytes()
    assert result.requests.tobytes() == qs.simulate(trace, "lcfs").requests.tobytes()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"policy": "sfj"}, UnknownPolicy, "there is no policy 'sfj'. Did you mean 'sjf'?"),
        ({"engine": "h200"}, ConfigError, "there is no engine 'h200'"),
        ({"output_length": "roughly"}, ConfigError, "must be none, exact, noisy or noisy:SIGMA"),
        ({"policy": "./nowhere.py"}, QueuesmithError, "there is no such file"),
    ],
)
def test_mistakes_are_refused_in_one_line(options, error, message):
    with pytest.raises(error, match=re.escape(message)) as caught:
        qs.simulate(Trace([0.0], [1], [1]), **options)
    assert "\n" not in str(caught.value)


def test_prepare_keeps_the_rows_of_the_given_trace():
    trace = Trace([0.0, 1.0, 2.0], [40, 5, 6], [1, 2, 30], client=[4, -1, 4])

    workload = prepare(trace, SMALL, np.array([7.0, 8.0, 9.0]))
    assert workload.row.tolist() == [1, 2]
    assert workload.output_len.tolist() == [2, 10]
    assert workload.predicted_output_tokens.tolist() == [8.0, 9.0]
    assert workload.max_tokens.tolist() == [11, 10]
    assert workload.deadline.tolist() == [np.inf, np.inf]
    assert sorted(workload.client) == [0, 1]
    assert (workload.num_dropped, workload.num_truncated) == (1, 1)


# Size


def test_a_million_requests_take_less_than_a_gibibyte():
    script = """
import numpy as np
import queuesmith as qs

num_requests = 1_000_000
rng = np.random.default_rng(0)
trace = qs.Trace(
    np.cumsum(rng.exponential(0.05, num_requests)),
    rng.integers(1, 2000, num_requests),
    rng.integers(1, 30, num_requests),
)
result = qs.simulate(trace)
assert not np.isnan(result.requests.last_token_ts).any()
# Not ru_maxrss, which begins with the memory of the process that has started this one.
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True
    )
    assert int(done.stdout) / 2**20 < 1.0  # KiB on Linux

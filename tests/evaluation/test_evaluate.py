"""Policies x windows x loads, on an engine that serves one request or two and takes 1 s a step."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import queuesmith.evaluation.evaluate
from queuesmith.config import EngineConfig, Slo
from queuesmith.engine.presets.step_time import StepTime
from queuesmith.errors import ConfigError, PolicyError, TraceError
from queuesmith.evaluation.evaluate import (
    OWN,
    Load,
    capacity,
    evaluate,
    parse_loads,
    scale_to_load,
)
from queuesmith.metrics import METRICS
from queuesmith.policies import get_policy
from queuesmith.policies.policy import load_text
from queuesmith.traces import Trace
from queuesmith.windows import cut_windows, offered_rate
from queuesmith.windows.predictions import OutputLengthKnowledge

ONE_SECOND = StepTime(a=1.0)
#: A prompt costs one step and gives the first token, so a request of n output tokens takes n steps.
TWO_SEATS = EngineConfig(
    max_num_seqs=2, max_num_batched_tokens=64, max_model_len=1000, instant_prefill=True
)
ONE_SEAT = replace(TWO_SEATS, max_num_seqs=1)
BUSY = Load("busy", 0.8)
HEAVY = Load("heavy", 1.5)


def make_trace(num_requests=60, seed=0, **columns):
    rng = np.random.default_rng(seed)
    return Trace(
        np.cumsum(rng.exponential(size=num_requests)),
        rng.integers(1, 50, num_requests),
        rng.integers(1, 9, num_requests),
        **columns,
    )


def make_policy(name, key="request.arrival_time", **constants):
    lines = [f"{constant} = {value!r}" for constant, value in constants.items()]
    source = "\n".join([*lines, "def waiting_key(request, engine):", f"    return {key}"])
    return load_text(name, source, Path(f"{name}.py"))


def run(policies=("fcfs", "sjf"), trace=None, loads=(BUSY, HEAVY), num_windows=3, **options):
    windows = cut_windows(trace or make_trace(), num_windows=num_windows, window_len=20)
    options = {
        "config": TWO_SEATS,
        "step_time": ONE_SECOND,
        "output_length": OutputLengthKnowledge("noisy"),
        **options,
    }
    return evaluate([get_policy(policy) for policy in policies], windows, loads, **options)


@pytest.fixture
def simulated(monkeypatch):
    """List what was simulated, without the bursts by which capacity is measured."""
    seen = []

    def spy(workload, compiled, config, step_time, **options):
        result = simulate_workload(workload, compiled, config, step_time, **options)
        if workload.trace.duration > 0:
            seen.append(
                SimpleNamespace(policy=compiled.policy.name, config=config, workload=workload)
            )
        return result

    simulate_workload = queuesmith.evaluation.evaluate.simulate_workload
    monkeypatch.setattr(queuesmith.evaluation.evaluate, "simulate_workload", spy)
    return seen


def numbers_of(evaluation):
    """Return every number of an evaluation as bytes, NaN included."""
    parts = [np.asarray(evaluation.cells[name]).tobytes() for name in METRICS]
    for samples in evaluation.samples.values():
        parts += [samples.ttft.tobytes(), samples.slowdown.tobytes(), samples.window.tobytes()]
    return b"".join([*parts, evaluation.capacity.tobytes()])


@pytest.mark.parametrize(("output_len", "seconds"), [(1, 1.0), (4, 1.0), (5, 0.02)])
def test_one_seat_carries_one_request_per_service_time(output_len, seconds):
    trace = Trace([0.0, 9.0, 20.0], [30, 20, 10], [output_len] * 3)

    carried = capacity(trace, ONE_SEAT, StepTime(a=seconds))

    assert carried == pytest.approx(1 / (output_len * seconds))


def test_ramp_up_and_drain_cancel_in_the_capacity():
    """Outputs 1 and 3 on two seats end at 3 s, twice in a row at 5 s: 2 / (5 - 3), not 2 / 3."""
    trace = Trace([0.0, 1.0], prompt_len=[10, 10], output_len=[1, 3])

    assert capacity(trace, TWO_SEATS, ONE_SECOND) == pytest.approx(1.0)


def test_requests_that_would_run_side_by_side_are_repeated_until_the_seats_are_full():
    """Two requests on 64 seats take 4 s, and so do four; 64 take 4 s, and 128 take 8 s."""
    trace = Trace([0.0, 1.0], prompt_len=[10, 10], output_len=[4, 4])

    assert capacity(trace, replace(TWO_SEATS, max_num_seqs=64), ONE_SECOND) == pytest.approx(16.0)


def test_an_answer_that_outlasts_all_others_does_not_make_the_capacity_infinite():
    """Outputs 99, 1 and 1 on four seats: a second copy runs beside the first and ends with it."""
    trace = Trace([0.0, 1.0, 2.0], prompt_len=[10] * 3, output_len=[99, 1, 1])

    carried = capacity(trace, replace(TWO_SEATS, max_num_seqs=4), ONE_SECOND)

    assert carried == pytest.approx(4 / (101 / 3), rel=0.05)


def test_capacity_does_not_depend_on_when_requests_came():
    trace = make_trace()
    slower = replace(trace, arrival_time=trace.arrival_time * 17 + 5)

    assert capacity(trace, TWO_SEATS, ONE_SECOND) == capacity(slower, TWO_SEATS, ONE_SECOND)


@given(seed=st.integers(0, 99), num_requests=st.integers(2, 40), rho=st.floats(0.01, 5))
@settings(max_examples=30, deadline=None)
def test_a_trace_is_scaled_to_the_load_that_was_asked_for(seed, num_requests, rho):
    trace = make_trace(num_requests, seed)

    scaled = scale_to_load(trace, Load("", rho), TWO_SEATS, ONE_SECOND)

    carried = capacity(trace, TWO_SEATS, ONE_SECOND)
    assert offered_rate(scaled) / carried == pytest.approx(rho)
    assert scaled.prompt_len.tolist() == trace.prompt_len.tolist()


def test_what_can_never_run_does_not_count_towards_the_load():
    trace = Trace([0.0, 1.0, 2.0, 3.0], prompt_len=[10, 10, 5000, 10], output_len=[2, 2, 2, 2])

    scaled = scale_to_load(trace, Load("", 0.5), ONE_SEAT, ONE_SECOND)

    assert offered_rate(scaled) == pytest.approx(0.5 * 1 / 2)


def test_every_window_is_offered_the_share_of_its_own_capacity(simulated):
    evaluation = run(num_workers=1)

    assert len(simulated) == 2 * 2 * 3
    assert len(set(evaluation.capacity)) == 3
    for number, seen in enumerate(simulated):
        rho = (BUSY, HEAVY)[number // 3 % 2].rho
        rate = offered_rate(seen.workload.trace)
        assert rate / evaluation.capacity[number % 3] == pytest.approx(rho)


def test_every_policy_serves_the_same_requests_predictions_and_deadlines(simulated):
    run(["fcfs", "sjf", "lcfs", make_policy("bundle", ENGINE={"max_num_seqs": 1})], num_workers=1)

    per_policy = len(simulated) // 4
    for place, reference in enumerate(simulated[:per_policy]):
        for other in simulated[place + per_policy :: per_policy]:
            for column in ("predicted_output_tokens", "deadline", "output_len", "max_tokens"):
                mine, theirs = (getattr(seen.workload, column) for seen in (other, reference))
                assert mine.tolist() == theirs.tolist()
            assert other.workload.trace.sha256 == reference.workload.trace.sha256


def test_windows_and_seeds_have_noise_of_their_own(simulated):
    trace = Trace(np.arange(40.0), np.full(40, 9), np.full(40, 1000))
    options = {"trace": trace, "loads": [BUSY], "policies": ["fcfs"], "num_windows": 2}
    config = replace(TWO_SEATS, max_model_len=4000)

    for seed in (0, 0, 5):
        run(**options, config=config, seed=seed, num_workers=1)

    first, second, again, _, other, _ = (
        tuple(seen.workload.predicted_output_tokens) for seen in simulated
    )
    assert first == again
    assert len({first, second, other}) == 3


def test_a_deadline_is_five_times_what_the_prediction_takes_on_an_idle_engine(simulated):
    run(["fcfs"], loads=[BUSY], num_windows=1)

    workload = simulated[0].workload
    left = workload.deadline - workload.trace.arrival_time
    assert left == pytest.approx(5 * workload.predicted_output_tokens * ONE_SECOND.a)
    assert left != pytest.approx(5 * workload.output_len)


def test_where_nothing_is_predicted_deadlines_are_built_from_the_median_output(simulated):
    run(["fcfs"], loads=[BUSY], num_windows=1, output_length=OutputLengthKnowledge("none"))

    workload = simulated[0].workload
    assert np.isnan(workload.predicted_output_tokens).all()
    left = workload.deadline - workload.trace.arrival_time
    assert left == pytest.approx(np.full(20, 5 * np.median(workload.output_len)))


def test_deadlines_of_the_trace_keep_their_distance_at_every_load(simulated):
    slack = np.random.default_rng(1).uniform(1, 9, 60)
    trace = make_trace()
    trace = replace(trace, deadline=trace.arrival_time + slack)

    run(["fcfs"], trace, num_windows=1)

    start = cut_windows(trace, num_windows=1, window_len=20)[0].start_row
    for seen in simulated:
        left = seen.workload.deadline - seen.workload.trace.arrival_time
        assert left == pytest.approx(slack[start : start + 20])


def test_a_bundle_changes_the_engine_of_its_own_runs_only(simulated):
    bundle = make_policy("bundle", ENGINE={"max_num_seqs": 1})

    together = run(["fcfs", bundle])

    assert {(seen.policy, seen.config.max_num_seqs) for seen in simulated} == {
        ("fcfs", 2),
        ("bundle", 1),
    }
    alone = run(["fcfs"])
    assert together.capacity.tolist() == alone.capacity.tolist()
    for load in (BUSY, HEAVY):
        fcfs = together.samples["fcfs", load.name]
        assert fcfs.ttft.tolist() == alone.samples["fcfs", load.name].ttft.tolist()
        assert together.samples["bundle", load.name].ttft.mean() > fcfs.ttft.mean()


def test_what_one_engine_cannot_run_is_left_out_for_every_policy(simulated):
    trace = make_trace()
    longest = np.sort(trace.prompt_len)[-5]
    num_long = int((trace.prompt_len >= longest).sum())
    bundle = make_policy("bundle", ENGINE={"max_model_len": int(longest)})

    evaluation = run(["fcfs", bundle], trace, num_windows=3)

    assert evaluation.num_dropped == num_long
    for samples in evaluation.samples.values():
        assert len(samples.ttft) == 60 - num_long
        assert samples.prompt_len.max() < longest
    assert run(["fcfs"], trace).num_dropped == 0


def test_cut_outputs_are_counted():
    trace = Trace(np.arange(20.0), np.full(20, 990), [*[5] * 18, 50, 60])

    evaluation = run(trace=trace, num_windows=1, loads=[BUSY])

    assert evaluation.num_truncated == 2
    assert evaluation.samples["fcfs", "busy"].output_len[-2:].tolist() == [10, 10]


@pytest.mark.parametrize("num_workers", [2, 4])
def test_any_number_of_workers_gives_the_same_bytes(num_workers):
    policies = ["fcfs", "sjf", "srpt", "hrrn"]

    assert numbers_of(run(policies, num_workers=num_workers)) == numbers_of(
        run(policies, num_workers=1)
    )


def test_cells_have_a_row_for_every_policy_load_and_window_with_every_metric():
    cells = run(slo=Slo(ttft=3.0)).cells

    assert cells.column_names == ["policy", "load", "rho", "window", *METRICS]
    keys = zip(*(cells[name].to_pylist() for name in ("policy", "load", "window")), strict=True)
    assert list(keys) == [
        (policy, load, window)
        for policy in ("fcfs", "sjf")
        for load in ("busy", "heavy")
        for window in range(3)
    ]
    assert set(cells["rho"].to_pylist()) == {0.8, 1.5}
    assert cells["num_requests"].to_pylist() == [20] * 12
    assert 0 < min(cells["slo_attainment"].to_pylist()) < 1


def test_without_an_slo_there_is_no_attainment():
    cells = run().cells

    assert np.isnan(cells["slo_attainment"].to_numpy()).all()


def test_a_row_of_the_samples_is_the_same_request_under_every_policy():
    trace = make_trace()

    evaluation = run(["fcfs", "sjf"], trace)

    served = np.concatenate(
        [window.trace.prompt_len for window in cut_windows(trace, num_windows=3, window_len=20)]
    )
    for samples in evaluation.samples.values():
        assert samples.prompt_len.tolist() == served.tolist()
        assert samples.window.tolist() == [0] * 20 + [1] * 20 + [2] * 20
    heavy = evaluation.samples["sjf", "heavy"]
    means = [heavy.ttft[heavy.window == window].mean() for window in range(3)]
    cells = [row for row in evaluation.cells.to_pylist() if row["load"] == "heavy"]
    assert [row["ttft_mean"] for row in cells[3:]] == pytest.approx(means)


def test_nobody_is_slowed_down_by_less_than_one():
    """E2EL alone is the least there is, and at rho 0.3 somebody meets an idle engine."""
    evaluation = run(["fcfs"], loads=[Load("light", 0.3)])

    slowdown = evaluation.samples["fcfs", "light"].slowdown
    assert slowdown.min() == pytest.approx(1.0)
    assert (slowdown >= 1 - 1e-9).all()


def test_progress_counts_every_run():
    seen = []

    run(progress=seen.append)

    assert seen == list(range(1, 13))


def test_a_policy_that_fails_in_one_run_leaves_no_result():
    """It divides by zero only where somebody has waited for 20 s, long after the first runs."""
    late = make_policy("late", "1 / (engine.now - request.arrival_time < 20.0)")

    with pytest.raises(PolicyError, match="'late' failed in waiting_key, line 2"):
        run(["fcfs", late], loads=[Load("0.1", 0.1), Load("9", 9.0)])


def test_engine_settings_that_contradict_each_other_name_the_policy():
    bundle = make_policy("greedy", ENGINE={"max_num_seqs": 65})

    with pytest.raises(ConfigError, match=r"ENGINE of policy 'greedy': .*\(64\) must be at least"):
        run(["fcfs", bundle])


def test_requests_that_fit_nowhere_are_counted_by_reason():
    trace = Trace(np.arange(20.0), [2000] * 5 + [900] * 15, np.full(20, 3))
    config = replace(TWO_SEATS, num_gpu_blocks=10)

    with pytest.raises(TraceError, match=r"5 prompts reach max_model_len .* 15 sequences exceed"):
        run(trace=trace, num_windows=1, config=config)


def test_requests_that_fit_no_engine_common_to_all_are_refused():
    bundle = make_policy("tiny", ENGINE={"max_model_len": 1})

    with pytest.raises(TraceError, match="no request fits the engines of all policies at once"):
        run(["fcfs", bundle])


def test_one_request_has_no_rate():
    with pytest.raises(TraceError, match=r"only one request is left.*give a longer trace"):
        run(trace=Trace([0.0], [10], [3]))


def test_a_burst_has_no_rate():
    trace = Trace(np.zeros(20), np.full(20, 10), np.full(20, 3))

    with pytest.raises(TraceError, match="arrive at the same time"):
        run(trace=trace)


@pytest.mark.parametrize("num_workers", [0, -1])
def test_there_must_be_a_worker(num_workers):
    with pytest.raises(ConfigError, match="num_workers must be at least 1"):
        run(num_workers=num_workers)


def test_loads_are_read_from_text_numbers_and_loads():
    assert parse_loads(["knee", 1.25, "2", BUSY]) == [
        Load("knee", 0.95),
        Load("1.25", 1.25),
        Load("2", 2.0),
        BUSY,
    ]
    assert [load.name for load in parse_loads(" light , heavy")] == ["light", "heavy"]
    assert parse_loads("own,6/s,0.5/s") == [OWN, Load("6/s", rate=6.0), Load("0.5/s", rate=0.5)]


def test_the_own_load_is_the_traffic_as_it_is(simulated):
    run(policies=["fcfs"], loads=[OWN], num_workers=1)

    for seen, window in zip(
        simulated, cut_windows(make_trace(), num_windows=3, window_len=20), strict=True
    ):
        gaps = np.diff(seen.workload.trace.arrival_time)
        assert gaps == pytest.approx(np.diff(window.trace.arrival_time))


def test_a_rate_scales_all_windows_by_one_factor(simulated):
    own, slow = (
        run(policies=["fcfs"], loads=[load], num_workers=1)
        for load in (OWN, Load("0.1/s", rate=0.1))
    )

    (offered,) = slow.loads
    assert (offered.name, offered.rate) == ("0.1/s", 0.1)
    assert offered.rho == pytest.approx(0.1 * own.own.rho / own.own.rate)
    assert own.loads[0] == own.own
    factors = [
        scaled.workload.trace.duration / seen.workload.trace.duration
        for seen, scaled in zip(simulated[:3], simulated[3:], strict=True)
    ]
    assert factors == pytest.approx([own.own.rate / 0.1] * 3)


@pytest.mark.parametrize(
    ("loads", "message"),
    [
        ("kneee", "no load 'kneee'. Did you mean 'knee'"),
        ("6/h", "no load '6/h'"),
        ("0/s", "a rate must be above 0 and at most 1e6/s, got 0.0/s"),
        ("/s", "no load '/s'"),
        ("own,own", "given twice: own, own"),
        ("", "no load ''"),
        ("busy,,knee", "no load ''"),
        ("0", "above 0 and at most 100, got 0.0"),
        ("-1", "got -1.0"),
        ("nan", "got nan"),
        ("inf", "got inf"),
        ("101", "got 101.0"),
        ("busy,0.8", "given twice: busy, 0.8"),
        ([], "no load was given"),
    ],
)
def test_a_load_that_makes_no_sense_is_refused(loads, message):
    with pytest.raises(ConfigError) as raised:
        parse_loads(loads)

    assert message in str(raised.value)

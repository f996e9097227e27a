"""The score from a mean and a tail is the score; bounds are bounds; what no policy can beat."""

import itertools
import pickle
from contextlib import ExitStack
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queuesmith.config import EngineConfig
from queuesmith.engine.step_time import StepTime, get_preset
from queuesmith.evaluation.evaluate import Load, evaluate
from queuesmith.evolve.bounds import least_mean_ttft, least_rate, least_ttft
from queuesmith.evolve.champion import samples
from queuesmith.evolve.evaluator import SandboxEvaluator
from queuesmith.evolve.sandbox import Outcome
from queuesmith.evolve.tuning import (
    Cell,
    CellResult,
    Limit,
    Scale,
    StopRule,
    hopeless,
    make_scale,
    prepare_traffic,
    tail_len,
)
from queuesmith.output_length import OutputLengthKnowledge
from queuesmith.policies import get_policy, policy_names
from queuesmith.score import Configuration, Sample, score, tail_violation
from queuesmith.traces import load_trace
from queuesmith.windows import cut_windows

PRESET = get_preset("llama-3.1-8b/h100_sxm")
KNOWLEDGE = OutputLengthKnowledge("noisy")
LOADS = (Load("knee", 0.95), Load("heavy", 1.5))


def prepared(name="azure_2023_code@model", *, config=PRESET.config, num_windows=2, window_len=150):
    trace = load_trace(name, num_requests=2_000)
    windows = cut_windows(trace, num_windows=num_windows, window_len=window_len)
    return prepare_traffic(
        windows,
        [name] * num_windows,
        LOADS,
        config=config,
        step_time=PRESET.step_time,
        output_length=KNOWLEDGE,
        seed=0,
    )


@pytest.fixture(scope="module")
def traffic():
    return prepared()


@pytest.fixture(scope="module")
def scale(traffic):
    return make_scale(traffic)


def drawn_scale(rng, lengths=(300, 40, 200)):
    """TTFTs drawn for three windows of two sources at two loads: scale, times by cell, FCFS's."""
    sources = {0: "a", 1: "a", 2: "b"}
    cells = tuple(Cell(window, load) for window in sources for load in ("heavy", "knee"))
    length = tail_len(2 * max(lengths))
    fcfs = {cell: rng.lognormal(0.0, 1.0, lengths[cell.window]) for cell in cells}
    times = {cell: fcfs[cell] * rng.lognormal(-0.1, 0.5, lengths[cell.window]) for cell in cells}
    reference = {cell: CellResult.of(fcfs[cell], length) for cell in cells}
    least = {cell: CellResult.of(0.2 * times[cell], length) for cell in cells}
    return Scale(cells, sources, length, reference, least), times, fcfs


def as_samples(scale, times, windows):
    pooled = {}
    for cell in scale.cells:
        if cell.window in windows:
            key = Configuration(scale.sources[cell.window], cell.load)
            pooled.setdefault(key, []).append((times[cell], cell.window))
    return {
        key: Sample(
            np.concatenate([values for values, _ in parts]),
            np.concatenate([np.full(len(values), window) for values, window in parts]),
        )
        for key, parts in pooled.items()
    }


def results_of(scale, times):
    return {cell: CellResult.of(times[cell], scale.tail_len) for cell in times}


@given(seed=st.integers(0, 10_000), windows=st.sets(st.integers(0, 2), min_size=1))
@settings(max_examples=60)
def test_the_score_from_means_and_tails_is_the_score(seed, windows):
    scale, times, fcfs = drawn_scale(np.random.default_rng(seed))
    windows = sorted(windows)

    standing = scale.stand(results_of(scale, times), windows)

    whole = score(as_samples(scale, times, windows), as_samples(scale, fcfs, windows), draws=0)
    assert standing.score == pytest.approx(whole.value, abs=1e-12)
    for window, alone in zip(windows, standing.window_scores, strict=True):
        mine, theirs = (as_samples(scale, of, [window]) for of in (times, fcfs))
        assert alone == pytest.approx(score(mine, theirs, draws=0).value, abs=1e-12)


@given(seed=st.integers(0, 10_000))
@settings(max_examples=20)
def test_intervals_and_tails_from_what_is_kept_are_those_of_all_times(seed):
    scale, times, fcfs = drawn_scale(np.random.default_rng(seed))
    kept, base = samples(scale, results_of(scale, times)), samples(scale, scale.reference)
    whole, whole_base = (as_samples(scale, of, [0, 1, 2]) for of in (times, fcfs))

    ours, theirs = (score(*pair, draws=300) for pair in ((kept, base), (whole, whole_base)))

    for name in ("value", "low", "high"):
        expected = getattr(theirs, name)
        assert getattr(ours, name) == pytest.approx(expected, abs=1e-9, nan_ok=True)
    for key in whole:
        tail = tail_violation(kept[key], base[key], draws=300)
        assert tail.reason == tail_violation(whole[key], whole_base[key], draws=300).reason


@given(seed=st.integers(0, 10_000))
@settings(max_examples=60)
def test_whoever_violates_a_tail_is_not_clean(seed):
    """`Standing` leaves chance out, so some that it calls unclean pass the full test."""
    rng = np.random.default_rng(seed)
    scale, times, fcfs = drawn_scale(rng)
    cell = scale.cells[int(rng.integers(len(scale.cells)))]
    times[cell][int(rng.integers(len(times[cell])))] += rng.uniform(0, 30)

    standing = scale.stand(results_of(scale, times), [0, 1, 2])

    whole, base = (as_samples(scale, of, [0, 1, 2]) for of in (times, fcfs))
    violated = any(tail_violation(whole[key], base[key], draws=200).violated for key in whole)
    assert standing.clean or standing.reason
    assert not (violated and standing.clean)


@pytest.mark.parametrize(("longer", "clean"), [(1.0, True), (1.035, True), (1.045, False)])
def test_a_search_may_use_up_only_part_of_what_a_tail_may_be_longer(longer, clean):
    """1.045 is within the limit of a tail violation, and too near to it for other windows."""
    scale, _, fcfs = drawn_scale(np.random.default_rng(3))
    times = {cell: longer * seconds for cell, seconds in fcfs.items()}

    standing = scale.stand(results_of(scale, times), [0, 1, 2])

    whole, base = (as_samples(scale, of, [0, 1, 2]) for of in (times, fcfs))
    assert not any(tail_violation(whole[key], base[key], draws=200).violated for key in whole)
    assert standing.clean is clean


@given(seed=st.integers(0, 10_000), num_known=st.integers(0, 6))
@settings(max_examples=100)
def test_no_candidate_gets_better_than_its_bound(seed, num_known):
    scale, times, _ = drawn_scale(np.random.default_rng(seed))
    results = results_of(scale, times)
    known = dict(itertools.islice(results.items(), num_known))

    bound, final = scale.bound(known, [0, 1, 2]), scale.stand(results, [0, 1, 2])

    assert bound.score >= final.score - 1e-12
    assert bound.clean or not final.clean


@given(seed=st.integers(0, 10_000), asked=st.floats(-3, 3))
@settings(max_examples=60)
def test_only_the_hopeless_are_stopped(seed, asked):
    scale, times, _ = drawn_scale(np.random.default_rng(seed))
    rule = pickle.loads(pickle.dumps(StopRule(scale)))  # as a child process has it
    cells, limit = list(range(6)), Limit(asked, asked + 0.5)
    final = scale.stand(results_of(scale, times), [0, 1, 2])
    ordered = [times[cell] for cell in scale.cells]

    stops = [rule(cells, ordered[:count], limit) for count in range(7)]

    assert not stops[6]  # nothing is left to be saved
    assert stops[:6] == sorted(stops[:6])  # once hopeless, always hopeless
    if any(stops):
        assert hopeless(final, limit)
    assert not any(rule(cells, ordered[:count], Limit()) for count in range(7))


def test_cells_are_those_of_evaluate(traffic):
    """The same windows, loads, predictions and deadlines: the same times to first token."""
    trace = load_trace("azure_2023_code@model", num_requests=2_000)
    windows = cut_windows(trace, num_windows=2, window_len=150)
    policy = get_policy("edf")
    evaluation = evaluate(
        [policy],
        windows,
        LOADS,
        config=PRESET.config,
        step_time=PRESET.step_time,
        output_length=KNOWLEDGE,
    )

    measured = traffic.measure(policy)

    for cell, result in measured.items():
        pooled = evaluation.samples["edf", cell.load]
        times = pooled.ttft[pooled.window == cell.window]
        assert result.mean == pytest.approx(times.mean(), rel=1e-12)
        assert np.array_equal(result.tail, np.sort(times)[-len(result.tail) :])


def test_the_heaviest_load_of_a_window_runs_first(traffic):
    assert [cell.load for cell in traffic.cells] == ["heavy", "knee"] * 2


def test_fcfs_has_score_0_and_its_tail(traffic, scale):
    standing = scale.stand(traffic.measure(get_policy("fcfs")), [0, 1])

    assert standing.score == 0.0
    assert standing.window_scores == (0.0, 0.0)
    assert standing.clean


@pytest.mark.parametrize("budget", [2_048, 512, 300])
@pytest.mark.parametrize("name", ["azure_2023_code@model", "mooncake_conversation@model"])
def test_no_policy_beats_physics(name, budget):
    """None of the built-in ones, on small and large budgets."""
    config = PRESET.config.override(
        {"max_num_batched_tokens": budget, "max_num_seqs": 256, "enable_prefix_caching": False}
    )
    traffic = prepared(name, config=config, num_windows=1, window_len=100)
    for workload in traffic.workloads:
        alone = least_ttft(workload, config, PRESET.step_time)
        mean = least_mean_ttft(workload, config, PRESET.step_time)
        assert (alone > 0).all()
        assert mean > 0
    for policy in policy_names():
        for cell, workload in zip(traffic.cells, traffic.workloads, strict=True):
            result = traffic.measure(get_policy(policy))[cell]
            alone = np.sort(least_ttft(workload, config, PRESET.step_time))
            assert (result.tail >= alone[-len(result.tail) :]).all()
            assert result.mean >= least_mean_ttft(workload, config, PRESET.step_time)


def test_the_bound_on_the_mean_is_worth_having():
    """On prompt-heavy traffic under load it is near what the best policies reach."""
    traffic = prepared(window_len=600, num_windows=1)
    best = traffic.measure(get_policy("residual_sjf"))[traffic.cells[0]].mean

    bound = least_mean_ttft(traffic.workloads[0], traffic.config, traffic.step_time)

    assert 0.5 * best < bound < best


@given(
    st.floats(0.0, 0.01),
    st.floats(0.0, 1e-4),
    st.floats(0.0, 1e-4),
    st.integers(0, 600),
    st.integers(1, 500),
)
def test_no_step_is_cheaper_per_token_than_the_least_rate(a, b1, b2, t0, budget):
    step_time = StepTime(a=a + 1e-6, b1=b1, b2=b2, t0=float(t0), f=1e-4)

    rate = least_rate(EngineConfig(max_num_seqs=1, max_num_batched_tokens=budget), step_time)

    each = [step_time.seconds(tokens, 0, 0, 0.0) / tokens for tokens in range(1, budget + 1)]
    assert rate <= min(each) * (1 + 1e-9)
    if t0 <= budget:
        assert rate == pytest.approx(min(each), rel=1e-6)


def best_mean_by_trying_everything(arrivals, works):
    """Least mean flow time on a preemptive machine, by trying every choice at every instant."""
    states = {tuple(works): 0}
    now = 0
    best = None
    while states:
        following = {}
        for left, spent in states.items():
            if not any(left):
                best = spent if best is None else min(best, spent)
                continue
            here = [k for k in range(len(left)) if left[k] and arrivals[k] <= now]
            for k in here or [None]:
                after = list(left)
                done = 0
                if k is not None:
                    after[k] -= 1
                    done = 0 if after[k] else now + 1 - arrivals[k]
                key = tuple(after)
                following[key] = min(following.get(key, np.inf), spent + done)
        states = following
        now += 1
    return best / len(arrivals)


@given(
    st.lists(st.tuples(st.integers(0, 8), st.integers(1, 5)), min_size=1, max_size=5),
)
@settings(max_examples=40)
def test_the_bound_on_the_mean_is_the_best_of_all_schedules(jobs):
    """On a machine whose steps cost nothing but tokens the relaxation is exact."""
    jobs.sort()
    arrivals, works = [list(column) for column in zip(*jobs, strict=True)]
    step_time = StepTime(a=1e-12, b1=1.0, b2=1.0)
    workload = SimpleNamespace(
        trace=SimpleNamespace(
            arrival_time=np.array(arrivals, float),
            prompt_len=np.array(works, np.int64),
        ),
        contents=None,
    )

    bound = least_mean_ttft(workload, PRESET.config, step_time)

    assert bound == pytest.approx(best_mean_by_trying_everything(arrivals, works), rel=1e-6)


class Liar:
    """A sandbox whose candidates all stop after one cell."""

    def __init__(self, scale, times):
        self.scale, self.times = scale, times

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def run(self, texts, *, cells, limits):
        first = self.times[self.scale.cells[cells[0]]]
        return (Outcome("ok", "", (first,), "", 0.1) for _ in texts)


def test_who_stops_without_having_to_is_not_believed():
    scale, times, _ = drawn_scale(np.random.default_rng(1))
    bound = scale.bound(results_of(scale, dict([next(iter(times.items()))])), [0, 1, 2]).score
    with ExitStack() as stack:
        evaluator = SandboxEvaluator(Liar(scale, times), scale, stack)
        limits = [Limit(bound + 1, bound + 1), Limit(bound - 1, bound - 1), Limit()]

        found = list(evaluator.evaluate(["a", "b", "c"], [0, 1, 2], limits))

    assert [one.status for one in found] == ["stopped", "crash", "crash"]
    assert found[1].reason == "it stopped without having to"
    assert [len(one.results) for one in found] == [1, 0, 0]

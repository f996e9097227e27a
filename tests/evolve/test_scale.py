"""The score from a mean and a tail is the score; bounds are bounds; what no policy can beat."""

import itertools
import pickle
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queuesmith.config import EngineConfig, Slo
from queuesmith.engine.presets.step_time import StepTime, get_preset
from queuesmith.engine.result import ITL_EDGES, RESULT_DTYPE, Result
from queuesmith.evaluation.evaluate import Load, evaluate
from queuesmith.evaluation.goals import GOALS, GUARDS, Guard
from queuesmith.evaluation.samples import pool
from queuesmith.evaluation.score import gain_and_excess, search_score
from queuesmith.evaluation.statistics import STATISTICS
from queuesmith.evolve.sandbox.evaluator import SandboxEvaluator
from queuesmith.evolve.sandbox.sandbox import Outcome
from queuesmith.evolve.scoring.cells import (
    TOTALS,
    Cell,
    CellResult,
    Keep,
    pooled,
    samples_of,
    tail_len,
)
from queuesmith.evolve.scoring.least_ttft import least_mean_ttft, least_rate, least_ttft
from queuesmith.evolve.scoring.scale import (
    Limit,
    Scale,
    StopRule,
    hopeless,
    make_scale,
    prepare_traffic,
)
from queuesmith.policies import get_policy, policy_names
from queuesmith.traces import load_trace
from queuesmith.traces.trace import Trace
from queuesmith.windows import cut_windows
from queuesmith.windows.predictions import OutputLengthKnowledge

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


def drawn_results(rng, lengths=(300, 40, 200), factor=1.0, of=None):
    """Results drawn for three windows of two sources at two loads: as runs, and what is kept.

    With `of`, each request and each total is that of these results times about `factor`.
    """
    cells = [Cell(window, load) for window in SOURCES for load in ("heavy", "knee")]
    found = {}
    for cell in cells:
        size = lengths[cell.window]
        if of is None:
            output = rng.integers(1, 30, size)
            ttft, gap = rng.lognormal(0.0, 1.0, size), rng.lognormal(-4, 0.3, size)
        else:
            before = of[cell]
            output = before.requests.output_len
            ttft = before.requests.first_token_ts * factor * rng.lognormal(0.0, 0.3, size)
            last = before.requests.last_token_ts - before.requests.first_token_ts
            gap = last / np.maximum(output - 1, 1) * rng.lognormal(0.0, 0.1, size)
        rows = np.zeros(size, RESULT_DTYPE).view(np.recarray)
        rows.output_len, rows.first_token_ts = output, ttft
        rows.last_token_ts = ttft + gap * (output - 1)
        rows.prompt_len = 10
        itl = np.histogram(np.repeat(gap, output - 1), ITL_EDGES)[0]
        found[cell] = Result(
            policy="drawn",
            trace=Trace(np.zeros(size), rows.prompt_len, output),
            requests=rows,
            itl_counts=itl,
            num_steps=9,
            num_jumps=0,
            num_computed_tokens=int(1e4 + rng.integers(0, 500)),
            num_recomputed_tokens=int(rng.integers(0, 500)),
            end_time=float(rows.last_token_ts.max()),
            num_dropped=0,
        )
    return found


SOURCES = {0: "a", 1: "a", 2: "b"}
SLO = Slo(ttft=1.0, tpot=0.02)


def alone_of(results):
    return [np.full(len(one.requests), 0.5) for one in results.values()]


def drawn_scale(rng, slo=SLO):
    """Draw FCFS and a policy: the scale, what the policy's runs were, and FCFS's."""
    fcfs = drawn_results(rng)
    mine = drawn_results(rng, factor=float(rng.uniform(0.6, 1.1)), of=fcfs)
    keep = Keep(tail_len(2 * 300), tuple(alone_of(fcfs)), slo)
    kept = {cell: CellResult(keep(place, one)) for place, (cell, one) in enumerate(fcfs.items())}
    least = {}
    for place, (cell, one) in enumerate(mine.items()):
        rows = one.requests.copy()
        rows.first_token_ts = 0.5 * one.requests.first_token_ts
        better = replace(
            one,
            requests=rows.view(np.recarray),
            itl_counts=np.eye(1, len(ITL_EDGES) - 1, dtype=np.int64)[0] * one.itl_counts.sum(),
            num_recomputed_tokens=0,
        )
        rows.last_token_ts = rows.first_token_ts + 0.5 * (
            one.requests.last_token_ts - one.requests.first_token_ts
        )
        better = replace(better, end_time=float(rows.last_token_ts.max()))
        least[cell] = CellResult(keep(place, better))
    goal = GOALS["ttft"]
    return Scale(tuple(fcfs), SOURCES, goal, GUARDS, slo, kept, least), keep, mine, fcfs


def results_of(keep, runs):
    return {cell: CellResult(keep(place, one)) for place, (cell, one) in enumerate(runs.items())}


def as_samples(runs, windows, slo=SLO):
    groups = {}
    for cell, one in runs.items():
        if cell.window in windows:
            groups.setdefault((SOURCES[cell.window], cell.load), []).append((cell.window, one))
    return {
        key: pool(
            [one for _, one in parts],
            [np.full(len(one.requests), 0.5) for _, one in parts],
            [window for window, _ in parts],
            slo,
        )
        for key, parts in groups.items()
    }


@given(seed=st.integers(0, 10_000), slo=st.sampled_from([None, SLO]))
@settings(max_examples=40)
def test_what_is_kept_gives_every_statistic_of_all_requests(seed, slo):
    """Against `queuesmith.evaluation.statistics`: pooled, alone, and in draws of windows."""
    _, keep, mine, _ = drawn_scale(np.random.default_rng(seed), slo)
    results = results_of(keep, mine)
    one = np.ones((1, 2), np.int64)
    whole = as_samples(mine, [0, 1], slo)["a", "heavy"]
    group = [results[Cell(0, "heavy")], results[Cell(1, "heavy")]]

    found = pooled([group], has_slo=slo is not None)
    filled = samples_of(list(enumerate(group)), has_slo=slo is not None)

    weights = np.array([[1, 1], [2, 0], [0, 2]])
    assert found.keys() - {"num_requests"} == STATISTICS.keys()
    for name, statistic in STATISTICS.items():
        (expected,) = statistic.values(whole, one)
        assert found[name][0] == pytest.approx(expected, rel=1e-12, nan_ok=True), name
        np.testing.assert_allclose(
            statistic.values(filled, weights), statistic.values(whole, weights), rtol=1e-9
        )
    for cell, result in results.items():
        again = CellResult.unpack(result.pack())
        assert np.array_equal(again.values, result.values), cell


@given(
    seed=st.integers(0, 10_000),
    windows=st.sets(st.integers(0, 2), min_size=1),
    goal=st.sampled_from(sorted(GOALS)),
)
@settings(max_examples=60)
def test_the_fitness_is_that_of_all_requests(seed, windows, goal):
    """Against `gain_and_excess`, which pools the requests themselves."""
    scale, keep, mine, fcfs = drawn_scale(np.random.default_rng(seed))
    scale = replace(scale, goal=GOALS[goal])
    windows = sorted(windows)

    def fitness(chosen):
        ours, theirs = (as_samples(runs, chosen) for runs in (mine, fcfs))
        gains, excesses = [], []
        for key, one in ours.items():
            weights = np.ones((1, len(one.windows)), np.int64)
            gain, excess = gain_and_excess(one, theirs[key], scale.goal, GUARDS, weights)
            gains.append(gain[0])
            excesses.append(excess[0])
        return search_score(np.mean(gains), max(excesses)), max(excesses)

    standing = scale.stand(results_of(keep, mine), windows)

    expected, excess = fitness(windows)
    assert standing.score == pytest.approx(expected, abs=1e-9)
    assert standing.clean == (excess < 1)
    for window, alone in zip(windows, standing.window_scores, strict=True):
        assert alone == pytest.approx(fitness([window])[0], abs=1e-9)


@pytest.mark.parametrize(
    ("longer", "score", "clean"),
    [(1.0, 0.0, True), (1.02, 0.0, True), (1.0375, -0.5, True), (1.06, -1.0, False)],
)
def test_a_search_is_warned_from_half_of_a_margin_on(longer, score, clean):
    """p99 TTFT has a margin of 5 %; the mean is as it was."""
    scale, keep, _, fcfs = drawn_scale(np.random.default_rng(3))
    scale = replace(scale, guards=(Guard("ttft_p99", 0.05),))
    results = results_of(keep, fcfs)
    for cell, one in results.items():
        values = one.values.copy()
        tails = values[len(TOTALS) + len(ITL_EDGES) - 1 :].reshape(3, -1)
        tails[0] *= longer
        results[cell] = CellResult(values)

    standing = scale.stand(results, [0, 1, 2])

    assert standing.score == pytest.approx(score, abs=1e-9)
    assert standing.clean is clean


@given(seed=st.integers(0, 10_000), num_known=st.integers(0, 6))
@settings(max_examples=100)
def test_no_candidate_gets_better_than_its_bound(seed, num_known):
    scale, keep, mine, _ = drawn_scale(np.random.default_rng(seed))
    results = results_of(keep, mine)
    known = dict(itertools.islice(results.items(), num_known))

    bound, final = scale.bound(known, [0, 1, 2]), scale.stand(results, [0, 1, 2])

    assert bound.score >= final.score - 1e-12
    assert bound.clean or not final.clean


@given(seed=st.integers(0, 10_000), asked=st.floats(-3, 3))
@settings(max_examples=60)
def test_only_the_hopeless_are_stopped(seed, asked):
    scale, keep, mine, _ = drawn_scale(np.random.default_rng(seed))
    rule = pickle.loads(pickle.dumps(StopRule(scale)))  # as a child process has it
    cells, limit = list(range(6)), Limit(asked, asked + 0.5)
    results = results_of(keep, mine)
    final = scale.stand(results, [0, 1, 2])
    ordered = [results[cell].values for cell in scale.cells]

    stops = [rule(cells, ordered[:count], limit) for count in range(1, 7)]

    assert not stops[5]  # nothing is left to be saved
    at_ends = [stops[place] for place in (1, 3)]  # of a window: only there it looks
    assert at_ends == sorted(at_ends)  # once hopeless, always hopeless
    assert not stops[0]
    assert not stops[2]
    if any(stops):
        assert hopeless(final, limit)
    assert not any(rule(cells, ordered[:count], Limit()) for count in range(1, 7))


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
        tail = result.tails[0]
        tail = tail[tail > 0]
        assert np.array_equal(tail, np.sort(times)[-len(tail) :])


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
    scale = make_scale(traffic)
    for policy in policy_names():
        results = traffic.measure(get_policy(policy))
        for cell, least in scale.least.items():
            mine = results[cell]
            assert (mine.tails >= least.tails).all(), policy
            found, bound = pooled([[mine]]), pooled([[least]])
            for name, statistic in STATISTICS.items():
                worse = statistic.worse(found[name][0] - bound[name][0])
                assert worse >= -1e-9 * abs(bound[name][0]), (policy, name)


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


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(1, 5)), min_size=1, max_size=5))
@settings(max_examples=40)
def test_the_bound_on_the_mean_is_the_best_of_all_schedules(jobs):
    """On a machine whose steps cost nothing but tokens the relaxation is exact."""
    jobs.sort()
    arrivals, works = [list(column) for column in zip(*jobs, strict=True)]
    step_time = StepTime(a=1e-12, b1=1.0, b2=1.0)
    workload = SimpleNamespace(
        trace=SimpleNamespace(
            arrival_time=np.array(arrivals, float), prompt_len=np.array(works, np.int64)
        ),
        contents=None,
    )

    bound = least_mean_ttft(workload, PRESET.config, step_time)

    assert bound == pytest.approx(best_mean_by_trying_everything(arrivals, works), rel=1e-6)


class Liar:
    """A sandbox whose candidates all stop after one cell."""

    def __init__(self, scale, results):
        self.scale, self.results = scale, results

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def run(self, texts, *, cells, limits):
        first = self.results[self.scale.cells[cells[0]]].values
        return (Outcome("ok", "", (first,), "", 0.1) for _ in texts)


def test_who_stops_without_having_to_is_not_believed():
    scale, keep, mine, _ = drawn_scale(np.random.default_rng(1))
    results = results_of(keep, mine)
    bound = scale.bound(dict([next(iter(results.items()))]), [0, 1, 2]).score
    with ExitStack() as stack:
        evaluator = SandboxEvaluator(Liar(scale, results), scale, stack)
        limits = [Limit(bound + 1, bound + 1), Limit(bound - 1, bound - 1), Limit()]

        found = list(evaluator.evaluate(["a", "b", "c"], [0, 1, 2], limits))

    assert [one.status for one in found] == ["stopped", "crash", "crash"]
    assert found[1].reason == "it stopped without having to"
    assert [len(one.results) for one in found] == [1, 0, 0]

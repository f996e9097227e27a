"""Parameters chosen on other windows than those that judge them."""

import numpy as np
import pytest

from constructed import FCFS, make_samples
from queuesmith.errors import PolicyError
from queuesmith.evaluation.goals import GOALS, GUARDS
from queuesmith.evaluation.tuned import mix, parse_grid, tune

SPEC = "aged_sjf(SECONDS_PER_TOKEN=0.001|0.01)"
LOW, HIGH = "aged_sjf(SECONDS_PER_TOKEN=0.001)", "aged_sjf(SECONDS_PER_TOKEN=0.01)"


def choose(low, high):
    samples = {
        ("fcfs", "knee"): make_samples(FCFS),
        (LOW, "knee"): make_samples(low),
        (HIGH, "knee"): make_samples(high),
    }
    grid = parse_grid(SPEC)
    assert grid is not None
    return tune(grid, ["knee"], samples, GOALS["ttft"], GUARDS), samples


def test_a_grid_is_a_policy_with_several_values():
    grid = parse_grid(SPEC)

    assert grid is not None
    assert (grid.name, grid.parameter) == ("aged_sjf", "SECONDS_PER_TOKEN")
    assert [member.name for member in grid.members] == [LOW, HIGH]
    assert parse_grid("aged_sjf(SECONDS_PER_TOKEN=0.001)") is None
    assert parse_grid("./a|b.py") is None


@pytest.mark.parametrize(
    "spec",
    [
        "uniboost(GAMMA=1|1)",
        "estimated_service_time_first(PROMPT_WEIGHT=1|2, OUTPUT_WEIGHT=1|2)",
        "aged_sjf(SECONDS_PER_TOKEN=0.1|)",
        "aged_sjf(NOTHING=1|2)",
    ],
)
def test_a_grid_that_makes_no_sense_is_refused(spec):
    with pytest.raises(PolicyError):
        parse_grid(spec)


def test_the_value_that_is_best_on_all_other_windows_is_taken():
    tuned, samples = choose(FCFS * 0.5, FCFS * 0.8)

    assert (tuned.policy.name, tuned.agreement) == (LOW, 1.0)
    assert np.array_equal(tuned.samples["knee"].ttft, samples[LOW, "knee"].ttft)


def test_a_value_that_breaks_a_guard_is_not_taken():
    starving = FCFS * 0.1
    starving[:, 0] = 100.0

    assert choose(starving, FCFS * 0.8)[0].policy.name == HIGH


def test_choosing_between_chances_does_not_flatter():
    """Both values are as good as FCFS, each by luck better in some windows: no gain is left."""
    rng = np.random.default_rng(5)
    low, high = (FCFS * np.exp(rng.normal(0, 0.2, (8, 1))) for _ in range(2))
    best = np.minimum(low.mean(axis=1), high.mean(axis=1)).mean()

    tuned, _ = choose(low, high)

    assert best < min(low.mean(), high.mean())
    assert tuned.samples["knee"].ttft.mean() > best


def test_windows_are_taken_from_the_run_that_was_chosen():
    one, other = make_samples(FCFS), make_samples(FCFS * 2)
    chosen = np.array([0, 1] * 4)

    found = mix([one, other], chosen)

    for window, member in enumerate(chosen):
        mine = found.ttft[found.window == window]
        assert np.array_equal(mine, FCFS[window] * (1, 2)[member])
    assert found.totals is not None
    assert found.met is not None

"""The breakdown of variance, against made gains and against a fit by least squares."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_runs import MAIN, make_runs

from queuesmith.study.conditions import measure_conditions
from queuesmith.study.grid import make_grid
from queuesmith.study.rules import Options
from queuesmith.study.variance import TERMS, decompose, variance

QUICK = Options(draws=10)


def split(conditions):
    return variance(conditions, conditions.grid.engines, "all")


def by_least_squares(gains):
    """Sums of squares of nested fits: each term is what its dummies add to those of its parts."""
    shape = gains.shape
    places = np.indices(shape).reshape(5, -1)
    places[3] += places[2] * shape[3]  # a window is a window of its source
    names = ("engine", "load", "source", "window", "policy")

    def dummies(kept):
        codes = np.ravel_multi_index(
            [places[names.index(name)] for name in kept],
            [places[names.index(name)].max() + 1 for name in kept],
        )
        return (codes[:, None] == np.unique(codes)).astype(float)

    def explained(terms):
        design = np.hstack([np.ones((gains.size, 1)), *(dummies(term) for term in terms)])
        fit = design @ np.linalg.lstsq(design, gains.ravel(), rcond=None)[0]
        return ((fit - gains.mean()) ** 2).sum()

    total = ((gains - gains.mean()) ** 2).sum()
    shares = {}
    for name in ("policy", "source", "load", "engine"):
        shares[name] = explained([(name,)]) / total
    shares["window"] = explained([("window",)]) / total - shares["source"]
    for name in ("source", "load", "engine"):
        both = explained([("policy", name)]) / total
        shares[f"policy x {name}"] = both - shares["policy"] - shares[name]
    both = explained([("policy", "window")]) / total
    shares["policy x window"] = (
        both - shares["policy"] - shares["source"] - shares["window"] - shares["policy x source"]
    )
    others = [
        kept for size in (1, 2, 3) for kept in combinations(("engine", "load", "window"), size)
    ]
    without = explained(others) / total
    shares["more"] = without - sum(shares[name] for name in ("source", "load", "engine", "window"))
    shares["policy x more"] = 1 - sum(shares.values())
    return shares


@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 2**32))
def test_shares_are_those_of_fits_by_least_squares(seed):
    rng = np.random.default_rng(seed)
    gains = rng.normal(size=(2, 3, 2, 2, 3)) + rng.normal(size=(1, 1, 2, 1, 3))

    found = decompose(gains)

    assert set(found) == set(TERMS)
    assert sum(found.values()) == pytest.approx(1.0)
    expected = by_least_squares(gains)
    for term in TERMS:
        assert found[term] == pytest.approx(expected[term], abs=1e-9), term


@pytest.mark.parametrize(
    ("axes", "term"),
    [
        ((4,), "policy"),
        ((2,), "source"),
        ((1,), "load"),
        ((0,), "engine"),
        ((2, 3), "window"),
        ((2, 4), "policy x source"),
        ((1, 4), "policy x load"),
        ((0, 4), "policy x engine"),
        ((2, 3, 4), "policy x window"),
        ((0, 2, 4), "policy x more"),
        ((0, 1), "more"),
    ],
)
def test_what_varies_with_one_thing_alone_is_its_share(axes, term):
    """Plus the effects that a made interaction has at its edges, which are taken off first."""
    shape = (2, 3, 4, 5, 6)
    values = np.random.default_rng(0).normal(size=[shape[axis] for axis in axes])
    nested = axes[:2] == (2, 3)
    for place in range(values.ndim):
        if nested and place == 0:
            continue  # windows sum to 0 within each source, not over sources
        values = values - values.mean(axis=place, keepdims=True)
    gains = np.broadcast_to(
        values.reshape([shape[axis] if axis in axes else 1 for axis in range(5)]), shape
    )

    found = decompose(gains)

    assert found[term] == pytest.approx(1.0)


def test_nothing_that_varies_has_no_shares():
    assert np.isnan(list(decompose(np.full((2, 2, 2, 2, 2), 0.3)).values())).all()


def measured(values, metrics=("ttft_mean",)):
    grid = make_grid(make_runs(values), None, metrics=metrics, prediction=MAIN)
    return measure_conditions(grid, QUICK)


def cells(gains, base=1.0):
    """Times under p1, p2, ... of base * exp(-gain), given by source; fcfs at the base."""
    return {
        (engine, load, source): base * np.exp(-np.vstack([np.zeros((1, 10)), rows]))
        for engine in ("a100", "h100")
        for load in ("knee", "heavy")
        for source, rows in gains.items()
    }


def test_a_gain_that_is_the_same_everywhere_is_portable():
    same = np.outer([0.5, 0.1, -0.3], np.ones(10))
    (row,) = split(measured(cells({"one": same, "two": same})))

    assert row["shares"]["policy"] == pytest.approx(1.0)
    assert row["portable"] == pytest.approx(1.0)
    assert row["scale"] == "log ratio"
    assert row["standard_deviation"] == pytest.approx(np.std([0.5, 0.1, -0.3]))


def test_a_gain_that_flips_with_the_source_is_not():
    one = np.outer([0.5, -0.5], np.ones(10))
    (row,) = split(measured(cells({"one": one, "two": -one})))

    assert row["shares"]["policy x source"] == pytest.approx(1.0)
    assert row["portable"] == pytest.approx(0.0)


def test_how_hard_a_window_is_for_everyone_is_no_variance():
    """Only the gain over the reference in the same window counts."""
    luck = np.random.default_rng(0).lognormal(sigma=2, size=10)
    same = np.outer([0.5, 0.1], np.ones(10))
    (row,) = split(measured(cells({"one": same, "two": same}, base=luck)))

    assert row["shares"]["policy"] == pytest.approx(1.0)


def test_shares_of_requests_are_compared_by_difference():
    values = {("e", "knee", "one"): np.array([[0.0, 0.5], [0.2, 0.7], [0.1, 0.6]])}
    (row,) = split(measured({"anwg": values}, ("anwg",)))

    assert row["scale"] == "difference"
    assert row["shares"]["policy"] == pytest.approx(1.0)
    assert row["standard_deviation"] == pytest.approx(0.05)


def test_sources_give_as_many_windows_as_the_smallest_has():
    rng = np.random.default_rng(0)
    values = {("e", "knee", "one"): rng.random((3, 9)), ("e", "knee", "two"): rng.random((3, 4))}
    (row,) = split(measured(values))

    assert row["num_windows"] == 8
    assert sum(row["shares"].values()) == pytest.approx(1.0)


def test_policies_with_an_undefined_gain_are_left_out_and_named():
    rng = np.random.default_rng(0)
    values = {("e", "knee", "one"): rng.random((4, 9))}
    values["e", "knee", "one"][2, 2] = np.nan
    (row,) = split(measured(values))

    assert row["left_out"] == ["p2"]
    assert sum(row["shares"].values()) == pytest.approx(1.0)


def test_without_the_reference_in_some_window_there_is_no_gain():
    values = {("e", "knee", "one"): np.ones((3, 9))}
    values["e", "knee", "one"][0, 2] = np.nan
    (row,) = split(measured(values))

    assert row["left_out"] == ["p1", "p2"]
    assert np.isnan(row["portable"])

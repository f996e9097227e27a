"""Who survives, who breeds, on which windows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuesmith.evolve.candidate import Candidate
from queuesmith.evolve.scoring.scale import Standing, hopeless
from queuesmith.evolve.selection import (
    lexicase,
    limit,
    num_beaten_by,
    schedule,
    survivors,
)


def candidate(number, size, score, window_scores=(), clean=True):
    return Candidate(number, "", score, window_scores, size=size, clean=clean)


@st.composite
def candidates(draw, first=0):
    """Few sizes and scores, so that ties are common."""
    rows = draw(st.lists(st.tuples(st.integers(1, 4), st.integers(-2, 2), st.booleans())))
    return [
        candidate(first + number, size, float(score), (), clean)
        for number, (size, score, clean) in enumerate(rows)
    ]


def test_a_front_of_depth_1_is_the_pareto_front():
    small = candidate(0, 3, 0.2)
    good = candidate(1, 9, 0.5)
    beaten = candidate(2, 9, 0.4)
    twin = candidate(3, 3, 0.2)

    assert survivors([small, good, beaten, twin], 1) == [good, small]
    assert survivors([small, good, beaten, twin], 2) == [good, beaten, small, twin]


def test_a_clean_candidate_is_not_beaten_by_one_that_violates_a_tail():
    starving = candidate(0, 3, 0.9, (), clean=False)
    clean = candidate(1, 5, 0.1)

    assert survivors([starving, clean], 1) == [starving, clean]


@given(candidates())
def test_beating_is_an_order(found):
    for one in found:
        for other in found:
            if one.number != other.number and one.beats(other):
                assert not other.beats(one)
                assert all(one.beats(third) for third in found if other.beats(third))


@given(candidates(), candidates(first=100), st.integers(1, 4))
def test_whoever_is_below_the_limit_does_not_survive(before, newcomers, depth):
    """Also when it is judged beside further newcomers."""
    kept = {one.number for one in survivors([*before, *newcomers], depth)}

    for one in newcomers:
        bound = Standing(one.score, reason="" if one.clean else "a tail")
        if hopeless(bound, limit(before, depth, one.size)):
            assert one.number not in kept


@given(candidates(), st.integers(1, 4))
def test_each_survivor_is_beaten_by_fewer_than_depth(found, depth):
    kept = survivors(found, depth)

    assert {one.number for one in kept} == {
        one.number for one in found if num_beaten_by(one, found) < depth
    }
    assert bool(kept) == bool(found)


def test_lexicase_draws_specialists_before_the_average():
    """The one that is good on every window, but best on none, comes last."""
    specialists = [candidate(k, 5, 0.3, tuple(np.eye(3)[k].tolist())) for k in range(3)]
    average = candidate(3, 5, 0.5, (0.4, 0.4, 0.4))
    firsts = [
        lexicase([*specialists, average], 1, np.random.default_rng(seed))[0].number
        for seed in range(60)
    ]

    assert set(firsts) >= {0, 1, 2}
    assert firsts.count(3) < 20


@given(st.integers(0, 99), st.integers(1, 8))
def test_lexicase_draws_nobody_twice_and_is_seeded(seed, count):
    rng = np.random.default_rng(seed)
    found = [candidate(k, 5, 0.0, tuple(rng.normal(size=4).tolist())) for k in range(6)]

    drawn = lexicase(found, count, np.random.default_rng(seed))

    assert len({one.number for one in drawn}) == len(drawn) == min(count, 6)
    assert drawn == lexicase(found, count, np.random.default_rng(seed))


@given(st.integers(1, 9), st.integers(1, 5), st.integers(0, 50))
def test_windows_are_dealt_out_evenly(num_windows, hand, seed):
    sources = {k: "a" if k < num_windows else "b" for k in range(2 * num_windows)}
    hand = min(hand, num_windows)
    deals = num_windows // hand
    seen = [schedule(sources, hand, seed, generation) for generation in range(deals)]

    for windows in seen:
        assert sum(window < num_windows for window in windows) == hand
        assert sum(window >= num_windows for window in windows) == hand
    together = [window for windows in seen for window in windows]
    assert len(set(together)) == len(together)


def test_seeds_deal_differently():
    sources = dict.fromkeys(range(20), "a")

    assert schedule(sources, 5, 0, 0) != schedule(sources, 5, 1, 0)
    assert schedule(sources, 5, 0, 0) != schedule(sources, 5, 0, 4)


@pytest.mark.parametrize("clean", [True, False])
def test_there_is_no_limit_while_too_few_are_known(clean):
    found = [candidate(0, 3, 0.5, (), clean)]

    assert limit(found, 2, 5).violating == -np.inf
    assert limit(found, 1, 2).violating == -np.inf  # smaller than all of them
    assert limit(found, 1, 5) == ((0.5 if clean else -np.inf), 0.5)

"""How far traffic lies from the sources of a study."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import median_abs_deviation

from queuesmith.study import placing

positive = st.floats(1e-3, 1e6)


def source(**middles):
    return {name: {"middle": middle, "spread": 0.1} for name, middle in middles.items()}


@given(st.lists(positive, min_size=1, max_size=30))
def test_lengths_are_summed_up_as_robust_logarithms(values):
    """Checked against scipy's median absolute deviation."""
    found = placing.features_of({"prompt_p50": values})["prompt_p50"]

    logs = np.log(values)
    assert found["middle"] == pytest.approx(np.median(logs), abs=1e-6)
    assert found["spread"] == pytest.approx(1.4826 * median_abs_deviation(logs), abs=1e-6)
    assert placing.shown("prompt_p50", found["middle"]) == pytest.approx(
        math.exp(np.median(logs)), rel=1e-5
    )


def test_a_feature_that_no_window_has_is_left_out():
    found = placing.features_of(
        {"gap_cv": [float("nan"), float("nan")], "count_cv_1s": [None, 2.0], "output_cv": [0.0]}
    )

    assert found == {"count_cv_1s": {"middle": round(math.log(2), 6), "spread": 0.0}}


@given(positive, positive, st.floats(0.01, 100))
def test_a_distance_depends_on_ratios_of_lengths_alone(first, second, unit):
    """Twice as long is as far whether one counts tokens or thousands of them."""
    scale = {"prompt_p50": 0.5}

    def apart(a, b):
        here, there = (placing.features_of({"prompt_p50": [value]}) for value in (a, b))
        return placing.distance(here, there, scale)

    assert apart(first, second) == pytest.approx(apart(first * unit, second * unit), abs=1e-4)
    assert apart(first, second) == apart(second, first)
    assert apart(first, first) == 0


def test_every_feature_weighs_the_same_in_its_own_scale():
    scale = {"prompt_p50": 2.0, "rank_corr": 0.1}
    here = source(prompt_p50=5.0, rank_corr=0.3)

    one = placing.distance(here, source(prompt_p50=9.0, rank_corr=0.3), scale)
    other = placing.distance(here, source(prompt_p50=5.0, rank_corr=0.5), scale)

    assert one == pytest.approx(other) == pytest.approx(math.sqrt((2**2 + 0) / 2))


def test_only_features_that_both_have_are_compared():
    scale = {"prompt_p50": 1.0, "gap_cv": 1.0}

    assert placing.distance(source(prompt_p50=1.0, gap_cv=9.0), source(prompt_p50=3.0), scale) == 2
    assert placing.distance(source(gap_cv=9.0), source(prompt_p50=3.0), scale) == math.inf


def test_a_scale_is_the_spread_between_sources_and_within_one():
    """Middles 0, 1, 2 spread by 1.4826; windows by 0.1."""
    sources = {str(middle): source(gap_cv=float(middle)) for middle in range(3)}

    assert placing.scales(sources) == {"gap_cv": pytest.approx(math.hypot(1.4826, 0.1))}


def test_sources_that_agree_in_a_feature_do_not_make_it_count_without_end():
    """Their windows do not vary either; half a per mille would be a thousand scales away."""
    twins = {name: {"gap_cv": {"middle": 1.0, "spread": 0.0}} for name in "ab"}

    assert placing.scales(twins) == {"gap_cv": placing.LEAST_SCALE}


def test_the_nearest_other_source_is_found():
    sources = {name: source(gap_cv=at) for name, at in (("a", 0.0), ("b", 1.0), ("c", 5.0))}

    assert placing.nearest_others(sources, {"gap_cv": 1.0}) == {
        "a": ("b", 1.0),
        "b": ("a", 1.0),
        "c": ("b", 4.0),
    }
    assert placing.nearest_others({"a": sources["a"]}, {"gap_cv": 1.0}) == {}


@pytest.mark.parametrize(
    ("prompt", "output", "gap_cv", "words"),
    [
        (900, 150, 1.0, "chat-like"),
        (900, 150, 3.0, "bursty chat-like"),
        (1500, 12, 1.0, "code-like"),
        (9000, 300, 1.0, "long-context"),
        (220, 7, 1.0, "short-call"),
    ],
)
def test_traffic_has_a_name_from_its_lengths_and_gaps(prompt, output, gap_cv, words):
    features = placing.features_of(
        {"prompt_p50": [prompt], "output_p50": [output], "gap_cv": [gap_cv]}
    )

    assert placing.describe_traffic(features) == words

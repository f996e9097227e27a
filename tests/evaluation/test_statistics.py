"""Every statistic by hand, and what its change against a reference is."""

import numpy as np
import pytest

from constructed import FCFS, make_samples
from queuesmith.engine.result import ITL_EDGES
from queuesmith.evaluation.goals import GUARDS
from queuesmith.evaluation.statistics import STATISTICS, class_means, draw_weights

ONCE = np.ones((1, 2), np.int64)
#: Windows of 4 and 2 requests.
SAMPLES = make_samples([[1.0, 2.0, 3.0, 6.0], [1.0, 5.0]])


def value(name, samples=SAMPLES, weights=ONCE):
    return STATISTICS[name].values(samples, weights).tolist()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ttft_mean", 3.0),
        ("e2el_mean", 4.0),
        ("tpot_mean", 0.02),
        ("ttft_max", 5.5),  # the mean of 6 and 5, the largest of each window
        ("slowdown_max", 6.5),
        ("slo_attainment", 1 / 3),  # below 2 s: the first of each window
        ("goodput", 2 / 200),
        ("output_throughput", 51 * 6 / 200),
        ("recompute_tax", 0.0),
        ("served", 1.0),
        ("ttft_p99", np.quantile([1, 2, 3, 6, 1, 5], 0.99)),
        ("ttft_p999", np.quantile([1, 2, 3, 6, 1, 5], 0.999)),
        ("e2el_p99", np.quantile([2, 3, 4, 7, 2, 6], 0.99)),
    ],
)
def test_a_statistic_is_pooled_over_windows(name, expected):
    assert value(name) == [pytest.approx(expected)]


def test_the_gap_between_tokens_lies_in_the_bin_that_holds_the_quantile():
    (found,) = value("itl_p99")

    assert ITL_EDGES[380] <= found <= ITL_EDGES[381]


def test_a_window_that_is_drawn_twice_counts_twice():
    weights = np.array([[2, 0], [0, 2]])

    assert value("ttft_mean", weights=weights) == [3.0, 3.0]
    assert value("ttft_max", weights=weights) == [6.0, 5.0]
    assert value("slo_attainment", weights=weights) == [0.25, 0.5]


def test_who_was_not_served_is_in_no_latency_but_in_the_share_served():
    samples = make_samples([[1.0, np.nan, 3.0], [2.0, 2.0]])

    assert value("ttft_mean", samples) == [2.0]
    assert value("served", samples) == [0.8]


def test_what_was_not_measured_is_undefined():
    samples = make_samples([[1.0], [2.0]], met=None, totals=None, tpot=None)

    for name in ("goodput", "slo_attainment", "output_throughput", "itl_p99", "tpot_p99"):
        assert np.isnan(value(name, samples)).all()


@pytest.mark.parametrize("name", STATISTICS)
def test_against_itself_nothing_changes(name):
    weights = draw_weights(8, 0)
    samples = make_samples(FCFS)

    contrast = STATISTICS[name].contrast(samples, samples, weights)

    assert contrast.estimate == 0.0
    assert contrast.interval() == (0.0, 0.0)


@pytest.mark.parametrize("name", ["ttft_mean", "ttft_p99", "ttft_p999", "ttft_max"])
def test_twice_the_wait_is_twice_whatever_is_drawn(name):
    weights = draw_weights(8, 0)

    contrast = STATISTICS[name].contrast(make_samples(2 * FCFS), make_samples(FCFS), weights)

    assert np.exp(contrast.values) == pytest.approx(2.0)


def test_every_guard_is_a_statistic_or_of_a_class():
    classes = {"priority_ttft", "client_ttft"}

    assert {guard.name for guard in GUARDS} - classes <= set(STATISTICS)
    assert classes < {guard.name for guard in GUARDS}


def test_classes_have_a_mean_each_if_they_are_not_too_small():
    client = np.array([7, 7, 7, 7, -1, 9])
    samples = make_samples([[1.0, 2.0, 3.0, 6.0], [1.0, 5.0]], client=client)

    found = {one.label: one.values(samples, ONCE)[0] for one in class_means("client", samples)}

    assert found == {"mean TTFT of client 7": 3.0, "mean TTFT of client 9": 5.0}
    assert class_means("priority", samples) == []

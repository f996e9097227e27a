"""Errors and their intervals: by hand, against NumPy, and as often right as they say."""

import math

import numpy as np
import pytest
from measuring import traffic

from queuesmith.checking.errors import (
    MIN_UNITS,
    Blocks,
    cut_blocks,
    errors,
    mean_error,
    rank_correlations,
)
from queuesmith.traces.trace import Trace

NAN = math.nan


def blocks_of(num_blocks, length=20):
    rate = np.arange(1.0, num_blocks + 1)
    return Blocks(np.repeat(np.arange(num_blocks), length), rate, "block")


def rows_by_statistic(measured, simulated, blocks, members=None):
    members = np.arange(len(blocks.rate)) if members is None else members
    rows = errors("all", "ttft", measured, simulated, blocks, members, seed=0)
    return {row["statistic"]: row for row in rows}


def test_errors_are_numpy_s():
    rng = np.random.default_rng(0)
    measured, simulated = rng.lognormal(size=(2, 200))

    rows = rows_by_statistic(measured, simulated, blocks_of(10))

    assert rows["mean"]["error"] == pytest.approx(simulated.mean() / measured.mean() - 1)
    for name, level in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        ratio = np.quantile(simulated, level) / np.quantile(measured, level)
        assert rows[name]["error"] == pytest.approx(ratio - 1)
        assert rows[name]["low"] <= rows[name]["error"] <= rows[name]["high"]


def test_only_the_blocks_of_a_load_count():
    measured = np.repeat([1.0, 2.0], 200)
    simulated = np.ones(400)

    rows = rows_by_statistic(measured, simulated, blocks_of(20), np.arange(10, 20))

    assert rows["mean"]["num_requests"] == 200
    assert rows["mean"]["error"] == rows["mean"]["low"] == rows["mean"]["high"] == -0.5


def test_what_is_not_known_on_one_side_counts_on_neither():
    measured, simulated = np.full(200, 2.0), np.full(200, 2.0)
    measured[:50], simulated[50:100] = NAN, NAN
    simulated[:50], measured[50:100] = 99.0, 99.0

    rows = rows_by_statistic(measured, simulated, blocks_of(10))

    assert rows["mean"]["num_requests"] == 100
    assert rows["mean"]["error"] == 0


def test_too_few_values_have_no_quantile_and_too_few_units_no_interval():
    values = np.ones(19)
    few = rows_by_statistic(values, values, Blocks(np.zeros(19, int), np.ones(1), "block"))
    num = MIN_UNITS - 1
    short = rows_by_statistic(np.ones(20 * num), np.ones(20 * num), blocks_of(num))

    assert few["p50"]["error"] == 0
    assert math.isnan(few["p90"]["error"])
    assert math.isnan(few["p99"]["measured"])
    assert short["p99"]["error"] == 0
    assert math.isnan(short["mean"]["low"])


def test_requests_that_never_queued_on_either_side_agree():
    nothing, something = np.zeros(200), np.ones(200)

    assert rows_by_statistic(nothing, nothing, blocks_of(10))["mean"]["error"] == 0
    assert rows_by_statistic(nothing, something, blocks_of(10))["mean"]["error"] == math.inf
    assert mean_error(nothing, nothing) == 0
    assert math.isnan(mean_error(np.array([NAN]), np.array([1.0])))


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    """Neighbours share half of the noise, which would fool intervals over single requests."""
    rng = np.random.default_rng(3)
    held = naive = 0
    for _ in range(100):
        shared = np.repeat(rng.normal(1.0, 0.2, 30), 20)
        measured = 5 + shared + rng.normal(0, 0.2, 600)
        row = rows_by_statistic(measured, np.full(600, 6.0), blocks_of(30))["mean"]
        held += row["low"] <= 0 <= row["high"]
        wide = 1.96 * measured.std() / math.sqrt(600) / measured.mean()
        naive += abs(row["error"]) <= wide
    assert held >= 88
    assert naive < 60


def test_blocks_have_equally_many_requests_and_never_span_two_logs():
    logs = [traffic(100, seed=1), traffic(61, seed=2)]

    blocks = cut_blocks(logs)

    counts = np.bincount(blocks.block)
    assert counts.tolist() == [20, 20, 20, 20, 20, 20, 20, 21]
    assert (np.diff(blocks.block) >= 0).all()
    assert blocks.block[99] != blocks.block[100]
    first = logs[0].arrival_time
    assert blocks.rate[0] == pytest.approx(20 / (first[20] - first[0]))
    assert blocks.rate[4] == pytest.approx(19 / (first[99] - first[80]))


def test_a_long_log_has_thirty_blocks():
    assert len(cut_blocks([traffic(30_000)]).rate) == 30
    assert len(cut_blocks([traffic(3)]).rate) == 1


def test_loads_need_rates():
    at_once = Trace(np.zeros(200), np.full(200, 5), np.full(200, 5))

    assert [name for name, _ in cut_blocks([at_once]).loads()] == ["all"]
    assert [name for name, _ in blocks_of(9).loads()] == ["all", "low", "middle", "high"]
    parts = [members.tolist() for _, members in blocks_of(9).loads()]
    assert parts[1:] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


def test_rank_correlations_leave_out_what_nobody_measured():
    values = {"ttft": np.array([1.0, 2.0, 3.0, NAN]), "tpot": np.full(4, NAN)}

    found = rank_correlations(values, {"ttft": np.array([3.0, 2.0, 1.0, 9.0]), "tpot": np.ones(4)})

    assert found == {"ttft": pytest.approx(-1.0)}
    constant = rank_correlations({"ttft": np.ones(4)}, {"ttft": np.arange(4.0)})
    assert math.isnan(constant["ttft"])

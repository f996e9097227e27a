"""Comparisons of several replicas, and of sessions that wait for their answers."""

import json
import re

import numpy as np
import pytest

from queuesmith.comparison.compare import compare
from queuesmith.config import EngineConfig
from queuesmith.engine.fleet import Fleet
from queuesmith.engine.presets.step_time import StepTime
from queuesmith.errors import ConfigError, PolicyError, TraceError
from queuesmith.evaluation.evaluate import Load, evaluate
from queuesmith.policies import get_policy
from queuesmith.report import write_html
from queuesmith.routers import get_router
from queuesmith.traces import load_trace
from queuesmith.traces.trace import Trace
from queuesmith.windows import cut_windows
from queuesmith.windows.predictions import OutputLengthKnowledge

ONE_SEAT = EngineConfig(
    max_num_seqs=1, max_num_batched_tokens=64, max_model_len=64, num_gpu_blocks=100
)
ONE_SECOND = StepTime(a=1.0)


@pytest.fixture(scope="module")
def trace():
    return load_trace("azure_2023_conv@model", num_requests=400, seed=3)


@pytest.fixture(scope="module")
def turns():
    return load_trace("mooncake_conversation@model", num_requests=400, seed=3)


def small(trace, **options):
    options = {"num_windows": 3, "window_len": 80, "num_workers": 1, **options}
    return compare(trace, "fcfs,sjf", "knee", **options)


def even_trace(num_requests=80):
    arrivals = np.cumsum(np.random.default_rng(1).exponential(size=num_requests))
    return Trace(arrivals, np.full(num_requests, 8), np.ones(num_requests, int))


def run(fleet, trace):
    return evaluate(
        [get_policy("fcfs")],
        cut_windows(trace, num_windows=2, window_len=40),
        [Load("half", 0.5)],
        config=ONE_SEAT,
        step_time=ONE_SECOND,
        output_length=OutputLengthKnowledge("exact"),
        fleet=fleet,
    )


def test_a_load_is_the_rate_over_what_all_replicas_carry():
    one, four = run(None, even_trace()), run(Fleet(4, get_router("random")), even_trace())

    np.testing.assert_allclose(four.capacity, 4 * one.capacity)
    # Each is busy for the same share of the time, so four serve about four times as many.
    assert four.cells["request_throughput"][0].as_py() > (
        2.5 * one.cells["request_throughput"][0].as_py()
    )


def test_one_replica_gives_the_numbers_of_no_fleet():
    alone, fleet = run(None, even_trace()), run(Fleet(1, get_router("power_of_two")), even_trace())

    for name in alone.cells.column_names:
        np.testing.assert_array_equal(alone.cells[name], fleet.cells[name])


def test_the_document_says_how_many_replicas_and_which_router(trace):
    one, two = small(trace), small(trace, replicas=2, router="least_loaded")

    assert (one.config["replicas"], one.config["router"]) == (1, None)
    config = two.config
    assert (config["replicas"], config["router"]) == (2, "least_loaded")
    assert config["router_sha256"] == get_router("least_loaded").sha256
    assert config["sha256"] != one.config["sha256"]


def test_the_report_says_so_too(trace, turns, tmp_path):
    for comparison, words in (
        (small(trace, replicas=2, router="least_loaded"), "2, router least_loaded"),
        (small(turns, closed_loop=True), "loads scale first arrivals"),
    ):
        page = tmp_path / "report.html"
        write_html(comparison, page)
        assert words in page.read_text()


def test_the_numbers_are_the_same_for_any_number_of_workers(trace):
    options = {"replicas": 3, "router": "power_of_two"}
    one, two = (small(trace, **options, num_workers=workers) for workers in (1, 2))

    assert json.dumps(one.to_json()) == json.dumps(two.to_json())


def test_turns_that_wait_do_not_run_away_under_overload(turns):
    open_loop, closed_loop = (
        compare(
            turns, "fcfs", "3.0", num_windows=2, window_len=150, num_workers=1, closed_loop=closed
        )
        .loads[0]
        .metrics["queued_time_mean"]
        for closed in (False, True)
    )

    assert closed_loop < open_loop


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"replicas": 0}, ConfigError, "replicas must be between 1"),
        ({"router": "round_robbin"}, PolicyError, "Did you mean 'round_robin'"),
        ({"closed_loop": True}, TraceError, "does not say which requests are of one session"),
    ],
)
def test_mistakes_are_found_before_anything_runs(trace, options, error, message):
    with pytest.raises(error, match=re.escape(message)):
        small(trace, **options)


def test_windows_that_are_cut_already_cannot_be_closed(trace):
    with pytest.raises(ConfigError, match="closed_loop needs a trace"):
        small(cut_windows(trace, num_windows=2, window_len=50), closed_loop=True)

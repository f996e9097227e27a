"""Resemblance: a trace is like what it was drawn from, and strange traffic is like nothing."""

import json
import math

import numpy as np
import pytest

from queuesmith.cli import run
from queuesmith.report.traffic.text import sentences
from queuesmith.traces import Trace, load_trace
from queuesmith.traces.catalog import find_file
from queuesmith.traces.describe import describe
from queuesmith.traces.resemblance import FAR, MIN_REQUESTS, resemblance
from queuesmith.traces.synthetic import load_model, model_names


def strange():
    """Return evenly spaced requests, all of one length: as no service has them."""
    return Trace(np.arange(2000.0), np.full(2000, 1024), np.full(2000, 1024))


def assert_sound(found):
    factors = [source["factor"] for source in found["sources"]]
    assert sorted(source["name"] for source in found["sources"]) == sorted(model_names())
    assert factors == sorted(factors)
    assert all(math.isfinite(value) and value >= 1 for value in factors)
    assert found["name"] == (found["sources"][0]["name"] if factors[0] <= FAR else None)


@pytest.mark.parametrize("name", model_names())
@pytest.mark.parametrize("num_requests", [1_000, 10_000])
def test_a_draw_resembles_its_model(name, num_requests):
    found = resemblance(load_model(name).sample(num_requests, seed=4))

    assert found["name"] == name
    assert found["sources"][0]["factor"] < 1.4
    assert_sound(found)


@pytest.mark.parametrize("name", ["azure_2023_code", "azure_2023_conv", "mooncake_conversation"])
def test_a_real_trace_resembles_the_model_of_itself(name, traces_dir, monkeypatch):
    monkeypatch.setenv("QUEUESMITH_TRACES", str(traces_dir))
    path = find_file(name, check_hash=False)
    if path is None:
        pytest.skip(f"the folder of traces has no {name}")

    found = resemblance(load_trace(path))

    assert found["name"] == name
    assert found["sources"][0]["factor"] < 1.2


def test_strange_traffic_is_unlike_all():
    found = resemblance(strange())

    assert found["name"] is None
    assert_sound(found)


def test_how_busy_a_service_is_does_not_matter():
    trace = load_model("azure_2023_conv").sample(2_000, seed=4)
    slower = Trace(trace.arrival_time * 8, trace.prompt_len, trace.output_len)  # exact in binary

    assert resemblance(slower) == resemblance(trace)


def test_lengths_that_are_twice_as_long_are_off_by_a_factor_of_two():
    trace = load_model("azure_2024_code").sample(10_000, seed=4)
    longer = Trace(trace.arrival_time, trace.prompt_len * 2, trace.output_len * 2)
    own = {source["name"]: source for source in resemblance(longer)["sources"]}

    assert own["azure_2024_code"]["lengths"] == pytest.approx(2, rel=0.05)
    assert own["azure_2024_code"]["arrivals"] == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("num_requests", [1, MIN_REQUESTS - 1])
def test_a_short_trace_resembles_nothing_that_could_be_said(num_requests):
    assert resemblance(load_model("burstgpt").sample(num_requests)) is None


@pytest.mark.parametrize("times", [np.zeros(MIN_REQUESTS), np.repeat([0.0, 1e9], 100)])
def test_traffic_without_time_or_with_one_gap_is_described_all_the_same(times):
    trace = Trace(times, np.ones(MIN_REQUESTS), np.ones(MIN_REQUESTS))

    assert_sound(resemblance(trace))


def test_describe_says_what_traffic_resembles(capsys, tmp_path):
    arguments = ["traces", "describe", "azure_2023_conv@model", "--num-requests", "1000"]

    assert run([*arguments, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert run([*arguments, "--output", str(tmp_path / "page.html")]) == 0

    assert document["resembles"]["name"] == "azure_2023_conv"
    assert "Resembles azure_2023_conv most" in capsys.readouterr().out
    assert "Resembles azure_2023_conv most" in (tmp_path / "page.html").read_text()


def test_the_sentence_says_when_nothing_is_near():
    found = resemblance(strange())

    said = sentences({**describe(strange()), "resembles": found})[-1]

    assert said.startswith("Unlike all known sources")
    assert found["sources"][0]["name"] in said
    assert f"{found['sources'][0]['factor']:.3g}" in said

"""Workload models: what is drawn looks like what they were fitted to, and repeats."""

import numpy as np
import pytest

from queuesmith.errors import ConfigError, TraceError
from queuesmith.traces import Trace, fit, load_trace
from queuesmith.traces.statistics import trace_statistics
from queuesmith.traces.synthetic import load_model, model_names

NAME = "azure_2023_conv"
MODEL = f"{NAME}@model"
FILE = "AzureLLMInferenceTrace_conv.csv"


@pytest.fixture(scope="module")
def drawn():
    """Return the mean statistics of twelve draws as long as the real record."""
    num_requests = load_model(NAME).fit["num_requests"]
    draws = [
        trace_statistics(load_trace(MODEL, num_requests=num_requests, seed=seed))
        for seed in range(12)
    ]
    return {name: float(np.mean([draw[name] for draw in draws])) for name in draws[0]}


def test_equal_seeds_give_equal_bytes_and_others_do_not():
    first, again, other = (load_trace(MODEL, num_requests=500, seed=seed) for seed in (3, 3, 4))

    assert first.sha256 == again.sha256
    assert first.sha256 != other.sha256


@pytest.mark.parametrize("num_requests", [1, 2, 999, 60_000])
def test_any_number_of_requests_starting_at_zero(num_requests):
    trace = load_trace(MODEL, num_requests=num_requests)

    assert len(trace) == num_requests
    assert trace.arrival_time[0] == 0
    assert (np.diff(trace.arrival_time) > 0).all()


def test_ten_thousand_by_default_and_the_origin_says_modelled():
    trace = load_trace(MODEL)

    assert len(trace) == 10_000
    assert (trace.origin.kind, trace.origin.source) == ("modelled", MODEL)
    assert load_model(NAME).version in trace.origin.reader


def test_draws_keep_the_rate_and_the_burstiness_of_the_fit(drawn):
    model = load_model(NAME)

    poisson_cv = model.rate**-0.5
    assert drawn["rate, requests/s"] == pytest.approx(model.rate, rel=0.1)
    assert 1.04 < drawn["CV of gaps"] < 1.15
    assert drawn["CV of counts in 1 s"] > 1.1 * poisson_cv
    assert drawn["CV of counts in 10 s"] > 1.5 * poisson_cv / 10**0.5
    assert drawn["CV of counts in 60 s"] > 2 * poisson_cv / 60**0.5


@pytest.mark.parametrize("percent", [1, 5, 10, 25, 50, 95, 99])
@pytest.mark.parametrize("length", ["prompt", "output"])
def test_draws_keep_the_quantiles_of_the_fit(drawn, length, percent):
    model = load_model(NAME)
    table = model.prompt_len if length == "prompt" else model.output_len

    # In rank, not in tokens: these tables have steps that a small shift of rank jumps.
    tokens = drawn[f"{length} p{percent}, tokens"]
    slack = 0.25 * (percent / 100 * (1 - percent / 100)) ** 0.5
    low, high = np.interp([percent / 100 - slack, percent / 100 + slack], model.levels, table)
    assert low <= tokens <= high


def test_a_constant_rate_model_is_a_renewal_process_with_its_gap_shape():
    model = load_model(NAME)
    still = fit.parse_model(
        fit.format_model(model).replace(
            f"log_rate_variance = {fit._array(model.log_rate_variance)}",
            "log_rate_variance = [0, 0, 0, 0]",
        )
    )

    gaps = np.diff(still.sample(200_000, 0).arrival_time)

    assert gaps.mean() == pytest.approx(1 / model.rate, rel=0.01)
    assert gaps.var() / gaps.mean() ** 2 == pytest.approx(1 / model.gap_shape, rel=0.02)


def test_short_draws_are_as_likely_to_be_busy_or_long_as_long_ones():
    model = load_model(NAME)
    draws = [model.sample(20, seed) for seed in range(500)]

    mean_gap = np.mean([draw.duration / 19 for draw in draws])
    mean_output = np.mean([draw.output_len.mean() for draw in draws])
    table_mean = np.trapezoid(model.output_len, model.levels)

    assert mean_gap == pytest.approx(1 / model.rate, rel=0.06)
    assert mean_output == pytest.approx(table_mean, rel=0.06)


def test_lengths_follow_the_copula_cell_by_cell():
    model = load_model(NAME)
    draw = model.sample(400_000, 5)

    shares = model.copula / model.copula.sum()
    num_bins = len(shares)
    edges = np.linspace(0, 1, num_bins + 1)[1:-1]
    prompt_bin = np.searchsorted(np.interp(edges, model.levels, model.prompt_len), draw.prompt_len)
    output_bin = np.searchsorted(np.interp(edges, model.levels, model.output_len), draw.output_len)
    seen = np.zeros_like(shares)
    np.add.at(seen, (prompt_bin, output_bin), 1 / len(draw))
    assert np.corrcoef(seen.ravel(), shares.ravel())[0, 1] > 0.97


def test_fitting_a_poisson_trace_with_independent_lengths_finds_just_that():
    rng = np.random.default_rng(1)
    num_requests = 30_000
    trace = Trace(
        np.cumsum(rng.exponential(0.1, num_requests)),
        rng.integers(1, 2_000, num_requests),
        rng.integers(1, 500, num_requests),
    )

    model = fit.fit_model(trace, "poisson")

    assert model.rate == pytest.approx(10, rel=0.03)
    assert model.gap_shape == pytest.approx(1, abs=0.05)
    assert model.log_rate_variance.sum() < 0.005
    assert model.output_drift.share < 0.01
    assert model.prompt_drift.share < 0.01
    assert abs(model.output_drift.with_rate) < 0.1
    assert model.copula.std() / model.copula.mean() < 0.2


def test_a_fit_to_a_draw_finds_the_parameters_again():
    model = load_model(NAME)

    again = fit.fit_model(model.sample(400_000, 2), "again")

    assert again.rate == pytest.approx(model.rate, rel=0.05)
    assert again.gap_shape == pytest.approx(model.gap_shape, rel=0.05)
    assert again.log_rate_variance.sum() == pytest.approx(model.log_rate_variance.sum(), rel=0.3)
    assert again.output_drift.with_rate == pytest.approx(model.output_drift.with_rate, abs=0.05)
    assert again.prompt_drift.with_rate == pytest.approx(model.prompt_drift.with_rate, abs=0.05)
    assert again.output_drift.share == pytest.approx(model.output_drift.share, abs=0.015)
    assert again.prompt_drift.share == pytest.approx(model.prompt_drift.share, abs=0.015)


def test_the_toml_text_and_the_model_are_one():
    model = load_model(NAME)

    text = fit.format_model(model)

    assert fit.format_model(fit.parse_model(text)) == text
    assert fit.parse_model(text).version == model.version


def test_too_short_a_trace_cannot_be_fitted():
    with pytest.raises(TraceError, match="at least 1,000"):
        fit.fit_model(Trace([0.0, 1.0], [1, 1], [1, 1]), "short")


def test_unknown_models_and_bare_names_get_a_suggestion():
    with pytest.raises(TraceError, match="Did you mean 'azure_2023_conv'"):
        load_trace("azure_2023_cov@model")
    with pytest.raises(TraceError, match="Did you mean 'azure_2023_conv@model'"):
        load_trace("azure_2023_conv")
    with pytest.raises(ConfigError, match="no columns"):
        load_trace(MODEL, unit="ms")
    with pytest.raises(ConfigError, match="seed must be at least 0"):
        load_trace(MODEL, seed=-1)
    assert model_names() == [NAME]


def test_the_shipped_model_is_refitted_byte_for_byte(traces_dir, capsys):
    status = fit.main([str(traces_dir / "azure_2023" / FILE), "--name", NAME])

    assert status == 0
    assert capsys.readouterr().out == fit.format_model(load_model(NAME))


def test_fitting_what_is_no_trace_says_why_and_exits_with_2(tmp_path, capsys):
    assert fit.main([str(tmp_path / "missing.csv")]) == 2
    assert "there is no file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("statistic", "tolerance"),
    [
        ("rate, requests/s", 0.5),
        ("CV of gaps", 0.03),
        ("CV of counts in 1 s", 0.04),
        ("CV of counts in 10 s", 0.05),
        ("CV of counts in 60 s", 0.06),
        ("prompt mean, tokens", 60),
        ("output mean, tokens", 20),
        ("rank correlation of prompt and output", 0.05),
        ("prompt autocorrelation, lag 1", 0.02),
        ("rank correlation of output and rate", 0.15),
        ("output autocorrelation, lag 1", 0.05),
        ("output autocorrelation, lag 100", 0.05),
    ],
)
def test_draws_are_near_the_real_record(traces_dir, drawn, statistic, tolerance):
    real = trace_statistics(load_trace(traces_dir / "azure_2023" / FILE))

    assert drawn[statistic] == pytest.approx(real[statistic], abs=tolerance)

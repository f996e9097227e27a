"""Workload models: what is drawn looks like what they were fitted to, and repeats."""

import subprocess
import sys

import numpy as np
import pytest

from queuesmith.errors import ConfigError, TraceError
from queuesmith.traces import Trace, fit, load_trace
from queuesmith.traces.fitting.sessions import spread_batches
from queuesmith.traces.fitting.windows import read_windows
from queuesmith.traces.models.client import Start
from queuesmith.traces.statistics import (
    rank_autocorrelation,
    rank_correlation,
    trace_statistics,
)
from queuesmith.traces.synthetic import format_model, load_model, model_names, parse_model

NAME = "azure_2023_conv"
MODEL = f"{NAME}@model"
FILE = "AzureLLMInferenceTrace_conv.csv"

#: Two clients, one of which only ever makes the same call.
MIXTURE = """
name = "mixture"
[fit]
source = "nothing"
[[client]]
name = "people"
[client.arrivals]
rate = 3.0
gap_shape = 1.0
time_scales = [10]
log_rate_variance = [0.2]
[client.lengths]
levels = [0, 1]
prompt_len = [100, 200]
output_len = [50, 60]
[[client]]
name = "calls"
[client.arrivals]
rate = 1.0
gap_shape = 1.0
time_scales = []
log_rate_variance = []
[client.lengths]
levels = [0, 1]
prompt_len = [20, 20]
output_len = [7, 7]
"""

SINGLE = """
name = "single"
[fit]
source = "nothing"
[arrivals]
rate = 2.0
gap_shape = 1.0
time_scales = []
log_rate_variance = []
[lengths]
levels = [0, 1]
prompt_len = [1000, 1000]
output_len = [100, 100]
"""

SESSIONS = """
[sessions]
next_turn = [0.5, 0.25]
levels = [0, 1]
think_time = [10, 30]
growth = [5, 5]
output_len = [40, 40]
block_size = 16
num_common_blocks = 3
"""


def find(folder, name):
    return next(folder.rglob(name))


def refit(folder, name, capsys):
    """Run the command of a model's TOML on the files of a folder; return what it prints."""
    words = load_model(name).fit["command"].split()[3:]
    arguments = [str(find(folder, word)) if "." in word else word for word in words]
    assert fit.main(arguments) == 0
    return capsys.readouterr().out


@pytest.fixture(scope="module")
def drawn():
    """Return the mean statistics of twelve draws as long as the real record."""
    num_requests = load_model(NAME).fit["num_requests"]
    draws = [
        trace_statistics(load_trace(MODEL, num_requests=num_requests, seed=seed))
        for seed in range(12)
    ]
    return {name: float(np.mean([draw[name] for draw in draws])) for name in draws[0]}


def test_reading_traces_imports_nothing_that_only_drawing_and_fitting_need():
    code = (
        "import sys, queuesmith.traces, queuesmith.traces.statistics\n"
        "print([m for m in ('scipy.signal', 'scipy.stats', 'scipy.optimize', 'numba') "
        "if m in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_every_source_has_a_model():
    assert model_names() == [
        "azure_2023_code",
        "azure_2023_conv",
        "azure_2024_code",
        "azure_2024_conv",
        "burstgpt",
        "mooncake_conversation",
        "qwen_bailian",
        "servegen_deepseek_r1",
        "servegen_m_small",
    ]


@pytest.mark.parametrize("name", model_names())
def test_equal_seeds_give_equal_bytes_and_others_do_not(name):
    first, again, other = (
        load_trace(f"{name}@model", num_requests=500, seed=seed) for seed in (3, 3, 4)
    )

    assert first.sha256 == again.sha256
    assert first.sha256 != other.sha256


@pytest.mark.parametrize("name", model_names())
def test_a_longer_draw_begins_with_the_shorter_one(name):
    model = load_model(name)

    short, long = model.sample(300, 7), model.sample(9_000, 7)

    assert long.take(slice(0, 300)).sha256 == short.sha256


@pytest.mark.parametrize("name", model_names())
@pytest.mark.parametrize("num_requests", [1, 2, 3_000])
def test_any_number_of_requests_starting_at_zero(name, num_requests):
    trace = load_trace(f"{name}@model", num_requests=num_requests)

    assert len(trace) == num_requests
    assert trace.arrival_time[0] == 0
    assert (trace.client is not None) == (len(load_model(name).clients) > 1)


@pytest.mark.parametrize("name", model_names())
def test_the_toml_says_what_the_model_was_fitted_to_and_how(name):
    provenance = load_model(name).fit

    sources, hashes = (
        [value] if isinstance(value, str) else value
        for value in (provenance["source"], provenance["sha256"])
    )
    assert [len(value) for value in hashes] == [64] * len(sources)
    assert f"--name {name}" in provenance["command"]
    assert all(source in provenance["command"] for source in sources)


@pytest.mark.parametrize("name", model_names())
def test_the_toml_text_and_the_model_are_one(name):
    model = load_model(name)

    text = format_model(model)

    assert format_model(parse_model(text)) == text
    assert parse_model(text).version == model.version


def test_ten_thousand_by_default_and_the_origin_says_modelled():
    trace = load_trace(MODEL)

    assert len(trace) == 10_000
    assert (trace.origin.kind, trace.origin.source) == ("modelled", MODEL)
    assert load_model(NAME).version in trace.origin.reader


def test_draws_keep_the_rate_and_the_burstiness_of_the_fit(drawn):
    model = load_model(NAME)

    poisson_cv = model.rate**-0.5
    assert drawn["rate, requests/s"] == pytest.approx(model.rate, rel=0.12)
    assert 1.04 < drawn["CV of gaps"] < 1.15
    assert drawn["CV of counts in 1 s"] > 1.1 * poisson_cv
    assert drawn["CV of counts in 10 s"] > 1.5 * poisson_cv / 10**0.5
    assert drawn["CV of counts in 60 s"] > 2 * poisson_cv / 60**0.5


@pytest.mark.parametrize("name", model_names())
@pytest.mark.parametrize("length", ["prompt_len", "output_len"])
def test_every_client_keeps_the_quantiles_of_its_table(name, length):
    for number, client in enumerate(load_model(name).clients):
        if client.sessions is not None:
            continue
        draws = [
            client.draw(3_000, np.random.SeedSequence([number, seed]), Start(0.0, False))
            for seed in range(4)
        ]
        values = np.concatenate([getattr(draw, length) for draw in draws])
        table = getattr(client, length)

        # In rank, not in tokens: these tables have steps that a small shift of rank jumps.
        for percent in (5, 25, 50, 75, 95):
            slack = 0.3 * (percent / 100 * (1 - percent / 100)) ** 0.5
            low, high = np.interp(
                [percent / 100 - slack, percent / 100 + slack], client.levels, table
            )
            assert np.floor(low) <= np.percentile(values, percent) <= np.ceil(high)


@pytest.mark.parametrize(
    "name",
    ["azure_2023_code", "azure_2023_conv", "azure_2024_code", "azure_2024_conv", "qwen_bailian"],
)
def test_draws_come_at_the_rate_of_the_model(name):
    model = load_model(name)

    mean_gap = np.mean([model.sample(2_000, seed).duration / 1_999 for seed in range(60)])

    assert mean_gap == pytest.approx(1 / model.rate, rel=0.2)


def test_a_constant_rate_model_is_a_renewal_process_with_its_gap_shape():
    text = SINGLE.replace("gap_shape = 1.0", "gap_shape = 0.5")

    gaps = np.diff(parse_model(text).sample(200_000, 0).arrival_time)

    assert gaps.mean() == pytest.approx(1 / 2, rel=0.01)
    assert gaps.var() / gaps.mean() ** 2 == pytest.approx(1 / 0.5, rel=0.02)


def test_gaps_may_follow_a_table_which_is_scaled_to_the_rate():
    text = SINGLE.replace(
        "gap_shape = 1.0", "gap_levels = [0, 0.9, 0.9000001, 1]\ngaps = [1, 1, 91, 91]"
    )

    gaps = np.diff(parse_model(text).sample(100_000, 0).arrival_time)

    assert gaps.mean() == pytest.approx(1 / 2, rel=0.03)
    assert np.mean(gaps > 1) == pytest.approx(0.1, abs=0.005)
    assert np.max(gaps) / np.min(gaps) == pytest.approx(91, rel=1e-6)


def test_the_rate_follows_the_hours_of_the_day():
    hours = [0.5] * 12 + [1.5] * 12
    model = parse_model(SINGLE.replace("gap_shape = 1.0", f"gap_shape = 1.0\nhourly = {hours}"))

    trace = model.sample(400_000, 1)

    counts = np.bincount((trace.arrival_time / 3600).astype(int))[:-1]
    assert np.percentile(counts, 10) == pytest.approx(0.5 * 2 * 3600, rel=0.1)
    assert np.percentile(counts, 90) == pytest.approx(1.5 * 2 * 3600, rel=0.1)
    day = counts[24:48]
    assert (day > 1.2 * 2 * 3600).sum() in (11, 12, 13)


def test_clients_are_merged_in_the_ratio_of_their_rates_with_lengths_of_their_own():
    trace = parse_model(MIXTURE).sample(50_000, 2)

    calls = trace.client == 1
    assert calls.mean() == pytest.approx(1 / 4, abs=0.02)
    assert set(trace.output_len[calls]) == {7}
    assert set(trace.prompt_len[calls]) == {20}
    assert trace.output_len[~calls].min() >= 50
    assert (np.diff(trace.arrival_time) >= 0).all()


def test_a_draw_may_begin_with_any_client():
    first = [int(parse_model(MIXTURE).sample(1, seed).client[0]) for seed in range(200)]

    assert np.mean(first) == pytest.approx(1 / 4, abs=0.1)


def test_conversations_repeat_what_was_said_and_go_on_as_often_as_the_table_says():
    trace = parse_model(SINGLE + SESSIONS).sample(40_000, 0)

    last = {}
    for row in range(len(trace)):
        session = int(trace.session[row])
        if session in last:
            before = last[session]
            assert trace.turn[row] == trace.turn[before] + 1
            assert trace.prompt_len[row] == trace.prompt_len[before] + trace.output_len[before] + 5
            whole = trace.prompt_len[before] // 16
            assert (trace.block_hashes[row][:whole] == trace.block_hashes[before][:whole]).all()
            assert 10 <= trace.arrival_time[row] - trace.arrival_time[before] <= 30
        last[session] = row
    turns = np.bincount(trace.turn)
    assert turns[1] / turns[0] == pytest.approx(0.5, abs=0.02)
    assert turns[2] / turns[1] == pytest.approx(0.25, abs=0.02)


def test_conversations_share_the_first_blocks_and_no_others():
    trace = parse_model(SINGLE + SESSIONS).sample(2_000, 0)

    one, other = (np.flatnonzero(trace.turn == 0)[place] for place in (0, 5))
    shared = np.intersect1d(trace.block_hashes[one], trace.block_hashes[other])
    assert len(shared) == 3
    assert len(trace.block_hashes[one]) == -(-1000 // 16)


def test_a_draw_with_conversations_is_as_busy_at_its_beginning_as_later():
    trace = parse_model(SINGLE + SESSIONS).sample(60_000, 0)

    counts = np.bincount((trace.arrival_time / 600).astype(int))[:-1]
    assert counts[0] == pytest.approx(counts.mean(), rel=0.1)
    assert counts.mean() / 600 == pytest.approx(2.0 * (1 + 0.5 + 0.5 * 0.25 / 0.75), rel=0.03)


def test_short_draws_are_as_likely_to_be_busy_or_long_as_long_ones():
    model = load_model(NAME)
    draws = [model.sample(20, seed) for seed in range(500)]

    mean_gap = np.mean([draw.duration / 19 for draw in draws])
    mean_output = np.mean([draw.output_len.mean() for draw in draws])
    table_mean = np.trapezoid(model.clients[0].output_len, model.clients[0].levels)

    assert mean_gap == pytest.approx(1 / model.rate, rel=0.06)
    assert mean_output == pytest.approx(table_mean, rel=0.06)


@pytest.mark.parametrize("name", [NAME, "qwen_bailian"])
def test_lengths_follow_the_copula_cell_by_cell(name):
    client = load_model(name).clients[0]
    draw = load_model(name).sample(400_000, 5)

    shares = client.copula / client.copula.sum()
    num_bins = len(shares)
    edges = np.linspace(0, 1, num_bins + 1)[1:-1]
    prompt_edges, output_edges = (
        np.interp(edges, client.levels, table) for table in (client.prompt_len, client.output_len)
    )
    seen = np.zeros_like(shares)
    cells = (
        np.searchsorted(prompt_edges, draw.prompt_len),
        np.searchsorted(output_edges, draw.output_len),
    )
    np.add.at(seen, cells, 1 / len(draw))
    assert np.corrcoef(seen.ravel(), shares.ravel())[0, 1] > 0.96


def test_fitting_a_poisson_trace_with_independent_lengths_finds_just_that():
    rng = np.random.default_rng(1)
    num_requests = 30_000
    trace = Trace(
        np.cumsum(rng.exponential(0.1, num_requests)),
        rng.integers(1, 2_000, num_requests),
        rng.integers(1, 500, num_requests),
    )

    (client,) = fit.fit_model(trace, "poisson").clients

    assert client.rate == pytest.approx(10, rel=0.03)
    assert client.gap_shape == pytest.approx(1, abs=0.05)
    assert client.gaps is None
    assert client.log_rate_variance.sum() < 0.005
    assert client.output_drift.share < 0.01
    assert client.prompt_drift.share < 0.01
    assert abs(client.output_drift.with_rate) < 0.1
    assert client.copula.std() / client.copula.mean() < 0.2


def test_a_fit_to_a_draw_finds_the_parameters_again():
    (client,) = load_model(NAME).clients

    (again,) = fit.fit_model(load_model(NAME).sample(400_000, 2), "again").clients

    assert again.rate == pytest.approx(client.rate, rel=0.05)
    assert again.gap_shape == pytest.approx(client.gap_shape, rel=0.05)
    assert again.log_rate_variance.sum() == pytest.approx(client.log_rate_variance.sum(), rel=0.3)
    assert again.output_drift.with_rate == pytest.approx(client.output_drift.with_rate, abs=0.05)
    assert again.prompt_drift.with_rate == pytest.approx(client.prompt_drift.with_rate, abs=0.05)
    assert again.output_drift.share == pytest.approx(client.output_drift.share, abs=0.015)
    assert again.prompt_drift.share == pytest.approx(client.prompt_drift.share, abs=0.015)


def test_long_pauses_are_fitted_by_a_table_of_gaps():
    rng = np.random.default_rng(0)
    gaps = np.where(rng.random(8_000) < 0.001, 300.0, rng.exponential(0.1, 8_000))
    trace = Trace(np.cumsum(gaps), np.full(8_000, 10), np.full(8_000, 10))

    model = fit.fit_model(trace, "pauses")

    again = np.diff(model.sample(8_000, 0).arrival_time)
    assert model.clients[0].gaps is not None
    assert np.median(again) == pytest.approx(np.median(gaps), rel=0.2)
    assert np.sum(again > 100) == pytest.approx(np.sum(gaps > 100), abs=8)


def test_lengths_in_no_order_are_fitted_without_memory():
    trace = load_model(NAME).sample(5_000, 0)

    model = fit.fit_model(trace, "unordered", ordered_lengths=False)

    assert (model.clients[0].output_drift.share, model.clients[0].output_drift.with_rate) == (0, 0)
    assert "--unordered-lengths" in model.fit["command"]


def test_times_in_batches_are_spread_until_the_next_batch():
    spread = spread_batches(np.array([0.0, 0.0, 3.0, 3.0, 3.0, 9.0]))

    assert ((spread[:2] >= 0) & (spread[:2] < 3)).all()
    assert ((spread[2:5] >= 3) & (spread[2:5] < 9)).all()
    assert (np.diff(spread) > 0).all()


def test_rank_correlation_shares_ranks_and_is_undefined_for_constants():
    x, y = np.array([3, 1, 2, 2, 9]), np.array([1, 1, 5, 2, 2])

    # By hand: ranks 4, 1, 2.5, 2.5, 5 and 1.5, 1.5, 5, 3.5, 3.5.
    expected = np.corrcoef([4, 1, 2.5, 2.5, 5], [1.5, 1.5, 5, 3.5, 3.5])[0, 1]
    assert rank_correlation(x, y) == pytest.approx(expected)
    assert np.isnan(rank_correlation(x, np.ones(5, np.int64)))
    assert rank_autocorrelation(np.arange(10), 1) == pytest.approx(1)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("rate = 2.0", "rate = -1", "rate must be a number"),
        ("rate = 2.0", "rate = nan", "rate must be a number"),
        ("rate = 2.0", 'rate = "fast"', "rate must be a number"),
        ("gap_shape = 1.0", "", "gap_shape must be a number"),
        ("levels = [0, 1]", "levels = [0, 0.5]", "levels must rise from 0 to 1"),
        ("prompt_len = [1000, 1000]", "prompt_len = [2, 1]", "must not decrease"),
        ("prompt_len = [1000, 1000]", "prompt_len = [0, 1]", "at least 1"),
        ("prompt_len = [1000, 1000]", "prompt_len = [1, 2, 3]", "must have 2 numbers"),
        ("output_len = [100, 100]", "", "output_len must be a list of finite numbers"),
        ("output_len = [100, 100]", "output_len = [1, inf]", "finite numbers"),
        ("[lengths]", "hourly = [1, 2]\n[lengths]", "must have 24 numbers"),
        ("[lengths]", "hourly = [" + "0," * 24 + "]\n[lengths]", "must not be all 0"),
        ("[lengths]", "gap_levels = [0, 1]\ngaps = [0, 1]\n[lengths]", "gaps must be a list"),
        ("[lengths]", "[lengths]\ncopula = [[1, 0]]", "copula must be a square"),
        ("[lengths]", "[lengths]\ncopula = [[1, 0], [1, 0]]", "no column without weight"),
        ("[lengths]", "[drift]\noutput = { share = 0.8 }\n[lengths]", "num_requests must be"),
        (
            "[lengths]",
            "[drift]\noutput = { share = 0.8, num_requests = 9, with_rate = 0.9 }\n[lengths]",
            "at most 1",
        ),
        ("[lengths]", "[length]", "lengths must be a"),
        ('name = "single"', "", "name must be a"),
        ('name = "single"', "client = []\nname = 'single'", "at least once"),
        ("[fit]", "[fit", "must be TOML"),
    ],
)
def test_a_toml_that_makes_no_sense_is_refused_in_one_line(old, new, complaint):
    assert old in SINGLE

    with pytest.raises(TraceError, match=complaint) as caught:
        parse_model(SINGLE.replace(old, new, 1))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("next_turn = [0.5, 0.25]", "next_turn = [1.0]", "below 1"),
        ("think_time = [10, 30]", "think_time = [-1, 30]", "think_time must be"),
        ("block_size = 16", "block_size = 0", "block_size must be"),
    ],
)
def test_sessions_that_make_no_sense_are_refused(old, new, complaint):
    with pytest.raises(TraceError, match=complaint):
        parse_model(SINGLE + SESSIONS.replace(old, new))


def test_too_short_a_trace_cannot_be_fitted():
    with pytest.raises(TraceError, match="at least 500"):
        fit.fit_model(Trace([0.0, 1.0], [1, 1], [1, 1]), "short")


def test_unknown_models_and_bare_names_get_a_suggestion():
    with pytest.raises(TraceError, match="Did you mean 'azure_2023_conv'"):
        load_trace("azure_2023_cov@model")
    with pytest.raises(TraceError, match="Did you mean 'qwen_bailian@model'"):
        load_trace("qwen_bailian")
    with pytest.raises(ConfigError, match="no columns"):
        load_trace(MODEL, unit="ms")
    with pytest.raises(ConfigError, match="seed must be at least 0"):
        load_trace(MODEL, seed=-1)


@pytest.mark.parametrize("name", model_names())
def test_the_shipped_model_is_refitted_byte_for_byte(traces_dir, capsys, name):
    assert refit(traces_dir, name, capsys) == format_model(load_model(name))


def test_burstgpt_has_the_published_ratio_of_its_busiest_hour_to_its_quietest():
    clients = load_model("burstgpt").clients

    rates = [sum(client.rate_at(3600 * hour) for client in clients) for hour in range(24)]

    assert max(rates) / min(rates) == pytest.approx(11.7, rel=0.1)
    # 1,429,737 requests in 61 days, of which the model leaves out the failed ones of people.
    assert sum(client.rate for client in clients) == pytest.approx(
        1_429_737 / 61 / 86_400, rel=0.05
    )


def test_fitting_what_is_no_trace_says_why_and_exits_with_2(tmp_path, capsys):
    assert fit.main([str(tmp_path / "missing.csv")]) == 2
    assert "there is no file" in capsys.readouterr().err
    assert fit.main(["a.csv", "b.csv"]) == 2
    assert "name a recipe" in capsys.readouterr().err
    assert fit.main(["a.csv", "--recipe", "burstgpt"]) == 2
    assert "needs 3 files" in capsys.readouterr().err
    assert fit.main(["a.jsonl", "--recipe", "mooncake"]) == 2
    assert "there is no file a.jsonl" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "recipe", "complaint"),
    [
        ("timestamp,prompt_len,output_len\n1,2,3\n2,2,3\n", "mooncake", "no hash_ids"),
        ("when,in,out\n1,2,3\n", "bailian", "must have the columns"),
        ("not a tar", "servegen", "not a tar archive"),
    ],
)
def test_a_file_that_is_not_what_the_recipe_needs_is_refused(
    tmp_path, capsys, text, recipe, complaint
):
    path = tmp_path / "wrong.csv"
    path.write_text(text)

    assert fit.main([str(path)] * (2 if recipe == "bailian" else 1) + ["--recipe", recipe]) == 2
    error = capsys.readouterr().err
    assert complaint in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("statistic", "tolerance"),
    [
        ("rate, requests/s", 0.6),
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


@pytest.mark.parametrize(
    "name", ["azure_2023_code", "mooncake_conversation", "azure_2024_conv", "azure_2024_code"]
)
def test_draws_of_other_models_are_near_their_records(traces_dir, name):
    model = load_model(name)
    record = load_trace(find(traces_dir, model.fit["source"]))
    draws = [trace_statistics(model.sample(len(record), seed)) for seed in range(4)]
    real = trace_statistics(record)
    batched = name == "mooncake_conversation"

    for statistic, share in (
        ("rate, requests/s", 0.2),
        ("CV of counts in 60 s", 0.4),
        ("prompt p50, tokens", 0.15),
        ("prompt p99, tokens", 0.15),
        ("prompt mean, tokens", 0.15),
        ("output p50, tokens", 0.1),
        ("output p99, tokens", 0.1),
        ("output mean, tokens", 0.1),
        *([] if batched else [("CV of counts in 10 s", 0.3)]),
    ):
        modelled = float(np.mean([draw[statistic] for draw in draws]))
        assert modelled == pytest.approx(real[statistic], rel=share), statistic


def test_modelled_conversations_repeat_as_much_as_the_real_ones(traces_dir):
    def share_repeated(trace):
        seen, repeated = set(), 0
        for row in range(len(trace)):
            blocks = trace.block_hashes[row].tolist()
            places = [place for place, block in enumerate(blocks) if block not in seen]
            repeated += places[0] if places else len(blocks)
            seen.update(blocks)
        return repeated / len(trace.block_hashes.hashes)

    real = load_trace(find(traces_dir, "conversation_trace.jsonl"))
    modelled = load_model("mooncake_conversation").sample(len(real), 0)

    assert share_repeated(modelled) == pytest.approx(share_repeated(real), abs=0.07)


@pytest.mark.parametrize(
    ("name", "file"), [("burstgpt", "burstgpt.csv"), ("qwen_bailian", "bailian_qwen.csv")]
)
def test_windows_that_the_fit_left_out_look_like_modelled_ones(traces_dir, name, file):
    real = read_windows(find(traces_dir, file))[1::2]
    model = load_model(name)
    modelled = [model.sample(200, seed) for seed in range(40)]

    def pool(windows, column):
        return np.concatenate([getattr(window, column) for window in windows])

    for column in ("prompt_len", "output_len"):
        for percent in (25, 50, 75):
            value = np.percentile(pool(real, column), percent)
            low, high = np.percentile(pool(modelled, column), [percent - 20, percent + 20])
            assert low <= value <= high
    rates = [np.median([199 / window.duration for window in some]) for some in (real, modelled)]
    assert rates[0] == pytest.approx(rates[1], rel=0.3)
    correlations = [
        rank_correlation(pool(some, "prompt_len"), pool(some, "output_len"))
        for some in (real, modelled)
    ]
    assert correlations[0] == pytest.approx(correlations[1], abs=0.2)
    if name == "burstgpt":
        seven = [np.mean(pool(some, "output_len") == 7) for some in (real, modelled)]
        assert seven[0] == pytest.approx(seven[1], abs=0.25)

"""What a run was like, checked against numbers worked out by hand."""

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuesmith import metrics
from queuesmith.config import Slo
from queuesmith.engine.result import ITL_EDGES, RESULT_DTYPE, Result
from queuesmith.errors import ConfigError
from queuesmith.metrics import METRICS, summarize
from queuesmith.traces.trace import Trace

NAN = float("nan")
DOCS = Path(__file__).parents[1] / "docs" / "background" / "metrics.md"


def make_result(
    arrival, scheduled, first, last, output_len, *, client=None, gaps=None, end_time=10.0, **columns
):
    """Build the result of a run; without `gaps`, tokens of an answer are evenly spaced."""
    num_requests = len(arrival)
    requests = np.zeros(num_requests, RESULT_DTYPE).view(np.recarray)
    requests.aborted_ts[:] = requests.rejected_ts[:] = NAN
    columns = {
        "arrival_time": arrival,
        "scheduled_ts": scheduled,
        "first_token_ts": first,
        "last_token_ts": last,
        "output_len": output_len,
        "prompt_len": 10 * (np.arange(num_requests) + 1),
        "deadline": np.inf,
    } | columns
    for name, values in columns.items():
        requests[name] = values
    if gaps is None:
        num_gaps = np.maximum(requests.output_len - 1, 1)
        even = (requests.last_token_ts - requests.first_token_ts) / num_gaps
        gaps = np.repeat(even, requests.output_len - 1)
        gaps = gaps[~np.isnan(gaps)]
    counts = np.histogram(np.clip(gaps, ITL_EDGES[0], ITL_EDGES[-1]), ITL_EDGES)[0]
    trace = Trace(arrival, requests.prompt_len, output_len, client=client)
    return Result("fcfs", trace, requests, counts, 7, 1, 100, 5, end_time, 2)


def four_requests(**changes):
    """Four finished requests: TTFT 1, 2, 2, 5; TPOT 1, none, 0.5, 1; E2EL 3, 2, 4, 6."""
    columns = {
        "arrival": [0.0, 1.0, 2.0, 3.0],
        "scheduled": [0.0, 2.0, 2.0, 6.0],
        "first": [1.0, 3.0, 4.0, 8.0],
        "last": [3.0, 3.0, 6.0, 9.0],
        "output_len": [3, 1, 5, 2],
    }
    return make_result(**columns | changes)


def test_latencies_are_differences_of_instants():
    result = four_requests()

    assert metrics.ttft(result).tolist() == [1, 2, 2, 5]
    assert metrics.e2el(result).tolist() == [3, 2, 4, 6]
    assert metrics.queued_time(result).tolist() == [0, 1, 0, 3]
    assert metrics.prefill_time(result).tolist() == [1, 1, 2, 2]
    assert metrics.decode_time(result).tolist() == [2, 0, 2, 1]
    assert metrics.inference_time(result).tolist() == [3, 1, 4, 3]
    assert metrics.normalized_latency(result).tolist() == [1, 2, 0.8, 3]


def test_a_one_token_answer_has_no_tpot():
    assert metrics.tpot(four_requests()) == pytest.approx([1, NAN, 0.5, 1], nan_ok=True)


def test_a_summary_of_four_requests_is_what_paper_and_pencil_give():
    result = four_requests(
        deadline=[3.0, 1.0, np.inf, 8.0], num_preemptions=[1, 0, 2, 0], client=[0, 1, 1, 0]
    )

    found = summarize(result, Slo(ttft=2.0, tpot=0.6), alone=[1, 1, 2, 2])

    by_hand = {
        "ttft_mean": 10 / 4,
        "ttft_p50": 2,
        "ttft_p90": 2 + 0.7 * 3,  # rank 2.7 of 0-3
        "ttft_p99": 2 + 0.97 * 3,
        "ttft_max": 5,
        "tpot_mean": 2.5 / 3,
        "tpot_p50": 1,
        "tpot_p90": 1,
        "tpot_p99": 1,
        "e2el_mean": 15 / 4,
        "e2el_p50": 3.5,
        "e2el_p90": 4 + 0.7 * 2,
        "e2el_p99": 4 + 0.97 * 2,
        "queued_time_mean": 1,
        "queued_time_p50": 0.5,
        "queued_time_p90": 1 + 0.7 * 2,
        "queued_time_p99": 1 + 0.97 * 2,
        "queued_time_max": 3,
        "itl_mean": 5 / 7,
        "request_throughput": 4 / 10,
        "output_throughput": 11 / 10,
        "total_token_throughput": (11 + 100) / 10,
        "goodput": 2 / 10,  # the second and third request
        "slo_attainment": 2 / 4,
        "anwg": 2 / 4,  # the first and third
        "num_preemptions": 3,
        "recompute_tax": 5 / 100,
        "slowdown_p99": 3,
        "slowdown_max": 3,
        "jain": (3 + 2) ** 2 / (2 * (9 + 4)),
        "num_unfinished": 0,
        "num_aborted": 0,
        "num_rejected": 0,
        "num_requests": 4,
        "num_dropped": 2,
        "num_steps": 7,
    }
    assert list(found) == list(METRICS)
    from_bins = {"itl_p50": 0.5, "itl_p90": 1.0, "itl_p99": 1.0}  # gaps: 1 1, four of 0.5, 1
    assert {name: found[name] for name in by_hand} == pytest.approx(by_hand, rel=1e-14)
    assert {name: found[name] for name in from_bins} == pytest.approx(from_bins, rel=0.02)
    assert set(by_hand) | set(from_bins) == set(METRICS)


def test_a_value_on_its_limit_meets_the_slo_and_a_missing_limit_is_none():
    result = four_requests()

    assert metrics.met_slo(result, Slo(ttft=2.0)).tolist() == [True, True, True, False]
    assert metrics.met_slo(result, Slo(e2el=3.0)).tolist() == [True, True, False, False]
    assert metrics.met_slo(result, Slo()).all()


def test_a_one_token_answer_cannot_miss_a_tpot_limit():
    assert metrics.met_slo(four_requests(), Slo(tpot=0.1)).tolist() == [False, True, False, False]


def test_anwg_weighs_requests():
    result = four_requests(deadline=[3.0, 1.0, np.inf, 8.0])

    assert metrics.anwg(result, weight=[1, 2, 3, 4]) == 0.4


def test_what_cannot_be_known_is_undefined():
    found = summarize(four_requests())

    undefined = {"goodput", "slo_attainment", "anwg", "slowdown_p99", "slowdown_max", "jain"}
    assert {name for name, value in found.items() if np.isnan(value)} == undefined


def test_unfinished_requests_are_censored_and_counted():
    """The third request never starts, the fourth has its first token but not its last."""
    result = four_requests(
        scheduled=[0.0, 2.0, NAN, 6.0], first=[1.0, 3.0, NAN, 8.0], last=[3.0, 3.0, NAN, NAN]
    )

    found = summarize(result, Slo(ttft=6.0), alone=[1, 1, 2, 2])

    assert found["num_unfinished"] == 2
    assert [found["ttft_p50"], found["ttft_p90"], found["ttft_max"]] == [3.5, np.inf, np.inf]
    assert [found["e2el_p50"], found["slowdown_max"]] == [np.inf, np.inf]
    for name in ("ttft_mean", "tpot_mean", "e2el_mean", "queued_time_mean", "itl_mean"):
        assert np.isnan(found[name]), name
    assert found["slo_attainment"] == 2 / 4
    assert found["goodput"] == found["request_throughput"] == 2 / 10
    assert found["output_throughput"] == 4 / 10
    assert found["total_token_throughput"] == (4 + 30) / 10


def test_a_mean_stays_defined_where_every_request_has_that_latency():
    found = summarize(four_requests(last=[3.0, 3.0, 6.0, NAN]))

    assert [found["ttft_mean"], found["queued_time_mean"]] == [2.5, 1.0]
    assert np.isnan(found["e2el_mean"])


def test_gaps_that_unfinished_answers_owe_are_beyond_all_others():
    """Two gaps of 1 s were seen; five more (4 + 1) never came."""
    result = four_requests(last=[3.0, 3.0, NAN, NAN])

    assert metrics.itl_quantile(result, 1 / 6) == pytest.approx(1.0, rel=0.02)
    assert metrics.itl_quantile(result, 0.5) == np.inf


def test_an_unfinished_request_misses_a_deadline_it_does_not_have():
    result = four_requests(last=[3.0, 3.0, 6.0, NAN])

    assert metrics.met_deadline(result).tolist() == [True, True, True, False]


def test_no_requests_have_no_averages():
    found = summarize(make_result([], [], [], [], []), Slo(ttft=1.0), alone=[])

    counts = {name for name, metric in METRICS.items() if metric.unit == "count"}
    assert {name for name, value in found.items() if not np.isnan(value)} == counts | {
        "recompute_tax"
    }


def test_jain_compares_mean_slowdowns_of_clients_and_leaves_out_the_unknown():
    alone = [1, 1, 2, 2]  # slowdowns 3, 2, 2, 3

    assert metrics.jain_index(four_requests(client=[0, 0, 7, 7]), alone) == pytest.approx(1.0)
    assert metrics.jain_index(four_requests(client=[0, 5, 5, -1]), alone) == pytest.approx(25 / 26)
    assert np.isnan(metrics.jain_index(four_requests(client=[-1, -1, -1, -1]), alone))


@pytest.mark.parametrize("alone", [[1.0, 1.0], [1.0, 1.0, 1.0, 0.0], [1.0, 1.0, 1.0, NAN]])
def test_times_alone_must_be_positive_and_one_per_request(alone):
    with pytest.raises(ConfigError, match="alone must be 4 positive times"):
        metrics.slowdown(four_requests(), alone)


@pytest.mark.parametrize("weight", [[1.0], [1.0, 1.0, 1.0, -1.0]])
def test_weights_must_not_be_negative_and_one_per_request(weight):
    with pytest.raises(ConfigError, match="weight must be 4 numbers"):
        metrics.anwg(four_requests(deadline=9.0), weight)


@given(
    gaps=st.lists(st.floats(1e-5, 1e4), min_size=1, max_size=50),
    level=st.floats(0, 1),
)
def test_histogram_quantiles_are_within_a_bin_of_the_truth(gaps, level):
    result = make_result([0.0], [0.0], [0.0], [sum(gaps)], [len(gaps) + 1], gaps=np.array(gaps))

    assert metrics.itl_quantile(result, level) == pytest.approx(np.quantile(gaps, level), rel=0.02)


def test_a_result_without_second_tokens_has_no_gap():
    result = make_result([0.0], [0.0], [1.0], [1.0], [1])

    assert np.isnan(metrics.itl_quantile(result, 0.5))
    assert np.isnan(metrics.itl_mean(result))


@given(seed=st.integers(0, 2**32), factor=st.sampled_from([0.25, 2.0, 1024.0]))
def test_a_slower_clock_scales_latencies_and_rates(seed, factor):
    rng = np.random.default_rng(seed)
    num_requests = int(rng.integers(1, 12))
    arrival = np.sort(rng.exponential(5.0, num_requests))
    scheduled = arrival + rng.exponential(2.0, num_requests)
    first = scheduled + rng.exponential(1.0, num_requests)
    output_len = rng.integers(1, 5, num_requests)
    last = first + rng.exponential(1.0, num_requests) * (output_len - 1)
    last[rng.random(num_requests) < 0.1] = NAN
    instants = (arrival, scheduled, first, last)

    once = make_result(*instants, output_len, end_time=100.0)
    slower = make_result(
        *(factor * instant for instant in instants), output_len, end_time=factor * 100.0
    )

    before = summarize(once, Slo(ttft=2.0, tpot=1.0), alone=np.ones(num_requests))
    after = summarize(
        slower, Slo(ttft=2.0 * factor, tpot=factor), alone=np.full(num_requests, factor)
    )
    power = {"s": 1, "requests/s": -1, "tokens/s": -1, "1": 0, "count": 0}
    for name, metric in METRICS.items():
        tolerance = 0.02 if name.startswith("itl_p") else 1e-12
        expected = before[name] * factor ** power[metric.unit]
        assert after[name] == pytest.approx(expected, rel=tolerance, nan_ok=True), name


def test_every_metric_is_documented_with_its_unit_and_direction():
    per_run = DOCS.read_text("utf8").partition("## Goals and guards")[0]
    rows = re.findall(r"^\| (`.*) \| .* \| (.*) \| (.*) \|$", per_run, re.MULTILINE)
    documented = {
        name: (unit, {"-": None}.get(better, better))
        for names, unit, better in rows
        for name in re.findall(r"`(\w+)`", names)
    }

    assert documented == {name: (metric.unit, metric.better) for name, metric in METRICS.items()}


def test_names_can_be_used_in_expressions():
    assert all(name.isidentifier() and name.islower() for name in METRICS)

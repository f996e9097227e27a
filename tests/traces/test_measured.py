"""What logs say of how long requests took: read as defined, and forgotten if impossible."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuesmith.errors import TraceError
from queuesmith.traces import load_trace
from queuesmith.traces.imported import import_file
from queuesmith.traces.measured import LATENCIES, Measured, clean_measured
from queuesmith.traces.trace import Trace

SAMPLES = Path(__file__).parent / "samples"
NAN = float("nan")


def measured_of(path):
    measured = load_trace(path).measured
    return {name: getattr(measured, name).tolist() for name in measured.known}


@pytest.fixture
def write(tmp_path):
    """Write lines of JSON, or text, and return the path."""

    def write(rows, name="log.jsonl"):
        path = tmp_path / name
        text = rows if isinstance(rows, str) else "\n".join(map(json.dumps, rows))
        path.write_text(text)
        return path

    return write


def same(found, expected):
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert found[name] == pytest.approx(values, abs=1e-9, nan_ok=True), name


def test_aiperf_says_when_the_first_token_came_and_the_last():
    measured = load_trace(SAMPLES / "aiperf_profile_export.jsonl").measured

    assert measured.ttft[:2] == pytest.approx([0.0125, 0.0125])
    assert measured.e2el[:2] == pytest.approx([0.08025, 0.08025])
    assert measured.tpot[:2] == pytest.approx([0.06775 / 8, 0.06775 / 29])


def test_guidellm_without_a_latency_has_its_end():
    measured = load_trace(SAMPLES / "guidellm_report.json").measured

    assert measured.ttft[:2] == pytest.approx([0.0215, 0.0215])
    assert measured.e2el[:2] == pytest.approx([1.0, 1.0])


def test_guidellm_time_per_output_token_counts_the_first_and_is_not_taken_for_tpot(write):
    request = {
        "request_start_time": 5.0,
        "prompt_tokens": 10,
        "output_tokens": 5,
        "time_to_first_token_ms": 200.0,
        "time_per_output_token_ms": 120.0,
        "request_latency": 0.6,
    }
    report = {"benchmarks": [{"metrics": {}, "requests": {"successful": [request]}}]}

    same(measured_of(write([report])), {"ttft": [0.2], "tpot": [0.1], "e2el": [0.6]})


def test_vllm_bench_latency_is_the_first_token_and_all_gaps(write):
    result = {
        "completed": 3,
        "request_throughput": 1,
        "total_input_tokens": 3,
        "start_times": [1.0, 2.0, 3.0],
        "input_lens": [5, 5, 5],
        "output_lens": [3, 1, 4],
        "ttfts": [0.5, 0.25, 0.0],
        "itls": [[0.1, 0.3], [], [0.1, "x", 0.1]],
        "errors": ["", "", ""],
    }

    found = measured_of(write([result]))

    same(found, {"ttft": [0.5, 0.25, NAN], "tpot": [0.2, NAN, NAN], "e2el": [0.9, 0.25, NAN]})


def test_per_request_metrics_of_vllm_count_ttft_from_when_a_request_was_scheduled(write):
    def answer(time, metrics):
        usage = {"prompt_tokens": 9, "completion_tokens": 5}
        return {"arrival_time": time, "response": {"usage": usage, "metrics": metrics}}

    whole = {
        "time_to_first_token_ms": 100.0,
        "generation_time_ms": 400.0,
        "queue_time_ms": 2000.0,
        "mean_itl_ms": 100.0,
    }
    rows = [answer(1.0, whole), answer(2.0, {**whole, "queue_time_ms": None}), answer(3.0, None)]

    found = measured_of(write(rows))

    expected = {"ttft": [2.1, NAN, NAN], "tpot": [0.1, 0.1, NAN], "e2el": [2.5, NAN, NAN]}
    same(found, {**expected, "queued_time": [2.0, NAN, NAN]})


def test_a_proxy_that_did_not_stream_knows_no_first_token():
    trace = load_trace(SAMPLES / "litellm_spend_logs.csv")

    assert trace.measured.ttft == pytest.approx([0.875, NAN, NAN], nan_ok=True)
    assert trace.measured.e2el == pytest.approx([1.875, 1.875, 0.875])


def test_a_proxy_that_falls_back_to_the_end_knows_no_first_token(write):
    row = {
        "spend": 1,
        "prompt_tokens": 9,
        "completion_tokens": 4,
        "startTime": "2026-11-30T10:00:00.5",
        "completionStartTime": "2026-11-30T10:00:02",
        "endTime": "2026-11-30T10:00:02",
    }

    trace = load_trace(write([row]))

    same({"e2el": trace.measured.e2el.tolist()}, {"e2el": [1.5]})
    assert trace.measured.known == ("e2el",)
    assert (
        "requests answered as a whole, whose ttft is therefore not known: 1" in trace.origin.notes
    )


def test_spans_of_vllm_have_latencies_and_others_an_end(write):
    def span(attributes, **more):
        usage = {"gen_ai.usage.prompt_tokens": 9, "gen_ai.usage.completion_tokens": 3}
        return {"start_time": "2026-11-30T10:00:00Z", "attributes": {**usage, **attributes}, **more}

    vllm = {
        "gen_ai.latency.time_to_first_token": 1.0,
        "gen_ai.latency.e2e": 3.0,
        "gen_ai.latency.time_in_queue": 0.0,
    }
    rows = [span(vllm, end_time="2026-11-30T10:00:09Z"), span({}, end_time="2026-11-30T10:00:04Z")]

    found = measured_of(write(rows))

    expected = {"ttft": [1.0, NAN], "tpot": [1.0, NAN], "e2el": [3.0, 4.0]}
    same(found, {**expected, "queued_time": [0.0, NAN]})


def test_nanoseconds_since_1970_keep_their_digits(write):
    start = 1_764_500_000_000_000_001
    attributes = {"gen_ai.usage.input_tokens": 9, "gen_ai.usage.output_tokens": 3}
    row = {
        "startTimeUnixNano": str(start),
        "endTimeUnixNano": str(start + 1_234),
        "attributes": attributes,
    }

    assert load_trace(write([row])).measured.e2el == pytest.approx([1.234e-6], rel=1e-12)


def test_an_access_log_has_the_time_of_the_whole_request():
    trace = load_trace(SAMPLES / "access_pairs.log")

    assert trace.measured.known == ("e2el",)
    assert trace.measured.e2el == pytest.approx([1.25, 0.5, NAN], nan_ok=True)


@pytest.mark.parametrize(
    ("head", "values"),
    [
        ("ttft,e2el", "0.5,2.5"),
        ("time_to_first_token_ms,e2e_latency", "500,2.5"),
        ("TTFT_us,tpot_ms", "500000,500"),
        ("first_token_ts,last_token_ts", "10.5,12.5"),
    ],
)
def test_a_table_names_latencies_with_their_unit_or_instants(write, head, values):
    text = f"arrival_time,prompt_len,output_len,{head}\n10,7,5,{values}\n"

    same(measured_of(write(text)), {"ttft": [0.5], "tpot": [0.5], "e2el": [2.5]})


def test_instants_have_the_unit_of_arrivals(write):
    path = write("arrival_time,prompt_len,output_len,last_token_ts\n1000,7,5,3500\n")

    assert load_trace(path, unit="ms").measured.e2el.tolist() == [2.5]


def test_a_column_of_that_name_with_something_else_refuses_nobody(tmp_path):
    path = tmp_path / "odd.parquet"
    columns = {"arrival_time": [1.0], "prompt_len": [7], "output_len": [5], "latency": [[1, 2]]}
    pa.parquet.write_table(pa.table(columns), path)

    assert load_trace(path).measured is None


def test_an_imported_table_keeps_its_latencies(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("when,prompt_len,output_len,ttft_ms\n10,7,1,500\n")

    imported = import_file(
        path, "mine", tmp_path / "traces", columns={"arrival_time": "when", "ttft": "ttft_ms"}
    )

    assert load_trace(imported.path).measured.ttft.tolist() == [0.5]


@pytest.mark.parametrize("unit", [{"a": 1}, [1], None, "tokens", 3, True])
@pytest.mark.parametrize("value", [12.5, None, {"a": 1}, "x", 10**400, True])
def test_a_duration_that_is_none_refuses_nobody(write, unit, value):
    def line(start, latency):
        lengths = {"value": 9, "unit": "tokens"}
        metrics = {"input_sequence_length": lengths, "output_sequence_length": lengths}
        metadata = {"request_start_ns": start, "benchmark_phase": "profiling"}
        return {"metadata": metadata, "metrics": {**metrics, "request_latency": latency}}

    odd = {"value": value, "unit": unit}
    path = write([line(10**9, odd), line(2 * 10**9, {"value": 12.5, "unit": "ms"})])

    same({"e2el": load_trace(path).measured.e2el.tolist()}, {"e2el": [NAN, 0.0125]})


def test_impossible_latencies_are_forgotten_and_counted():
    output_len = np.array([5, 5, 5, 5, 5, 1])
    measured, notes = clean_measured(
        output_len,
        ttft=np.array([-1.0, 0.0, np.inf, 3.0, NAN, 2.0]),
        e2el=np.array([4.0, 4.0, 4.0, 1.0, 4.0, 2.0]),
        queued_time=np.array([-1.0, 0.0, 0.0, 0.0, 0.0, 0.0]),
    )

    assert measured.ttft == pytest.approx([NAN, NAN, NAN, NAN, NAN, 2.0], nan_ok=True)
    assert measured.e2el == pytest.approx([4, 4, 4, NAN, 4, 2], nan_ok=True)
    assert np.isnan(measured.tpot).all()
    assert measured.queued_time == pytest.approx([NAN, 0, 0, 0, 0, 0], nan_ok=True)
    assert notes == (
        "requests whose measured ttft is zero, negative or endless: 3",
        "requests whose measured queued_time is negative or endless: 1",
        "requests whose measured ttft is above their e2el: 1",
    )


def test_nothing_known_is_nothing():
    assert clean_measured(np.array([3, 3]))[0] is None
    assert clean_measured(np.array([3]), ttft=np.array([-1.0]))[0] is None


def test_a_trace_takes_its_latencies_along_and_refuses_those_of_others():
    measured, _ = clean_measured(np.array([2, 2, 2]), e2el=np.array([1.0, 2.0, 3.0]))
    trace = Trace([0, 1, 2], [5, 5, 5], [2, 2, 2], measured=measured)

    assert trace.take(np.array([0, 2])).measured.e2el.tolist() == [1.0, 3.0]
    assert trace.sha256 == Trace([0, 1, 2], [5, 5, 5], [2, 2, 2]).sha256
    with pytest.raises(TraceError, match="measured has 3 requests for 2 arrival times"):
        Trace([0, 1], [5, 5], [2, 2], measured=measured)


anything = st.one_of(st.none(), st.floats(), st.sampled_from([0.0, -0.0, 1e-300, 1e300]))


@given(st.lists(st.tuples(st.integers(1, 9), anything, anything, anything, anything), min_size=1))
def test_whatever_is_kept_could_have_happened(rows):
    output_len = np.array([row[0] for row in rows])
    columns = [
        np.array([NAN if row[place] is None else row[place] for row in rows])
        for place in range(1, 5)
    ]
    measured, _ = clean_measured(output_len, **dict(zip(LATENCIES, columns, strict=True)))

    if measured is None:
        return
    assert isinstance(measured, Measured)
    for name in LATENCIES:
        values = getattr(measured, name)
        assert len(values) == len(rows)
        assert not (values < 0).any()
        assert not np.isinf(values).any()
    assert not (measured.ttft > measured.e2el).any()
    assert np.isnan(measured.tpot[output_len == 1]).all()

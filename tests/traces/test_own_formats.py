"""Logs that people have: known by content, read as their makers document them, never a traceback.

The samples are made up; each is a few lines in the form that its tool writes.
"""

import gzip
import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from queuesmith.errors import NotOneTrace, TraceError
from queuesmith.traces import Trace, load_trace

SAMPLES = Path(__file__).parent / "samples"
NAMES = sorted(path.name for path in SAMPLES.iterdir())

#: By sample: reader, arrivals, prompts, outputs, and what was left out why.
EXPECTED = {
    "access_json.log": ("access_log", [0, 1.25], [120, 20], [40, 4], {}),
    "access_pairs.log": (
        "access_log",
        [0, 2.25, 4.25],
        [120, 60, 10],
        [40, 5, 2],
        {"line without token counts": 1, "failed request (status 4xx or 5xx)": 1},
    ),
    "aiperf_profile_export.jsonl": (
        "aiperf",
        [0, 0.250000001, 1.5],
        [550, 120, 600],
        [9, 30, 12],
        {"warm-up request": 1, "cancelled request": 1, "failed request": 1},
    ),
    "guidellm_report.json": (
        "guidellm",
        [0, 0.5, 60],
        [128, 256, 100],
        [32, 64, 20],
        {"errored request": 1, "request cut off by the end of the benchmark": 1},
    ),
    "litellm_spend_logs.csv": (
        "litellm",
        [0, 1, 2],
        [100, 200, 300],
        [50, 30, 10],
        {
            "answered from LiteLLM's cache": 1,
            "call that generates no text": 1,
            "failed request": 1,
        },
    ),
    "litellm_spend_logs.jsonl": (
        "litellm",
        [0, 2.5],
        [100, 10],
        [50, 5],
        {"answered from LiteLLM's cache": 1},
    ),
    "openai_usage.jsonl": (
        "openai_usage",
        [0, 2, 3],
        [12, 40, 9],
        [7, 3, 1],
        {"answer or part of one without usage": 1},
    ),
    "openai_wrapped.jsonl": ("openai_usage", [0, 1.25], [100, 960], [20, 30], {}),
    "otel_flat.jsonl": ("otel", [0, 2.25], [10, 20], [5, 6], {"span without token counts": 1}),
    "otel_otlp.json": (
        "otel",
        [0, 1],
        [121, 200],
        [40, 8],
        {
            "span of an agent or a tool around model calls": 1,
            "span around another one with token counts": 1,
            "span without token counts": 1,
        },
    ),
    "vllm_0.10.log": (
        "vllm_log",
        [0, 3, 5],
        [4, 2, 3],
        [3, 2, 3],
        {"request aborted by its client": 1, "request without an answer in the log": 1},
    ),
    "vllm_0.20_docker.log": (
        "vllm_log",
        [0, 1.5],
        [5, 2],
        [4, 6],
        {"request aborted by its client": 1},
    ),
    "vllm_bench_serve.json": (
        "vllm_bench",
        [0, 0.5, 1.75],
        [10, 20, 30],
        [4, 5, 6],
        {"failed request": 1},
    ),
}


@pytest.fixture
def write(tmp_path):
    """Return a function that writes text or bytes to a file and returns its path."""

    def write_file(content):
        path = tmp_path / "trace.dat"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write_file


def refusal(path):
    with pytest.raises(TraceError) as caught:
        load_trace(path)
    message = str(caught.value)
    assert "\n" not in message
    return message


def read_or_refuse(path):
    """Return the trace, or the one line that says why there is none."""
    try:
        trace = load_trace(path)
    except TraceError as error:
        return str(error)
    finally:
        shutil.rmtree(path.parent)
    assert len(trace) > 0
    assert np.isfinite(trace.arrival_time).all()
    return trace


def assert_sound(found):
    if isinstance(found, str):
        assert "\n" not in found
        assert len(found) < 2_000
    else:
        assert isinstance(found, Trace)


def lines_of(name):
    return (SAMPLES / name).read_text().splitlines()


def objects_of(name):
    return [json.loads(line) for line in lines_of(name)]


def as_jsonl(objects):
    return "\n".join(map(json.dumps, objects))


def test_every_sample_is_expected_something_of():
    assert sorted(EXPECTED) == NAMES


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("packed", [False, True])
def test_a_log_is_known_by_its_content_and_read_as_documented(name, packed, write):
    data = (SAMPLES / name).read_bytes()
    reader, arrivals, prompts, outputs, dropped = EXPECTED[name]

    trace = load_trace(write(gzip.compress(data) if packed else data))

    assert trace.origin.reader == reader
    assert trace.origin.kind == "real"
    assert trace.arrival_time == pytest.approx(arrivals, abs=1e-6)
    assert trace.prompt_len.tolist() == prompts
    assert trace.output_len.tolist() == outputs
    assert dict(trace.origin.dropped) == dropped


@pytest.mark.parametrize(
    "name", [name for name in NAMES if name.endswith((".jsonl", "access_pairs.log"))]
)
def test_a_broken_line_is_counted_and_costs_no_other(name, write):
    lines = lines_of(name)
    whole = load_trace(write("\n".join(lines)))

    trace = load_trace(write("\n".join([*lines[:2], '{"broken": ', *lines[2:]])))

    assert trace.prompt_len.tolist() == whole.prompt_len.tolist()
    assert trace.origin.dropped == {**whole.origin.dropped, "row could not be read": 1}


def test_nanoseconds_since_1970_keep_their_last_digit():
    # As float64 they would be 256 ns apart.
    trace = load_trace(SAMPLES / "aiperf_profile_export.jsonl")

    assert trace.arrival_time[1] == 0.250000001


def test_conversations_and_clients_are_kept_where_a_log_has_them():
    aiperf = load_trace(SAMPLES / "aiperf_profile_export.jsonl")
    litellm = load_trace(SAMPLES / "litellm_spend_logs.csv")
    otel = load_trace(SAMPLES / "otel_otlp.json")

    assert aiperf.session.tolist() == [0, 1, 0]
    assert aiperf.turn.tolist() == [0, 0, 1]
    assert litellm.session.tolist() == [0, 0, 1]
    assert litellm.client.tolist() == [0, 1, 2]  # ana, bob, and one known by its key alone
    assert otel.session.tolist() == [0, -1]
    assert otel.max_tokens.tolist()[0] == 512


def test_what_a_prompt_says_is_not_taken_for_the_log(write):
    line = lines_of("vllm_0.10.log")[2]
    assert "prompt_token_ids: [9]" in line
    assert "max_tokens=1)" in line

    trace = load_trace(SAMPLES / "vllm_0.10.log")

    assert trace.prompt_len[0] == 4
    assert trace.max_tokens.tolist() == [64, 16, 9]


def test_a_vllm_log_runs_on_over_new_year_and_says_that_it_knows_only_seconds():
    trace = load_trace(SAMPLES / "vllm_0.10.log")

    assert trace.duration == 5
    assert any("whole seconds" in note for note in trace.origin.notes)
    assert load_trace(SAMPLES / "vllm_0.20_docker.log").origin.notes == ()


def vllm_log(prompts):
    """Return a log of requests with so many prompt tokens each."""
    prefix = "INFO 11-30 10:00:00 [logger.py:40]"
    lines = []
    for number, tokens in enumerate(prompts):
        ids = ", ".join(["7"] * tokens)
        lines += [
            f"{prefix} Received request r{number}: prompt: '', params: SamplingParams(n=1), "
            f"prompt_token_ids: [{ids}], prompt_embeds shape: None, lora_request: None.",
            f"{prefix} Generated response r{number}: output: '', output_token_ids: [1], "
            "finish_reason: stop",
        ]
    return "\n".join(lines)


def test_prompts_that_look_cut_are_said_to_be_so(write):
    cut = load_trace(write(vllm_log([3, 8, 8, 8, 5])))
    whole = load_trace(write(vllm_log([3, 8, 9, 10, 5])))

    assert any("3 prompts have exactly 8 logged ids" in note for note in cut.origin.notes)
    assert not any("--max-log-len" in note for note in whole.origin.notes)


def test_a_load_generator_is_said_to_be_one():
    for name in ("aiperf_profile_export.jsonl", "guidellm_report.json", "vllm_bench_serve.json"):
        notes = load_trace(SAMPLES / name).origin.notes
        assert any("load generator" in note for note in notes)


def test_a_sampled_guidellm_report_says_that_its_rate_is_too_low():
    notes = load_trace(SAMPLES / "guidellm_report.json").origin.notes

    assert any("2 benchmarks" in note for note in notes)
    assert any("5 of 44 requests" in note for note in notes)


def test_an_indented_document_and_one_on_a_line_are_the_same(write):
    for name in ("guidellm_report.json", "otel_otlp.json", "vllm_bench_serve.json"):
        document = json.loads((SAMPLES / name).read_text())
        long = load_trace(write(json.dumps(document, indent=4)))
        short = load_trace(write(json.dumps(document)))
        assert long.arrival_time.tolist() == short.arrival_time.tolist()
        assert long.origin.dropped == short.origin.dropped


def test_otlp_objects_one_per_line_are_one_log(write):
    document = json.loads((SAMPLES / "otel_otlp.json").read_text())
    spans = document["resourceSpans"][0]["scopeSpans"][0]["spans"]
    parts = [{"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]} for span in spans]

    trace = load_trace(write(as_jsonl(parts)))

    assert trace.prompt_len.tolist() == [121, 200]


def test_spans_that_call_each_other_in_a_circle_end(write):
    spans = [
        {"traceId": "t", "spanId": own, "parentSpanId": parent, "startTimeUnixNano": "1"}
        | {"attributes": {"gen_ai.usage.input_tokens": 3, "gen_ai.usage.output_tokens": 2}}
        for own, parent in (("a", "b"), ("b", "a"), ("c", ""))
    ]

    trace = load_trace(write(as_jsonl(spans)))

    assert len(trace) == 1
    assert trace.origin.dropped == {"span around another one with token counts": 2}


def test_spend_logs_in_parquet_are_those_in_csv(write, tmp_path):
    as_csv = load_trace(SAMPLES / "litellm_spend_logs.csv")
    table = pa.csv.read_csv(SAMPLES / "litellm_spend_logs.csv")
    assert pa.types.is_timestamp(table["startTime"].type)
    path = tmp_path / "spend"
    pa.parquet.write_table(table, path)

    trace = load_trace(path)

    assert trace.origin.reader == "litellm"
    assert trace.arrival_time.tolist() == as_csv.arrival_time.tolist()
    assert trace.client.tolist() == as_csv.client.tolist()
    assert trace.origin.dropped == as_csv.origin.dropped


def test_columns_make_any_of_them_a_plain_table():
    columns = {"arrival_time": "endTime", "prompt_len": "spend", "output_len": "total_tokens"}

    with pytest.raises(TraceError, match="not a whole number"):
        load_trace(SAMPLES / "litellm_spend_logs.csv", columns=columns)


def test_a_flat_table_that_also_keeps_the_answers_stays_a_table(write):
    rows = [
        {"timestamp": float(row), "prompt_tokens": 5 + row, "completion_tokens": 3}
        | {"usage": {"prompt_tokens": 1, "completion_tokens": 1}}
        for row in range(3)
    ]

    trace = load_trace(write(as_jsonl(rows)))

    assert trace.origin.reader == "table"
    assert trace.prompt_len.tolist() == [5, 6, 7]


def without(name, *path):
    """Return the sample's objects with a nested key removed."""
    objects = objects_of(name)
    for found in objects:
        for step in path[:-1]:
            found = found.get(step, {})
        found.pop(path[-1], None)
    return as_jsonl(objects)


AIPERF = "aiperf_profile_export.jsonl"
BENCH = "vllm_bench_serve.json"
STATISTICS = lines_of("vllm_0.10.log")[6]
NO_COUNTS = '10.0.0.7 - - [30/Nov/2026:10:00:02 +0000] "POST /v1/x HTTP/1.1" 200 512 "-" "curl/8"'
UVICORN = 'INFO:     127.0.0.1:40514 - "POST /v1/chat/completions HTTP/1.1" 200 OK'


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (
            "\n".join(line for line in lines_of("vllm_0.10.log") if "Generated" not in line),
            ["without output_token_ids", "--enable-log-outputs", "VLLM_LOGGING_LEVEL=DEBUG"],
        ),
        (
            "\n".join(line for line in lines_of("vllm_0.20_docker.log") if "details" not in line),
            ["without prompt_token_ids", "VLLM_LOGGING_LEVEL=DEBUG", "--max-log-len"],
        ),
        (STATISTICS, ["engine statistics, which are averages", "--enable-log-requests"]),
        (lines_of("vllm_0.10.log")[0], ["no requests", "--enable-log-requests"]),
        (without(AIPERF, "metadata", "request_start_ns"), ["without metadata.request_start_ns"]),
        (without(AIPERF, "metrics", "output_sequence_length"), ["no token counts", "--tokenizer"]),
        (
            json.dumps({"benchmarks": [{"metrics": {}, "requests": {"successful": []}}]}),
            ["GuideLLM report without requests", "--sample-requests"],
        ),
        (
            json.dumps({"benchmarks": [{"requests": {"successful": [{"start_time": 1.0}]}}]}),
            ["without prompt_tokens", "--processor"],
        ),
        (without(BENCH, "start_times"), ["without start_times", "2026"]),
        (without(BENCH, "input_lens"), ["without input_lens", "--save-detailed"]),
        (as_jsonl(objects_of(BENCH) * 2), ["several `vllm bench serve` results"]),
        (without("litellm_spend_logs.jsonl", "completion_tokens"), ["summarize=false"]),
        (
            json.dumps({"startTime": "2026-11-30", "spend": 0.2, "users": {"ana": 0.2}}),
            ["LiteLLM log without prompt_tokens", "summarize=false"],
        ),
        (without("openai_usage.jsonl", "usage"), ["without usage", "--enable-force-include-usage"]),
        (without("openai_usage.jsonl", "created"), ["without a time"]),
        (
            json.dumps({"object": "bucket", "start_time": 1, "results": [{"input_tokens": 5}]}),
            ["totals per time bucket"],
        ),
        (without("otel_flat.jsonl", "attributes"), ["none of which has gen_ai.usage"]),
        (without("otel_flat.jsonl", "start_time"), ["without a start", "startTimeUnixNano"]),
        ("\n".join([NO_COUNTS] * 3), ["access log without token counts", "completion_tokens="]),
        ("\n".join([UVICORN] * 3), ["access log without token counts", "completion_tokens="]),
        (
            f"{NO_COUNTS} prompt_tokens=5\n{NO_COUNTS} prompt_tokens=6",
            ["without completion_tokens"],
        ),
    ],
)
def test_a_log_that_lacks_something_says_what_writes_it(content, parts, write):
    message = refusal(write(content))

    for part in parts:
        assert part in message


def test_several_results_are_not_one_trace(write):
    with pytest.raises(NotOneTrace):
        load_trace(write(as_jsonl(objects_of(BENCH) * 2)))


def test_a_log_of_failures_only_says_so(write):
    failed = [line for line in lines_of(AIPERF) if '"error": null' not in line]

    assert "failed request (1)" in refusal(write("\n".join(failed)))


PIECES = [
    *(b",", b"\n", b"\r", b'"', b"{", b"}", b"[", b"]", b"#", b"-", b"e", b".", b"\0", b"\xff"),
    *(b"nan", b"inf", b"-1", b"0", b"1e308", b"9" * 25, b"null", b"true", b"{}", b"[]", b'""'),
    *(b"2024-02-30", b"1700-01-01", b"02-30 25:61:61", b"+25:00", b"\\ud800", b"\x1b[0m", b'="'),
]


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@settings(
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_damage_gives_a_sound_trace_or_one_line(name, data, tmp_path_factory):
    content = bytearray((SAMPLES / name).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(content)))
        end = start + data.draw(st.integers(0, 12))
        content[start:end] = data.draw(st.one_of(st.sampled_from(PIECES), st.binary(max_size=6)))
    path = tmp_path_factory.mktemp("damage", numbered=True) / "trace.dat"
    path.write_bytes(content)
    assert_sound(read_or_refuse(path))


#: Values of every JSON type, in the place of any value of a sample.
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**30), 10**30),
    st.floats(),
    st.text(max_size=4),
    st.sampled_from([[], {}, [1], {"a": 1}, [[]], [None], {"usage": 1}, {"value": {}}]),
)


def replaced(value, path, new):
    """Return a copy of a JSON value with something else in a place, if the place is still there."""
    if not path:
        return new
    if isinstance(value, dict) and path[0] in value:
        return {**value, path[0]: replaced(value[path[0]], path[1:], new)}
    if isinstance(value, list) and path[0] in range(len(value)):
        value = [*value]
        value[path[0]] = replaced(value[path[0]], path[1:], new)
    return value


def places(value, path=()):
    """List the paths to everything in a JSON value."""
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items if isinstance(value, dict | list) else ():
        found += places(item, (*path, key)) if isinstance(item, dict | list) else [(*path, key)]
    return found


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith((".json", ".jsonl"))])
@given(data=st.data())
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
def test_any_json_in_any_place_gives_a_sound_trace_or_one_line(name, data, tmp_path_factory):
    text = (SAMPLES / name).read_text()
    objects = objects_of(name) if name.endswith(".jsonl") else [json.loads(text)]
    paths = places(objects)
    for path in data.draw(st.lists(st.sampled_from(paths), min_size=1, max_size=3)):
        objects = replaced(objects, path, data.draw(ODD))
    path = tmp_path_factory.mktemp("odd", numbered=True) / "trace.dat"
    path.write_text(as_jsonl(objects))
    assert_sound(read_or_refuse(path))

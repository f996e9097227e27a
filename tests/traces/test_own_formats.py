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
    "azure_multimodal.csv": ("azure_2024", [0, 1.25, 1.5], [1181, 2304, 1577], [51, 87, 12], {}),
    "bedrock.jsonl": ("bedrock", [0, 0, 0], [118, 183, 885], [34, 51, 29], {}),
    "blis_trace.csv": ("blis", [0, 0.589198], [183, 885], [51, 29], {"failed request": 1}),
    "claude_code_session.jsonl": ("claude_code", [0, 0.048337], [118, 183], [34, 51], {}),
    "dynamo_request_end.jsonl": (
        "dynamo",
        [0, 0.048, 0.637],
        [118, 183, 885],
        [34, 51, 29],
        {},
    ),
    "guidellm_report.json": (
        "guidellm",
        [0, 0.5, 60],
        [128, 256, 100],
        [32, 64, 20],
        {"errored request": 1, "request cut off by the end of the benchmark": 1},
    ),
    "inference_perf_per_request.json": (
        "inference_perf",
        [0, 0.048337],
        [118, 183],
        [34, 51],
        {"failed request": 1},
    ),
    "kong_ai.jsonl": ("kong", [0, 0.048, 0.637], [118, 183, 885], [34, 51, 29], {}),
    "langfuse_observations.jsonl": (
        "langfuse",
        [0, 0.048337, 0.637534],
        [118, 183, 885],
        [34, 51, 29],
        {},
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
    "mooncake_blocks_of_16.jsonl": (
        "mooncake",
        [0, 0.048, 0.637],
        [118, 183, 885],
        [34, 51, 29],
        {},
    ),
    "mooncake_sessions.jsonl": (
        "mooncake",
        [0, 0.5, 0.8, 1],
        [118, 183, 207, 885],
        [34, 51, 113, 29],
        {},
    ),
    "mooncake_without_hash_ids.jsonl": (
        "mooncake",
        [0, 0.048, 0.637],
        [118, 183, 885],
        [34, 51, 29],
        {},
    ),
    "openai_usage.jsonl": (
        "openai_usage",
        [0, 2, 3],
        [12, 40, 9],
        [7, 3, 1],
        {"answer or part of one without usage": 1},
    ),
    "openai_wrapped.jsonl": ("openai_usage", [0, 1.25], [100, 960], [20, 30], {}),
    "openinference.jsonl": (
        "otel",
        [0, 1.5],
        [118, 183],
        [34, 51],
        {"span without token counts": 1},
    ),
    "otel_flat_epoch_ms.jsonl": ("otel", [0, 0.048, 0.637], [118, 183, 885], [34, 51, 29], {}),
    "otel_jaeger.json": ("otel", [0, 0.048337, 0.637534], [118, 183, 885], [34, 51, 29], {}),
    "otel_spans_document.json": ("otel", [0], [10], [5], {}),
    "otel_tempo.json": ("otel", [0, 1.5], [118, 183], [34, 51], {}),
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
    "sglang_request_metrics.jsonl": (
        "sglang_metrics",
        [0, 0.048337],
        [118, 183],
        [34, 51],
        {"aborted request": 1},
    ),
    "sglang_requests.jsonl": (
        "sglang_log",
        [0, 0.048337, 0.637534],
        [118, 183, 885],
        [34, 51, 29],
        {"event that is no finished request": 5},
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


def test_latencies_are_read_where_a_log_has_them():
    expected = {
        "bedrock.jsonl": {"e2el": 0.367},
        "blis_trace.csv": {"ttft": 0.056616, "e2el": 0.506615},
        "claude_code_session.jsonl": {"e2el": 0.387644},
        "dynamo_request_end.jsonl": {"ttft": 0.070644, "e2el": 0.367644},
        "inference_perf_per_request.json": {"ttft": 0.070644, "e2el": 0.367644},
        "kong_ai.jsonl": {"ttft": 0.07, "e2el": 0.367},
        "langfuse_observations.jsonl": {"ttft": 0.070644, "e2el": 0.367644},
        "openinference.jsonl": {"e2el": 0.5},
        "otel_jaeger.json": {"ttft": 0.070644, "e2el": 0.367644},
        "otel_spans_document.json": {"e2el": 2.0},
        "otel_tempo.json": {"ttft": 0.0625, "e2el": 0.5},
        "sglang_request_metrics.jsonl": {"e2el": 0.367644, "queued_time": 0.002},
        "sglang_requests.jsonl": {"e2el": 0.367644},
    }
    for name, latencies in expected.items():
        measured = load_trace(SAMPLES / name).measured
        assert {*measured.known} - {"tpot"} == {*latencies}, name
        for latency, seconds in latencies.items():
            assert getattr(measured, latency)[0] == pytest.approx(seconds, abs=1e-6), name


def test_an_answer_on_several_lines_counts_once_with_all_its_tokens(write):
    lines = objects_of("claude_code_session.jsonl")
    again = json.loads(json.dumps(lines[-1]))
    again["message"]["usage"]["output_tokens"] = 99
    again["timestamp"] = "2026-01-01T00:00:02Z"

    trace = load_trace(write(as_jsonl([*lines, again])))

    assert trace.output_len.tolist() == [34, 99]
    assert trace.session.tolist() == [0, 1]
    assert trace.measured.e2el[1] == pytest.approx(2 - 0.1266)


def test_an_answer_was_asked_for_by_the_line_that_it_follows(write):
    def line(kind, second, uuid, parent, name=None):
        usage = {"input_tokens": 10, "output_tokens": 3}
        message = {"id": name, "usage": usage} if name else {"role": "user"}
        time = f"2026-01-01T00:00:{second:02d}Z"
        row = {"type": kind, "timestamp": time, "sessionId": "s", "message": message}
        return row | {"uuid": uuid, "parentUuid": parent}

    rows = [
        line("user", 0, "a", None),
        line("user", 1, "b", "a"),  # beside it, of another agent
        line("assistant", 5, "c", "a", "m0"),
        line("assistant", 6, "d", "b", "m1"),
        line("assistant", 7, "e", "c", "m0"),
    ]

    trace = load_trace(write(as_jsonl(rows)))

    assert trace.arrival_time.tolist() == [0, 1]
    assert trace.measured.e2el.tolist() == [7, 5]


def test_cached_parts_of_a_prompt_are_parts_of_it(write):
    langfuse = objects_of("langfuse_observations.jsonl")[:1]
    langfuse[0]["usage_details"] |= {"input_cached_tokens": 1000, "output_reasoning_tokens": 6}
    bedrock = objects_of("bedrock.jsonl")[:1]
    bedrock[0]["input"]["cacheReadInputTokenCount"] = 1000

    assert load_trace(write(as_jsonl(langfuse))).prompt_len.tolist() == [1118]
    assert load_trace(write(as_jsonl(langfuse))).output_len.tolist() == [40]
    assert load_trace(write(as_jsonl(bedrock))).prompt_len.tolist() == [1118]


def test_langfuse_is_read_as_the_api_and_as_tables_have_it(write, tmp_path):
    rows = objects_of("langfuse_observations.jsonl")
    expected = load_trace(SAMPLES / "langfuse_observations.jsonl")
    renamed = {
        "trace_id": "traceId",
        "start_time": "startTime",
        "end_time": "endTime",
        "completion_start_time": "completionStartTime",
        "usage_details": "usageDetails",
        "session_id": "sessionId",
        "user_id": "userId",
    }
    api = [{renamed.get(key, key): value for key, value in row.items()} for row in rows]
    flat = [row | {"usage_details": json.dumps(row["usage_details"])} for row in rows]
    table = pa.Table.from_pylist(flat)
    pa.parquet.write_table(table, tmp_path / "observations.parquet")
    pa.csv.write_csv(table, tmp_path / "observations.csv")

    for path in (
        write(as_jsonl(api)),
        tmp_path / "observations.parquet",
        tmp_path / "observations.csv",
    ):
        trace = load_trace(path)
        assert trace.origin.reader == "langfuse"
        assert trace.sha256 == expected.sha256
        assert trace.measured.ttft.tolist() == expected.measured.ttft.tolist()


def test_failed_and_other_records_are_left_out_and_counted(write):
    langfuse = objects_of("langfuse_observations.jsonl")
    langfuse[0]["type"] = "SPAN"
    langfuse[1]["level"] = "ERROR"
    kong = objects_of("kong_ai.jsonl")
    kong[0]["response"]["status"] = 502
    bedrock = objects_of("bedrock.jsonl")
    bedrock[0]["errorCode"] = "ThrottlingException"
    dynamo = objects_of("dynamo_request_end.jsonl")
    dynamo[0]["event_type"] = "tool_call"
    for rows, dropped in (
        (langfuse, {"observation that is no generation": 1, "failed generation": 1}),
        (kong, {"failed request (status 4xx or 5xx)": 1}),
        (bedrock, {"failed request": 1}),
        (dynamo, {"event that is no finished request": 1}),
    ):
        assert load_trace(write(as_jsonl(rows))).origin.dropped == dropped


def test_hashes_of_dynamo_are_of_the_blocks_that_it_says(write):
    rows = objects_of("dynamo_request_end.jsonl")
    rows[0]["request"]["replay"]["input_sequence_hashes"] = [2**64 - 1, 2**63]

    trace = load_trace(write(as_jsonl(rows)))

    assert trace.block_hashes.block_size == 64
    assert trace.block_hashes[0].tolist() == [-1, -(2**63)]
    assert trace.block_hashes.num_blocks.tolist() == [2, 2, 0]  # 885 tokens are no two blocks
    assert "requests whose hashes do not fit their prompt, left out: 1" in trace.origin.notes


def test_columns_within_others_are_named_with_dots(write, tmp_path):
    rows = [
        {
            "at": {"unix_ms": 1000 * number, "zone": "UTC"},
            "usage": json.dumps({"in": 10 + number}),
            "result": {"tokens.out": 3, "timing": {"first_ms": 50.0, "parts": [1, 2]}},
        }
        for number in range(3)
    ]
    columns = {
        "arrival_time": "at.unix_ms",
        "prompt_len": "usage.in",
        "output_len": "result.tokens.out",
        "ttft": "result.timing.first_ms",
        "turn": "result.timing.parts.-1",
    }

    for content in (as_jsonl(rows), json.dumps(rows, indent=1), as_jsonl(rows) + "\n{"):
        trace = load_trace(write(content), columns=columns)
        assert trace.arrival_time.tolist() == [0, 1, 2]
        assert trace.prompt_len.tolist() == [10, 11, 12]
        assert trace.output_len.tolist() == [3, 3, 3]
        assert trace.measured.ttft == pytest.approx(0.05)
        assert trace.turn.tolist() == [2, 2, 2]

    pa.parquet.write_table(
        pa.Table.from_pylist([{**row, "usage": {"in": 10}} for row in rows]), tmp_path / "nested"
    )
    del columns["turn"], columns["output_len"]
    trace = load_trace(tmp_path / "nested", columns={**columns, "output_len": "usage.in"})
    assert trace.arrival_time.tolist() == [0, 1, 2]
    assert trace.output_len.tolist() == [10, 10, 10]


def test_names_that_are_proposed_can_be_used(write):
    rows = [{"when": second, "n": {"in": 7, "out": {"all": 2}}} for second in range(3)]
    path = write(as_jsonl(rows))

    message = refusal(path)

    assert "when, n.in, n.out.all" in message
    assert "--columns arrival_time=NAME,prompt_len=NAME,output_len=NAME" in message
    named = {"arrival_time": "when", "prompt_len": "n.in", "output_len": "n.out.all"}
    assert load_trace(path, columns=named).prompt_len.tolist() == [7, 7, 7]
    with pytest.raises(TraceError, match=r"no column 'n\.on' for prompt_len. Did you mean 'n\.in'"):
        load_trace(path, columns=named | {"prompt_len": "n.on"})


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
PROMETHEUS = """# HELP vllm:time_to_first_token_seconds Histogram of time to first token.
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{le="0.1",model_name="m"} 7.0
"""
TGI = (
    "2026-01-01T00:00:00.5Z  INFO generate{parameters=GenerateParameters { best_of: None }} "
    'text_generation_router::server: router/src/server.rs:457: Success total_time="1.9s" '
    'queue_time="1ms" inference_time="1.8s" time_per_token="18ms" seed="None"'
)
SGLANG = "[2026-01-01 00:00:00] Receive: obj=GenerateReqInput(rid='r0', stream=True)"
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
        (
            as_jsonl([{**objects_of(BENCH)[0], "total_output_tokens_retokenized": 5}] * 2),
            ["sglang.bench_serving", "no start times", "--export-metrics-to-file"],
        ),
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
        (without("sglang_requests.jsonl", "out"), ["SGLang log without out.meta_info"]),
        (without("kong_ai.jsonl", "ai", "proxy", "usage", "prompt_tokens"), ["log_statistics"]),
        (PROMETHEUS, ["Prometheus", "totals, not requests"]),
        ("# a comment\n" + PROMETHEUS, ["totals, not requests"]),
        (
            json.dumps({"status": "success", "data": {"resultType": "matrix", "result": []}}),
            ["Prometheus API", "totals, not requests"],
        ),
        (
            json.dumps({"metric": "http_req_duration", "type": "Point", "data": {"value": 1.5}}),
            ["k6", "counts no tokens"],
        ),
        ("metric_name,timestamp,metric_value,check\nhttp_reqs,1767225600,1,\n", ["k6"]),
        (
            json.dumps(
                {"metrics": {"http_req_duration": {"avg": 1}, "iterations": {"count": 5}}}, indent=1
            ),
            ["k6", "totals, not requests"],
        ),
        (
            '"Type","Name","Request Count","Failure Count","Median Response Time"\nPOST,/v1,5,0,9',
            ["Locust", "totals, not requests"],
        ),
        (
            "Type,Name,Request Count,Failure Count,Median Response Time\nPOST,/v1,5,0,9",
            ["Locust", "totals, not requests"],
        ),
        ("Timestamp,User Count,Type,Name,Requests/s\n1767225600,5,,Aggregated,1", ["Locust"]),
        (
            json.dumps(
                [
                    {
                        "name": "/v1",
                        "num_none_requests": 0,
                        "total_response_time": 9,
                        "num_reqs_per_sec": {"1767225600": 3},
                    }
                ]
            ),
            ["Locust", "totals, not requests"],
        ),
        (TGI, ["Text Generation Inference", "how long prompts were"]),
        (SGLANG, ["SGLang", "--log-requests-format json", "--export-metrics-to-file"]),
        (
            "[2026-01-01 00:00:00 TP0] Decode batch. #running-req: 5, #token: 900, cuda graph: 1",
            ["SGLang", "batches, not requests"],
        ),
        (
            "[TensorRT-LLM][INFO] Engine version found in the config file",
            ["TensorRT-LLM", "holds no requests"],
        ),
        ("[2026-01-01] something else\n[2026-01-02] goes on", ["no log that is known"]),
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

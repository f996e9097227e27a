"""Read model calls out of OpenTelemetry spans with the GenAI attributes, as JSON or JSONL.

These forms are read, whole or one object per line: OTLP/JSON (``resourceSpans``, ``scopeSpans``,
``spans``, with attributes as a list of keys and typed values; Tempo says ``batches`` for the
first), what Jaeger downloads (``data``, ``spans``, with ``tags``), documents with ``spans``, and
flat spans, as consoles and many backends export them (attributes as an object, or as dotted keys of
the span itself). A span counts if it has ``gen_ai.usage.input_tokens`` and ``output_tokens``, or
prompt_tokens and completion_tokens as conventions up to 1.26 and vLLM's own spans
(``--otlp-traces-endpoint``) have it, or ``llm.token_count.prompt`` and ``completion`` of
OpenInference. It arrives at its start. vLLM's spans have latencies as the server saw them
(``gen_ai.latency.*``); others are taken to last until their end, and the first part of an answer to
be its first token.

References
----------
OpenTelemetry semantic conventions for generative client AI spans (1.41).
https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/
OpenInference semantic conventions. https://github.com/Arize-ai/openinference, Apache-2.0.
Jaeger, "Query API"; its startTime and duration are microseconds. https://www.jaegertracing.io/docs/
OTLP 1.7, JSON Protobuf encoding. https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding
"""

from collections.abc import Iterator
from typing import Any

from queuesmith.errors import TraceError
from queuesmith.traces.columns.cleaning import Given
from queuesmith.traces.columns.jsonl import pick
from queuesmith.traces.columns.records import (
    UNREADABLE,
    Records,
    Row,
    build_from_rows,
    first_known,
    seconds,
)
from queuesmith.traces.columns.time_units import unit_of
from queuesmith.traces.trace import Trace

_STARTS = (
    *("startTimeUnixNano", "start_time_unix_nano", "startTime", "start_time", "StartTime"),
    *("Timestamp", "timestamp"),
)
_PROMPTS = (
    *("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens"),
    *("llm.token_count.prompt", "llm.usage.prompt_tokens"),
)
_OUTPUTS = (
    *("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens"),
    *("llm.token_count.completion", "llm.usage.completion_tokens"),
)
#: What holds spans by resource, in OTLP and in Tempo.
_RESOURCES = ("resourceSpans", "batches", "resource_spans")
_CLIENTS = ("enduser.id", "user.id", "gen_ai.request.user")
_ENDS = (*("endTimeUnixNano", "end_time_unix_nano", "endTime", "end_time", "EndTime"),)
_TTFT = ("gen_ai.latency.time_to_first_token", "gen_ai.response.time_to_first_chunk")
_E2EL = ("gen_ai.latency.e2e",)
_QUEUED = ("gen_ai.latency.time_in_queue",)
_MAX_TOKENS = ("gen_ai.request.max_tokens",)
_OPERATIONS = ("gen_ai.operation.name",)
_TRACE_IDS = ("traceId", "trace_id", "TraceId", "traceID")
_SPAN_IDS = ("spanId", "span_id", "SpanId", "spanID")
_SESSIONS = ("gen_ai.conversation.id", "session.id")
#: Around or beside model calls, which have spans of their own.
_NO_CALLS = frozenset({"invoke_agent", "create_agent", "execute_tool", "invoke_workflow"})
_LACKS = {
    "arrival_time": "holds GenAI spans without a start; export startTimeUnixNano with each",
    "prompt_len": "holds GenAI spans with gen_ai.usage.output_tokens but without input_tokens; "
    "let the instrumentation report both",
    "output_len": "holds GenAI spans with gen_ai.usage.input_tokens but without output_tokens; "
    "let the instrumentation report both",
}


def is_otel(records: Records) -> bool:
    """Tell whether objects are OTLP exports, or spans on their own."""
    return any(span is not row or _is_span(row) for row in records.head for span in _spans(row))


def read_otel(records: Records, given: Given) -> Trace:
    """Read the model calls among spans; of calls within calls, the innermost counts.

    Raises
    ------
    TraceError
        If no span has token counts or a start, or none can be used.
    """
    rows = list(_rows(records))
    if all(isinstance(row, str) for row in rows):
        raise TraceError(
            f"{records.source.name} holds OpenTelemetry spans, none of which has "
            "gen_ai.usage.input_tokens; export those of model calls, such as vLLM's "
            "(--otlp-traces-endpoint)"
        )
    return build_from_rows(
        rows,
        records.source,
        reader="otel",
        given=given,
        lacks=_LACKS,
        units=_units(records),
        own_unit="ns",
    )


def _units(records: Records) -> dict[str, str]:
    """Return the units that the names of starts and ends tell, or Jaeger's format."""
    units: dict[str, str] = {}
    for record in records.head:
        for span in _spans(record):
            for ours, names in (("arrival_time", _STARTS), ("last_token_ts", _ENDS)):
                there = next((name for name in names if span.get(name) is not None), "")
                unit = "us" if "operationName" in span and "tags" in span else unit_of(there)
                if there and unit is not None:
                    units.setdefault(ours, unit)
    return units


def _rows(records: Records) -> Iterator[Row]:
    spans: list[dict[str, Any]] = []
    for record in records:
        if record is None:
            yield UNREADABLE
        else:
            spans += _spans(record)
    found = [(span, _attributes(span)) for span in spans]
    around = _callers(found)
    for span, attributes in found:
        if not _has_usage(attributes):
            yield "span without token counts"
        elif _name(_first(attributes, _OPERATIONS)) in _NO_CALLS:
            yield "span of an agent or a tool around model calls"
        elif _span_id(span) in around:
            yield "span around another one with token counts"
        else:
            yield {
                "arrival_time": first_known(span, _STARTS),
                "prompt_len": _first(attributes, _PROMPTS),
                "output_len": _first(attributes, _OUTPUTS),
                "client": _first(attributes, _CLIENTS),
                "session": _first(attributes, _SESSIONS),
                "max_tokens": _first(attributes, _MAX_TOKENS),
                "ttft": seconds(_first(attributes, _TTFT)),
                "e2el": _latency(span, attributes),
                "last_token_ts": first_known(span, _ENDS),
                "queued_time": seconds(_first(attributes, _QUEUED)),
            }


def _latency(span: dict[str, Any], attributes: dict[str, Any]) -> float | None:
    told = seconds(_first(attributes, _E2EL))
    return seconds(span.get("duration"), "us") if told is None and "tags" in span else told


def _spans(record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the spans of an object, which may be one itself."""
    document = record["trace"] if isinstance(record.get("trace"), dict) else record
    resources = next((document[name] for name in _RESOURCES if name in document), None)
    listed = [document, *_objects(document.get("data"))]
    if resources is None and not any(isinstance(one.get("spans"), list) for one in listed):
        yield record
    for one in listed:
        yield from _objects(one.get("spans"))
    for resource in _objects(resources):
        # Before 2022 scopes were called instrumentation libraries.
        for name in ("scopeSpans", "scope_spans", "instrumentationLibrarySpans"):
            for scope in _objects(resource.get(name)):
                yield from _objects(scope.get("spans"))


def _objects(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _attributes(span: dict[str, Any]) -> dict[str, Any]:
    """Return a span's attributes by name, whichever way they are written."""
    for name in ("attributes", "SpanAttributes", "tags"):
        given = span.get(name)
        if isinstance(given, dict):
            return given
        if isinstance(given, list):
            return {
                item["key"]: next(iter(value.values()), None) if isinstance(value, dict) else value
                for item in _objects(given)
                if isinstance(item.get("key"), str) and (value := item.get("value")) is not None
            }
    return span


def _callers(found: list[tuple[dict[str, Any], dict[str, Any]]]) -> set[tuple[str, str]]:
    """Return the spans that have one with token counts somewhere below them."""
    parents = {_span_id(span): _parent_id(span) for span, _ in found}
    around: set[tuple[str, str]] = set()
    for span, attributes in found:
        above = _parent_id(span) if _has_usage(attributes) else None
        # What is marked has its own callers marked; damaged files may go in circles.
        while above is not None and above in parents and above not in around:
            around.add(above)
            above = parents[above]
    return around


def _span_id(span: dict[str, Any]) -> tuple[str, str]:
    trace = first_known(span, _TRACE_IDS) or pick(span, "context.trace_id")
    own = first_known(span, _SPAN_IDS) or pick(span, "context.span_id")
    return str(trace), str(own)


def _parent_id(span: dict[str, Any]) -> tuple[str, str] | None:
    parent = first_known(span, ("parentSpanId", "parent_span_id", "parent_id", "ParentSpanId"))
    for reference in _objects(span.get("references")):
        if reference.get("refType") == "CHILD_OF":
            parent = parent or reference.get("spanID")
    return (_span_id(span)[0], str(parent)) if parent else None


def _has_usage(attributes: dict[str, Any]) -> bool:
    return _first(attributes, (*_PROMPTS, *_OUTPUTS)) is not None


def _first(attributes: dict[str, Any], names: tuple[str, ...]) -> Any:
    """Return the first of some attributes, which may be dotted keys or objects within others.

    Phoenix writes them as keys of the span that begin with ``attributes.``.
    """
    spellings = [*names, *(f"attributes.{name}" for name in names)]
    found = (pick(attributes, name) for name in spellings)
    return next((value for value in found if value is not None), None)


def _is_span(row: dict[str, Any]) -> bool:
    if _has_usage(_attributes(row)):
        return True
    ids = first_known(row, _SPAN_IDS) or pick(row, "context.span_id")
    return ids is not None and first_known(row, _STARTS) is not None


def _name(value: Any) -> str:
    return value if isinstance(value, str) else ""

"""Read model calls out of OpenTelemetry spans with the GenAI attributes, as JSON or JSONL.

Two forms are read, whole or one object per line: OTLP/JSON (``resourceSpans``, ``scopeSpans``,
``spans``, with attributes as a list of keys and typed values), and flat spans, as consoles and
many backends export them (attributes as an object, or as dotted keys of the span itself). A span
counts if it has ``gen_ai.usage.input_tokens`` and ``output_tokens``, or prompt_tokens and
completion_tokens as conventions up to 1.26 and vLLM's own spans (``--otlp-traces-endpoint``) have
it. It arrives at its start. vLLM's spans have latencies as the server saw them
(``gen_ai.latency.*``); others are taken to last until their end, and the first part of an answer to
be its first token.

References
----------
OpenTelemetry semantic conventions for generative client AI spans (1.41).
https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/
OTLP 1.7, JSON Protobuf encoding. https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding
"""

from collections.abc import Iterator
from typing import Any

from queuesmith.errors import TraceError
from queuesmith.traces.records import (
    UNREADABLE,
    Records,
    Row,
    build_from_rows,
    dig,
    first_known,
    seconds,
)
from queuesmith.traces.trace import Trace

_STARTS = (
    *("startTimeUnixNano", "start_time_unix_nano", "startTime", "start_time", "StartTime"),
    *("Timestamp", "timestamp"),
)
_PROMPTS = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
_OUTPUTS = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
_CLIENTS = ("enduser.id", "user.id", "gen_ai.request.user")
_ENDS = (*("endTimeUnixNano", "end_time_unix_nano", "endTime", "end_time", "EndTime"),)
_TTFT = ("gen_ai.latency.time_to_first_token", "gen_ai.response.time_to_first_chunk")
_E2EL = "gen_ai.latency.e2e"
_QUEUED = "gen_ai.latency.time_in_queue"
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
    return any("resourceSpans" in row or _is_span(row) for row in records.head)


def read_otel(records: Records, unit: str | None = None) -> Trace:
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
    return build_from_rows(rows, records.source, reader="otel", unit=unit or "ns", lacks=_LACKS)


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
        elif _name(attributes.get("gen_ai.operation.name")) in _NO_CALLS:
            yield "span of an agent or a tool around model calls"
        elif _span_id(span) in around:
            yield "span around another one with token counts"
        else:
            yield {
                "arrival_time": first_known(span, _STARTS),
                "prompt_len": first_known(attributes, _PROMPTS),
                "output_len": first_known(attributes, _OUTPUTS),
                "client": first_known(attributes, _CLIENTS),
                "session": first_known(attributes, _SESSIONS),
                "max_tokens": attributes.get("gen_ai.request.max_tokens"),
                "ttft": seconds(first_known(attributes, _TTFT)),
                "e2el": seconds(attributes.get(_E2EL)),
                "last_token_ts": first_known(span, _ENDS),
                "queued_time": seconds(attributes.get(_QUEUED)),
            }


def _spans(record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "resourceSpans" not in record:
        yield record
        return
    for resource in _objects(record["resourceSpans"]):
        # Before 2022 scopes were called instrumentation libraries.
        for name in ("scopeSpans", "instrumentationLibrarySpans"):
            for scope in _objects(resource.get(name)):
                yield from _objects(scope.get("spans"))


def _objects(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _attributes(span: dict[str, Any]) -> dict[str, Any]:
    """Return a span's attributes by name, whichever way they are written."""
    for name in ("attributes", "SpanAttributes"):
        given = span.get(name)
        if isinstance(given, dict):
            return given
        if isinstance(given, list):
            return {
                item["key"]: next(iter(value.values()), None)
                for item in _objects(given)
                if isinstance(item.get("key"), str) and isinstance(value := item.get("value"), dict)
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
    trace = first_known(span, ("traceId", "trace_id", "TraceId")) or dig(
        span, "context", "trace_id"
    )
    own = first_known(span, ("spanId", "span_id", "SpanId")) or dig(span, "context", "span_id")
    return str(trace), str(own)


def _parent_id(span: dict[str, Any]) -> tuple[str, str] | None:
    parent = first_known(span, ("parentSpanId", "parent_span_id", "parent_id", "ParentSpanId"))
    return (_span_id(span)[0], str(parent)) if parent else None


def _has_usage(attributes: dict[str, Any]) -> bool:
    return first_known(attributes, (*_PROMPTS, *_OUTPUTS)) is not None


def _is_span(row: dict[str, Any]) -> bool:
    if _has_usage(_attributes(row)):
        return True
    ids = first_known(row, ("spanId", "span_id", "SpanId")) or dig(row, "context", "span_id")
    return ids is not None and first_known(row, _STARTS) is not None


def _name(value: Any) -> str:
    return value if isinstance(value, str) else ""

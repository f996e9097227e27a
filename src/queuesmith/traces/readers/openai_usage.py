"""Read answers of an OpenAI-style API, or what was logged of them: JSONL with a ``usage`` object.

One JSON object per line. ``usage`` holds prompt_tokens and completion_tokens (Chat Completions) or
input_tokens and output_tokens (Responses, Anthropic's Messages, whose cached tokens are counted
beside them). It and the time may stand in the object itself or in its ``response``, ``body`` or
``response.body``, as in the output of the Batch API. The time is the first that is there of
`TIMES`; ``created`` is in whole seconds.

This is also the way to keep what vLLM's ``--enable-per-request-metrics`` reports: it puts a
``metrics`` object beside ``usage`` into each answer, not into the server's log. Its
``time_to_first_token_ms`` counts from when the request was scheduled, so TTFT is that and
``queue_time_ms``; with ``generation_time_ms`` it is the latency.

References
----------
OpenAI API reference, "The chat completion object", "The response object", "Batch".
https://platform.openai.com/docs/api-reference/chat/object
vLLM, ``UsageInfo``, and ``--enable-per-request-metrics`` since 0.25, in its OpenAI-compatible API.
"""

from collections.abc import Iterator
from typing import Any

from queuesmith.errors import TraceError
from queuesmith.traces.columns.cleaning import REQUIRED, Given
from queuesmith.traces.columns.records import (
    UNREADABLE,
    Durations,
    Records,
    build_from_rows,
    dig,
    first_known,
    seconds,
)
from queuesmith.traces.columns.table import KNOWN_NAMES, normalise
from queuesmith.traces.columns.time_units import unit_of, without_unit
from queuesmith.traces.trace import Trace

#: Names of times, those that mean the arrival first.
TIMES = (
    *("arrival_time", "request_time", "start_time", "started_at", "received_at"),
    *("timestamp", "time", "ts", "@timestamp", "created_at", "created"),
)
_RANKS = {name: rank for rank, name in enumerate(TIMES)}
_PLACES = ((), ("response",), ("body",), ("response", "body"))
_PROMPTS = ("prompt_tokens", "input_tokens")
_OUTPUTS = ("completion_tokens", "output_tokens")
#: Anthropic does not count them in input_tokens.
_CACHED = ("cache_read_input_tokens", "cache_creation_input_tokens")
_OBJECTS = frozenset({"chat.completion", "chat.completion.chunk", "text_completion", "response"})
_LACKS = {
    "arrival_time": "holds API answers with token counts but without a time; log one beside each, "
    f"for example as {TIMES[0]}",
    "prompt_len": "holds API answers whose usage has no prompt_tokens; log the whole usage object",
    "output_len": "holds API answers whose usage has no completion_tokens, as of embeddings; "
    "log answers of a model that generates",
}


def is_openai_usage(records: Records) -> bool:
    """Tell whether objects are answers with usage, or would be had it been asked for."""
    names = {normalise(name) for name in records.names}
    if all(not names.isdisjoint(KNOWN_NAMES[name]) for name in REQUIRED):
        return False  # a flat table, which happens to keep the answer, too
    return any(
        _usage(row) is not None or _kind(row) in _OBJECTS or row.get("object") == "bucket"
        for row in records.head
    )


def read_openai_usage(records: Records, given: Given) -> Trace:
    """Read logged answers; those without usage, such as all but the last part of a stream, go.

    Raises
    ------
    TraceError
        If no answer has usage or a time, or the file holds totals per time bucket.
    """
    name = records.source.name
    if any(row.get("object") == "bucket" for row in records.head):
        raise TraceError(
            f"{name} holds usage totals per time bucket, not requests; log the usage of each answer"
        )
    durations = Durations()
    rows = list(_rows(records, durations))
    if all(isinstance(row, str) for row in rows):
        raise TraceError(
            f"{name} holds API answers without usage; ask for it with stream_options "
            '{"include_usage": true}, or start vLLM with --enable-force-include-usage'
        )
    # Only that is whole seconds by definition; other times say for themselves what they are.
    times = {str(row["time_name"]) for row in rows if not isinstance(row, str)}
    whole = times == {"created"}
    units = {unit for name in times if (unit := unit_of(name)) is not None}
    return build_from_rows(
        rows,
        records.source,
        reader="openai_usage",
        given=given,
        units={"arrival_time": units.pop()} if len(units) == 1 else {},
        unsure=durations.unsure,
        own_unit="s" if whole else None,
        lacks=_LACKS,
        notes=("`created` is in whole seconds: shorter gaps are not known",) if whole else (),
    )


def _rows(records: Records, durations: Durations) -> Iterator[dict[str, Any] | str]:
    for record in records:
        if record is None:
            yield UNREADABLE
            continue
        usage = _usage(record)
        if usage is None:
            yield "answer or part of one without usage"
            continue
        places = [dig(record, *place) for place in _PLACES]
        name, time = _find_time(places)
        prompt = first_known(usage, _PROMPTS)
        cached = [usage.get(name) for name in _CACHED]
        if type(prompt) is int:
            prompt += sum(tokens for tokens in cached if type(tokens) is int)
        yield {
            "arrival_time": time,
            "prompt_len": prompt,
            "output_len": first_known(usage, _OUTPUTS),
            "client": first_known(record, KNOWN_NAMES["client"]),
            "session": first_known(record, KNOWN_NAMES["session"]),
            "max_tokens": first_known(
                record.get("request"), ("max_completion_tokens", "max_tokens")
            ),
            "time_name": name,
            **durations.find(record),
            **{name: value for name, value in _latencies(places).items() if value is not None},
        }


def _find_time(places: list[Any]) -> tuple[str, Any]:
    """Return the best known field of a time, which its unit may end, and what it holds."""
    best, found = len(_RANKS), ("", None)
    for place in places:
        for name, value in place.items() if isinstance(place, dict) else ():
            rank = _RANKS.get(name, _RANKS.get(without_unit(name), best))
            if rank < best and _is_time(value):
                best, found = rank, (name, value)
    return found


def _latencies(places: list[Any]) -> dict[str, float | None]:
    """Return what vLLM says of an answer; without the time in the queue there is no TTFT."""
    metrics = next((found for place in places if (found := dig(place, "metrics"))), None)
    queued, prefill, decode = (
        seconds(dig(metrics, name), "ms")
        for name in ("queue_time_ms", "time_to_first_token_ms", "generation_time_ms")
    )
    ttft = None if queued is None or prefill is None else queued + prefill
    return {
        "ttft": ttft,
        "tpot": seconds(dig(metrics, "mean_itl_ms"), "ms"),
        "e2el": None if ttft is None or decode is None else ttft + decode,
        "queued_time": queued,
    }


def _usage(record: dict[str, Any]) -> dict[str, Any] | None:
    for place in _PLACES:
        usage = dig(record, *place, "usage")
        if isinstance(usage, dict) and not usage.keys().isdisjoint((*_PROMPTS, *_OUTPUTS)):
            return usage
    return None


def _kind(record: dict[str, Any]) -> Any:
    kinds = (dig(record, *place, "object") for place in _PLACES)
    return next((kind for kind in kinds if isinstance(kind, str)), None)


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float | str) and not isinstance(value, bool)

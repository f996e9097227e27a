"""Read the requests of a GuideLLM benchmark: its JSON report.

One object whose ``benchmarks`` each have ``requests``, by status: successful, incomplete, errored.
A request has its start in seconds since 1970 (``request_start_time``, or ``start_time`` up to
0.3), ``prompt_tokens`` and ``output_tokens``, and, as the client saw them,
``time_to_first_token_ms`` and ``request_latency`` in seconds. Its ``time_per_output_token_ms``
includes the first token, so it is not read.

References
----------
GuideLLM, ``GenerativeRequestStats`` in src/guidellm/schemas/request_stats.py (0.2 to 0.6).
https://github.com/vllm-project/guidellm, Apache-2.0.
"""

from collections.abc import Iterator
from typing import Any

from queuesmith.errors import TraceError
from queuesmith.traces.columns.cleaning import Given
from queuesmith.traces.columns.records import (
    LOAD_GENERATOR,
    Records,
    Row,
    build_from_rows,
    dig,
    first_known,
    seconds,
)
from queuesmith.traces.trace import Trace

_STATUSES = ("successful", "incomplete", "errored")
_LACKS = {
    "arrival_time": "is a GuideLLM report whose requests have no start time; "
    "write it with GuideLLM 0.2 or later",
    "prompt_len": "is a GuideLLM report without prompt_tokens; "
    "give GuideLLM a tokenizer (--processor) or a server that reports usage",
    "output_len": "is a GuideLLM report without output_tokens; "
    "give GuideLLM a tokenizer (--processor) or a server that reports usage",
}


def is_guidellm(records: Records) -> bool:
    """Tell whether a file is one GuideLLM report."""
    return len(records.head) == 1 and any(
        isinstance(one, dict) and not {"requests", "metrics", "run_stats"}.isdisjoint(one)
        for one in _benchmarks(records)
    )


def read_guidellm(records: Records, given: Given) -> Trace:
    """Read the successful requests of a report, of all of its benchmarks one after another.

    Raises
    ------
    TraceError
        If the report has no requests, or none can be used.
    """
    benchmarks = [one for one in _benchmarks(records) if isinstance(one, dict)]
    if not any(_listed(one, status) for one in benchmarks for status in _STATUSES):
        raise TraceError(
            f"{records.source.name} is a GuideLLM report without requests; write it as JSON and "
            "without --sample-requests 0"
        )
    notes: tuple[str, ...] = (LOAD_GENERATOR,)
    if len(benchmarks) > 1:
        notes += (
            f"{len(benchmarks)} benchmarks one after another, each at a rate of its own: the load "
            "over time is GuideLLM's choice",
        )
    made = sum(_number_made(one) for one in benchmarks)
    there = sum(len(_listed(one, status)) for one in benchmarks for status in _STATUSES)
    if made > there:
        notes += (
            f"the report holds {there:,} of {made:,} requests, so its rate is too low: write it "
            "without --sample-requests",
        )
    return build_from_rows(
        _rows(benchmarks),
        records.source,
        reader="guidellm",
        given=given,
        lacks=_LACKS,
        own_unit="s",
        notes=notes,
    )


def _rows(benchmarks: list[dict[str, Any]]) -> Iterator[Row]:
    for benchmark in benchmarks:
        yield from ["errored request"] * len(_listed(benchmark, "errored"))
        yield from ["request cut off by the end of the benchmark"] * len(
            _listed(benchmark, "incomplete")
        )
        for request in _listed(benchmark, "successful"):
            start = first_known(request, ("request_start_time", "start_time"))
            if start is None:
                start = dig(request, "info", "timings", "request_start")
            session = dig(request, "info", "conversation_id")
            yield {
                "arrival_time": start,
                "prompt_len": dig(request, "prompt_tokens"),
                "output_len": dig(request, "output_tokens"),
                "session": session,
                "turn": None if session is None else dig(request, "info", "turn_index"),
                "ttft": seconds(dig(request, "time_to_first_token_ms"), "ms"),
                "e2el": _request_latency(request, start),
            }


def _request_latency(request: Any, start: Any) -> float | None:
    told = seconds(dig(request, "request_latency"))
    began, ended = seconds(start), seconds(first_known(request, ("request_end_time", "end_time")))
    if told is not None or began is None or ended is None:
        return told
    return ended - began


def _benchmarks(records: Records) -> list[Any]:
    benchmarks = records.head[0].get("benchmarks") if records.head else None
    return benchmarks if isinstance(benchmarks, list) else []


def _listed(benchmark: dict[str, Any], status: str) -> list[Any]:
    requests = dig(benchmark, "requests", status)
    return requests if isinstance(requests, list) else []


def _number_made(benchmark: dict[str, Any]) -> int:
    """Return how many requests the benchmark made, 0 where it does not say."""
    for path in (
        ("metrics", "request_totals"),
        ("scheduler_metrics", "requests_made"),
        ("run_stats", "requests_made"),
    ):
        total = dig(benchmark, *path, "total")
        if type(total) is int:
            return total
    return 0

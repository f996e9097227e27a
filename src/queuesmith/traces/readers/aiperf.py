"""Read the requests of an AIPerf benchmark: ``profile_export.jsonl``.

One JSON object per line, with ``metadata`` (request_start_ns, turn_index, x_correlation_id,
benchmark_phase, was_cancelled), ``metrics`` (input_sequence_length and output_sequence_length as
``{"value": ..., "unit": "tokens"}``; time_to_first_token and request_latency, as the client saw
them) and ``error``. The output length includes reasoning tokens. A session is an
``x_correlation_id``, one run through a conversation of the data set.

References
----------
AIPerf, "Working with Profile Export Files" (0.14).
https://docs.nvidia.com/aiperf/tutorials/metrics-analysis/working-with-profile-export-files
"""

from collections.abc import Iterator
from typing import Any

from queuesmith.traces.columns.cleaning import Given
from queuesmith.traces.columns.records import (
    LOAD_GENERATOR,
    UNREADABLE,
    Records,
    Row,
    build_from_rows,
    dig,
    seconds,
)
from queuesmith.traces.trace import Trace

_NO_LENGTHS = (
    "is an AIPerf export whose requests have no token counts; run `aiperf profile` with a "
    "tokenizer (--tokenizer), or with --use-server-token-count"
)
_LACKS = {
    "arrival_time": "is an AIPerf export without metadata.request_start_ns; "
    "give the profile_export.jsonl of AIPerf itself",
    "prompt_len": _NO_LENGTHS,
    "output_len": _NO_LENGTHS,
}


def is_aiperf(records: Records) -> bool:
    """Tell whether objects are AIPerf's records of requests."""
    return any(
        isinstance(row.get("metrics"), dict)
        and isinstance(row.get("metadata"), dict)
        and not {"request_start_ns", "x_request_id", "benchmark_phase"}.isdisjoint(row["metadata"])
        for row in records.head
    )


def read_aiperf(records: Records, given: Given) -> Trace:
    """Read an AIPerf export; warm-up and failed requests are left out.

    Raises
    ------
    TraceError
        If no request has a start or lengths, or none can be used.
    """
    return build_from_rows(
        _rows(records),
        records.source,
        reader="aiperf",
        given=given,
        units={"arrival_time": "ns"},
        lacks=_LACKS,
        notes=(LOAD_GENERATOR,),
    )


def _rows(records: Records) -> Iterator[Row]:
    for record in records:
        if record is None:
            yield UNREADABLE
        elif dig(record, "metadata", "benchmark_phase") not in ("profiling", None):
            yield "warm-up request"
        elif dig(record, "metadata", "was_cancelled") is True:
            yield "cancelled request"
        elif record.get("error"):
            yield "failed request"
        else:
            metadata = record.get("metadata")
            yield {
                "arrival_time": dig(metadata, "request_start_ns"),
                "prompt_len": _metric(record, "input_sequence_length"),
                "output_len": _metric(record, "output_sequence_length"),
                "session": dig(metadata, "x_correlation_id"),
                "turn": dig(metadata, "turn_index"),
                "ttft": _duration(record, "time_to_first_token"),
                "e2el": _duration(record, "request_latency"),
            }


def _metric(record: dict[str, Any], name: str) -> Any:
    return dig(record, "metrics", name, "value")


def _duration(record: dict[str, Any], name: str) -> float | None:
    return seconds(_metric(record, name), dig(record, "metrics", name, "unit"))

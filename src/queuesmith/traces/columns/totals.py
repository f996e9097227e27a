"""Files that hold no requests, by what they look like, each with what would hold them.

A file is named only where nothing else writes the like.
"""

import re
from dataclasses import dataclass

from queuesmith.errors import TraceError
from queuesmith.traces.columns.source import Source

#: Bytes that are looked at.
_SNIFFED = 1 << 16
_INSTEAD = "give one row per request instead, with its time and its token counts"
_TOTALS = f"which hold totals, not requests; {_INSTEAD}"


@dataclass(frozen=True)
class _Kind:
    """What a file looks like: all of some patterns are in it; and what to say of it."""

    patterns: tuple[bytes, ...]
    says: str

    def is_kind(self, text: bytes) -> bool:
        return all(re.search(pattern, text, re.MULTILINE) for pattern in self.patterns)


_KINDS = (
    _Kind(
        (rb"^# TYPE \S+ (counter|gauge|histogram|summary|untyped|unknown)\s*$",),
        f"holds metrics as Prometheus scrapes them, {_TOTALS}",
    ),
    _Kind(
        (rb'\A\{\s*"status":\s*"success"', rb'"resultType":\s*"(matrix|vector|scalar|string)"'),
        f"is an answer of the Prometheus API: metrics, {_TOTALS}",
    ),
    _Kind(
        (rb'^\{.*"type":\s*"(Metric|Point)"', rb'"metric":\s*"(http_req|iteration|vus|data_)'),
        f"is an output of k6, which times HTTP and counts no tokens; {_INSTEAD}",
    ),
    _Kind(
        (rb"\Ametric_name,timestamp,metric_value,",),
        f"is an output of k6, which times HTTP and counts no tokens; {_INSTEAD}",
    ),
    _Kind(
        (rb"\A\{", rb'"metrics":\s*\{', rb'"http_req_duration":\s*\{', rb'"iterations":\s*\{'),
        f"is a summary of k6: statistics, {_TOTALS}",
    ),
    _Kind(
        (rb"\A\"?Type\"?,\"?Name\"?,\"?Request Count\"?,\"?Failure Count",),
        f"is a table of Locust: statistics, {_TOTALS}",
    ),
    _Kind(
        (rb"\A\"?Timestamp\"?,\"?User Count\"?,\"?Type\"?,\"?Name",),
        f"is a history of Locust: statistics, {_TOTALS}",
    ),
    _Kind(
        (rb'"num_none_requests":', rb'"total_response_time":', rb'"num_reqs_per_sec":'),
        f"is a report of Locust: statistics, {_TOTALS}",
    ),
    _Kind(
        (rb"text_generation_router", rb"time_per_token"),
        "is a log of Text Generation Inference, which does not say how long prompts were; log the "
        "usage of each answer with its time as JSONL instead",
    ),
    _Kind(
        (rb"^\[[^\]\n]*\] (Receive|Finish): obj=\w+ReqInput\(",),
        "is a log of SGLang in Python's notation, which is not read; start the server with "
        "--log-requests --log-requests-format json, or with --export-metrics-to-file",
    ),
    _Kind(
        (rb"^\[[^\]\n]*\] (Prefill|Decode) batch[.,] #",),
        "is a log of SGLang with statistics of batches, not requests; start the server with "
        "--log-requests --log-requests-format json, or with --export-metrics-to-file",
    ),
    _Kind(
        (rb"^\[TensorRT-LLM\]\[\w+\]",),
        "is a log of TensorRT-LLM, which holds no requests; log the usage of each answer with its "
        "time as JSONL instead",
    ),
)


def refuse_totals(source: Source) -> None:
    """Refuse a text that can hold no requests, saying what would.

    Raises
    ------
    TraceError
        If it is one of the kinds above.
    """
    if source.form == "parquet":
        return
    text = source.comment.encode()[:_SNIFFED] + b"\n" + source.data[:_SNIFFED]
    for kind in _KINDS:
        if kind.is_kind(text.strip()):
            raise TraceError(f"{source.name} {kind.says}")

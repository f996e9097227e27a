"""Read the spend logs of a LiteLLM proxy: its table LiteLLM_SpendLogs as CSV, JSONL or Parquet.

One row per request: startTime (when the proxy got it), prompt_tokens, completion_tokens, and, where
the row has them, end_user or user or api_key (the first that is there tells the client),
session_id, status, cache_hit and call_type; completionStartTime (of the first part of a stream,
endTime for all other answers) and endTime, as the proxy saw them. LiteLLM's standard logging
payload has the same names and is read, too.

References
----------
LiteLLM, model ``LiteLLM_SpendLogs`` in schema.prisma and ``StandardLoggingPayload`` in
litellm/types/utils.py (2026). https://docs.litellm.ai/docs/proxy/cost_tracking
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from queuesmith.traces.columns.cleaning import Given
from queuesmith.traces.columns.records import UNREADABLE, Records, Row, build_from_rows
from queuesmith.traces.columns.source import Source
from queuesmith.traces.columns.table import map_known, normalise, read_columns
from queuesmith.traces.trace import Trace

#: Our name to LiteLLM's, as `normalise` spells it.
_COLUMNS = {
    "arrival_time": "starttime",
    "prompt_len": "prompt_tokens",
    "output_len": "completion_tokens",
    "end_user": "end_user",
    "user": "user",
    "api_key": "api_key",
    "session": "session_id",
    "status": "status",
    "cache_hit": "cache_hit",
    "call_type": "call_type",
    "first_token_ts": "completionstarttime",
    "last_token_ts": "endtime",
}
#: One of these beside a start time makes a table LiteLLM's.
_OWN = frozenset(
    {"spend", "call_type", "completionstarttime", "completion_tokens", "response_cost"}
)
_NO_TOKENS = (
    "is a LiteLLM log without {}, such as the spend by day; export the rows of LiteLLM_SpendLogs, "
    "or ask /spend/logs with summarize=false"
)
_LACKS = {
    "arrival_time": "is a LiteLLM log with nothing in startTime; export that column, too",
    "prompt_len": _NO_TOKENS.format("prompt_tokens"),
    "output_len": _NO_TOKENS.format("completion_tokens"),
}
_CLIENTS = ("end_user", "user", "api_key")
_NOT_TEXT = ("embedding", "rerank", "moderation", "image", "speech", "transcription")


def is_litellm(names: list[str]) -> bool:
    """Tell whether a table has LiteLLM's start times and one more of its columns."""
    spelled = {normalise(name) for name in names}
    return "starttime" in spelled and not spelled.isdisjoint(_OWN)


def read_litellm(source: Source, records: Records, names: list[str], given: Given) -> Trace:
    """Read spend logs; failures, answers out of LiteLLM's cache, and embeddings are left out.

    Raises
    ------
    TraceError
        If token counts or times are missing, or no row can be used.
    """
    there = map_known(names, _COLUMNS)
    raw = _json_rows(records, there) if source.form == "jsonl" else _table_rows(source, there)
    return build_from_rows(map(_row, raw), source, reader="litellm", given=given, lacks=_LACKS)


def _row(raw: dict[str, Any] | None) -> Row:
    if raw is None:
        return UNREADABLE
    kind = _text(raw, "call_type")
    if _text(raw, "status") in ("failure", "error"):
        return "failed request"
    if _text(raw, "cache_hit") == "true":
        return "answered from LiteLLM's cache"
    if any(word in kind for word in _NOT_TEXT):
        return "call that generates no text"
    client = next((raw[name] for name in _CLIENTS if _text(raw, name)), None)
    return {**raw, "client": client}


def _text(raw: dict[str, Any], name: str) -> str:
    value = raw.get(name)
    return "" if value is None else str(value).strip().lower()


def _json_rows(records: Records, there: dict[str, str]) -> Iterator[dict[str, Any] | None]:
    for record in records:
        yield record and {name: record.get(spelled) for name, spelled in there.items()}


def _table_rows(source: Source, there: dict[str, str]) -> Iterator[dict[str, Any] | None]:
    columns, unreadable = read_columns(source, there)
    yield from [None] * unreadable
    texts = [_as_text(column) for column in columns.values()]
    for values in zip(*texts, strict=True):
        yield dict(zip(columns, values, strict=True))


def _as_text(column: pa.Array) -> list[str | None]:
    """Spell values out; dates become ISO with all their digits."""
    try:
        texts: list[str | None] = column.cast(pa.string()).to_pylist()
    except pa.ArrowException:
        return [None] * len(column)
    return texts

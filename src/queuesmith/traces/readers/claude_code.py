"""Read the sessions of Claude Code: the JSONL files that it keeps of each conversation.

One JSON object per line: ``type`` (user, assistant and others), ``timestamp``, ``sessionId``,
``uuid`` and ``parentUuid``; an assistant's ``message`` has an ``id`` and ``usage``. An answer
stands on as many lines as it has parts, each with the same id, and counts once. It was asked for
when the line before it was written, what the user said or what a tool returned; its last line tells
when it was complete. Its prompt is input_tokens with what was read from and written to the cache.

References
----------
Anthropic, "Messages API", usage. https://docs.anthropic.com/en/api/messages
"""

from collections.abc import Iterator
from typing import Any

from queuesmith.traces.columns.cleaning import Given
from queuesmith.traces.columns.jsonl import pick
from queuesmith.traces.columns.records import UNREADABLE, Records, Row, build_from_rows
from queuesmith.traces.trace import Trace

_PROMPT = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
_LACKS = {
    "arrival_time": "is a Claude Code session without a timestamp; give the file as it was kept",
    "prompt_len": "is a Claude Code session whose answers have no input_tokens",
    "output_len": "is a Claude Code session whose answers have no output_tokens",
}


def is_claude_code(records: Records) -> bool:
    """Tell whether objects are lines of a session."""
    return any(
        "sessionId" in row and row.get("type") == "assistant" and pick(row, "message.usage")
        for row in records.head
    )


def read_claude_code(records: Records, given: Given) -> Trace:
    """Read the answers of one or more sessions, each once.

    Raises
    ------
    TraceError
        If no answer has usage and a time.
    """
    return build_from_rows(
        _rows(records), records.source, reader="claude_code", given=given, lacks=_LACKS
    )


def _rows(records: Records) -> Iterator[Row]:
    answers: dict[Any, dict[str, Any]] = {}
    asked: dict[str, Any] = {}  # by uuid of a line, and by session for lines without a parent
    for record in records:
        if record is None:
            yield UNREADABLE
            continue
        kind, time = record.get("type"), record.get("timestamp")
        session, parent = str(record.get("sessionId")), str(record.get("parentUuid"))
        usage = pick(record, "message.usage")
        if kind != "assistant" or not isinstance(usage, dict):
            if kind == "user":
                asked[session] = time
                asked[str(record.get("uuid"))] = time
            continue
        name = str(pick(record, "message.id") or record.get("requestId") or record.get("uuid"))
        answer = answers.setdefault(
            name,
            {
                "arrival_time": asked.get(parent) or asked.get(session) or time,
                "session": session,
                "usage": usage,
            },
        )
        answer["last_token_ts"] = time
        # The last line of an answer has all of its tokens.
        if _whole(usage.get("output_tokens")) >= _whole(answer["usage"].get("output_tokens")):
            answer["usage"] = usage
    for answer in answers.values():
        usage = answer.pop("usage")
        known = [usage[name] for name in _PROMPT if type(usage.get(name)) is int]
        yield {
            **answer,
            "prompt_len": sum(known) if known else None,
            "output_len": usage.get("output_tokens"),
        }


def _whole(value: Any) -> int:
    return value if type(value) is int else -1

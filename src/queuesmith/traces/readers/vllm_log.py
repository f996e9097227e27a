r"""Read requests out of the log of a vLLM server.

Lines are ``INFO 11-30 10:00:00 [logger.py:40] MESSAGE``, after whatever Docker or Kubernetes put
before them. With ``--enable-log-requests`` the arrival of a request is logged, with
``--enable-log-outputs`` its answer:

* ``Received request ID: prompt: ..., params: ..., prompt_token_ids: [...], ...``
* ``Request ID details: ... prompt_token_ids: [...]`` since 0.11.2, if VLLM_LOGGING_LEVEL is DEBUG
* ``Generated response ID: output: ..., output_token_ids: [...], ...``
* ``Generated response ID details: output_token_ids: [...]`` in later versions, likewise
* ``Generated response ID (streaming delta)...`` with the tokens of each part

Lengths are the numbers of ids. Times are whole seconds without a year, unless a time with a year
stands before the line, as ``docker logs --timestamps`` and Kubernetes write.

References
----------
vLLM, vllm/entrypoints/logger.py (0.6 to 0.11) and
vllm/entrypoints/serve/utils/request_logger.py (later), ``RequestLogger``; vllm/logger.py.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from queuesmith.errors import TraceError
from queuesmith.traces.columns.cleaning import Given
from queuesmith.traces.columns.records import Row, build_from_rows
from queuesmith.traces.columns.source import Source
from queuesmith.traces.trace import Trace

_COLOUR = re.compile(rb"\x1b\[[0-9;]*m")
_LINE = re.compile(
    rb"^(.{0,300}?)\b(?:DEBUG|INFO|WARNING) (\d\d-\d\d \d\d:\d\d:\d\d)(?:[.,]\d+)? "
    rb"\[?[\w./-]+:\d+\] (.*)$",
    re.MULTILINE,
)
_STAMP = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d))")
_RECEIVED = re.compile(rb"Received request (\S+): (.*)")
_DETAILS = re.compile(rb"Request (\S+) details: (.*)")
_RESPONSE = re.compile(
    rb"Generated response (\S+?)( \(streaming (?:delta|complete)\))?(?: details)?: (.*)"
)
_ABORTED = re.compile(rb"Aborted request\(s\) (\S+)\.\s*$")
#: What the engine adds to the id that a client sees.
_INTERNAL = re.compile(rb"-[0-9a-f]{8}$")
_IDS = re.compile(rb"\[([\d, ]*)\]")
_CAP = re.compile(rb"\bmax_tokens=(\d{1,18})\b")
_STREAMED = re.compile(rb"<streaming_complete: (\d{1,9}) tokens>")
#: Bytes that are searched for a line of vLLM; a server says much before it serves.
_SNIFFED = 1 << 20
#: So many equal longest prompts look like ones that were cut.
_MIN_CUT = 3

_HOW = (
    "start vLLM with --enable-log-requests --enable-log-outputs and VLLM_LOGGING_LEVEL=DEBUG, "
    "without --max-log-len"
)
_OR = ", or log the usage of every answer as JSONL"
_LACKS = {
    "arrival_time": f"is a vLLM log without times; {_HOW}",
    "prompt_len": f"is a vLLM log whose requests come without prompt_token_ids; {_HOW}{_OR}",
    "output_len": f"is a vLLM log without output_token_ids; {_HOW}{_OR}",
}


@dataclass
class _Found:
    """What a log says, by request id."""

    arrivals: dict[bytes, tuple[bytes, bytes | None]] = field(default_factory=dict)
    prompts: dict[bytes, int] = field(default_factory=dict)
    outputs: Counter[bytes] = field(default_factory=Counter)
    totals: dict[bytes, int] = field(default_factory=dict)
    caps: dict[bytes, bytes] = field(default_factory=dict)
    aborted: set[bytes] = field(default_factory=set)
    again: int = 0


def is_vllm_log(source: Source) -> bool:
    """Tell whether a text begins with a log of vLLM."""
    if source.form != "csv":
        return False
    return _LINE.search(_COLOUR.sub(b"", source.data[:_SNIFFED])) is not None


def read_vllm_log(source: Source, given: Given) -> Trace:
    """Read the requests that were answered.

    Raises
    ------
    TraceError
        If the log holds no requests, or not their lengths.
    """
    found = _scan(_COLOUR.sub(b"", source.data) if b"\x1b" in source.data else source.data)
    if not found.arrivals:
        what = (
            "engine statistics, which are averages, and no requests"
            if b"Avg generation throughput" in source.data
            else "no requests"
        )
        raise TraceError(f"{source.name} is a vLLM log with {what}; {_HOW}{_OR}")
    stamped = all(stamp for _, stamp in found.arrivals.values())
    notes: tuple[str, ...] = ()
    if not stamped:
        notes = (
            "vLLM logs whole seconds: shorter gaps are not known; `docker logs --timestamps` and "
            "Kubernetes write more",
        )
    lengths = Counter(found.prompts.values())
    longest = max(lengths, default=0)
    if (
        len(lengths) > 1
        and lengths[longest] >= _MIN_CUT
        and lengths[longest] > lengths.total() / 50
    ):
        notes += (
            f"{lengths[longest]:,} prompts have exactly {longest:,} logged ids, and none more: "
            "if the log was cut with --max-log-len, they were longer",
        )
    return build_from_rows(
        _rows(found, stamped), source, reader="vllm_log", given=given, lacks=_LACKS, notes=notes
    )


def _scan(data: bytes) -> _Found:
    found = _Found()
    for line in _LINE.finditer(data):
        before, time, message = line.groups()
        if received := _RECEIVED.match(message):
            name, rest = received.groups()
            stamp = _STAMP.search(before)
            found.again += name in found.arrivals
            found.arrivals[name] = (time, stamp[1] if stamp else None)
            head, ids = _count_ids(rest, b"prompt_token_ids: ")
            if ids is not None:
                found.prompts[name] = ids
            if cap := _CAP.search(head, head.rfind(b"params: ") + 1):
                found.caps[name] = cap[1]
        elif details := _DETAILS.match(message):
            _, ids = _count_ids(details[2], b"prompt_token_ids: ")
            if ids is not None:
                found.prompts[details[1]] = ids
        elif response := _RESPONSE.match(message):
            _, ids = _count_ids(response[3], b"output_token_ids: ")
            found.outputs[response[1]] += ids or 0
            if total := _STREAMED.search(response[3]):
                found.totals[response[1]] = int(total[1])
        elif aborted := _ABORTED.match(message):
            for name in aborted[1].split(b","):
                found.aborted |= {name, _INTERNAL.sub(b"", name)}
    return found


def _count_ids(text: bytes, label: bytes) -> tuple[bytes, int | None]:
    """Return what stands before the last label, and how many ids stand after it."""
    head, there, tail = text.rpartition(label)
    if not there:
        return text, None
    ids = _IDS.match(tail)
    return head, len(ids[1].split(b",")) if ids and ids[1].strip() else None


def _rows(found: _Found, stamped: bool) -> Iterator[Row]:
    outputs = {name: _output(found, name) for name in found.arrivals}
    any_output = any(outputs.values())
    yield from ["request id that was used again"] * found.again
    for name, (arrival_time, output) in zip(
        outputs, zip(_times(found, stamped), outputs.values(), strict=True), strict=True
    ):
        if name in found.aborted:
            yield "request aborted by its client"
        elif any_output and not output:
            yield "request without an answer in the log"
        else:
            cap = found.caps.get(name)
            yield {
                "arrival_time": arrival_time,
                "prompt_len": found.prompts.get(name),
                "output_len": output or None,
                "max_tokens": cap and cap.decode(),
            }


def _output(found: _Found, name: bytes) -> int:
    """Return the tokens of an answer; a completion's prompts are numbered, its answer is not."""
    for known in (name, name.removesuffix(b"-0")):
        if tokens := found.outputs[known] or found.totals.get(known, 0):
            return tokens
    return 0


def _times(found: _Found, stamped: bool) -> Iterator[str]:
    """Yield when each request arrived, as ISO text."""
    year, last_month = 2000, 0  # a leap year; the log does not say
    for time, stamp in found.arrivals.values():
        if stamped and stamp:
            yield stamp.decode()
            continue
        month = int(time[:2])
        year += last_month - month > 6  # from December to January
        last_month = month
        yield f"{year}-{time.decode()}"

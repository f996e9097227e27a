"""Read access logs of a web server in front of a model, with token counts added to each line.

The combined log format, as Apache and nginx write it, followed by key=value pairs or a JSON
object::

    10.0.0.7 - ana [30/Nov/2026:10:00:01 +0000] "POST /v1/completions HTTP/1.1" 200 512 "-" "-"
    prompt_tokens=120 completion_tokens=40 request_time=1.25

all in one line. Token counts have any of the names that tables may use. nginx writes a line when
the answer is complete, so the arrival is that time less ``request_time`` where the line has it;
``msec`` is a finer clock than the bracket. Servers whose lines are JSON as a whole are read as
tables.

References
----------
Apache HTTP Server 2.4, mod_log_config, "Combined Log Format".
https://httpd.apache.org/docs/2.4/logs.html
nginx, ngx_http_log_module and its variables $msec and $request_time.
https://nginx.org/en/docs/http/ngx_http_log_module.html
"""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from queuesmith.errors import TraceError
from queuesmith.traces.columns.cleaning import Given
from queuesmith.traces.columns.records import (
    UNREADABLE,
    Durations,
    build_from_rows,
    first_known,
    seconds,
)
from queuesmith.traces.columns.source import Source
from queuesmith.traces.columns.table import KNOWN_NAMES
from queuesmith.traces.columns.time_units import unit_of, without_unit
from queuesmith.traces.trace import Trace

_QUOTED = r'"(?:[^"\\]|\\.)*"'
_LINE = re.compile(
    rf"(?P<host>\S+) \S+ (?P<user>\S+) \[(?P<time>[^\]\n]+)\] {_QUOTED} (?P<status>\d{{3}}|-) \S+"
    rf"(?: {_QUOTED} {_QUOTED})?(?P<rest>.*)"
)
# Begins only where a name begins and never goes back, or a megabyte of letters takes minutes.
_PAIR = re.compile(rf"(?<![\w.-])([A-Za-z_][\w.-]*+)=({_QUOTED}|[^\s\",;]+)")
_CLF_TIME = re.compile(r"(\d\d)/([A-Z][a-z]{2})/(\d{4}):(\d\d:\d\d:\d\d(?:\.\d+)?) ([+-]\d{4})")
_UVICORN = re.compile(r'(?:\(.*\) )?INFO:\s+\S+:\d+ - "[A-Z]+ \S+ HTTP/[\d.]+" \d{3}')
_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
#: Names of how long a request took, which a unit may end, and a duration's must.
_LASTED = ("request_time", "rt", "duration")
_NUM_SNIFFED = 20

_HOW = "let the server add prompt_tokens=... completion_tokens=... to each line"
_LACKS = {
    "arrival_time": "is an access log whose times are not in the common log format or ISO; "
    "write them as [30/Nov/2026:10:00:00 +0000]",
    "prompt_len": f"is an access log without prompt_tokens; {_HOW}",
    "output_len": f"is an access log without completion_tokens; {_HOW}",
}


def is_access_log(source: Source) -> bool:
    """Tell whether most of the first lines are in the common or combined log format."""
    if source.form != "csv":
        return False
    lines = source.data[: 1 << 16].decode("utf-8", "replace").splitlines()[:_NUM_SNIFFED]
    fits = sum(bool(_LINE.match(line) or _UVICORN.match(line)) for line in lines)
    return 2 * fits > len(lines)


def read_access_log(source: Source, given: Given) -> Trace:
    """Read the lines that have token counts; the rest is left out and counted.

    Raises
    ------
    TraceError
        If no line has token counts, or none can be used.
    """
    lines = source.data.decode("utf-8", "replace").splitlines()
    durations = Durations()
    rows = [_row(line, durations) for line in lines if line.strip()]
    found = [row for row in rows if not isinstance(row, str)]
    if not found:
        raise TraceError(
            f"{source.name} is an access log without token counts, or of failures only; {_HOW}"
        )
    timed = sum(row["timed"] for row in found)
    notes: tuple[str, ...] = ()
    if timed:
        notes = (
            f"requests that arrived their request_time before the time of their line: {timed:,}",
        )
    if timed < len(found):
        notes += (
            f"requests taken to have arrived when their line says: {len(found) - timed:,}; nginx "
            "writes when the answer is complete, so add request_time=$request_time msec=$msec",
        )
    return build_from_rows(
        rows,
        source,
        reader="access_log",
        given=given,
        lacks=_LACKS,
        unsure=durations.unsure,
        own_unit="s",
        notes=notes,
    )


def _row(line: str, durations: Durations) -> dict[str, Any] | str:
    fields = _LINE.match(line)
    if not fields:
        return UNREADABLE
    values = _values(fields["rest"])
    prompt, output = (
        first_known(values, KNOWN_NAMES[name]) for name in ("prompt_len", "output_len")
    )
    if fields["status"][0] in "45":
        return "failed request (status 4xx or 5xx)"
    if prompt is None and output is None:
        return "line without token counts"
    ended = _number(values.get("msec"))
    if ended is None:
        ended = _seconds(fields["time"])
    lasted = next(
        (
            took
            for known in _LASTED
            for name, value in values.items()
            if known in (name, without_unit(name))
            and name != "duration"
            and (took := seconds(value, unit_of(name) or "s")) is not None
            and took >= 0
        ),
        None,
    )
    user = fields["user"] if fields["user"] != "-" else fields["host"]
    return {
        "arrival_time": None if ended is None else ended - (lasted or 0.0),
        "prompt_len": prompt,
        "output_len": output,
        "client": first_known(values, KNOWN_NAMES["client"]) or user,
        "session": first_known(values, KNOWN_NAMES["session"]),
        "max_tokens": first_known(values, KNOWN_NAMES["max_tokens"]),
        "timed": lasted is not None,
        **durations.find(values),
        **({} if lasted is None else {"e2el": lasted}),
    }


def _values(rest: str) -> Mapping[str, Any]:
    """Return what a line says after its fields, from a JSON object or else from pairs."""
    start = rest.find("{")
    if start >= 0:
        try:
            found, _ = json.JSONDecoder().raw_decode(rest, start)
        except (ValueError, RecursionError):
            found = None
        if isinstance(found, dict):
            usage = found.get("usage")
            return {**found, **usage} if isinstance(usage, dict) else found
    return {name: value.strip('"') for name, value in _PAIR.findall(rest)}


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _seconds(text: str) -> float | None:
    """Return the seconds since 1970 of a time in the common log format or in ISO."""
    clf = _CLF_TIME.fullmatch(text)
    try:
        if clf:
            day, month, year, clock, zone = clf.groups()
            text = f"{year}-{_MONTHS.index(month) + 1:02}-{day}T{clock}{zone}"
        when = datetime.fromisoformat(text)
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None

"""One streamed completion, read token by token, with suspicion of the server that sends it."""

import http.client
import json
import math
import time
from collections.abc import Iterator

_MAX_LINE = 1 << 20


class Failed(Exception):
    """A request failed; the message says how."""


class Answer:
    """Reads one streamed completion and counts its tokens.

    Parameters
    ----------
    num_wanted : int
        Tokens that were asked for; fewer and more are failures.
    timeout : float
        Seconds without a new token after which the request has failed.

    Attributes
    ----------
    num_tokens : int
    first, last : float
        When the first and the last token came, on the clock of `time.perf_counter`; NaN if none.
    """

    def __init__(self, num_wanted: int, timeout: float) -> None:
        self.num_wanted = num_wanted
        self.num_tokens = 0
        self.first = self.last = math.nan
        self._timeout = timeout

    def read(self, response: http.client.HTTPResponse) -> None:
        """Read to the end.

        Raises
        ------
        Failed, OSError, http.client.HTTPException, ValueError
        """
        if response.status != 200:
            text = response.read(2000).decode(errors="replace")
            raise Failed(f"HTTP {response.status}: {_message(text)}")
        ended = False
        for line in self._lines(response):
            if not line.startswith(b"data:"):
                if line and not line.startswith(b":"):
                    raise Failed(f"not an event stream: {_short(line)}")
                continue
            data = line[5:].strip()
            if data == b"[DONE]":
                ended = True
                break
            self._take(data)
        if not ended:
            raise Failed(f"the stream ended early, {self._count()}")
        if self.num_tokens != self.num_wanted:
            raise Failed(f"too few tokens: {self._count()}")

    def _lines(self, response: http.client.HTTPResponse) -> Iterator[bytes]:
        waiting = b""
        progress_at, num_before = time.perf_counter(), 0
        while data := response.read1(1 << 16):
            now = time.perf_counter()
            *lines, waiting = (waiting + data).split(b"\n")
            yield from lines
            if self.num_tokens > num_before:
                progress_at, num_before = now, self.num_tokens
            if now - progress_at > self._timeout:
                raise Failed(f"no new token for {self._timeout:g} s, {self._count()}")
            if len(waiting) > _MAX_LINE:
                raise Failed(f"a line without end: {_short(waiting)}")
        if waiting:
            yield waiting

    def _take(self, data: bytes) -> None:
        """Take in one event."""
        now = time.perf_counter()
        try:
            event = json.loads(data)
            if "error" in event:
                raise Failed(f"the server says: {_message(json.dumps(event))}")
            num_choices = len(event["choices"])
            usage = event.get("usage")
            num_tokens = self.num_tokens + num_choices
            if usage:
                num_tokens = int(usage["completion_tokens"])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise Failed(f"not a completion: {_short(data)}") from None
        if num_tokens > self.num_wanted:
            raise Failed(f"too many tokens: {num_tokens} where {self.num_wanted} were asked for")
        if num_tokens > self.num_tokens:
            self.num_tokens = num_tokens
            self.last = now
            if math.isnan(self.first):
                self.first = now

    def _count(self) -> str:
        return f"{self.num_tokens} of {self.num_wanted} tokens came"


def _message(text: str) -> str:
    """Return the message in an error body, or its beginning."""
    try:
        body = json.loads(text)
        inner = body.get("error", body)
        return _short(str(inner.get("message", inner) if isinstance(inner, dict) else inner))
    except (ValueError, AttributeError, RecursionError):
        return _short(text)


def _short(text: str | bytes) -> str:
    """Return the beginning of what a server said, on one line."""
    if isinstance(text, bytes):
        text = text[:400].decode(errors="replace")
    plain = "".join(letter if letter.isprintable() else " " for letter in text[:400])
    plain = " ".join(plain.split())
    return plain[:120] + ("..." if len(plain) > 120 else "")

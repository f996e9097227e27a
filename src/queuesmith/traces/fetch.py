"""Get a public trace from its publisher; the only module that opens sockets.

A file appears under its name only when it is complete and its size and SHA-256 are those of the
catalogue; until then it is a ``.part`` file, from which a later call goes on.
"""

import errno
import http.client
import json
import os
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, OpenerDirector, Request, build_opener

from queuesmith._version import __version__
from queuesmith.documents import parse_json
from queuesmith.errors import TraceError
from queuesmith.traces.catalog import (
    RECORD,
    Entry,
    fault_of,
    find_file,
    get_entry,
    hash_file,
    traces_folder,
)

#: Called with the bytes there are, and with the bytes there will be (0 where unknown).
Progress = Callable[[int, int], None]

_CHUNK = 1 << 18
#: Fewer bytes than this within `timeout` seconds count as silence.
_LEAST = 1 << 14
#: After so many new bytes a connection has earned a full set of attempts again.
_HEADWAY = 1 << 20
_LONGEST_WAIT = 30.0
_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
_UNREACHABLE = frozenset({errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN})


@dataclass(frozen=True)
class Fetched:
    """A file that is here now.

    Attributes
    ----------
    path : Path
    sha256 : str
        Of the file.
    verified : bool
        Whether the catalogue knows the hash; if not, `sha256` is only what was seen.
    downloaded : bool
        False when the file was on this machine already.
    """

    path: Path
    sha256: str
    verified: bool
    downloaded: bool


def fetch(
    name: str,
    folder: Path | None = None,
    *,
    timeout: float = 30.0,
    attempts: int = 5,
    wait: float = 1.0,
    progress: Progress | None = None,
) -> Fetched:
    """Make sure that the file of a public trace is on this machine.

    Parameters
    ----------
    name : str
        Of the catalogue.
    folder : Path, optional
        Where to put it: `queuesmith.traces.catalog.traces_folder` when left out.
    timeout : float
        Seconds of silence after which a connection is given up.
    attempts : int
        How often to try while nothing new arrives.
    wait : float
        Seconds before the second attempt; each later one waits twice as long.
    progress : callable, optional
        Called with the bytes there are and the bytes there will be.

    Raises
    ------
    TraceError
        If the catalogue has no such name, there is no one file to get, the publisher cannot be
        reached, or what it sends is not the file of the catalogue. The message says what to do by
        hand.
    """
    entry = get_entry(name)
    here = find_file(name, folder=folder)
    if here is not None:
        return Fetched(here, entry.sha256 or hash_file(here), bool(entry.sha256), False)
    if entry.how_to_get:
        raise TraceError(
            f"{name} is {entry.how_to_get}; put it below {traces_folder()} ({entry.url})"
        )
    target = (folder or traces_folder()) / entry.file
    if target.exists():
        raise TraceError(f"{target} {fault_of(entry, target)}; move it away, then fetch again")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _alone(target):
            return _Download(entry, target, timeout, attempts, wait, progress or _silent).run()
    except OSError as error:  # of the disk: those of the network were dealt with
        raise TraceError(
            f"{target} cannot be written: {error.strerror or error}; name another folder with "
            "--folder or QUEUESMITH_TRACES"
        ) from None


def _silent(done: int, total: int) -> None:
    pass


@contextmanager
def _alone(target: Path) -> Iterator[None]:
    """Keep a second process from writing the same part; the lock dies with its holder."""
    if sys.platform == "win32":  # where an open file cannot be replaced anyway
        yield
        return
    import fcntl

    path = target.with_name(f".{target.name}.lock")
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TraceError(f"{target.name} is being fetched already; wait for that") from None
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


class _Retry(Exception):
    """An attempt failed in a way that another may not.

    Attributes
    ----------
    after : float or None
        Seconds that the server asked to wait.
    """

    def __init__(self, reason: str, after: float | None = None) -> None:
        super().__init__(reason)
        self.after = after


class _Refused(Exception):
    """No further attempt can help."""


class _SafeRedirects(HTTPRedirectHandler):
    """Follow redirects, but never to a place that others could read or forge."""

    def redirect_request(
        self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Request | None:
        _check_address(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _check_address(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOCAL):
        raise _Refused(f"was sent on to {url}, which is not https")


class _Download:
    """One file on its way: what is there already, and how to go on."""

    def __init__(
        self,
        entry: Entry,
        target: Path,
        timeout: float,
        attempts: int,
        wait: float,
        progress: Progress,
    ) -> None:
        self.entry = entry
        self.target = target
        self.part = target.with_name(target.name + ".part")
        self.state = target.with_name(target.name + ".part.json")
        self.timeout = timeout
        self.attempts = attempts
        self.wait = wait
        self.progress = progress
        self.opener: OpenerDirector = build_opener(_SafeRedirects)

    def run(self) -> Fetched:
        """Try until the file is whole, then give it its name."""
        failures = 0
        restarted = False
        if self._size() == self.entry.bytes and fault_of(self.entry, self.part) is None:
            return self._finish()  # an earlier call was stopped just before that
        while True:
            before = self._size()
            try:
                resumed = self._attempt()
                fault = fault_of(self.entry, self.part)
                if fault is None:
                    return self._finish()
                self._forget()
                # Two halves of different files, perhaps; one whole file decides.
                if not resumed or restarted:
                    self._give_up(f"what it sends {fault}; nothing was kept")
                restarted = True
            except _Refused as reason:
                self._give_up(str(reason))
            except _Retry as reason:
                failures = 1 if self._size() - before >= _HEADWAY else failures + 1
                if failures >= self.attempts:
                    self._give_up(f"{reason}, {failures} times")
                backoff = self.wait * 2 ** (failures - 1)
                pause = backoff if reason.after is None else reason.after
                time.sleep(min(pause, _LONGEST_WAIT))

    def _attempt(self) -> bool:
        """Ask for what is missing and append it; return whether it was an appendix."""
        request, start = self._request()
        with self._open(request) as response:
            resumed = bool(response.status == http.client.PARTIAL_CONTENT)
            if resumed and not _starts_at(response.headers, start):
                self._forget()
                raise _Retry("it sent another part than was asked for")
            self._receive(response, start if resumed else 0)
        return resumed

    def _open(self, request: Request) -> Any:
        try:
            return self.opener.open(request, timeout=self.timeout)
        except HTTPError as error:
            with error:
                self._judge(error)
        except (OSError, http.client.HTTPException) as error:
            _judge_failure(error)

    def _request(self) -> tuple[Request, int]:
        _check_address(self.entry.url)
        headers = {"User-Agent": f"queuesmith/{__version__}", "Accept-Encoding": "identity"}
        start, validator = self._size(), self._read_state()
        # Without proof that it is the same file, half of it is worth nothing.
        if start and validator:
            headers |= {"Range": f"bytes={start}-", "If-Range": validator}
        return Request(self.entry.url, headers=headers), start

    def _judge(self, error: HTTPError) -> NoReturn:
        if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE and self._size():
            self._forget()
            raise _Retry("it has no more than was here already")
        if error.code >= 500 or error.code in (408, 429):
            raise _Retry(f"it answers {error.code} {error.reason}", _seconds(error.headers))
        raise _Refused(f"it answers {error.code} {error.reason}")

    def _receive(self, response: Any, start: int) -> None:
        """Write what comes; raise `_Retry` when it stops short of what was announced."""
        announced = response.headers.get("Content-Length", "")
        total = start + int(announced) if announced.isdecimal() else self.entry.bytes or 0
        expected = self.entry.bytes
        if expected is not None and announced.isdecimal() and total != expected:
            self._forget()
            raise _Refused(f"it offers {total:,} bytes, the catalogue says {expected:,}")
        self._write_state(response.headers)
        done = start
        with self.part.open("r+b" if start else "wb") as file:
            file.seek(start)
            file.truncate()
            since, count = time.monotonic(), 0
            while chunk := _read(response):
                file.write(chunk)
                done, count = done + len(chunk), count + len(chunk)
                self.progress(done, total)
                if expected is not None and done > expected:
                    break  # `fault_of` says so; a disk need not be filled for it
                now = time.monotonic()
                if now - since > self.timeout:
                    if count < _LEAST:
                        raise _Retry(f"it sent only {count:,} bytes in {self.timeout:g} s")
                    since, count = now, 0
        if done < total:
            raise _Retry(f"it stopped at {done:,} of {total:,} bytes")

    def _finish(self) -> Fetched:
        entry = self.entry
        sha256 = entry.sha256 or hash_file(self.part)
        record = {
            "name": entry.name,
            "file": entry.file,
            "url": entry.url,
            "sha256": sha256,
            "bytes": self._size(),
            "verified": bool(entry.sha256),
            "fetched": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        os.replace(self.part, self.target)
        self.state.unlink(missing_ok=True)
        beside = self.target.with_name(self.target.name + RECORD)
        beside.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        return Fetched(self.target, sha256, bool(entry.sha256), True)

    def _give_up(self, reason: str) -> NoReturn:
        entry = self.entry
        what = f"{entry.file} could not be fetched from {urlsplit(entry.url).hostname}: {reason}. "
        by_hand = f"By hand: download {entry.url} and put it at {self.target}"
        check = f"; its SHA-256 must be {entry.sha256}" if entry.sha256 else ""
        raise TraceError(what + by_hand + check) from None

    def _size(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def _forget(self) -> None:
        self.part.unlink(missing_ok=True)
        self.state.unlink(missing_ok=True)

    def _read_state(self) -> str:
        """Return what proves that the server still has the file of which a part is here."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            state = parse_json(self.state.read_text("utf-8"))
            if state["url"] == self.entry.url:
                return str(state["validator"])
        return ""

    def _write_state(self, headers: Mapping[str, str]) -> None:
        # A weak ETag does not promise equal bytes.
        etag = headers.get("ETag", "")
        validator = etag if etag.startswith('"') else headers.get("Last-Modified", "")
        state = {"url": self.entry.url, "validator": validator}
        self.state.write_text(json.dumps(state), encoding="utf-8")


def _read(response: Any) -> bytes:
    """Read what has come, without waiting for more."""
    try:
        chunk: bytes = response.read1(_CHUNK)
    except (OSError, http.client.HTTPException) as error:
        _judge_failure(error)
    return chunk


def _judge_failure(error: Exception) -> NoReturn:
    """Tell a connection that may be better next time from one that will not."""
    cause = error.reason if isinstance(error, URLError) else error
    if isinstance(cause, TimeoutError):
        raise _Retry("it is silent") from None
    if isinstance(cause, socket.gaierror):
        raise _Refused("its address is not known here (is there a network?)") from None
    if isinstance(cause, ssl.SSLCertVerificationError):
        raise _Refused(f"its certificate is not valid ({cause.verify_message})") from None
    if isinstance(cause, OSError) and cause.errno in _UNREACHABLE:
        raise _Refused("there is no way to it (is there a network?)") from None
    raise _Retry(str(cause) or type(cause).__name__) from None


def _starts_at(headers: Mapping[str, str], start: int) -> bool:
    return headers.get("Content-Range", "").startswith(f"bytes {start}-")


def _seconds(headers: Any) -> float | None:
    """Return how long a server asked to be left alone; None when it did not say in seconds."""
    after = headers.get("Retry-After", "")
    return float(after) if after.isdecimal() else None

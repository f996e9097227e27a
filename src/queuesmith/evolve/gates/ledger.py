"""The ledger of held-out windows: who has looked at them, written down before anyone sees a result.

An opening is on disk before a single held-out window is simulated, so a process that is killed
between opening and result has opened them all the same. Windows that were opened once are refused
from then on, whichever policy asks and however the set that holds them is called.

Entries are lines of JSON. Each one has the hash of the one before, and a second file remembers the
last entry, so that a change, a removal and a cut are noticed. Who deletes both files starts afresh:
a ledger proves something to others only when its last hash was published before the result.
"""

import errno
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import index
from pathlib import Path
from typing import Any, Self

from queuesmith.documents import parse_json, read_file
from queuesmith.errors import ConfigError
from queuesmith.windows.frozen import WindowSet

VARIABLE = "QUEUESMITH_LEDGER"
SCHEMA = "queuesmith.ledger/1"
OPENED, RESULT = "opened", "result"
#: Seconds to wait for another process that is writing an entry, which takes milliseconds.
PATIENCE = 20.0
_FIRST = "0" * 64  # stands for the entry before the first


class Spent(ConfigError):
    """Held-out windows were opened before."""


def ledger_path(given: Path | None = None) -> Path:
    """Return the ledger named: by the user, by ``$QUEUESMITH_LEDGER``, or that of the account."""
    if given is not None:
        return given
    if named := os.environ.get(VARIABLE):
        return Path(named)
    state = os.environ.get("XDG_STATE_HOME")
    folder = Path(state or os.path.expanduser("~/.local/state"))
    if str(folder).startswith("~"):
        raise ConfigError(
            "this account has no home folder for the ledger of held-out windows; name a file with "
            f"--ledger or ${VARIABLE}"
        )
    return folder / "queuesmith" / "ledger.jsonl"


@dataclass(frozen=True)
class HeldOut:
    """The held-out windows of a set: what an opening is about."""

    #: Of each window the hash of its source, its first row there, how many it has, and the hash of
    #: its rows; in one order, whatever the order of the sources.
    windows: tuple[tuple[str, int, int, str], ...]

    @classmethod
    def of(cls, window_set: WindowSet) -> Self:
        """Read them from a window set; no source is opened."""
        return cls(
            tuple(
                sorted(
                    (source.sha256, window.start_row, window.num_requests, window.sha256)
                    for source in window_set.sources
                    for window in source.parts.get("held_out", ())
                )
            )
        )

    @property
    def sha256(self) -> str:
        """Identity: the hash of the windows' hashes. A set's name and its other parts don't count.

        It is the same wherever the windows lie, and in whichever file.
        """
        rows = sorted(sha256 for *_, sha256 in self.windows)
        return hashlib.sha256("\n".join(rows).encode()).hexdigest()

    def num_seen(self, others: Sequence[Sequence[Any]]) -> int:
        """Count the windows that have rows in common with any of some other windows."""
        rows = {other[3] for other in others}
        spans: dict[str, list[tuple[int, int]]] = {}
        for source, start, length, _ in others:
            spans.setdefault(source, []).append((start, start + length))
        return sum(
            sha256 in rows
            or any(start < end and first < start + length for first, end in spans.get(source, ()))
            for source, start, length, sha256 in self.windows
        )


@dataclass(frozen=True)
class Opening:
    """Held-out windows that have just been opened; `Ledger.close` writes what was seen."""

    entry: Mapping[str, Any]  # as written
    spent: bool  # whether they had been opened before


class Ledger:
    """Openings of held-out windows, in a file that is only ever added to.

    Parameters
    ----------
    path : Path
        Created, with its folder, by the first opening.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._head = path.parent / f"{path.name}.head"

    def entries(self) -> list[dict[str, Any]]:
        """Return all entries, oldest first; raise `ConfigError` if anything has changed them."""
        head = self._read_head()  # first, or an entry written meanwhile would seem to be missing
        try:
            content = read_file(self.path)
        except FileNotFoundError:
            content = b""
        except OSError as error:
            raise self._unusable("read", error) from None
        return self._check(content, head)

    def about(self, held_out: HeldOut) -> list[dict[str, Any]]:
        """Return the openings of windows that share rows with these, and their results."""
        entries = self.entries()
        mine = {entry["sha256"] for entry in _openings(entries, held_out)}
        return [one for one in entries if mine & {one["sha256"], one.get("opening")}]

    def refuse(self, held_out: HeldOut) -> None:
        """Raise `Spent` if any of these windows was opened before."""
        self._before(held_out, self.entries(), spent=False)

    def _before(self, held_out: HeldOut, entries: Sequence[dict[str, Any]], *, spent: bool) -> bool:
        """Tell whether any of the windows was opened before; refuse that unless it is allowed."""
        before = _openings(entries, held_out)
        if before and not spent:
            raise Spent(_refusal(held_out, before, entries, self.path))
        return bool(before)

    def open(
        self,
        held_out: HeldOut,
        what: Mapping[str, Any],
        *,
        spent: bool = False,
        now: datetime | None = None,
    ) -> Opening:
        """Write down, on disk, that these windows are looked at from now on.

        Parameters
        ----------
        what : mapping
            Who looks and how, as JSON can hold it: policy, its hash, engine, loads.
        spent : bool
            Open them although somebody has before, which raises `Spent` otherwise; the entry says
            so.
        """
        if not held_out.windows:
            raise ConfigError("there are no held-out windows to open; freeze a set that has some")
        with self._locked() as file:
            entries = self._check(_read(file), self._read_head())
            seen = self._before(held_out, entries, spent=spent)
            body = {
                **what,
                "kind": OPENED,
                "windows_sha256": held_out.sha256,
                "spent": seen,
                "time": _utc(now),
                "windows": [list(window) for window in held_out.windows],
            }
            return Opening(self._append(file, entries, body), seen)

    def close(
        self, opening: Opening, seen: Mapping[str, Any], *, now: datetime | None = None
    ) -> dict[str, Any]:
        """Write down what was seen; returns the entry."""
        with self._locked() as file:
            entries = self._check(_read(file), self._read_head())
            body = {**seen, "kind": RESULT, "opening": opening.entry["sha256"], "time": _utc(now)}
            return self._append(file, entries, body)

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Open the file for one writer; readers see whole entries at any time."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise self._unusable("written", error) from None
        deadline = time.monotonic() + PATIENCE
        try:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise ConfigError(
                            f"another process holds the ledger {self.path}; try again when it is "
                            "done"
                        ) from None
                    time.sleep(0.01)
            yield file
        finally:
            os.close(file)

    def _append(
        self, file: int, entries: Sequence[Mapping[str, Any]], body: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Add one entry; it is on disk when this returns."""
        previous = entries[-1]["sha256"] if entries else _FIRST
        chain = {"schema": SCHEMA, "number": len(entries), "previous": previous}
        entry = {**chain, **body, **chain}  # nothing that is told may stand in the chain's place
        entry["sha256"] = _hash(entry)
        try:
            end = _read(file).rfind(b"\n") + 1  # behind it: what a power cut left of a line
            os.ftruncate(file, end)
            line = json.dumps(entry).encode() + b"\n"
            if os.pwrite(file, line, end) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(file)
            _sync_folder(self.path.parent)
            part = self._head.parent / f".{self._head.name}.part"
            with part.open("w") as head:
                json.dump({"number": entry["number"], "sha256": entry["sha256"]}, head)
                head.flush()
                os.fsync(head.fileno())
            os.replace(part, self._head)
            _sync_folder(self.path.parent)
        except OSError as error:
            raise self._unusable("written", error) from None
        return entry

    def _check(self, content: bytes, head: bytes | None) -> list[dict[str, Any]]:
        """Read entries and check that none was changed, removed, moved or cut off."""
        entries: list[dict[str, Any]] = []
        previous = _FIRST
        for number, line in enumerate(content[: content.rfind(b"\n") + 1].split(b"\n")[:-1]):
            try:
                entry = parse_json(line)
                kept = {key: value for key, value in entry.items() if key != "sha256"}
                shown = (entry["schema"], entry["number"], entry["previous"], entry["sha256"])
                good = shown == (SCHEMA, number, previous, _hash(kept))
                good = good and entry["kind"] in (OPENED, RESULT)
                good = good and line == json.dumps(entry).encode()
            except (ValueError, TypeError, KeyError, AttributeError):
                good = False
            if not good:
                raise self._tampered(f"entry {number + 1} is not what was written")
            entries.append(entry)
            previous = entry["sha256"]
        # A process may have been killed after an entry and before its head: the head is then behind
        # by that entry, which is in order. What it names must be there.
        if head is None:
            if len(entries) > 1:
                raise self._tampered(f"{self._head.name} is missing")
            return entries
        try:
            last = parse_json(head)
            number, sha256 = index(last["number"]), last["sha256"]
        except (ValueError, TypeError, KeyError):
            raise self._tampered(f"{self._head.name} is not what was written") from None
        if not 0 <= number < len(entries):
            raise self._tampered(f"it ends before entry {number + 1}")
        if entries[number]["sha256"] != sha256:
            raise self._tampered(f"entry {number + 1} is another one")
        return entries

    def _read_head(self) -> bytes | None:
        try:
            return read_file(self._head)
        except FileNotFoundError:
            return None
        except OSError:
            raise self._tampered(f"{self._head.name} cannot be read") from None

    def _unusable(self, what: str, error: OSError) -> ConfigError:
        return ConfigError(
            f"the ledger {self.path} cannot be {what}: {error.strerror}; name another file with "
            f"--ledger or ${VARIABLE}"
        )

    def _tampered(self, what: str) -> ConfigError:
        return ConfigError(
            f"the ledger {self.path} was changed since it was written: {what}; restore it from a "
            "backup, since it cannot say any more which windows are unseen"
        )


def _openings(entries: Sequence[dict[str, Any]], held_out: HeldOut) -> list[dict[str, Any]]:
    opened = (one for one in entries if one["kind"] == OPENED)
    return [one for one in opened if held_out.num_seen(one["windows"])]


def _refusal(
    held_out: HeldOut,
    before: Sequence[Mapping[str, Any]],
    entries: Sequence[Mapping[str, Any]],
    path: Path,
) -> str:
    first = before[0]
    seen = held_out.num_seen([window for entry in before for window in entry["windows"]])
    results = [entry for entry in entries if entry.get("opening") == first["sha256"]]
    outcome = str(results[0].get("sentence", "")) if results else "no result was written"
    which = "these" if seen == len(held_out.windows) else f"{seen} of these {len(held_out.windows)}"
    return (
        f"{which} held-out windows were opened on {first['time']} for {first.get('policy')} "
        f"(sha256 {str(first.get('policy_sha256'))[:12]}; {outcome}), so they are unseen no more "
        f"({path}); freeze others, or look again with --spent, which marks every output"
    )


def _hash(entry: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(entry, sort_keys=True).encode()).hexdigest()


def _utc(now: datetime | None) -> str:
    return (now or datetime.now(UTC)).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _read(file: int) -> bytes:
    return os.pread(file, os.fstat(file).st_size, 0)


def _sync_folder(folder: Path) -> None:
    """Put a new name on disk as well."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

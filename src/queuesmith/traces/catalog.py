"""Which public traces there are, and where their files lie on this machine.

``catalog.toml`` says per trace where its publisher keeps it, what its bytes hash to, on which terms
it may be used and what it lacks. Files are looked for in the folder that ``QUEUESMITH_TRACES``
names, anywhere below it, and in the user's cache; :mod:`queuesmith.traces.fetch` puts them there.
"""

import hashlib
import os
import re
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any

from queuesmith.documents import parse_json
from queuesmith.errors import ConfigError, TraceError, did_you_mean

#: Names a folder of trace files.
TRACES_VARIABLE = "QUEUESMITH_TRACES"
#: Where `queuesmith traces import` puts the user's own files, below the folder of traces.
IMPORTED = "imported"
#: What is written beside a file that was fetched or imported.
RECORD = ".origin.json"

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


@dataclass(frozen=True)
class Entry:
    """A public trace.

    Attributes
    ----------
    name : str
        What the command line calls it.
    title : str
    file : str
        The file's name at its publisher.
    url : str
        Where its publisher keeps it.
    license : str
        SPDX identifier of the data's licence, which is not this package's.
    license_url : str
    redistribute : bool
        Whether that licence lets others pass the file on.
    citation : str
    reader : str
        Of `queuesmith.traces` that understands the file.
    columns : str
    known_gaps : str
        What the file lacks, and what to beware of.
    sha256 : str
        Empty where unknown.
    sha256_from : {"file", "git-lfs", "cited", ""}
        How the hash is known: computed from the file, read from the publisher's Git LFS pointer,
        or pinned by other public projects.
    bytes : int or None
        None where unknown.
    num_rows : int or None
        Requests, as published; None where unknown.
    how_to_get : str
        What to do where there is no one file to download; empty where there is.
    """

    name: str
    title: str
    file: str
    url: str
    license: str
    license_url: str
    redistribute: bool
    citation: str
    reader: str
    columns: str
    known_gaps: str
    sha256: str = ""
    sha256_from: str = ""
    bytes: int | None = None
    num_rows: int | None = None
    how_to_get: str = ""


@dataclass(frozen=True)
class Imported:
    """A file of the user's own that was given a name.

    Attributes
    ----------
    name : str
    path : Path
        Of the copy.
    record : mapping
        What was noted at the time: ``sha256`` of the copy, ``origin``, ``origin_sha256``.
    """

    name: str
    path: Path
    record: Mapping[str, Any]


@cache
def catalogue() -> Mapping[str, Entry]:
    """Return every public trace by name, in the order of the file."""
    text = (resources.files("queuesmith.traces") / "catalog.toml").read_text("utf-8")
    entries = {name: Entry(name=name, **values) for name, values in tomllib.loads(text).items()}
    return MappingProxyType(entries)


def get_entry(name: str) -> Entry:
    """Return the public trace of a name.

    Raises
    ------
    TraceError
        If there is none.
    """
    try:
        return catalogue()[name]
    except KeyError:
        raise TraceError(
            f"the catalogue has no trace {name!r}.{did_you_mean(name, catalogue())} "
            "`queuesmith traces list` shows what there is"
        ) from None


def check_name(name: str) -> None:
    """Check a name that the user wants to give.

    Raises
    ------
    ConfigError
        If it is no name, or one of the catalogue's.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"a name must be small letters, digits, - and _, at most 64 of them, got {name!r}"
        )
    if name in catalogue():
        raise ConfigError(f"{name!r} is a public trace of the catalogue; choose another name")


def traces_folder() -> Path:
    """Return the folder that files are put into: ``QUEUESMITH_TRACES``, or the user's cache."""
    named = os.environ.get(TRACES_VARIABLE)
    return Path(os.path.expanduser(named)) if named else _cache_folder()


def _cache_folder() -> Path:
    """Return this package's part of the user's cache, where the system keeps such things."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or os.path.expanduser("~/AppData/Local")
    elif sys.platform == "darwin":
        base = os.path.expanduser("~/Library/Caches")
    else:
        base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if not os.path.isabs(base):  # no home folder
        base = tempfile.gettempdir()
    return Path(base) / "queuesmith" / "traces"


def find_file(name: str, *, folder: Path | None = None, check_hash: bool = True) -> Path | None:
    """Find the file of a public trace on this machine.

    Parameters
    ----------
    name : str
        Of the catalogue.
    folder : Path, optional
        Also looked into, and first.
    check_hash : bool
        Read the file and compare its SHA-256 where one is known; sizes are always compared.

    Returns
    -------
    Path or None
        None when there is no file of the name, size and hash.

    Raises
    ------
    TraceError
        If the catalogue has no such name.
    """
    entry = get_entry(name)
    for path in _candidates(entry, folder):
        if fault_of(entry, path, check_hash=check_hash) is None:
            return path
    return None


def fault_of(entry: Entry, path: Path, *, check_hash: bool = True) -> str | None:
    """Say in what a file differs from the catalogue; None when in nothing that is known."""
    size = path.stat().st_size
    if entry.bytes is not None and size != entry.bytes:
        return f"has {size:,} bytes, the catalogue says {entry.bytes:,}"
    if entry.sha256 and check_hash:
        found = hash_file(path)
        if found != entry.sha256:
            return f"has SHA-256 {found}, the catalogue says {entry.sha256}"
    return None


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def find_imported(name: str) -> Imported | None:
    """Find a file of the user's own by the name it was imported under."""
    for folder in _folders():
        found = _read_imported(folder / IMPORTED / name)
        if found is not None:
            return found
    return None


def list_imported() -> list[Imported]:
    """List the user's own files, by name."""
    found: dict[str, Imported] = {}
    for folder in _folders():
        inside = folder / IMPORTED
        for path in sorted(inside.iterdir()) if inside.is_dir() else ():
            one = _read_imported(path)
            if one is not None:
                found.setdefault(one.name, one)
    return [found[name] for name in sorted(found)]


def resolve(source: str | PathLike[str]) -> Path:
    """Return the file that a path, or a name of the catalogue or of an import, stands for.

    Returns
    -------
    Path
        A path that exists is returned as it is, and so is what is neither path nor name.

    Raises
    ------
    TraceError
        If `source` names a public trace whose file is not on this machine; the message says how
        to get it.
    """
    path, name = Path(source), str(source)
    if os.path.exists(source):
        return path
    if name in catalogue():
        entry = get_entry(name)
        faults = []
        for candidate in _candidates(entry, None):
            fault = fault_of(entry, candidate)
            if fault is None:
                return candidate
            faults.append(f"{candidate} {fault}")
        raise TraceError(
            f"the file of {name} is not on this machine"
            + (f" ({faults[0]})" if faults else "")
            + f"; `queuesmith traces fetch {name}` "
            + ("says how to get it" if entry.how_to_get else "gets it")
        )
    imported = find_imported(name) if name == path.name else None
    return path if imported is None else imported.path


def _folders() -> list[Path]:
    return list(dict.fromkeys([traces_folder(), _cache_folder()]))


def _candidates(entry: Entry, folder: Path | None) -> Iterator[Path]:
    """Yield the files of the right name, those of `folder` first."""
    folders = _folders() if folder is None else [folder, *_folders()]
    for inside in dict.fromkeys(folders):
        yield from (path for path in sorted(inside.rglob(entry.file)) if path.is_file())


def _read_imported(folder: Path) -> Imported | None:
    try:
        record = parse_json((folder / RECORD).read_text("utf-8"))
        path = folder / record["file"]
    except (OSError, ValueError, KeyError, TypeError):
        return None  # not a folder that an import has made
    return Imported(folder.name, path, record) if path.is_file() else None

"""Window sets: windows frozen in a file, for tuning, validation and a last look.

A set is a small TOML file: for each source the hash of its bytes, and for each window where it
begins, how long it is, and the hash of its rows. Windows of the three parts come from disjoint
periods, and nothing is run on other bytes than those the set was made from.
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any, Self

import numpy as np

from queuesmith.documents import parse_toml, read_file
from queuesmith.errors import ConfigError, TraceError, did_you_mean
from queuesmith.traces import load_trace
from queuesmith.traces.columns.source import one_line
from queuesmith.traces.trace import Trace
from queuesmith.windows.window import Window, adjoin, cut_windows

SCHEMA = 1
#: In order of time, with the share of each source that is theirs unless something else is said.
PARTS = {"tuning": 0.5, "validation": 0.25, "held_out": 0.25}
FOLDER_VARIABLE = "QUEUESMITH_TRACES"

#: Of `load_trace`, with their types.
_OPTIONS: dict[str, type] = {
    "columns": dict,
    "unit": str,
    "hash_block_size": int,
    "num_requests": int,
    "seed": int,
}
_KINDS = {str: "string", int: "integer", bool: "boolean", list: "array", dict: "table"}
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class FrozenWindow:
    """Where a window lies in its source, and the hash of its rows."""

    start_row: int
    num_requests: int
    sha256: str


@dataclass(frozen=True)
class FrozenSource:
    """One source of a window set.

    Attributes
    ----------
    file : str
        Path under the folder of traces, or ``NAME@model``.
    sha256 : str
        Of the file's bytes, or of the rows drawn from the model.
    options : mapping of str to object
        Of `load_trace`: ``columns``, ``unit``, ``hash_block_size``, ``num_requests``, ``seed``.
    parts : mapping of str to tuple of FrozenWindow
    """

    file: str
    sha256: str
    options: Mapping[str, Any]
    parts: Mapping[str, tuple[FrozenWindow, ...]]


@dataclass(frozen=True)
class WindowSet:
    """Frozen windows.

    Attributes
    ----------
    name : str
    seed : int
        With which the windows were placed.
    sources : tuple of FrozenSource
    sha256 : str
        Of the file's text: the set's identity.
    folder : Path
        Of the file; sources are looked for here when nothing else is said.
    """

    name: str
    seed: int
    sources: tuple[FrozenSource, ...]
    sha256: str
    folder: Path

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Read a window set; the sources are read when windows are asked for.

        Raises
        ------
        TraceError
            If there is no such file or it is not a window set.
        """
        path = Path(path)
        try:
            text = read_file(path).decode("utf-8")
            document = parse_toml(text)
        except FileNotFoundError:
            raise TraceError(f"there is no window set {str(path)!r}; check the path") from None
        except (OSError, ValueError) as error:
            raise TraceError(
                f"{path.name} is not a window set in TOML ({one_line(error)})"
            ) from None
        if document.get("schema") != SCHEMA:
            raise TraceError(
                f"{path.name} must have schema = {SCHEMA}, got {document.get('schema')!r}; make "
                "it again with this version, or use the version that made it"
            )
        where = path.name
        sources = tuple(
            _parse_source(where, entry) for entry in _value(where, document, "source", list)
        )
        if len({source.sha256 for source in sources}) < len(sources):
            raise TraceError(
                f"{where} names one source twice, so that its parts may share requests; freeze "
                "the set again with each source once"
            )
        return cls(
            name=_value(where, document, "name", str),
            seed=_value(where, document, "seed", int),
            sources=sources,
            sha256=hashlib.sha256(text.encode()).hexdigest(),
            folder=path.resolve().parent,
        )

    @staticmethod
    def freeze(
        name: str,
        sources: Sequence[str | Mapping[str, Any]],
        *,
        parts: Mapping[str, float] = PARTS,
        num_windows: int = 8,
        window_len: int = 1_000,
        seed: int = 0,
        folder: str | PathLike[str] | None = None,
    ) -> str:
        """Cut windows from each source and write down what they are.

        Parameters
        ----------
        name : str
        sources : sequence of str or mapping
            Files under `folder` or ``NAME@model``; a mapping has ``file`` and options of
            `load_trace`.
        parts : mapping of str to float
            Share of each source's requests that each part gets, in order of time.
        num_windows, window_len : int
            In each part of each source, and requests in each.
        seed : int
            Of their places; each part of each source uses the next one.
        folder : path, optional
            The working directory or ``$QUEUESMITH_TRACES`` when left out.

        Returns
        -------
        str
            TOML text.

        Raises
        ------
        ConfigError
            If an option makes no sense.
        TraceError
            If a source cannot be read or is too short.
        """
        for part, share in parts.items():
            if part not in PARTS or not share > 0:
                raise ConfigError(
                    f"parts must be some of {', '.join(PARTS)} with shares above 0, got "
                    f"{part!r}: {share}"
                )
        if not parts or sum(parts.values()) > 1 + 1e-9 or not sources:
            raise ConfigError(
                "a window set needs a source, and parts whose shares sum to 1 at most"
            )
        lines = [
            "# Windows frozen by queuesmith.windows.frozen; it runs on exactly these bytes.",
            f"schema = {SCHEMA}",
            f"name = {json.dumps(name)}",
            f"seed = {seed}",
        ]
        num_cuts = 0
        identities: set[str] = set()
        for entry in sources:
            options = {"file": entry} if isinstance(entry, str) else dict(entry)
            if "file" not in options or options.keys() - {"file", *_OPTIONS}:
                raise ConfigError(
                    f"a source has a file and may have {', '.join(_OPTIONS)}, got "
                    f"{', '.join(options) or 'nothing'}"
                )
            file = options.pop("file")
            trace = _load(file, options, folder, Path())
            if _identity(trace) in identities:
                raise ConfigError(
                    f"{file} is given twice; its parts would not be from disjoint periods"
                )
            identities.add(_identity(trace))
            lines += ["", "[[source]]", f"file = {json.dumps(file)}"]
            lines += [f'sha256 = "{_identity(trace)}"']
            lines += [f"{key} = {_toml(value)}" for key, value in options.items()]
            for part, (start, end) in _periods(trace, parts).items():
                if (end - start) < num_windows * window_len:
                    raise TraceError(
                        f"{file}: {part} has {end - start:,} requests for {num_windows} windows of "
                        f"{window_len:,}; ask for fewer or shorter ones"
                    )
                cut = cut_windows(
                    trace.take(slice(start, end)),
                    num_windows=num_windows,
                    window_len=window_len,
                    seed=seed + num_cuts,
                )
                num_cuts += 1
                lines += [
                    f"[source.{part}]",
                    f"adjoin = {str(adjoin(cut)).lower()}",
                    "windows = [",
                    *(
                        f"  {{ start_row = {start + window.start_row}, num_requests = {window_len}"
                        f', sha256 = "{window.sha256}" }},'
                        for window in cut
                    ),
                    "]",
                ]
        return "\n".join(lines) + "\n"

    def windows(self, part: str, folder: str | PathLike[str] | None = None) -> list[Window]:
        """Return the windows of one part, of all sources in order.

        Parameters
        ----------
        part : {"tuning", "validation", "held_out"}
        folder : path, optional
            Where the files lie; beside the set or in ``$QUEUESMITH_TRACES`` when left out.

        Raises
        ------
        ConfigError
            If the set has no such part.
        TraceError
            If a source is missing, or is not the one the set was made from.
        """
        known = list(dict.fromkeys(part for source in self.sources for part in source.parts))
        if part not in known:
            raise ConfigError(
                f"window set {self.name} has no part {part!r}.{did_you_mean(part, known)} "
                f"It has: {', '.join(known)}"
            )
        windows: list[Window] = []
        for source in self.sources:
            if part not in source.parts:
                continue
            trace = _load(source.file, source.options, folder, self.folder)
            if _identity(trace) != source.sha256:
                raise TraceError(
                    f"{source.file} has other content than window set {self.name} was made from "
                    f"(sha256 {_identity(trace)[:12]}, not {source.sha256[:12]}); fetch that "
                    "version, or freeze a new set"
                )
            for frozen in source.parts[part]:
                index = len(windows)
                end = frozen.start_row + frozen.num_requests
                window = Window.of(trace, index, frozen.start_row, end, f"{part}/{index}")
                if window.sha256 != frozen.sha256:
                    raise TraceError(
                        f"window {window.name} of set {self.name} has other rows than when it was "
                        f"frozen, though {source.file} is the same: this version reads it "
                        "differently; use the version that froze it, or freeze a new set"
                    )
                windows.append(window)
        return windows

    def adjoin(self, part: str) -> bool:
        """Tell whether windows of a part follow each other without a gap in every source."""
        return all(_adjoin(source.parts.get(part, ())) for source in self.sources)


def is_window_set(path: Path) -> bool:
    """Tell whether a TOML file means to be a window set, and not a workload model."""
    if path.suffix != ".toml":
        return False
    try:
        return "source" in parse_toml(read_file(path).decode("utf-8"))
    except (OSError, ValueError):
        return False


def _periods(trace: Trace, parts: Mapping[str, float]) -> dict[str, tuple[int, int]]:
    """Return first and last row (not included) of each part; equal times are not separated."""
    shares = np.cumsum([0.0, *(parts[part] for part in PARTS if part in parts)])
    edges = [min(round(share * len(trace)), len(trace)) for share in shares]
    rows = [
        int(np.searchsorted(trace.arrival_time, trace.arrival_time[edge]))
        if edge < len(trace)
        else edge
        for edge in edges
    ]
    return dict(zip([part for part in PARTS if part in parts], pairwise(rows), strict=True))


def _load(
    file: str,
    options: Mapping[str, Any],
    given: str | PathLike[str] | None,
    own: Path,
) -> Trace:
    """Read a source from the folder given, from beside the set, or from the public traces."""
    if file.endswith("@model"):
        return load_trace(file, **options)
    public = os.environ.get(FOLDER_VARIABLE)
    folders = [Path(given)] if given is not None else [own, *([Path(public)] if public else [])]
    there = [folder / file for folder in folders if os.path.exists(folder / file)]
    return load_trace((there or [folders[-1] / file])[0], **options)


def _identity(trace: Trace) -> str:
    """Return the hash of a file's bytes; of a model's rows, which have no file."""
    return trace.origin.sha256 if trace.origin.kind == "real" else trace.sha256


def _adjoin(windows: Sequence[FrozenWindow]) -> bool:
    return len(windows) > 1 and all(
        after.start_row == before.start_row + before.num_requests
        for before, after in pairwise(windows)
    )


def _parse_source(where: str, entry: Any) -> FrozenSource:
    """Check one source: types, hashes, and that its windows do not overlap."""
    file = _value(where, entry, "file", str)
    where = f"{where}: {file}"
    known = {"file", "sha256", *_OPTIONS, *PARTS}
    if unknown := sorted(set(entry) - known):
        raise TraceError(
            f"{where} has no field {unknown[0]!r}.{did_you_mean(unknown[0], known)} "
            f"Known: {', '.join(sorted(known))}"
        )
    options = {key: _value(where, entry, key, _OPTIONS[key]) for key in _OPTIONS if key in entry}
    parts = {}
    row = 0
    for part in PARTS:
        if part not in entry:
            continue
        values = _value(where, entry, part, dict)
        windows = []
        for window in _value(where, values, "windows", list):
            start_row = _value(where, window, "start_row", int)
            num_requests = _value(where, window, "num_requests", int)
            if start_row < row or num_requests < 1:
                raise TraceError(
                    f"{where}: windows must be in order and apart, from {' to '.join(PARTS)}, but "
                    f"{part} has {num_requests:,} requests from row {start_row:,} on"
                )
            row = start_row + num_requests
            windows.append(FrozenWindow(start_row, num_requests, _sha256(where, window)))
        parts[part] = tuple(windows)
        if _value(where, values, "adjoin", bool) != _adjoin(parts[part]):
            raise TraceError(
                f"{where}: adjoin of {part} contradicts its rows; freeze the set again"
            )
    return FrozenSource(file, _sha256(where, entry), options, parts)


def _value(where: str, table: Any, key: str, kind: type) -> Any:
    value = table.get(key) if isinstance(table, dict) else None
    if type(value) is not kind:
        raise TraceError(f"{where}: {key} must be a TOML {_KINDS[kind]}, got {value!r:.80}")
    return value


def _sha256(where: str, table: Any) -> str:
    value: str = _value(where, table, "sha256", str)
    if not _SHA256.fullmatch(value):
        raise TraceError(f"{where}: sha256 must be 64 hexadecimal digits, got {value!r:.80}")
    return value


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{json.dumps(k)} = {_toml(v)}" for k, v in value.items()) + " }"
    return json.dumps(value, ensure_ascii=False)

"""Parts of a study on disk: each whole, named by what decides its content, and checked when read.

A part is written under a temporary name, forced to the disk and renamed, so that a run that is
killed leaves nothing half-written under a part's name. What was damaged later is found by the
hash that the file carries, and is run again.
"""

import hashlib
import io
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

from queuesmith._version import __version__
from queuesmith.documents import read_file
from queuesmith.errors import ConfigError
from queuesmith.study.cells import Cells
from queuesmith.study.design_file import SLOTS

FORMAT = "queuesmith.study.part/1"
#: In the place of the hash, while it is computed.
_BLANK = b"0" * 64
_TEMPORARY = ".part"
#: A part is written in milliseconds, so what is older belongs to a run that was killed.
_STALE = 60.0  # s

#: Code that decides the numbers of a part beside its inputs: of every study, of our engine, and of
#: the slot engine.
_COMMON = ("metrics.py", "stats/*", "study/cells.py")
_OURS = ("engine/**/*", "evaluation/*", "output_length.py", "windows.py")
_SLOTS = ("study/lssp*.py",)


@dataclass(frozen=True, eq=False)
class Part:
    """A piece of work and the name of its result.

    Attributes
    ----------
    key : str
        Hash of everything that decides the result.
    """

    key: str
    cells: Cells

    @classmethod
    def of(cls, cells: Cells) -> "Part":
        """Name a piece of work."""
        preset = cells.preset
        content = {
            "format": FORMAT,
            "version": __version__,
            "code": code_sha256(cells.engine),
            "engine": cells.engine,
            "config": None if preset is None else asdict(preset.config),
            "step_time": None if preset is None else asdict(preset.step_time),
            "source": cells.entry.source,
            "window": cells.entry.window.index,
            "kind": cells.entry.kind,
            "position": repr(cells.entry.position),
            "rows": cells.entry.sha256,
            "lambda_ref": repr(cells.entry.window.lambda_ref),
            "policies": [(policy.name, policy.sha256) for policy in cells.policies],
            "policy_names": cells.policy_names,
            "loads": [asdict(load) for load in cells.loads],
            "multipliers": list(cells.multipliers.items()),
            "output_length": asdict(cells.output_length),
            "slo": asdict(cells.slo),
            "seed": cells.seed,
        }
        text = json.dumps(content, sort_keys=True)
        return cls(hashlib.sha256(text.encode()).hexdigest()[:32], cells)


@cache
def code_sha256(engine: str) -> str:
    """Return the hash of the code that makes an engine's numbers: other code, other numbers."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for pattern in (*_COMMON, *(_SLOTS if engine == SLOTS else _OURS)):
        for file in sorted(root.glob(pattern)):
            if file.suffix in (".py", ".toml"):
                name = file.relative_to(root).as_posix()
                digest.update(f"{name}\0".encode() + file.read_bytes())
    return digest.hexdigest()


def part_path(folder: Path, key: str) -> Path:
    """Return where a part lies in a study's folder."""
    return folder / "parts" / f"{key}.parquet"


def write_part(folder: Path, key: str, table: pa.Table) -> None:
    """Write a part, whole and on the disk before it has its name."""
    write_sealed(part_path(folder, key), key, table)


def read_part(folder: Path, key: str) -> pa.Table | None:
    """Read a part; None when it is missing, damaged or not the one its name says."""
    return read_sealed(part_path(folder, key), key)


def write_sealed(path: Path, name: str, table: pa.Table) -> None:
    """Write a zstd Parquet file that carries a name, and the hash of all its other bytes."""
    sink = io.BytesIO()
    sealed = table.replace_schema_metadata({"queuesmith": _seal(name) + _BLANK})
    parquet.write_table(sealed, sink, compression="zstd")
    data = sink.getvalue()
    place = data.rindex(_seal(name)) + len(_seal(name))
    digest = hashlib.sha256(data).hexdigest().encode()
    whole = data[:place] + digest + data[place + len(digest) :]
    write_durably(path, lambda part: part.write_bytes(whole))


def read_sealed(path: Path, name: str) -> pa.Table | None:
    """Read such a file; None when it is missing, differs in any byte, or has another name."""
    try:
        data = read_file(path)
    except OSError:
        return None
    place = data.rfind(_seal(name)) + len(_seal(name))
    digest = data[place : place + len(_BLANK)]
    blank = data[:place] + _BLANK + data[place + len(_BLANK) :]
    if hashlib.sha256(blank).hexdigest().encode() != digest:
        return None
    return parquet.read_table(pa.BufferReader(data)).replace_schema_metadata(None)


def _seal(name: str) -> bytes:
    return f"{FORMAT} {name} sha256 ".encode()


def write_durably(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` make a temporary file, force it to the disk, and only then give it its name."""
    part = path.with_name(f".{path.name}.{os.getpid()}{_TEMPORARY}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(part)
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(part, path)
        if os.name == "posix":  # elsewhere a folder cannot be opened
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error.strerror or error}; make room or choose another "
            "place, and run again: what is finished is kept"
        ) from None
    finally:
        part.unlink(missing_ok=True)


def sweep(folder: Path) -> None:
    """Remove what runs that were killed have left half-written."""
    for part in [*folder.glob(f".*{_TEMPORARY}"), *folder.glob(f"parts/.*{_TEMPORARY}")]:
        try:
            if time.time() - part.stat().st_mtime > _STALE:
                part.unlink()
        except OSError:
            pass  # somebody else's, or gone

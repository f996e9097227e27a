"""Give a file of the user's own a name, and note where it came from."""

import json
import os
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from queuesmith.errors import ConfigError, TraceError
from queuesmith.traces import Trace, load_trace
from queuesmith.traces.catalog import (
    IMPORTED,
    RECORD,
    Imported,
    check_name,
    find_imported,
    hash_file,
    traces_folder,
)
from queuesmith.traces.columns.clocks import CLOCKED, LASTING
from queuesmith.traces.columns.table import HASH_BLOCK_SIZE

_COLUMNS = (
    "arrival_time",
    "prompt_len",
    "output_len",
    "client",
    "session",
    "turn",
    "priority",
    "max_tokens",
    "deadline",
    "abort_time",
    "think_time",
)


def import_file(
    path: Path,
    name: str,
    folder: Path | None = None,
    *,
    columns: Mapping[str, str] | None = None,
    unit: str | None = None,
    hash_block_size: int | None = None,
) -> Imported:
    """Copy a trace file under a name that every command understands.

    A file that can be read as it is, is copied byte for byte. One that needs an option is stored
    as Parquet under our column names, so that it needs it no longer; rows that cannot be used are
    left out then, and counted in the record.

    Parameters
    ----------
    path : Path
    name : str
        Small letters, digits, ``-`` and ``_``; not one of the catalogue's.
    folder : Path, optional
        Of traces: `queuesmith.traces.catalog.traces_folder` when left out.
    columns, unit, hash_block_size
        As for `queuesmith.load_trace`.

    Raises
    ------
    ConfigError
        If the name is taken or no name.
    TraceError
        If the file is no trace, or the copy cannot be written.
    """
    check_name(name)
    trace = load_trace(path, columns=columns, unit=unit, hash_block_size=hash_block_size)
    there = find_imported(name)
    if there is not None:
        if there.record.get("origin_sha256") == trace.origin.sha256:
            return there
        raise ConfigError(
            f"the name {name!r} is taken by {there.path}; choose another or remove that folder"
        )
    target = (folder or traces_folder()) / IMPORTED / name
    part = target.with_name(f".{name}.{os.getpid()}.part")
    try:
        part.mkdir(parents=True)
        copy = part / path.name
        if columns or unit or hash_block_size is not None:
            copy = copy.with_suffix(".parquet")
            _write_parquet(trace, copy)
        else:
            shutil.copyfile(path, copy)
        record = {
            "name": name,
            "file": copy.name,
            "sha256": hash_file(copy),
            "origin": str(path.resolve()),
            "origin_sha256": trace.origin.sha256,
            "columns": dict(columns or {}),
            "unit": unit,
            "hash_block_size": hash_block_size,
            "num_requests": len(trace),
            "dropped": dict(trace.origin.dropped),
            "imported": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        (part / RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        part.rename(target)
    except OSError as error:
        raise TraceError(
            f"{target} cannot be written: {error.strerror or error}; name another folder with "
            "--folder or QUEUESMITH_TRACES"
        ) from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return Imported(name, target / str(record["file"]), record)


def _write_parquet(trace: Trace, path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    columns = {name: getattr(trace, name) for name in _COLUMNS}
    if trace.measured is not None:
        columns |= {name: getattr(trace.measured, name) for name in trace.measured.known}
    table = pa.table(
        {
            f"{name}_s" if name in (*CLOCKED, *LASTING) else name: values
            for name, values in columns.items()
            if values is not None
        }
    )
    blocks = trace.block_hashes
    if blocks is not None:
        lists = pa.LargeListArray.from_arrays(blocks.offsets, blocks.hashes)
        table = table.append_column("block_hashes", lists)
        table = table.replace_schema_metadata({HASH_BLOCK_SIZE: str(blocks.block_size)})
    parquet.write_table(table, path, compression="zstd")

"""Read any table of requests: CSV, JSONL or Parquet, with columns mapped by name."""

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from queuesmith.errors import ConfigError, TraceError, did_you_mean
from queuesmith.traces.cleaning import OPTIONAL, REQUIRED, UNITS, build_trace
from queuesmith.traces.source import Source, one_line
from queuesmith.traces.trace import Trace

#: Names under which files keep each column, best first; compared in lower case with "_" for space.
KNOWN_NAMES: dict[str, tuple[str, ...]] = {
    "arrival_time": (
        "arrival_time",
        "arrival_time_s",
        "arrival_s",
        "arrival_ts",
        "arrived_at",
        "arrival",
        "timestamp",
        "request_timestamp",
        "time",
        "ts",
    ),
    "prompt_len": (
        "prompt_len",
        "prompt_length",
        "prompt_tokens",
        "num_prompt_tokens",
        "num_prefill_tokens",
        "input_len",
        "input_length",
        "input_tokens",
        "num_input_tokens",
        "request_tokens",
        "context_tokens",
        "contexttokens",
    ),
    "output_len": (
        "output_len",
        "output_length",
        "output_tokens",
        "num_output_tokens",
        "num_decode_tokens",
        "completion_tokens",
        "response_tokens",
        "generated_tokens",
        "generatedtokens",
    ),
    "client": ("client", "client_id", "user", "user_id", "tenant"),
    "session": ("session", "session_id", "conversation_id"),
    "turn": ("turn",),
    "priority": ("priority",),
    "max_tokens": ("max_tokens",),
    "deadline": ("deadline",),
}

_DELIMITERS = ",;\t|"
#: Rows of JSONL that are asked for their keys, which may come and go.
_NUM_ROWS_FOR_NAMES = 100
#: What pyarrow raises on a damaged file.
_BROKEN = (pa.ArrowException, OSError, ValueError, KeyError, OverflowError, MemoryError)


def read_table(
    source: Source,
    *,
    columns: Mapping[str, str] | None = None,
    unit: str | None = None,
    reader: str = "table",
) -> Trace:
    """Read a table, finding its columns by the mapping given or by well-known names.

    Parameters
    ----------
    source : Source
    columns : mapping of str to str, optional
        Our name to the file's, such as ``{"prompt_len": "in_tok"}``.
    unit : {"s", "ms", "us", "ns"}, optional
        Of times that are plain numbers; seconds when left out.
    reader : str
        For the origin.

    Raises
    ------
    ConfigError
        If `columns` or `unit` has a name that does not exist.
    TraceError
        If a needed column is not there or no row can be used.
    """
    _check_options(columns, unit)
    found = column_names(source)
    mapping = _map_columns(source.name, found, columns or {})
    notes: tuple[str, ...] = ()
    if unit is None and "hash_ids" in found and "chat_id" not in found:
        unit = "ms"
        notes = ("times taken as ms, as in Mooncake traces; --unit says otherwise",)
    wanted = list(dict.fromkeys(mapping.values()))
    try:
        table, unreadable = _READERS[source.form](source, found, wanted)
        return build_trace(
            {name: table[there] for name, there in mapping.items()},
            source,
            reader=reader,
            unit=unit or "s",
            unreadable=unreadable,
            notes=notes,
        )
    except TraceError:
        raise
    except _BROKEN as error:
        raise TraceError(
            f"{source.name} cannot be read as {source.form} ({one_line(error)}); fetch it again"
        ) from None


def column_names(source: Source) -> list[str]:
    """List the column names of a table as they are spelled there.

    Raises
    ------
    TraceError
        If there is no header, or a name stands in it twice.
    """
    if source.form == "parquet":
        try:
            names = list(pa.parquet.read_schema(pa.BufferReader(source.data)).names)
        except _BROKEN as error:
            raise TraceError(
                f"{source.name} is a damaged Parquet file ({one_line(error)}); fetch it again"
            ) from None
    elif source.form == "jsonl":
        rows = (row for row in _json_rows(source.data) if row is not None)
        names = list({name: None for row in islice(rows, _NUM_ROWS_FOR_NAMES) for name in row})
        if not names:
            raise TraceError(
                f"{source.name} looks like JSONL, but no line is a JSON object with names; "
                "write one object per line"
            )
    else:
        names = _csv_header(source)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise TraceError(
            f"{source.name} has more than one column named {twice[0]!r}; rename or remove one"
        )
    return names


def normalise(name: str) -> str:
    """Return a column name in lower case with underscores."""
    return "_".join(name.lower().replace("-", " ").replace("_", " ").split())


def _check_options(columns: Mapping[str, str] | None, unit: str | None) -> None:
    if unit is not None and unit not in UNITS:
        raise ConfigError(f"unit must be one of {', '.join(UNITS)}, got {unit!r}")
    for name in columns or {}:
        if name not in KNOWN_NAMES:
            raise ConfigError(
                f"there is no trace column {name!r}.{did_you_mean(name, KNOWN_NAMES)} "
                f"Known: {', '.join(KNOWN_NAMES)}"
            )


def _map_columns(file: str, found: list[str], given: Mapping[str, str]) -> dict[str, str]:
    """Return our name to the file's name for every column that is to be read."""
    for name, there in given.items():
        if there not in found:
            raise TraceError(
                f"{file} has no column {there!r} for {name}.{did_you_mean(there, found)} "
                f"It has: {_listed(found)}"
            )
    by_name: dict[str, str] = {}
    for there in found:
        by_name.setdefault(normalise(there), there)
    mapping = dict(given)
    for name in (*REQUIRED, *OPTIONAL):
        for known in KNOWN_NAMES[name]:
            if name not in mapping and by_name.get(known) not in (None, *given.values()):
                mapping[name] = by_name[known]
    missing = [name for name in REQUIRED if name not in mapping]
    if missing:
        option = ",".join(f"{name}=NAME" for name in missing)
        raise TraceError(
            f"{file} has no column known as {' or '.join(missing)}. It has: {_listed(found)}. "
            f"Say which with --columns {option}"
        )
    return mapping


def _listed(names: list[str]) -> str:
    shown = [name if len(name) <= 40 else name[:37] + "..." for name in names[:20]]
    return ", ".join(shown) + (f" and {len(names) - 20} more" if len(names) > 20 else "")


def _csv_header(source: Source) -> list[str]:
    line = source.data[: 1 << 20].splitlines()[0]
    delimiter = _delimiter(line)
    most = line.count(delimiter.encode()) + 1
    try:
        table = pa.csv.read_csv(
            pa.BufferReader(line + b"\n"),
            read_options=pa.csv.ReadOptions(autogenerate_column_names=True),
            parse_options=pa.csv.ParseOptions(delimiter=delimiter),
            convert_options=pa.csv.ConvertOptions(
                column_types={f"f{column}": pa.string() for column in range(most)}
            ),
        )
    except pa.ArrowException as error:
        raise TraceError(
            f"{source.name} has no readable header ({one_line(error)}); "
            "the first line must name the columns"
        ) from None
    return [str(column[0].as_py()) for column in table.columns]


def _delimiter(header: bytes) -> str:
    return max(_DELIMITERS, key=lambda delimiter: header.count(delimiter.encode()))


def _read_csv(
    source: Source, found: list[str], wanted: list[str]
) -> tuple[dict[str, pa.Array], int]:
    unreadable = 0

    def skip(row: pa.csv.InvalidRow) -> str:
        nonlocal unreadable
        unreadable += 1
        return "skip"

    header = source.data[: 1 << 20].splitlines()[0]
    table = pa.csv.read_csv(
        pa.BufferReader(source.data),
        # One thread, so that the rows left out are counted without a lock; it is fast enough.
        read_options=pa.csv.ReadOptions(
            use_threads=False, block_size=1 << 24, skip_rows=1, column_names=found
        ),
        parse_options=pa.csv.ParseOptions(
            delimiter=_delimiter(header), newlines_in_values=True, invalid_row_handler=skip
        ),
        convert_options=pa.csv.ConvertOptions(
            include_columns=wanted, column_types=dict.fromkeys(wanted, pa.string())
        ),
    )
    return {name: table[name].combine_chunks() for name in wanted}, unreadable


def _read_jsonl(
    source: Source, found: list[str], wanted: list[str]
) -> tuple[dict[str, pa.Array], int]:
    values: dict[str, list[Any]] = {name: [] for name in wanted}
    unreadable = 0
    for row in _json_rows(source.data):
        if row is None:
            unreadable += 1
        else:
            for name in wanted:
                values[name].append(row.get(name))
    return {name: _json_column(values[name]) for name in wanted}, unreadable


def _json_rows(data: bytes) -> Iterator[dict[str, Any] | None]:
    """Yield the object of every line that is not blank, None for a line that is no object."""
    for line in data.decode().split("\n"):
        if not line or line.isspace():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        yield row if isinstance(row, dict) else None


def _json_column(values: list[Any]) -> pa.Array:
    """Make an array of values that may differ in type from line to line."""
    if all(type(value) in (int, float, type(None)) for value in values):
        try:
            return pa.array(values)
        except (pa.ArrowException, OverflowError):
            pass
    return pa.array([_as_text(value) for value in values], pa.string())


def _as_text(value: Any) -> str | None:
    if value is None or isinstance(value, bool | list | dict):
        return None
    # A lone surrogate is legal in JSON and in no encoding.
    return str(value).encode("utf-8", "replace").decode()


def _read_parquet(
    source: Source, found: list[str], wanted: list[str]
) -> tuple[dict[str, pa.Array], int]:
    table = pa.parquet.read_table(pa.BufferReader(source.data), columns=wanted)
    columns = {}
    for name in wanted:
        column = table[name].combine_chunks()
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if pa.types.is_large_string(column.type) or pa.types.is_string_view(column.type):
            column = column.cast(pa.string())
        columns[name] = column
    return columns, 0


_READERS = {"csv": _read_csv, "jsonl": _read_jsonl, "parquet": _read_parquet}

"""Read any table of requests: CSV, JSONL or Parquet, with columns mapped by name."""

from collections import Counter
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.csv

from queuesmith.documents import printable
from queuesmith.errors import ConfigError, TraceError, did_you_mean
from queuesmith.traces.columns.cleaning import MEASURED, OPTIONAL, REQUIRED, Given, build_trace
from queuesmith.traces.columns.clocks import CLOCKED, LASTING
from queuesmith.traces.columns.jsonl import dotted_names, has_name, jsonl_names, read_jsonl
from queuesmith.traces.columns.parquet import BROKEN, read_parquet, schema_of
from queuesmith.traces.columns.source import Source, one_line
from queuesmith.traces.columns.time_units import units_of, without_unit
from queuesmith.traces.trace import MAX_TOKENS, Trace

#: Names under which files keep each column, best first; compared in lower case with "_" for space,
#: and those of times without the unit that may end them.
KNOWN_NAMES: dict[str, tuple[str, ...]] = {
    "arrival_time": (
        "arrival_time",
        "arrival_ts",
        "arrived_at",
        "arrival",
        "timestamp",
        "request_timestamp",
        "time",
        "ts",
        "start_time",
        "start_ts",
        "started_at",
        "received_at",
        "request_received_ts",
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
        "attributes.llm.token_count.prompt",
        "attributes.gen_ai.usage.input_tokens",
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
        "attributes.llm.token_count.completion",
        "attributes.gen_ai.usage.output_tokens",
    ),
    "client": ("client", "client_id", "user", "user_id", "tenant"),
    "session": ("session", "session_id", "conversation_id"),
    "turn": ("turn",),
    "priority": ("priority",),
    "max_tokens": ("max_tokens",),
    "deadline": ("deadline",),
    "abort_time": ("abort_time",),
    "think_time": ("think_time",),
    "ttft": ("ttft", "time_to_first_token"),
    "tpot": ("tpot", "time_per_output_token"),
    "e2el": ("e2el", "e2e_latency", "end_to_end_latency", "request_latency", "latency"),
    "queued_time": ("queued_time", "queue_time"),
    "first_token_ts": ("first_token_ts",),
    "last_token_ts": ("last_token_ts", "end_time", "ended_at"),
    "scheduled_ts": ("scheduled_ts",),
    "block_hashes": ("block_hashes", "hash_ids"),
}

_TIMED = frozenset({*CLOCKED, *LASTING})
_DELIMITERS = ",;\t|"
#: Each costs kilobytes before a row is read; no log has a tenth of them.
_MOST_COLUMNS = 10_000
#: In the metadata of a Parquet file: tokens in each block of `block_hashes`.
HASH_BLOCK_SIZE = b"queuesmith.hash_block_size"


def read_table(source: Source, *, columns: Mapping[str, str] | None = None, given: Given) -> Trace:
    """Read a table, finding its columns by the mapping given or by well-known names.

    Parameters
    ----------
    source : Source
    columns : mapping of str to str, optional
        Our name to the file's, such as ``{"prompt_len": "in_tok"}``; with dots for keys within
        others, as in ``usage.input_tokens``.
    given : Given
        What the user says of units and blocks.

    Raises
    ------
    ConfigError
        If `columns` or a unit has a name that does not exist.
    TraceError
        If a needed column is not there or no row can be used.
    """
    for name in columns or {}:
        if name not in KNOWN_NAMES:
            raise ConfigError(
                f"there is no trace column {name!r}.{did_you_mean(name, KNOWN_NAMES)} "
                f"Known: {', '.join(KNOWN_NAMES)}"
            )
    mapping = map_columns(source, column_names(source), columns or {})
    table, unreadable = read_columns(source, mapping)
    return build_trace(
        table,
        source,
        reader="table",
        given=given,
        units=time_units(mapping),
        block_size=_told_block_size(source),
        unreadable=unreadable,
    )


def read_columns(source: Source, mapping: Mapping[str, str]) -> tuple[dict[str, pa.Array], int]:
    """Read some columns of a table as they are.

    Parameters
    ----------
    source : Source
    mapping : mapping of str to str
        Our name to the file's for each column that is wanted; all of them are there.

    Returns
    -------
    columns : dict of str to pyarrow.Array
        By our name.
    unreadable : int
        Rows that cannot be taken apart.

    Raises
    ------
    TraceError
        If the table is damaged.
    """
    wanted = list(dict.fromkeys(mapping.values()))
    try:
        table, unreadable = _READERS[source.form](source, wanted)
    except BROKEN as error:
        raise TraceError(
            f"{source.name} cannot be read as {source.form} ({one_line(error)}); fetch it again"
        ) from None
    return {name: table[there] for name, there in mapping.items()}, unreadable


def map_known(names: list[str], known: Mapping[str, str]) -> dict[str, str]:
    """Return our name to the file's for those columns of a published format that are there.

    Parameters
    ----------
    names : list of str
        Of the file's columns, in any spelling.
    known : mapping of str to str
        Our name to the format's, as `normalise` spells it.
    """
    spelled = {normalise(name): name for name in reversed(names)}
    return {name: spelled[there] for name, there in known.items() if there in spelled}


def column_names(source: Source) -> list[str]:
    """List the column names of a table as they are spelled there.

    Raises
    ------
    TraceError
        If there is no header, or a name stands in it twice.
    """
    if source.form == "parquet":
        names = list(schema_of(source).names)
    elif source.form == "jsonl":
        names = jsonl_names(source.data)
        if not names:
            raise TraceError(
                f"{source.name} looks like JSONL, but no line is a JSON object with names; "
                "write one object per line"
            )
    else:
        names = _csv_header(source)
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise TraceError(
            f"{source.name} has more than one column named {twice[0]!r}; rename or remove one"
        )
    return names


def normalise(name: str) -> str:
    """Return a column name in lower case with underscores."""
    return "_".join(name.lower().replace("-", " ").replace("_", " ").split())


def map_columns(source: Source, found: list[str], given: Mapping[str, str]) -> dict[str, str]:
    """Return our name to the file's name for every column that is to be read.

    Parameters
    ----------
    source : Source
    found : list of str
        Names of the file's columns.
    given : mapping of str to str
        Our name to the file's, as the user says.

    Raises
    ------
    TraceError
        If a column of `given` or one that every trace needs is not there.
    """
    for name, there in given.items():
        if there not in found and not _is_within(source, there):
            names = _all_names(source, found)
            raise TraceError(
                f"{source.name} has no column {there!r} for {name}.{did_you_mean(there, names)} "
                f"It has: {_listed(names)}"
            )
    by_name: dict[str, str] = {}
    by_stem: dict[str, str] = {}
    for there in found:
        by_name.setdefault(normalise(there), there)
        by_stem.setdefault(normalise(without_unit(there)), there)
    mapping = dict(given)
    lists = () if source.form == "csv" else ("block_hashes",)
    for name in (*REQUIRED, *OPTIONAL, *MEASURED, *lists):
        for known in KNOWN_NAMES[name]:
            there_is = by_name.get(known) or (by_stem.get(known) if name in _TIMED else None)
            if name not in mapping and there_is not in (None, *given.values()):
                mapping[name] = str(there_is)
    missing = [name for name in REQUIRED if name not in mapping]
    if missing == list(REQUIRED) and source.form == "csv" and len(found) == 1:
        raise TraceError(
            f"{source.name} is no table with a header and no log that is known; give one row per "
            "request (CSV, JSONL or Parquet) with its arrival time and its lengths in tokens"
        )
    if missing:
        option = ",".join(f"{name}=NAME" for name in missing)
        raise TraceError(
            f"{source.name} has no column known as {' or '.join(missing)}. It has: "
            f"{_listed(_all_names(source, found))}. Say which with --columns {option}"
        )
    return mapping


def time_units(mapping: Mapping[str, str]) -> dict[str, str]:
    """Return the units that the names of a file's columns of times tell, by our name."""
    return units_of({name: there for name, there in mapping.items() if name in _TIMED})


def _told_block_size(source: Source) -> int | None:
    if source.form != "parquet":
        return None
    told = (schema_of(source).metadata or {}).get(HASH_BLOCK_SIZE, b"")
    return int(told) if told.isdigit() and 0 < int(told) < MAX_TOKENS else None


def _all_names(source: Source, found: list[str]) -> list[str]:
    """Return what `--columns` understands: also fields within others, with dots."""
    if source.form == "jsonl":
        return dotted_names(source.data)
    if source.form == "parquet":
        return [
            name for name in found for name in _fields(name, schema_of(source).field(name).type)
        ]
    return found


def _is_within(source: Source, name: str) -> bool:
    if source.form == "jsonl":
        return has_name(source.data, name)
    return source.form == "parquet" and name in _all_names(source, schema_of(source).names)


def _fields(name: str, kind: pa.DataType) -> list[str]:
    if not pa.types.is_struct(kind):
        return [name]
    fields = [kind.field(place) for place in range(kind.num_fields)]
    return [within for one in fields for within in _fields(f"{name}.{one.name}", one.type)]


def _listed(names: list[str]) -> str:
    shown = [name if len(name) <= 40 else name[:37] + "..." for name in map(printable, names[:20])]
    return ", ".join(shown) + (f" and {len(names) - 20} more" if len(names) > 20 else "")


def _csv_header(source: Source) -> list[str]:
    line = source.data[: 1 << 20].splitlines()[0]
    delimiter = _delimiter(line)
    most = line.count(delimiter.encode()) + 1
    if most > _MOST_COLUMNS:
        raise TraceError(
            f"{source.name} has {most:,} columns in its first line; give a table with one request "
            "per row"
        )
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


def _read_csv(source: Source, wanted: list[str]) -> tuple[dict[str, pa.Array], int]:
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
            use_threads=False, block_size=1 << 24, skip_rows=1, column_names=_csv_header(source)
        ),
        parse_options=pa.csv.ParseOptions(
            delimiter=_delimiter(header), newlines_in_values=True, invalid_row_handler=skip
        ),
        convert_options=pa.csv.ConvertOptions(
            include_columns=wanted, column_types=dict.fromkeys(wanted, pa.string())
        ),
    )
    return {name: table[name].combine_chunks() for name in wanted}, unreadable


def _read_jsonl(source: Source, wanted: list[str]) -> tuple[dict[str, pa.Array], int]:
    return read_jsonl(source.data, wanted)


_READERS = {"csv": _read_csv, "jsonl": _read_jsonl, "parquet": read_parquet}

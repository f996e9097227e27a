"""Columns of a Parquet file, which a few bytes can make as large as they like."""

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from queuesmith.errors import TraceError
from queuesmith.traces.columns.source import Source, one_line

#: Rows that a Parquet file may hold in fewer bytes than rows, since equal ones cost nothing.
_FREE_ROWS = 5_000_000
#: Bytes that the values of a Parquet file may take, or so many times its size if that is more.
_FREE_BYTES, _MOST_PACKED = 1 << 27, 200
#: Of each value that is no text.
_VALUE_BYTES = 8
#: What pyarrow raises on a damaged file.
BROKEN = (pa.ArrowException, OSError, ValueError, KeyError, OverflowError, MemoryError)


def schema_of(source: Source) -> pa.Schema:
    """Return the names and types of all columns."""
    try:
        return pa.parquet.read_schema(pa.BufferReader(source.data))
    except BROKEN as error:
        raise TraceError(
            f"{source.name} is a damaged Parquet file ({one_line(error)}); fetch it again"
        ) from None


def read_parquet(source: Source, wanted: list[str]) -> tuple[dict[str, pa.Array], int]:
    """Read some columns, by name or with dots for fields; raise one of `BROKEN` if it cannot be.

    No row is unreadable, the second of what is returned, for a reader of lines has some.
    """
    metadata = pa.parquet.read_metadata(pa.BufferReader(source.data))
    if metadata.num_rows > max(_FREE_ROWS, len(source.data)):
        raise ValueError(f"{metadata.num_rows:,} rows in {len(source.data):,} bytes")
    there = schema_of(source).names
    whole = {name if name in there else name.split(".")[0] for name in wanted}
    groups = [metadata.row_group(place) for place in range(metadata.num_row_groups)]
    chunks = [
        chunk
        for group in groups
        for chunk in map(group.column, range(group.num_columns))
        if chunk.path_in_schema in whole or chunk.path_in_schema.split(".")[0] in whole
    ]
    _refuse_swollen(source, sum(_VALUE_BYTES * chunk.num_values for chunk in chunks))
    # Equal texts are one until it is known that all of them fit.
    texts = {chunk.path_in_schema for chunk in chunks if chunk.physical_type == "BYTE_ARRAY"}
    table = pa.parquet.read_table(
        pa.BufferReader(source.data),
        columns=sorted(whole),
        read_dictionary=sorted(path for path in texts if ".list." not in path),
    )
    columns = {}
    for name in wanted:
        column = table
        for part in [name] if name in table.column_names else name.split("."):
            column = column[part] if column is table else pc.struct_field(column, part)
        if pa.types.is_dictionary(column.type):
            _refuse_swollen(source, _text_bytes(column))
            column = column.cast(column.type.value_type)
        column = column.combine_chunks()
        if pa.types.is_large_string(column.type) or pa.types.is_string_view(column.type):
            column = column.cast(pa.string())
        columns[name] = column
    return columns, 0


def _text_bytes(column: pa.ChunkedArray) -> int:
    """Return the bytes of a dictionary-encoded column once each text stands by itself."""
    kind = column.type.value_type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind)):
        return 0
    lengths = (pc.binary_length(chunk.dictionary).take(chunk.indices) for chunk in column.chunks)
    return sum(pc.sum(each.cast(pa.int64())).as_py() or 0 for each in lengths)


def _refuse_swollen(source: Source, num_bytes: int) -> None:
    if num_bytes > max(_FREE_BYTES, _MOST_PACKED * len(source.data)):
        raise ValueError(
            f"{len(source.data):,} bytes unpack to {num_bytes:,}, as those of no log do"
        )

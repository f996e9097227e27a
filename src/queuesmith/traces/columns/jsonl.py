"""Columns of a JSONL file: all lines at once where they are sound, else line by line."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.json

#: Rows that are asked for their keys and types, which may come and go.
_NUM_ROWS_FOR_NAMES = 100
#: Objects within objects that names are listed of.
_DEEPEST = 8
_PLACE = re.compile(r"-?\d{1,9}")
#: Bytes that are read at once.
_BLOCK = 1 << 24


def jsonl_names(data: bytes) -> list[str]:
    """List the keys of the first lines, in order of appearance; empty when there are none."""
    return list({name: None for row in _first_rows(data) for name in row})


def dotted_names(data: bytes) -> list[str]:
    """List the keys of the first lines that hold no object, those within others with dots."""
    return list({name: None for row in _first_rows(data) for name in _leaves(row, "", 0)})


def has_name(data: bytes, name: str) -> bool:
    """Tell whether a key, or a way of keys with dots, leads to a value in the first lines."""
    return any(pick(row, name) is not None for row in _first_rows(data))


def pick(value: Any, name: str) -> Any:
    """Follow a name with dots into nested objects; None where the way ends.

    A key may have dots of its own, a number is a place in a list, and text that is JSON is read.

    Examples
    --------
    >>> row = {"usage": {"input.tokens": 7}, "times": [0.5, 2.0], "request": '{"max": 9}'}
    >>> [pick(row, name) for name in ("usage.input.tokens", "times.-1", "request.max", "usage.x")]
    [7, 2.0, 9, None]
    """
    if isinstance(value, dict) and name in value:
        return value[name]
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
        return pick(value, name) if isinstance(value, dict | list) else None
    if isinstance(value, list):
        place, _, rest = name.partition(".")
        if not _PLACE.fullmatch(place) or not -len(value) <= int(place) < len(value):
            return None
        return pick(value[int(place)], rest) if rest else value[int(place)]
    if not isinstance(value, dict):
        return None
    dot = name.find(".")
    while dot >= 0:
        if name[:dot] in value:
            found = pick(value[name[:dot]], name[dot + 1 :])
            if found is not None:
                return found
        dot = name.find(".", dot + 1)
    return None


def _leaves(row: dict[str, Any], before: str, depth: int) -> Iterator[str]:
    for name, value in row.items():
        if isinstance(value, dict) and value and depth < _DEEPEST:
            yield from _leaves(value, f"{before}{name}.", depth + 1)
        else:
            yield before + name


def read_jsonl(data: bytes, wanted: list[str]) -> tuple[dict[str, pa.Array], int]:
    """Read some keys as columns, null where a line has none.

    Parameters
    ----------
    data : bytes
        UTF-8 text.
    wanted : list of str
        Keys, with dots where one lies within another.

    Returns
    -------
    columns : dict of str to pyarrow.Array
        Whole numbers, floats, or text where a key's values differ in type; lists of whole
        numbers where the key holds lists.
    unreadable : int
        Lines that are no JSON object.
    """
    rows = _first_rows(data)
    firsts = {name: [row.get(name) for row in rows] for name in wanted}
    nested = any("." in name and not any(name in row for row in rows) for name in wanted)
    guesses = [
        {name: _type(values, number) for name, values in firsts.items()}
        for number in (pa.int64(), pa.float64())
    ]
    parts = []
    unreadable = 0
    for block in _blocks(data):
        columns = None if nested else _read_at_once(block, guesses)
        if columns is None:
            columns, broken = _read_line_by_line(block, wanted)
            unreadable += broken
        parts.append(columns)
    return {name: _join([part[name] for part in parts]) for name in wanted}, unreadable


def _blocks(data: bytes) -> Iterator[bytes]:
    """Cut at line ends, so that a broken line slows down its own block only."""
    start = 0
    while start < len(data):
        end = data.find(b"\n", start + _BLOCK)
        end = len(data) if end < 0 else end + 1
        yield data[start:end]
        start = end


def _read_at_once(
    data: bytes, guesses: list[dict[str, pa.DataType | None]]
) -> dict[str, pa.Array] | None:
    """Read sound lines that have the types guessed; None when they are not that.

    With the types fixed beforehand nothing that is not wanted is looked into: neither deep nesting
    nor text that looks like a date.
    """
    for types in guesses:
        if None in types.values():
            return None
        try:
            table = pa.json.read_json(
                pa.BufferReader(data),
                # A line must fit into one.
                read_options=pa.json.ReadOptions(block_size=1 << 22),
                parse_options=pa.json.ParseOptions(
                    explicit_schema=pa.schema(list(types.items())),
                    unexpected_field_behavior="ignore",
                ),
            )
        except pa.ArrowException:
            continue
        # One object over two lines, or two in one, is for the slow way to judge.
        if table.num_rows == data.count(b"\n") + (not data.endswith(b"\n")):
            return {name: table[name].combine_chunks() for name in types}
        return None
    return None


def _read_line_by_line(data: bytes, wanted: list[str]) -> tuple[dict[str, pa.Array], int]:
    values: dict[str, list[Any]] = {name: [] for name in wanted}
    unreadable = 0
    for row in json_rows(data):
        if row is None:
            unreadable += 1
        else:
            for name in wanted:
                values[name].append(pick(row, name))
    return {name: _column(values[name]) for name in wanted}, unreadable


def _join(parts: list[pa.Array]) -> pa.Array:
    """Concatenate arrays; where types differ as floats, lists if most are lists, or text."""
    rows: Counter[pa.DataType] = Counter()
    for part in parts:
        if not pa.types.is_null(part.type):
            rows[part.type] += len(part)
    if len(rows) <= 1:
        to = next(iter(rows), pa.null())
    elif rows.keys() == {pa.int64(), pa.float64()}:
        to = pa.float64()
    else:
        to = rows.most_common(1)[0][0]
        to = to if pa.types.is_list(to) else pa.string()
    return pa.concat_arrays(
        [
            part.cast(to, safe=False)
            if pa.types.is_list(part.type) == pa.types.is_list(to)
            else pa.nulls(len(part), to)
            for part in parts
        ]
    )


def _type(values: list[Any], number: pa.DataType) -> pa.DataType | None:
    """Return the one type of a key's values, None when there is none."""
    kinds = {type(value) for value in values if value is not None}
    if kinds == {str}:
        return pa.string()
    if kinds == {list} and all(type(item) is int for value in values for item in value or ()):
        return pa.list_(pa.int64())
    if kinds <= {int, float}:
        return pa.float64() if float in kinds else number
    return None


def _first_rows(data: bytes) -> list[dict[str, Any]]:
    return list(islice((row for row in json_rows(data) if row is not None), _NUM_ROWS_FOR_NAMES))


def json_rows(data: bytes) -> Iterator[dict[str, Any] | None]:
    """Yield the object of every line that is not blank, None for a line that is no object."""
    start = 0
    while start < len(data):
        end = data.find(b"\n", start)
        end = len(data) if end < 0 else end
        line, start = data[start:end], end + 1
        if not line or line.isspace():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        yield row if isinstance(row, dict) else None


def _column(values: list[Any]) -> pa.Array:
    """Make an array of values that may differ in type from line to line."""
    kinds = Counter(type(value) for value in values if value is not None)
    if kinds[list] * 2 > kinds.total():
        return pa.array([whole_numbers(value) for value in values], pa.list_(pa.int64()))
    if kinds.keys() <= {int, float}:
        try:
            return pa.array(values)
        except (pa.ArrowException, OverflowError):
            pass
    return pa.array([as_text(value) for value in values], pa.string())


def whole_numbers(value: Any) -> list[int] | None:
    """Return a list that holds nothing but whole numbers of 64 bits, None for anything else."""
    if isinstance(value, list) and all(
        type(item) is int and -(2**63) <= item < 2**63 for item in value
    ):
        return value
    return None


def as_text(value: Any) -> str | None:
    """Return a value of JSON as text; None for what is none, a truth or a collection."""
    if value is None or isinstance(value, bool | list | dict):
        return None
    # A lone surrogate is legal in JSON and in no encoding.
    return str(value).encode("utf-8", "replace").decode()

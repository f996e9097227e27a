"""Columns of a file, of whatever type, as arrays of numbers, times and codes."""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from queuesmith.errors import TraceError
from queuesmith.traces.columns.source import one_line

_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?$"
_DATE = (
    r"^(1[7-9]|20|21)\d\d-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"
    r"([ T]([01]\d|2[0-3])(:[0-5]\d){1,2}(\.\d{1,9})?)?"
)
_ZONE = r"(Z|[+-]\d\d(:?\d\d)?)$"
#: Beyond it float64 no longer holds every whole number.
EXACT = 2.0**53


@dataclass(frozen=True)
class Times:
    """A column of times: whole ticks where the file has them, so that no digit is lost.

    Attributes
    ----------
    ticks : (num_rows,) int64 or float64
        0 where not known.
    known : (num_rows,) bool
    dated : bool
        Whether they are dates, whose ticks are nanoseconds.
    """

    ticks: NDArray[Any]
    known: NDArray[np.bool_]
    dated: bool


def read_times(where: str, column: pa.Array) -> Times:
    """Read dates or plain numbers, whichever most of a column is; `where` is for the error."""
    if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
        return _dates(where, column)
    if pa.types.is_string(column.type):
        column = _trim(column)
        # The usual case at once: trying it where the first value is a number would cost seconds.
        first = str(column[0]) if len(column) else ""
        all_dates = _whole_dates(column) if re.match(_DATE, first) else None
        if all_dates is not None:
            return _dates(where, all_dates)
    numbers = read_numbers(where, column)
    known = np.isfinite(numbers)
    if pa.types.is_string(column.type) and not known.all():
        dates = _dates(where, _lenient_dates(column))
        if np.count_nonzero(dates.known) > np.count_nonzero(known):
            return dates
    if known.any() and np.abs(numbers[known]).max() >= EXACT:
        # Nanoseconds since 1970 need every digit of an integer.
        whole = _cast(column.filter(pa.array(known)), pa.int64())
        if whole is not None:
            ticks = np.zeros(len(numbers), np.int64)
            ticks[known] = whole.to_numpy(zero_copy_only=False)
            return Times(ticks, known, dated=False)
    return Times(np.where(known, numbers, 0.0), known, dated=False)


def _dates(where: str, column: pa.Array) -> Times:
    """Split dates into whole nanoseconds and which of them are known."""
    try:
        ticks = column.cast(pa.timestamp("ns")).cast(pa.int64())
    except pa.ArrowException as error:
        raise TraceError(
            f"{where} holds dates outside 1677 to 2262 ({one_line(error)}); correct them"
        ) from None
    known = column.is_valid().to_numpy(zero_copy_only=False)
    return Times(ticks.fill_null(0).to_numpy(zero_copy_only=False), known, dated=True)


def read_numbers(where: str, column: pa.Array) -> NDArray[np.float64]:
    """Convert a column of any plain type to float64, NaN where there is no number."""
    if pa.types.is_null(column.type):
        return np.full(len(column), np.nan)
    if pa.types.is_string(column.type):
        values = _lenient_cast(_trim(column), pa.float64(), _NUMBER)
    elif (
        pa.types.is_integer(column.type)
        or pa.types.is_floating(column.type)
        or pa.types.is_decimal(column.type)
    ):
        values = column.cast(pa.float64(), safe=False)
    else:
        raise TraceError(f"{where} holds {column.type}, not numbers; map another with --columns")
    numbers: NDArray[np.float64] = values.to_numpy(zero_copy_only=False)
    return numbers


def read_codes(where: str, column: pa.Array) -> NDArray[np.int64]:
    """Convert names to integers in order of first appearance; integers stay; -1 where missing."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_nested(column.type):
        raise TraceError(f"{where} holds {column.type}, not names; map another with --columns")
    if pa.types.is_string(column.type):
        column = pc.if_else(pc.equal(_trim(column), ""), None, _trim(column))
    if pa.types.is_floating(column.type):
        # pandas writes whole numbers with gaps as floats.
        column = pc.if_else(pc.is_nan(column), None, column)
    whole = _cast(column, pa.int64())
    if whole is not None:
        return np.asarray(whole.fill_null(-1).to_numpy(zero_copy_only=False), np.int64)
    indices = column.dictionary_encode().indices
    return np.asarray(indices.fill_null(-1).to_numpy(zero_copy_only=False), np.int64)


def _trim(column: pa.Array) -> pa.Array:
    try:
        return pc.utf8_trim_whitespace(column)
    except pa.ArrowException:  # Parquet takes any bytes for text
        raise TraceError("a column of text is not UTF-8; write the file again") from None


def _cast(column: pa.Array, to: pa.DataType) -> pa.Array | None:
    try:
        return column.cast(to)
    except pa.ArrowException:
        return None


def _whole_dates(text: pa.Array) -> pa.Array | None:
    """Read ISO dates that all have a time zone, or all have none and are then UTC."""
    for zone in (None, "UTC"):
        dates = _cast(text, pa.timestamp("ns", zone))
        if dates is not None:
            return dates.cast(pa.timestamp("ns"))
    return None


def _lenient_dates(text: pa.Array) -> pa.Array:
    """Read ISO dates with or without a time zone, null where there is none."""
    plain = _lenient_cast(text, pa.timestamp("ns"), _DATE + "$")
    zoned = _lenient_cast(text, pa.timestamp("ns", "UTC"), _DATE + _ZONE)
    return pc.coalesce(plain, zoned.cast(pa.timestamp("ns")))


def _lenient_cast(text: pa.Array, to: pa.DataType, pattern: str) -> pa.Array:
    """Cast text, null where it cannot be; the pattern rules out most failures at once."""
    values = _cast(text, to)
    if values is None:
        shaped = pc.match_substring_regex(text, pattern)
        values = _cast_by_halves(pc.if_else(shaped, text, None), to)
    return values


def _cast_by_halves(text: pa.Array, to: pa.DataType) -> pa.Array:
    """Cast text that is almost everywhere right, such as dates with a 30 February among them."""
    values = _cast(text, to)
    if values is not None:
        return values
    if len(text) == 1:
        return pa.nulls(1, to)
    middle = len(text) // 2
    return pa.concat_arrays(
        [_cast_by_halves(text[:middle], to), _cast_by_halves(text[middle:], to)]
    )

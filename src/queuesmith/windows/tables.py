"""Tables of windows as LSSP publishes them: one row per request, with what was predicted of it."""

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from queuesmith.errors import TraceError
from queuesmith.traces.columns.cleaning import build_trace
from queuesmith.traces.columns.source import Source, open_source
from queuesmith.traces.columns.table import column_names, map_known, read_columns
from queuesmith.traces.trace import Trace
from queuesmith.windows.window import UNKNOWN_ROW, Window

_LSSP = {
    "window": "window_id",
    "lambda_ref": "lambda_ref",
    "arrival_time": "arrival_time_s",
    "prompt_len": "prompt_tokens",
    "output_len": "output_tokens",
    "predicted": "predicted_output_tokens",
}


def read_windows(path: str | PathLike[str]) -> list[Window]:
    """Read a table of windows as LSSP publishes them: one row per request.

    Columns are window_id, lambda_ref, arrival_time_s (from the window's start), prompt_tokens,
    output_tokens and predicted_output_tokens. A window's origin says what was left out of it.

    Raises
    ------
    TraceError
        If it is no such table, a window has no usable row, or its rows differ in lambda_ref.

    References
    ----------
    Vahidi, "How Portable Are LLM-Serving Scheduler Rankings Across Workloads, Operating Regions,
    and Metrics?", 2026 (LSSP).
    """
    source = open_source(Path(path))
    mapping = map_known(column_names(source), _LSSP)
    missing = [there for name, there in _LSSP.items() if name not in mapping]
    if missing:
        raise TraceError(
            f"{source.name} is no table of windows: it has no column {', '.join(missing)}; "
            "load_trace reads traces"
        )
    columns, unreadable = read_columns(source, mapping)
    names = columns.pop("window").cast(pa.string()).to_pylist()
    rows: dict[str, list[int]] = {}
    for row, name in enumerate(names):
        if name is not None and name.strip():
            rows.setdefault(name.strip(), []).append(row)
    if not rows:
        raise TraceError(f"{source.name} has no window; give a file with one request per row")
    nameless = len(names) - sum(map(len, rows.values()))
    notes = [
        f"rows of the file that {what}: {count:,}"
        for what, count in (("could not be read", unreadable), ("name no window", nameless))
        if count
    ]
    return [
        _read_window(source, name, index, tuple(notes), places, columns)
        for index, (name, places) in enumerate(rows.items())
    ]


def _read_window(
    source: Source,
    name: str,
    index: int,
    notes: tuple[str, ...],
    places: list[int],
    columns: Mapping[str, pa.Array],
) -> Window:
    own = {key: column.take(pa.array(places)) for key, column in columns.items()}
    rates, predicted = (_floats(own.pop(key)) for key in ("lambda_ref", "predicted"))
    if not (rates > 0).all() or not (rates == rates[0]).all() or np.isinf(rates[0]):
        raise TraceError(
            f"{source.name}: every row of window {name} must have the same lambda_ref above 0"
        )
    # The session is a column of whole numbers that survives cleaning and sorting in step.
    own["session"] = pa.array(np.arange(len(places)))
    trace = build_trace(own, source, reader="lssp", units={"arrival_time": "s"}, notes=notes)
    assert trace.session is not None
    predicted = predicted[trace.session]
    predicted[~(predicted >= 1)] = np.nan
    trace = Trace(trace.arrival_time, trace.prompt_len, trace.output_len, origin=trace.origin)
    return Window(trace, index, UNKNOWN_ROW, trace.sha256, name, predicted, float(rates[0]))


def _floats(column: pa.Array) -> NDArray[np.float64]:
    return np.array([_float(value) for value in column.to_pylist()], np.float64)


def _float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return np.nan

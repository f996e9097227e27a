"""Read BurstGPT, half a year of requests to ChatGPT and GPT-4 at one university.

Columns are Timestamp (seconds), Model, Request tokens, Response tokens, Total tokens and Log Type
(conversations in a browser, or the API); from version 1.2 on also Session ID and Elapsed time. A
request with 0 response tokens failed; the files "without fails" have none of these.

References
----------
Wang et al., "BurstGPT: A Real-World Workload Dataset to Optimize LLM Serving Systems", KDD 2025.
https://github.com/HPMLL/BurstGPT, CC-BY-4.0.
"""

import pyarrow as pa
import pyarrow.compute as pc

from queuesmith.traces.columns.cleaning import Given, build_trace
from queuesmith.traces.columns.source import Source
from queuesmith.traces.columns.table import map_known, read_columns
from queuesmith.traces.trace import Trace

_NEEDED = {
    "arrival_time": "timestamp",
    "model": "model",
    "prompt_len": "request_tokens",
    "output_len": "response_tokens",
}
_COLUMNS = {**_NEEDED, "session": "session_id", "log_type": "log_type"}
_SHOWN = 4


def is_burstgpt(names: list[str]) -> bool:
    """Tell whether a table has the BurstGPT columns, in any order and case."""
    return len(map_known(names, _NEEDED)) == len(_NEEDED)


def read_burstgpt(source: Source, names: list[str], given: Given) -> Trace:
    """Read a BurstGPT file; rows of several models or logs stay together, with a note.

    Raises
    ------
    TraceError
        If no row can be used.
    """
    columns, unreadable = read_columns(source, map_known(names, _COLUMNS))
    notes = []
    for kind, name in (("models", "model"), ("logs", "log_type")):
        if name in columns:
            notes += _mixture(kind, columns.pop(name))
    return build_trace(
        columns,
        source,
        reader="burstgpt",
        given=given,
        own_unit="s",
        unreadable=unreadable,
        notes=tuple(notes),
    )


def _mixture(kind: str, column: pa.Array) -> list[str]:
    """Say how many rows each value has, if there is more than one."""
    counts = pc.value_counts(column.drop_null()).to_pylist()
    if len(counts) < 2:
        return []
    counts.sort(key=lambda entry: (-entry["counts"], str(entry["values"])))
    told = [f"{str(one['values'])[:40]} ({one['counts']:,} rows)" for one in counts[:_SHOWN]]
    more = f" and {len(counts) - _SHOWN:,} more" if len(counts) > _SHOWN else ""
    return [f"{kind} served together: {', '.join(told)}{more}"]

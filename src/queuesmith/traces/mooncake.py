"""Read the Mooncake traces of Kimi's service.

One JSON object per line: timestamp (milliseconds), input_length, output_length, and hash_ids,
which number the prompt's blocks of 512 tokens so that equal numbers share a prefix.

References
----------
Qin et al., "Mooncake: Trading More Storage for Less Computation", FAST 2025.
https://github.com/kvcache-ai/Mooncake, Apache-2.0.
"""

from queuesmith.traces.cleaning import build_trace
from queuesmith.traces.source import Source
from queuesmith.traces.table import map_known, read_columns
from queuesmith.traces.trace import Trace

BLOCK_SIZE = 512
_COLUMNS = {
    "arrival_time": "timestamp",
    "prompt_len": "input_length",
    "output_len": "output_length",
    "block_hashes": "hash_ids",
}


def is_mooncake(names: list[str]) -> bool:
    """Tell whether a table has the Mooncake columns, in any order and case."""
    return len(map_known(names, _COLUMNS)) == len(_COLUMNS)


def read_mooncake(source: Source, names: list[str], unit: str | None = None) -> Trace:
    """Read a Mooncake trace.

    Raises
    ------
    TraceError
        If no row can be used.
    """
    columns, unreadable = read_columns(source, map_known(names, _COLUMNS))
    notes: tuple[str, ...] = ()
    if unit is None:
        unit = "ms"
        notes = ("times taken as ms, as in Mooncake traces; --unit says otherwise",)
    return build_trace(
        columns,
        source,
        reader="mooncake",
        unit=unit,
        block_size=BLOCK_SIZE,
        unreadable=unreadable,
        notes=notes,
    )

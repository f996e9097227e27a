"""Read the Qwen traces of Alibaba's Bailian service.

One JSON object per line: chat_id, parent_chat_id (-1 for the first turn of a conversation),
timestamp (seconds), input_length, output_length, type, turn, and hash_ids, which number the
prompt's blocks of 16 tokens so that equal numbers share a prefix. A session is a chat with all
that goes back to it; its number is the first chat's.

References
----------
Wang et al., "KVCache Cache in the Wild: Characterizing and Optimizing KVCache Cache at a Large
Cloud Provider", USENIX ATC 2025. https://github.com/alibaba-edu/qwen-bailian-usagetraces-anon,
Apache-2.0.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from queuesmith.traces.columns.cleaning import Given, build_trace
from queuesmith.traces.columns.source import Source
from queuesmith.traces.columns.table import map_known, read_columns
from queuesmith.traces.trace import Trace

BLOCK_SIZE = 16
_NEEDED = {
    "chat": "chat_id",
    "parent": "parent_chat_id",
    "arrival_time": "timestamp",
    "prompt_len": "input_length",
    "output_len": "output_length",
}
_COLUMNS = {**_NEEDED, "turn": "turn", "block_hashes": "hash_ids"}


def is_bailian(names: list[str]) -> bool:
    """Tell whether a table has the Bailian columns, in any order and case."""
    return len(map_known(names, _NEEDED)) == len(_NEEDED)


def read_bailian(source: Source, names: list[str], given: Given) -> Trace:
    """Read a Bailian trace.

    A parent that is not in the file still binds its chats together. Chats without a number, or
    that are their own ancestors, are in no session.

    Raises
    ------
    TraceError
        If no row can be used.
    """
    columns, unreadable = read_columns(source, map_known(names, _COLUMNS))
    chat, parent = (_whole_numbers(columns.pop(name)) for name in ("chat", "parent"))
    sessions = link_sessions(chat, parent)
    # Before rows are dropped, for a failed turn links others all the same.
    columns["session"] = pa.array(sessions)
    alone = int(np.count_nonzero(sessions < 0))
    return build_trace(
        columns,
        source,
        reader="bailian",
        given=given,
        own_unit="s",
        block_size=BLOCK_SIZE if "block_hashes" in columns else None,
        unreadable=unreadable,
        notes=(f"rows whose session is unknown: {alone:,}",) if alone else (),
    )


def link_sessions(chat: NDArray[np.int64], parent: NDArray[np.int64]) -> NDArray[np.int64]:
    """Follow each chat to the first of its conversation.

    Parameters
    ----------
    chat, parent : (num_rows,) int64
        Numbers of chats; below 0 where there is none.

    Returns
    -------
    (num_rows,) int64
        The first chat's number; -1 for a row without a number, and where parents go in a circle.
    """
    known = np.unique(np.concatenate([chat[chat >= 0], parent[(chat >= 0) & (parent >= 0)]]))
    above = np.arange(len(known))
    linked = (chat >= 0) & (parent >= 0)
    above[np.searchsorted(known, chat[linked])] = np.searchsorted(known, parent[linked])
    first = above
    # Each round doubles how far every chat has come.
    for _ in range(len(known).bit_length()):
        first = first[first]
    number = np.where(above[first] == first, known[first], -1)
    sessions = np.full(len(chat), -1)
    sessions[chat >= 0] = number[np.searchsorted(known, chat[chat >= 0])]
    return sessions


def _whole_numbers(column: pa.Array) -> NDArray[np.int64]:
    """Return numbers of chats, -1 where there is none that is whole."""
    if pa.types.is_string(column.type):
        shaped = pc.match_substring_regex(column, r"^-?\d{1,18}$")
        column = pc.if_else(shaped, column, None)
    elif pa.types.is_floating(column.type):
        whole = pc.and_(pc.equal(pc.floor(column), column), pc.less(pc.abs(column), 2.0**53))
        column = pc.if_else(whole, column, None)
    elif not pa.types.is_integer(column.type):
        column = pa.nulls(len(column), pa.int64())
    values = column.cast(pa.int64(), safe=False).fill_null(-1)
    return np.asarray(values.to_numpy(zero_copy_only=False), np.int64)

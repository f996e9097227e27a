"""Read the Azure LLM inference traces of 2023 to 2025 as Microsoft publishes them.

All have the columns TIMESTAMP (with seven or six digits after the second, in 2024 with a
time zone), ContextTokens and GeneratedTokens; no clients, no sessions, no text. The multimodal
trace has NumImages, too, whose tokens are among ContextTokens. Copies that give
seconds in a column ``arrival_s`` and say in a comment since when are understood too.

References
----------
Patel et al., "Splitwise", ISCA 2024 (the 2023 traces); Stojkovic et al., "DynamoLLM", HPCA 2025
(the 2024 traces); Qiu et al., "ModServe", SoCC 2025 (the multimodal trace).
https://github.com/Azure/AzurePublicDataset, CC-BY-4.0.
"""

import re

import numpy as np

from queuesmith.traces.columns.cleaning import Given, build_trace
from queuesmith.traces.columns.source import Source
from queuesmith.traces.columns.table import map_known, read_columns
from queuesmith.traces.columns.time_units import units_of
from queuesmith.traces.columns.values import read_numbers
from queuesmith.traces.trace import Trace

_LENGTHS = {"prompt_len": "contexttokens", "output_len": "generatedtokens"}
_PUBLISHED = {"arrival_time": "timestamp", **_LENGTHS}
_SECONDS = {"arrival_time": "arrival_s", **_LENGTHS}
_YEAR = re.compile(r"\b(2023|2024)-\d\d-\d\d")


def is_azure(names: list[str]) -> bool:
    """Tell whether a table has the Azure columns, in any order and case."""
    return any(len(map_known(names, known)) == len(known) for known in (_PUBLISHED, _SECONDS))


def read_azure(source: Source, names: list[str], given: Given) -> Trace:
    """Read an Azure trace; see `queuesmith.traces.columns.cleaning` for the rows left out.

    The year is that of the first row's date, or of a date in the file's comment.

    Raises
    ------
    TraceError
        If no row can be used.
    """
    mapping = map_known(names, _PUBLISHED)
    if len(mapping) < len(_PUBLISHED):
        mapping = map_known(names, _SECONDS)
    images = map_known(names, {"images": "numimages"})
    columns, unreadable = read_columns(source, {**mapping, **images})
    arrivals = columns["arrival_time"]
    first = str(arrivals[0]) if len(arrivals) else ""
    year = _YEAR.search(first) or _YEAR.search(source.comment)
    notes: tuple[str, ...] = ()
    if "shuffled" in source.comment.lower():
        notes = (
            "the file says that lengths are in shuffled order against the arrivals: each prompt "
            "has its own output, but not its own arrival time",
        )
    if "images" in columns:
        counts = read_numbers(f"{source.name}: NumImages", columns.pop("images"))
        notes += (
            f"requests with images: {int(np.count_nonzero(counts > 0)):,}; their tokens are in "
            "ContextTokens, and the time to encode them is simulated nowhere",
        )
    return build_trace(
        columns,
        source,
        reader=f"azure_{year[1]}" if year else "azure",
        given=given,
        units=units_of({"arrival_time": mapping["arrival_time"]}),
        unreadable=unreadable,
        notes=notes,
    )

"""Read the Azure LLM inference traces of 2023 and 2024 as Microsoft publishes them.

Both years have the columns TIMESTAMP (with seven or six digits after the second, in 2024 with a
time zone), ContextTokens and GeneratedTokens; no clients, no sessions, no text.

References
----------
Patel et al., "Splitwise", ISCA 2024 (the 2023 traces); Stojkovic et al., "DynamoLLM", HPCA 2025
(the 2024 traces). https://github.com/Azure/AzurePublicDataset, CC-BY-4.0.
"""

from queuesmith.traces.source import Source
from queuesmith.traces.table import normalise, read_table
from queuesmith.traces.trace import Trace

_COLUMNS = {
    "arrival_time": "timestamp",
    "prompt_len": "contexttokens",
    "output_len": "generatedtokens",
}


def is_azure(names: list[str]) -> bool:
    """Tell whether a table has the Azure columns, in any order and case."""
    return set(_COLUMNS.values()) <= {normalise(name) for name in names}


def read_azure(source: Source, names: list[str]) -> Trace:
    """Read an Azure trace; see `queuesmith.traces.cleaning` for the rows left out.

    Raises
    ------
    TraceError
        If no row can be used.
    """
    spelled = {normalise(name): name for name in names}
    columns = {name: spelled[there] for name, there in _COLUMNS.items()}
    return read_table(source, columns=columns, reader="azure")

"""One module for each kind of log, and the order in which a file is tried as each of them.

A new reader is a module here and a line below; one that is only names of fields is an entry of
:mod:`queuesmith.traces.readers.formats`.
"""

from collections.abc import Mapping
from pathlib import Path

from queuesmith.errors import NotOneTrace
from queuesmith.traces.columns.cleaning import Given
from queuesmith.traces.columns.records import Records
from queuesmith.traces.columns.source import open_source
from queuesmith.traces.columns.table import column_names, map_known, read_table
from queuesmith.traces.columns.totals import refuse_totals
from queuesmith.traces.readers.access_log import is_access_log, read_access_log
from queuesmith.traces.readers.aiperf import is_aiperf, read_aiperf
from queuesmith.traces.readers.azure import is_azure, read_azure
from queuesmith.traces.readers.bailian import is_bailian, read_bailian
from queuesmith.traces.readers.burstgpt import is_burstgpt, read_burstgpt
from queuesmith.traces.readers.claude_code import is_claude_code, read_claude_code
from queuesmith.traces.readers.format_reader import find_format, read_format
from queuesmith.traces.readers.guidellm import is_guidellm, read_guidellm
from queuesmith.traces.readers.litellm import is_litellm, read_litellm
from queuesmith.traces.readers.mooncake import is_mooncake, read_mooncake
from queuesmith.traces.readers.openai_usage import is_openai_usage, read_openai_usage
from queuesmith.traces.readers.otel import is_otel, read_otel
from queuesmith.traces.readers.vllm_bench import is_vllm_bench, read_vllm_bench
from queuesmith.traces.readers.vllm_log import is_vllm_log, read_vllm_log
from queuesmith.traces.trace import Trace

__all__ = ["read_file"]

#: Logs of lines that are no table.
_LOGS = (
    (is_vllm_log, read_vllm_log),
    (is_access_log, read_access_log),
)
#: Logs of nested JSON, those first that others could be taken for.
_NESTED = (
    (is_guidellm, read_guidellm),
    (is_vllm_bench, read_vllm_bench),
    (is_aiperf, read_aiperf),
    (is_otel, read_otel),
    (is_claude_code, read_claude_code),
    (is_openai_usage, read_openai_usage),
)
#: Formats that are known by their columns; the first that fits is taken. Bailian has every column
#: of Mooncake.
_TABLES = (
    (is_bailian, read_bailian),
    (is_mooncake, read_mooncake),
    (is_burstgpt, read_burstgpt),
    (is_azure, read_azure),
)


def read_file(path: Path, columns: Mapping[str, str] | None, given: Given) -> Trace:
    """Read a file as the first kind of log that fits, or with `columns` as a table."""
    opened = open_source(path)
    if columns:
        return read_table(opened, columns=columns, given=given)
    refuse_totals(opened)
    for is_log, read_log in _LOGS:
        if is_log(opened):
            return read_log(opened, given)
    records = Records.peek(opened)
    form = find_format(records, [] if records.head else column_names(opened))
    if form is not None:
        names = [] if records.head else column_names(opened)
        return read_format(form, records, names, given)
    for is_nested, read_nested in _NESTED:
        if is_nested(records):
            return read_nested(records, given)
    names = column_names(opened)
    if len(map_known(names, {"window": "window_id", "rate": "lambda_ref"})) == 2:
        raise NotOneTrace(
            f"{path.name} holds windows, each on its own clock, and not one trace; "
            "queuesmith.windows.tables.read_windows reads it"
        )
    for is_table, read_columns in _TABLES:
        if is_table(names):
            return read_columns(opened, names, given)
    if is_litellm(names):
        return read_litellm(opened, records, names, given)
    return read_table(opened, given=given)

"""Where requests come from: files of real traffic, and models that were fitted to some."""

import os
from collections.abc import Mapping
from os import PathLike
from pathlib import Path

from queuesmith.errors import ConfigError, TraceError, did_you_mean
from queuesmith.traces.azure import is_azure, read_azure
from queuesmith.traces.source import open_source
from queuesmith.traces.synthetic import load_model, model_names
from queuesmith.traces.table import column_names, read_table
from queuesmith.traces.trace import MAX_TIME, MAX_TOKENS, Origin, Trace

__all__ = ["MAX_TIME", "MAX_TOKENS", "Origin", "Trace", "load_trace"]

_MODEL = "@model"


def load_trace(
    source: str | PathLike[str],
    *,
    columns: Mapping[str, str] | None = None,
    unit: str | None = None,
    num_requests: int | None = None,
    seed: int = 0,
) -> Trace:
    """Read a trace file, or draw a trace from a workload model.

    Files are told apart by content: the Azure LLM inference traces, and any other CSV, JSONL or
    Parquet table with one request per row; gzip and zstd are read through.

    Parameters
    ----------
    source : str or path
        A file, or ``NAME@model`` for one of the models in the package.
    columns : mapping of str to str, optional
        Our column name to the file's, such as ``{"arrival_time": "ts"}``; well-known names need
        none. Only for files.
    unit : {"s", "ms", "us", "ns"}, optional
        Of arrival times that are plain numbers; seconds when left out. Only for files.
    num_requests : int, optional
        How many to draw from a model, 10,000 when left out; of a file, the first so many.
    seed : int
        Of the draw; a file needs none.

    Returns
    -------
    Trace
        Starting at 0 s. Its origin says what was left out and why.

    Raises
    ------
    TraceError
        If there is no such file or model, or no row can be used.
    ConfigError
        If an option makes no sense.

    Examples
    --------
    >>> load_trace("azure_2023_conv@model", num_requests=3, seed=1).origin.kind
    'modelled'
    """
    if num_requests is not None and num_requests < 1:
        raise ConfigError(f"num_requests must be at least 1, got {num_requests}")
    text = str(source)
    path = Path(source)
    there = os.path.exists(source)  # unlike Path.exists, False for a path no system could hold
    if text.endswith(_MODEL) and not there:
        if columns or unit:
            raise ConfigError(
                f"{text} is a model, which has no columns and no unit; leave them out"
            )
        model = load_model(text.removesuffix(_MODEL))
        return model.sample(10_000 if num_requests is None else num_requests, seed)
    if not there and path.name == text and not path.suffix:
        models = [name + _MODEL for name in model_names()]
        raise TraceError(
            f"there is no file {text!r} here.{did_you_mean(text + _MODEL, models)} "
            f"Give the path of a file, or a model: {', '.join(models)}"
        )
    opened = open_source(path)
    names = column_names(opened)
    if not columns and unit is None and is_azure(names):
        trace = read_azure(opened, names)
    else:
        trace = read_table(opened, columns=columns, unit=unit)
    if num_requests is not None and num_requests < len(trace):
        note = f"the first {num_requests:,} of {len(trace):,} requests"
        trace = trace.take(slice(0, num_requests)).with_origin(notes=(*trace.origin.notes, note))
    return trace

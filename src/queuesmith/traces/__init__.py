"""Where requests come from: files of real traffic, and models that were fitted to some."""

import os
from collections.abc import Mapping
from os import PathLike

from queuesmith.errors import ConfigError, TraceError, did_you_mean
from queuesmith.traces.block_hashes import BlockHashes
from queuesmith.traces.catalog import catalogue, resolve
from queuesmith.traces.columns.cleaning import Given
from queuesmith.traces.readers import read_file
from queuesmith.traces.readers.servegen import is_servegen
from queuesmith.traces.synthetic import load_model, model_names
from queuesmith.traces.trace import MAX_TIME, MAX_TOKENS, Origin, Trace

__all__ = ["MAX_TIME", "MAX_TOKENS", "BlockHashes", "Origin", "Trace", "load_trace"]

_MODEL = "@model"
#: More would not fit into the memory of most machines.
MAX_REQUESTS = 100_000_000
_OWN_MODEL = ".toml"


def load_trace(
    source: str | PathLike[str],
    *,
    columns: Mapping[str, str] | None = None,
    unit: str | None = None,
    hash_block_size: int | None = None,
    num_requests: int | None = None,
    seed: int = 0,
) -> Trace:
    """Read a trace file, or draw a trace from a workload model.

    Files are told apart by content: the Azure LLM inference traces of 2023 and 2024, BurstGPT,
    Qwen-Bailian, Mooncake; request logs of vLLM, exports of AIPerf, GuideLLM and ``vllm bench
    serve``, spend logs of LiteLLM, OpenAI-style usage, OpenTelemetry spans, access logs with token
    counts; and any other CSV, JSONL or Parquet table with one request per row. Gzip and zstd are
    read through. Conversations and the hashes of prompt blocks are kept where a format has them.

    Parameters
    ----------
    source : str or path
        A file, a name of the catalogue whose file is at hand, or ``NAME@model`` for one of the
        models in the package (``MY.toml@model`` for one of your own).
    columns : mapping of str to str, optional
        Our column name to the file's, such as ``{"arrival_time": "ts"}``, with dots for keys within
        others, such as ``{"prompt_len": "usage.input_tokens"}``; well-known names need none. Makes
        any file a plain table. Only for files.
    unit : str, optional
        Of times and latencies that are plain numbers and whose field's name ends with no unit: one
        of ``s``, ``ms``, ``us``, ``ns``, or of single columns as in ``"arrival_time=us,ttft=ms"``.
        When left out, times since 1970 are known by their size, and the rest is as the format has
        it, or in seconds, with a note. Only for files.
    hash_block_size : int, optional
        Tokens in each block of a prompt that the file has a hash of; 0 leaves the hashes out. When
        left out, the format's own, unless prompts and numbers of hashes tell another. Only for
        files.
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
        If there is no such file or model, or no row can be used; or if the file holds windows
        (:func:`queuesmith.windows.tables.read_windows`) or the statistics of ServeGen
        (:func:`queuesmith.traces.readers.servegen.read_servegen`).
    ConfigError
        If an option makes no sense.

    Examples
    --------
    >>> load_trace("azure_2023_conv@model", num_requests=3, seed=1).origin.kind
    'modelled'
    """
    if hash_block_size is not None and not 0 <= hash_block_size <= MAX_TOKENS:
        raise ConfigError(
            f"hash_block_size must be from 1 to {MAX_TOKENS:,} tokens, or 0 to leave hashes out; "
            f"got {hash_block_size}"
        )
    if num_requests is not None and not 1 <= num_requests <= MAX_REQUESTS:
        raise ConfigError(f"num_requests must be from 1 to {MAX_REQUESTS:,}, got {num_requests}")
    text = str(source)
    there = os.path.exists(source)  # unlike Path.exists, False for a path no system could hold
    if (text.endswith(_MODEL) and not there) or text.endswith(_OWN_MODEL):
        if columns or unit or hash_block_size is not None:
            raise ConfigError(
                f"{text} is a model, which has no columns, no unit and no hashes; leave them out"
            )
        model = load_model(text.removesuffix(_MODEL))
        return model.sample(10_000 if num_requests is None else num_requests, seed)
    path = resolve(source)
    if not there and path.name == text and not path.suffix:
        known = [*(name + _MODEL for name in model_names()), *catalogue()]
        raise TraceError(
            f"there is no file or trace {text!r}.{did_you_mean(text, known)} Give the path of a "
            "file or a name that `queuesmith traces list` shows"
        )
    if is_servegen(path):
        models = [name + _MODEL for name in model_names() if "servegen" in name] or ["NAME@model"]
        raise TraceError(
            f"{path.name} holds statistics of ServeGen, not requests; draw requests from a model: "
            f"{', '.join(models)}"
        )
    trace = read_file(path, columns, Given(unit, hash_block_size))
    if hash_block_size and trace.block_hashes is None:
        raise ConfigError(
            f"{path.name} has no hashes of prompt blocks; leave --hash-block-size out"
        )
    if num_requests is not None and num_requests < len(trace):
        note = f"the first {num_requests:,} of {len(trace):,} requests"
        trace = trace.take(slice(0, num_requests)).with_origin(notes=(*trace.origin.notes, note))
    return trace

"""Read the requests of ``vllm bench serve --save-result --save-detailed``.

One JSON object with one entry per request in each of ``start_times`` (seconds on a clock of the
client), ``input_lens``, ``output_lens`` and ``errors`` (empty text where there was none); and, as
the client saw them, in ``ttfts`` and ``itls`` (a list per request), whose sum is the latency.

References
----------
vLLM, vllm/benchmarks/serve.py; ``start_times`` came with pull request 32667, in January 2026.
https://docs.vllm.ai/en/stable/cli/bench/serve/
"""

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

from queuesmith.errors import NotOneTrace, TraceError
from queuesmith.traces.columns.cleaning import Given
from queuesmith.traces.columns.records import LOAD_GENERATOR, Records, Row, build_from_rows, seconds
from queuesmith.traces.trace import Trace

_LISTS = ("start_times", "input_lens", "output_lens")
#: What `sglang.bench_serving` writes beside the same names, and vLLM does not.
_OF_SGLANG = "total_output_tokens_retokenized"
_SUMMARY = frozenset({"completed", "request_throughput", "total_input_tokens"})
_EMPTY = "is a `vllm bench serve` result without a value in {}; run the benchmark again"
_LACKS = {
    name: _EMPTY.format(there)
    for name, there in zip(("arrival_time", "prompt_len", "output_len"), _LISTS, strict=True)
}


def is_vllm_bench(records: Records) -> bool:
    """Tell whether objects are results of ``vllm bench serve``, with or without details."""
    return any(row.keys() >= _SUMMARY or row.keys() >= {*_LISTS[1:]} for row in records.head)


def read_vllm_bench(records: Records, given: Given) -> Trace:
    """Read a result; failed requests are left out.

    Raises
    ------
    TraceError
        If the details or the start times were not saved, or no request can be used.
    NotOneTrace
        If the file holds several results, as ``--append-result`` writes.
    """
    name = records.source.name
    if any(_OF_SGLANG in row for row in records.head):
        raise TraceError(
            f"{name} is a result of sglang.bench_serving, which saves no start times, so nothing "
            "says when requests arrived; start the server with --export-metrics-to-file, and give "
            "what it writes"
        )
    if len(records.head) > 1:
        raise NotOneTrace(
            f"{name} holds several `vllm bench serve` results (--append-result), each on a clock "
            "of its own; save each to its own file"
        )
    result = records.head[0]
    missing = [there for there in _LISTS if not isinstance(result.get(there), list)]
    if missing == ["start_times"]:
        raise TraceError(
            f"{name} is a `vllm bench serve` result without start_times, so nothing says when "
            "requests arrived; vLLM saves them with --save-detailed since February 2026"
        )
    if missing:
        raise TraceError(
            f"{name} is a `vllm bench serve` result without {' and '.join(missing)}; run it with "
            "--save-result --save-detailed"
        )
    return build_from_rows(
        _rows(result),
        records.source,
        reader="vllm_bench",
        given=given,
        own_unit="s",
        lacks=_LACKS,
        notes=(LOAD_GENERATOR,),
    )


def _rows(result: dict[str, Any]) -> Iterator[Row]:
    errors = result.get("errors")
    columns = [result[name] for name in _LISTS]
    for values in (errors, result.get("ttfts"), result.get("itls")):
        columns.append(values if isinstance(values, list) else [])
    for start, prompt, output, error, first, gaps in zip_longest(*columns):
        if error:
            yield "failed request"
        else:
            ttft = seconds(first)
            yield {
                "arrival_time": start,
                "prompt_len": prompt,
                "output_len": output,
                "ttft": ttft,
                "e2el": _latency(ttft, gaps),
            }


def _latency(ttft: float | None, gaps: Any) -> float | None:
    if ttft is None or not isinstance(gaps, list):
        return None
    known = [seconds(gap) for gap in gaps]
    return None if None in known else ttft + sum(gap for gap in known if gap is not None)

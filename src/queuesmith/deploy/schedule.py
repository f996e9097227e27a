"""The schedule of a replay as files for other load generators."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

from queuesmith.deploy.prompts import request_body
from queuesmith.engine.workload import Workload

#: Prompt tokens that one hash of a timed trace stands for.
TIMED_TRACE_CHUNK = 16


def aiperf_lines(workload: Workload, model: str, seed: int) -> Iterator[str]:
    """Yield ``mooncake_trace`` lines: the body of each request, and when to send it in ms."""
    for row, arrival in enumerate(_from_zero(workload)):
        body = request_body(workload, row, model, seed)
        yield json.dumps({"timestamp": round(1e3 * arrival, 3), "payload": body})


def timed_trace_lines(workload: Workload, model: str, seed: int) -> Iterator[str]:
    """Yield lines for ``vllm bench serve --dataset-name timed_trace``, times in seconds.

    Prompts are made there, from hashes that no two requests share.
    """
    first = seed << 32
    for row, arrival in enumerate(_from_zero(workload)):
        prompt_len = int(workload.trace.prompt_len[row])
        num_chunks = -(-prompt_len // TIMED_TRACE_CHUNK)
        line = {
            "timestamp": round(arrival, 6),
            "input_length": prompt_len,
            "output_length": int(workload.output_len[row]),
            "hash_ids": list(range(first, first + num_chunks)),
        }
        first += num_chunks
        yield json.dumps(line)


FORMATS: dict[str, Callable[[Workload, str, int], Iterator[str]]] = {
    "aiperf": aiperf_lines,
    "timed_trace": timed_trace_lines,
}


def write_schedule(workload: Workload, form: str, model: str, seed: int, path: Path) -> None:
    """Write a schedule as lines of JSON, in one of `FORMATS`."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(line + "\n" for line in FORMATS[form](workload, model, seed))


def _from_zero(workload: Workload) -> list[float]:
    arrivals = workload.trace.arrival_time
    times: list[float] = (arrivals - arrivals[0]).tolist()
    return times

"""A run as a Chrome trace, to be opened in Perfetto or chrome://tracing."""

import heapq
import json
from collections.abc import Iterator
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from queuesmith.engine.result import Recording, Result
from queuesmith.errors import ConfigError

_ENGINE, _REQUESTS = 1, 2  # process numbers


def write_timeline(result: Result, path: str | PathLike[str]) -> Path:
    """Write steps, requests, and counters of queue and KV cache.

    Steps in a row that decode the same requests are drawn as one event that says how many they are.

    Parameters
    ----------
    result : Result
        Of ``simulate(..., record=True)``.

    Raises
    ------
    ConfigError
        If the result has no recording.

    References
    ----------
    "Trace Event Format", the Chromium project.
    """
    if result.recording is None:
        raise ConfigError("a timeline needs a recording; simulate with record=True")
    path = Path(path)
    with path.open("w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
        for number, event in enumerate(_events(result, result.recording)):
            file.write(",\n" if number else "")
            json.dump(event, file, separators=(",", ":"))
        file.write("\n]}\n")
    return path


def _events(result: Result, recording: Recording) -> Iterator[dict[str, Any]]:
    for process, name in ((_ENGINE, f"engine under {result.policy}"), (_REQUESTS, "requests")):
        yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": name}}
    yield {
        "ph": "M",
        "name": "thread_name",
        "pid": _ENGINE,
        "tid": 0,
        "args": {"name": "steps"},
    }
    yield from _steps(recording)
    yield from _requests(result)


def _steps(recording: Recording) -> Iterator[dict[str, Any]]:
    """Draw each step, or each stretch of like decodes, with counters where it starts."""
    steps = recording.steps
    starts = np.flatnonzero(_begins_stretch(steps))
    for first, end in pairwise([*starts, len(steps)]):
        step, last = steps[first], steps[end - 1]
        start = _microseconds(step["start"])
        yield {
            "ph": "X",
            "name": "prefill + decode" if step["num_prefill_tokens"] else "decode",
            "pid": _ENGINE,
            "tid": 0,
            "ts": start,
            "dur": _microseconds(last["start"] + last["duration"]) - start,
            "args": {
                "steps": int(end - first),
                "prefill tokens": int(step["num_prefill_tokens"]),
                "decodes": int(step["num_decodes"]),
                "preemptions": _preemptions(steps, int(first)),
            },
        }
        for name, values in (
            ("requests", {"waiting": step["num_waiting"], "running": step["num_running"]}),
            ("free KV blocks", {"free": step["num_free_blocks"]}),
        ):
            yield {
                "ph": "C",
                "name": name,
                "pid": _ENGINE,
                "ts": start,
                "args": {key: int(value) for key, value in values.items()},
            }


def _begins_stretch(steps: Any) -> Any:
    """Mark the steps that differ from the one before in more than their place in time."""
    begins = np.ones(len(steps), dtype=bool)
    same = (steps["num_prefill_tokens"][1:] == 0) & (steps["num_prefill_tokens"][:-1] == 0)
    for name in ("num_decodes", "num_waiting", "num_running", "end_preemption"):
        same &= steps[name][1:] == steps[name][:-1]
    ends = steps["start"][:-1] + steps["duration"][:-1]
    begins[1:] = ~(same & (steps["start"][1:] == ends))
    return begins


def _preemptions(steps: Any, step: int) -> int:
    before = steps["end_preemption"][step - 1] if step else 0
    return int(steps["end_preemption"][step] - before)


def _requests(result: Result) -> Iterator[dict[str, Any]]:
    """Draw each request as waiting, prefill and decode, on the first line that is free."""
    busy: list[tuple[float, int]] = []  # when each line falls free
    free: list[int] = []
    num_lines = 0
    for request in result.requests:
        while busy and busy[0][0] <= request.arrival_time:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            line = heapq.heappop(free)
        else:
            line = num_lines
            num_lines += 1
        instants = [
            ("waiting", request.arrival_time),
            ("prefill", request.scheduled_ts),
            ("decode", request.first_token_ts),
            ("", request.last_token_ts),
        ]
        end = request.arrival_time
        for (name, start), (_, stop) in pairwise(instants):
            stop = result.end_time if np.isnan(stop) else stop
            if np.isnan(start) or stop <= start:
                continue
            end = stop
            yield {
                "ph": "X",
                "name": name,
                "pid": _REQUESTS,
                "tid": line,
                "ts": _microseconds(start),
                "dur": _microseconds(stop) - _microseconds(start),
                "args": {
                    "row": int(request.row),
                    "prompt tokens": int(request.prompt_len),
                    "output tokens": int(request.output_len),
                    "preemptions": int(request.num_preemptions),
                },
            }
        heapq.heappush(busy, (end, line))


def _microseconds(seconds: float) -> float:
    return round(float(seconds) * 1e6, 3)

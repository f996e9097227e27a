"""Whole runs as numbers, so that a child process can hand them over and nothing else."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from queuesmith.engine.result import ITL_EDGES, RESULT_DTYPE, Result
from queuesmith.engine.workload import Workload

Floats = NDArray[np.float64]

_TIMES = ("scheduled_ts", "first_token_ts", "last_token_ts", "aborted_ts", "rejected_ts")
_COUNTS = ("num_output_tokens", "num_preemptions")
_TOTALS = (
    "num_steps",
    "num_jumps",
    "num_computed_tokens",
    "num_recomputed_tokens",
    "num_cached_tokens",
)
_NUM_BINS = len(ITL_EDGES) - 1


@dataclass(frozen=True)
class ReadRuns:
    """Reads all of a run that depends on the policy; `sizes` are requests, by cell."""

    sizes: tuple[int, ...]

    def size(self, number: int) -> int:
        """Return how many numbers a run of a cell is."""
        columns = 2 * len(_TIMES) + len(_COUNTS)
        return columns * self.sizes[number] + _NUM_BINS + len(_TOTALS) + 1

    def __call__(self, number: int, result: Result) -> Floats:
        """Write a run down; an instant that was not reached is 0, and marked as missing."""
        rows = result.requests
        parts: list[Floats] = []
        for name in _TIMES:
            missing = np.isnan(rows[name])
            parts += [np.where(missing, 0.0, rows[name]), missing.astype(np.float64)]
        parts += [rows[name].astype(np.float64) for name in _COUNTS]
        totals = [float(getattr(result, name)) for name in _TOTALS]
        return np.concatenate([*parts, result.itl_counts, totals, [result.end_time]])


def read_run(values: Floats, workload: Workload, policy: str) -> Result:
    """Undo `ReadRuns`."""
    num = len(workload.row)
    columns, rest = np.split(values, [(2 * len(_TIMES) + len(_COUNTS)) * num])
    table = columns.reshape(-1, num)
    rows = np.zeros(num, RESULT_DTYPE).view(np.recarray)
    rows.row, rows.output_len = workload.row, workload.output_len
    rows.arrival_time, rows.prompt_len = workload.trace.arrival_time, workload.trace.prompt_len
    rows.predicted_output_tokens = workload.predicted_output_tokens
    rows.deadline = workload.deadline
    for place, name in enumerate(_TIMES):
        rows[name] = np.where(table[2 * place + 1] > 0, np.nan, table[2 * place])
    for place, name in enumerate(_COUNTS, start=2 * len(_TIMES)):
        rows[name] = table[place].astype(np.int64)
    totals = rest[_NUM_BINS:]
    num_steps, num_jumps, num_computed, num_recomputed, num_cached = map(int, totals[:-1])
    return Result(
        policy=policy,
        trace=workload.trace,
        requests=rows,
        itl_counts=rest[:_NUM_BINS].astype(np.int64),
        end_time=float(totals[-1]),
        num_dropped=workload.num_dropped,
        num_truncated=workload.num_truncated,
        num_steps=num_steps,
        num_jumps=num_jumps,
        num_computed_tokens=num_computed,
        num_recomputed_tokens=num_recomputed,
        num_cached_tokens=num_cached,
    )

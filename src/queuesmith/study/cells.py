"""The rows of one part of a study: one window on one engine, under every policy and load."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from queuesmith.config import Slo
from queuesmith.engine.presets.step_time import Preset
from queuesmith.engine.result import Result
from queuesmith.evaluation.evaluate import Load, evaluate
from queuesmith.metrics import METRICS, anwg, queued_time, ttft
from queuesmith.policies import Policy
from queuesmith.study.design_file import SLOTS, knowledge_name
from queuesmith.study.inputs import StudyWindow, source_seed
from queuesmith.windows.predictions import OutputLengthKnowledge

#: Deadlines as if they had left so many times the time after the arrival.
SLACKS = (0.5, 2.0, 4.0)
QUARTERS = 4
#: Of the policy by which a configuration is called idle.
IDLE_POLICY = "fcfs"

#: What says which run a row is of, with types; every other column is a float64.
KEYS = {
    "engine": pa.string(),
    "source": pa.string(),
    "window": pa.int64(),
    "kind": pa.string(),
    "position": pa.float64(),
    "load": pa.string(),
    "rho": pa.float64(),
    "multiplier": pa.float64(),
    "prediction": pa.string(),
    "policy": pa.string(),
}
#: Columns beside the metrics.
FURTHER = (
    *(f"anwg_slack_{slack:g}" for slack in SLACKS),
    *(f"ttft_mean_q{quarter + 1}" for quarter in range(QUARTERS)),
    *(f"ttft_mean_o{quarter + 1}" for quarter in range(QUARTERS)),
    f"{IDLE_POLICY}_queued_steps",
)


@dataclass(frozen=True, eq=False)
class Cells:
    """What one part runs; on the slot engine without a preset, at `multipliers` for `loads`."""

    entry: StudyWindow
    policies: tuple[Policy, ...]
    policy_names: tuple[str, ...]
    loads: tuple[Load, ...]
    multipliers: Mapping[str, float]
    preset: Preset | None
    output_length: OutputLengthKnowledge
    slo: Slo
    seed: int

    @property
    def engine(self) -> str:
        """As rows name it."""
        return SLOTS if self.preset is None else self.preset.name

    @property
    def num_runs(self) -> int:
        """Rows that it makes."""
        return len(self.policy_names) * max(len(self.loads), len(self.multipliers))

    def run(self) -> pa.Table:
        """Run every policy at every load, in one thread."""
        if self.preset is None:
            from queuesmith.study.lssp import METRICS as OF_SLOTS
            from queuesmith.study.lssp import run_window

            rows = run_window(self.entry.window, self.policy_names, self.multipliers)
            return self._table(rows, OF_SLOTS)
        evaluation = evaluate(
            self.policies,
            [self._window(self.preset)],
            self.loads,
            config=self.preset.config,
            step_time=self.preset.step_time,
            output_length=self.output_length,
            slo=self.slo,
            seed=source_seed(self.entry.source, self.seed),
            num_workers=1,
            measure=measure,
        )
        rows = evaluation.cells.to_pylist()
        idle = {row["load"]: row["queued_steps"] for row in rows if row["policy"] == IDLE_POLICY}
        for row in rows:
            row[f"{IDLE_POLICY}_queued_steps"] = idle.get(row["load"], math.nan)
            row["num_dropped"] = evaluation.num_dropped
        return self._table(rows, {})

    def _window(self, preset: Preset) -> Any:
        """Leave out what costs time and decides nothing without prefix caching."""
        window = self.entry.window
        caching = [preset.config.enable_prefix_caching] + [
            bool(policy.engine.get("enable_prefix_caching")) for policy in self.policies
        ]
        if any(caching):
            return window
        return replace(window, trace=replace(window.trace, block_hashes=None))

    def _table(self, rows: Sequence[Mapping[str, Any]], more: Mapping[str, Any]) -> pa.Table:
        """Put rows in order under the columns that all parts of a study have."""
        same = {
            "engine": self.engine,
            "source": self.entry.source,
            "window": self.entry.window.index,
            "kind": self.entry.kind,
            "position": self.entry.position,
            "prediction": knowledge_name(self.output_length),
        }
        names = list(dict.fromkeys([*METRICS, *FURTHER, *more]))
        columns: dict[str, pa.Array] = {}
        for name, kind in KEYS.items():
            values = [same[name] if name in same else row.get(name, math.nan) for row in rows]
            columns[name] = pa.array(values, kind)
        for name in names:
            columns[name] = pa.array(
                np.array([row.get(name, math.nan) for row in rows], np.float64)
            )
        return pa.table(columns)


def measure(result: Result) -> dict[str, float]:
    """Return the numbers of a run that only a study needs."""
    requests = result.requests
    numbers = {f"anwg_slack_{slack:g}": anwg(result, slack=slack) for slack in SLACKS}
    times = ttft(result)
    for letter, lengths in (("q", requests.prompt_len), ("o", requests.output_len)):
        for quarter, rows in enumerate(quarters(lengths)):
            mean = float(times[rows].mean()) if len(rows) else math.nan
            numbers[f"ttft_mean_{letter}{quarter + 1}"] = mean
    numbers["queued_steps"] = queued_steps(result)
    return numbers


def quarters(lengths: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Return the rows of the shortest to the longest quarter; equal lengths in order of rows.

    Examples
    --------
    >>> [rows.tolist() for rows in quarters(np.array([9, 1, 5, 5, 7, 2, 8, 3]))]
    [[1, 5], [7, 2], [3, 4], [6, 0]]
    """
    return np.array_split(np.argsort(lengths, kind="stable"), QUARTERS)


def queued_steps(result: Result) -> float:
    """Return the mean queued time in mean steps: below 1, the engine is called idle.

    The mean step is the time in which some request was there over the number of steps, since an
    engine takes steps while somebody is there and none while nobody is. NaN if a request did not
    finish.
    """
    requests = result.requests
    arrival, end = requests.arrival_time, requests.last_token_ts
    if not result.num_steps or np.isnan(end).any():
        return math.nan
    gone = np.maximum.accumulate(end)
    nobody = np.maximum(arrival[1:] - gone[:-1], 0.0).sum()
    step = (gone[-1] - arrival[0] - nobody) / result.num_steps
    return float(queued_time(result).mean() / step)

"""A policy against vLLM as it is, on the same requests: who was served sooner, and is it sure.

Arms take turns in random order. A window is one observation, however often it was repeated;
repeats are averaged first. There is no verdict where requests failed, where the client was late,
or where the machine was not equally fast for both arms.
"""

import hashlib
import json
import math
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from queuesmith.config import EngineConfig
from queuesmith.deploy.arms import Arm, Run
from queuesmith.deploy.replay import Served
from queuesmith.documents import jsonable, parse_json
from queuesmith.engine.compile import compile_policy
from queuesmith.engine.isolated_latency import e2el_alone
from queuesmith.engine.presets.step_time import StepTime
from queuesmith.engine.run import simulate_workload
from queuesmith.engine.workload import Workload, can_run, prepare
from queuesmith.errors import ConfigError, TraceError
from queuesmith.evaluation.evaluate import DEADLINE_FACTOR, Load, capacity
from queuesmith.policies import Policy
from queuesmith.windows import Window, offered_rate, scale_arrivals
from queuesmith.windows.predictions import OutputLengthKnowledge

STOCK = "stock"
MIN_REPEATS = 3
#: Share of a window's requests that may be left out before the window is named.
MANY_LEFT_OUT = 0.1


@dataclass(frozen=True, eq=False)
class Cell:
    """A window at a load: what both arms serve.

    Attributes
    ----------
    load : Load
    window : Window
    workload : Workload
        Without the requests that an arm cannot run.
    rate : float
        Offered, requests/s.
    carried : float
        Requests/s of this window that the engine finishes under FCFS; NaN where it is not known.
    alone : (num_requests,) float64
        E2EL of each request on an idle engine, s; NaN where it is not known.
    """

    load: Load
    window: Window
    workload: Workload
    rate: float
    carried: float
    alone: NDArray[np.float64]

    @property
    def name(self) -> str:
        """Return a name that can be part of a file's."""
        return f"{self.load.name.replace('/', ' per ').replace(' ', '-')}-w{self.window.index}"

    @property
    def num_dropped(self) -> int:
        """Return how many requests of the window neither arm was sent."""
        return len(self.window.trace) - len(self.workload.trace)


def make_cells(
    windows: Sequence[Window],
    loads: Sequence[Load],
    configs: Sequence[EngineConfig],
    step_time: StepTime | None,
    output_length: OutputLengthKnowledge,
    seed: int,
) -> list[Cell]:
    """Set every window to every load, less the requests that not every arm can run.

    Parameters
    ----------
    windows, loads : sequence
    configs : sequence of EngineConfig
        Of all arms, the reference's first.
    step_time : StepTime or None
        Needed for loads that are shares of capacity, and for deadlines.
    output_length : OutputLengthKnowledge
    seed : int
        Of the noise on predictions, with the window's number, as in `evaluate`.
    """
    if step_time is None:
        for load in loads:
            if load.rho is not None:
                raise ConfigError(
                    f"load {load.name} is a share of what the server carries, which is not known; "
                    "give --engine FILE as `queuesmith calibrate` writes it, or a rate: --load 3/s"
                )
    kept = []
    for window in windows:
        keep = np.all([can_run(window.trace, config) for config in configs], axis=0)
        if keep.sum() < 2:
            raise TraceError(
                f"window {window.index}: fewer than two requests fit the engine of both arms; "
                "raise max_model_len or give another trace"
            )
        kept.append(np.flatnonzero(keep))
    traces = [window.trace.take(rows) for window, rows in zip(windows, kept, strict=True)]
    gaps = [len(trace) - 1 for trace in traces]
    seconds = [each / offered_rate(trace) for each, trace in zip(gaps, traces, strict=True)]
    own_rate = sum(gaps) / sum(seconds)
    cells = []
    for window, rows, trace in zip(windows, kept, traces, strict=True):
        predicted = output_length.predict(window.trace, [seed, window.index])
        if window.predicted_output_tokens is not None and output_length.kind == "noisy":
            predicted = window.predicted_output_tokens
        predicted = predicted[rows]
        workload = prepare(trace, configs[0], predicted)
        alone, carried = np.full(len(trace), math.nan), math.nan
        slack = np.full(len(trace), np.inf)
        if step_time is not None:
            alone = e2el_alone(trace.prompt_len, workload.output_len, configs[0], step_time)
            carried = capacity(trace, configs[0], step_time)
            believed = np.where(np.isnan(predicted), np.median(trace.output_len), predicted)
            slack = DEADLINE_FACTOR * e2el_alone(trace.prompt_len, believed, configs[0], step_time)
        if trace.deadline is not None:
            slack = trace.deadline - trace.arrival_time
        rate = offered_rate(trace)
        for load in loads:
            factor = 1.0  # how many times as fast as they did requests arrive
            if load.rho is not None:
                factor = load.rho * carried / rate
            elif load.rate is not None:
                factor = load.rate / own_rate
            scaled = scale_arrivals(trace, 1 / factor)
            scaled = replace(scaled, deadline=scaled.arrival_time + slack)
            served = prepare(scaled, configs[0], predicted)
            cells.append(Cell(load, window, served, factor * rate, carried, alone))
    return cells


def left_out(cells: Sequence[Cell], config: EngineConfig) -> list[str]:
    """Say which requests neither arm is sent, and which windows lose many of them."""
    windows = list({cell.window.index: cell for cell in cells}.values())
    dropped = sum(cell.num_dropped for cell in windows)
    if not dropped:
        return []
    total = sum(len(cell.window.trace) for cell in windows)
    longest = max(int(cell.window.trace.prompt_len.max()) for cell in windows)
    said = [
        f"{dropped:,} of {total:,} requests ({dropped / total:.0%}) do not fit max_model_len "
        f"{config.max_model_len:,} or the KV cache and are sent to neither arm: the longest, which "
        "pay where short ones go first, are not judged. The longest prompt has "
        f"{longest:,} tokens: raise --max-model-len in --engine-args, or give another trace"
    ]
    worst = [cell for cell in windows if cell.num_dropped > MANY_LEFT_OUT * len(cell.window.trace)]
    if worst:
        named = ", ".join(
            f"{cell.window.index} ({cell.num_dropped} of {len(cell.window.trace)})"
            for cell in worst
        )
        said.append(f"windows that lose more than {MANY_LEFT_OUT:.0%} of their requests: {named}")
    return said


@dataclass(frozen=True)
class Turn:
    """Which arm serves which cell, in which repeat."""

    cell: int
    repeat: int
    arm: str


def plan(num_cells: int, arms: Sequence[str], repeats: int, seed: int) -> list[Turn]:
    """Return all turns: repeat after repeat, cells and arms in random order within each."""
    rng = random.Random(seed)
    turns = []
    for repeat in range(repeats):
        cells = list(range(num_cells))
        rng.shuffle(cells)
        for cell in cells:
            order = list(arms)
            rng.shuffle(order)
            turns += [Turn(cell, repeat, arm) for arm in order]
    return turns


class Store:
    """Keeps every run as soon as it is over, so that nothing measured is lost.

    Parameters
    ----------
    folder : Path
    key : str
        Hash of all that decides the runs; runs kept under another are measured again.
    """

    def __init__(self, folder: Path, key: str) -> None:
        self.folder = folder / "runs"
        self._key = key
        self.folder.mkdir(parents=True, exist_ok=True)

    def load(self, name: str) -> Run | None:
        """Return a run that was kept and in which nothing failed."""
        try:
            kept = parse_json((self.folder / f"{name}.json").read_text(encoding="utf-8"))
            if kept.pop("key") != self._key:
                return None
            served = [Served(**_nan(one)) for one in kept.pop("served")]
            run = Run(served, notes=tuple(kept.pop("notes")), **_nan(kept))
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return None if any(one.error for one in run.served) else run

    def save(self, name: str, run: Run) -> None:
        """Keep a run; the file is whole or absent."""
        kept = {"key": self._key, **jsonable(asdict(run))}
        part = self.folder / f".{name}.{os.getpid()}.part"  # another may measure beside this one
        try:
            part.write_text(json.dumps(kept), encoding="utf-8")
            part.replace(self.folder / f"{name}.json")
        finally:
            part.unlink(missing_ok=True)


def measure(
    cells: Sequence[Cell],
    arms: Mapping[str, Arm],
    turns: Sequence[Turn],
    store: Store,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[tuple[Turn, Run]]:
    """Take every turn and keep what it gave; runs that were kept are not repeated.

    Stops early when no request of a run was answered: whatever is wrong, it will not get better.
    """
    for number, turn in enumerate(turns):
        cell = cells[turn.cell]
        name = f"{cell.name}-r{turn.repeat}-{turn.arm}"
        run = store.load(name)
        if run is None:
            # Each replay has prompts of its own, or a server that goes on would know them.
            seed = 1 + number
            run = arms[turn.arm].run(cell.workload, seed, store.folder / name)
            store.save(name, run)
        yield turn, run
        if progress is not None:
            progress(number + 1, len(turns))
        if not any(one.num_output_tokens for one in run.served):
            return


def simulate_arms(
    cells: Sequence[Cell],
    arms: Mapping[str, tuple[Policy, EngineConfig]],
    step_time: StepTime,
) -> dict[tuple[str, str], float]:
    """Return the mean TTFT that the simulator expects, by arm and load."""
    times: dict[tuple[str, str], list[NDArray[np.float64]]] = {}
    for arm, (policy, config) in arms.items():
        compiled = compile_policy(policy)
        for cell in cells:
            result = simulate_workload(cell.workload, compiled, config, step_time)
            rows = result.requests
            waited = rows.first_token_ts - rows.arrival_time
            times.setdefault((arm, cell.load.name), []).append(waited)
    return {key: float(np.concatenate(parts).mean()) for key, parts in times.items()}


def config_key(document: Mapping[str, Any]) -> str:
    """Return the hash of a configuration."""
    return hashlib.sha256(json.dumps(document, sort_keys=True, default=str).encode()).hexdigest()


def _nan(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: math.nan if value is None else value for name, value in values.items()}

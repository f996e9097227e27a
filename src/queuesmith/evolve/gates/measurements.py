"""Policies on all windows and loads of a run, part by part; and how one stands beside another.

Known policies run in this process; candidates in child processes, which see no other windows than
those that the candidate is to serve.

Held-out windows are served only once their opening is in the ledger.
"""

import json
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray

from queuesmith.backends import Backend
from queuesmith.engine import simulate_workload
from queuesmith.engine.compile import CompiledPolicy, compile_policy
from queuesmith.engine.presets.step_time import Preset
from queuesmith.engine.result import Result
from queuesmith.errors import CandidateError
from queuesmith.evaluation.goals import MARGIN
from queuesmith.evaluation.judge import REFERENCE, Change
from queuesmith.evaluation.samples import Samples, pool
from queuesmith.evolve.config import EvolveConfig
from queuesmith.evolve.gates.ledger import HeldOut, Opening
from queuesmith.evolve.gates.runs import ReadRuns, read_run
from queuesmith.evolve.sandbox.evaluator import cells_of
from queuesmith.evolve.sandbox.sandbox import Cell as SandboxCell
from queuesmith.evolve.sandbox.sandbox import Sandbox, SimulationJob
from queuesmith.evolve.scoring.cells import Configuration
from queuesmith.evolve.scoring.scale import Traffic
from queuesmith.evolve.scoring.standing import Beside, Difference, Reference, guard_rows, less, tell
from queuesmith.evolve.scoring.traffic import kind_of, part_traffic
from queuesmith.metrics import queued_time
from queuesmith.policies import Policy, get_policy
from queuesmith.windows import Window
from queuesmith.windows.frozen import WindowSet

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Measured:
    """What a policy did in every configuration of a part."""

    policy: Policy
    samples: Mapping[Configuration, Samples]
    #: queued, step: mean queued time of a request and mean length of a step, s.
    queued: Mapping[Configuration, float]
    step: Mapping[Configuration, float]
    beside: Beside  # how it stands beside FCFS there


class Bench:
    """The windows of a run, on its engine and on the second one; nothing is run twice.

    Parameters
    ----------
    window_set : WindowSet
        With its folder, as `queuesmith.evolve.scoring.traffic.freeze_windows` returns it.
    workers : int, optional
        Threads; all cores when left out. The numbers are the same for any choice.
    """

    def __init__(
        self,
        config: EvolveConfig,
        window_set: WindowSet,
        *,
        workers: int | None = None,
        progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.config, self.window_set = config, window_set
        self._workers = Backend.choose("threading", workers).num_workers
        self._progress = progress
        self._windows: dict[str, list[Window]] = {}
        self._parts: dict[tuple[str, str], Traffic] = {}
        self._measured: dict[tuple[str, str, str], Measured] = {}
        self._references: dict[tuple[str, str], Reference] = {}
        self._sandbox: Sandbox | None = None
        self._opened = ""

    @property
    def sources(self) -> dict[str, str]:
        """Whether each source is real or modelled traffic."""
        return {source.file: kind_of(source.file) for source in self.window_set.sources}

    def load(self, part: str) -> list[Window]:
        """Read the windows of a part, and run nothing on them."""
        if part not in self._windows:
            self._windows[part] = self.window_set.windows(part)
        return self._windows[part]

    def unlock(self, opening: Opening) -> None:
        """Let the held-out windows be run on, for which the opening is in a ledger."""
        self._opened = str(opening.entry["windows_sha256"])

    def num_windows(self, part: str) -> dict[str, int]:
        """Count the windows of each source in a part."""
        return {source.file: len(source.parts.get(part, ())) for source in self.window_set.sources}

    def part(self, part: str, engine: Preset | None = None) -> Traffic:
        """Prepare a part on an engine, the run's own when none is given."""
        if part == "held_out" and self._opened != HeldOut.of(self.window_set).sha256:
            raise RuntimeError("held-out windows are run only after their opening was written down")
        preset = engine or self.config.engine
        key = part, preset.name
        if key not in self._parts:
            self._parts[key] = part_traffic(
                self.config, self.window_set, part, self.load(part), preset
            )
        return self._parts[key]

    def measure(
        self, policies: Sequence[Policy], part: str, engine: Preset | None = None
    ) -> list[Measured]:
        """Run policies that are trusted to end, in this process; in the order given."""
        preset = engine or self.config.engine
        traffic = self.part(part, engine)
        cells = _cells(traffic)
        for policy in policies:
            key = part, preset.name, policy.sha256
            if key in self._measured:
                continue
            self._progress(f"{policy.name} on {part.replace('_', '-')} windows, {preset.name}")
            compiled = compile_policy(policy)
            runs = Parallel(n_jobs=self._workers, backend="threading")(
                delayed(_run)(traffic, compiled, index) for _, index in cells
            )
            self._measured[key] = self._pool(policy, part, engine, runs)
        # The same text may be measured under two names.
        found = [self._measured[part, preset.name, policy.sha256] for policy in policies]
        return [replace(one, policy=policy) for one, policy in zip(found, policies, strict=True)]

    def candidate(self, policy: Policy, part: str, engine: Preset | None = None) -> Measured:
        """Run a policy that may be anyone's, in a child process within the limits."""
        preset = engine or self.config.engine
        key = part, preset.name, policy.sha256
        if key not in self._measured:
            traffic = self.part(part, engine)
            shown = part.replace("_", "-")
            self._progress(f"{policy.name} on {shown} windows, {preset.name}")
            order = [index for _, index in _cells(traffic)]
            (outcome,) = self.fenced(cells_of(traffic, order)).run([policy.source])
            if outcome.status != "ok":
                raise CandidateError(
                    f"{outcome.status} on {shown} windows, {preset.name}: {outcome.reason}"
                )
            runs = [
                read_run(values, traffic.workloads[index], policy.name)
                for index, values in zip(order, outcome.values, strict=True)
            ]
            self._measured[key] = self._pool(policy, part, engine, runs)
        return replace(self._measured[key], policy=policy)

    def situations(self, policy: Policy) -> list[dict[str, Any]]:
        """Ask whom a candidate admits first in typical queues; nothing where it does not say."""
        asked = self.fenced(cells_of(self.part("tuning"), [0])).ask(policy.source, "situations")
        rows: list[dict[str, Any]] = json.loads(asked.told) if asked.status == "ok" else []
        return rows

    def fenced(self, cells: tuple[SandboxCell, ...]) -> Sandbox:
        """Return child processes that hold some cells, and run whole candidates on them."""
        read = ReadRuns(tuple(len(cell.workload.row) for cell in cells))
        job = SimulationJob(cells, given_read=read)
        if self._sandbox is None:
            sandbox = Sandbox(job, **asdict(self.config.sandbox))
            self._sandbox = sandbox.__enter__()
            weakref.finalize(self, sandbox.close)
        elif self._sandbox.job.cells != cells:
            self._sandbox.renew(job)
        return self._sandbox

    def _pool(
        self, policy: Policy, part: str, engine: Preset | None, runs: Sequence[Result]
    ) -> Measured:
        traffic = self.part(part, engine)
        grouped: dict[Configuration, list[tuple[int, Result]]] = {}
        for (configuration, index), run in zip(_cells(traffic), runs, strict=True):
            grouped.setdefault(configuration, []).append((index, run))
        samples, queued, step = {}, {}, {}
        for key, of in grouped.items():
            results = [run for _, run in of]
            samples[key] = pool(
                results,
                [traffic.alone[index] for index, _ in of],
                [traffic.cells[index].window for index, _ in of],
                self.config.slo,
            )
            queued[key] = float(np.mean([queued_time(run).mean() for run in results]))
            step[key] = float(np.mean([run.end_time / max(run.num_steps, 1) for run in results]))
        where = part, (engine or self.config.engine).name
        if where not in self._references:
            own = policy.sha256 == get_policy(REFERENCE).sha256
            base = samples if own else self.fcfs(part, engine).samples
            self._references[where] = Reference(base, self.config.goal, self.config.guards)
        beside = self._references[where].lay_beside(samples)
        return Measured(policy, samples, queued, step, beside)

    def fcfs(self, part: str, engine: Preset | None = None) -> Measured:
        """Measure what everybody is held against."""
        return self.measure([get_policy(REFERENCE)], part, engine)[0]


def _cells(traffic: Traffic) -> list[tuple[Configuration, int]]:
    """Return the configuration and the workload of each cell, window by window in each."""
    cells = [
        (Configuration(traffic.sources[cell.window], cell.load), cell.window, index)
        for index, cell in enumerate(traffic.cells)
    ]
    place = {key: number for number, key in enumerate(dict.fromkeys(key for key, _, _ in cells))}
    cells.sort(key=lambda one: (place[one[0]], one[1]))
    return [(key, index) for key, _, index in cells]


def _run(traffic: Traffic, compiled: CompiledPolicy, index: int) -> Result:
    return simulate_workload(traffic.workloads[index], compiled, traffic.config, traffic.step_time)


def difference(one: Measured, other: Measured) -> Difference:
    """Return how much more one policy gains than another on the same windows."""
    return Difference.of(less(one.beside.gain, other.beside.gain))


def standings(measured: Sequence[Measured]) -> list[dict[str, Any]]:
    """Return one row for each policy: those that break no guard first, each block by its gain."""
    rows = []
    for one in measured:
        gain = Difference.of(one.beside.gain)
        statistic = one.beside.goal.statistic
        changes = [each.changes[statistic.name] for each in one.beside.configurations.values()]
        rows.append(
            {
                "policy": one.policy.name,
                "policy_sha256": one.policy.sha256,
                "score": gain.value,
                "low": gain.low,
                "high": gain.high,
                "broken_guards": len(one.beside.broken),
                "reasons": one.beside.reasons,
                "worse": sum(statistic.worse(change.change) > MARGIN for change in changes),
                "num_configurations": len(changes),
            }
        )
    return sorted(rows, key=standing_order)


def standing_order(row: Mapping[str, Any]) -> tuple[bool, float, str]:
    """Sort rows of `standings`, as JSON holds them too."""
    score = row["score"]
    known = score is not None and not np.isnan(score)
    return row["broken_guards"] > 0, -score if known else np.inf, row["policy"]


def configuration_rows(one: Measured, fcfs: Measured) -> list[dict[str, Any]]:
    """Return one row for each configuration: goal, guards, TTFT with intervals, and who pays.

    Changes are relative to FCFS, of shares differences; `gain` is above 0 for the better.
    """
    p_values = one.beside.p_values()
    goal, guards = one.beside.goal, one.beside.guards
    rows = []
    for key, beside in one.beside.configurations.items():
        mine, base = one.samples[key], fcfs.samples[key]
        mean, p99 = beside.changes["ttft_mean"], beside.changes["ttft_p99"]
        aim = beside.changes[goal.statistic.name]
        rows.append(
            {
                "source": key.source,
                "load": key.load,
                "num_windows": len(mine.windows),
                "num_requests": len(mine.ttft),
                "idle": fcfs.queued[key] < fcfs.step[key],
                "goal": goal.name,
                "goal_change": aim.change,
                "goal_worse": goal.statistic.worse(aim.change),
                "ttft_mean": mean.value,
                "ttft_mean_fcfs": mean.reference,
                **_change("mean", mean),
                **_change("p99", p99),
                "guards": guard_rows(beside, guards),
                "broken": [tell(each) for each in beside.broken],
                "wins": beside.wins,
                "ties": beside.ties,
                "losses": beside.losses,
                "p_value": p_values[key],
                **_who_pays(mine.ttft, base.ttft, mine.prompt_len),
            }
        )
    return rows


def _change(name: str, change: Change) -> dict[str, float]:
    return {
        f"{name}_change": change.change,
        f"{name}_change_low": change.low,
        f"{name}_change_high": change.high,
    }


_QUARTERS = ("shortest", "second", "third", "longest")


def _who_pays(mine: Floats, base: Floats, prompt_len: NDArray[np.int64]) -> dict[str, Any]:
    """Compare the mean TTFT of each quarter of the requests by prompt length; name the worst off.

    `worse_share` is the share of requests that wait longer by more than 1 % of FCFS's mean.
    """
    order = np.argsort(prompt_len, kind="stable")
    worst, pays = MARGIN, ""
    for name, rows in zip(_QUARTERS, np.array_split(order, 4), strict=True):
        if not len(rows) or not base[rows].mean() > 0:
            continue
        change = float(mine[rows].mean() / base[rows].mean() - 1)
        if change > worst:
            shortest, longest = int(prompt_len[rows].min()), int(prompt_len[rows].max())
            worst, pays = change, f"{name} quarter of prompts ({shortest:,} to {longest:,} tokens)"
    with np.errstate(invalid="ignore"):
        worse = float(np.mean(mine - base > MARGIN * base.mean()))
    return {"pays": pays, "pays_change": worst if pays else 0.0, "worse_share": worse}

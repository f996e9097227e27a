"""What a candidate is worth on tuning windows, by a goal and guards.

The fitness is :func:`queuesmith.evaluation.score.search_score` of the goal's gain over FCFS, the
mean over configurations, and of the worst excess of any guard in any of them.

The score can only fall, and a guard only come nearer to breaking, when any request waits longer. So
with the least conceivable times in the place of cells that have not run yet, both are bounds: a
candidate whose bound is not good enough need not run any further.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from queuesmith.config import EngineConfig, Slo
from queuesmith.engine import Workload, simulate_workload
from queuesmith.engine.compile import compile_policy
from queuesmith.engine.presets.step_time import StepTime
from queuesmith.evaluation.evaluate import Load, pooled_rate, prepare_window
from queuesmith.evaluation.goals import DEFAULT_GOAL, GOALS, GUARDS, Goal, Guard
from queuesmith.evaluation.judge import REFERENCE
from queuesmith.evaluation.score import excesses, goal_gain, search_score
from queuesmith.evaluation.statistics import STATISTICS
from queuesmith.evolve.scoring.cells import Cell, CellResult, Configuration, Keep, pooled, tail_len
from queuesmith.evolve.scoring.least_ttft import ROUNDING, least_result
from queuesmith.policies import Policy, get_policy
from queuesmith.windows import Window
from queuesmith.windows.predictions import OutputLengthKnowledge

Floats = NDArray[np.float64]


class Limit(NamedTuple):
    """How good a candidate must be able to get: to be worth running on, if clean, and if not."""

    clean: float = -np.inf
    violating: float = -np.inf


@dataclass(frozen=True)
class Standing:
    """A candidate beside FCFS on some windows."""

    score: float  # on all of them together
    window_scores: tuple[float, ...] = ()  # the same of each window alone
    #: Which guard is broken and by how much, without asking whether chance may have done it; empty
    #: for a clean candidate.
    reason: str = ""

    @property
    def clean(self) -> bool:
        """Whether no guard is broken."""
        return not self.reason


@dataclass(frozen=True, eq=False)
class Scale:
    """What candidates are held against; small, since child processes have a copy."""

    cells: tuple[Cell, ...]
    sources: Mapping[int, str]  # source of each window
    goal: Goal
    guards: tuple[Guard, ...]
    slo: Slo | None
    #: reference, least: fCFS's, and what no policy can be below.
    reference: Mapping[Cell, CellResult]
    least: Mapping[Cell, CellResult]
    _references: dict[Any, Any] = field(default_factory=dict, repr=False)

    def cells_of(self, windows: Sequence[int]) -> list[int]:
        """Return the indices of the cells of some windows."""
        chosen = set(windows)
        return [index for index, cell in enumerate(self.cells) if cell.window in chosen]

    def stand(
        self,
        results: Mapping[Cell, CellResult],
        windows: Sequence[int],
        *,
        each_window: bool = True,
    ) -> Standing:
        """Score a candidate on some windows, for all of which there must be results."""
        groups = self._groups(windows)
        mine, base = self._beside(results, tuple(groups.values()))
        gain, excess = self._compare(mine, base)
        worst = max(excess, key=lambda name: float(excess[name].max()), default=None)
        most = 0.0 if worst is None else float(excess[worst].max())
        score = float(search_score(np.asarray(gain.mean()), np.asarray(most)))
        alone: tuple[float, ...] = ()
        if each_window:
            alone = self._window_scores(results, windows)
        reason = ""
        if worst is not None and most >= 1.0:
            row = int(excess[worst].argmax())
            reason = _reason(worst, mine[worst][row], base[worst][row], list(groups)[row])
        return Standing(score, alone, reason)

    def bound(self, results: Mapping[Cell, CellResult], windows: Sequence[int]) -> Standing:
        """Return the best that a candidate can still become, given some of its cells.

        A standing that is not clean is certain to stay so.
        """
        return self.stand({**self.least, **results}, windows, each_window=False)

    def cell_scores(self, results: Mapping[Cell, CellResult]) -> dict[Cell, float]:
        """Score each cell alone."""
        gain, excess = self._compare(*self._beside(results, tuple((cell,) for cell in results)))
        scores = search_score(gain, _largest(excess, len(gain)))
        return dict(zip(results, scores.tolist(), strict=True))

    def _window_scores(
        self, results: Mapping[Cell, CellResult], windows: Sequence[int]
    ) -> tuple[float, ...]:
        asked = [self.cells[index] for index in self.cells_of(windows)]
        gain, excess = self._compare(*self._beside(results, tuple((cell,) for cell in asked)))
        most = _largest(excess, len(gain))
        found = []
        for window in windows:
            rows = [row for row, cell in enumerate(asked) if cell.window == window]
            found.append(float(search_score(gain[rows].mean(), most[rows].max())))
        return tuple(found)

    def _beside(
        self, results: Mapping[Cell, CellResult], groups: tuple[tuple[Cell, ...], ...]
    ) -> tuple[dict[str, Floats], dict[str, Floats]]:
        """Return the statistics of groups of cells that are pooled, and FCFS's."""
        if groups not in self._references:
            self._references[groups] = self._pooled(self.reference, groups)
        return self._pooled(results, groups), self._references[groups]

    def _compare(
        self, mine: Mapping[str, Floats], base: Mapping[str, Floats]
    ) -> tuple[Floats, dict[str, Floats]]:
        """Return gain and excess of every guard."""
        num_requests = base["num_requests"].astype(np.int64)
        return goal_gain(self.goal, mine, base), excesses(self.guards, mine, base, num_requests)

    def _pooled(
        self, results: Mapping[Cell, CellResult], groups: tuple[tuple[Cell, ...], ...]
    ) -> dict[str, Floats]:
        return pooled(
            [[results[cell] for cell in group] for group in groups], has_slo=self.slo is not None
        )

    def _groups(self, windows: Sequence[int]) -> dict[Configuration, tuple[Cell, ...]]:
        """Return the cells of each configuration."""
        key = frozenset(windows)
        if key not in self._references:
            groups: dict[Configuration, list[Cell]] = {}
            for cell in self.cells:
                if cell.window in key:
                    configuration = Configuration(self.sources[cell.window], cell.load)
                    groups.setdefault(configuration, []).append(cell)
            self._references[key] = {name: tuple(group) for name, group in groups.items()}
        found: dict[Configuration, tuple[Cell, ...]] = self._references[key]
        return found


def _reason(guard: str, value: float, base: float, configuration: Configuration) -> str:
    statistic = STATISTICS[guard]
    unit = "" if statistic.unit == "share" else f" {statistic.unit}"
    return (
        f"{statistic.label} {value:.3g}{unit} beside {base:.3g}{unit} of {REFERENCE} "
        f"({configuration.source} at {configuration.load})"
    )


def _largest(excess: Mapping[str, Floats], num: int) -> Floats:
    return np.asarray(np.max([np.zeros(num), *excess.values()], axis=0))


@dataclass(frozen=True, eq=False)
class StopRule:
    """Tells a child process when a candidate need not run any further."""

    scale: Scale

    def __call__(self, cells: Sequence[int], kept: Sequence[Floats], limit: Limit) -> bool:
        """Look at what is `kept` of those that have run, the first of the `cells` asked for."""
        if limit == Limit() or len(kept) == len(cells):
            return False
        asked = [self.scale.cells[index] for index in cells]
        last, following = asked[len(kept) - 1], asked[len(kept)]
        if last.window == following.window and last.window != asked[-1].window:
            return False  # a bound costs a fraction of a cell: look at the end of a window
        results = {cell: CellResult(values) for cell, values in zip(asked, kept, strict=False)}
        return hopeless(self.scale.bound(results, [cell.window for cell in asked]), limit)


def hopeless(bound: Standing, limit: Limit) -> bool:
    """Tell whether the best that a candidate can still become is not good enough."""
    return bound.score + ROUNDING < (limit.clean if bound.clean else limit.violating)


@dataclass(frozen=True, eq=False)
class Traffic:
    """Windows at their loads, as an engine runs them: one workload for each cell."""

    cells: tuple[Cell, ...]
    sources: Mapping[int, str]  # source of each window
    workloads: tuple[Workload, ...]
    alone: tuple[Floats, ...]  # E2EL of each request alone on an idle engine, s
    config: EngineConfig
    step_time: StepTime
    slo: Slo | None = None

    def measure(self, policy: Policy) -> dict[Cell, CellResult]:
        """Run a policy that is trusted, in this process."""
        keep, compiled = self.keep, compile_policy(policy)
        return {
            cell: CellResult(
                keep(number, simulate_workload(workload, compiled, self.config, self.step_time))
            )
            for number, (cell, workload) in enumerate(zip(self.cells, self.workloads, strict=True))
        }

    @property
    def keep(self) -> Keep:
        """What is kept of a cell, enough for the largest configuration.

        That is all windows of a source, had each the length of the longest.
        """
        windows = {
            cell.window: len(work.output_len)
            for cell, work in zip(self.cells, self.workloads, strict=True)
        }
        by_source: dict[str, list[int]] = {}
        for window, length in windows.items():
            by_source.setdefault(self.sources[window], []).append(length)
        length = tail_len(max(len(each) * max(each) for each in by_source.values()))
        return Keep(length, self.alone, self.slo)


def prepare_traffic(
    windows: Sequence[Window],
    sources: Sequence[str],
    loads: Sequence[Load],
    *,
    config: EngineConfig,
    step_time: StepTime,
    output_length: OutputLengthKnowledge,
    slo: Slo | None = None,
    seed: int = 0,
) -> Traffic:
    """Set every window to every load, exactly as `queuesmith.evaluation.evaluate.evaluate` does.

    Parameters
    ----------
    loads : sequence of Load
        The heaviest runs first, since that is where bad candidates show themselves.
    """
    cells, workloads, alone = [], [], []
    for window in windows:
        prepared = prepare_window(window, config, [], step_time, output_length, seed)
        for load in sorted(loads, key=lambda load: -(load.rho or 0.0)):
            cells.append(Cell(window.index, load.name))
            workloads.append(prepared.at(load, config, pooled_rate([prepared])))
            alone.append(prepared.alone)
    names = {window.index: source for window, source in zip(windows, sources, strict=True)}
    return Traffic(tuple(cells), names, tuple(workloads), tuple(alone), config, step_time, slo)


def make_scale(
    traffic: Traffic, goal: Goal = GOALS[DEFAULT_GOAL], guards: Sequence[Guard] = GUARDS
) -> Scale:
    """Measure FCFS, and work out what no policy can be below."""
    keep = traffic.keep
    least = {
        cell: least_result(workload, traffic.alone[number], traffic.config, traffic.step_time, keep)
        for number, (cell, workload) in enumerate(
            zip(traffic.cells, traffic.workloads, strict=True)
        )
    }
    fcfs = traffic.measure(get_policy(REFERENCE))
    return Scale(traffic.cells, traffic.sources, goal, tuple(guards), traffic.slo, fcfs, least)

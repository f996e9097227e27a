"""What a candidate is worth on tuning windows, from as little of each run as the score needs.

A *cell* is one tuning window at one load. Of a cell's times to first token the score needs the mean
and the largest few, so that is all that is kept: pooled over windows they give the statistics of
:mod:`queuesmith.score` exactly.

The score can only fall, and a tail can only get worse, when any request waits longer. So with the
least conceivable waits in the place of cells that have not run yet, both are bounds: a candidate
whose bound is not good enough need not run any further.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from queuesmith.config import EngineConfig
from queuesmith.engine import Workload, simulate_workload
from queuesmith.engine.compile import compile_policy
from queuesmith.engine.step_time import StepTime
from queuesmith.evaluation.evaluate import Load, pooled_rate, prepare_window
from queuesmith.evolve.bounds import ROUNDING, least_mean_ttft, least_ttft
from queuesmith.metrics import ttft
from queuesmith.output_length import OutputLengthKnowledge
from queuesmith.policies import Policy, get_policy
from queuesmith.score import ratio_to, term_columns
from queuesmith.stats import between
from queuesmith.windows import Window

#: The policy that scores 0.
REFERENCE = "fcfs"

#: Share of what a tail may be longer than FCFS's that a search may use up.
TAIL_ROOM = 0.8

Floats = NDArray[np.float64]


class Cell(NamedTuple):
    """A tuning window at a load, by the window's index and the load's name."""

    window: int
    load: str


@dataclass(frozen=True, eq=False)
class CellResult:
    """How long the requests of a cell waited for their first token.

    Attributes
    ----------
    num_requests : int
    mean : float
        Seconds, over all of them.
    tail : (n,) float64
        The largest of them, ascending.
    """

    num_requests: int
    mean: float
    tail: Floats

    @classmethod
    def of(cls, times: Floats, tail_len: int) -> "CellResult":
        """Keep the mean and the `tail_len` largest of (num_requests,) TTFTs; NaN is +inf."""
        seconds = np.where(np.isnan(times), np.inf, times)
        rest = max(len(seconds) - tail_len, 0)
        largest = np.sort(np.partition(seconds, rest)[rest:] if rest else seconds)
        return cls(len(seconds), float(seconds.mean()), largest)

    @property
    def p99(self) -> float:
        """Of this cell alone."""
        return _pool([self])[1]


class Limit(NamedTuple):
    """How good a candidate must be able to get: to be worth running on, if clean, and if not."""

    clean: float = -np.inf
    violating: float = -np.inf


@dataclass(frozen=True)
class Standing:
    """A candidate beside FCFS on some windows.

    Attributes
    ----------
    score : float
        Of :mod:`queuesmith.score`, on all of them together.
    window_scores : tuple of float
        The same of each window alone.
    reason : str
        Which tail is violated and by how much, without asking whether chance may have done it;
        empty for a clean candidate.
    """

    score: float
    window_scores: tuple[float, ...] = ()
    reason: str = ""

    @property
    def clean(self) -> bool:
        """Whether no tail is violated."""
        return not self.reason


@dataclass(frozen=True, eq=False)
class Scale:
    """What candidates are held against; small, since child processes have a copy.

    Attributes
    ----------
    cells : tuple of Cell
    sources : mapping of int to str
        Source of each window.
    tail_len : int
        Of a cell's result.
    reference, least : mapping of Cell to CellResult
        FCFS's, and what no policy can be below.
    """

    cells: tuple[Cell, ...]
    sources: Mapping[int, str]
    tail_len: int
    reference: Mapping[Cell, CellResult]
    least: Mapping[Cell, CellResult]
    _references: dict[frozenset[int], Any] = field(default_factory=dict, repr=False)

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
        groups, base = self._reference(frozenset(windows))
        pooled = np.array([_pool([results[cell] for cell in group]) for group in groups.values()])
        ratio = ratio_to(pooled, base)
        value = term_columns(ratio[:, 0], ratio[:, 1])[-1]
        alone: tuple[float, ...] = ()
        if each_window:
            asked = [cell for cell in self.cells if cell.window in set(windows)]
            scores = self.cell_scores({cell: results[cell] for cell in asked})
            alone = tuple(
                sum(scores[cell] for cell in asked if cell.window == window) for window in windows
            )
        return Standing(float(value.sum()), alone, _violation(list(groups), pooled, base, ratio))

    def bound(self, results: Mapping[Cell, CellResult], windows: Sequence[int]) -> Standing:
        """Return the best that a candidate can still become, given some of its cells.

        A standing that is not clean is certain to stay so.
        """
        return self.stand({**self.least, **results}, windows, each_window=False)

    def cell_scores(self, results: Mapping[Cell, CellResult]) -> dict[Cell, float]:
        """Score each cell alone."""
        mine = np.array([_pool([one]) for one in results.values()])
        base = np.array([_pool([self.reference[cell]]) for cell in results])
        ratio = ratio_to(mine, base)
        return dict(zip(results, term_columns(ratio[:, 0], ratio[:, 1])[-1].tolist(), strict=True))

    def _reference(
        self, windows: frozenset[int]
    ) -> tuple[dict[tuple[str, str], list[Cell]], Floats]:
        """Cells of each configuration, and FCFS's statistics of it."""
        if windows not in self._references:
            groups: dict[tuple[str, str], list[Cell]] = {}
            for cell in self.cells:
                if cell.window in windows:
                    groups.setdefault((self.sources[cell.window], cell.load), []).append(cell)
            base = [_pool([self.reference[cell] for cell in group]) for group in groups.values()]
            self._references[windows] = groups, np.array(base)
        found: tuple[dict[tuple[str, str], list[Cell]], Floats] = self._references[windows]
        return found


@dataclass(frozen=True, eq=False)
class StopRule:
    """Tells a child process when a candidate need not run any further."""

    scale: Scale

    def __call__(self, cells: Sequence[int], times: Sequence[Floats], limit: Limit) -> bool:
        """Look at what has run: `times` of the first of the `cells` that were asked for."""
        if limit == Limit() or len(times) == len(cells):
            return False
        asked = [self.scale.cells[index] for index in cells]
        results = {
            cell: CellResult.of(seconds, self.scale.tail_len)
            for cell, seconds in zip(asked, times, strict=False)
        }
        return hopeless(self.scale.bound(results, [cell.window for cell in asked]), limit)


def hopeless(bound: Standing, limit: Limit) -> bool:
    """Tell whether the best that a candidate can still become is not good enough."""
    return bound.score + ROUNDING < (limit.clean if bound.clean else limit.violating)


def _pool(results: Sequence[CellResult]) -> tuple[float, float, float, float]:
    """Mean, p99, p99.9 and the largest TTFT over all requests of some cells."""
    num = sum(result.num_requests for result in results)
    mean = sum(result.mean * result.num_requests for result in results) / num
    if len(results) == 1:
        tail = results[0].tail
    else:
        tail = np.sort(np.concatenate([result.tail for result in results]))
    missing = num - len(tail)  # requests below the tail

    def quantile(level: float) -> float:
        position = (num - 1) * level
        row = int(position)
        low = float(tail[row - missing])
        return between(low, float(tail[min(row + 1, num - 1) - missing]), position - row)

    return mean, quantile(0.99), quantile(0.999), float(tail[-1])


def tail_len(num_requests: int) -> int:
    """Largest TTFTs of a cell that the p99 of `num_requests` pooled ones can depend on."""
    return num_requests - int((num_requests - 1) * 0.99)


def _violation(keys: Sequence[tuple[str, str]], pooled: Floats, base: Floats, ratio: Floats) -> str:
    """Say which limit of `queuesmith.score.tail_violation` is passed first, chance aside.

    Only part of what those limits allow may be used up here: a search ends at the edge of whatever
    it is allowed, and on other windows that edge lies elsewhere.
    """
    p99, largest, seconds = 1 + 0.05 * TAIL_ROOM, 1 + 0.25 * TAIL_ROOM, 1.0 * TAIL_ROOM
    over = np.column_stack(
        [ratio[:, 1] > p99, (ratio[:, 2:] > largest) & (pooled[:, 2:] > base[:, 2:] + seconds)]
    )
    if not over.any():
        return ""
    row, column = (int(place) for place in np.argwhere(over)[0])
    source, load = keys[row]
    name = ("p99", "p99.9", "largest")[column]
    value, reference = pooled[row, column + 1], base[row, column + 1]
    return f"{name} TTFT {value:.3g} s is above {reference:.3g} s of fcfs ({source} at {load})"


@dataclass(frozen=True, eq=False)
class Traffic:
    """Tuning windows at their loads, as an engine runs them: one workload for each cell."""

    cells: tuple[Cell, ...]
    sources: Mapping[int, str]
    workloads: tuple[Workload, ...]
    config: EngineConfig
    step_time: StepTime

    def measure(self, policy: Policy) -> dict[Cell, CellResult]:
        """Run a policy that is trusted, in this process."""
        length = self.tail_len
        compiled = compile_policy(policy)
        return {
            cell: CellResult.of(
                ttft(simulate_workload(workload, compiled, self.config, self.step_time)), length
            )
            for cell, workload in zip(self.cells, self.workloads, strict=True)
        }

    @property
    def tail_len(self) -> int:
        """For the largest configuration, had all its windows the length of the longest."""
        windows = {
            cell.window: len(work.output_len)
            for cell, work in zip(self.cells, self.workloads, strict=True)
        }
        by_source: dict[str, list[int]] = {}
        for window, length in windows.items():
            by_source.setdefault(self.sources[window], []).append(length)
        return tail_len(max(len(each) * max(each) for each in by_source.values()))


def prepare_traffic(
    windows: Sequence[Window],
    sources: Sequence[str],
    loads: Sequence[Load],
    *,
    config: EngineConfig,
    step_time: StepTime,
    output_length: OutputLengthKnowledge,
    seed: int = 0,
) -> Traffic:
    """Set every window to every load, exactly as `queuesmith.evaluation.evaluate.evaluate` does.

    Parameters
    ----------
    windows : sequence of Window
        With different indices.
    sources : sequence of str
        Of each window.
    loads : sequence of Load
        The heaviest runs first, since that is where bad candidates show themselves.
    config, step_time, output_length
    seed : int
        Of the noise on predictions.

    Raises
    ------
    TraceError
        If a window cannot run on the engine.
    """
    cells, workloads = [], []
    for window in windows:
        prepared = prepare_window(window, config, [], step_time, output_length, seed)
        for load in sorted(loads, key=lambda load: -(load.rho or 0.0)):
            cells.append(Cell(window.index, load.name))
            workloads.append(prepared.at(load, config, pooled_rate([prepared])))
    names = {window.index: source for window, source in zip(windows, sources, strict=True)}
    return Traffic(tuple(cells), names, tuple(workloads), config, step_time)


def make_scale(traffic: Traffic) -> Scale:
    """Measure FCFS, and work out what no policy can be below."""
    least = {
        cell: _least(workload, traffic)
        for cell, workload in zip(traffic.cells, traffic.workloads, strict=True)
    }
    fcfs = traffic.measure(get_policy(REFERENCE))
    return Scale(traffic.cells, traffic.sources, traffic.tail_len, fcfs, least)


def _least(workload: Workload, traffic: Traffic) -> CellResult:
    """Return a result that is better in every respect than any policy's can be."""
    alone = CellResult.of(least_ttft(workload, traffic.config, traffic.step_time), traffic.tail_len)
    mean = least_mean_ttft(workload, traffic.config, traffic.step_time)
    return replace(alone, mean=max(mean, alone.mean))

"""What is known of every condition by itself: means, order, best policies, and how sure each is.

A *condition* is one (engine, load, source). Everything that compares conditions starts from here.
The draws of windows are the same for all policies, metrics, loads and engines of a source, and
independent between sources.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from queuesmith.stats.draws import Floats, block_weights, intervals, mean_draws
from queuesmith.stats.packed import PackedSigns, pack_signs
from queuesmith.stats.ranks import pair_signs, tied, top_set
from queuesmith.study.grid import Grid
from queuesmith.study.rules import Options

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Condition:
    """Numbers of an engine, a load and a source on the axes of a grid."""

    engine: int
    load: int
    source: int


@dataclass(frozen=True, eq=False)
class Conditions:
    """One row per condition that was run.

    Attributes
    ----------
    weights : list of (draws, windows) int64
        Bootstrap draws of each source.
    values : (conditions, metrics, policies, windows) float64
        Oriented: small is good. NaN past the last window.
    means : (conditions, metrics, policies) float64
        Oriented means over windows; NaN where any window is undefined.
    signs : (conditions, metrics, pairs) float64
        Of the means; see `queuesmith.stats.ranks.pair_signs`.
    best : (conditions, metrics, policies) bool
    packed : list of list of PackedSigns
        Signs in every draw, by condition and metric.
    ratio, ratio_low, ratio_high : (conditions, metrics, policies) float64
        Mean over the reference's mean, and its interval; NaN without a reference or if that is 0.
    """

    grid: Grid
    options: Options
    where: list[Condition]
    weights: list[NDArray[np.int64]]
    values: Floats
    means: Floats
    signs: Floats
    best: Bools
    packed: list[list[PackedSigns]]
    ratio: Floats
    ratio_low: Floats
    ratio_high: Floats

    def labels(self, row: int) -> dict[str, str]:
        """Names of a condition."""
        place = self.where[row]
        return {
            "engine": self.grid.engines[place.engine],
            "load": self.grid.loads[place.load],
            "source": self.grid.sources[place.source],
        }

    def num_windows(self, *rows: int) -> int:
        """Count the windows of a condition; of several, the fewest."""
        return min(self.grid.num_windows(self.where[row].source) for row in rows)

    def pairs(self, axis: str) -> Iterator[tuple[int, int]]:
        """Rows that differ in nothing but `axis`: "engine", "load" or "source"."""
        rows = {(one.engine, one.load, one.source): row for row, one in enumerate(self.where)}
        place = ("engine", "load", "source").index(axis)
        size = self.grid.present.shape[place]
        for key, row in rows.items():
            for other in range(key[place] + 1, size):
                near = list(key)
                near[place] = other
                found = rows.get((near[0], near[1], near[2]))
                if found is not None:
                    yield row, found

    def of_engines(self, engines: Collection[str]) -> "Conditions":
        """Return the rows of some engines alone."""
        rows = [row for row in range(len(self.where)) if self.labels(row)["engine"] in engines]
        arrays = ("values", "means", "signs", "best", "ratio", "ratio_low", "ratio_high")
        return replace(
            self,
            where=[self.where[row] for row in rows],
            packed=[self.packed[row] for row in rows],
            **{name: getattr(self, name)[rows] for name in arrays},
        )

    def groups(self) -> dict[tuple[int, int], list[int]]:
        """Rows of each (engine, load): one per source."""
        groups: dict[tuple[int, int], list[int]] = {}
        for row, one in enumerate(self.where):
            groups.setdefault((one.engine, one.load), []).append(row)
        return groups


def best_sets(means: Floats, size: int, names: Sequence[str], options: Options) -> Bools:
    """Return the best `size` policies of each ranking, ties by the rule of `options`."""
    if not options.names_break_ties:
        return top_set(means, size, options.tie)
    by_name = np.argsort(names, kind="stable")
    ordered = means[..., by_name]
    ahead = np.zeros(means.shape)  # how many are better, or tied and earlier by name
    for place, policy in enumerate(by_name):
        value = ordered[..., [place]]
        same = tied(ordered, value, options.tie)
        earlier = same & (np.arange(len(by_name)) < place)
        ahead[..., policy] = (((ordered < value) & ~same) | earlier).sum(axis=-1)
    return np.asarray((ahead < size) & ~np.isnan(means))


def make_rng(options: Options, *what: str) -> np.random.Generator:
    """Return a generator of its own for each purpose, whatever else a study holds."""
    return np.random.default_rng([options.seed, *(crc32(word.encode()) for word in what)])


def block_len(grid: Grid, source: int) -> int:
    """Windows per block: the cube root of their number where they adjoin, else 1."""
    return max(1, round(grid.num_windows(source) ** (1 / 3))) if grid.adjoins[source] else 1


def measure_conditions(grid: Grid, options: Options, *, only_order: bool = False) -> Conditions:
    """Measure every condition of a grid; with `only_order`, ratios are left NaN."""
    where = [Condition(*(int(place) for place in found)) for found in np.argwhere(grid.present)]
    values = grid.oriented()[grid.present]
    weights = [
        block_weights(
            grid.num_windows(source),
            block_len(grid, source),
            options.draws,
            make_rng(options, "windows", name),
        )
        for source, name in enumerate(grid.sources)
    ]
    windows = [grid.num_windows(one.source) for one in where]
    means = np.stack([values[row, ..., :num].mean(axis=-1) for row, num in enumerate(windows)])
    reference = grid.policies.index(options.reference) if options.reference in grid.policies else -1
    packed = []
    ratio, ratio_low, ratio_high = (np.full(means.shape, np.nan) for _ in range(3))
    for row, one in enumerate(where):
        drawn = mean_draws(values[row, ..., : windows[row]], weights[one.source])
        packed.append([pack_signs(of_metric, options.tie) for of_metric in drawn])
        if reference >= 0 and not only_order:
            ratio[row], ratio_low[row], ratio_high[row] = _ratios(
                means[row], drawn, reference, options.level
            )
    return Conditions(
        grid,
        options,
        where,
        weights,
        values,
        means,
        pair_signs(means, options.tie),
        best_sets(means, 1, grid.policies, options),
        packed,
        ratio,
        ratio_low,
        ratio_high,
    )


def _ratios(
    means: Floats, drawn: Floats, reference: int, level: float
) -> tuple[Floats, Floats, Floats]:
    """Means over the reference's, (metrics, policies), with intervals; NaN where that is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = means / means[:, [reference]]
        draws = drawn / drawn[:, [reference]]
    draws[~np.isfinite(draws)] = np.nan
    low, high = intervals(draws, level)
    return np.where(np.isfinite(ratio), ratio, np.nan), low, high

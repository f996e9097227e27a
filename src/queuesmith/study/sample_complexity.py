"""How many windows are enough to find the order of policies, and the best one.

Subsets of a source's windows are ranked and set against all of them. This says how well few windows
stand for *these* windows: near the full number every subset is nearly the whole, so only what is
reached by half of the windows or fewer speaks of windows yet unseen.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from queuesmith.stats.draws import Floats, mean_draws, subset_weights
from queuesmith.stats.packed import PackedSigns, pack_signs, same_order, tau_b_draws
from queuesmith.study.conditions import Conditions, best_sets, make_rng
from queuesmith.study.pooling import pool
from queuesmith.study.rules import FEW, Options

#: Numbers of windows that are tried, and the number of all.
SIZES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50, 60, 80, 100)

Row = dict[str, Any]


def sample_complexity(conditions: Conditions) -> list[Row]:
    """Share of subsets that recover the order, the winner and the best three of all windows.

    Lists over `sizes`: `order`, in which every pair of policies that all windows tell apart comes
    out the same way round; `top_1` and `top_3`, in which the best policy (three) of the subset are
    among the best of all windows, ties included. `windows_for_order` and `windows_for_winner` are
    the first sizes from which on the share stays at `Options.recovered` or above; None when that
    takes all. With `Options.plain_pooling` there are also rows whose `load` is None, by the mean
    over loads.
    """
    grid, options = conditions.grid, conditions.options
    rows = []
    for source, name in enumerate(grid.sources):
        total = grid.num_windows(source)
        ladder = options.subset_sizes or SIZES
        sizes = [*(size for size in ladder if size < total), total]
        weights = [
            subset_weights(
                total, size, options.subset_draws, make_rng(options, "subset", name, str(size))
            )
            for size in sizes
        ]
        for labels, values in _ranked(conditions, source):
            shares = np.stack([_recovered(conditions, values, one) for one in weights], axis=2)
            for m, metric in enumerate(grid.metrics):
                order, first, three = shares[:, m]
                rows.append(
                    {
                        **labels,
                        "metric": metric,
                        "sizes": sizes,
                        "order": [float(share) for share in order],
                        "top_1": [float(share) for share in first],
                        "top_3": [float(share) for share in three],
                        "windows_for_order": _enough(sizes, order, options.recovered),
                        "windows_for_winner": _enough(sizes, first, options.recovered),
                        "num_windows": total,
                        "hint": total < FEW,
                    }
                )
    return rows


def _ranked(conditions: Conditions, source: int) -> list[tuple[Row, Floats]]:
    """Labels and values (metrics, policies, windows) of each condition of a source."""
    total = conditions.grid.num_windows(source)
    rows = [row for row, one in enumerate(conditions.where) if one.source == source]
    found: list[tuple[Row, Floats]] = [
        (dict(conditions.labels(row)), conditions.values[row, ..., :total]) for row in rows
    ]
    if conditions.options.plain_pooling:
        for engine in dict.fromkeys(labels["engine"] for labels, _ in found):
            mine = [values for labels, values in found if labels["engine"] == engine]
            labels = {"engine": engine, "load": None, "source": conditions.grid.sources[source]}
            found.append((labels, np.mean(mine, axis=0)))
    return found


def _recovered(conditions: Conditions, values: Floats, weights: NDArray[np.int64]) -> Floats:
    """Shares for order, best and best three: (3, metrics). NaN where nothing is defined."""
    grid, options = conditions.grid, conditions.options
    num_metrics, num_policies, _ = values.shape
    means = values.mean(axis=-1)
    drawn = mean_draws(values, weights)
    exact = replace(options, tie=min(options.tie, 1e-9))
    shares = np.full((3, num_metrics), np.nan)
    for m in range(num_metrics):
        order = pack_signs(means[m][:, None], options.tie)
        shares[0, m] = same_order(order, pack_signs(drawn[m], 0.0)).mean()
    undefined = np.isnan(means)
    for place, size in ((1, 1), (2, 3)):
        full = best_sets(means, size, grid.policies, options) | undefined
        if options.names_break_ties:
            chosen = best_sets(drawn.swapaxes(1, 2), size, grid.policies, exact)
            shares[place] = (~(chosen & ~full[:, None]).any(axis=2)).mean(axis=1)
        else:
            last = min(size, num_policies)
            first = np.argpartition(drawn, last - 1, axis=1)[:, :last]  # NaN last
            hits = np.take_along_axis(full[:, :, None], first, axis=1)
            shares[place] = hits.all(axis=1).mean(axis=1)
    shares[:, undefined.all(axis=1)] = np.nan
    return shares


def _enough(sizes: list[int], shares: Floats, wanted: float) -> int | None:
    """Return the first size from which on all shares are high enough, unless it is the last."""
    below = np.flatnonzero(~(shares >= wanted))
    place = int(below[-1]) + 1 if len(below) else 0
    return sizes[place] if place < len(sizes) - 1 else None


def spread(conditions: Conditions) -> list[Row]:
    """Windows from one source against as many from all: which ranks more like the whole study.

    `concentrated` and `spread` are the mean tau-b, over random subsets, with the pooled ranking of
    all windows (`queuesmith.study.pooling`); `budget` windows come from one random source or in
    equal parts from each. One row per (engine, load, metric), where there are several sources;
    with `Options.plain_pooling` also over the mean of loads, whose `load` is None.
    """
    grid, options = conditions.grid, conditions.options
    groups: dict[tuple[str, str | None], list[tuple[str, Floats]]] = {}
    for source, name in enumerate(grid.sources):
        for labels, values in _ranked(conditions, source):
            groups.setdefault((labels["engine"], labels["load"]), []).append((name, values))
    rows = []
    for (engine, load), mine in groups.items():
        smallest = min(values.shape[-1] for _, values in mine)
        each = smallest // len(mine)
        if len(mine) < 2 or not each:
            continue
        rng = make_rng(options, "spread")
        chosen = rng.integers(0, len(mine), options.subset_draws)
        few, many = (
            [_subset_means(options, name, values, size) for name, values in mine]
            for size in (each, smallest)
        )
        for m, metric in enumerate(grid.metrics):
            means = np.stack([values[m].mean(axis=-1) for _, values in mine])
            whole = pack_signs(pool(conditions, means, m)[:, None], options.tie)
            thin = pool(conditions, np.stack([one[m].T for one in few]), m)
            thick = np.stack([pool(conditions, one[m].T[None], m) for one in many])
            drawn = thick[chosen, np.arange(len(chosen))]  # (draws, policies)
            rows.append(
                {
                    "engine": engine,
                    "load": load,
                    "metric": metric,
                    "concentrated": _mean_tau(whole, pack_signs(drawn.T, options.tie)),
                    "spread": _mean_tau(whole, pack_signs(thin.T, options.tie)),
                    "budget": smallest,
                    "budget_spread": each * len(mine),
                    "num_sources": len(mine),
                }
            )
    return rows


def _subset_means(options: Options, source: str, values: Floats, size: int) -> Floats:
    """(metrics, policies, draws), the same subsets for all loads and engines of a source."""
    rng = make_rng(options, "spread", source, str(size))
    return mean_draws(values, subset_weights(values.shape[-1], size, options.subset_draws, rng))


def _mean_tau(whole: PackedSigns, samples: PackedSigns) -> float:
    taus = tau_b_draws(whole, samples)
    known = ~np.isnan(taus)
    return float(taus[known].mean()) if known.any() else float("nan")

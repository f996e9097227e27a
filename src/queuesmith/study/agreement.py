"""How far the order of policies carries over from one condition to another.

Two conditions differ in one thing: the source, the load, the engine (whose step-time model is the
physics), or the metric by which the same runs are ranked.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from queuesmith.stats.draws import Floats, intervals
from queuesmith.stats.packed import tau_b_draws
from queuesmith.stats.ranks import kendall_w, overlap, tau_b_of_signs
from queuesmith.study.conditions import Conditions, best_sets
from queuesmith.study.grid import Grid
from queuesmith.study.rules import FEW

#: What may differ between two conditions, with the runs of a policy staying one policy's.
AXES = ("source", "load", "engine")

#: Comparisons whose draws are held at once.
_AT_ONCE = 512

Row = dict[str, Any]


def agreement(conditions: Conditions) -> list[Row]:
    """One row per pair of conditions that differ in the source, the load or the engine, and metric.

    `a` and `b` name the two; the key of what differs is None, those of what they share are given.
    """
    comparisons = []
    for axis in AXES:
        for first, second in conditions.pairs(axis):
            one, other = conditions.labels(first), conditions.labels(second)
            labels = {"axis": axis, "a": one[axis], "b": other[axis], **one, axis: None}
            for m, metric in enumerate(conditions.grid.metrics):
                comparisons.append((labels | {"metric": metric}, (first, m), (second, m)))
    return compare_all(conditions, comparisons)


def metric_agreement(conditions: Conditions, pairs: Iterable[tuple[str, str]]) -> list[Row]:
    """One row per condition and pair of metrics, which rank the same runs."""
    number = {metric: m for m, metric in enumerate(conditions.grid.metrics)}
    comparisons = []
    for one, other in pairs:
        labels = {"axis": "metric", "a": one, "b": other}
        for row in range(len(conditions.where)):
            here = labels | conditions.labels(row) | {"metric": None}
            comparisons.append((here, (row, number[one]), (row, number[other])))
    return compare_all(conditions, comparisons)


def compare_all(
    conditions: Conditions, comparisons: Sequence[tuple[Row, tuple[int, int], tuple[int, int]]]
) -> list[Row]:
    """Compare two (condition, metric) each, and add what is found to the labels given."""
    rows = []
    for start in range(0, len(comparisons), _AT_ONCE):
        chunk = comparisons[start : start + _AT_ONCE]
        draws = [
            tau_b_draws(conditions.packed[one[0]][one[1]], conditions.packed[other[0]][other[1]])
            for _, one, other in chunk
        ]
        low, high = _intervals(np.stack(draws), conditions.options.level)
        found = _compare(conditions, [one for _, one, _ in chunk], [two for _, _, two in chunk])
        for (labels, _, _), row, least, most in zip(chunk, found, low, high, strict=True):
            if not np.isnan(row["tau_b"]):
                row |= {"low": float(least), "high": float(most)}
            rows.append(labels | row)
    return rows


def _intervals(draws: Floats, level: float) -> tuple[Floats, Floats]:
    """Intervals of tau-b; a draw in which all is tied counts as -1 below and as 1 above."""
    unknown = np.isnan(draws)
    low, high = intervals(np.where(unknown, -1.0, draws), level)
    if unknown.any():
        high = intervals(np.where(unknown, 1.0, draws), level)[1]
    return low, high


def _compare(
    conditions: Conditions, ones: Sequence[tuple[int, int]], others: Sequence[tuple[int, int]]
) -> list[Row]:
    """Order and best sets of pairs of (condition, metric), among policies defined in both."""
    options, names = conditions.options, conditions.grid.policies
    a, b = tuple(np.array(ones).T), tuple(np.array(others).T)
    taus = tau_b_of_signs(conditions.signs[a], conditions.signs[b])
    undefined = np.isnan(conditions.means[a]) | np.isnan(conditions.means[b])
    tops = {}
    for size in (1, 3):
        of_a, of_b = (
            best_sets(np.where(undefined, np.nan, conditions.means[of]), size, names, options)
            for of in (a, b)
        )
        common = (of_a & of_b).sum(axis=-1)
        tops[size] = common / size if options.names_break_ties else overlap(of_a, of_b)
    rows = []
    for place, (one, other) in enumerate(zip(ones, others, strict=True)):
        n, defined = len(names), len(names) - int(undefined[place].sum())
        num_windows = conditions.num_windows(one[0], other[0])
        rows.append(
            {
                "tau_b": float(taus[place]),
                "low": np.nan,
                "high": np.nan,
                "top_1": float(tops[1][place]),
                "top_3": float(tops[3][place]),
                "num_policies": defined,
                "undefined_pairs": n * (n - 1) // 2 - defined * (defined - 1) // 2,
                "num_windows": num_windows,
                "hint": num_windows < FEW,
            }
        )
    return rows


def summarize_agreement(
    rows: Iterable[Mapping[str, Any]], by: tuple[str, ...], scope: str
) -> list[Row]:
    """Sum up agreement over all that is not in `by`.

    Returns
    -------
    list of dict
        Mean and least tau-b and mean top-1 overlap over the comparisons in which they are defined;
        `winner_lost`, the share of comparisons in which no best policy of one side is among the
        best of the other; and how many comparisons there were.
    """
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in by), []).append(row)
    found = []
    for key, mine in groups.items():
        tau = np.array([row["tau_b"] for row in mine], np.float64)
        top = np.array([row["top_1"] for row in mine], np.float64)
        known, told = ~np.isnan(tau), ~np.isnan(top)
        found.append(
            dict(zip(by, key, strict=True))
            | {
                "scope": scope,
                "mean_tau_b": float(tau[known].mean()) if known.any() else np.nan,
                "least_tau_b": float(tau[known].min()) if known.any() else np.nan,
                "mean_top_1": float(top[told].mean()) if told.any() else np.nan,
                "winner_lost": float((top[told] == 0).mean()) if told.any() else np.nan,
                "num_comparisons": len(mine),
                "num_all_tied": int((~known).sum()),
            }
        )
    return found


def concordance(conditions: Conditions) -> list[Row]:
    """Kendall's W over sources, one row per (engine, load, metric)."""
    rows = []
    for mine in conditions.groups().values():
        labels = conditions.labels(mine[0])
        for m, metric in enumerate(conditions.grid.metrics):
            means = conditions.means[mine, m]
            rows.append(
                {
                    "engine": labels["engine"],
                    "load": labels["load"],
                    "metric": metric,
                    "w": kendall_w(means, conditions.options.tie),
                    "num_sources": len(mine),
                    "num_policies": int((~np.isnan(means).any(axis=0)).sum()),
                }
            )
    return rows


def same_metrics(grid: Grid) -> dict[str, str]:
    """Metrics that are another one by construction, each with the first that it repeats.

    Two metrics are the same when in every window of every condition one is a straight line of the
    other over policies (as ``1 - x``, or a rate times the window's constant), up to rounding, and
    some window has three different values, without which any two would be.
    """
    values = grid.values[grid.present]  # (conditions, metrics, policies, windows)
    with np.errstate(invalid="ignore"):
        spread = values - values.mean(axis=2, keepdims=True)
        scale = np.abs(values).max(axis=2)
        size = np.sqrt((spread**2).sum(axis=2))
    is_flat = size <= 1e-9 * scale
    distinct = (np.diff(np.sort(values, axis=2), axis=2) > 1e-6 * scale[:, :, None]).sum(axis=2)
    same: dict[str, str] = {}
    for b, name in enumerate(grid.metrics):
        for a in range(b):
            if grid.metrics[a] in same:
                continue
            known = ~(np.isnan(size[:, a]) | np.isnan(size[:, b]))
            if not (known.any() and (np.isnan(size[:, a]) == np.isnan(size[:, b])).all()):
                continue
            along = (spread[:, a] * spread[:, b]).sum(axis=1)
            straight = np.abs(np.abs(along) - size[:, a] * size[:, b]) <= (
                1e-12 * size[:, a] * size[:, b]
            )
            flat = is_flat[:, a] & is_flat[:, b]
            one_flat = is_flat[:, a] != is_flat[:, b]
            enough = (distinct[:, a] >= 2) & (distinct[:, b] >= 2)
            if ((straight & ~one_flat) | flat)[known].all() and enough[known].any():
                same[name] = grid.metrics[a]
                break
    return same

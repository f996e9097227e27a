"""Which policy wins where, how surely, and whether the metrics of one condition agree on it."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from queuesmith.stats import holm
from queuesmith.stats.draws import Floats
from queuesmith.stats.ranks import tied, top_set
from queuesmith.study.conditions import Conditions
from queuesmith.study.grid import better
from queuesmith.study.rules import FEW

AXES = ("engine", "load", "source")
Row = dict[str, Any]


def relative(conditions: Conditions) -> list[Row]:
    """Every policy against the reference, one row per condition, metric and policy.

    `ratio` is the policy's mean over the reference's, with the interval of paired draws; windows
    are won outside the tie margin. `p_adjusted` is of Wilcoxon's signed-rank test over windows, by
    Holm for the number of policies.
    """
    grid, options = conditions.grid, conditions.options
    flips = _flips(conditions)
    has_reference = options.reference in grid.policies
    rows = []
    for row in range(len(conditions.where)):
        labels, num_windows = conditions.labels(row), conditions.num_windows(row)
        values = conditions.values[row, ..., :num_windows]
        wins = losses = p_adjusted = np.full(values.shape[:2], np.nan)
        if has_reference:
            base = values[:, [grid.policies.index(options.reference)]]
            same = tied(values, base, options.tie)
            wins = ((values < base) & ~same).sum(axis=-1)
            losses = ((values > base) & ~same).sum(axis=-1)
            p_adjusted = _signed_ranks(values, base)
        for m, metric in enumerate(grid.metrics):
            for p, policy in enumerate(grid.policies):
                rows.append(
                    {
                        **labels,
                        "metric": metric,
                        "policy": policy,
                        "mean": float(conditions.means[row, m, p] * flips[m]),
                        "ratio": float(conditions.ratio[row, m, p]),
                        "low": float(conditions.ratio_low[row, m, p]),
                        "high": float(conditions.ratio_high[row, m, p]),
                        "wins": float(wins[m, p]),
                        "losses": float(losses[m, p]),
                        "p_adjusted": float(p_adjusted[m, p]),
                        "num_windows": num_windows,
                    }
                )
    return rows


def who_wins(conditions: Conditions) -> list[Row]:
    """Best policies of each condition and metric, ties shown.

    `best` are all within the tie margin of the best mean, that one first; `lead` is how far the
    next one is behind, as a share of its own value; `windows_best` in how many windows each is
    among the best. The ratio, its interval and `p_adjusted` are of the first, as in `relative`.
    """
    grid, options = conditions.grid, conditions.options
    queued = _queued_steps(conditions)
    keys = (*AXES, "metric", "policy")
    against = {tuple(row[name] for name in keys): row for row in relative(conditions)}
    rows = []
    for row in range(len(conditions.where)):
        num_windows, labels = conditions.num_windows(row), conditions.labels(row)
        windows_best = top_set(
            conditions.values[row, ..., :num_windows].swapaxes(1, 2), 1, options.tie
        ).sum(axis=1)
        for m, metric in enumerate(grid.metrics):
            means = conditions.means[row, m]
            order = [int(p) for p in np.argsort(means, kind="stable")]  # NaN last
            best = [p for p in order if conditions.best[row, m, p]]
            rest = [p for p in order if p not in best and not np.isnan(means[p])]
            found: Row = {**labels, "metric": metric}
            found["best"] = [grid.policies[p] for p in best]
            found["next"] = grid.policies[rest[0]] if rest else None
            found["lead"] = (
                float((means[rest[0]] - means[best[0]]) / abs(means[rest[0]]))
                if rest and means[rest[0]]
                else np.nan
            )
            found["windows_best"] = [int(windows_best[m, p]) for p in best]
            where = [labels[name] for name in AXES]
            first = against[(*where, metric, grid.policies[best[0]])] if best else {}
            for name in ("mean", "ratio", "low", "high", "p_adjusted"):
                found[name] = first.get(name, np.nan)
            found["undefined"] = [grid.policies[p] for p in order if np.isnan(means[p])]
            found["queued_steps"] = float(queued[row])
            found["idle"] = bool(queued[row] < 1) if not np.isnan(queued[row]) else None
            found["num_windows"] = num_windows
            found["hint"] = num_windows < FEW
            rows.append(found)
    return rows


def disagreement(conditions: Conditions, same: Mapping[str, str]) -> dict[str, Any]:
    """How often metrics of one condition disagree about the best policy.

    `pairs`: per pair of metrics, the share of conditions in which their best sets do not meet.
    `total`, `by_load`, `by_source`, `by_engine`: that share over all pairs, and the share of
    conditions in which no policy is among the best on every metric. Metrics that repeat another
    (`same`) are left out.
    """
    metrics = [m for m, metric in enumerate(conditions.grid.metrics) if metric not in same]
    best = conditions.best[:, metrics]
    known = np.asarray(best.any(axis=2))
    pairs = list(combinations(range(len(metrics)), 2))
    apart = np.full((len(best), len(pairs)), np.nan)
    for k, (a, b) in enumerate(pairs):
        both = known[:, a] & known[:, b]
        apart[both, k] = ~(best[both, a] & best[both, b]).any(axis=1)
    # A metric that is undefined here has no best policy to disagree with.
    everywhere = np.asarray(np.asarray((best | ~known[:, :, None]).all(axis=1)).any(axis=1))
    enough = np.asarray(known.sum(axis=1) >= 2)

    def summed(rows: Sequence[int]) -> Row:
        mine = apart[rows]
        told = enough[rows]
        return {
            "pairs_apart": float(np.nanmean(mine)) if not np.isnan(mine).all() else np.nan,
            "no_common_winner": float((~everywhere[rows])[told].mean()) if told.any() else np.nan,
            "num_conditions": int(told.sum()),
        }

    every = list(range(len(conditions.where)))
    result: dict[str, Any] = {
        "metrics": [conditions.grid.metrics[m] for m in metrics],
        "total": summed(every),
        "pairs": [
            {
                "a": conditions.grid.metrics[metrics[a]],
                "b": conditions.grid.metrics[metrics[b]],
                "apart": float(np.nanmean(apart[:, k]))
                if not np.isnan(apart[:, k]).all()
                else np.nan,
                "num_conditions": int((~np.isnan(apart[:, k])).sum()),
            }
            for k, (a, b) in enumerate(pairs)
        ],
    }
    labels = [conditions.labels(row) for row in every]
    for axis in AXES:
        names = dict.fromkeys(label[axis] for label in labels)
        result[f"by_{axis}"] = [
            {axis: name} | summed([row for row in every if labels[row][axis] == name])
            for name in names
        ]
    return result


def _signed_ranks(values: Floats, base: Floats) -> Floats:
    """Wilcoxon's signed-rank tests over windows, (metrics, policies), by Holm within a metric.

    Windows in which a policy equals the reference count nothing. 1 where all do.

    References
    ----------
    Wilcoxon, "Individual comparisons by ranking methods", Biometrics Bulletin 1, 1945.
    """
    from scipy.stats import wilcoxon  # slow to import, and few commands need it

    gaps = values - base
    p = np.full(gaps.shape[:2], np.nan)
    known = np.isfinite(gaps).all(axis=-1)
    moved = known & (gaps != 0).any(axis=-1)
    # Zeros count as a tie of ranks here. SciPy's own choice would permute for seconds.
    has_ties = (np.diff(np.sort(np.abs(gaps)), prepend=0.0) == 0).any(axis=-1)
    p[known] = 1.0
    for method, rows in (("exact", moved & ~has_ties), ("approx", moved & has_ties)):
        if rows.any():
            p[rows] = wilcoxon(gaps[rows], axis=-1, method=method).pvalue
    for row, tested in zip(p, moved, strict=True):
        row[tested] = holm(row[tested])
    return p


def _queued_steps(conditions: Conditions) -> Floats:
    """Return how many steps requests wait under FCFS on average, in each condition."""
    column = conditions.grid.column("fcfs_queued_steps")
    if column is None:
        return np.full(len(conditions.where), np.nan)
    steps = column[conditions.grid.present].reshape(len(conditions.where), -1)
    known = ~np.isnan(steps)
    total = np.where(known, steps, 0.0).sum(axis=1)
    return np.where(known.any(axis=1), total / np.maximum(known.sum(axis=1), 1), np.nan)


def _flips(conditions: Conditions) -> list[float]:
    return [-1.0 if better(metric) == "higher" else 1.0 for metric in conditions.grid.metrics]

"""Pairs of policies whose order flips between two conditions, with the evidence on both sides.

A flip is *supported* when on both sides the difference matters (its margin) and is surely there
(its interval). Everything below that is told apart and counted, and shown to be no reversal.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from queuesmith.stats import benjamini_hochberg
from queuesmith.stats.draws import Floats, intervals, mean_draws
from queuesmith.stats.ranks import pair_signs
from queuesmith.study.agreement import AXES
from queuesmith.study.conditions import Bools, Conditions
from queuesmith.study.grid import SHARES, better
from queuesmith.study.rules import FEW

#: A supported flip is `sure` when its adjusted p-value is below this.
LEVEL = 0.05
#: In the order in which they are tested.
CLASSES = ("undefined", "stable", "microscopic", "supported", "unsupported")
UNDEFINED, STABLE, MICROSCOPIC, SUPPORTED, UNSUPPORTED = range(5)
DEFINED = CLASSES[1:]

QUARTERS = ("1", "2", "3", "4")
_AT_ONCE = 256

Row = dict[str, Any]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Evidence:
    """What each condition by itself says of each pair of policies: (conditions, metrics, pairs).

    `difference` is the first less the second, oriented: negative where the first is better;
    `margin` its size as a share of the loser's value, NaN where that is 0; `matters` whether that
    is more than a reversal needs; wins are windows that one wins by more than the tie margin.
    """

    difference: Floats
    margin: Floats
    matters: Bools
    undefined: Bools
    first_wins: Ints
    second_wins: Ints


def weigh(conditions: Conditions) -> Evidence:
    """Compare all pairs of policies within each condition."""
    options, grid = conditions.options, conditions.grid
    first, second = np.triu_indices(len(grid.policies), 1)
    a, b = conditions.means[..., first], conditions.means[..., second]
    difference = a - b
    loser = np.abs(np.maximum(a, b))
    with np.errstate(divide="ignore", invalid="ignore"):
        margin = np.where(loser > 0, np.abs(difference) / loser, np.nan)
    floor = np.inf if options.reversal_floor is None else options.reversal_floor
    is_share = np.array([metric in SHARES for metric in grid.metrics])[:, None]
    at_floor = (loser == 0) & is_share & np.isfinite(floor)
    matters = np.where(at_floor, np.abs(difference) > floor, margin > options.reversal_margin)
    undefined = np.isnan(difference) | ((loser == 0) & ~at_floor)
    first_wins, second_wins = (np.zeros(difference.shape, np.int64) for _ in range(2))
    for row in range(len(conditions.where)):
        # Padding past the last window is NaN, and so is its sign: no win.
        signs = pair_signs(conditions.values[row].swapaxes(1, 2), options.tie)
        first_wins[row] = (signs < 0).sum(axis=1)
        second_wins[row] = (signs > 0).sum(axis=1)
    return Evidence(difference, margin, matters, undefined, first_wins, second_wins)


def find_reversals(conditions: Conditions) -> tuple[list[Row], dict[tuple[Any, ...], Row]]:
    """Classify every pair of policies between every two conditions that differ in one thing.

    Returns
    -------
    records : list of dict
        Of the supported and unsupported ones, with their evidence.
    counts : dict
        By (axis, a, b, engine, load, source, metric) as in `queuesmith.study.agreement.agreement`:
        how many pairs of policies are of each class, and how many of the supported ones are `sure`
        after correction for all pairs looked at.
    """
    evidence = weigh(conditions)
    p_first, p_second = _one_sided(evidence)
    drivers = _Drivers(conditions)
    records: list[Row] = []
    counts: dict[tuple[Any, ...], Row] = {}
    for axis in AXES:
        pairs = np.array(list(conditions.pairs(axis)), np.int64).reshape(-1, 2)
        if not len(pairs):
            continue
        a, b = pairs.T
        classes, low, high = _classify(conditions, evidence, a, b)
        p = 2 * np.minimum(np.maximum(p_first[a], p_second[b]), np.maximum(p_second[a], p_first[b]))
        p = np.minimum(p, 1.0)
        adjusted = _adjust(conditions, a, b, p, classes != UNDEFINED)
        sure: Counter[tuple[int, int]] = Counter()
        for k, m, pair in np.argwhere(classes >= SUPPORTED):
            rows = int(a[k]), int(b[k])
            row = _record(conditions, evidence, axis, rows, int(m), int(pair), low, high)
            row["class"] = CLASSES[classes[k, m, pair]]
            row["p"], row["p_adjusted"] = float(p[k, m, pair]), float(adjusted[k, m, pair])
            row["sure"] = row["class"] == "supported" and row["p_adjusted"] < LEVEL
            row["drivers"] = drivers.of(row, rows, int(m))
            sure[int(k), int(m)] += row["sure"]
            records.append(row)
        for k in range(len(pairs)):
            labels = _labels(conditions, axis, int(a[k]), int(b[k]))
            for m, metric in enumerate(conditions.grid.metrics):
                number = np.bincount(classes[k, m], minlength=len(CLASSES))
                count = {name: int(number[c]) for c, name in enumerate(CLASSES)}
                counts[(*labels.values(), metric)] = count | {"sure": sure[k, m]}
    return records, counts


def _labels(conditions: Conditions, axis: str, a: int, b: int) -> dict[str, Any]:
    one, other = conditions.labels(a), conditions.labels(b)
    return {"axis": axis, "a": one[axis], "b": other[axis], **one, axis: None}


def _one_sided(evidence: Evidence) -> tuple[Floats, Floats]:
    """Exact sign tests: how rarely chance lets the first (second) win so many windows or more."""
    from scipy.stats import binom  # slow to import, and few commands need it

    untied = evidence.first_wins + evidence.second_wins
    return (
        binom.sf(evidence.first_wins - 1, untied, 0.5),
        binom.sf(evidence.second_wins - 1, untied, 0.5),
    )


def _classify(
    conditions: Conditions, evidence: Evidence, a: Ints, b: Ints
) -> tuple[Ints, Floats, Floats]:
    """Classify each (pair of conditions, metric, pair of policies); with intervals where needed."""
    with np.errstate(invalid="ignore"):
        flips = conditions.signs[a] * conditions.signs[b] < 0
    classes = np.full(flips.shape, STABLE)
    classes[flips] = MICROSCOPIC
    candidates = flips & evidence.matters[a] & evidence.matters[b]
    wanted = np.zeros(evidence.difference.shape, np.bool_)
    np.logical_or.at(wanted, a, candidates)
    np.logical_or.at(wanted, b, candidates)
    keys = np.argwhere(wanted)
    low, high = (np.full(evidence.difference.shape, np.nan) for _ in range(2))
    low[wanted], high[wanted] = difference_intervals(conditions, keys)
    sure = (low > 0) | (high < 0)
    classes[candidates] = UNSUPPORTED
    classes[candidates & sure[a] & sure[b]] = SUPPORTED
    classes[evidence.undefined[a] | evidence.undefined[b]] = UNDEFINED
    return classes, low, high


def difference_intervals(conditions: Conditions, keys: Ints) -> tuple[Floats, Floats]:
    """Intervals of mean differences, first less second, of (condition, metric, pair) each."""
    grid = conditions.grid
    first, second = np.triu_indices(len(grid.policies), 1)
    source = np.array([one.source for one in conditions.where], np.int64)[keys[:, 0]]
    low, high = np.full(len(keys), np.nan), np.full(len(keys), np.nan)
    for number in range(len(grid.sources)):
        mine = np.flatnonzero(source == number)
        for start in range(0, len(mine), _AT_ONCE):
            chunk = mine[start : start + _AT_ONCE]
            c, m, pair = keys[chunk].T
            values = conditions.values[..., : grid.num_windows(number)]
            differences = values[c, m, first[pair]] - values[c, m, second[pair]]
            drawn = mean_draws(differences, conditions.weights[number])
            low[chunk], high[chunk] = intervals(drawn, conditions.options.level)
    return low, high


def _adjust(conditions: Conditions, a: Ints, b: Ints, p: Floats, defined: Bools) -> Floats:
    """Benjamini-Hochberg within each metric and load, or pair of loads."""
    adjusted = np.full(p.shape, np.nan)
    load = np.array([one.load for one in conditions.where], np.int64)
    family = load[a] * len(conditions.grid.loads) + load[b]
    for one in np.unique(family):
        for m in range(p.shape[1]):
            rows, pairs = np.nonzero(defined[:, m] & (family == one)[:, None])
            adjusted[rows, m, pairs] = (
                benjamini_hochberg(p[rows, m, pairs]) if len(rows) else np.nan
            )
    return adjusted


def _record(
    conditions: Conditions,
    evidence: Evidence,
    axis: str,
    rows: tuple[int, int],
    m: int,
    pair: int,
    low: Floats,
    high: Floats,
) -> Row:
    """Evidence of one flip; `policy_a` is the one that wins in `a`."""
    grid = conditions.grid
    first, second = (int(side[pair]) for side in np.triu_indices(len(grid.policies), 1))
    swapped = bool(evidence.difference[rows[0], m, pair] > 0)
    winner, loser = (second, first) if swapped else (first, second)
    flip = -1.0 if better(grid.metrics[m]) == "higher" else 1.0
    record: Row = {
        **_labels(conditions, axis, *rows),
        "metric": grid.metrics[m],
        "policy_a": grid.policies[winner],
        "policy_b": grid.policies[loser],
    }
    for name, row in zip(("in_a", "in_b"), rows, strict=True):
        wins = int(evidence.first_wins[row, m, pair]), int(evidence.second_wins[row, m, pair])
        if swapped:
            wins = wins[1], wins[0]
        num_windows = conditions.num_windows(row)
        value_a, value_b = (float(conditions.means[row, m, p] * flip) for p in (winner, loser))
        ends = [float(end[row, m, pair]) * (-flip if swapped else flip) for end in (low, high)]
        record[name] = {
            "value_a": value_a,
            "value_b": value_b,
            "difference": value_a - value_b,
            "low": min(ends),
            "high": max(ends),
            "margin": float(evidence.margin[row, m, pair]),
            "wins_a": wins[0],
            "wins_b": wins[1],
            "num_windows": num_windows,
        }
    record["hint"] = conditions.num_windows(*rows) < FEW
    return record


class _Drivers:
    """Which requests make the difference, from the mean TTFT of quarters of the requests."""

    def __init__(self, conditions: Conditions) -> None:
        self.conditions = conditions
        self.means = {
            by: [self._mean(f"ttft_mean_{letter}{quarter}") for quarter in QUARTERS]
            for by, letter in (("prompt_len", "q"), ("output_len", "o"))
        }

    def _mean(self, column: str) -> Floats | None:
        """(conditions, policies)."""
        found = self.conditions.grid.column(column)
        if found is None:
            return None
        of_cells = found[self.conditions.grid.present]
        return np.stack(
            [
                of_cells[row, :, : self.conditions.num_windows(row)].mean(axis=-1)
                for row in range(len(of_cells))
            ]
        )

    def of(self, record: Row, rows: tuple[int, int], m: int) -> Row | None:
        """Shares of the difference in mean TTFT that each quarter makes on both sides.

        Quarters are of equal size, so on each side the shares are differences of quarters over
        their sum, and add up to 1. None for other metrics than TTFT, and where the mean TTFT does
        not flip along with the metric, so that quarters of the mean explain nothing.
        """
        conditions = self.conditions
        if not conditions.grid.metrics[m].startswith("ttft"):
            return None
        policies = conditions.grid.policies
        a, b = policies.index(record["policy_a"]), policies.index(record["policy_b"])
        result: Row = {}
        for by, means in self.means.items():
            sides = []
            for row, sign in zip(rows, (-1, 1), strict=True):
                parts = [np.nan if one is None else one[row, a] - one[row, b] for one in means]
                total = float(np.sum(parts))
                if not sign * total > 0:
                    return None
                sides.append([float(part / total) for part in parts])
            together = np.asarray(sides[0]) + np.asarray(sides[1])
            result[by] = {
                "in_a": sides[0],
                "in_b": sides[1],
                "largest": int(np.argmax(together)) + 1,
                "share": float(together.max() / 2),
            }
        return result


def count_classes(agreement: Sequence[Row], scope: str) -> list[Row]:
    """Sum the counts of rows of agreement over everything but the axis and the metric."""
    totals: dict[tuple[str, str], Counter[str]] = {}
    for row in agreement:
        totals.setdefault((row["axis"], row["metric"]), Counter()).update(row["reversals"])
    names = (*CLASSES, "sure")
    return [
        {"axis": axis, "metric": metric, "scope": scope, **{name: total[name] for name in names}}
        for (axis, metric), total in totals.items()
    ]

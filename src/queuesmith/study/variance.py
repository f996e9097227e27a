"""What the differences from the reference are made of: the policy itself, or where it ran.

Each run's gain over the reference is split, as in an analysis of variance of a balanced design,
into parts that add up to it and whose squares add up to the whole. How far the gain of a policy
depends on the source, the load, the engine or the window is the part of the variance that does not
carry over.
"""

from collections.abc import Collection, Iterable
from itertools import combinations
from typing import Any

import numpy as np

from queuesmith.stats.draws import Floats
from queuesmith.study.conditions import Conditions
from queuesmith.study.grid import SHARES, better

#: Axes of a block of gains, in this order; windows are nested in sources.
AXES = ("engine", "load", "source", "window", "policy")
TERMS = (
    "policy",
    "source",
    "load",
    "engine",
    "window",
    "policy x source",
    "policy x load",
    "policy x engine",
    "policy x window",
    "policy x more",
    "more",
)

Row = dict[str, Any]


def variance(conditions: Conditions, engines: Collection[str], scope: str) -> list[Row]:
    """Shares of the variance of gains over the reference on some engines, one row per metric.

    The gain is ``log(reference / policy)``, or its negative where more is better, so that a gain is
    positive; of metrics between 0 and 1 it is the difference. Every source gives as many windows as
    the smallest has, spread evenly over its own.

    Returns
    -------
    list of dict
        `shares`: of each of `TERMS`, which add up to 1. "window" is nested in the source; "more"
        are interactions of what is not the policy, "policy x more" those of three and more things
        one of which is the policy. `portable` is the policy's own share of all that has the policy
        in it: 1 when every policy gains the same everywhere. None where some gain is undefined.
    """
    grid, options = conditions.grid, conditions.options
    rows = [row for row, name in enumerate(grid.engines) if name in engines]
    if options.reference not in grid.policies or not rows or not grid.present[rows].all():
        return []
    smallest = min(grid.num_windows(source) for source in range(len(grid.sources)))
    values = np.stack(
        [
            grid.values[rows][:, :, source][..., _evenly(grid.num_windows(source), smallest)]
            for source in range(len(grid.sources))
        ],
        axis=2,
    )  # (engines, loads, sources, metrics, policies, windows)
    reference = grid.policies.index(options.reference)
    others = [p for p in range(len(grid.policies)) if p != reference]
    found = []
    for m, metric in enumerate(grid.metrics):
        mine = values[:, :, :, m].swapaxes(3, 4)
        base = mine[..., [reference]]
        with np.errstate(divide="ignore", invalid="ignore"):
            gains = mine - base if metric in SHARES else np.log(mine / base)
        gains = gains if better(metric) == "higher" else -gains
        defined = [p for p in others if np.isfinite(gains[..., p]).all()]
        block = gains[..., defined]
        shares = decompose(block) if block.size else dict.fromkeys(TERMS, float("nan"))
        with_policy = sum(share for term, share in shares.items() if term.startswith("policy"))
        found.append(
            {
                "metric": metric,
                "scope": scope,
                "shares": shares,
                "portable": shares["policy"] / with_policy if with_policy > 0 else np.nan,
                "standard_deviation": float(block.std()) if block.size else np.nan,
                "scale": "difference" if metric in SHARES else "log ratio",
                "num_windows": smallest * len(grid.sources),
                "left_out": [grid.policies[p] for p in others if p not in defined],
            }
        )
    return found


def decompose(gains: Floats) -> dict[str, float]:
    """Shares of the variance of a balanced block.

    Parameters
    ----------
    gains : (engines, loads, sources, windows, policies) float64
        The w-th window of one source has nothing to do with the w-th of another.

    Returns
    -------
    dict
        Of `TERMS`; adds up to 1. All NaN when nothing varies.

    Notes
    -----
    The effect of a set of axes is the mean over the other axes less the effects of all its
    subsets. These are orthogonal, so that their squares add up. A set with the window and without
    the source belongs to the window within the source, and is counted there.

    References
    ----------
    Scheffe, "The Analysis of Variance", 1959, chapters 4 and 5.
    """
    spread = gains - gains.mean()
    total = float((spread**2).sum())
    if not total > 1e-24 * max(1.0, float((gains**2).sum())):
        return dict.fromkeys(TERMS, float("nan"))
    shares = dict.fromkeys(TERMS, 0.0)
    axes = range(len(AXES))
    effects: dict[tuple[int, ...], Floats] = {}
    for size in range(len(AXES) + 1):
        for kept in combinations(axes, size):
            rest = tuple(axis for axis in axes if axis not in kept)
            effect = gains.mean(axis=rest, keepdims=True)
            for smaller in _subsets(kept):
                effect = effect - effects[smaller]
            effects[kept] = effect
            if kept:
                square = float((effect**2).sum()) * gains.size / effect.size
                shares[_term(kept)] += square / total
    return shares


def _subsets(kept: tuple[int, ...]) -> Iterable[tuple[int, ...]]:
    for size in range(len(kept)):
        yield from combinations(kept, size)


def _term(kept: tuple[int, ...]) -> str:
    """Name of what an effect is part of; the window stands for the window within its source."""
    names = {AXES[axis] for axis in kept}
    if "window" in names:
        names.discard("source")
    rest = names - {"policy"}
    if "policy" in names:
        if not rest:
            return "policy"
        return f"policy x {rest.pop()}" if len(rest) == 1 else "policy x more"
    return rest.pop() if len(rest) == 1 else "more"


def _evenly(total: int, wanted: int) -> list[int]:
    return [int(place) for place in (np.arange(wanted) + 0.5) * total / wanted]

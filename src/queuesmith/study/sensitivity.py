"""What else the rankings hang on: time, deadlines, predictions, and who is in the study."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from queuesmith.stats.draws import Floats, intervals, mean_draws
from queuesmith.stats.packed import pack_signs, tau_b_draws
from queuesmith.stats.ranks import kendall_tau_b, overlap, tied, top_set
from queuesmith.study.agreement import agreement, metric_agreement
from queuesmith.study.conditions import Conditions, make_rng, measure_conditions
from queuesmith.study.grid import make_grid
from queuesmith.study.pooling import pool
from queuesmith.study.rules import FEW, Options

THIRDS = ("early", "middle", "late")
#: Random splits of windows that a split by time is compared with.
SPLITS = 200
#: Below this p a split by time agrees less than random splits do.
LEVEL = 0.05
SLACKS = ("anwg_slack_0.5", "anwg_slack_2", "anwg_slack_4")

Row = dict[str, Any]


def temporal(conditions: Conditions) -> list[Row]:
    """Rank agreement between the early, middle and late third of each source's real windows.

    `tau_b_random` is what splits of the same windows into groups of the same sizes at random give
    on average, and `p` the share of such splits that agree no better than the split by time
    (counting the latter): time matters where `p` is small, not where tau-b is low. Sources with
    fewer than two real windows in a third are left out.
    """
    rows = []
    for row, one in enumerate(conditions.where):
        position = conditions.grid.position[one.source, : conditions.num_windows(row)]
        known = np.flatnonzero(~np.isnan(position))
        third = np.clip((position[known] * 3).astype(np.int64), 0, 2)
        sizes = np.bincount(third, minlength=3)
        if sizes.min() < 2:
            continue
        source = conditions.labels(row)["source"]
        rng = make_rng(conditions.options, "thirds", source)
        splits = np.stack([third, *(rng.permutation(third) for _ in range(SPLITS))])
        values = conditions.values[row][..., known]
        rows += _compare_thirds(conditions, row, values, splits, sizes)
    return rows


def _compare_thirds(
    conditions: Conditions,
    row: int,
    values: Floats,
    splits: NDArray[np.int64],
    sizes: NDArray[np.int64],
) -> list[Row]:
    """Compare the groups of each split, of which the first is that by time."""
    tie = conditions.options.tie
    means = [mean_draws(values, (splits == part).astype(np.int64)) for part in range(3)]
    rows = []
    for m, metric in enumerate(conditions.grid.metrics):
        packed = [pack_signs(mean[m], tie) for mean in means]
        for a, b in ((0, 1), (1, 2), (0, 2)):
            tau = tau_b_draws(packed[a], packed[b])
            observed, random = float(tau[0]), tau[1:]
            random = random[~np.isnan(random)]
            defined = not np.isnan(observed) and len(random) > 0
            best = [top_set(means[part][m, :, 0], 1, tie) for part in (a, b)]
            num_windows = int(min(sizes[a], sizes[b]))
            rows.append(
                {
                    **conditions.labels(row),
                    "metric": metric,
                    "a": THIRDS[a],
                    "b": THIRDS[b],
                    "tau_b": observed,
                    "top_1": float(overlap(*best)),
                    "tau_b_random": float(random.mean()) if defined else np.nan,
                    "p": float((1 + (random <= observed + 1e-12).sum()) / (1 + len(random)))
                    if defined
                    else np.nan,
                    "num_windows": num_windows,
                    "hint": num_windows < FEW,
                }
            )
    return rows


def slo_sensitivity(runs: pa.Table, windows: pa.Table | None, options: Options) -> list[Row]:
    """Agreement of the ranking by `anwg` with that under other deadlines, as metrics are compared.

    Empty where the runs do not have them.
    """
    there = [name for name in SLACKS if _has(runs, name)]
    if not there or not _has(runs, "anwg"):
        return []
    grid = make_grid(
        runs,
        windows,
        metrics=("anwg", *there),
        prediction=options.prediction or "",
        leave_out=options.leave_out,
    )
    conditions = measure_conditions(grid, options, only_order=True)
    return metric_agreement(conditions, [("anwg", name) for name in there])


def _has(runs: pa.Table, name: str) -> bool:
    if name not in runs.column_names:
        return False
    values = pc.fill_null(runs[name].cast(pa.float64()), float("nan"))
    return bool(pc.any(pc.is_finite(values)).as_py())


def prediction_sensitivity(
    runs: pa.Table, windows: pa.Table | None, options: Options, metrics: Sequence[str]
) -> dict[str, list[Row]]:
    """How the order, and each policy, changes with what policies are told of output lengths.

    Returns
    -------
    dict
        `agreement`: tau-b and best sets of the design's own prediction (`a`) against every other
        one (`b`), among the policies run with both. `effect`: the mean of each policy under the
        other prediction over its mean under the design's own.
    """
    own = options.prediction
    others = [name for name in pc.unique(runs["prediction"]).to_pylist() if name != own]
    result: dict[str, list[Row]] = {"agreement": [], "effect": []}
    if not others:
        return result
    rest = runs.filter(pc.not_equal(runs["prediction"], own))
    for engine in pc.unique(rest["engine"]).to_pylist():
        here = runs.filter(pc.equal(runs["engine"], engine))
        elsewhere = here.filter(pc.not_equal(here["prediction"], own))
        here = here.filter(pc.is_in(here["load"], pc.unique(elsewhere["load"])))
        here = here.filter(pc.is_in(here["source"], pc.unique(elsewhere["source"])))
        here = here.filter(pc.is_in(here["policy"], pc.unique(elsewhere["policy"])))
        # The prediction takes the place of the engine, so that conditions differ in it alone.
        order = np.argsort([name != own for name in here["prediction"].to_pylist()], kind="stable")
        here = here.take(pa.array(order))
        column = here.column_names.index("engine")
        here = here.set_column(column, "engine", here["prediction"])
        here = here.set_column(
            here.column_names.index("prediction"), "prediction", pa.array([""] * len(here))
        )
        grid = make_grid(here, windows, metrics=metrics, prediction="", leave_out=options.leave_out)
        conditions = measure_conditions(grid, options, only_order=True)
        result["agreement"] += [
            row | {"axis": "prediction", "engine": engine}
            for row in agreement(conditions)
            if row["axis"] == "engine" and row["a"] == own
        ]
        result["effect"] += _effects(conditions, engine, own)
    return result


def _effects(conditions: Conditions, engine: str, own: str | None) -> list[Row]:
    """Each policy's mean under another prediction over that under its own, with intervals."""
    rows = []
    for first, second in conditions.pairs("engine"):
        labels = conditions.labels(second)
        if conditions.labels(first)["engine"] != own:
            continue
        num_windows = conditions.num_windows(first)
        weights = conditions.weights[conditions.where[first].source]
        drawn = [
            mean_draws(conditions.values[row, ..., :num_windows], weights)
            for row in (first, second)
        ]
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = conditions.means[second] / conditions.means[first]
            draws = drawn[1] / drawn[0]
        draws = np.where(np.isfinite(draws), draws, np.nan)
        low, high = intervals(draws, conditions.options.level)
        for m, metric in enumerate(conditions.grid.metrics):
            for p, policy in enumerate(conditions.grid.policies):
                rows.append(
                    {
                        "engine": engine,
                        "load": labels["load"],
                        "source": labels["source"],
                        "metric": metric,
                        "policy": policy,
                        "prediction": labels["engine"],
                        "ratio": float(ratio[m, p]),
                        "low": float(low[m, p]),
                        "high": float(high[m, p]),
                        "num_windows": num_windows,
                    }
                )
    return rows


def leave_one_source_out(conditions: Conditions) -> list[Row]:
    """Ask whether the winner of the other sources, pooled, wins on this one, and what it costs.

    `regret` is how much worse its mean is than the best one here, as a share of that (0 within the
    tie margin); `regret_reference` the same of the reference, what not deciding would cost; `ratio`
    is the winner's mean here over the reference's.
    """
    grid, options = conditions.grid, conditions.options
    reference = grid.policies.index(options.reference) if options.reference in grid.policies else -1
    rows = []
    for mine in conditions.groups().values():
        if len(mine) < 2:
            continue
        for row in mine:
            others = [other for other in mine if other != row]
            labels, num_windows = conditions.labels(row), conditions.num_windows(row)
            for m, metric in enumerate(grid.metrics):
                here = conditions.means[row, m]
                pooled = pool(conditions, conditions.means[others, m], m)
                found: Row = {**labels, "metric": metric, "winner": None, "holds": None}
                found |= {"regret": np.nan, "regret_reference": np.nan, "ratio": np.nan}
                found["tau_b"] = kendall_tau_b(pooled, here, options.tie)
                known = ~np.isnan(pooled) & ~np.isnan(here)
                if known.any():
                    winner = int(np.flatnonzero(known)[np.argmin(pooled[known])])
                    best = float(here[known].min())
                    found["winner"] = grid.policies[winner]
                    found["regret"] = _regret(here[winner], best, options.tie)
                    found["holds"] = found["regret"] == 0
                    if reference >= 0:
                        found["regret_reference"] = _regret(here[reference], best, options.tie)
                        found["ratio"] = float(conditions.ratio[row, m, winner])
                found |= {"num_windows": num_windows, "hint": num_windows < FEW}
                rows.append(found)
    return rows


def _regret(value: Floats, best: float, tie: float) -> float:
    """Share of the best by which an oriented value is worse, 0 when tied."""
    if tied(np.asarray(value), np.asarray(best), tie):
        return 0.0
    return float((value - best) / abs(best)) if best else float("nan")


def with_prediction(runs: pa.Table, options: Options) -> Options:
    """Return the options with the prediction of most runs where none is named."""
    if options.prediction is not None:
        return options
    counted = pc.value_counts(runs["prediction"]).to_pylist()
    most = max(counted, key=lambda one: one["counts"])["values"] if counted else None
    return replace(options, prediction=most)

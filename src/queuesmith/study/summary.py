"""A study in one small document: each policy against the reference, and each source's traffic.

It is what `queuesmith.study.advise` needs, and all that the package carries of the study whose
answers it gives to users who have run none.

A *cell* is (engine, load, source). Within it a policy's value is its mean over windows, a policy
is among the best where that mean is within `MARGIN` of the best one, and intervals come from
drawing whole windows again, the same ones for every policy.
"""

import json
import math
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from queuesmith import numbers
from queuesmith.documents import parse_json, read_file, seal
from queuesmith.errors import ConfigError, PolicyError
from queuesmith.evaluation.goals import MARGIN
from queuesmith.policies import get_policy
from queuesmith.stats.draws import Floats, block_weights, intervals, mean_draws
from queuesmith.stats.ranks import top_set
from queuesmith.study.conditions import block_len, make_rng
from queuesmith.study.design_file import SLOTS
from queuesmith.study.grid import Grid, better, make_grid
from queuesmith.study.placing import table_features
from queuesmith.study.rules import Options
from queuesmith.study.words import is_toy

SCHEMA = "queuesmith.study.summary/1"
PACKAGED = "atlas_summary.json"
DRAWS = 10_000
_DIGITS = 3


def summarize_study(
    study: Any, *, draws: int = DRAWS, leave_out: Sequence[str] = ()
) -> dict[str, Any]:
    """Sum up a study: its runs with the design's own prediction.

    Returns
    -------
    dict
        Of schema ``queuesmith.study.summary/1``: what was studied (`policies` with their kind,
        `engines`, `loads`, `metrics`, `sources` with their features) and `cells`, one per
        (engine, load, source), each with ``metrics[name]``: lists in the order of `policies` of
        `mean`, of the relative change against the reference `low` and `high` (95 %), and of the
        number of windows in which the policy is `best` (of those that only change order, if it
        does), and `better` and `worse` than the reference by more than `MARGIN`. None is undefined.
    """
    document = study.document
    design = document["design"]
    reference = design["reference"]
    main = main_prediction(study)
    metrics = [name for name in design["metrics"] if better(name) is not None]
    grid = make_grid(
        study.runs, study.windows, metrics=metrics, prediction=main, leave_out=leave_out
    )
    if reference not in grid.policies:
        raise ConfigError(
            f"the study holds no runs of its reference {reference!r}, so that nothing can be "
            "compared; run it again with `queuesmith study run`"
        )
    base = grid.policies.index(reference)
    kinds = _kinds(document, grid.policies)
    orders = [row for row, kind in enumerate(kinds.values()) if deployable(kind)]
    options = Options(draws=draws)
    weights = [
        block_weights(
            grid.num_windows(source),
            block_len(grid, source),
            draws,
            make_rng(options, "windows", name),
        )
        for source, name in enumerate(grid.sources)
    ]
    return {
        "schema": SCHEMA,
        "design": design["name"],
        "title": design.get("title", ""),
        "sha256": document["sha256"],
        "version": document.get("version", ""),
        "reference": reference,
        "prediction": main,
        "window_len": int(np.median(study.windows["num_requests"].to_numpy())),
        "policies": kinds,
        "engines": list(grid.engines),
        "loads": _loads(study.runs, grid.loads),
        "metrics": metrics,
        "sources": _sources(study.windows),
        "cells": [
            _cell(grid, (engine, load, source), base, orders, weights[source])
            for engine, load, source in np.argwhere(grid.present).tolist()
        ],
    }


def main_prediction(study: Any) -> str:
    """Return what policies knew of output lengths in the runs that a study is about.

    The design's own where the document says it, and otherwise what most runs had.
    """
    counted = study.runs["prediction"].value_counts().to_pylist()
    if not counted:
        raise ConfigError("the study holds no runs yet; finish it with `queuesmith study run`")
    own = study.document.get("prediction")
    if any(one["values"] == own for one in counted):
        return str(own)
    return str(max(counted, key=lambda one: (one["counts"], one["values"]))["values"])


def policy_kind(name: str) -> str:
    """Return "policy", "bundle" or "oracle"; "unknown" for a policy that is not installed here."""
    try:
        policy = get_policy(name)
    except PolicyError:
        return "unknown"
    return "oracle" if policy.oracle else "bundle" if policy.is_bundle else "policy"


def main_engine(summary: Mapping[str, Any]) -> str:
    """Return the engine that is told first: the first with a GPU, if there is one."""
    engines: list[str] = summary["engines"]
    return next((name for name in engines if not is_toy(name)), engines[0])


def main_load(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the load that is told first: next to saturation from below, or lambda_ref itself."""
    loads: list[dict[str, Any]] = summary["loads"]
    return min(
        loads,
        key=lambda load: (
            abs(load["rho"] - 0.95)
            if load["rho"] is not None
            else abs((load["multiplier"] or 1.0) - 1)
        ),
    )


def _kinds(document: Mapping[str, Any], names: Sequence[str]) -> dict[str, str]:
    bundles = {one["name"] for one in document.get("policies", []) if one.get("is_bundle")}
    return {name: "bundle" if name in bundles else policy_kind(name) for name in names}


def save_summary(summary: Mapping[str, Any], path: Path) -> None:
    """Write a summary with one cell a line, so that a changed study is a readable difference."""
    head = {name: value for name, value in summary.items() if name != "cells"}
    head["seal"] = seal(summary)
    text = json.dumps(head, ensure_ascii=False, allow_nan=False, indent=1)
    cells = ",\n".join(
        json.dumps(cell, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        for cell in summary["cells"]
    )
    path.write_text(f'{text[:-2]},\n "cells": [\n{cells}\n]}}\n', encoding="utf-8")


def load_summary(path: Path | None = None) -> dict[str, Any]:
    """Read a summary.

    Parameters
    ----------
    path : Path, optional
        The one that came with this package when left out.

    Raises
    ------
    ConfigError
        If there is none, or it is not a summary that this version reads.
    """
    name = PACKAGED if path is None else str(path)
    try:
        packaged = files(__package__) / PACKAGED
        document = parse_json(packaged.read_bytes() if path is None else read_file(path))
    except FileNotFoundError:
        remedy = (
            "give the folder of a study of your own with --study"
            if path is None
            else "make one with `queuesmith study report FOLDER --summary FILE`"
        )
        raise ConfigError(f"there is no summary {name!r}; {remedy}") from None
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{name} cannot be read as a summary: {error}; make it again with "
            "`queuesmith study report FOLDER --summary FILE`"
        ) from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        found = document.get("schema") if isinstance(document, dict) else type(document).__name__
        raise ConfigError(
            f"{name} is no summary of a study: it must say schema {SCHEMA!r}, got {found!r}; make "
            "one with `queuesmith study report FOLDER --summary FILE`"
        )
    if document.pop("seal", None) != seal(document):
        raise ConfigError(
            f"{name} is not what was written; make it again with `queuesmith study report FOLDER "
            "--summary FILE`"
        )
    return document


def deployable(kind: str) -> bool:
    """Tell whether a policy only changes order and knows nothing that a server does not."""
    return kind not in ("oracle", "bundle")


def winners(summary: Mapping[str, Any], cell: Mapping[str, Any], metric: str) -> list[str]:
    """Return the policies within 1 % of the best mean, best first; empty where all are tied.

    Policies that know what no server knows, and those that change engine settings as well, are not
    among them.
    """
    means = [
        mean if deployable(kind) else None
        for mean, kind in zip(
            cell["metrics"][metric]["mean"], summary["policies"].values(), strict=True
        )
    ]
    top = best_set(means, metric)
    known = sum(mean is not None for mean in means)
    names = list(summary["policies"])
    return [] if len(top) == known else [names[row] for row in top]


def best_set(means: Sequence[float | None], metric: str, margin: float = MARGIN) -> list[int]:
    """Return the positions of all values within a margin of the best, best first.

    Examples
    --------
    >>> best_set([1.0, 0.50, None, 0.504], "ttft_mean")
    [1, 3]
    """
    known = [(value, row) for row, value in enumerate(means) if value is not None]
    if not known:
        return []
    sign = 1 if better(metric) == "lower" else -1
    known.sort(key=lambda pair: (sign * pair[0], pair[1]))
    top = known[0][0]
    return [row for value, row in known if abs(value - top) <= margin * max(abs(value), abs(top))]


def relative_change(cell: Mapping[str, Any], row: int, reference: int) -> float | None:
    """Return a policy's mean over the reference's, less 1; None where that is undefined."""
    mean, base = cell["mean"][row], cell["mean"][reference]
    if mean is None or base is None or base == 0:
        return None
    return float(mean / base - 1)


def surely_better(cell: Mapping[str, Any], row: int, metric: str) -> bool:
    """Whether all of the interval lies more than a tie on the better side of the reference."""
    low, high = cell["low"][row], cell["high"][row]
    if low is None or high is None:
        return False
    return bool(high < -MARGIN) if better(metric) == "lower" else bool(low > MARGIN)


def surely_worse(cell: Mapping[str, Any], row: int, metric: str) -> bool:
    """Whether all of the interval lies more than a tie on the worse side of the reference."""
    low, high = cell["low"][row], cell["high"][row]
    if low is None or high is None:
        return False
    return bool(low > MARGIN) if better(metric) == "lower" else bool(high < -MARGIN)


def _loads(runs: pa.Table, names: Sequence[str]) -> list[dict[str, Any]]:
    columns = [runs[name].to_pylist() for name in ("load", "rho", "multiplier")]
    found = {name: (rho, factor) for name, rho, factor in zip(*columns, strict=True)}
    return [
        {"name": name, "rho": _defined(found[name][0]), "multiplier": _defined(found[name][1])}
        for name in names
    ]


def _defined(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


def _cell(
    grid: Grid,
    place: tuple[int, int, int],
    base: int,
    orders: Sequence[int],
    weights: NDArray[np.int64],
) -> dict[str, Any]:
    engine, load, source = place
    num_windows = grid.num_windows(source)
    num_real = int(grid.is_real[source, :num_windows].sum())
    queued = grid.column("fcfs_queued_steps")
    steps = np.array([]) if queued is None else queued[place]
    steps = steps[~np.isnan(steps)]
    values = grid.values[place][:, :, :num_windows]
    drawn = mean_draws(values, weights)
    with np.errstate(divide="ignore", invalid="ignore"):
        low, high = intervals(drawn / drawn[:, [base]] - 1)
    if num_windows == 1:  # which has no spread that could be seen
        low, high = np.full((2, *low.shape), np.nan)
    return {
        "engine": grid.engines[engine],
        "load": grid.loads[load],
        "source": grid.sources[source],
        "num_real": num_real,
        "num_modelled": num_windows - num_real,
        # Policies of the slot engine bring limits of their own, and differ without a queue.
        "idle": bool(len(steps) and steps.mean() < 1 and grid.engines[engine] != SLOTS),
        "metrics": {
            metric: {
                "mean": numbers.compact(values[row].mean(axis=1), _DIGITS + 2),
                "low": numbers.compact(low[row], _DIGITS),
                "high": numbers.compact(high[row], _DIGITS),
                **_window_counts(
                    values[row] if better(metric) == "lower" else -values[row], base, orders
                ),
            }
            for row, metric in enumerate(grid.metrics)
        },
    }


def _window_counts(values: Floats, base: int, orders: Sequence[int]) -> dict[str, list[int]]:
    """Count the windows in which each policy is best, and better and worse than the reference.

    Policies that only change order (rows `orders`) are best among themselves, others among all.
    """
    best = top_set(values.T, 1, MARGIN).sum(axis=0)
    best[orders] = top_set(values[orders].T, 1, MARGIN).sum(axis=0)
    gap = values - values[base]
    tie = MARGIN * np.maximum(np.abs(values), np.abs(values[base]))
    return {
        "best": best.tolist(),
        "better": (gap < -tie).sum(axis=1).tolist(),
        "worse": (gap > tie).sum(axis=1).tolist(),
    }


def _sources(windows: pa.Table) -> dict[str, dict[str, Any]]:
    """Return each source's features, and how many of its windows were real."""
    table = windows.to_pydict()
    sources = {}
    for name in dict.fromkeys(table["source"]):
        kinds = [
            kind
            for source, kind in zip(table["source"], table["kind"], strict=True)
            if source == name
        ]
        sources[str(name)] = {
            "num_real": kinds.count("real"),
            "num_modelled": kinds.count("modelled"),
            "features": table_features(table, name),
        }
    return sources

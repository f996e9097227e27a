"""The analysis of a study: runs in, tables out. ``docs/background/study.md`` defines each.

Everything is deterministic, and a value that is undefined is None, never a number put in its place.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import combinations
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from queuesmith.errors import ConfigError
from queuesmith.study.agreement import (
    agreement,
    concordance,
    metric_agreement,
    same_metrics,
    summarize_agreement,
)
from queuesmith.study.conditions import Conditions, block_len, measure_conditions
from queuesmith.study.grid import make_grid
from queuesmith.study.published_keys import published_keys
from queuesmith.study.reversals import count_classes, find_reversals
from queuesmith.study.rules import FEW, LSSP, METRICS, Options
from queuesmith.study.sample_complexity import sample_complexity, spread
from queuesmith.study.sensitivity import (
    leave_one_source_out,
    prediction_sensitivity,
    slo_sensitivity,
    temporal,
    with_prediction,
)
from queuesmith.study.variance import variance
from queuesmith.study.winners import disagreement, relative, who_wins
from queuesmith.study.words import scopes, within

__all__ = ["LSSP", "SCHEMA", "Options", "analyze", "published_keys"]

SCHEMA = "queuesmith.study.analysis/2"


def analyze(
    runs: pa.Table, windows: pa.Table | None = None, options: Options | None = None
) -> dict[str, Any]:
    """Analyse the runs of a study.

    Parameters
    ----------
    runs : pyarrow.Table
        One row per (engine, source, window, load, prediction, policy) with every metric.
    windows : pyarrow.Table, optional
        One row per window; says which windows adjoin.

    Returns
    -------
    dict
        Of schema ``queuesmith.study.analysis/2``: numbers, text, lists and dicts only, so that it
        can be written as JSON. ``docs/background/study.md`` lists the keys.

    Raises
    ------
    ConfigError
        If a column is missing, a run is there twice, or nothing is left to analyse.
    """
    wanted = options or Options()
    options = _settled(runs, wanted)
    metrics = options.metrics or ()
    grid = make_grid(
        runs,
        windows,
        metrics=metrics,
        prediction=options.prediction or "",
        leave_out=options.leave_out,
    )
    conditions = measure_conditions(grid, options)
    same = same_metrics(grid)
    distinct = [metric for metric in grid.metrics if metric not in same]
    agreed = agreement(conditions)
    between_metrics = metric_agreement(conditions, combinations(distinct, 2))
    reversals, counts = find_reversals(conditions)
    for row in agreed:
        names = ("axis", "a", "b", "engine", "load", "source", "metric")
        row["reversals"] = counts[tuple(row[name] for name in names)]
    samples, spreads = sample_complexity(conditions), spread(conditions)
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "options": asdict(options),
        "engines": list(grid.engines),
        "loads": list(grid.loads),
        "policies": list(grid.policies),
        "metrics": list(grid.metrics),
        "same_metrics": same,
        "sources": _sources(conditions),
        "agreement": agreed,
        "metric_agreement": between_metrics,
        "concordance": concordance(conditions),
        "reversals": reversals,
        "who_wins": who_wins(conditions),
        "relative": relative(conditions),
        "sample_complexity": [row for row in samples if row["load"] is not None],
        "spread": [row for row in spreads if row["load"] is not None],
        "over_loads": {
            "sample_complexity": [row for row in samples if row["load"] is None],
            "spread": [row for row in spreads if row["load"] is None],
        },
        "temporal": temporal(conditions),
        "leave_one_source_out": leave_one_source_out(conditions),
    }
    _add_sums(document, conditions)
    del conditions  # its draws are most of the memory
    document["slo_sensitivity"] = slo_sensitivity(runs, windows, options)
    document["prediction_sensitivity"] = prediction_sensitivity(runs, windows, options, metrics)
    unknown = [name for name in wanted.metrics or () if name not in metrics]
    document["notes"] = [*grid.notes, *_notes(document, unknown)]
    plain: dict[str, Any] = _plain(document)
    return plain


def _add_sums(document: dict[str, Any], conditions: Conditions) -> None:
    """Add what is summed over engines, for those with a GPU and, apart, with toys among them."""
    sums: dict[str, list[dict[str, Any]]] = {}
    for scope, engines in scopes(conditions.grid.engines).items():
        agreed, between = (
            [row for row in document[name] if within(row, engines)]
            for name in ("agreement", "metric_agreement")
        )
        every = [*agreed, *between]
        disagreed = disagreement(conditions.of_engines(engines), document["same_metrics"])
        for name, rows in {
            "agreement_summary": summarize_agreement(every, ("axis", "a", "b"), scope),
            "agreement_by_metric": summarize_agreement(agreed, ("axis", "metric"), scope),
            "reversal_counts": count_classes(agreed, scope),
            "disagreement": [{"scope": scope, **disagreed}],
            "variance": variance(conditions, engines, scope),
        }.items():
            sums.setdefault(name, []).extend(rows)
    document.update(sums)


def _settled(runs: pa.Table, options: Options) -> Options:
    """Fill in the prediction and the metrics, and check the reference."""
    for name in ("prediction", "policy"):
        if name not in runs.column_names:
            raise ConfigError(
                f"the runs of a study have no column {name!r}; run the study again with this "
                "version"
            )
    if not len(runs):
        raise ConfigError("the study has no runs; run it with `queuesmith study run` first")
    options = with_prediction(runs, options)
    wanted = options.metrics or [name for name in METRICS if name in runs.column_names]
    known = [name for name in wanted if name not in runs.column_names or _any(runs, name)]
    if not known:
        raise ConfigError(
            f"the study has no metric to analyse: {', '.join(options.metrics or METRICS)} are all "
            "missing or undefined in every run"
        )
    options = replace(options, metrics=tuple(known))
    policies = set(pc.unique(runs["policy"]).to_pylist()) - set(options.leave_out)
    if options.reference not in policies:
        raise ConfigError(
            f"the reference {options.reference!r} is not among the policies of the study: "
            f"{', '.join(sorted(policies))}; name one of them"
        )
    return options


def _any(runs: pa.Table, name: str) -> bool:
    values = pc.fill_null(runs[name].cast(pa.float64()), float("nan"))
    return not bool(pc.all(pc.is_nan(values)).as_py())


def _sources(conditions: Conditions) -> list[dict[str, Any]]:
    grid = conditions.grid
    rows = []
    for source, name in enumerate(grid.sources):
        total = grid.num_windows(source)
        real = int(grid.is_real[source, :total].sum())
        rows.append(
            {
                "source": name,
                "num_windows": total,
                "real": real,
                "modelled": total - real,
                "block_len": block_len(grid, source),
                "hint": total < FEW,
            }
        )
    return rows


def _notes(document: Mapping[str, Any], unknown: Sequence[str]) -> list[str]:
    notes = []
    if unknown:
        notes.append(f"Undefined in every run, and left out: {', '.join(unknown)}.")
    few = [one["source"] for one in document["sources"] if one["hint"]]
    if few:
        notes.append(
            f"{', '.join(few)}: fewer than {FEW} windows, so what is said of them is a hint."
        )
    modelled = [
        f"{one['source']} {one['modelled']} of {one['num_windows']}"
        for one in document["sources"]
        if one["modelled"]
    ]
    if modelled:
        notes.append(
            f"Windows of modelled traffic, which show what a source's model does: "
            f"{', '.join(modelled)}."
        )
    for repeated, kept in document["same_metrics"].items():
        notes.append(f"{repeated} repeats {kept} by construction and is counted once.")
    return notes


def _plain(value: Any) -> Any:
    """Replace what JSON cannot hold (NaN and infinities) by None, tuples by lists."""
    kind = type(value)
    if kind is float:
        return value if math.isfinite(value) else None
    if kind is dict:
        return {key: _plain(item) for key, item in value.items()}
    if kind is list or kind is tuple:
        return [_plain(item) for item in value]
    return value

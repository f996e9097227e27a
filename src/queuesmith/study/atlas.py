"""Everything a study says, in one document: facts, summary, analysis, and its tables."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import csv, parquet

from queuesmith.errors import ConfigError
from queuesmith.study.design_file import SLOTS
from queuesmith.study.facts import carry_over, facts
from queuesmith.study.portability import LSSP, Options, analyze, published_keys
from queuesmith.study.published import compare_with_published
from queuesmith.study.published_findings import (
    findings_sentence,
    follows_published,
    published_findings,
)
from queuesmith.study.summary import main_prediction, summarize_study

SCHEMA = "queuesmith.atlas/2"
#: Rows of a table that is written as CSV; longer ones are Parquet.
LONGEST = 2_000
#: Rows of a table that is in the document as well.
BRIEFEST = 300


def make_atlas(study: Any, *, command: str = "", draws: int | None = None) -> dict[str, Any]:
    """Analyse a study and say what it shows.

    Returns
    -------
    dict
        Of schema ``queuesmith.atlas/2``: `study` (what was run), `answers` (facts; the first is the
        headline), `carry_over`, `warnings`, `summary`, `analysis`, `published` (its numbers and
        ours, for the design that follows the published study to the letter), `findings` (of the
        published study, for any study of its sources), `command` and `tables` (name to file).
    """
    document = study.document
    options = _options(study)
    if draws is not None:
        options = replace(options, draws=draws)
    analysis = analyze(study.runs, study.windows, options)
    summary = summarize_study(study, draws=options.draws, leave_out=options.leave_out)
    published = (
        [_defined(row) for row in compare_with_published(published_keys(analysis))]
        if document["design"].get("engine") == SLOTS
        else []
    )
    names = list(summary["sources"])
    findings = published_findings(analysis) if follows_published(names) else []
    told = facts(summary, analysis)
    if findings:
        told.insert(1, {"topic": "published", "text": findings_sentence(findings, published)})
    atlas = {
        "schema": SCHEMA,
        "study": {
            name: document[name]
            for name in ("name", "title", "sha256", "version", "sources", "num_windows", "num_runs")
        },
        "answers": told,
        "carry_over": carry_over(summary, analysis),
        "warnings": list(analysis["notes"]),
        "summary": summary,
        "analysis": analysis,
        "published": published,
        "findings": findings,
        "command": command,
    }
    return atlas | {"tables": {name: _file(name, len(rows)) for name, rows in _rows(atlas).items()}}


def abridge(atlas: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out tables of more than `BRIEFEST` rows, and the cells, which the files have."""
    analysis = {
        name: value
        for name, value in atlas["analysis"].items()
        if not (isinstance(value, list) and len(value) > BRIEFEST)
    }
    analysis["prediction_sensitivity"] = {
        name: rows
        for name, rows in analysis["prediction_sensitivity"].items()
        if len(rows) <= BRIEFEST
    }
    summary = {name: value for name, value in atlas["summary"].items() if name != "cells"}
    return {**atlas, "summary": summary, "analysis": analysis}


def write_tables(atlas: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write the tables behind the page: CSV where short, Parquet where long."""
    paths = []
    for name, table in tables(atlas).items():
        path = folder / atlas["tables"][name]
        try:
            if path.suffix == ".csv":
                csv.write_csv(table, path)
            else:
                parquet.write_table(table, path, compression="zstd")
        except OSError as error:
            raise ConfigError(
                f"{path} cannot be written: {error.strerror or error}; choose another folder"
            ) from None
        paths.append(path)
    return paths


def _file(name: str, num_rows: int) -> str:
    return f"{name}.{'csv' if num_rows <= LONGEST else 'parquet'}"


def _defined(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with None for what is not a number, which JSON has no word for."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in row.items()
    }


def _options(study: Any) -> Options:
    """Return the rules of analysis that a design asks for."""
    design = study.document["design"]
    if design.get("engine") == SLOTS:
        return LSSP
    return Options(
        metrics=tuple(design["metrics"]),
        reference=design["reference"],
        prediction=main_prediction(study),
    )


def tables(atlas: Mapping[str, Any]) -> dict[str, pa.Table]:
    """Return the tables behind the page by name; each has a row per thing measured.

    Values within a row that are lists or mappings are flattened: ``in_a.margin`` is the margin on
    the first side of a reversal, and lists are joined by spaces.
    """
    return {
        name: pa.Table.from_pylist([_flat(row) for row in rows])
        for name, rows in _rows(atlas).items()
    }


def _rows(atlas: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of every table that has any."""
    analysis = atlas["analysis"]
    found = {
        name: analysis[name]
        for name in (
            "who_wins",
            "relative",
            "agreement",
            "metric_agreement",
            "agreement_summary",
            "concordance",
            "reversals",
            "reversal_counts",
            "sample_complexity",
            "spread",
            "temporal",
            "leave_one_source_out",
            "variance",
            "slo_sensitivity",
        )
    }
    found["prediction_agreement"] = analysis["prediction_sensitivity"]["agreement"]
    found["prediction_effect"] = analysis["prediction_sensitivity"]["effect"]
    found["metric_disagreement"] = [
        {"scope": one["scope"], **row} for one in analysis["disagreement"] for row in one["pairs"]
    ]
    found["carry_over"] = atlas["carry_over"]
    found["published"] = atlas["published"]
    found["findings"] = atlas["findings"]
    found["answers"] = atlas["answers"]
    return {name: rows for name, rows in found.items() if rows}


def _flat(row: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        elif isinstance(value, list):
            flat[prefix + name] = " ".join(_item(item) for item in value)
        else:
            flat[prefix + name] = value
    return flat


def _item(item: Any) -> str:
    if isinstance(item, list):
        return "+".join(str(one) for one in item)
    return "" if item is None else str(item)

"""``queuesmith simulate``: one run, request by request."""

import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from queuesmith.cli.options import (
    EngineOptions,
    TrafficOptions,
    build_engine,
    parse_slo,
)
from queuesmith.cli.options import (
    load as load_requests,
)
from queuesmith.cli.output import check_file, write_whole
from queuesmith.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

    from queuesmith.engine.result import Result

SCHEMA = "queuesmith.simulate/1"


def simulate(
    trace: str,
    *,
    policy: str = "fcfs",
    load: Annotated[str, Parameter(name=["--load", "--rho"])] = "own",
    slo: str = "ttft=1.0,tpot=0.05",
    output_length: str = "noisy",
    horizon: float = math.inf,
    seed: int = 0,
    requests: Path | None = None,
    timeline: Path | None = None,
    json_: Annotated[bool, Parameter(name="--json", negative=())] = False,
    traffic: TrafficOptions | None = None,
    engine: EngineOptions | None = None,
) -> None:
    """Replay a trace once; write a row per request and a timeline.

    Parameters
    ----------
    trace
        A file of requests, or NAME@model for modelled traffic (azure_2023_conv@model).
    policy
        A name or a file.
    load
        own (the trace's own rate), offered rate over what the engine carries (0.9, or light,
        moderate, busy, knee, overload, heavy), or requests per second (6/s).
    slo
        Limits in seconds for goodput and attainment, ttft, tpot and e2el; or none.
    output_length
        What the policy may know of output lengths: none, noisy, noisy:SIGMA or exact.
    horizon
        Seconds from which no step starts any more.
    seed
        Of predictions and models.
    requests
        Write one row per request to this .parquet or .csv file.
    timeline
        Write steps, requests, queue and KV cache to this .json file, for Perfetto.
    json_
        Print the summary as one JSON document instead of a table.
    """
    from queuesmith.engine import simulate
    from queuesmith.engine.isolated_latency import e2el_alone
    from queuesmith.evaluation.evaluate import parse_load, scale_to_load
    from queuesmith.metrics import summarize

    if requests is not None and requests.suffix not in (".parquet", ".csv"):
        raise ConfigError(f"--requests writes .parquet or .csv, got {str(requests)!r}")
    for option, path in (("--requests", requests), ("--timeline", timeline)):
        if path is not None:
            check_file(path, option)
    if not horizon > 0:
        raise ConfigError(f"--horizon must be above 0 seconds, got {horizon:g}")
    limits = parse_slo(slo)
    preset, notes = build_engine(engine or EngineOptions())
    offered = parse_load(load)
    arrivals = load_requests(trace, traffic or TrafficOptions(), seed)
    arrivals = scale_to_load(arrivals, offered, preset.config, preset.step_time)
    result = simulate(
        arrivals,
        policy,
        engine=preset,
        output_length=output_length,
        seed=seed,
        horizon=horizon,
        record=timeline is not None,
    )
    rows = result.requests
    alone = e2el_alone(rows.prompt_len, rows.output_len, preset.config, preset.step_time)
    if result.num_dropped:
        notes.append(f"{result.num_dropped} requests can never run on this engine; left out")
    if result.num_truncated:
        notes.append(f"{result.num_truncated} outputs were cut by max_model_len or max_tokens")
    origin = result.trace.origin
    notes += origin.guesses
    document = {
        "schema": SCHEMA,
        "origin": {"kind": origin.kind, "source": origin.source, "sha256": origin.sha256},
        "policy": result.policy,
        "engine": preset.name,
        "provenance": preset.step_time.provenance,
        "metrics": {
            name: value if math.isfinite(value) else None
            for name, value in summarize(result, limits, alone).items()
        },
        "warnings": notes,
    }
    if requests is not None:
        write_whole(requests, lambda path: _write_table(_table(result), path, requests.suffix))
    if timeline is not None:
        from queuesmith.report.traffic.timeline import write_timeline

        write_whole(timeline, lambda path: write_timeline(result, path))
    if json_:
        print(json.dumps(document, indent=1))
    else:
        _print(document)
    for path in (requests, timeline):
        if path is not None:
            print(f"wrote {path}", file=sys.stderr)


def _table(result: "Result") -> "pa.Table":
    import pyarrow as pa

    rows = result.requests
    return pa.table({name: rows[name] for name in rows.dtype.names or ()})


def _write_table(table: "pa.Table", path: Path, suffix: str) -> None:
    from pyarrow import csv, parquet

    if suffix == ".csv":
        csv.write_csv(table, path)
    else:
        parquet.write_table(table, path, compression="zstd")


def _print(document: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    from queuesmith.metrics import METRICS

    origin = document["origin"]
    console = Console(markup=False)
    console.print(
        f"{origin['kind']} traffic: {origin['source']}; policy {document['policy']}; engine "
        f"{document['engine']} ({document['provenance']})",
        highlight=False,
        markup=False,
    )
    table = Table(box=None, pad_edge=False)
    for name in ("metric", "value", "unit"):
        table.add_column(name, justify="right" if name == "value" else "left")
    for name, value in document["metrics"].items():
        if value is not None:
            unit = METRICS[name].unit
            table.add_row(name, f"{value:,.6g}", "" if unit in ("1", "count") else unit)
    console.print(table)
    for note in document["warnings"]:
        console.print(f"warning: {note}", highlight=False, markup=False)

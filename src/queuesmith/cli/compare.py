"""``queuesmith compare``: which policy to run."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from queuesmith.cli.options import (
    EngineOptions,
    TrafficOptions,
    build_engine,
    load_windows,
    parse_slo,
)
from queuesmith.cli.output import (
    check_place,
    command_line,
    make_folder,
    progress_bar,
    reader_may_leave,
    write_whole,
)
from queuesmith.errors import ConfigError

if TYPE_CHECKING:
    from queuesmith.comparison.compare import Comparison


def compare(
    trace: str,
    *,
    policies: str | None = None,
    policy: Annotated[list[str] | None, Parameter(negative=())] = None,
    goal: str = "ttft",
    guard: Annotated[list[str] | None, Parameter(negative=())] = None,
    loads: str = "own,knee,heavy",
    windows: int | None = None,
    window_len: int = 1000,
    part: str | None = None,
    slo: str = "ttft=1.0,tpot=0.05",
    output_length: str = "noisy",
    seed: int = 0,
    replicas: int = 1,
    router: str = "round_robin",
    closed_loop: Annotated[bool, Parameter(negative=())] = False,
    fail_if: Annotated[list[str] | None, Parameter(negative=())] = None,
    full: Annotated[bool, Parameter(negative=())] = False,
    output: Path | None = None,
    json_: Annotated[bool, Parameter(name="--json", negative=())] = False,
    workers: int | None = None,
    backend: str = "threading",
    scheduler_address: str | None = None,
    traffic: TrafficOptions | None = None,
    engine: EngineOptions | None = None,
) -> int:
    """Replay a trace under many policies and loads; say which policy to run.

    Writes report.html, comparison.json and cells.parquet to a folder of their own.

    Parameters
    ----------
    trace
        A file of requests, a name from `queuesmith traces list`, NAME@model for modelled traffic
        (azure_2023_conv@model), or a file of windows.
    policies
        Names or files, separated by commas; `all` for every built-in, some thirteen when left out.
        aged_sjf(SECONDS_PER_TOKEN=0.001|0.01) is judged with the value that other windows choose.
    policy
        One more policy beside those: ./my_policy.py. May be given several times.
    goal
        What the policy is chosen by: ttft (mean), e2el (mean), slo (attainment), goodput or tpot
        (mean).
    guard
        What must not get worse, and by how much: e2el_p99=0.2, itl_p99=off, or a .toml file of
        such lines. May be given several times; all guards are on by default.
    loads
        own (the trace's own rate), offered rate over what the engine carries (0.9, or light 0.3,
        moderate 0.6, busy 0.8, knee 0.95, overload 1.1, heavy 1.5), or requests/s (6/s).
    windows
        How many windows to cut from the trace; 32, or as many as fit, when left out.
    window_len
        Requests in each.
    part
        Of a window set: tuning (when left out), validation or held_out.
    slo
        Limits in seconds for goodput and attainment, ttft, tpot and e2el; or none.
    output_length
        What policies may know of output lengths: none, noisy, noisy:SIGMA or exact.
    seed
        Of windows, predictions, models, random routers and bootstrap.
    replicas
        Engines that serve the traffic together; a load is the rate over what all of them carry.
    router
        Which of them gets a request: round_robin, random, least_loaded, power_of_two,
        prefix_affinity, vllm_data_parallel, or a file.
    closed_loop
        Let later turns of a session wait for the answer before; loads scale first arrivals only.
    fail_if
        Exit with 1 when this holds for a --policy (for any policy without one), at any load:
        "ttft_p99 > 1.05*fcfs", "slo_attainment < 0.99 @ knee". May be given several times.
    full
        Print every policy at every load, and not only the first five.
    output
        Folder to write to; runs/TIME-HASH when left out.
    json_
        Print the whole result as one JSON document instead of tables.
    workers
        Runs at a time; one per core when left out. The result does not depend on it.
    backend
        threading, loky (processes), dask or ray. The result does not depend on it.
    scheduler_address
        Of a Dask or Ray cluster that is there; dask and ray start workers on this machine when
        neither this nor DASK_SCHEDULER_ADDRESS or RAY_ADDRESS names one.
    """
    from rich.console import Console

    from queuesmith.backends import Backend
    from queuesmith.comparison.compare import compare
    from queuesmith.comparison.panel import DEFAULT_POLICIES, split_grids, with_reference
    from queuesmith.evaluation.evaluate import parse_loads
    from queuesmith.evaluation.goals import get_goal, parse_guards
    from queuesmith.limits import Limit
    from queuesmith.policies import get_policy, policy_names, split_policies
    from queuesmith.report.text import print_comparison

    Backend.choose(backend, workers, scheduler_address)  # before anything takes time
    limit_slo = parse_slo(slo)
    get_goal(goal, limit_slo)
    parse_guards(guard or [])
    if policies is None:
        names = list(DEFAULT_POLICIES)
    else:
        names = policy_names() if policies == "all" else split_policies(policies)
    own = [get_policy(spec) for spec in policy or []]
    if not names and not own:
        raise ConfigError("--policies names no policy; `queuesmith policies` lists them")
    singles, grids = split_grids([*names, *own])
    chosen = [
        *with_reference(singles),
        *(member for grid in grids for member in grid.members),
    ]
    regions = parse_loads(loads)
    limits = [
        Limit.parse(text, [one.name for one in chosen], [region.name for region in regions])
        for text in fail_if or []
    ]
    preset, notes = build_engine(engine or EngineOptions())
    check_place(output or Path("runs"), "--output")
    requests, window_set = load_windows(trace, traffic or TrafficOptions(), seed, part)

    with progress_bar("comparing") as progress:
        comparison = compare(
            requests,
            [*names, *own],
            regions,
            engine=preset,
            slo=limit_slo,
            goal=goal,
            guards=guard or [],
            output_length=output_length,
            num_windows=windows,
            window_len=window_len,
            seed=seed,
            replicas=replicas,
            router=router,
            closed_loop=closed_loop,
            backend=backend,
            num_workers=workers,
            scheduler_address=scheduler_address,
            progress=progress,
            notes=notes,
            window_set=window_set,
        )
    comparison.config["command"] = command_line()
    watched = [one.name for one in own] or comparison.config["policies"]
    rows = [(row.policy, row.load, row.metrics) for row in comparison.loads]
    failed = [line for limit in limits for line in limit.broken(rows, watched)]
    document = comparison.to_json() | {"failed": failed}
    report = _write(comparison, document, output)
    with reader_may_leave():
        if json_:
            print(json.dumps(document, indent=1))
        else:
            print_comparison(comparison, Console(markup=False), full=full)
    for line in failed:
        print(f"failed: {line}", file=sys.stderr)
    print(f"report: {report}", file=sys.stderr)
    return 1 if failed else 0


def _write(comparison: "Comparison", document: dict[str, Any], output: Path | None) -> Path:
    """Write the report and what it was made from; return the report's path."""
    from pyarrow import parquet

    from queuesmith.report import write_html

    folder = make_folder(output, comparison.config["sha256"])
    write_whole(
        folder / "comparison.json",
        lambda path: path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8"),
    )
    write_whole(
        folder / "cells.parquet",
        lambda path: parquet.write_table(comparison.cells, path, compression="zstd"),
    )
    return write_whole(
        folder / "report.html",
        lambda path: write_html(comparison, path),
    )

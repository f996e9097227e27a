"""``queuesmith plan``: how much traffic an engine carries within an SLO, under which policy."""

import json
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    from queuesmith.planning import Plan


@Parameter(name="*")
@dataclass
class EnginesOptions:
    """The engines to simulate.

    Attributes
    ----------
    engine
        Preset: MODEL/GPU, constant_1ms, or the .toml file that `queuesmith calibrate` wrote. May be
        given several times.
    engine_args
        Options of your own `vllm serve`, in quotes, on top of every preset.
    model_config
        A model's config.json, for a roofline engine (unmeasured) instead of a preset; needs
        --gpu-bandwidth, --gpu-flops and --gpu-memory.
    gpu_bandwidth
        Memory bandwidth, bytes/s, such as 3.35e12.
    gpu_flops
        Peak FLOP/s at the precision of the weights, such as 989e12.
    gpu_memory
        GiB.
    host_overhead
        Seconds of CPU time of every step, in place of the preset's. Under asynchronous scheduling
        they pass while the GPU computes.
    vllm_version
        Whose rules the scheduler follows, 0.29 to 0.33, where they differ; 0.32 when left out.
    """

    engine: Annotated[list[str], Parameter(negative=())] = field(
        default_factory=lambda: [EngineOptions.engine]
    )
    engine_args: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None
    model_config: Path | None = None
    gpu_bandwidth: float | None = None
    gpu_flops: float | None = None
    gpu_memory: float | None = None
    host_overhead: float | None = None
    vllm_version: str | None = None


def plan(
    trace: str,
    *,
    slo: str = "ttft=1.0,tpot=0.05",
    attainment: float = 0.99,
    policies: str | None = None,
    policy: Annotated[list[str] | None, Parameter(negative=())] = None,
    guard: Annotated[list[str] | None, Parameter(negative=())] = None,
    windows: int | None = None,
    window_len: int = 1000,
    part: str | None = None,
    output_length: str = "noisy",
    seed: int = 0,
    output: Path | None = None,
    json_: Annotated[bool, Parameter(name="--json", negative=())] = False,
    workers: int | None = None,
    traffic: TrafficOptions | None = None,
    engines: EnginesOptions | None = None,
) -> None:
    """Find out up to which rate each policy holds an SLO on this traffic, and which carries most.

    Writes report.html, plan.json and probes.parquet to a folder of their own.

    Parameters
    ----------
    trace
        A file of requests, a name from `queuesmith traces list`, NAME@model for modelled traffic
        (azure_2023_conv@model), or a file of windows.
    slo
        Limits in seconds: ttft, tpot and e2el.
    attainment
        Share of requests that must meet all of them.
    policies
        Names or files, separated by commas; `all` for every built-in, those of `compare` when left
        out. Of aged_sjf(SECONDS_PER_TOKEN=0.001|0.01) each value is a policy of its own.
    policy
        One more policy beside those: ./my_policy.py. May be given several times.
    guard
        What must not get worse at the trace's own rate and at fcfs's capacity, and by how much:
        e2el_p99=0.2, itl_p99=off, or a .toml file of such lines. May be given several times; all
        guards are on by default.
    windows
        How many windows to cut from the trace; 16, or as many as fit, when left out.
    window_len
        Requests in each.
    part
        Of a window set: tuning (when left out), validation or held_out.
    output_length
        What policies may know of output lengths: none, noisy, noisy:SIGMA or exact.
    seed
        Of windows, predictions, models and bootstrap.
    output
        Folder to write to; runs/TIME-HASH when left out.
    json_
        Print the whole result as one JSON document instead of tables.
    workers
        Threads; one per core when left out.
    """
    from rich.console import Console

    from queuesmith.comparison.panel import DEFAULT_POLICIES, split_grids
    from queuesmith.evaluation.goals import parse_guards
    from queuesmith.planning import plan
    from queuesmith.policies import policy_names, split_policies
    from queuesmith.report.plan import print_plan

    if policies is None:
        names = list(DEFAULT_POLICIES)
    else:
        names = policy_names() if policies == "all" else split_policies(policies)
    chosen = [*names, *(policy or [])]
    if not chosen:
        raise ConfigError("--policies names no policy; `queuesmith policies` lists them")
    split_grids(chosen)  # before anything takes time
    parse_guards(guard or [])
    options = asdict(engines or EnginesOptions())
    presets, notes = [], []
    for name in options.pop("engine"):
        preset, remarks = build_engine(EngineOptions(engine=name, **options))
        presets.append(preset)
        notes += [line for line in remarks if line not in notes]
    limits = parse_slo(slo)
    check_place(output or Path("runs"), "--output")
    requests, window_set = load_windows(trace, traffic or TrafficOptions(), seed, part)

    with progress_bar("planning") as progress:
        made = plan(
            requests,
            slo=limits,
            policies=chosen,
            engine=presets,
            attainment=attainment,
            guards=guard or [],
            output_length=output_length,
            num_windows=windows,
            window_len=window_len,
            seed=seed,
            num_workers=workers,
            progress=progress,
            notes=notes,
            window_set=window_set,
        )
    made.document["config"]["command"] = command_line()
    report = _write(made, output)
    with reader_may_leave():
        if json_:
            print(json.dumps(made.document, indent=1))
        else:
            print_plan(made.document, Console(markup=False))
    print(f"report: {report}", file=sys.stderr)


def _write(made: "Plan", output: Path | None) -> Path:
    """Write the report and what it was made from; return the report's path."""
    from pyarrow import parquet

    from queuesmith.report.plan import write_plan

    document = made.document
    folder = make_folder(output, document["config"]["sha256"])
    write_whole(
        folder / "plan.json",
        lambda path: path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8"),
    )
    write_whole(
        folder / "probes.parquet",
        lambda path: parquet.write_table(made.probes, path, compression="zstd"),
    )
    return write_whole(folder / "report.html", lambda path: write_plan(document, path))

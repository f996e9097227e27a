"""``queuesmith calibrate``: the step times of your own engine."""

import json
import math
import platform
import sys
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from queuesmith.cli.output import check_file, progress_bar, write_whole
from queuesmith.errors import ConfigError

if TYPE_CHECKING:
    from queuesmith.deploy.calibrate import Driven, Steps
    from queuesmith.engine.presets.step_time import Preset

SCHEMA = "queuesmith.calibrate/1"


def calibrate(
    *,
    model: str | None = None,
    records: Annotated[list[Path] | None, Parameter(negative=())] = None,
    engine_args: Annotated[str, Parameter(allow_leading_hyphen=True)] = "",
    hardware: str | None = None,
    seconds: float = 30.0,
    timeout: float = 600.0,
    seed: int = 0,
    output: Path = Path("engine.toml"),
    json_: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """Fit the step times of your own engine; write a file for --engine.

    What was recorded, and what the server said, stays in a folder beside that file.

    Parameters
    ----------
    model
        Start a vLLM server for this model, drive it, and stop it; nobody else may use the machine
        meanwhile.
    records
        Instead: files of steps that were recorded, such as `ab` leaves beside its runs.
    engine_args
        Options of your own `vllm serve`, in quotes.
    hardware
        What it runs on, for the provenance, such as "H100 80GB"; asked from the system when left
        out.
    seconds
        How long each of two stretches of mixed traffic lasts.
    timeout
        Seconds without a new token after which the server has failed.
    seed
        Of the traffic.
    output
        File to write.
    json_
        Print everything as one JSON document instead of a table.
    """
    from queuesmith.deploy.calibrate import errors, fit_step_time, repeatability
    from queuesmith.deploy.engine_file import config_of, preset_toml

    if (model is None) == (records is None):
        raise ConfigError("give either --model, to drive a server, or --records of one that ran")
    if output.suffix != ".toml":
        raise ConfigError(f"--output must end in .toml, got {str(output)!r}")
    if not 0 < seconds < 86_400:
        raise ConfigError(f"--seconds must be above 0, got {seconds:g}")
    check_file(output, "--output")
    driven: Driven | None = None
    folder = output.with_name(f"{output.stem}-run")
    if model is not None:
        header, driven = _drive(model, engine_args, folder, seconds, timeout, seed)
        fitted, unseen, how = driven.fitted, driven.unseen, f"driven by a grid, {model}"
    else:
        header, fitted, unseen = _read(records or [])
        how = f"records {', '.join(path.name for path in records or [])}"
    where = hardware or _hardware()
    is_async = config_of(header).async_scheduling
    provenance = (
        f"measured by queuesmith calibrate on {where}, vLLM {header.get('vllm')}"
        f"{', asynchronous scheduling' if is_async else ''}, "
        f"{date.today().isoformat()}; {how}"
    )
    step_time = fit_step_time(fitted, provenance)
    preset = _preset(header, step_time, model, where)
    floor = repeatability(unseen if len(unseen) else fitted)
    fit: dict[str, Any] = {
        "num_fitted": len(fitted),
        "num_unseen": len(unseen),
        "fitted": errors(step_time, fitted),
        "unseen": errors(step_time, unseen) if len(unseen) else {},
        "repeatability": None if math.isnan(floor) else floor,
    }
    document = {
        "schema": SCHEMA,
        "name": preset.name,
        "provenance": provenance,
        "step_time": {
            name: value for name, value in asdict(step_time).items() if name != "provenance"
        },
        "engine": asdict(preset.config),
        "fit": fit,
        "replay": None if driven is None else _compare(driven, preset),
    }
    text = preset_toml(preset, fit)
    write_whole(output, lambda path: path.write_text(text, encoding="utf-8"))
    if json_:
        print(json.dumps(document, indent=1))
    else:
        _print(document)
    print(f"wrote {output}; use it with --engine {output}", file=sys.stderr)
    return 0


def _drive(
    model: str, engine_args: str, folder: Path, seconds: float, timeout: float, seed: int
) -> "tuple[dict[str, Any], Driven]":
    from queuesmith.deploy.arms import read_steps
    from queuesmith.deploy.calibrate import drive
    from queuesmith.deploy.engine_file import config_of
    from queuesmith.deploy.local_server import LocalServer

    with (
        LocalServer(model, engine_args, {"QUEUESMITH_POLICY": ""}, folder, timeout) as own,
        progress_bar("driving") as progress,
    ):
        header = read_steps(own.steps)[0]
        driven = drive(
            own.server,
            own.server.find_model(),
            config_of(header),
            lambda: read_steps(own.steps)[1],
            seconds=seconds,
            seed=seed,
            progress=progress,
        )
    return header, driven


def _read(paths: list[Path]) -> "tuple[dict[str, Any], Steps, Steps]":
    from queuesmith.deploy.arms import read_steps
    from queuesmith.deploy.calibrate import Steps, split

    headers, fitted, unseen = [], Steps.of([]), Steps.of([])
    for path in paths:
        header, records = read_steps(path)
        headers.append(header)
        for_fit, other = split(Steps.of(records))
        fitted, unseen = fitted.join(for_fit), unseen.join(other)
    if any(header != headers[0] for header in headers):
        raise ConfigError("the records are of engines with different settings; fit them apart")
    return headers[0], fitted, unseen


def _preset(header: dict[str, Any], step_time: Any, model: str | None, where: str) -> "Preset":
    from queuesmith.deploy.engine_file import config_of
    from queuesmith.engine.presets.step_time import Preset

    name = f"{Path(model).name if model else 'recorded'}/{where}"
    return Preset(name, f"{name}, measured", step_time, config_of(header))


def _compare(driven: "Driven", preset: "Preset") -> dict[str, Any]:
    """Simulate the traffic that was kept from the fit, and lay it beside what was measured."""
    from queuesmith.engine.compile import compile_policy
    from queuesmith.engine.run import simulate_workload
    from queuesmith.policies import get_policy

    result = simulate_workload(
        driven.replayed, compile_policy(get_policy("fcfs")), preset.config, preset.step_time
    )
    rows = result.requests
    simulated = float((rows.first_token_ts - rows.arrival_time).mean())
    measured = sum(one.ttft for one in driven.served) / len(driven.served)
    return {
        "num_requests": len(driven.served),
        "measured_ttft_mean": measured,
        "simulated_ttft_mean": simulated,
        "error": simulated / measured - 1,
    }


def _hardware() -> str:
    """Return the name of the GPU if there is one, else of the processor."""
    try:
        import torch  # type: ignore[import-not-found,unused-ignore]

        if torch.cuda.is_available():
            return str(torch.cuda.get_device_name())
    except ImportError:
        pass
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        if names:
            return f"{names[0]} ({len(names)} CPUs)"
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _print(document: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    from queuesmith import numbers

    console = Console(markup=False)
    console.print(document["provenance"], highlight=False, markup=False)
    table = Table(box=None, pad_edge=False)
    for name in ("steps", "", "number", "mean error", "median", "p90", "error of the sum"):
        table.add_column(name, justify="right" if name not in ("steps", "") else "left")
    for side in ("fitted", "unseen"):
        for regime, error in document["fit"][side].items():
            table.add_row(
                side,
                regime,
                numbers.count(error["num_steps"]),
                *(numbers.share(error[name]) for name in ("mean", "p50", "p90")),
                numbers.change(error["total"]),
            )
    console.print(table)
    if (floor := document["fit"]["repeatability"]) is not None:
        console.print(
            f"steps of the same work differ from each other by {numbers.share(floor)} on the "
            "average; no formula can be closer",
            highlight=False,
            markup=False,
        )
    replay = document["replay"]
    if replay is not None and math.isfinite(replay["error"]):
        console.print(
            f"unseen replay of {replay['num_requests']:,} requests, first come first served: mean "
            f"TTFT {numbers.number(replay['measured_ttft_mean'])} s measured, "
            f"{numbers.number(replay['simulated_ttft_mean'])} s simulated "
            f"({numbers.change(replay['error'])})",
            highlight=False,
            markup=False,
        )

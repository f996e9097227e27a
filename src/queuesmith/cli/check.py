"""``queuesmith check``: simulated latencies against measured ones."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from queuesmith.cli.options import (
    EngineOptions,
    TrafficOptions,
    build_engine,
    load,
    load_windows,
    write_engine,
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
    from queuesmith.checking import Check
    from queuesmith.engine.presets.step_time import Preset
    from queuesmith.traces.trace import Trace

#: What `queuesmith ab` calls vLLM as it is.
STOCK = "stock"


def check(
    *logs: str,
    policy: str = "fcfs",
    within: float | None = None,
    trace: str | None = None,
    part: str | None = None,
    output_length: str = "noisy",
    seed: int = 0,
    output: Path | None = None,
    json_: Annotated[bool, Parameter(name="--json", negative=())] = False,
    traffic: TrafficOptions | None = None,
    engine: EngineOptions | None = None,
) -> int:
    """Set simulated latencies against those that a log holds; say how far to trust the simulator.

    Writes report.html, check.json and requests.parquet to a folder of their own. With --within the
    status is 1 when the claim does not hold.

    Parameters
    ----------
    logs
        Logs of one server with measured latencies, each from an idle start: results of vllm bench
        serve, AIPerf or GuideLLM, vLLM's answers or spans, LiteLLM's spend logs, a table with
        columns ttft and e2el; or the folder of `queuesmith ab`.
    policy
        What the server ran; fcfs is vLLM as it is.
    within
        Claim that every mean over the whole log is right within this share, such as 0.15.
    trace
        What was replayed, for a folder of `queuesmith ab`: the --trace it was given.
    part
        Of a window set: tuning (when left out), validation or held_out.
    output_length
        What the policy may know of output lengths: none, noisy, noisy:SIGMA or exact.
    seed
        Of bootstrap and predictions.
    output
        Folder to write to; runs/TIME-HASH when left out.
    json_
        Print the whole result as one JSON document instead of tables.
    """
    from rich.console import Console

    from queuesmith.checking import check
    from queuesmith.report.check import print_check

    if not logs:
        raise ConfigError("name a log with measured latencies: queuesmith check LOG")
    if within is not None and not 0 < within < 10:
        raise ConfigError(f"--within must be a share such as 0.15, got {within:g}")
    if seed < 0:
        raise ConfigError(f"--seed must be at least 0, got {seed}")
    preset, notes = build_engine(engine or EngineOptions())
    check_place(output or Path("runs"), "--output")
    traces: list[Trace] = []
    for log in logs:
        traces += _read(log, trace, part, policy, traffic or TrafficOptions(), seed)
    with progress_bar("simulating") as progress:
        checked = check(
            traces,
            policy,
            engine=preset,
            output_length=output_length,
            within=within,
            seed=seed,
            progress=lambda done: progress(done, max(done, 20)),
            notes=notes,
        )
    document = checked.document
    document["config"]["command"] = command_line()
    report = _write(checked, preset, output)
    with reader_may_leave():
        if json_:
            print(json.dumps(document, indent=1))
        else:
            print_check(document, Console(markup=False))
    for line in document["answer"]["failed"]:
        print(f"failed: {line}", file=sys.stderr)
    print(f"report: {report}", file=sys.stderr)
    return 1 if document["answer"]["failed"] else 0


def _read(
    log: str, trace: str | None, part: str | None, policy: str, traffic: TrafficOptions, seed: int
) -> "list[Trace]":
    from queuesmith.deploy.replayed import is_replay, read_replay
    from queuesmith.policies import get_policy

    if not is_replay(Path(log)):
        if trace is not None or part is not None:
            raise ConfigError(f"--trace and --part go with a folder of `queuesmith ab`, not {log}")
        return [load(log, traffic, seed)]
    if trace is None:
        raise ConfigError(
            f"{log} holds what `queuesmith ab` measured, which says when tokens came and not how "
            "long prompts were; give the trace that was replayed, too: --trace FILE"
        )
    name = get_policy(policy).name
    requests, _ = load_windows(trace, traffic, seed, part)
    return read_replay(Path(log), requests, STOCK if name == "fcfs" else name)


def _write(checked: "Check", preset: "Preset", output: Path | None) -> Path:
    """Write the report and what it was made from; return the report's path."""
    from pyarrow import parquet

    from queuesmith.checking import corrected_preset
    from queuesmith.report.check import write_check

    document = checked.document
    folder = make_folder(output, document["config"]["sha256"])
    write_whole(
        folder / "check.json",
        lambda path: path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8"),
    )
    corrected = corrected_preset(checked, preset)
    if corrected is not None:
        write_engine(folder / "engine.toml", corrected)
    write_whole(
        folder / "requests.parquet",
        lambda path: parquet.write_table(checked.requests, path, compression="zstd"),
    )
    return write_whole(
        folder / "report.html", lambda path: write_check(document, checked.requests, path)
    )

"""``queuesmith recommend``: what to run on a server's own log, at its own rate, or nothing."""

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
    parse_slo,
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

if TYPE_CHECKING:
    from queuesmith.comparison.recommendation import Recommendation


def recommend(
    log: str,
    *,
    slo: str = "ttft=1.0,tpot=0.05",
    goal: str = "ttft",
    seed: int = 0,
    output: Path | None = None,
    json_: Annotated[bool, Parameter(name="--json", negative=())] = False,
    workers: int | None = None,
    traffic: TrafficOptions | None = None,
    engine: EngineOptions | None = None,
) -> None:
    """Say what to run on the traffic of a log, at its own rate, and how to try it without risk.

    Checks the simulator against the log where it has latencies, and recommends a policy only if
    nothing that an operator watches surely gets worse. Writes report.html, recommendation.json
    and, where the log corrects the step times, engine.toml to a folder of their own.

    Parameters
    ----------
    log
        A file of requests, as `queuesmith compare` and `queuesmith check` read it.
    slo
        Limits in seconds for goodput and attainment, ttft, tpot and e2el; or none.
    goal
        What the policy is chosen by: ttft, e2el, slo, goodput or tpot.
    seed
        Of windows, predictions and bootstrap.
    output
        Folder to write to; runs/TIME-HASH when left out.
    json_
        Print the whole result as one JSON document instead of tables.
    workers
        Runs at a time; one per core when left out. The result does not depend on it.
    """
    from rich.console import Console

    from queuesmith.comparison.recommendation import recommend, to_json
    from queuesmith.evaluation.goals import get_goal
    from queuesmith.report.text import print_recommendation

    limits = parse_slo(slo)
    get_goal(goal, limits)
    options = engine or EngineOptions()
    preset, notes = build_engine(options)
    check_place(output or Path("runs"), "--output")
    trace = load(log, traffic or TrafficOptions(), seed)
    with progress_bar("simulating") as progress:
        found = recommend(
            trace,
            preset,
            engine_args=options.engine_args or "",
            slo=limits,
            goal=goal,
            seed=seed,
            num_workers=workers,
            progress=progress,
            notes=notes,
        )
    found.comparison.config["command"] = command_line()
    document = to_json(found)
    report = _write(found, document, output)
    with reader_may_leave():
        if json_:
            print(json.dumps(document, indent=1))
        else:
            print_recommendation(found, Console(markup=False))
    print(f"report: {report}", file=sys.stderr)


def _write(found: "Recommendation", document: dict[str, object], output: Path | None) -> Path:
    """Write the report and what it was made from; return the report's path."""
    from queuesmith.report import write_html

    folder = make_folder(output, found.comparison.config["sha256"])
    write_whole(
        folder / "recommendation.json",
        lambda path: path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8"),
    )
    if found.preset.name.endswith("-corrected"):
        write_engine(folder / "engine.toml", found.preset)
    return write_whole(folder / "report.html", lambda path: write_html(found.comparison, path))

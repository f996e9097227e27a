"""``queuesmith ab``: measure a policy against vLLM as it is."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

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
from queuesmith.documents import hide_secrets
from queuesmith.errors import ConfigError

if TYPE_CHECKING:
    from queuesmith.config import EngineConfig, Slo
    from queuesmith.deploy.ab import Cell
    from queuesmith.deploy.arms import Arm
    from queuesmith.engine.presets.step_time import Preset
    from queuesmith.evaluation.goals import Goal, Guard
    from queuesmith.policies import Policy

EXPORT_SCHEMA = "queuesmith.ab.export/1"


def ab(
    *,
    policy: str,
    trace: str,
    loads: Annotated[str | None, Parameter(name=("--loads", "--load"))] = None,
    goal: str = "ttft",
    guard: Annotated[list[str] | None, Parameter(negative=())] = None,
    slo: str = "ttft=1.0,tpot=0.05",
    base_url: tuple[str, str] | None = None,
    model: str | None = None,
    virtual_clock: Annotated[bool, Parameter(negative=())] = False,
    export: str | None = None,
    windows: int = 8,
    window_len: int = 200,
    repeats: int = 3,
    part: str | None = None,
    output_length: str = "noisy",
    served_model: str | None = None,
    machine_margin: float = 0.1,
    timeout: float = 600.0,
    seed: int = 0,
    full: Annotated[bool, Parameter(negative=())] = False,
    output: Path | None = None,
    json_: Annotated[bool, Parameter(name="--json", negative=())] = False,
    traffic: TrafficOptions | None = None,
    engine: EngineOptions | None = None,
) -> int:
    """Measure a policy against vLLM as it is, on the same requests.

    Writes report.html, ab.json and a file for every run to a folder of their own. With the same
    --output, runs that are already there are not repeated. Exits with 0 where the policy is better,
    as good or not surely different at every load, 1 where it is worse or mixed at any, 2 where
    there is no verdict.

    Parameters
    ----------
    policy
        A name or a file.
    trace
        A file of requests, a name from `queuesmith traces list`, NAME@model for modelled traffic,
        or a file of windows.
    loads
        own (the trace's own rate), offered rate over what the engine carries (overload, 0.9; needs
        --engine) or requests/s (6/s), separated by commas; own and overload when left out, and own
        alone without --engine.
    goal
        What the policy is judged by: ttft (mean), e2el (mean), slo (attainment), goodput or tpot
        (mean).
    guard
        What must not get worse, and by how much: e2el_p99=0.2, tpot_p99=off, or a .toml file of
        such lines. May be given several times; all guards are on by default.
    slo
        Limits in seconds for goodput and attainment, ttft, tpot and e2el; or none.
    base_url
        Two servers that run: vLLM as it is, then vLLM with the policy.
    model
        Start servers for this model, a fresh one for every run, with the --engine-args.
    virtual_clock
        vLLM's scheduler in this process, on the clock of the step-time model.
    export
        Measure nothing; write the schedule of each window and load for another load generator:
        aiperf or timed_trace (vllm bench serve).
    windows
        How many windows to cut from the trace.
    window_len
        Requests in each.
    repeats
        How often each arm serves each window; at least 3 on a machine, once on the virtual clock.
    part
        Of a window set: tuning (when left out), validation or held_out.
    output_length
        What the policy may know of output lengths: none, noisy, noisy:SIGMA or exact.
    served_model
        The model to ask for, where a server has several.
    machine_margin
        There is no verdict when the arms' steps differ by more than this share.
    timeout
        Seconds without a new token after which a request has failed.
    seed
        Of windows, predictions, models, order and bootstrap.
    full
        Print every run, too.
    output
        Folder to write to; runs/TIME-HASH when left out.
    json_
        Print the whole result as one JSON document instead of tables.
    """
    from queuesmith.deploy.ab import MIN_REPEATS, left_out, make_cells, simulate_arms
    from queuesmith.evaluation.evaluate import parse_loads
    from queuesmith.evaluation.goals import get_goal, parse_guards
    from queuesmith.policies import get_policy
    from queuesmith.windows import Window, cut_windows
    from queuesmith.windows.predictions import OutputLengthKnowledge

    ways = [base_url is not None, model is not None, virtual_clock]
    if sum(ways) != 1 and not (export and sum(ways) <= 1):
        raise ConfigError(
            "say what to measure on, one of: --base-url STOCK POLICY, --model MODEL, "
            "--virtual-clock"
        )
    if virtual_clock:
        repeats = 1  # they would all be the same
    elif repeats < MIN_REPEATS:
        raise ConfigError(f"--repeats must be at least {MIN_REPEATS}, got {repeats}")
    if not 0 < machine_margin < 10:
        raise ConfigError(f"--machine-margin must be a share such as 0.1, got {machine_margin:g}")
    chosen = get_policy(policy)
    limits = parse_slo(slo)
    aim, watched = get_goal(goal, limits), parse_guards(guard or [])
    knowledge = OutputLengthKnowledge.parse(output_length)
    preset, notes = build_engine(engine or EngineOptions())
    known = engine is not None or virtual_clock
    regions = parse_loads(loads or ("own,overload" if known else "own"))
    check_place(output or Path("runs"), "--output")
    requests, window_set = load_windows(trace, traffic or TrafficOptions(), seed, part)
    cut: list[Window] = (
        requests
        if isinstance(requests, list)
        else cut_windows(requests, num_windows=windows, window_len=window_len, seed=seed)
    )
    config = preset.config.override({"enable_prefix_caching": False})
    own = config.override(chosen.engine)
    step_time = preset.step_time if known else None
    args = (engine.engine_args if engine else None) or ""

    arms: dict[str, Arm] = {}
    if virtual_clock:
        arms = _virtual_arms(chosen, config, own, preset)
        where = "vLLM's own Scheduler without a model, on a virtual clock"
    elif base_url is not None:
        arms = _running_arms(chosen, base_url, served_model, timeout)
        where = f"servers {base_url[0]} (stock) and {base_url[1]} (policy)"
    elif model is not None:
        notes = [f"in loads and in the simulation: {note}" for note in notes]
        arms = _own_arms(chosen, policy, model, args, preset if known else None, timeout)
        where = f"vLLM servers of {model}, a fresh one for every run"
    if any(window.trace.think_time is not None for window in cut):
        notes.append(
            "think times are not waited for: every request is sent at its own time in the trace"
        )
    cells = make_cells(cut, regions, [config, own], step_time, knowledge, seed)
    if export:
        return _export(cells, export, served_model or model, seed, output, json_)
    notes += left_out(cells, own if own.max_model_len < config.max_model_len else config)

    settings: dict[str, Any] = {
        "policy": chosen.name,
        "policy_sha256": chosen.sha256,
        "policy_engine": dict(chosen.engine),
        "where": where,
        "loads": [asdict(region) for region in regions],
        "window_set": window_set,
        "num_windows": len(cut),
        "window_len": min(len(window.trace) for window in cut),
        "windows": [
            {"window": window.index, "start_row": window.start_row, "sha256": window.sha256}
            for window in cut
        ],
        "repeats": repeats,
        "preset": preset.name if known else None,
        "provenance": preset.step_time.provenance if known else None,
        "engine": asdict(config) if known else None,
        "engine_args": hide_secrets([args])[0],
        "output_length": knowledge.describe(),
        "machine_margin": machine_margin,
        "timeout": timeout,
        "seed": seed,
    }
    simulated = {}
    if known and not virtual_clock:
        pair = (get_policy("fcfs"), config), (chosen, own)
        simulated = simulate_arms(cells, dict(zip(arms, pair, strict=True)), preset.step_time)
    watch = _Watch(aim, watched, limits)
    return _measure(arms, cells, settings, watch, notes, simulated, output, json_, full)


class _Watch(NamedTuple):
    """What the verdict looks at; where it changes, runs that were kept are judged anew."""

    goal: "Goal"
    guards: "tuple[Guard, ...]"
    slo: "Slo | None"


def _measure(
    arms: "dict[str, Arm]",
    cells: "list[Cell]",
    settings: dict[str, Any],
    watch: _Watch,
    notes: list[str],
    simulated: "dict[tuple[str, str], float]",
    output: Path | None,
    json_: bool,
    full: bool,
) -> int:
    """Take all turns; write and print what they say; return the exit status."""
    from rich.console import Console

    from queuesmith.deploy.ab import STOCK, Store, config_key, measure, plan
    from queuesmith.deploy.measured import failure_lines
    from queuesmith.deploy.verdict import Measurement, judge_runs
    from queuesmith.report.ab import print_ab, write_ab

    key = config_key(settings)
    folder = make_folder(output, key)
    candidate = next(name for name in arms if name != STOCK)
    turns = plan(len(cells), list(arms), settings["repeats"], settings["seed"])
    virtual = settings["where"].endswith("virtual clock")
    if not virtual:
        seconds = sum(cells[turn.cell].workload.trace.duration for turn in turns)
        print(
            f"{len(turns)} runs of {seconds / len(turns):,.0f} s on the average and the starts "
            f"of servers; results are kept in {folder}",
            file=sys.stderr,
        )
    with progress_bar("measuring") as progress:
        measured = list(measure(cells, arms, turns, Store(folder, key), progress))
    outcome = judge_runs(
        measured,
        cells,
        candidate,
        **watch._asdict(),
        margin=settings["machine_margin"],
        seed=settings["seed"],
        virtual=virtual,
        simulated=simulated,
    )
    if len(measured) < len(turns):
        notes.append(
            f"stopped after {len(measured)} of {len(turns)} runs, since no request of the last one "
            "was answered"
        )
    measurement = Measurement(
        outcome=outcome,
        goal=watch.goal,
        guards=watch.guards,
        config={
            **settings,
            "goal": watch.goal.name,
            "guards": [asdict(guard) for guard in watch.guards],
            "slo": None if watch.slo is None else asdict(watch.slo),
            "num_dropped": {cell.window.index: cell.num_dropped for cell in cells},
            "sha256": key,
            "reference": STOCK,
            "candidate": candidate,
            "command": command_line(),
        },
        origin=cells[0].window.trace.origin.to_json(),
        warnings=(*notes, *failure_lines(outcome.failures)),
    )
    document = json.dumps(measurement.to_json(), indent=1)
    write_whole(folder / "ab.json", lambda path: path.write_text(document + "\n", encoding="utf-8"))
    report = write_whole(folder / "report.html", lambda path: write_ab(measurement, path))
    with reader_may_leave():
        if json_:
            print(document)
        else:
            print_ab(measurement, Console(markup=False), full=full)
    print(f"report: {report}", file=sys.stderr)
    if outcome.failures:
        print(
            f"error: {len(outcome.failures):,} requests failed; what was measured is in {folder}, "
            "and the same command with that --output repeats only the runs that failed",
            file=sys.stderr,
        )
    for row in outcome.loads:
        if row.verdict == "withheld" and not outcome.failures:
            print(f"error: no verdict at {row.load}: {row.reason}", file=sys.stderr)
    return outcome.exit_status


def _export(
    cells: "list[Cell]",
    form: str,
    model: str | None,
    seed: int,
    output: Path | None,
    json_: bool,
) -> int:
    from queuesmith.deploy.ab import config_key
    from queuesmith.deploy.schedule import FORMATS, write_schedule

    if form not in FORMATS:
        raise ConfigError(f"--export must be one of {', '.join(FORMATS)}, got {form!r}")
    if model is None and form == "aiperf":
        raise ConfigError("--export aiperf writes whole requests; name the --served-model in them")
    folder = make_folder(output, config_key({"cells": [cell.name for cell in cells]}))
    places = [folder / f"{cell.name}.{form}.jsonl" for cell in cells]
    for number, (cell, place) in enumerate(zip(cells, places, strict=True)):
        # Prompts of its own for each, or a server that serves one after another would know them.
        write_whole(
            place,
            lambda path, cell=cell, seed=seed + number: write_schedule(  # type: ignore[misc]
                cell.workload, form, model or "", seed, path
            ),
        )
    if json_:
        print(json.dumps({"schema": EXPORT_SCHEMA, "files": list(map(str, places))}, indent=1))
    else:
        print(*places, sep="\n")
    return 0


def _name(policy: "Policy") -> str:
    from queuesmith.deploy.ab import STOCK

    return f"{policy.name}-policy" if policy.name == STOCK else policy.name


def _virtual_arms(
    policy: "Policy", config: "EngineConfig", own: "EngineConfig", preset: "Preset"
) -> "dict[str, Arm]":
    from queuesmith.deploy.ab import STOCK
    from queuesmith.deploy.arms import VirtualArm
    from queuesmith.deploy.plugin import check_version

    check_version(allow_untested=False)
    return {
        STOCK: VirtualArm(None, config, preset.step_time),
        _name(policy): VirtualArm(policy, own, preset.step_time),
    }


def _running_arms(
    policy: "Policy", base_url: tuple[str, str], wanted: str | None, timeout: float
) -> "dict[str, Arm]":
    from queuesmith.deploy.ab import STOCK
    from queuesmith.deploy.arms import RunningArm
    from queuesmith.deploy.replay import Server

    servers = [Server(address, timeout) for address in base_url]
    if servers[0].base_url == servers[1].base_url:
        raise ConfigError("--base-url needs two servers: vLLM as it is, then with the policy")
    stock, ours = (RunningArm(server, server.find_model(wanted)) for server in servers)
    return {STOCK: stock, _name(policy): ours}


def _own_arms(
    policy: "Policy",
    spec: str,
    model: str,
    args: str,
    preset: "Preset | None",
    timeout: float,
) -> "dict[str, Arm]":
    from queuesmith.deploy.ab import STOCK
    from queuesmith.deploy.arms import OwnArm
    from queuesmith.deploy.options import PluginOptions
    from queuesmith.deploy.plugin import check_version

    check_version(allow_untested=False)
    step_time = None if preset is None else preset.step_time
    flags = " ".join(
        f"--{'no-' if value is False else ''}{name.replace('_', '-')}"
        + ("" if isinstance(value, bool) else f" {value}")
        for name, value in policy.engine.items()
    )
    environment = PluginOptions(spec).environment()
    return {
        STOCK: OwnArm(model, args, {"QUEUESMITH_POLICY": ""}, step_time, timeout),
        _name(policy): OwnArm(model, f"{args} {flags}", environment, step_time, timeout),
    }

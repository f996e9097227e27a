"""``queuesmith evolve``: breed policies for a score, and go on where a run was stopped."""

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from queuesmith.cli.output import check_place, make_folder, reader_may_leave
from queuesmith.errors import ConfigError
from queuesmith.numbers import number

if TYPE_CHECKING:
    from rich.console import Console

    from queuesmith.backends import Backend
    from queuesmith.evolve.config import EvolveConfig
    from queuesmith.evolve.loop import Progress

Json = Annotated[bool, Parameter(name="--json", negative=())]

evolve = App(
    name="evolve",
    help="Breed policies for a score, beside random search with the same budget.",
    help_format="plaintext",
    result_action="return_value",
)
evolve.command(
    "queuesmith.cli.evolve_judge:judge",
    name="judge",
    help="Lead a policy through the gates; held-out windows are opened once.",
)
evolve.command(
    "queuesmith.cli.evolve_report:report",
    name="report",
    help="Write one page about a run: progress, leaderboard, diagnosis, lineage, gates, budget.",
)
evolve.command(
    "queuesmith.cli.evolve_report:diagnose",
    name="diagnose",
    help="Say where a policy lost and to whom, who paid, and what to try next.",
)


@evolve.command
def run(
    config: str,
    /,
    *,
    seed: Annotated[list[int] | None, Parameter(negative=())] = None,
    workers: int | None = None,
    backend: str = "threading",
    scheduler_address: str | None = None,
    output: Path | None = None,
    dry_run: Annotated[bool, Parameter(negative=())] = False,
    json_: Json = False,
) -> int:
    """Search for a policy, as a configuration says; name the best one of each seed.

    Writes the archive, the frozen windows, best.py and best_seed_N.py to a folder of their own. A
    run that is stopped, however hard, goes on with `queuesmith evolve resume`.

    Parameters
    ----------
    config
        A TOML file, or the name of one that comes with queuesmith: quick, full.
    seed
        Instead of the configuration's seeds. May be given several times.
    workers
        Candidates at a time; one per core when left out. The result does not depend on it.
    backend
        threading, loky, dask or ray. Candidates run in fenced child processes, of this process or,
        with dask and ray, of the workers of a cluster. The result does not depend on it.
    scheduler_address
        Of a Dask or Ray cluster that is there; dask and ray start workers on this machine when
        neither this nor DASK_SCHEDULER_ADDRESS or RAY_ADDRESS names one.
    output
        Folder to write to; runs/TIME-HASH when left out.
    dry_run
        Say what the run would cost, and do nothing.
    json_
        Print the whole result as one JSON document instead of text.
    """
    from queuesmith.evolve.config import read_config, with_seeds

    found = read_config(config)
    if seed:
        found = with_seeds(found, seed)
    chosen = _choose(backend, workers, scheduler_address)
    if dry_run:
        return _estimate(found, chosen.num_workers, json_)
    check_place(output or Path("runs"), "--output")

    from queuesmith.evolve.archive.archive import Archive
    from queuesmith.evolve.run import begin

    if output is not None:
        Archive.refuse_existing(output)
    is_new = output is None or not output.exists()
    folder = make_folder(output, found.sha256)
    try:
        begin(found, folder)
    except BaseException:
        if is_new:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    return _go_on(folder, chosen, json_)


@evolve.command
def resume(
    folder: Path,
    /,
    *,
    workers: int | None = None,
    backend: str = "threading",
    scheduler_address: str | None = None,
    json_: Json = False,
) -> int:
    """Go on with a run that was stopped, to the end it would have had.

    Parameters
    ----------
    folder
        Where `queuesmith evolve run` was writing.
    workers
        Candidates at a time; one per core when left out. The result does not depend on it.
    backend
        threading, loky, dask or ray, whatever the run began with. The result does not depend on it.
    scheduler_address
        Of a Dask or Ray cluster that is there.
    json_
        Print the whole result as one JSON document instead of text.
    """
    return _go_on(folder, _choose(backend, workers, scheduler_address), json_)


def _choose(backend: str, workers: int | None, scheduler_address: str | None) -> "Backend":
    from queuesmith.backends import Backend

    check_workers(workers)
    return Backend.choose(backend, workers, scheduler_address)


def check_workers(workers: int | None) -> None:
    """Refuse a number of workers that makes no sense."""
    if workers is not None and not 1 <= workers <= 1_000:
        raise ConfigError(f"--workers must be from 1 to 1,000, got {workers}")


@contextmanager
def status() -> Iterator[Callable[[str], None]]:
    """Say on a terminal what is being done; show nothing when there is none."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status("reading") as status:
        yield status.update


def _go_on(folder: Path, chosen: "Backend", json_: bool) -> int:
    """Run to the end; 0 when some seed has found something better than FCFS, 1 when none has."""
    from rich.console import Console

    from queuesmith.evolve.run import BEST_FILE, go_on

    try:
        with _progress() as show:
            document = go_on(
                folder,
                workers=chosen.num_workers,
                backend=chosen.name,
                scheduler_address=chosen.address,
                progress=show,
            )
    except KeyboardInterrupt:
        print(
            f"interrupted; nothing that was scored is lost: `queuesmith evolve resume {folder}` "
            "goes on",
            file=sys.stderr,
        )
        return 130
    with reader_may_leave():
        if json_:
            print(json.dumps(document, indent=1))
        else:
            _print(document, Console(markup=False))
    best = document["best"]
    if best:
        print(f"best: {folder / BEST_FILE}", file=sys.stderr)
    return 0 if best and best["clean"] and best["score"] > 0 else 1


def _estimate(config: "EvolveConfig", workers: int, json_: bool) -> int:
    from queuesmith.evolve.estimate import estimate

    document = estimate(config, workers)
    with reader_may_leave():
        if json_:
            print(json.dumps(document, indent=1))
            return 0
        print(
            f"{document['evaluations']:,} evaluations (search and control, {len(config.seeds)} "
            f"seed(s)), {document['simulations']:,} simulations of one window at one load"
        )
        print(
            f"{number(document['cpu_seconds'] / 60)} CPU minutes, about "
            f"{number(document['wall_seconds'] / 60)} minutes with {workers} worker(s), unless "
            "candidates are stopped early"
        )
        llm = {name: value for name, value in document["llm"].items() if value}
        print(
            "LLM: " + ", ".join(f"{name} {number(value)}" for name, value in llm.items())
            if llm
            else "No LLM is asked: it costs no money."
        )
    return 0


@contextmanager
def _progress() -> Iterator[Callable[["Progress"], None]]:
    """Show on a terminal how far the run is; show nothing when there is none."""
    from rich import progress
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda now: None
        return
    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.TimeElapsedColumn(),
    )
    with progress.Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def show(now: "Progress") -> None:
            bar.update(
                task, description=describe(now), completed=now.evaluations, total=now.planned
            )

        yield show


def describe(now: "Progress") -> str:
    """Say in one line how far a run is."""
    rate = 60 * now.evaluations / now.wall_seconds if now.wall_seconds > 0 else None
    parts = [
        f"seed {now.seed} generation {now.generation + 1}/{now.generations}",
        f"best {_signed(now.best)}",
        f"control {_signed(now.control)}",
        f"{number(rate)}/min",
    ]
    parts += [f"{name} left {number(value)}" for name, value in now.left.items()]
    return ", ".join(parts)


def _signed(score: float | None) -> str:
    return "-" if score is None else f"{score:+.3f}"


def _print(document: dict[str, Any], console: "Console") -> None:
    """Say who won, what was tried and what it cost."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("seed")
    for title in ("best", "score", "95 % interval", "nodes", "guards", "control"):
        table.add_column(title, justify="left" if title == "guards" else "right")
    for row in document["seeds"]:
        best, control = row["search"], row["control"]
        if best is None:
            table.add_row(str(row["seed"]), "-", "-", "-", "-", "nobody survived", "-")
            continue
        table.add_row(
            str(row["seed"]),
            f"no. {best['candidate']}",
            _signed(best["score"]),
            f"{_signed(best['low'])} to {_signed(best['high'])}",
            str(best["size"]),
            "clean" if best["clean"] else f"broken: {len(best['reasons'])}",
            _signed(control and control["score"]),
        )
    console.print(table)
    classics = document["classics"]
    if classics:
        shown = ", ".join(
            f"{row['policy']} {_signed(row['score'])}{'' if row['clean'] else ' (breaks guards)'}"
            for row in classics[:4]
        )
        console.print(f"classics on the same windows: {shown}")
    spent = document["spent"]
    evaluations = sum(document["evaluations"].values())
    kinds = {source["kind"] for source in document["windows"]["sources"]}
    console.print(
        f"{evaluations:,} evaluations, {number(spent['cpu_seconds'])} CPU s of candidates, "
        f"{number(spent['wall_seconds'])} s; {document['stopped']}; traffic: "
        f"{' and '.join(sorted(kinds))}"
    )
    console.print(
        "Scores are on tuning windows, where the search has looked: `queuesmith evolve judge` "
        "holds the best against windows it has not seen."
    )

"""``queuesmith study``: where a ranking of policies holds and where it flips."""

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from queuesmith.cli.output import check_place, progress_bar, reader_may_leave

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from queuesmith.study.parts import Part
    from queuesmith.study.run import Study

Json = Annotated[bool, Parameter(name="--json", negative=())]

#: Of the analysis, what is short enough to be printed; `queuesmith study report` writes all.
HEADLINE = ("agreement_summary", "reversal_counts", "disagreement", "variance", "notes")

study = App(
    name="study",
    help="Find where a ranking of policies holds and where it flips.",
    help_format="plaintext",
    result_action="return_value",
)
study.command(
    "queuesmith.cli.study_report:report",
    name="report",
    help="Write the atlas of a study: a page, tables, and what it shows.",
)
study.command(
    "queuesmith.cli.study_report:advise",
    name="advise",
    help="Place your own trace on the map of a study; name the policy to try first.",
)


@study.command
def run(
    design: str,
    *,
    output: Path | None = None,
    workers: int | None = None,
    backend: str = "loky",
    scheduler_address: str | None = None,
    windows: int | None = None,
    dry_run: Annotated[bool, Parameter(negative=())] = False,
    json_: Json = False,
) -> None:
    """Run every policy of a design on every window, load and engine.

    Keeps each finished part in the folder: a run that is stopped, however hard, goes on where it
    was when the same command is given again.

    Parameters
    ----------
    design
        A name from `queuesmith study list`, or a TOML file.
    output
        Folder to write to; runs/study-NAME-HASH when left out.
    workers
        Parts at a time; one per core when left out. The result does not depend on it.
    backend
        loky (processes), threading, dask or ray. The result does not depend on it.
    scheduler_address
        Of a Dask or Ray cluster that is there; dask and ray start workers on this machine when
        neither this nor DASK_SCHEDULER_ADDRESS or RAY_ADDRESS names one.
    windows
        At most so many of each source, for a quick look: a study of its own.
    dry_run
        Say what would run and about how long it would take, and write nothing.
    json_
        Print one JSON document: what ran, and the headlines of its analysis.
    """
    from rich.console import Console

    from queuesmith.backends import Backend
    from queuesmith.study.design import Design
    from queuesmith.study.run import describe, estimate_seconds, plan, run_study

    num_workers = Backend.choose(backend, workers, scheduler_address).num_workers
    chosen = Design.load(design)
    if windows is not None:
        chosen = chosen.with_windows(windows)
    folder = output or Path("runs") / f"study-{chosen.name}-{chosen.sha256[:8]}"
    if not dry_run:
        check_place(folder, "--output")
    parts = plan(chosen)
    document = describe(chosen, parts)
    if dry_run:
        document["estimated_seconds"] = estimate_seconds(parts, num_workers)
        document["num_workers"] = num_workers
        with reader_may_leave():
            if json_:
                print(json.dumps(document, indent=1))
            else:
                _print_plan(document, parts, Console(highlight=False, markup=False))
        return

    start = time.monotonic()
    with progress_bar(f"studying {chosen.name}") as progress:
        done = run_study(
            chosen,
            folder,
            backend=backend,
            num_workers=workers,
            scheduler_address=scheduler_address,
            progress=progress,
        )
    seconds = time.monotonic() - start
    with reader_may_leave():
        if json_:
            print(json.dumps({**done.document, **_headline(done)}, indent=1))
        else:
            _print_plan(document, parts, Console(highlight=False, markup=False))
    print(
        f"study: {folder}, {document['num_runs']:,} runs, {seconds:.0f} s; "
        f"`queuesmith study report {folder}` says what it shows",
        file=sys.stderr,
    )


@study.command(name="list")
def list_(*, json_: Json = False) -> None:
    """List the designs that come with queuesmith.

    Parameters
    ----------
    json_
        Print one JSON document instead of a table.
    """
    from rich.console import Console
    from rich.table import Table

    from queuesmith.study.design import Design
    from queuesmith.study.design_file import design_names

    designs = [Design.load(name) for name in design_names()]
    with reader_may_leave():
        if json_:
            rows = [design.table for design in designs]
            print(json.dumps({"schema": "queuesmith.study.list/1", "designs": rows}, indent=1))
            return
        table = Table(box=None, pad_edge=False)
        for name in ("design", "policies", "sources", "loads", "engines", "what it asks"):
            table.add_column(name)
        for design in designs:
            table.add_row(
                design.name,
                str(len(design.policy_names)),
                str(len(design.sources)),
                str(len(design.load_names)),
                str(len(design.engine_names)),
                design.title,
            )
        Console(highlight=False, markup=False).print(table)


def _headline(done: "Study") -> dict[str, Any]:
    """Return what a study shows, and the short tables of its analysis."""
    from queuesmith.study.atlas import make_atlas

    atlas = make_atlas(done)
    analysis = {name: atlas["analysis"][name] for name in HEADLINE if name in atlas["analysis"]}
    return {
        "answers": atlas["answers"],
        "carry_over": atlas["carry_over"],
        "published": atlas["published"],
        "analysis": analysis,
    }


def _print_plan(document: "Mapping[str, Any]", parts: "Sequence[Part]", console: "Console") -> None:
    from rich.table import Table

    console.print(
        f"{document['title']} (design {document['name']}, {document['sha256'][:12]})\n",
        soft_wrap=True,
    )
    table = Table(box=None, pad_edge=False)
    table.add_column("source")
    for name in ("real windows", "modelled"):
        table.add_column(name, justify="right")
    table.add_column("from")
    for source in document["sources"]:
        origin = " and ".join(name for name in (source["file"], source["model"]) if name)
        table.add_row(source["name"], str(source["real"]), str(source["modelled"]), origin)
    console.print(table)
    policies = len(parts[0].cells.policy_names)
    engines = len({part.cells.engine for part in parts})
    counts = document["num_windows"]
    console.print(
        f"\n{policies} policies, {len(document['loads'])} loads, engines: {engines}; "
        f"{counts['real']} real and {counts['modelled']} modelled windows; "
        f"{document['num_runs']:,} runs in {document['num_parts']:,} parts",
        soft_wrap=True,
    )
    if "estimated_seconds" in document:
        console.print(
            f"about {document['estimated_seconds']:.0f} s with {document['num_workers']} workers, "
            "compilation apart",
            soft_wrap=True,
        )

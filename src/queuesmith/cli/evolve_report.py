"""``queuesmith evolve report`` and ``evolve diagnose``: what a run found, and why it scores so."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from queuesmith.cli.evolve import check_workers, status
from queuesmith.cli.output import (
    check_place,
    command_line,
    make_folder,
    reader_may_leave,
    write_whole,
)
from queuesmith.errors import ConfigError

if TYPE_CHECKING:
    from queuesmith.policies import Policy

Json = Annotated[bool, Parameter(name="--json", negative=())]


def report(
    folder: Path,
    /,
    *,
    candidate: Path | None = None,
    workers: int | None = None,
    output: Path | None = None,
    json_: Json = False,
) -> None:
    """Write one page about a run: progress, leaderboard, diagnosis, lineage, gates, budget.

    Writes evolution.html, which opens offline, and evolution.json, with its numbers. Classics are
    measured anew on tuning and validation windows; held-out windows stay closed.

    Parameters
    ----------
    folder
        Of a run, finished or not.
    candidate
        A policy file to diagnose instead of the run's champion.
    workers
        Simulations at a time; one per core when left out. The numbers do not depend on it.
    output
        Folder to write to; the run's own when left out.
    json_
        Print evolution.json instead of sentences.
    """
    from queuesmith.evolve.diagnosis.evolution import tell
    from queuesmith.evolve.page.evolution import write_evolution
    from queuesmith.evolve.page.text import headline, sentences

    _check_run(folder)
    check_workers(workers)
    target = output or folder
    check_place(target, "--output")
    given = None if candidate is None else _read_candidate(candidate)
    command = command_line()
    with status() as progress:
        document = tell(folder, given, workers=workers, command=command, progress=progress)

    target = make_folder(target, document["run"]["config_sha256"])
    text = json.dumps(document, indent=1) + "\n"
    write_whole(target / "evolution.json", lambda path: path.write_text(text, encoding="utf-8"))
    page = write_whole(target / "evolution.html", lambda path: write_evolution(document, path))
    with reader_may_leave():
        if json_:
            print(text, end="")
        else:
            print(headline(document))
            for sentence in sentences(document):
                print(f"- {sentence}")
            for one in document["diagnosis"]["suggestions"] if document["diagnosis"] else ():
                print(f"- {one['text']}")
    for warning in document["warnings"]:
        print(f"warning: {warning}", file=sys.stderr)
    print(f"page: {page}", file=sys.stderr)


def diagnose(
    folder: Path,
    /,
    *,
    candidate: Path | None = None,
    workers: int | None = None,
    json_: Json = False,
) -> None:
    """Say which classic wins where, where a policy lost and to whom, who paid, what to try next.

    Everything is measured anew on the tuning and validation windows of a run; held-out windows
    stay closed.

    Parameters
    ----------
    folder
        Of a run.
    candidate
        A policy file, whoever wrote it; the run's champion when left out.
    workers
        Simulations at a time; one per core when left out. The numbers do not depend on it.
    json_
        Print one JSON document instead of text.
    """
    from rich.console import Console

    from queuesmith.evolve.diagnosis.diagnose import diagnose as look
    from queuesmith.evolve.diagnosis.evolution import load_champion
    from queuesmith.evolve.gates.case import Case
    from queuesmith.evolve.page.text import print_diagnosis

    _check_run(folder)
    check_workers(workers)
    policy = load_champion(folder) if candidate is None else _read_candidate(candidate)
    with status() as progress:
        document = look(Case.of_run(folder), policy, workers=workers, progress=progress)
    with reader_may_leave():
        if json_:
            print(json.dumps(document, indent=1))
        else:
            print_diagnosis(document, Console(highlight=False, markup=False))


def _check_run(folder: Path) -> None:
    from queuesmith.evolve.archive.archive import FILE

    if not (folder / FILE).is_file():
        raise ConfigError(
            f"there is no run in {folder} ({FILE} is missing); name the folder that "
            "`queuesmith evolve run` wrote"
        )


def _read_candidate(path: Path) -> "Policy":
    """Load a person's policy file, which is trusted to end, as `queuesmith compare` trusts it."""
    from queuesmith.policies.policy import load_text, read_source

    return load_text(path.stem, read_source(path), path)

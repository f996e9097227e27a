"""``queuesmith evolve judge``: lead a policy through the gates."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from queuesmith.cli.evolve import check_workers, status
from queuesmith.cli.output import (
    check_place,
    command_line,
    make_folder,
    reader_may_leave,
    write_whole,
)
from queuesmith.documents import parse_json, read_file
from queuesmith.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from queuesmith.evolve.gates.gate import Gate

#: Largest result of an A/B that is read.
MAX_BYTES = 1 << 30


def judge(
    run: str,
    /,
    *,
    candidate: Path | None = None,
    through: str = "G5",
    all_: Annotated[bool, Parameter(name="--all", negative=())] = False,
    spent: Annotated[bool, Parameter(negative=())] = False,
    ledger: Path | None = None,
    ab: Path | None = None,
    workers: int | None = None,
    output: Path | None = None,
    json_: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """Lead a policy through the gates; stop at the first that it does not pass.

    Writes judgement.json, and once held-out windows were opened the proof sheet: proof.md and
    proof.json. Ends with 0 only if every gate asked for was passed, on windows nobody had seen.

    Parameters
    ----------
    run
        The folder of a run; or a configuration, whose windows are then frozen anew.
    candidate
        A policy file, whoever wrote it. When left out, what the seeds of the run found competes on
        the validation windows, and the best is judged.
    through
        The last gate: G0 form, G1 behaviour, G2 tuning, G3 validation, G4 control, G5 physics, G6
        held-out, G7 real. Only G6 and G7 open the held-out windows, which can be done once.
    all_
        Try later gates after one that was not passed. The held-out windows then stay closed.
    spent
        Look at held-out windows that were opened before; every output says so.
    ledger
        Who has opened which windows; $QUEUESMITH_LEDGER or the account's own when left out.
    ab
        For G7: the ab.json that `queuesmith ab` has written about this policy in real vLLM.
    workers
        Simulations at a time; one per core when left out. The result does not depend on it.
    output
        Folder to write to; judged/NAME-HASH in the run's, or runs/TIME-HASH, when left out.
    json_
        Print the whole judgement as one JSON document instead of text.
    """
    from queuesmith.evolve.archive.archive import FILE
    from queuesmith.evolve.config import read_config
    from queuesmith.evolve.gates.case import find_case
    from queuesmith.evolve.gates.gate import GATES
    from queuesmith.evolve.gates.judge import judge as lead
    from queuesmith.evolve.gates.ledger import Ledger, ledger_path
    from queuesmith.policies.policy import read_source

    if through not in GATES:
        raise ConfigError(f"--through must be one of {', '.join(GATES)}, got {through!r}")
    check_workers(workers)
    has_run = (Path(run) / FILE).exists()
    if not has_run and Path(run).is_dir():
        raise ConfigError(f"there is no run in {run}; give the folder of a run, or a configuration")
    if not has_run and candidate is None:
        raise ConfigError(
            f"{run} is not the folder of a run, so there is nothing to judge; name a policy file "
            "with --candidate"
        )
    named = None if candidate is None else (candidate.stem, read_source(candidate))
    result = _read_ab(ab) if ab else None
    place = output or (Path(run) if has_run else Path("runs"))
    check_place(place, "--output")
    book = Ledger(ledger_path(ledger))
    book.entries()  # a ledger that cannot be read is found out before any work
    # A configuration's windows are frozen into the folder; that of a run's policy is named by it.
    folder = None if has_run else make_folder(output, read_config(run).sha256)

    shown: Callable[[Gate], None] = (lambda _: None) if json_ else _print_gate
    with status() as progress:
        judgement = lead(
            find_case(run, folder or Path(run)),
            named,
            ledger=book,
            through=through,
            go_on=all_,
            spent=spent,
            measured=lambda _: result,
            workers=workers,
            progress=progress,
            show=shown,
        )

    from queuesmith.evolve.gates.proof import markdown, plain, proof

    document = plain(judgement.document())
    if folder is None:
        own = Path(run) / "judged" / f"{judgement.name}-{document['policy']['sha256'][:8]}"
        folder = make_folder(output or own, "")
    spent_mark = "-spent" if judgement.spent else ""  # the first opening's sheet stays as it is
    _write(folder / f"judgement{spent_mark}.json", json.dumps(document, indent=1) + "\n")
    if judgement.opened:
        sheet = plain(proof(judgement, command_line()))
        _write(folder / f"proof{spent_mark}.json", json.dumps(sheet, indent=1) + "\n")
        _write(folder / f"proof{spent_mark}.md", markdown(sheet))
    with reader_may_leave():
        if json_:
            print(json.dumps(document, indent=1))
        else:
            print(f"{judgement.name}: {judgement.verdict}")
    sheet_name = f"proof{spent_mark}.md" if judgement.opened else f"judgement{spent_mark}.json"
    print(f"written: {folder / sheet_name}", file=sys.stderr)
    return 0 if judgement.passed and not judgement.spent else 1


def _write(path: Path, text: str) -> None:
    write_whole(path, lambda part: part.write_text(text, encoding="utf-8"))


def _print_gate(gate: "Gate") -> None:
    print(f"{gate.gate} {gate.name}: {gate.outcome}. {gate.sentence}", flush=True)


def _read_ab(path: Path) -> Mapping[str, Any]:
    """Read the result of an A/B."""
    from queuesmith.evolve.gates.real import SCHEMAS

    try:
        if path.stat().st_size > MAX_BYTES:
            raise ConfigError(f"{path.name} is too large for a result of `queuesmith ab`")
        document = parse_json(read_file(path))
    except FileNotFoundError:
        raise ConfigError(f"there is no file {str(path)!r}; check --ab") from None
    except (OSError, ValueError):
        document = None
    if not isinstance(document, dict) or document.get("schema") not in SCHEMAS:
        raise ConfigError(f"{path.name} is no ab.json of `queuesmith ab`; check --ab")
    return document

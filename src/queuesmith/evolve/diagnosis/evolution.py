"""A run as one document: what it found, how, beside what, at what cost. A page shows it.

Of a run that was judged, the champion is what went furthest through the gates.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from queuesmith._version import __version__
from queuesmith.documents import parse_json, read_file
from queuesmith.errors import ConfigError, QueuesmithError
from queuesmith.evolve.archive.archive import Archive
from queuesmith.evolve.candidate import text_sha256
from queuesmith.evolve.diagnosis.diagnose import diagnose
from queuesmith.evolve.diagnosis.progress import generations, lineage, population, stalled, verdicts
from queuesmith.evolve.gates.case import Case
from queuesmith.evolve.gates.proof import plain
from queuesmith.evolve.run import summary
from queuesmith.evolve.sandbox.allow_list import check_form
from queuesmith.evolve.sandbox.decision_table import situations
from queuesmith.evolve.scoring.scale import make_scale
from queuesmith.evolve.scoring.traffic import tuning_traffic
from queuesmith.policies import Policy
from queuesmith.policies.policy import load_text

SCHEMA = "queuesmith.evolution/1"
#: Where `queuesmith evolve judge` writes in a run's folder.
JUDGEMENTS = "judged/*/judgement*.json"
#: Largest judgement that is read.
MAX_BYTES = 1 << 26


def find_champion(archive: Archive, judgements: Sequence[Mapping[str, Any]] = ()) -> int | None:
    """Return the number of the run's champion; None if the run has none yet.

    Of what the seeds found it is the one that was led furthest through the gates, else the best on
    tuning windows.
    """
    rows = archive.rows(
        "SELECT candidate FROM champions WHERE track = 'search' "
        "ORDER BY clean DESC, score DESC, seed"
    )
    numbers = [int(number) for (number,) in rows]
    shas = {number: text_sha256(archive.candidate(number).text) for number in numbers}
    judged = {
        number: num_passed(found)
        for number, sha256 in shas.items()
        if (found := judgement_of(sha256, judgements)) is not None
    }
    if judged:
        return max(judged, key=lambda number: (judged[number], -numbers.index(number)))
    return numbers[0] if numbers else None


def judgement_of(sha256: str, judgements: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the judgement of a policy that went furthest; on unspent windows if there are two."""
    mine = [one for one in judgements if one["policy"].get("sha256") == sha256]
    return max(mine, key=lambda one: (num_passed(one), not one.get("spent")), default=None)


def num_passed(judgement: Mapping[str, Any]) -> int:
    """Count the gates that were passed."""
    return sum(gate.get("passed") is True for gate in judgement["gates"])


def load_champion(folder: Path) -> Policy:
    """Return the champion of a run.

    Raises
    ------
    ConfigError
        If there is no run in the folder, or it has no champion.
    PolicyError
        If its text is not within the allow-list of candidates.
    """
    judgements = read_judgements(folder)
    with Archive.read(folder) as archive:
        number = find_champion(archive, judgements)
        if number is None:
            raise ConfigError(
                f"the run in {folder} has no champion yet; go on with `queuesmith evolve resume "
                f"{folder}`, or name a policy file with --candidate"
            )
        text = archive.candidate(number).text
    return _trusted("champion", text)


def _trusted(name: str, text: str) -> Policy:
    """Load a text of an archive, which is a file like any: its form is checked again."""
    check_form(text)
    return load_text(name, text, Path(f"{name}.py"))


def read_judgements(folder: Path) -> list[dict[str, Any]]:
    """Read what `queuesmith evolve judge` has written into the folder of a run."""
    return [_read_judgement(path) for path in sorted(folder.glob(JUDGEMENTS))]


def _read_judgement(path: Path) -> dict[str, Any]:
    document = None
    try:
        if path.stat().st_size <= MAX_BYTES:
            document = parse_json(read_file(path))
    except (OSError, ValueError):
        pass
    if (
        not isinstance(document, dict)
        or document.get("schema") != "queuesmith.judgement/1"
        or not isinstance(document.get("policy"), dict)
        or not isinstance(document.get("gates"), list)
        or not all(isinstance(gate, dict) for gate in document["gates"])
    ):
        raise ConfigError(
            f"{path} is no judgement of `queuesmith evolve judge`; judge again, or move it away"
        )
    return document


def tell(
    folder: Path,
    candidate: Policy | None = None,
    *,
    workers: int | None = None,
    command: str = "",
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Return all that a report shows, as JSON can hold it.

    Parameters
    ----------
    candidate : Policy, optional
        To be diagnosed instead of the champion; it has no lineage.

    Raises
    ------
    QueuesmithError
        If there is no run, or it is damaged. Traffic that is missing is no error: what needs it is
        left out, and a warning says so.
    """
    judgements = read_judgements(folder)
    case = Case.of_run(folder)
    warnings: list[str] = []
    with Archive.read(folder) as archive:
        run = summary(archive, folder)
        number = find_champion(archive, judgements)
        text = archive.candidate(number).text if number is not None else ""
        policy = candidate or (_trusted("champion", text) if text else None)
        diagnosis = scale = None
        try:
            traffic = tuning_traffic(case.config, case.window_set)
            scale = make_scale(traffic, case.config.goal, case.config.guards)
            if policy is not None:
                diagnosis = diagnose(case, policy, workers=workers, progress=progress)
        except QueuesmithError as error:
            if scale is not None:
                raise
            warnings.append(f"Nothing could be measured anew, so much is left out: {error}")
        rows = generations(archive, scale)
        if not run["stopped"]:
            warnings.append("The run is not finished; `queuesmith evolve resume` goes on with it.")
        if number is None:
            warnings.append("The run has no champion yet.")
        document = {
            "schema": SCHEMA,
            "version": __version__,
            "command": command,
            "run": run,
            "budget": asdict(case.config.budget),
            "champion": None if policy is None else _champion(policy, candidate, number),
            "generations": rows,
            "trend": stalled(rows),
            "population": population(archive, scale.reference if scale else None),
            "lineage": lineage(archive, number) if number is not None and not candidate else None,
            "verdicts": verdicts(archive),
            "diagnosis": diagnosis,
            "judgement": None if policy is None else judgement_of(policy.sha256, judgements),
            "judgements": [
                {"policy": one["policy"].get("name"), "verdict": one.get("verdict")}
                for one in judgements
            ],
            "warnings": warnings,
        }
    found: dict[str, Any] = plain(document)
    return found


def _champion(policy: Policy, given: Policy | None, number: int | None) -> dict[str, Any]:
    return {
        "name": policy.name,
        "candidate": None if given else number,
        "sha256": policy.sha256,
        "text": policy.source,
        "situations": [asdict(one) for one in situations(policy)],
    }

"""Run a design, keep every finished part, and go on where a run was killed.

The unit of work is a *part*: one window on one engine with one kind of prediction, under every
policy and load. Parts are stored by the parent process as they are finished; the table of runs is
read from them, so that it is the same bytes however the work was spread.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from queuesmith._version import __version__
from queuesmith.backends import Backend, spread
from queuesmith.documents import parse_json, read_file, seal
from queuesmith.engine.compile import compile_policy
from queuesmith.errors import ConfigError
from queuesmith.study.cells import Cells
from queuesmith.study.design import Design, restore
from queuesmith.study.design_file import knowledge_name
from queuesmith.study.inputs import KINDS, describe_window
from queuesmith.study.parts import (
    Part,
    code_sha256,
    read_part,
    read_sealed,
    sweep,
    write_durably,
    write_part,
    write_sealed,
)

_FAMILY = "queuesmith.study/"
SCHEMA = f"{_FAMILY}1"
DOCUMENT, WINDOWS = "study.json", "windows.parquet"
#: What every document has.
_KINDS = {
    **dict.fromkeys(("name", "title", "sha256", "version", "code_sha256"), str),
    **dict.fromkeys(("policies", "loads", "sources", "parts"), list),
    "design": dict,
}


@dataclass(frozen=True, eq=False)
class Study:
    """A design that was run.

    `runs` has one row per (engine, prediction, source, window, policy, load) with every metric,
    `windows` one per window; `document` is ``study.json``, with the hash of all that was run.
    """

    design: Design
    runs: pa.Table
    windows: pa.Table
    document: dict[str, Any]

    @property
    def sha256(self) -> str:
        """Of the design and its inputs, as they were when it was run."""
        return str(self.document["sha256"])

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read a study that was run to its end.

        Raises
        ------
        ConfigError
            If the folder holds no study, one of another version, or one with parts missing or
            damaged.
        """
        folder = Path(folder)
        document = _read_document(folder)
        if document is None:
            raise ConfigError(
                f"{folder} holds no study; `queuesmith study run DESIGN --output {folder}` makes "
                "one"
            )
        tables = [read_part(folder, key) for key in document["parts"]]
        missing = sum(table is None for table in tables)
        if missing:
            raise ConfigError(
                f"{folder}: {missing} of {len(tables)} parts are missing or damaged; `queuesmith "
                f"study run {document['name']} --output {folder}` runs what is missing"
            )
        windows = read_sealed(folder / WINDOWS, document["sha256"])
        if windows is None:
            raise ConfigError(
                f"{folder / WINDOWS} is missing or damaged; `queuesmith study run "
                f"{document['name']} --output {folder}` writes it again"
            )
        return cls(
            design=restore(document["design"], document["policies"]),
            runs=pa.concat_tables(tables).combine_chunks(),
            windows=windows,
            document=document,
        )


def run_study(
    design: Design,
    folder: str | Path,
    *,
    backend: str = "loky",
    num_workers: int | None = None,
    scheduler_address: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Study:
    """Run what is not yet in a folder, and return all of it.

    Parameters
    ----------
    folder : path
        Made when it is not there; one that holds something else is refused.
    backend : {"loky", "threading", "dask", "ray"}
        Processes, threads, or a cluster. The bytes are the same for any choice.
    num_workers : int, optional
        All cores when left out; a cluster that is there has its own number.
    scheduler_address : str, optional
        Of a Dask or Ray cluster; workers are started on this machine when it is left out and
        neither ``DASK_SCHEDULER_ADDRESS`` nor ``RAY_ADDRESS`` names one.
    progress : callable, optional
        Called with the number of finished parts and of all parts.

    Raises
    ------
    ConfigError
        If the folder holds another study, the disk refuses, or the backend does.
    QueuesmithError
        What an input or a policy does wrong; parts that are finished are kept.
    """
    chosen = Backend.choose(backend, num_workers, scheduler_address)
    folder = Path(folder)
    parts = plan(design)
    document = describe(design, parts)
    _claim(folder, document)
    windows = pa.Table.from_pylist([describe_window(window) for window in design.windows])
    write_sealed(folder / WINDOWS, design.sha256, windows)

    todo = [part for part in parts if read_part(folder, part.key) is None]
    done = len(parts) - len(todo)
    if progress is not None:
        progress(done, len(parts))
    if todo:
        for policy in design.policies:
            compile_policy(policy)  # once, so that workers find it compiled
    for place, table in spread(_run, todo, chosen):
        write_part(folder, todo[place].key, table)
        done += 1
        if progress is not None:
            progress(done, len(parts))
    sweep(folder)
    return Study.load(folder)


def _run(part: Part) -> pa.Table:
    return part.cells.run()


def plan(design: Design) -> list[Part]:
    """Return the parts of a design, in the order of the table of runs."""
    return [Part.of(cells) for cells in _cells(design)]


def _cells(design: Design) -> Iterator[Cells]:
    for preset in design.engines or (None,):
        for entry in design.windows:
            yield Cells(
                entry=entry,
                policies=design.policies,
                policy_names=design.policy_names,
                loads=design.loads,
                multipliers=design.multipliers,
                preset=preset,
                output_length=design.output_length,
                slo=design.slo,
                seed=design.seed,
            )
    again = design.sensitivity
    if again is None:
        return
    policies = tuple(policy for policy in design.policies if policy.name in again.policies)
    for cells in _cells(replace(design, sensitivity=None)):
        if cells.engine not in again.engines:
            continue
        for knowledge in again.predictions:
            if knowledge_name(knowledge) != knowledge_name(design.output_length):  # else run above
                yield replace(
                    cells,
                    policies=policies,
                    policy_names=tuple(policy.name for policy in policies),
                    loads=tuple(load for load in design.loads if load.name in again.loads),
                    output_length=knowledge,
                )


def describe(design: Design, parts: Sequence[Part]) -> dict[str, Any]:
    """Return the document of a study: what is run, on what, and the hash of all of it."""
    sources = [
        {
            "name": inputs.source.name,
            "real": inputs.num("real"),
            "modelled": inputs.num("modelled"),
            "file": inputs.file,
            "file_sha256": inputs.file_sha256,
            "model": inputs.source.model if inputs.num("modelled") else "",
            "model_version": inputs.model_version,
            "notes": list(inputs.notes),
        }
        for inputs in design.inputs
    ]
    document = {
        "schema": SCHEMA,
        "name": design.name,
        "title": design.title,
        "sha256": design.sha256,
        "version": __version__,
        "code_sha256": code_sha256(design.engine_names[0]),
        "design": design.table,
        "policies": [
            {
                "name": policy.name,
                "sha256": policy.sha256,
                "is_bundle": policy.is_bundle,
                "engine": dict(policy.engine),
                "summary": policy.summary,
                "source": policy.source,
            }
            for policy in design.policies
        ],
        "engines": [
            {
                "name": preset.name,
                "title": preset.title,
                "config": asdict(preset.config),
                "step_time": asdict(preset.step_time),
            }
            for preset in design.engines
        ],
        "loads": [asdict(load) for load in design.loads]
        or [{"name": name, "multiplier": value} for name, value in design.multipliers.items()],
        "prediction": knowledge_name(design.output_length),
        "sources": sources,
        "num_windows": {kind: sum(inputs.num(kind) for inputs in design.inputs) for kind in KINDS},
        "num_runs": sum(part.cells.num_runs for part in parts),
        "num_parts": len(parts),
        "parts": [part.key for part in parts],
    }
    return {**document, "seal": seal(document)}


def estimate_seconds(parts: Sequence[Part], num_workers: int) -> float:
    """Guess how long parts take, by running one part of each engine, of one source after another.

    It counts the seconds of a processor that does nothing else; compilation and the start of
    workers are not in it.
    """
    by_engine: dict[str, list[Part]] = {}
    for part in parts:
        by_engine.setdefault(part.cells.engine, []).append(part)
    total = 0.0
    for place, own in enumerate(by_engine.values()):
        part = own[len(own) * (2 * place + 1) // (2 * len(by_engine))]
        for policy in part.cells.policies:
            compile_policy(policy)
        start = time.process_time()
        part.cells.run()
        seconds = (time.process_time() - start) / part.cells.num_runs
        total += seconds * sum(one.cells.num_runs for one in own)
    return total / num_workers


def _claim(folder: Path, document: dict[str, Any]) -> None:
    """Make the folder this study's, or refuse it."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file; name a folder")
    there = _read_document(folder)
    if there is None:
        strangers = [path.name for path in folder.glob("*") if not _is_ours(path)]
        if strangers:
            raise ConfigError(
                f"{folder} holds {strangers[0]!r} and no study; name a folder of its own"
            )
    else:
        _refuse_another(folder, there, document)
    text = json.dumps(document, indent=1) + "\n"
    path = folder / DOCUMENT
    if there != document:
        write_durably(path, lambda part: part.write_text(text, encoding="utf-8"))


def _is_ours(path: Path) -> bool:
    """Tell whether a file may be there without the document: what a killed run has left."""
    return path.name in ("parts", WINDOWS) or path.name.endswith(".part")


def _refuse_another(folder: Path, there: dict[str, Any], document: dict[str, Any]) -> None:
    remedy = "name another folder, or remove this one"
    if there["version"] != document["version"]:
        raise ConfigError(
            f"{folder} holds the study {there['name']!r} made by queuesmith {there['version']}, "
            f"and this is {document['version']}; {remedy}"
        )
    if there["code_sha256"] != document["code_sha256"]:
        raise ConfigError(
            f"{folder} holds the study {there['name']!r} made by other code of the same version "
            f"({there['code_sha256'][:12]}, this is {document['code_sha256'][:12]}); {remedy}"
        )
    if there["sha256"] != document["sha256"]:
        same = there["name"] == document["name"]
        what = "with other windows or settings" if same else f"and not {document['name']!r}"
        raise ConfigError(
            f"{folder} holds the study {there['name']!r} {what} (sha256 {there['sha256'][:12]}, "
            f"this is {document['sha256'][:12]}); {remedy}"
        )


def _damaged(path: Path, what: str) -> ConfigError:
    return ConfigError(
        f"{path} {what}; remove it and run its study again: parts that are whole are kept"
    )


def _read_document(folder: Path) -> dict[str, Any] | None:
    """Return the document of a folder; None when there is none."""
    path = folder / DOCUMENT
    try:
        document = parse_json(read_file(path).decode("utf-8"))
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        raise ConfigError(f"{folder} is a file; name a folder") from None
    except (OSError, ValueError) as error:
        raise _damaged(path, f"cannot be read ({type(error).__name__})") from None
    schema = document.get("schema") if isinstance(document, dict) else None
    if not isinstance(schema, str) or not schema.startswith(_FAMILY):
        raise _damaged(path, "is no document of a study")
    if document.get("seal", seal(document)) != seal(document):  # one older than seals has none
        raise _damaged(path, "is not what was written")
    if schema != SCHEMA:
        raise ConfigError(
            f"{path} has schema {schema!r:.80}, and this version reads {SCHEMA!r}; use the version "
            "that made it, or name another folder"
        )
    damaged = [key for key, kind in _KINDS.items() if not isinstance(document.get(key), kind)]
    if damaged:
        raise _damaged(path, f"has no {damaged[0]} as it was written")
    return document  # type: ignore[no-any-return]

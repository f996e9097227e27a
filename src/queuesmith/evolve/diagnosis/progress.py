"""What a run has done, read from its archive: progress, all candidates, a champion's lineage.

Nothing is run here but FCFS, to hold the archived times against.
"""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from queuesmith.evolve.archive.archive import Archive
from queuesmith.evolve.candidate import Candidate, Generation
from queuesmith.evolve.loop import TRACKS
from queuesmith.evolve.scoring.cells import Cell, CellResult
from queuesmith.evolve.scoring.scale import Scale

#: Sentences that are shown of each kind of verdict, the most frequent ones.
NUM_SENTENCES = 3
#: What is told of each ancestor.
_SHOWN = ("generation", "proposer", "parents", "note", "size", "score", "clean")


def generations(archive: Archive, scale: Scale | None) -> list[dict[str, Any]]:
    """Return one row for each seed, track and closed generation.

    Returns
    -------
    list of dict
        `evaluations`: of this seed and track up to and with the generation. `candidate`, `score`:
        the survivor that scores best on the windows of the generation, of those that violate no
        tail; None if there is none. `score_all`: its score on all tuning windows, None where it was
        not run on all of them.
    """
    rows = []
    closed = archive.rows(
        "SELECT seed, track, number, windows FROM generations WHERE closed = 1 "
        "ORDER BY seed, track, number"
    )
    for seed, track, number, windows in closed:
        members = [one for one in archive.members(Generation(seed, track, number)) if one.clean]
        best = max(members, key=lambda one: (one.score, -one.candidate), default=None)
        rows.append(
            {
                "seed": seed,
                "track": track,
                "generation": number,
                "windows": archive.parse(windows),
                "evaluations": archive.num_evaluated(seed, track, number + 1),
                "candidate": best and best.candidate,
                "score": best and best.score,
                "score_all": best and score_on_all(archive, scale, best.candidate),
            }
        )
    return rows


def score_on_all(archive: Archive, scale: Scale | None, number: int) -> float | None:
    """Return a candidate's score on all tuning windows; None if it was not run on all of them."""
    if scale is None:
        return None
    results = archive.results(number)
    if not set(scale.cells) <= set(results):
        return None
    return scale.stand(results, sorted(scale.sources), each_window=False).score


def population(archive: Archive, reference: Mapping[Cell, CellResult] | None) -> dict[str, Any]:
    """Return every candidate that was scored, as columns.

    Returns
    -------
    dict
        Lists of equal length: `number`, `seed`, `track`, `proposer`, `generation`, `size`, `score`
        (on the windows of its generation), `clean`, `kept`; and `mean_ratio`, `p99_ratio`: TTFT
        over FCFS's, the geometric mean over the windows and loads it was run on; None without the
        reference.
    """
    rows = archive.rows(
        "SELECT number, seed, track, proposer, generation, size, score, clean, "
        "verdict = 'keep' FROM candidates WHERE status = 'ok' AND score IS NOT NULL ORDER BY number"
    )
    names = ["number", "seed", "track", "proposer", "generation", "size", "score", "clean", "kept"]
    columns: dict[str, list[Any]] = {
        name: [row[place] for row in rows] for place, name in enumerate(names)
    }
    for name in ("clean", "kept"):
        columns[name] = [bool(value) for value in columns[name]]
    ratios = _ratios(archive, reference) if reference else {}
    for place, name in enumerate(("mean_ratio", "p99_ratio")):
        columns[name] = [
            ratios[number][place] if number in ratios else None for number in columns["number"]
        ]
    return columns


def _ratios(
    archive: Archive, reference: Mapping[Cell, CellResult]
) -> dict[int, tuple[float, float]]:
    base = {cell: (one.mean, one.p99) for cell, one in reference.items()}
    logs: dict[int, list[tuple[float, float]]] = {}
    query = "SELECT candidate, window, load, mean, p99 FROM scores ORDER BY candidate, window, load"
    for number, window, load, mean, p99 in archive.rows(query):
        fcfs = base.get(Cell(window, load))
        values = (mean, p99, *(fcfs or (0.0,)))
        if min(values) > 0 and np.isfinite(values).all() and fcfs:
            logs.setdefault(number, []).append((mean / fcfs[0], p99 / fcfs[1]))
    found = {}
    for number, pairs in logs.items():
        mean_ratio, p99_ratio = np.exp(np.log(pairs).mean(axis=0)).tolist()
        found[number] = (mean_ratio, p99_ratio)
    return found


def lineage(archive: Archive, number: int) -> dict[str, Any]:
    """Return whom a candidate descends from, and what changed on the way.

    Returns
    -------
    dict
        `nodes`: the candidate and all its ancestors, oldest first. `steps`: the main line, oldest
        first; from each child to the parent whose text is nearest, with a unified diff. `origin`:
        the candidate that the main line begins with.
    """
    found = {one.number: one for one in archive.ancestors(number)}
    steps: list[dict[str, Any]] = []
    child = found[number]
    while child.parents:
        parent = max(
            (found[each] for each in child.parents),
            key=lambda each: (_likeness(each.text, child.text), -each.number),
        )
        steps.append(
            {
                "parent": parent.number,
                "child": child.number,
                "note": child.note,
                "proposer": child.proposer,
                "score_parent": parent.score,
                "score_child": child.score,
                "diff": diff(parent, child),
            }
        )
        child = parent
    line = {number, *(step["parent"] for step in steps)}
    return {
        "origin": {"candidate": child.number, "text": child.text, "note": child.note},
        "steps": steps[::-1],
        "nodes": [
            {"candidate": one.number, "main_line": one.number in line}
            | {name: getattr(one, name) for name in _SHOWN}
            for one in found.values()
        ],
    }


def _likeness(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one.splitlines(), other.splitlines()).ratio()


def diff(parent: Candidate, child: Candidate) -> list[str]:
    """Return the lines of a unified diff of two texts."""
    return list(
        difflib.unified_diff(
            parent.text.splitlines(),
            child.text.splitlines(),
            f"candidate {parent.number}",
            f"candidate {child.number}",
            lineterm="",
            n=2,
        )
    )


def verdicts(archive: Archive) -> list[dict[str, Any]]:
    """Count what became of the candidates, with the commonest sentences of each kind."""
    counts = archive.rows(
        "SELECT track, verdict, status, count(*) FROM candidates GROUP BY track, verdict, status "
        "ORDER BY track DESC, verdict, status"
    )
    rows = []
    for track, verdict, status, count in counts:
        sentences = archive.rows(
            "SELECT sentence, count(*) AS times, min(number) FROM candidates WHERE track = ? AND "
            "verdict = ? AND status = ? AND sentence != '' GROUP BY sentence "
            "ORDER BY times DESC, min(number) LIMIT ?",
            (track, verdict, status, NUM_SENTENCES),
        )
        rows.append(
            {
                "track": track,
                "verdict": verdict,
                "status": status,
                "count": count,
                "sentences": [
                    {"sentence": sentence, "count": times, "candidate": number}
                    for sentence, times, number in sentences
                ],
            }
        )
    return rows


def stalled(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Say whether search beats the control, and whether it was still rising in the end.

    Returns
    -------
    dict
        By track the mean over seeds of the last generation's score and of that two thirds of the
        way (on all tuning windows where known for both, else on the generations' own); None where
        no seed has any.
    """
    found: dict[str, Any] = {}
    for track in TRACKS:
        ends, before = [], []
        for seed in sorted({row["seed"] for row in rows}):
            mine = [row for row in rows if row["seed"] == seed and row["track"] == track]
            for key in ("score_all", "score"):
                known = [row[key] for row in mine if row[key] is not None]
                if len(known) == len(mine) and known:
                    ends.append(known[-1])
                    before.append(known[len(known) * 2 // 3 - 1 if len(known) > 1 else 0])
                    break
        found[track] = {
            "last": float(np.mean(ends)) if ends else None,
            "two_thirds": float(np.mean(before)) if before else None,
        }
    return found

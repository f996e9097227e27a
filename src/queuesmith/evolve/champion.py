"""Who is best of a seed: those that have survived, on all tuning windows, tails judged in full."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from queuesmith.evolve.archive import Archive
from queuesmith.evolve.loop import Loop
from queuesmith.evolve.tuning import Cell, CellResult, Scale
from queuesmith.score import Configuration, Sample, score, tail_violation

DRAWS = 10_000


@dataclass(frozen=True)
class Champion:
    """The best candidate of a seed and track.

    Attributes
    ----------
    candidate : int
        Its number.
    score, low, high : float
        On all tuning windows, with the 95 % interval over windows.
    reasons : tuple of str
        The tails it violates; a champion with any is only the least bad.
    """

    candidate: int
    score: float
    low: float
    high: float
    reasons: tuple[str, ...]

    @property
    def clean(self) -> bool:
        """Whether it violates no tail."""
        return not self.reasons


def crown(loop: Loop, seed: int, track: str) -> Champion | None:
    """Find the champion of a seed and write it down; None if nobody has survived.

    Candidates that violate a tail are passed over, unless all of them do.
    """
    archive, scale = loop.archive, loop.scale
    windows = sorted(scale.sources)
    results = loop.complete(contenders(archive, seed, track), windows)
    standing = {
        number: scale.stand(of, windows, each_window=False) for number, of in results.items()
    }
    sizes = {number: archive.candidate(number).size for number in results}
    ranked = sorted(results, key=lambda number: (-standing[number].score, sizes[number], number))
    if not ranked:
        return None
    reference = samples(scale, scale.reference)

    def violations(number: int) -> tuple[str, ...]:
        mine = samples(scale, results[number])
        tails = {key: tail_violation(mine[key], reference[key], draws=DRAWS) for key in mine}
        return tuple(
            f"{key.source} at {key.load}: {tail.reason}"
            for key, tail in tails.items()
            if tail.violated
        )

    best = next((number for number in ranked if not violations(number)), ranked[0])
    scored = score(samples(scale, results[best]), reference, draws=DRAWS)
    champion = Champion(best, scored.value, scored.low, scored.high, violations(best))
    with archive.write() as writer:
        writer.champion(
            seed,
            track,
            best,
            score=champion.score,
            low=None if np.isnan(champion.low) else champion.low,
            high=None if np.isnan(champion.high) else champion.high,
            reasons=champion.reasons,
        )
    return champion


def contenders(archive: Archive, seed: int, track: str) -> list[int]:
    """Return the last survivors, and the best one of each generation that was clean then."""
    rows = archive.rows(
        "SELECT max(generation) FROM members WHERE seed = ? AND track = ?", (seed, track)
    )
    if rows[0][0] is None:
        return []
    last = {one.candidate for one in archive.members(seed, track, rows[0][0])}
    best = archive.rows(
        "SELECT candidate, max(score) FROM members WHERE seed = ? AND track = ? AND clean = 1 "
        "GROUP BY generation",
        (seed, track),
    )
    return sorted(last | {number for number, _ in best})


def samples(scale: Scale, results: Mapping[Cell, CellResult]) -> dict[Configuration, Sample]:
    """Return each configuration's TTFTs as `queuesmith.score` takes them.

    Requests below a cell's tail are given their common mean: it changes neither a mean nor any
    quantile that a score looks at, in bootstrap draws of whole windows either.
    """
    times: dict[Configuration, list[NDArray[Any]]] = {}
    window: dict[Configuration, list[NDArray[Any]]] = {}
    for cell in scale.cells:
        one = results[cell]
        num_rest = one.num_requests - len(one.tail)
        rest = one.mean * one.num_requests - float(one.tail.sum())
        filled = np.full(num_rest, max(rest / num_rest, 0.0) if num_rest else 0.0)
        key = Configuration(scale.sources[cell.window], cell.load)
        times.setdefault(key, []).append(np.concatenate([filled, one.tail]))
        window.setdefault(key, []).append(np.full(one.num_requests, cell.window))
    return {key: Sample(np.concatenate(times[key]), np.concatenate(window[key])) for key in times}

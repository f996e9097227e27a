"""Who is best of a seed: survivors, on all tuning windows, guards judged with intervals."""

from collections.abc import Mapping

from queuesmith.evaluation.samples import Samples
from queuesmith.evolve.archive.archive import Archive
from queuesmith.evolve.archive.schema import Champion
from queuesmith.evolve.candidate import Generation
from queuesmith.evolve.loop import Loop
from queuesmith.evolve.scoring.cells import Cell, CellResult, Configuration, samples_of
from queuesmith.evolve.scoring.scale import Scale
from queuesmith.evolve.scoring.standing import Beside, Difference, Reference


def crown(loop: Loop, seed: int, track: str) -> Champion | None:
    """Find the champion of a seed and write it down; None if nobody has survived.

    Candidates that break a guard are passed over, unless all of them do.
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
    reference = make_reference(scale)

    def beside(number: int) -> Beside:
        return reference.lay_beside(samples(scale, results[number]))

    tried = ((number, beside(number)) for number in ranked)
    best, found = next(((number, one) for number, one in tried if one.clean), (ranked[0], None))
    found = found or beside(best)
    gain = Difference.of(found.gain)
    champion = Champion(best, gain.value, gain.low, gain.high, tuple(found.reasons))
    with archive.write() as writer:
        writer.champion(seed, track, champion)
    return champion


def contenders(archive: Archive, seed: int, track: str) -> list[int]:
    """Return the last survivors, and the best one of each generation that was clean then."""
    rows = archive.rows(
        "SELECT max(generation) FROM members WHERE seed = ? AND track = ?", (seed, track)
    )
    if rows[0][0] is None:
        return []
    last = {one.candidate for one in archive.members(Generation(seed, track, rows[0][0]))}
    best = archive.rows(
        "SELECT candidate, max(score) FROM members WHERE seed = ? AND track = ? AND clean = 1 "
        "GROUP BY generation",
        (seed, track),
    )
    return sorted(last | {number for number, _ in best})


def make_reference(scale: Scale) -> Reference:
    """Return FCFS on all tuning windows."""
    return Reference(samples(scale, scale.reference), scale.goal, scale.guards)


def samples(scale: Scale, results: Mapping[Cell, CellResult]) -> dict[Configuration, Samples]:
    """Return what is known of each configuration as guards are judged by."""
    groups: dict[Configuration, list[tuple[int, CellResult]]] = {}
    for cell in scale.cells:
        key = Configuration(scale.sources[cell.window], cell.load)
        groups.setdefault(key, []).append((cell.window, results[cell]))
    has_slo = scale.slo is not None
    return {key: samples_of(group, has_slo=has_slo) for key, group in groups.items()}

"""Who survives, who may breed, and on which windows: pure functions, each seeded where it draws.

Survival is by three objectives at once: score, size, and whether a tail is violated. A candidate
is *beaten* by another that is no larger, scores no lower and is no less clean; an island keeps
those that fewer than `depth` of its candidates beat (the k-skyband, of which the Pareto front is
the case of depth 1).

References
----------
Papadias et al., "Progressive skyline computation in database systems", 2005, for the k-skyband;
La Cava et al., "Epsilon-lexicase selection for regression", 2016.
"""

import ast
from collections.abc import Mapping, Sequence

import numpy as np

from queuesmith.evolve.archive.schema import Verdict
from queuesmith.evolve.candidate import Candidate
from queuesmith.evolve.scoring.scale import Limit

#: Parts of a text that count as nodes of its program.
_COUNTED = (
    *(ast.operator, ast.unaryop, ast.cmpop, ast.boolop),
    *(ast.Attribute, ast.Constant, ast.Call, ast.IfExp, ast.If),
)


def survivors(candidates: Sequence[Candidate], depth: int) -> list[Candidate]:
    """Keep those that fewer than `depth` others beat, best score first."""
    kept = [one for one in candidates if num_beaten_by(one, candidates) < depth]
    return sorted(kept, key=lambda one: (-one.score, one.size, one.number))


def num_beaten_by(one: Candidate, others: Sequence[Candidate]) -> int:
    """Count those that beat a candidate."""
    return sum(other.beats(one) for other in others if other.number != one.number)


def limit(candidates: Sequence[Candidate], depth: int, size: int) -> Limit:
    """Return the scores below which a newcomer of a size is certain not to survive.

    One for newcomers that may turn out clean, whom only clean ones beat, and one for those that
    are known to violate a tail. Further newcomers can only raise both.
    """
    no_larger = [one for one in candidates if one.size <= size]
    return Limit(
        clean=_nth_best([one.score for one in no_larger if one.clean], depth),
        violating=_nth_best([one.score for one in no_larger], depth),
    )


def _nth_best(scores: Sequence[float], place: int) -> float:
    return sorted(scores)[-place] if len(scores) >= place else -np.inf


def lexicase(
    candidates: Sequence[Candidate], count: int, rng: np.random.Generator
) -> list[Candidate]:
    """Draw parents, each by the windows it is best on.

    For each draw the windows are shuffled; window by window only those stay whose score is within
    the median absolute deviation of the best left, until one is left (the smallest, then the
    earliest, if several stay to the end). Nobody is drawn twice.
    """
    left = sorted(candidates, key=lambda one: one.number)
    drawn: list[Candidate] = []
    while left and len(drawn) < count:
        scores = np.array([one.window_scores for one in left])
        near = np.median(np.abs(scores - np.median(scores, axis=0)), axis=0)
        pool = np.arange(len(left))
        for window in rng.permutation(scores.shape[1]):
            column = scores[pool, window]
            pool = pool[column >= column.max() - near[window]]
            if len(pool) == 1:
                break
        chosen = min((left[row] for row in pool), key=lambda one: (one.size, one.number))
        drawn.append(chosen)
        left.remove(chosen)
    return drawn


def schedule(
    sources: Mapping[int, str], per_generation: int, seed: int, generation: int
) -> list[int]:
    """Return the windows that a generation is scored on: `per_generation` of each source.

    Each source's windows are shuffled, dealt out generation by generation, and shuffled again when
    too few are left; so all of them are used equally often in the long run.

    Parameters
    ----------
    sources : mapping of int to str
        Source of each window.

    Examples
    --------
    >>> sources = {0: "azure", 1: "azure", 2: "azure", 3: "azure"}
    >>> first, second = (schedule(sources, 2, 0, generation) for generation in (0, 1))
    >>> sorted(first + second)
    [0, 1, 2, 3]
    """
    chosen: list[int] = []
    for place, source in enumerate(dict.fromkeys(sources.values())):
        windows = sorted(window for window, of in sources.items() if of == source)
        hand = min(per_generation, len(windows))
        deals = len(windows) // hand
        rng = np.random.default_rng([seed, place, generation // deals])
        start = generation % deals * hand
        chosen += rng.permutation(windows)[start : start + hand].tolist()
    return sorted(chosen)


def split(
    count: int, num_islands: int, shares: Sequence[float], generation: int
) -> list[list[int]]:
    """Split candidates over islands, and each island's over proposers by their shares.

    Odd ones go to the islands in turn, and to the proposers that are furthest below their share.

    Examples
    --------
    >>> split(9, 2, [0.75, 0.25], generation=0)
    [[4, 1], [3, 1]]
    """
    plan = []
    for island in range(num_islands):
        here = count // num_islands + ((island + generation) % num_islands < count % num_islands)
        exact = np.array([here * share for share in shares])
        parts = np.floor(exact + 1e-9).astype(int)
        for extra in np.argsort(parts - exact, kind="stable")[: here - int(parts.sum())]:
            parts[extra] += 1
        plan.append(parts.tolist())
    return plan


def judge(child: Candidate, survives: bool, rivals: Sequence[Candidate], depth: int) -> Verdict:
    """Say in a sentence what became of a candidate among those of its island."""
    if child.status == "duplicate":
        return Verdict("discard", child.sentence)
    if child.status not in ("ok", "stopped"):
        return Verdict("crash", f"{child.status}: {child.sentence}")
    tail = f"; {child.sentence}" if child.sentence else ""
    said = f"{child.score:+.3f} with {child.size} nodes"
    if child.status == "stopped":
        text = f"stopped early: at best {said}, and {depth} of its island do better{tail}"
        return Verdict("discard", text)
    beaten = num_beaten_by(child, rivals)
    others = f"{beaten} of its island beat{'s' if beaten == 1 else ''} it"
    return Verdict("keep" if survives else "discard", f"{said}; {others}{tail}")


def count_nodes(text: str) -> int:
    """Count the operations, names and numbers of a text whose proposer did not say."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return 0
    return sum(isinstance(node, _COUNTED) for node in ast.walk(tree))

"""The proposer `gp`: breeds programs from those that scored, and writes them out."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from queuesmith.evolve.candidate import Candidate, Proposal
from queuesmith.evolve.gp.behaviour import behaviour
from queuesmith.evolve.gp.codegen import write
from queuesmith.evolve.gp.constants import Scored, check_method, tune
from queuesmith.evolve.gp.program import Program
from queuesmith.evolve.gp.variation import (
    CLASSICS,
    Space,
    crossover,
    hoist,
    mutate_constants,
    mutate_point,
    mutate_subtree,
    mutate_victims,
    mutate_wrap,
    ramped,
    settled,
)

#: Attempts at a child for every one that is asked for, before fewer are handed back.
MAX_ATTEMPTS = 20
#: Parents that meet in a tournament.
TOURNAMENT = 4
#: Scores closer than this are equal to a tournament, which the smaller program then wins.
MARGIN = 1e-3

_TUNING = "tuning"  # where a candidate's `meta` holds what its tuning wrote down


class Bred(NamedTuple):
    """A new program, how it came about, and what to write down with it."""

    program: Program
    parents: tuple[int, ...] = ()
    note: str = "drawn at random"
    meta: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Gp:
    """Breeds programs by crossover and mutation."""

    space: Space = field(default_factory=Space)  # which programs there are
    #: How the constants of the best are tuned: "gaussian", or "cmaes", which needs that package.
    constants: str = "gaussian"
    #: tuned_share, fresh_share: shares of the children that are the best one with other constants,
    #: and that are drawn from nothing.
    tuned_share: float = 0.15
    fresh_share: float = 0.05
    #: Programs to start from before the classics. The control is not given them.
    start: tuple[Program, ...] = ()
    name: str = "gp"

    def __post_init__(self) -> None:
        check_method(self.constants)

    def propose(
        self, parents: Sequence[Candidate], count: int, rng: np.random.Generator
    ) -> list[Proposal]:
        """Write up to `count` candidates that behave like no parent and like none of each other.

        Without a parent that has a genome these are `start`, the classics, then random programs.
        Fewer come when nothing new is found.
        """
        pool = read_pool(parents)
        known = {behaviour(program) for program, _ in pool}
        if not pool:
            given = (Bred(program, note="given to start from") for program in self.start)
            first = chain(given, classics(self.space), drawn(self.space, rng))
            return collect(first, self.name, known, count)
        return collect(self._children(pool, count, rng), self.name, known, count)

    def _children(
        self, pool: list[tuple[Program, Candidate]], count: int, rng: np.random.Generator
    ) -> Iterator[Bred]:
        best, best_parent = min(pool, key=lambda item: (-_score(item[1]), item[0].size))
        scored = [
            Scored(program, _score(parent), parent.meta.get(_TUNING)) for program, parent in pool
        ]
        num_tuned = round(self.tuned_share * count)
        for program, memory in tune(best, scored, num_tuned, rng, self.constants):
            number = best_parent.number
            note = f"{number} with its constants tuned ({self.constants})"
            yield Bred(program, (number,), note, {_TUNING: memory} if memory else {})
        for _ in range(MAX_ATTEMPTS * count):
            if rng.random() < self.fresh_share:
                yield Bred(ramped(self.space, rng))
                continue
            program, parent = select(pool, rng)
            if rng.random() < 0.4:
                other, other_parent = select(pool, rng)
                numbers = (parent.number, other_parent.number)
                note = f"{numbers[0]} crossed with {numbers[1]}"
                yield Bred(crossover(program, other, rng), numbers, note)
                continue
            mutation, what = self._mutations[int(rng.choice(len(_CHANCES), p=_CHANCES))]
            child = mutation(program, self.space, rng)
            yield Bred(child, (parent.number,), f"{parent.number} {what}")

    @property
    def _mutations(self) -> list[tuple[Callable[..., Program], str]]:
        return [
            (mutate_subtree, "with a part replaced"),
            (mutate_wrap, "with a part under a new operation"),
            (mutate_point, "with one node changed"),
            (lambda program, space, rng: mutate_constants(program, rng), "with other constants"),
            (lambda program, space, rng: hoist(program, rng), "cut down to a part"),
            (mutate_victims, "with other victims"),
        ]


@dataclass(frozen=True)
class RandomSearch:
    """The control that a search must beat with as many evaluations.

    It starts from the same classics and draws from the same programs; it has no parents.
    """

    #: Which programs there are; the one of the search that this is a control of.
    space: Space = field(default_factory=Space)
    name: str = "random"

    def propose(
        self, parents: Sequence[Candidate], count: int, rng: np.random.Generator
    ) -> list[Proposal]:
        """Write up to `count` candidates that behave like no parent and like none of each other.

        The first time, without parents, the classics are among them.
        """
        known = {behaviour(program) for program, _ in read_pool(parents)}
        bred = drawn(self.space, rng)
        if not parents:
            bred = chain(classics(self.space), bred)
        return collect(bred, self.name, known, count)


#: How often each mutation is drawn, in the order of `_mutations`.
_CHANCES = (0.25, 0.2, 0.2, 0.2, 0.08, 0.07)


def read_pool(parents: Sequence[Candidate]) -> list[tuple[Program, Candidate]]:
    """Return the parents that have a genome, with their programs."""
    return [
        (Program.from_json(parent.meta["genome"]), parent)
        for parent in parents
        if "genome" in parent.meta
    ]


def classics(space: Space) -> Iterator[Bred]:
    """Yield the programs that every search starts from."""
    for name, program in CLASSICS.items():
        if space.victims or program.victim_key is None:
            yield Bred(program, note=f"a classic: {name}")


def drawn(space: Space, rng: np.random.Generator) -> Iterator[Bred]:
    """Yield random programs without end."""
    while True:
        yield Bred(ramped(space, rng))


def collect(bred: Iterator[Bred], proposer: str, known: set[str], count: int) -> list[Proposal]:
    """Simplify and write out programs until there are enough that behave like none before."""
    proposals: list[Proposal] = []
    seen = set(known)
    for attempt, (program, parents, note, meta) in enumerate(bred):
        if len(proposals) >= count or attempt >= MAX_ATTEMPTS * count:
            break
        program = settled(program)
        shown = behaviour(program)
        if shown in seen or not program.fits:
            continue
        seen.add(shown)
        proposals.append(
            Proposal(
                text=write(program),
                proposer=proposer,
                parents=parents,
                note=note,
                size=program.size,
                meta={"genome": program.to_json(), "behaviour": shown, **meta},
            )
        )
    return proposals


def select(
    pool: Sequence[tuple[Program, Candidate]], rng: np.random.Generator
) -> tuple[Program, Candidate]:
    """Draw a parent: one half by lexicase selection over windows, one half by a tournament."""
    lengths = {len(parent.window_scores) for _, parent in pool}
    if len(lengths) == 1 and 0 not in lengths and rng.random() < 0.5:
        scores = np.array([parent.window_scores for _, parent in pool], np.float64)
        return pool[lexicase(scores, rng)]
    entered = [pool[int(rng.integers(len(pool)))] for _ in range(TOURNAMENT)]
    best = max(_score(parent) for _, parent in entered)
    near = [item for item in entered if _score(item[1]) >= best - MARGIN]
    return min(near, key=lambda item: item[0].size)


def lexicase(scores: NDArray[np.float64], rng: np.random.Generator) -> int:
    """Draw a candidate that is among the best on windows taken in a random order.

    Parameters
    ----------
    scores : (num_candidates, num_windows) float64
        NaN is worse than anything.

    References
    ----------
    La Cava, Spector and Danai, "Epsilon-Lexicase Selection for Regression", GECCO 2016.
    """
    left = np.arange(len(scores))
    tolerance = np.array([_spread(column[np.isfinite(column)]) for column in scores.T])
    scores = np.where(np.isnan(scores), -math.inf, scores)
    for window in rng.permutation(scores.shape[1]):
        if len(left) == 1:
            break
        shown = scores[left, window]
        left = left[shown >= shown.max() - tolerance[window]]
    return int(left[rng.integers(len(left))])


def _spread(scores: NDArray[np.float64]) -> float:
    """Return the median absolute deviation from the median; 0 of nothing."""
    return float(np.median(np.abs(scores - np.median(scores)))) if len(scores) else 0.0


def _score(parent: Candidate) -> float:
    return -math.inf if math.isnan(parent.score) else parent.score

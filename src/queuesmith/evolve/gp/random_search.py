"""The proposer `random`: the control that a search must beat with the same number of evaluations.

It starts from the same classics and draws from the same space of programs, simplified and written
by the same code; all that it lacks is what makes a search: parents.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from queuesmith.evolve.candidate import Candidate, Proposal
from queuesmith.evolve.gp.behaviour import behaviour
from queuesmith.evolve.gp.proposer import classics, collect, drawn, read_pool
from queuesmith.evolve.gp.variation import Space


@dataclass(frozen=True)
class RandomSearch:
    """Draws programs and learns nothing."""

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

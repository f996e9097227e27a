"""What passes between the loop and its proposers: texts of policy files, and who bred them."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np

_NO_META: Mapping[str, Any] = MappingProxyType({})


class Generation(NamedTuple):
    """One generation of search or control, counted from 0 for each seed."""

    seed: int
    track: str
    number: int


@dataclass(frozen=True)
class Proposal:
    """The text of a policy file that nobody has tried yet."""

    text: str
    proposer: str  # name of who wrote it
    parents: tuple[int, ...] = ()  # numbers of the candidates it was bred from
    note: str = ""  # one sentence on how it came about
    size: int = 0  # nodes of its program; 0 when the proposer does not say
    #: Whatever JSON can hold: a genome, a prompt, an answer.
    meta: Mapping[str, Any] = field(default_factory=lambda: _NO_META)


@dataclass(frozen=True)
class Candidate:
    """A text that was tried, as the archive has it.

    Of one that may be bred from, or has to survive, score, window scores and clean are those on the
    windows of the generation that begins.
    """

    number: int
    text: str = ""
    score: float = math.nan  # on the windows of its generation, 0 for FCFS; NaN if it has none
    window_scores: tuple[float, ...] = ()  # the same of each of those windows alone
    meta: Mapping[str, Any] = field(default_factory=lambda: _NO_META)  # as proposed
    size: int = 0
    clean: bool = True  # it breaks no guard on those windows
    seed: int = 0
    track: str = "search"
    generation: int = 0
    island: int = 0
    proposer: str = ""
    parents: tuple[int, ...] = ()
    note: str = ""
    behaviour: str = ""
    status: str = "ok"  # pending, ok, stopped, duplicate, or what went wrong
    verdict: str = ""  # keep, discard or crash; empty until its generation closes
    sentence: str = ""

    def beats(self, other: "Candidate") -> bool:
        """Tell whether nothing speaks for the other one; the earlier of equals wins."""
        mine = (-self.size, self.score, self.clean)
        others = (-other.size, other.score, other.clean)
        if mine == others:
            return self.number < other.number
        return all(here >= there for here, there in zip(mine, others, strict=True))


class Proposer(Protocol):
    """Whoever writes candidates.

    One that spends money or time elsewhere has an attribute `left` besides, a dict: before each
    call the loop puts into it what is left of each budget in force (``llm_calls``, ``llm_tokens``,
    ``llm_money``, ``wall_seconds``), and it reports what it has used as ``meta["usage"]``, a dict
    with the same names, of its proposals. An answer without a policy in it is a proposal, too.
    Its attribute `batch`, if it has one, is how many proposals it likes to be asked for at once.
    One with an attribute `briefing` is given a `Briefing` of :mod:`queuesmith.evolve.llm.prompt`.
    """

    @property
    def name(self) -> str:
        """What its candidates are marked with."""
        ...

    def propose(
        self, parents: Sequence[Candidate], count: int, rng: np.random.Generator
    ) -> list[Proposal]:
        """Write up to `count` candidates; the same for the same parents, count and generator.

        `parents` is empty in the first generation.
        """
        ...


def text_sha256(text: str) -> str:
    """Hash the text of a policy file, as `Policy.sha256` does; nothing for no text."""
    return hashlib.sha256(text.encode()).hexdigest() if text else ""

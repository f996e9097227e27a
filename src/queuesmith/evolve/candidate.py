"""What passes between the loop and its proposers: texts of policy files, and who bred them."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

_NO_META: Mapping[str, Any] = MappingProxyType({})


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
class Parent:
    """A candidate that has been scored and may be bred from."""

    number: int  # in the archive
    text: str
    score: float  # fitness on the windows of this generation, 0 for FCFS
    window_scores: tuple[float, ...]  # the same score of each of those windows alone
    meta: Mapping[str, Any]  # as proposed


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
        self, parents: Sequence[Parent], count: int, rng: np.random.Generator
    ) -> list[Proposal]:
        """Write up to `count` candidates; the same for the same parents, count and generator.

        `parents` is empty in the first generation.
        """
        ...


def text_sha256(text: str) -> str:
    """Hash the text of a policy file, as `Policy.sha256` does; nothing for no text."""
    return hashlib.sha256(text.encode()).hexdigest() if text else ""

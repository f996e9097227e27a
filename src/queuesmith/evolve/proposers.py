"""Proposers by name, with the options that a configuration gives them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np

from queuesmith.errors import ConfigError, PolicyError, did_you_mean
from queuesmith.evolve.candidate import Candidate, Proposal, Proposer
from queuesmith.evolve.config import EvolveConfig, Share
from queuesmith.evolve.fields import number, read_table
from queuesmith.evolve.gp.program import Program
from queuesmith.evolve.gp.proposer import Gp, RandomSearch
from queuesmith.evolve.gp.terminals import KNOWLEDGE, TERMS
from queuesmith.evolve.gp.variation import Space
from queuesmith.evolve.llm.proposer import Llm
from queuesmith.policies.policy import read_source
from queuesmith.traces.columns.source import one_line

CONTROL = "random"
NAMES = ("gp", CONTROL, "files", "llm")


@dataclass(frozen=True)
class _SpaceOptions:
    knowledge: tuple[str, ...] = Space().knowledge
    victims: bool = Space().victims

    @property
    def space(self) -> Space:
        if any(item not in KNOWLEDGE for item in self.knowledge):
            raise ConfigError(
                f"knowledge must be an array of some of {', '.join(KNOWLEDGE)}, got "
                f"{list(self.knowledge)!r:.60}"
            )
        return replace(Space(), knowledge=self.knowledge, victims=self.victims)


@dataclass(frozen=True)
class _GpOptions(_SpaceOptions):
    constants: str = Gp.constants
    tuned_share: float = number(Gp.tuned_share, least=0, most=1)
    fresh_share: float = number(Gp.fresh_share, least=0, most=1)
    start: tuple[str, ...] = ()


@dataclass(frozen=True)
class _FilesOptions:
    folder: str


def make_proposer(share: Share) -> Proposer:
    """Make a proposer with its options."""
    where = f"proposer {share.name}"
    match share.name:
        case "gp":
            found = read_table(where, share.options, _GpOptions)
            shares = found.tuned_share, found.fresh_share
            start = tuple(_start(text, found.space) for text in found.start)
            return Gp(found.space, found.constants, *shares, start)
        case "random":
            return RandomSearch(read_table(where, share.options, _SpaceOptions).space)
        case "files":
            return Files(read_table(where, share.options, _FilesOptions).folder)
        case "llm":
            return Llm(**share.options)
    raise ConfigError(
        f"there is no proposer {share.name!r}.{did_you_mean(share.name, NAMES)} Known: "
        f"{', '.join(NAMES)}"
    )


def make_control(config: EvolveConfig) -> Proposer:
    """Make the control of a run: random search over the programs that its `gp` searches."""
    gp = next((share for share in config.proposers if share.name == "gp"), Share("gp"))
    own = {one.name for one in fields(_SpaceOptions)}
    options = {name: value for name, value in gp.options.items() if name in own}
    return make_proposer(Share(CONTROL, options=options))


def _start(text: str, space: Space) -> Program:
    """Read a program that a search is given to start from."""
    try:
        program = Program.from_json(json.loads(text))
    except (ValueError, RecursionError, PolicyError) as error:
        raise ConfigError(f"proposer gp: start: {one_line(error)} in {text:.60}") from None
    unknown = {
        node.name
        for hook, tree in program.trees.items()
        for node in tree.walk()
        if node.name in TERMS and node.name not in space.terms(hook)
    }
    if unknown or (program.victim_key is not None and not space.victims):
        what = ", ".join(sorted(unknown)) or "victim_key"
        raise ConfigError(f"proposer gp: start: {what} is not among what this search may use")
    return program


class Files:
    """Proposes the files of a folder as they are.

    The folder is read anew each time, so that files may be added while a search runs.

    Parameters
    ----------
    folder : str or path
        Its ``.py`` files are proposed; folders inside it are not looked into, and links out of it
        are not followed.
    """

    name = "files"

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise ConfigError(f"{self.folder} is not a folder; name one with policy files (*.py)")
        if not self._paths():
            raise ConfigError(f"{self.folder} has no .py file; put policy files there")

    def propose(
        self, parents: Sequence[Candidate], count: int, rng: np.random.Generator
    ) -> list[Proposal]:
        """Return up to `count` files whose text no parent has, in a random order.

        Which files were proposed before is not remembered: whoever keeps an archive finds their
        texts in it. A file that cannot be read is proposed as a comment that says why, so that
        the archive tells what became of it.
        """
        known = {parent.text for parent in parents}
        paths = self._paths()
        proposals: list[Proposal] = []
        for place in rng.permutation(len(paths)):
            if len(proposals) == count:
                break
            path = paths[int(place)]
            note = f"read from {path.name}"
            try:
                text = read_source(path)
            except PolicyError as error:
                text, note = f"# {error}\n", str(error)
            if text not in known:
                known.add(text)
                proposals.append(Proposal(text, self.name, note=note, meta={"file": path.name}))
        return proposals

    def _paths(self) -> list[Path]:
        folder = self.folder.resolve()
        return sorted(path for path in folder.glob("*.py") if path.resolve().is_relative_to(folder))

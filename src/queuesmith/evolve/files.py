"""The proposer `files`: a folder of policy files written by a person or by another tool."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from queuesmith.errors import ConfigError, PolicyError
from queuesmith.evolve.candidate import Candidate, Proposal
from queuesmith.policies.policy import read_source


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

    def __init__(self, folder: str | os.PathLike[str]) -> None:
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

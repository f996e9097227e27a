"""Every error this package raises on purpose.

Each message is one line: what is wrong, with the value; what would be right; what to do.

* QueuesmithError           catch this to catch them all; the command line exits with 2
  x TraceError              a trace file or a ``Trace`` is missing, damaged or not as described
    + NotOneTrace           a file holds several windows, each on a clock of its own
  x ConfigError             an option, or a combination of options, makes no sense
  x PolicyError             a policy breaks the contract in :mod:`queuesmith.policies`
    + UnknownPolicy         no policy has that name
    + CandidateError        the text of a candidate is not what one may be (`queuesmith.evolve`)
  x EngineError             the simulation stopped; the message says at which step
"""

from collections.abc import Iterable
from difflib import get_close_matches


class QueuesmithError(Exception):
    """Root of every error this package raises on purpose."""


class TraceError(QueuesmithError, ValueError):
    """A trace file or a ``Trace`` is missing, damaged or not as described."""


class NotOneTrace(TraceError):
    """A file holds several windows, each on a clock of its own."""


class ConfigError(QueuesmithError, ValueError):
    """An option, or a combination of options, makes no sense."""


class PolicyError(QueuesmithError, ValueError):
    """A policy breaks the contract in :mod:`queuesmith.policies`."""


class UnknownPolicy(PolicyError, LookupError):
    """No policy has that name."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        self.name = name
        self.known = sorted(known)
        super().__init__(
            f"there is no policy {name!r}.{did_you_mean(name, self.known)} "
            "`queuesmith policies` lists them; a file is given by its path, such as ./my_policy.py"
        )


class CandidateError(PolicyError):
    """The text of a candidate is not what a candidate may be.

    Attributes
    ----------
    reason : str
        One sentence.
    line : int or None
        From 1; None when it is about the text as a whole.
    """

    def __init__(self, reason: str, line: int | None = None) -> None:
        self.reason, self.line = reason, line
        super().__init__(reason if line is None else f"line {line}: {reason}")

    def __reduce__(self) -> tuple[type["CandidateError"], tuple[str, int | None]]:
        return CandidateError, (self.reason, self.line)


class EngineError(QueuesmithError, RuntimeError):
    """The simulation stopped before every request had finished."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `` Did you mean 'x'?`` for the closest known name, or an empty string."""
    # Nobody misspells a name of hundreds of letters, and comparing them takes its time.
    close = get_close_matches(name, list(known), n=1) if len(name) <= 100 else []
    return f" Did you mean {close[0]!r}?" if close else ""

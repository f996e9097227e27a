"""Do something and say how it ended: with an answer, with a refusal, or with a fault.

A fault is whatever a user must never meet: an exception that is not this package's own, an answer
that makes no sense, a hang, or more memory than a small input can need.
"""

import contextlib
import resource
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from queuesmith.errors import QueuesmithError

#: Processor seconds for one input, and seconds of the clock, that nothing small may take, with room
#: for a machine that is busy with much else.
MOST_CPU, MOST_WALL = 30.0, 300.0
MOST_MIB = 1024


@dataclass(frozen=True)
class Outcome:
    """How it ended.

    Attributes
    ----------
    kind : {"accepted", "refused", "fault"}
    message : str
        What was said, or what went wrong, with where.
    seconds : float
        Of the processor.
    grown_mib : float
        By which the largest memory this process ever had has grown.
    """

    kind: str
    message: str
    seconds: float
    grown_mib: float


class TooLong(BaseException):
    """Stands for a hang."""


def watch(action: Callable[[], object]) -> Outcome:
    """Do it in the main thread and judge."""
    before, start = _peak_mib(), time.process_time()
    kind, message = "accepted", ""
    try:
        with _limit():
            action()
    except QueuesmithError as error:
        kind, message = "refused", str(error)
        if "\n" in message or not message.strip():
            kind, message = "fault", f"a message of several lines or none: {message!r}"
    except TooLong:
        kind, message = "fault", f"a hang: {_where()}"
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        kind, message = "fault", f"{type(error).__name__}: {error!s:.200} at {_where()}"
    seconds, grown = time.process_time() - start, _peak_mib() - before
    if kind != "fault" and seconds > MOST_CPU:
        kind, message = "fault", f"{seconds:.0f} s of processor time"
    if kind != "fault" and grown > MOST_MIB:
        kind, message = "fault", f"{grown:,.0f} MiB of memory"
    return Outcome(kind, message, seconds, grown)


@contextlib.contextmanager
def _limit() -> Iterator[None]:
    def stop(number: int, frame: object) -> None:
        raise TooLong

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, MOST_WALL)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _where() -> str:
    """Return the innermost line of this package that an exception went through."""
    import sys

    frames = traceback.extract_tb(sys.exc_info()[2])
    own = [frame for frame in frames if "/queuesmith/" in frame.filename] or frames
    frame = own[-1]
    return f"{frame.filename.rpartition('/queuesmith/')[2]}:{frame.lineno} in {frame.name}"

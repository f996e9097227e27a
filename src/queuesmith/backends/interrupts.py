"""Ctrl-C, which is for the parent of all processes alone."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker


@contextmanager
def deaf_children() -> Iterator[None]:
    """Let the processes and threads that are started here never hear Ctrl-C.

    A terminal interrupts a whole family of processes at once. The parent ends the others, each of
    which would otherwise die with a traceback of its own, some before they could ask not to.
    """
    if os.name != "posix":
        yield
        return
    resource_tracker.ensure_running()  # which would let Ctrl-C through when it is started later
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

"""Threads and processes of this machine, through joblib."""

import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from joblib import Parallel, delayed

from queuesmith.backends import MAX_TRIES, Backend, workers_died
from queuesmith.backends.interrupts import deaf_children
from queuesmith.errors import QueuesmithError

Task = TypeVar("Task")
Done = TypeVar("Done")


class LocalPool:
    """Threads or processes, started by each run."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def run(
        self, function: Callable[..., Done], tasks: Sequence[Task], shared: Any = None
    ) -> Generator[tuple[int, Done], None, None]:
        """Call a function on every task; see `queuesmith.backends.Pool`."""
        called = function if shared is None else partial(_with, function, shared)
        left = dict(enumerate(tasks))
        tries = 0  # since something was finished: a long run may lose a worker now and then
        while left:
            calls = [delayed(_attempt)(called, place, task) for place, task in left.items()]
            try:
                with _closing(self._results(calls)) as results:
                    for place, done in results:
                        if isinstance(done, QueuesmithError):
                            raise done
                        del left[place]
                        tries = 0
                        yield place, done
            except BrokenProcessPool:  # one process was killed, and joblib gives up on all
                tries += 1
                if tries == MAX_TRIES:
                    raise workers_died() from None

    def _results(self, calls: Sequence[Any]) -> Generator[Any, None, None]:
        name = self._backend.name
        num_workers = min(self._backend.num_workers, len(calls))
        own = {"initializer": _belong_to, "initargs": (os.getpid(),)} if name == "loky" else {}
        # With batches of "auto" size joblib would hand back several tasks together, and a kill
        # would cost them all.
        parallel = Parallel(
            n_jobs=num_workers,
            backend=name,
            batch_size=1,
            return_as="generator_unordered",
            **own,
        )
        with deaf_children():
            results = parallel(calls)
        yield from results


def _with(function: Callable[[Task, Any], Done], shared: Any, task: Task) -> Done:
    return function(task, shared)


def _attempt(
    function: Callable[[Task], Done], place: int, task: Task
) -> tuple[int, Done | QueuesmithError]:
    """Return a user's mistake as a value: joblib does not hand on exceptions as they were."""
    try:
        return place, function(task)
    except QueuesmithError as error:
        return place, error


@contextmanager
def _closing(results: Generator[Any, None, None]) -> Iterator[Iterator[Any]]:
    """Cancel what is not finished when nobody asks on; joblib's warning says no more than that."""
    try:
        yield results
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            results.close()


def _belong_to(parent: int) -> None:
    """Leave Ctrl-C to the parent; end this worker soon after the parent is killed.

    joblib would let it wait for work.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    if os.name == "posix":  # elsewhere a process does not learn that its parent is gone
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # one started later did not inherit the mask
        threading.Thread(target=watch, daemon=True).start()

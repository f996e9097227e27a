"""A Dask cluster, through its own client."""

import gc
import logging
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from importlib import import_module
from queue import Empty, SimpleQueue
from typing import Any

from queuesmith.backends import Backend, clusters, workers_died
from queuesmith.backends.interrupts import deaf_children
from queuesmith.errors import ConfigError


@contextmanager
def connect(backend: Backend) -> Iterator["Dask"]:
    """Connect to a Dask scheduler, or start one with workers on this machine."""
    distributed: Any = import_module("distributed")  # optional, and without types
    dask: Any = import_module("dask")
    # A client that was given up closes itself when it is collected, and where that happens while
    # another one starts, both wait for the same lock.
    gc.collect()
    with ExitStack() as stack:
        # A task is some 100 KB and is sent once, and what is shared is megabytes on purpose.
        stack.enter_context(
            dask.config.set({"distributed.admin.large-graph-warning-threshold": "1GB"})
        )
        if backend.address:
            try:
                client = clusters.in_time(
                    lambda: distributed.Client(backend.address, timeout=clusters.CONNECT_SECONDS)
                )
            except (OSError, ValueError, TypeError, ImportError) as error:
                raise clusters.refused(backend, error) from None
            stack.enter_context(client)
            where = f"the Dask cluster at {backend.address}"
        else:
            logging.getLogger("distributed").setLevel(logging.ERROR)
            folder = tempfile.TemporaryDirectory(prefix="queuesmith-dask-")
            scratch = stack.enter_context(folder)

            def start() -> Any:
                with deaf_children():
                    return stack.enter_context(
                        distributed.LocalCluster(
                            n_workers=backend.num_workers,
                            threads_per_worker=1,
                            processes=True,
                            dashboard_address="127.0.0.1:0",  # its usual port may be taken
                            local_directory=scratch,
                            silence_logs=logging.ERROR,  # of workers too
                        )
                    )

            try:
                # A thread is not interrupted, and half a cluster cannot be closed.
                with ThreadPoolExecutor(1) as thread:
                    cluster = thread.submit(start).result()
            except (OSError, RuntimeError) as error:
                raise clusters.not_started(backend, error) from None
            client = stack.enter_context(distributed.Client(cluster))
            where = "the Dask cluster on this machine"
        yield Dask(client, where, not backend.address)


class Dask:
    """A client of a Dask scheduler. Dask itself begins tasks again whose worker died."""

    def __init__(self, client: Any, where: str, is_ours: bool) -> None:
        self._client, self.where, self.is_ours = client, where, is_ours
        self._ended: SimpleQueue[Any] = SimpleQueue()
        self.pack = import_module("cloudpickle").dumps  # which comes with Dask

    def share(self, data: bytes) -> Any:
        """Send what many calls need."""
        # As the result of a task it can be made again when a worker that had it dies.
        return self._client.submit(_same, data, pure=False)

    def send(self, function: Callable[..., Any], calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Send calls; return their tickets."""
        futures: list[Any] = self._client.map(function, *zip(*calls, strict=True), pure=False)
        for future in futures:
            future.add_done_callback(self._ended.put)
        return futures

    def wait(self, tickets: Collection[Any], seconds: float) -> list[Any]:
        """Return tickets of calls that have ended."""
        heard = []
        try:
            heard.append(self._ended.get(timeout=seconds))
            while True:
                heard.append(self._ended.get_nowait())
        except Empty:
            pass
        ended = []
        for ticket in heard:
            if ticket.status == "lost":  # with the worker that had the result: it will end again
                ticket.add_done_callback(self._ended.put)
            elif ticket in tickets:
                ended.append(ticket)
        return ended

    def take(self, ticket: Any) -> Any:
        """Return what a call came to, or raise."""
        if ticket.status == "cancelled":
            raise self._gone()
        try:
            # At once, unless the worker that has the result dies just now.
            return ticket.result(timeout=clusters.EMPTY_SECONDS)
        except Exception as error:
            name = type(error).__name__  # of dask, which may not be installed
            if name == "KilledWorker":
                raise workers_died() from None
            if "CancelledError" in name or isinstance(error, TimeoutError):
                raise self._gone() from None
            if isinstance(error.__cause__, ImportError | AttributeError):
                raise error.__cause__ from None  # it could not even be unpacked
            raise

    def drop(self, tickets: Collection[Any]) -> None:
        """Cancel calls that have not ended."""
        unfinished = [ticket for ticket in tickets if ticket.status == "pending"]
        if unfinished and self._client.status == "running":
            self._client.cancel(unfinished)

    def num_threads(self) -> int:
        """Count the tasks that can run at a time."""
        try:
            return sum(self._client.nthreads().values())
        except (OSError, RuntimeError):  # the scheduler has gone, or does not answer just now
            if self._client.status in ("closing", "closed"):
                raise self._gone() from None
            return 0

    def _gone(self) -> ConfigError:
        return ConfigError(
            f"the scheduler of {self.where} has gone, or all workers have; start them and run "
            "again: what a study or an evolution has finished is kept"
        )


def _same(data: bytes) -> bytes:
    return data

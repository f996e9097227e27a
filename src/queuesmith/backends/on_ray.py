"""A Ray cluster, through its own driver."""

import logging
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from typing import Any

from queuesmith.backends import MAX_TRIES, Backend, clusters, workers_died


@contextmanager
def connect(backend: Backend) -> Iterator["Ray"]:
    """Connect to a Ray cluster, or start one on this machine."""
    ray: Any = import_module("ray")  # optional, and without types
    is_ours = not ray.is_initialized()
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    if is_ours and backend.address:
        try:
            clusters.in_time(lambda: ray.init(address=backend.address, **quiet))
        except (OSError, ValueError, RuntimeError) as error:
            raise clusters.refused(backend, error) from None
    elif is_ours:
        try:
            ray.init(num_cpus=backend.num_workers, include_dashboard=False, **quiet)
        except Exception as error:  # Ray raises no narrower one when its start takes too long
            raise clusters.not_started(backend, error) from None
    try:
        where = f"the Ray cluster at {backend.address}" if backend.address else "the Ray cluster"
        # Ray tells of dead workers on standard output, which is for results.
        with redirect_stdout(sys.stderr):
            yield Ray(ray, where, is_ours and not backend.address)
    finally:
        if is_ours:
            ray.shutdown()


class Ray:
    """A driver of a Ray cluster. Ray itself begins tasks again whose worker died."""

    def __init__(self, ray: Any, where: str, is_ours: bool) -> None:
        self._ray, self.where, self.is_ours = ray, where, is_ours
        self._remote: dict[Callable[..., Any], Any] = {}
        self.pack = ray.cloudpickle.dumps

    def share(self, data: bytes) -> Any:
        """Send what many calls need."""
        return self._ray.put(data)

    def send(self, function: Callable[..., Any], calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Send calls; return their tickets."""
        if function not in self._remote:
            self._remote[function] = self._ray.remote(max_retries=MAX_TRIES)(function)
        return [self._remote[function].remote(*call) for call in calls]

    def wait(self, tickets: Collection[Any], seconds: float) -> list[Any]:
        """Return tickets of calls that have ended."""
        ended: list[Any] = self._ray.wait(list(tickets), num_returns=1, timeout=seconds)[0]
        return ended

    def take(self, ticket: Any) -> Any:
        """Return what a call came to, or raise."""
        died = self._ray.exceptions
        try:
            return self._ray.get(ticket)
        except (died.WorkerCrashedError, died.OutOfMemoryError, died.NodeDiedError):
            raise workers_died() from None
        except died.RayTaskError as error:
            if "failed to import" in str(error):  # it could not even be unpacked
                last = str(error).strip().split("\n")[-1]
                raise ImportError(last) from None
            raise

    def drop(self, tickets: Collection[Any]) -> None:
        """Cancel calls that have not ended."""
        for ticket in tickets:
            self._ray.cancel(ticket, force=True)

    def num_threads(self) -> int:
        """Count the tasks that can run at a time."""
        return int(self._ray.cluster_resources().get("CPU", 0))

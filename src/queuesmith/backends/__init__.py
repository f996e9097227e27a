"""Work spread over threads, processes or a cluster: one call, the same results for all of them.

Results come in the order in which they are finished, each with the place of its task. A worker that
is killed costs what it was doing and no more: that is done again by another one.
"""

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Protocol, Self, TypeVar

from queuesmith.errors import ConfigError, did_you_mean

#: Threads and processes of this machine, by joblib's names; then what a cluster runs on.
BACKENDS = ("threading", "loky", "dask", "ray")
CLUSTERS = ("dask", "ray")
#: Module that a backend needs beside joblib; its extra has the backend's name.
_NEEDS = {"dask": "distributed", "ray": "ray"}
#: Where the address of a cluster is looked for when none is given.
ADDRESS_VARIABLES = {"dask": "DASK_SCHEDULER_ADDRESS", "ray": "RAY_ADDRESS"}
#: How often a task is begun again when its worker dies, as a cluster does too.
MAX_TRIES = 3
MAX_WORKERS = 10_000

Task = TypeVar("Task")
Done = TypeVar("Done")


@dataclass(frozen=True)
class Backend:
    """What work runs on.

    Attributes
    ----------
    name : str
        One of `BACKENDS`.
    num_workers : int
        At a time. A cluster that is there already has its own number.
    address : str
        Of the scheduler of a cluster that is there; empty for workers of our own.
    """

    name: str
    num_workers: int
    address: str = ""

    @classmethod
    def choose(cls, name: str, num_workers: int | None = None, address: str | None = None) -> Self:
        """Return a backend that is installed, with all cores when no number is given.

        Raises
        ------
        ConfigError
            If there is no such backend, it is not installed, there are no workers, or an address
            is given to what is no cluster.
        """
        if name not in BACKENDS:
            raise ConfigError(
                f"there is no backend {name!r}.{did_you_mean(name, BACKENDS)} "
                f"Known: {', '.join(BACKENDS)}"
            )
        needed = _NEEDS.get(name)
        if needed is not None and find_spec(needed) is None:
            raise ConfigError(
                f"the backend {name} needs the package {needed}, which is not installed; "
                f"`pip install 'queuesmith[{name}]'`, or use --backend loky"
            )
        if num_workers is not None and num_workers < 1:
            raise ConfigError(f"num_workers must be at least 1, got {num_workers}")
        if num_workers is not None and num_workers > MAX_WORKERS:
            raise ConfigError(f"num_workers must be at most {MAX_WORKERS:,}, got {num_workers:,}")
        if address and name not in CLUSTERS:
            raise ConfigError(
                f"the backend {name} runs on this machine and has no scheduler address; use "
                "--backend dask, or leave --scheduler-address out"
            )
        address = address or os.environ.get(ADDRESS_VARIABLES.get(name, ""), "")
        return cls(name, num_workers or os.cpu_count() or 1, address)

    @property
    def is_cluster(self) -> bool:
        """Whether its workers may be on other machines."""
        return self.name in CLUSTERS


class Pool(Protocol):
    """Workers that are there."""

    def run(
        self, function: Callable[..., Done], tasks: Sequence[Task], shared: Any = None
    ) -> Generator[tuple[int, Done], None, None]:
        """Call a function on every task; yield each task's place and result once it is there.

        Parameters
        ----------
        function : callable
            ``function(task)``, or ``function(task, shared)`` when something is shared.
        tasks : sequence
        shared : optional
            What every task needs, sent to each worker once.

        Raises
        ------
        QueuesmithError
            What a call raised, as it was, once it is there; or if workers died too often.
        """
        ...


@contextmanager
def open_pool(backend: Backend) -> Iterator[Pool]:
    """Start, or connect to, the workers of a backend.

    Raises
    ------
    ConfigError
        If a cluster does not answer.
    """
    if backend.is_cluster:
        from queuesmith.backends.clusters import open_cluster

        with open_cluster(backend) as cluster:
            yield cluster
    else:
        from queuesmith.backends.local import LocalPool

        yield LocalPool(backend)


def spread(
    function: Callable[[Task], Done], tasks: Sequence[Task], backend: Backend
) -> Iterator[tuple[int, Done]]:
    """Open a pool for one `Pool.run`; what that raises and yields."""
    if not tasks:
        return
    with open_pool(backend) as pool:
        yield from pool.run(function, tasks)


def workers_died() -> ConfigError:
    """Return what to say when a task was lost `MAX_TRIES` times."""
    return ConfigError(
        "a worker process was killed several times, perhaps because memory ran out; run again with "
        "fewer workers: what a study or an evolution has finished is kept"
    )

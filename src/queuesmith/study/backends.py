"""Work spread over threads, processes or a cluster, through one call of joblib.

Results come in the order in which they are finished.
"""

import os
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal, TypeVar

from joblib import Parallel, delayed, parallel_config

from queuesmith.errors import ConfigError, QueuesmithError, did_you_mean

Backend = Literal["threading", "loky", "dask", "ray"]
BACKENDS: tuple[Backend, ...] = ("threading", "loky", "dask", "ray")
#: Module and extra that a backend needs beside joblib.
_NEEDS = {"dask": "distributed", "ray": "ray"}
#: joblib's pool for Ray hands back lists only, so its work goes out in so many tasks per worker.
_TASKS_AT_ONCE = 4

Task = TypeVar("Task")
Done = TypeVar("Done")


def check_backend(backend: str, num_workers: int | None) -> tuple[Backend, int]:
    """Return a backend that is there, and a number of workers: all cores when left out.

    Raises
    ------
    ConfigError
        If there is no such backend, it is not installed, or there are no workers.
    """
    for known in BACKENDS:
        if backend == known:
            break
    else:
        raise ConfigError(
            f"there is no backend {backend!r}.{did_you_mean(backend, BACKENDS)} "
            f"Known: {', '.join(BACKENDS)}"
        )
    needed = _NEEDS.get(backend)
    if needed is not None and find_spec(needed) is None:
        raise ConfigError(
            f"the backend {backend} needs the package {needed}, which is not installed; "
            f"`pip install 'queuesmith[{backend}]'`, or use --backend loky"
        )
    if num_workers is not None and not 1 <= num_workers <= 10_000:
        raise ConfigError(f"workers must be from 1 to 10,000, got {num_workers}")
    return known, num_workers or os.cpu_count() or 1


def spread(
    function: Callable[[Task], Done],
    tasks: Sequence[Task],
    *,
    backend: Backend,
    num_workers: int,
) -> Iterator[tuple[int, Done]]:
    """Call a function on every task; yield each task's place and result once it is there.

    Raises
    ------
    QueuesmithError
        What a call raised, as it was, once it is there; or if a worker died.
    """
    calls = [delayed(_attempt)(function, place, task) for place, task in enumerate(tasks)]
    try:
        with (
            _connected(backend, num_workers),
            _closing(_results(calls, backend, num_workers)) as results,
        ):
            for place, done in results:
                if isinstance(done, QueuesmithError):
                    raise done
                yield place, done
    except BrokenProcessPool:
        raise _worker_died() from None
    except Exception as error:
        if type(error).__name__ == "KilledWorker":  # of dask, which may not be installed
            raise _worker_died() from None
        raise


def _results(
    calls: Sequence[Any], backend: Backend, num_workers: int
) -> Generator[Any, None, None]:
    if backend == "ray":
        at_once = _TASKS_AT_ONCE * num_workers
        for start in range(0, len(calls), at_once):
            yield from Parallel(n_jobs=num_workers, batch_size=1)(calls[start : start + at_once])
        return
    own = {"initializer": _end_with, "initargs": (os.getpid(),)} if backend == "loky" else {}
    # With batches of "auto" size joblib would hand back several tasks together, and a kill would
    # cost them all.
    parallel = Parallel(n_jobs=num_workers, batch_size=1, return_as="generator_unordered", **own)
    yield from parallel(calls)


@contextmanager
def _closing(results: Generator[Any, None, None]) -> Iterator[Iterator[Any]]:
    """Cancel what is not finished when nobody asks on; joblib's warning says no more than that."""
    try:
        yield results
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            results.close()


def _attempt(
    function: Callable[[Task], Done], place: int, task: Task
) -> tuple[int, Done | QueuesmithError]:
    """Return a user's mistake as a value: not every backend hands on exceptions as they were."""
    try:
        return place, function(task)
    except QueuesmithError as error:
        return place, error


def _end_with(parent: int) -> None:
    """End this worker soon after its parent is killed, where joblib lets it wait for work."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    if os.name == "posix":  # elsewhere a process does not learn that its parent is gone
        threading.Thread(target=watch, daemon=True).start()


def _worker_died() -> ConfigError:
    return ConfigError(
        "a worker process was killed, perhaps for want of memory; what is finished is kept: run "
        "again with fewer workers"
    )


@contextmanager
def _connected(backend: Backend, num_workers: int) -> Iterator[None]:
    """Start, or connect to, what a backend runs on, and make it joblib's choice."""
    if backend == "dask":
        with _dask_client(num_workers), parallel_config(backend="dask"):
            yield
    elif backend == "ray":
        ray: Any = import_module("ray")  # optional, and without types
        import_module("ray.util.joblib").register_ray()
        if not ray.is_initialized():
            ray.init(num_cpus=num_workers, include_dashboard=False, log_to_driver=False)
        with parallel_config(backend="ray"):
            yield
    else:
        with parallel_config(backend=backend):
            yield


@contextmanager
def _dask_client(num_workers: int) -> Iterator[None]:
    """Use the cluster of ``DASK_SCHEDULER_ADDRESS``, or processes of this machine."""
    distributed: Any = import_module("distributed")  # optional, and without types
    address = os.environ.get("DASK_SCHEDULER_ADDRESS")
    if address:
        with distributed.Client(address):
            yield
        return
    with (
        tempfile.TemporaryDirectory(prefix="queuesmith-dask-") as folder,
        distributed.LocalCluster(
            n_workers=num_workers,
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            local_directory=folder,
        ) as cluster,
        distributed.Client(cluster),
    ):
        yield

"""A sandbox whose child processes are on the workers of a cluster.

A worker keeps child processes of its own, as `Sandbox` does, so each candidate is a fork behind
the fences of the machine that it runs on, and what it answers is checked there. The worker itself
never runs a line of a candidate.
"""

import atexit
import hashlib
import pickle
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Self

from queuesmith.backends import Backend, Pool, open_pool
from queuesmith.evolve.sandbox.child import Request, SimulationJob
from queuesmith.evolve.sandbox.sandbox import Outcome, Sandbox, refused

#: Seconds after which a child process that nobody needs is ended, its run being over or killed.
IDLE_SECONDS = 300.0


class RemoteSandbox:
    """Runs candidates as `Sandbox` does, on a cluster; use it in a ``with`` statement.

    Raises
    ------
    ConfigError
        If a limit makes no sense, the cluster does not answer or has lost all of its workers.
    EngineError
        If a child process does not start on a worker.
    """

    def __init__(self, job: SimulationJob, backend: Backend, **limits: Any) -> None:
        Sandbox(job, **limits)  # refuses what makes no sense before anything is sent
        self._num_cells, self._backend = len(job.cells), backend
        packed = pickle.dumps((job, limits), protocol=pickle.HIGHEST_PROTOCOL)
        self._shared = _Shared(hashlib.sha256(packed).hexdigest(), packed)
        self._pool: Pool | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._pool = self._stack.enter_context(open_pool(self._backend))
        return self

    def __exit__(self, *exception: object) -> None:
        self._pool = None
        self._stack.close()

    def run(
        self,
        texts: Sequence[str],
        *,
        cells: Sequence[int] | None = None,
        limits: Sequence[Any] | None = None,
    ) -> Iterator[Outcome]:
        """Check, compile and simulate candidates; see `Sandbox.run`."""
        if self._pool is None:
            raise RuntimeError("a RemoteSandbox runs candidates inside its `with` statement only")
        chosen = tuple(range(self._num_cells)) if cells is None else tuple(cells)
        outcomes: dict[int, Outcome] = {}
        requests: dict[int, Request] = {}
        for place, (text, limit) in enumerate(
            zip(texts, limits or [None] * len(texts), strict=True)
        ):
            if outcome := refused(text):
                outcomes[place] = outcome
            else:
                requests[place] = Request(text, chosen, limit)
        places = list(requests)
        results = self._pool.run(try_candidate, list(requests.values()), self._shared)
        with closing(results):
            for place in range(len(texts)):
                while place not in outcomes:
                    index, outcome = next(results)
                    outcomes[places[index]] = outcome
                yield outcomes.pop(place)


# On a worker


@dataclass(frozen=True)
class _Shared:
    """A job and its limits, packed, and what tells them from others."""

    sha256: str
    packed: bytes


@dataclass(eq=False)
class _Job:
    """What this process has for a job: its sandboxes, of one child process each, that are idle."""

    job: SimulationJob
    limits: dict[str, Any]
    idle: list[Sandbox] = field(default_factory=list)
    used: float = 0.0


_jobs: dict[str, _Job] = {}
_lock = threading.Lock()


def try_candidate(request: Request, shared: _Shared) -> Outcome:
    """Run one candidate in a child process of this one."""
    with _borrowed(shared) as sandbox:
        (outcome,) = sandbox.run([request.text], cells=request.numbers, limits=[request.limit])
    return outcome


@contextmanager
def _borrowed(shared: _Shared) -> Iterator[Sandbox]:
    """Take an idle sandbox, or start one: so there are as many as this process has threads."""
    with _lock:
        _look_after()
        if shared.sha256 not in _jobs:
            _jobs[shared.sha256] = _Job(*pickle.loads(shared.packed))
        job = _jobs[shared.sha256]
        job.used = time.monotonic()
        sandbox = job.idle.pop() if job.idle else None
    if sandbox is None:
        sandbox = Sandbox(job.job, **job.limits).__enter__()
    try:
        yield sandbox
    except BaseException:
        sandbox.close()
        raise
    with _lock:
        job = _jobs.setdefault(shared.sha256, job)  # it may have been ended, and begun again
        job.used = time.monotonic()
        job.idle.append(sandbox)


@cache
def _look_after() -> None:
    """See to it that child processes end: some time after their run, and with this process."""

    def watch() -> None:
        while True:
            time.sleep(IDLE_SECONDS / 10)
            end_idle(IDLE_SECONDS)

    threading.Thread(target=watch, daemon=True).start()
    atexit.register(end_idle, 0.0)


def end_idle(seconds: float) -> None:
    """End the child processes of jobs that nobody has asked for in some seconds."""
    now = time.monotonic()
    with _lock:
        old = [name for name, job in _jobs.items() if now - job.used >= seconds]
        ended = [sandbox for name in old for sandbox in _jobs.pop(name).idle]
    for sandbox in ended:
        sandbox.close()

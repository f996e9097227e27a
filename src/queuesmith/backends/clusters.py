"""Work on a Dask or Ray cluster: one that is there, or workers of our own on this machine.

joblib has backends for both, and they are not used: that for Dask puts the tasks' inputs into the
memory of some worker, where they are lost with it, and that for Ray hands results back when the
last of them is there.

Tasks travel as bytes, which a worker unpacks once it has been found to run the same code.
"""

import hashlib
import pickle
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, NoReturn, Protocol, TypeVar

from queuesmith._version import __version__
from queuesmith.backends import ADDRESS_VARIABLES, Backend
from queuesmith.errors import ConfigError, QueuesmithError

#: Seconds in which the address of a scheduler must answer.
CONNECT_SECONDS = 10.0
#: Seconds for which a cluster may be without any worker; machines may be on their way.
EMPTY_SECONDS = 120.0
#: Seconds between two looks at the number of workers.
LOOK_SECONDS = 1.0
#: Tasks sent ahead: so many for each thread, and at least this many, so that a cluster that grows
#: with its queue has a reason to.
AHEAD, LEAST_AHEAD = 4, 32
#: Code that decides no number.
_FACES = ("cli", "report")

Task = TypeVar("Task")
Done = TypeVar("Done")


class Cluster(Protocol):
    """What Dask and Ray have in common; a ticket stands for a call that was sent."""

    where: str
    is_ours: bool  # so that its workers run the code of this process

    def pack(self, value: Any) -> bytes:
        """Pickle a value, functions that nobody can import included."""

    def share(self, data: bytes) -> Any:
        """Send what many calls need; return what stands for it among the arguments of `send`."""

    def send(self, function: Callable[..., Any], calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Send calls, each a tuple of arguments; return their tickets."""

    def wait(self, tickets: Collection[Any], seconds: float) -> list[Any]:
        """Return tickets of calls that have ended since; none if there are none in that time."""

    def take(self, ticket: Any) -> Any:
        """Return what a call came to, or raise."""

    def drop(self, tickets: Collection[Any]) -> None:
        """Forget calls that have not ended."""

    def num_threads(self) -> int:
        """Count the tasks that can run at a time; 0 without workers."""


@contextmanager
def open_cluster(backend: Backend) -> Iterator["ClusterPool"]:
    """Connect to a cluster, or start one on this machine.

    Raises
    ------
    ConfigError
        If nothing answers at the address, or what answers is no such cluster.
    """
    module = import_module(f"queuesmith.backends.on_{backend.name}")
    with module.connect(backend) as cluster:
        yield ClusterPool(cluster)


class ClusterPool:
    """Runs calls on a cluster, and says so when there is nobody left to run them."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._shared: tuple[Any, Any] | None = None  # an object, and what stands for it there

    def run(
        self, function: Callable[..., Done], tasks: Sequence[Task], shared: Any = None
    ) -> Generator[tuple[int, Done], None, None]:
        """Call a function on every task; see `queuesmith.backends.Pool`."""
        cluster = self._cluster
        mine = "" if cluster.is_ours else identity()
        also = () if shared is None else (self._share(shared),)
        waiting = deque(enumerate(tasks))
        sent: dict[Any, int] = {}
        threads, looked, seen = cluster.num_threads(), time.monotonic(), time.monotonic()
        try:
            while waiting or sent:
                most = max(AHEAD * threads, LEAST_AHEAD)
                if waiting and len(sent) <= most // 2:  # several at a time, which costs less
                    batch = [waiting.popleft() for _ in range(min(most - len(sent), len(waiting)))]
                    calls = [(mine, cluster.pack((function, task)), *also) for _, task in batch]
                    tickets = cluster.send(_attempt, calls)
                    sent |= {
                        ticket: place for ticket, (place, _) in zip(tickets, batch, strict=True)
                    }
                ended = cluster.wait(sent, LOOK_SECONDS)
                for ticket in ended:
                    place = sent.pop(ticket)
                    yield place, self._read(ticket)
                now = time.monotonic()
                if now - looked >= LOOK_SECONDS:
                    threads, looked = cluster.num_threads(), now
                if threads or ended:
                    seen = now
                elif now - seen >= EMPTY_SECONDS:
                    raise ConfigError(
                        f"{cluster.where} has had no worker for {now - seen:.0f} s, with "
                        f"{len(sent) + len(waiting)} of {len(tasks)} tasks left; start workers and "
                        "run again: what a study or an evolution has finished is kept"
                    )
        finally:
            cluster.drop(sent)

    def _share(self, shared: Any) -> Any:
        if self._shared is None or self._shared[0] is not shared:
            self._shared = shared, self._cluster.share(pickle.dumps(shared))
        return self._shared[1]

    def _read(self, ticket: Any) -> Any:
        try:
            done = self._cluster.take(ticket)
        except (ImportError, AttributeError) as error:  # what it was sent is not there
            _other_code(self._cluster.where, f"lacks what it needs ({error})")
        if isinstance(done, _Raised):
            raise done.error
        if isinstance(done, _Stranger):
            _other_code(self._cluster.where, f"runs {done.name}")
        if isinstance(done, QueuesmithError):
            raise done
        return done


@dataclass(frozen=True)
class _Stranger:
    """The answer of a worker that runs other code."""

    name: str


@dataclass(frozen=True)
class _Raised:
    """An exception as a value, so that one that is raised comes from the cluster itself."""

    error: Exception


@cache
def identity() -> str:
    """Name the code that this process runs: version, and hash of all that decides a number."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        name = file.relative_to(root)
        if name.parts[0] not in _FACES:
            digest.update(f"{name.as_posix()}\0".encode() + file.read_bytes())
    return f"{__version__} (code {digest.hexdigest()[:12]})"


def _attempt(theirs: str, call: bytes, shared: bytes | None = None) -> Any:
    """Run a call on a worker; what it came to, a mistake as a value, or that the code differs."""
    if theirs and theirs != identity():
        return _Stranger(identity())
    function, task = pickle.loads(call)
    try:
        also = () if shared is None else (_unpack(shared),)
        return function(task, *also)
    except QueuesmithError as error:
        return error
    except Exception as error:
        error.add_note(f"On a worker:\n{traceback.format_exc()}")
        return _Raised(error)


_unpacked: tuple[bytes, Any] = b"", None


def _unpack(shared: bytes) -> Any:
    """Unpack what is shared once in each process, as long as it is the same."""
    global _unpacked
    packed, value = _unpacked  # together: another thread may have been sent something else
    if packed != shared:
        value = pickle.loads(shared)
        _unpacked = shared, value
    return value


def _other_code(where: str, what: str) -> NoReturn:
    raise ConfigError(
        f"a worker of {where} {what}, and this is queuesmith {identity()}; install the same on "
        "every machine of the cluster, and start its scheduler and workers again"
    )


def in_time(connect: Callable[[], Done]) -> Done:
    """Connect, or give up: Dask and Ray both wait for ever for some of what is no server of theirs.

    Raises
    ------
    TimeoutError
        If that takes a second longer than `CONNECT_SECONDS`, in which clients should have given up.
    """
    answer: SimpleQueue[tuple[Any, Exception | None]] = SimpleQueue()

    def try_it() -> None:
        try:
            answer.put((connect(), None))
        except Exception as error:
            answer.put((None, error))

    threading.Thread(target=try_it, daemon=True).start()
    try:
        client, error = answer.get(timeout=CONNECT_SECONDS + 1.0)
    except Empty:
        raise TimeoutError(f"no answer within {CONNECT_SECONDS:g} s") from None
    if error is not None:
        raise error
    made: Done = client
    return made


def refused(backend: Backend, error: Exception) -> ConfigError:
    """Return what to say when nothing answers at an address."""
    said = " ".join(str(error).split())[:200] or type(error).__name__
    return ConfigError(
        f"no {backend.name.capitalize()} cluster answers at {backend.address!r} ({said}); give the "
        f"address that its scheduler prints with --scheduler-address or in "
        f"{ADDRESS_VARIABLES[backend.name]}, or neither for workers on this machine"
    )


def not_started(backend: Backend, error: Exception) -> ConfigError:
    """Return what to say when workers of our own do not start."""
    said = " ".join(str(error).split())[:200] or type(error).__name__
    return ConfigError(
        f"{backend.name.capitalize()} does not start on this machine ({said}); try again when "
        "it is less busy, or use --backend loky"
    )

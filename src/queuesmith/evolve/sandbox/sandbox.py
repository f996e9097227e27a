"""Many candidates through child processes, their outcomes in order; nothing of theirs runs here.

A `Sandbox` keeps a few processes ready, each of which forks once for every candidate
(:mod:`~queuesmith.evolve.sandbox.child`) and fences the fork in
(:mod:`~queuesmith.evolve.sandbox.containment`). What comes back are bytes of a fixed form, which
are checked before anything is made of them.
"""

import hashlib
import math
import os
import pickle
import shutil
import signal
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from queuesmith.errors import CandidateError, ConfigError
from queuesmith.evolve.sandbox import child
from queuesmith.evolve.sandbox.allow_list import check_form
from queuesmith.evolve.sandbox.child import Cell, Request, SimulationJob
from queuesmith.evolve.sandbox.containment import ANSWERED, TOO_LONG, TOO_SLOW, Ended, Limits
from queuesmith.evolve.sandbox.worker import Lost, Worker

__all__ = ["Cell", "Outcome", "Sandbox", "SimulationJob", "Status"]

Status = Literal["ok", "form", "fault", "timeout", "memory", "crash"]

#: Times that a candidate is tried when the process that forks for it is lost.
MAX_TRIES = 2


@dataclass(frozen=True, eq=False)
class Outcome:
    """What became of one candidate."""

    #: ``"ok"``; or why there is nothing: ``"form"`` (refused unread), ``"fault"`` (it does not
    #: compile, a hook raises, or it stalls the engine), ``"timeout"``, ``"memory"`` or ``"crash"``
    #: (its process died otherwise, or answered nonsense).
    status: Status
    reason: str = ""  # one sentence; empty when the status is ``"ok"``
    #: What the job reads from each cell, in the order asked for; of the first ones only where the
    #: job's `stop` ended it.
    values: tuple[NDArray[np.float64], ...] = ()
    behaviour: str = ""  # hash of `values`: equal for candidates that served these cells alike
    #: Processor time of the fork. The only part that differs from run to run.
    cpu_seconds: float = 0.0
    told: str = ""  # the answer to a question


def refused(text: str) -> Outcome | None:
    """Return the outcome of a text whose form is refused; nothing for others."""
    try:
        check_form(text)
    except CandidateError as error:
        return Outcome("form", str(error))
    return None


class Sandbox:
    """Child processes that compile and simulate candidates; use it in a ``with`` statement.

    Parameters
    ----------
    workers : int
        Candidates at a time. Outcomes do not depend on it.
    cpu_seconds : int
        Processor time of one candidate: compiling it takes 0.02-0.2 s, and to simulate a million
        steps about 1 s. A limit that some candidates only just meet makes runs differ.
    memory_mib : int
        Memory of one candidate, on top of what compiler and workloads take.
    wall_seconds : float
        Time until one candidate must have answered, on a busy machine too.
    wrap : sequence of str
        Command line that runs the command after it in a sandbox of its own, such as ``("bwrap",
        "--ro-bind", "/", "/", "--unshare-all", "--die-with-parent")``.

    Attributes
    ----------
    fences : tuple of str
        What holds candidates on this machine.

    Raises
    ------
    ConfigError
        If a limit makes no sense, or the system cannot fork.
    EngineError
        If a child process does not start.
    """

    fences: tuple[str, ...] = ()

    def __init__(
        self,
        job: SimulationJob,
        *,
        workers: int = 1,
        cpu_seconds: int = 20,
        memory_mib: int = 512,
        wall_seconds: float = 120.0,
        wrap: Sequence[str] = (),
    ) -> None:
        if not hasattr(os, "fork"):
            raise ConfigError("candidates need processes that fork: run this on Linux or macOS")
        whole = {"workers": workers, "cpu_seconds": cpu_seconds, "memory_mib": memory_mib}
        for name, value in whole.items():
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 10**6:
                raise ConfigError(f"{name} must be a whole number of at least 1, got {value!r}")
        if not 0 < wall_seconds < math.inf:
            raise ConfigError(f"wall_seconds must be positive seconds, got {wall_seconds!r}")
        if not job.cells:
            raise ConfigError("a job needs at least one cell, a window at a load")
        self.job = job
        self.limits = Limits(cpu_seconds, float(wall_seconds), memory_mib, _answer_bytes(job))
        self._wrap = tuple(wrap)
        self._num_workers = workers
        self._workers: list[Worker] = []
        self._idle: SimpleQueue[Worker] = SimpleQueue()
        self._pool: ThreadPoolExecutor | None = None
        self._folder = ""

    def __enter__(self) -> Self:
        folder = tempfile.mkdtemp(prefix="queuesmith-")
        self._folder, message = folder, self._start(folder)
        try:
            self._workers = [Worker(self._wrap, folder, message) for _ in range(self._num_workers)]
            for worker in self._workers:  # all of them import at the same time
                worker.launch()
            for worker in self._workers:
                worker.greet()
                self._idle.put(worker)
        except BaseException:
            self.close()
            raise
        self.fences = self._workers[0].fences
        self._pool = ThreadPoolExecutor(self._num_workers, thread_name_prefix="queuesmith-sandbox")
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End the child processes, in the middle of whatever they do."""
        for worker in self._workers:
            worker.end()  # so that nobody waits for an answer any more
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None
        for worker in self._workers:
            worker.release()
        self._workers = []
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = ""

    def renew(self, job: SimulationJob) -> None:
        """Take another job, in the child processes as well, while no candidate runs."""
        self.job = job
        self.limits = replace(self.limits, answer_bytes=_answer_bytes(job))
        message = self._start(self._folder)
        for worker in self._workers:
            worker.renew(message)

    def _start(self, folder: str) -> bytes:
        start = child.Start(self.job, self.limits, folder)
        return pickle.dumps(start, protocol=pickle.HIGHEST_PROTOCOL)

    def run(
        self,
        texts: Sequence[str],
        *,
        cells: Sequence[int] | None = None,
        limits: Sequence[Any] | None = None,
    ) -> Iterator[Outcome]:
        """Check, compile and simulate candidates.

        Parameters
        ----------
        cells : sequence of int, optional
            Which cells of the job to simulate, in this order; all of them when left out.
        limits : sequence, optional
            What the job's `stop` is told with each text; with None it is not asked.

        Yields
        ------
        Outcome
            One for each text, in the order given.
        """
        if self._pool is None:
            raise RuntimeError("a Sandbox runs candidates inside its `with` statement only")
        chosen = tuple(range(len(self.job.cells))) if cells is None else tuple(cells)
        if any(not 0 <= number < len(self.job.cells) for number in chosen):
            raise ConfigError(f"cells must be 0 to {len(self.job.cells) - 1}, got {chosen}")
        outcomes: list[Outcome | Future[Outcome]] = []
        try:
            for text, limit in zip(texts, limits or [None] * len(texts), strict=True):
                request = Request(text, chosen, limit)
                outcomes.append(refused(text) or self._pool.submit(self._try, request))
            for outcome in outcomes:
                yield outcome if isinstance(outcome, Outcome) else outcome.result()
        finally:
            for outcome in outcomes:
                if isinstance(outcome, Future):
                    outcome.cancel()

    def ask(self, text: str, question: str) -> Outcome:
        """Ask a question of `queuesmith.evolve.sandbox.child.QUESTIONS` about a candidate."""
        if self._pool is None:
            raise RuntimeError("a Sandbox runs candidates inside its `with` statement only")
        request = Request(text, (), None, question)
        return refused(text) or self._pool.submit(self._try, request).result()

    def _try(self, request: Request) -> Outcome:
        """Have one candidate run by whichever child process is idle."""
        worker = self._idle.get()
        try:
            for _ in range(MAX_TRIES):
                try:
                    ended = worker.ask(request, self.limits.wall_seconds)
                    return self._judge(ended, request)
                except Lost:
                    worker.restart()
            return Outcome("crash", "each time, the process that was to fork for it was lost")
        finally:
            self._idle.put(worker)

    def _judge(self, ended: Ended, request: Request) -> Outcome:
        """Say what became of a candidate, trusting nothing that its process wrote."""
        limits = self.limits
        status: Status = "crash"
        if ended.how == ANSWERED:
            outcome = self._read(ended.answer, request)
            return replace(outcome, cpu_seconds=ended.cpu_seconds)
        out_of_time = ended.cpu_seconds >= limits.cpu_seconds
        if ended.how == TOO_SLOW:
            status, reason = "timeout", f"it has not answered within {limits.wall_seconds:g} s"
        elif ended.how == TOO_LONG:
            reason = f"its answer has more than the {limits.answer_bytes:,} bytes expected"
        elif ended.code == signal.SIGXCPU or (ended.code == signal.SIGKILL and out_of_time):
            status = "timeout"
            reason = f"it takes more than {limits.cpu_seconds} s of processor time"
        elif ended.code == signal.SIGKILL:
            status, reason = "memory", "the system has killed its process, as it does for memory"
        elif ended.code:
            reason = f"its process died of {_signal_name(ended.code)}"
        else:
            reason = "its process ended without an answer"
        return Outcome(status, reason, cpu_seconds=ended.cpu_seconds)

    def _read(self, answer: bytes, request: Request) -> Outcome:
        kind, rest = answer[:1], answer[1:]
        if kind == child.FAULT:
            text = rest[: child.MAX_REASON].decode("utf-8", "replace")
            shown = "".join(sign if sign.isprintable() else " " for sign in text)
            return Outcome("fault", " ".join(shown.split()) or "it failed without a reason")
        if kind == child.OUT_OF_MEMORY:
            return Outcome("memory", f"it takes more than {self.limits.memory_mib} MiB of memory")
        if request.question and kind == child.TOLD:
            return Outcome("ok", told=rest[: child.MAX_TOLD].decode("utf-8", "replace"))
        sizes = [self.job.read.size(number) for number in request.numbers]
        may_stop = self.job.stop is not None and request.limit is not None
        num_cells = _num_cells(sizes, len(rest), may_stop)
        if kind == child.SERVED and num_cells is not None and not request.question:
            values = np.frombuffer(rest, "<f8").astype(np.float64)
            if np.isfinite(values).all() and (values >= 0.0).all():
                ends = np.cumsum(sizes[:num_cells])
                parts = zip(ends, sizes, strict=False)
                cells = tuple(values[end - size : end] for end, size in parts)
                return Outcome("ok", "", cells, hashlib.sha256(rest).hexdigest())
        return Outcome("crash", "its process answered something that is no answer")


def _answer_bytes(job: SimulationJob) -> int:
    return child.MAX_TOLD + 8 * sum(job.read.size(number) for number in range(len(job.cells)))


def _num_cells(sizes: Sequence[int], num_bytes: int, may_stop: bool) -> int | None:
    """Return how many cells an answer is of; None when it is of no whole number of them."""
    left = num_bytes
    for place, size in enumerate(sizes):
        if left == 0 and place and may_stop:
            return place
        left -= 8 * size
    return len(sizes) if left == 0 else None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"

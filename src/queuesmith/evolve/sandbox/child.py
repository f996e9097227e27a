"""The process that compiles and simulates candidates, each of them in a fork of its own.

It imports numba and the engine, takes in the workloads and compiles once, which costs seconds; a
fork then starts within milliseconds with all of that, and whatever a candidate does to it is gone
with the fork. This process itself never runs a line of a candidate.

:mod:`queuesmith.evolve.sandbox.sandbox` starts it and talks to it over standard input and output:

* in: a `Start`; then for each candidate a `Request`;
* out: the fences that are in force; then for each candidate how its fork ended, and its answer.

A further `Start` takes the place of the one before it, and is answered in the same way.

Pickles go inwards only. An answer is one byte that says what it is, then either what is read from
its runs, as float64, or a reason.
"""

import gc
import importlib
import json
import os
import pickle
import signal
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from queuesmith.config import EngineConfig
from queuesmith.engine import simulate_workload
from queuesmith.engine.compile import compile_policy
from queuesmith.engine.presets.step_time import StepTime
from queuesmith.engine.result import Result
from queuesmith.engine.workload import Workload
from queuesmith.errors import QueuesmithError
from queuesmith.evolve.gp.behaviour import behaviour
from queuesmith.evolve.sandbox import containment
from queuesmith.evolve.sandbox.containment import ANSWERED, Ended, Limits, ParentGone, contained
from queuesmith.evolve.sandbox.decision_table import situations
from queuesmith.metrics import ttft
from queuesmith.policies import Policy, get_policy
from queuesmith.policies.policy import load_text
from queuesmith.testing import check_policy

#: The first byte of an answer.
SERVED, FAULT, OUT_OF_MEMORY, TOLD = b"s", b"f", b"m", b"t"
#: Bytes of an answer's reason, and of the answer to a question.
MAX_REASON, MAX_TOLD = 2_000, 20_000

LENGTH = struct.Struct("<I")  # of the message that follows
ENDED = struct.Struct("<BBdI")  # how, code, CPU seconds, peak MiB; then the answer


@dataclass(frozen=True, eq=False)
class Cell:
    """One window at one load on one engine."""

    #: From `queuesmith.engine.prepare`, with arrivals scaled to the load, and what may be known of
    #: output lengths.
    workload: Workload
    config: EngineConfig
    step_time: StepTime


StopRule = Callable[[Sequence[int], Sequence[NDArray[np.float64]], Any], bool]


class Read(Protocol):
    """What is read from a run: so many finite numbers, none below 0. It must pickle."""

    def size(self, number: int) -> int:
        """Return how many numbers are read from a run of a cell."""
        ...

    def __call__(self, number: int, result: Result) -> NDArray[np.float64]:
        """Return them."""
        ...


@dataclass(frozen=True)
class ReadTtft:
    """Reads the time to first token of each request, s; `sizes` are requests, by cell."""

    sizes: tuple[int, ...]

    def size(self, number: int) -> int:
        """Return the number of requests."""
        return self.sizes[number]

    def __call__(self, number: int, result: Result) -> NDArray[np.float64]:
        """Return (num_requests,) float64."""
        return ttft(result)


@dataclass(frozen=True, eq=False)
class Request:
    """One candidate, and what it is to serve; or a question about it, of `QUESTIONS`."""

    text: str
    numbers: tuple[int, ...]
    limit: Any = None
    question: str = ""


def _checks(policy: Policy) -> str:
    return json.dumps(list(check_policy(policy).checks))


def _situations(policy: Policy) -> str:
    return json.dumps([asdict(one) for one in situations(policy)])


#: What can be asked about a policy, whose hooks then run in plain Python.
QUESTIONS: Mapping[str, Callable[[Policy], str]] = {
    "behaviour": behaviour,
    "checks": _checks,
    "situations": _situations,
}


@dataclass(frozen=True, eq=False)
class SimulationJob:
    """What every candidate is to serve. Held-out windows have no place in it."""

    cells: tuple[Cell, ...]
    #: ``stop(numbers, values, limit)`` says after each cell whether a candidate need not run any
    #: further: `numbers` are the cells it was to serve, `values` what was read from those it has
    #: served, `limit` what `Sandbox.run` was given with it. It must pickle. Since it is asked
    #: beside the candidate, whoever reads an outcome that was stopped asks it again.
    stop: StopRule | None = None
    given_read: Read | None = None  # the times to first token when left out

    @property
    def read(self) -> Read:
        """What is read from each run."""
        sizes = tuple(len(cell.workload.row) for cell in self.cells)
        return self.given_read or ReadTtft(sizes)


@dataclass(frozen=True, eq=False)
class Start:
    """What this process is told first."""

    job: SimulationJob
    limits: Limits
    folder: str


def main() -> None:
    """Serve candidates until the other end closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is interrupted, and ends this process
    commands, answers = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)  # a stray print must not look like an answer
    os.close(null)
    message = receive(commands)
    if message is None:
        return
    start: Start = pickle.loads(message)
    _warm_up(start.job)
    network = ["no network"] if containment.leave_network() else []
    probe = contained(_name_fences, start.limits, start.folder)
    if probe.how != ANSWERED:
        sys.exit("this system does not let a process give up what candidates must not have")
    send(answers, json.dumps(probe.answer.decode().split(",") + network).encode())
    while (message := receive(commands)) is not None:
        request: Start | Request = pickle.loads(message)
        if isinstance(request, Start):
            start = request
            send(answers, json.dumps(probe.answer.decode().split(",") + network).encode())
            continue
        work = partial(_serve, start.job, request)
        try:
            ended = contained(work, start.limits, start.folder, watched=commands)
        except ParentGone:
            return
        send(answers, pack_ended(ended))


def _warm_up(job: SimulationJob) -> None:
    """Compile and simulate once, so that forks find numba and the engine loaded and ready."""
    # For checks, since a fork can open no file.
    importlib.import_module("queuesmith.engine.reference.agreement")
    situations(get_policy("fcfs"))
    compile_policy(load_text("warm_up", _usual_language(), Path("warm_up.py")), keep=False)
    fcfs = compile_policy(get_policy("fcfs"))
    for cell in job.cells[:1]:
        simulate_workload(cell.workload, fcfs, cell.config, cell.step_time)
    _serve(job, Request("def waiting_key(request, engine):\n    return 1 // 0\n", ()))
    gc.collect()
    gc.freeze()  # a collection in a fork would touch, and so copy, every page


def _usual_language() -> str:
    """Return a policy that uses what most candidates use, so that forks find it compiled."""
    fields = ("engine.now", "engine.num_waiting")  # a float and a whole number
    uses = [f"math.{name}({field})" for name in ("sqrt", "exp", "log", "log1p") for field in fields]
    uses += [f"(engine.now {sign} engine.num_waiting)" for sign in ("-", "*", "/", "//", "%")]
    uses += ["max(engine.now, abs(1.0))", "round(engine.now)", "int(engine.now)"]
    uses += ["SIZES[engine.num_waiting]", "(1 if engine.now < 2.0 and not True else math.inf)"]
    return (
        "import math\nSIZES = (1.0, 2.0)\n"
        f"def waiting_key(request, engine):\n    return {' + '.join(uses)}\n"
        "def admit(request, engine):\n    return engine.now > 1.0\n"
    )


def _name_fences() -> bytes:
    return ",".join(containment.in_force).encode()


def _serve(job: SimulationJob, request: Request) -> bytes:
    """Compile a candidate and simulate it: the answer of a fork."""
    try:
        policy = load_text("candidate", request.text, Path("candidate.py"))
        if request.question:
            return TOLD + QUESTIONS[request.question](policy).encode()
        compiled = compile_policy(policy, keep=False)  # nothing of what strangers wrote stays
        values: list[NDArray[np.float64]] = []
        read = job.read
        for number in request.numbers:
            cell = job.cells[number]
            result = simulate_workload(cell.workload, compiled, cell.config, cell.step_time)
            values.append(read(number, result))
            if job.stop is None or request.limit is None:
                continue
            if job.stop(request.numbers, values, request.limit):
                break
        return b"".join([SERVED, *(each.astype("<f8").tobytes() for each in values)])
    except MemoryError:
        return OUT_OF_MEMORY
    except QueuesmithError as error:
        reason = str(error)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
    return FAULT + reason.encode("utf-8", "replace")[:MAX_REASON]


# Messages: their length, then their bytes.


def send(descriptor: int, message: bytes) -> None:
    """Write one message; raises `OSError` when nobody reads."""
    data = memoryview(LENGTH.pack(len(message)) + message)
    while data:
        data = data[os.write(descriptor, data) :]


def receive(descriptor: int) -> bytes | None:
    """Read one message; None when the other end has closed."""
    head = _read(descriptor, LENGTH.size)
    return None if head is None else _read(descriptor, *LENGTH.unpack(head))


def _read(descriptor: int, size: int) -> bytes | None:
    parts = []
    while size:
        part = os.read(descriptor, min(size, 1 << 20))
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def pack_ended(ended: Ended) -> bytes:
    """Write how a fork ended."""
    head = ENDED.pack(ended.how, ended.code, ended.cpu_seconds, ended.peak_mib)
    return head + ended.answer


def unpack_ended(message: bytes) -> Ended:
    """Undo `pack_ended`."""
    how, code, cpu_seconds, peak_mib = ENDED.unpack_from(message)
    return Ended(how, code, cpu_seconds, peak_mib, message[ENDED.size :])

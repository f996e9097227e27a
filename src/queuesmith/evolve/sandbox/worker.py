"""One child process as its parent sees it: started, talked to, replaced, killed."""

import json
import os
import pickle
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from typing import IO

from queuesmith.errors import EngineError
from queuesmith.evolve.sandbox import child
from queuesmith.evolve.sandbox.containment import Ended

#: Seconds that a child process has to start; a kernel that is in no cache takes a minute.
START_SECONDS = 600.0
#: Seconds that a child process has to report beyond the wall clock of its fork.
GRACE_SECONDS = 20.0
#: What a child process sees of this one's environment: where compiled kernels are kept.
_ENVIRONMENT = ("HOME", "XDG_CACHE_HOME", "TMPDIR", "LD_LIBRARY_PATH")
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from queuesmith.evolve.sandbox.child import main; main()"
)


class Lost(Exception):
    """A child process, not one of its forks, has died or fallen silent."""


class Worker:
    """One child process, as this process sees it."""

    def __init__(self, wrap: tuple[str, ...], folder: str, start: bytes) -> None:
        self._wrap, self._folder, self._start = wrap, folder, start
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._input: IO[bytes] | None = None
        self._output: IO[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._ended = False
        self.fences: tuple[str, ...] = ()

    def launch(self) -> None:
        """Start the process, without waiting for it."""
        kept = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        kept |= {name: value for name, value in os.environ.items() if name.startswith("NUMBA_")}
        # A fork copies one thread only, and would wait forever for what another one holds.
        kept |= {f"{name}_NUM_THREADS": "1" for name in ("NUMBA", "OMP", "OPENBLAS", "MKL")}
        path = json.dumps([os.path.abspath(folder) for folder in sys.path])
        command = [*self._wrap, sys.executable, "-I", "-c", _START, path]
        with self._lock:
            if self._ended:
                raise Lost
            self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `release`
            try:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self._errors,
                    cwd=self._folder,
                    env=kept,
                    bufsize=0,
                    start_new_session=True,  # Ctrl-C is for this process to hear
                )
            except OSError as error:
                raise EngineError(
                    f"cannot start a process for candidates: {error.strerror} ({command[0]})"
                ) from None
        self._input, self._output = self._process.stdin, self._process.stdout

    def greet(self) -> None:
        """Hand over the job and wait until the process is ready."""
        try:
            self._send(self._start)
            self.fences = tuple(json.loads(self._receive(START_SECONDS)))
        except Lost:
            self._kill()
            raise EngineError(
                f"a process for candidates did not start: {self._last_words()}"
            ) from None

    def renew(self, start: bytes) -> None:
        """Hand over another job; a process that was lost is replaced."""
        self._start = start
        try:
            self._send(start)
            self._receive(START_SECONDS)
        except Lost:
            self.restart()

    def _last_words(self) -> str:
        assert self._errors is not None
        self._errors.seek(0)
        lines = self._errors.read().decode("utf-8", "replace").split("\n")
        said = [line.strip() for line in lines if line.strip()]
        return said[-1][:300] if said else "it said nothing"

    def ask(self, request: child.Request, wall_seconds: float) -> Ended:
        """Have a candidate run; raises `Lost`."""
        self._send(pickle.dumps(request))
        return child.unpack_ended(self._receive(wall_seconds + GRACE_SECONDS))

    def restart(self) -> None:
        """Replace a process that was lost."""
        self._kill()
        self.release()
        self.launch()
        self.greet()

    def end(self) -> None:
        """Kill the process for good; whoever waits for it is told that it was lost."""
        with self._lock:
            self._ended = True
        self._kill()

    def release(self) -> None:
        """Close what led to a process that has ended."""
        for file in (self._errors, self._input, self._output):
            if file is not None:
                file.close()

    def _kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            with suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)  # with what `wrap` has started
            self._process.wait()

    def _send(self, message: bytes) -> None:
        assert self._input is not None
        try:
            child.send(self._input.fileno(), message)
        except OSError:
            raise Lost from None

    def _receive(self, seconds: float) -> bytes:
        """Read one message, or give the process up."""
        assert self._output is not None
        descriptor = self._output.fileno()
        deadline = time.monotonic() + seconds
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        received = b""
        while True:
            if not poll.poll(max(deadline - time.monotonic(), 0.0) * 1000):
                raise Lost
            part = os.read(descriptor, 1 << 20)
            if not part:
                raise Lost
            received += part
            if len(received) >= child.LENGTH.size:
                (length,) = child.LENGTH.unpack_from(received)
                if len(received) >= child.LENGTH.size + length:
                    return received[child.LENGTH.size :]

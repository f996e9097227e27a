"""A vLLM server of one's own, started for one measurement and stopped after it."""

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

from queuesmith.deploy import guard
from queuesmith.deploy.plugin import check_version
from queuesmith.deploy.replay import Server, free_port
from queuesmith.deploy.steps import RECORD_VARIABLE
from queuesmith.errors import ConfigError

#: Seconds that a server may take to load its model.
START_TIMEOUT = 1800.0


def server_command(model: str, engine_args: str, port: int) -> list[str]:
    """Return the command that starts vLLM with a record of its steps."""
    return [
        sys.executable,
        "-m",
        "vllm.entrypoints.openai.api_server",
        *("--model", model, "--host", "127.0.0.1", "--port", str(port)),
        *("--scheduler-cls", "queuesmith.deploy.steps.make_scheduler"),
        *shlex.split(engine_args),
    ]


class LocalServer:
    """A context in which a fresh vLLM server runs.

    The server ends with this process however it ends, since `guard` watches over it.

    Parameters
    ----------
    model : str
        Name or folder, for ``--model``.
    engine_args : str
        Further options of ``vllm serve``.
    environment : mapping of str to str
        On top of this process's own; ``QUEUESMITH_POLICY`` names the policy.
    folder : Path
        Gets ``server.log`` and ``steps.jsonl``.
    timeout : float
        As for `Server`.
    command : sequence of str, optional
        Started instead, with ``{port}`` in its words replaced.

    Raises
    ------
    ConfigError
        If vLLM is not installed or of an untested version, or the server does not start.
    """

    def __init__(
        self,
        model: str,
        engine_args: str,
        environment: Mapping[str, str],
        folder: Path,
        timeout: float = 600.0,
        command: Sequence[str] | None = None,
    ) -> None:
        if command is None:
            check_version("QUEUESMITH_ALLOW_UNTESTED" in environment)
        port = free_port()
        self.steps = folder / "steps.jsonl"
        self.server = Server(f"http://127.0.0.1:{port}", timeout)
        self._log = folder / "server.log"
        self._command = (
            server_command(model, engine_args, port)
            if command is None
            else [word.replace("{port}", str(port)) for word in command]
        )
        self._environment = {**os.environ, **environment, RECORD_VARIABLE: str(self.steps)}
        self._process: subprocess.Popen[bytes] | None = None
        self._before: Any = None  # what SIGTERM did

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            # The server is in a group of its own: being told to end must not leave it behind.
            self._before = signal.signal(signal.SIGTERM, _interrupt)
        self._log.parent.mkdir(parents=True, exist_ok=True)
        self.steps.unlink(missing_ok=True)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                # By its path: the guard needs nothing of this package.
                [sys.executable, "-I", guard.__file__, *self._command],
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that its own children can be stopped with it
            )
        give_up_at = time.monotonic() + START_TIMEOUT
        try:
            while not self.server.is_ready():
                if self._process.poll() is not None:
                    raise ConfigError(f"the vLLM server did not start: {self._last_words()}")
                if time.monotonic() > give_up_at:
                    raise ConfigError(
                        f"the vLLM server was not ready after {START_TIMEOUT:g} s; see {self._log}"
                    )
                time.sleep(0.25)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop the server and whatever it has started."""
        process, self._process = self._process, None
        try:
            if process is not None and process.stdin is not None:
                process.stdin.close()  # which the guard takes as the sign to stop
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(guard.STOP_TIMEOUT + 5.0)
        finally:
            if process is not None:
                with contextlib.suppress(ProcessLookupError):
                    # What is left, if the guard was killed: all of them are in its group.
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            # Not before: whoever asks twice must not leave the server behind either.
            before, self._before = self._before, None
            if before is not None:
                signal.signal(signal.SIGTERM, before)

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        errors = [line for line in lines if "rror: " in line and "root cause" not in line]
        telling = errors or lines or ["it said nothing"]
        return f"{telling[-1].strip()[:300]} (all of it is in {self._log})"


def _interrupt(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt

"""Runs a server for as long as the process that asked for it lives; a script of its own.

Whoever starts it holds the other end of its standard input. When that is closed, on purpose or
because its holder was killed, the server and all that it has started are stopped.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading

#: Seconds that a server may take to stop before it is killed.
STOP_TIMEOUT = 30.0


def run(command: list[str]) -> int:
    """Run a command until it ends or standard input does; return its exit status.

    This process leads a process group, which is killed when standard input has ended.
    """
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    alone = threading.Event()
    threading.Thread(target=_watch, args=(server, alone), daemon=True).start()
    status = server.wait()
    if alone.is_set():
        os.killpg(0, signal.SIGKILL)  # what the server left behind, and this process
    return status if status >= 0 else 128 - status


def _watch(server: subprocess.Popen[bytes], alone: threading.Event) -> None:
    while os.read(sys.stdin.fileno(), 1024):
        pass
    alone.set()
    server.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        server.wait(STOP_TIMEOUT)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))

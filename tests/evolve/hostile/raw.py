"""Executes texts unread, each in a contained process; run as a script, for nothing else.

Reads JSON from its standard input: the texts, the limits, a folder to work in, and whether the
system call filter stands. Writes the fences in force, and one line of JSON for each text. What
texts import is imported before, so that what they do fails, and not the reading of a module.
"""

import asyncio  # noqa: F401
import concurrent.futures.thread  # noqa: F401
import ctypes  # noqa: F401
import encodings.idna  # noqa: F401
import http.client  # noqa: F401
import json
import mmap  # noqa: F401
import multiprocessing.popen_fork
import multiprocessing.process  # noqa: F401
import pathlib  # noqa: F401
import resource  # noqa: F401
import runpy  # noqa: F401
import shutil  # noqa: F401
import sqlite3  # noqa: F401
import subprocess  # noqa: F401
import sys
import tempfile  # noqa: F401
import threading  # noqa: F401
import urllib.request  # noqa: F401
from collections.abc import Callable
from types import SimpleNamespace

import numpy  # noqa: F401

from queuesmith.evolve.sandbox import containment
from queuesmith.request import ENGINE_FIELDS, REQUEST_FIELDS


def execute(text: str) -> Callable[[], bytes]:
    """Return the work of executing a text, and then asking its hooks."""

    def work() -> bytes:
        namespace = {"__name__": "candidate"}
        try:
            exec(compile(text, "candidate.py", "exec"), namespace)
            rows = [
                SimpleNamespace(**dict.fromkeys(fields, 1))
                for fields in (REQUEST_FIELDS, ENGINE_FIELDS)
            ]
            for hook in ("waiting_key", "victim_key", "admit", "hold"):
                if hook in namespace:
                    namespace[hook](*rows)
        except BaseException as error:
            return f"raised {type(error).__name__}: {error}".encode()
        return f"finished {namespace.get('ANSWER', '')}".encode()

    return work


def main() -> None:
    """Execute what standard input says."""
    told = json.load(sys.stdin)
    if not told["filtered"]:
        containment.filter_system_calls = lambda: False
    containment.leave_network()
    limits = containment.Limits(*told["limits"])
    fences = containment.contained(
        lambda: ",".join(containment.in_force).encode(), limits, told["folder"]
    )
    print(json.dumps(fences.answer.decode().split(",")))
    for text in told["texts"]:
        ended = containment.contained(execute(text), limits, told["folder"])
        answer = ended.answer.decode("utf-8", "replace")
        shown = {"how": ended.how, "code": ended.code, "answer": answer}
        print(json.dumps({**shown, "cpu_seconds": ended.cpu_seconds}), flush=True)


if __name__ == "__main__":
    main()

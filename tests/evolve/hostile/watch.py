"""Runs `raw` from a test, and looks afterwards for what should not be there."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("raw.py")
#: Seconds that texts ask `sleep` for, by which a process of theirs would be known.
MARK = "98765"


def run_raw(
    texts: list[str],
    folder: Path,
    *,
    cpu_seconds: int = 1,
    wall_seconds: float = 10.0,
    memory_mib: int = 64,
    answer_bytes: int = 10_000,
    filtered: bool = True,
) -> tuple[list[str], list[dict[str, Any]]]:
    """Execute texts unread, contained, in `folder`; return the fences and how each ended."""
    told = {
        "texts": texts,
        "limits": [cpu_seconds, wall_seconds, memory_mib, answer_bytes],
        "folder": str(folder),
        "filtered": filtered,
    }
    done = subprocess.run(
        [sys.executable, str(SCRIPT)],
        input=json.dumps(told),
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )
    fences, *ended = [json.loads(line) for line in done.stdout.splitlines()]
    return fences, ended


def processes_with(mark: str) -> list[str]:
    """Return the command lines of running processes that contain a text."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = file.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue
        if mark in command and "pytest" not in command:
            found.append(command)
    return found


@contextmanager
def watched_folder() -> Iterator[Path]:
    """Make a folder in which everyone may write, with one file in it; remove it afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="queuesmith-watched-"))
    try:
        (folder / "kept").write_text("kept\n")
        (folder / "kept").chmod(0o666)
        folder.chmod(0o777)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def state_of(folder: Path) -> list[tuple[str, bytes, int, int]]:
    """Return everything about a folder that a text could have changed."""
    return sorted(
        (
            str(file.relative_to(folder)),
            file.read_bytes() if file.is_file() else b"",
            file.stat().st_mode,
            file.stat().st_mtime_ns,
        )
        for file in [folder, *folder.rglob("*")]
    )

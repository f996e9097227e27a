"""Where results go: a folder of their own, files that are whole or absent, a terminal."""

import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from queuesmith.documents import printable
from queuesmith.errors import ConfigError
from queuesmith.masking import masked


def check_place(path: Path, option: str) -> None:
    """Refuse, before any work is done, a folder that could not be created.

    Raises
    ------
    ConfigError
        If the nearest folder above `path`, or `path` itself, is no folder or cannot be written.
    """
    there = path
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        raise ConfigError(f"{there} is a file; name a folder with {option}")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"the folder {there} cannot be written; name another with {option}")


def check_file(path: Path, option: str) -> None:
    """Refuse, before any work is done, a file that could not be written.

    Raises
    ------
    ConfigError
        If `path` is a folder, or its own folder is missing or cannot be written.
    """
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; name a file with {option}")
    if not path.parent.exists():
        raise ConfigError(f"there is no folder {path.parent} for {path.name}; create it first")
    check_place(path.parent, option)


def make_folder(output: Path | None, sha256: str) -> Path:
    """Create the folder of a run: `output`, or ``runs/TIME-HASH``.

    Raises
    ------
    ConfigError
        If it cannot be created.
    """
    folder = output or Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S}-{sha256[:8]}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise ConfigError(f"{folder} is a file; name a folder with --output") from None
    except OSError as error:
        raise ConfigError(
            f"the folder {folder} cannot be created: {error.strerror}; name another with --output"
        ) from None
    return folder


def write_whole(path: Path, write: Callable[[Path], object]) -> Path:
    """Let `write` write to a temporary name, then give the file its own: it is whole or absent."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        write(part)
        os.replace(part, path)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error.strerror or error}; choose another place"
        ) from None
    finally:
        part.unlink(missing_ok=True)
    return path


def command_line() -> str:
    """Return the command that the user gave, as text that any file and terminal takes."""
    return printable(shlex.join(["queuesmith", *masked(sys.argv[1:])]))


@contextmanager
def reader_may_leave() -> Iterator[None]:
    """Print for as long as somebody reads: after ``| head -1`` the rest goes nowhere."""
    try:
        yield
        if sys.stdout is not None:  # it is None when standard output is closed
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except SystemExit as leaving:  # what rich makes of it, after the same redirection
        if not isinstance(leaving.__context__, BrokenPipeError):
            raise


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar on the terminal of standard error; show nothing when there is none."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:  # where rich 13 ends even a bar that is disabled with an empty line
        yield lambda done, total: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=None)

        def update(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield update

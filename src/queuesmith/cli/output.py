"""Where results go: a folder of their own, files that are whole or absent, a progress bar."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from queuesmith.errors import ConfigError


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


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar on the terminal of standard error; show nothing when there is none."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(what, total=None)

        def update(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield update

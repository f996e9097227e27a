"""A place for compiled functions on machines where neither this package nor a home can be written.

numba keeps them beside the code, or in the user's cache, and refuses to import the code where it
can do neither: as in a container with a read-only file system, or under a user without a home.
"""

import os
import stat
from pathlib import Path

VARIABLE = "NUMBA_CACHE_DIR"


def provide_place() -> None:
    """Name a folder of temporary files to numba when it would find no other.

    Must be called before numba is imported; does nothing where the variable is set.
    """
    if VARIABLE in os.environ or any(map(_can_write, _usual_places())):
        return
    folder = own_temporary_folder("queuesmith-numba")
    if folder is not None:
        os.environ[VARIABLE] = str(folder)


def _usual_places() -> list[Path]:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return [Path(__file__).parent / "__pycache__", Path(base) / "numba"]


def _can_write(folder: Path) -> bool:
    """Tell whether a folder can be written; it is made, as numba would."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK)


def own_temporary_folder(name: str) -> Path | None:
    """Return a temporary folder that nobody else can have put machine code into; None without."""
    import tempfile

    user = os.getuid() if hasattr(os, "getuid") else "user"
    try:
        folder = Path(tempfile.gettempdir()) / f"{name}-{user}"
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if hasattr(os, "getuid") and (
            not stat.S_ISDIR(found.st_mode) or found.st_uid != user or found.st_mode & 0o022
        ):
            return Path(tempfile.mkdtemp(prefix=f"{name}-"))
    except OSError:
        return None
    return folder

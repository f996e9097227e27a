"""TOML and JSON that somebody may have edited, or a disk damaged: read with care.

Libraries take more than any file of ours needs, and what they take then fails where it is used: a
number of 5,000 digits cannot even be shown in a message, and a value nested 1,000 deep cannot be
walked. Here both are errors of the file, as `ValueError`, for the caller to say which file it is.
"""

import errno
import hashlib
import json
import math
import os
import re
import shlex
import stat
import tomllib
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

#: Whole numbers of TOML, and of everything that reads JSON but Python.
_LEAST, _MOST = -(2**63), 2**63 - 1
#: Levels of tables and arrays; ours have five.
MAX_DEPTH = 64


def parse_toml(text: str) -> dict[str, Any]:
    """Read a TOML document.

    Raises
    ------
    ValueError
        If it is not TOML, or holds a whole number beyond 64 bits or a value nested too deep.

    Examples
    --------
    >>> parse_toml("a = 0x7f")
    {'a': 127}
    """
    try:
        document = tomllib.loads(text)
    except RecursionError:
        raise ValueError(f"it is nested more than {MAX_DEPTH} deep") from None
    _check(document)
    return document


def parse_json(text: str | bytes) -> Any:
    """Read a JSON document.

    Raises
    ------
    ValueError
        If it is not JSON, or holds a whole number beyond 64 bits or a value nested too deep.
    """
    try:
        document = json.loads(text)
    except RecursionError:
        raise ValueError(f"it is nested more than {MAX_DEPTH} deep") from None
    _check(document)
    return document


def read_file(path: Path, most: int = -1) -> bytes:
    """Read a file, or a pipe that somebody writes; at most so many bytes of it.

    Raises
    ------
    OSError
        If it cannot be read, or is a device, which may have no end.
    """
    # A pipe that nobody has opened to write would be waited for without end.
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except ValueError:  # a null byte
        raise OSError(errno.EINVAL, "it is no name of a file", str(path)) from None
    with open(handle, "rb") as file:
        mode = os.fstat(handle).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
            raise OSError(errno.EINVAL, "it is a device and not a file", str(path))
        os.set_blocking(handle, True)
        return file.read(most)


def jsonable(value: Any) -> Any:
    """Turn records into what JSON holds; None stands for each number that JSON does not have."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: jsonable(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {name: jsonable(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def printable(text: str) -> str:
    r"""Return a text, such as the name of a file, with what no terminal or file takes escaped.

    Examples
    --------
    >>> printable("log\x1b[2J.csv")
    'log\\x1b[2J.csv'
    """
    return "".join(
        each
        if each.isprintable() or unicodedata.category(each) == "Zs"  # spaces of other scripts
        else each.encode("unicode_escape").decode()
        for each in text
    )


_HIDDEN = "***"
_SECRET_OPTION = re.compile(
    r"--?(?:[\w.-]*[-_.])?(?:api-?_?key|key|token|secret|password|passwd|credentials?)", re.I
)
_SECRET_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*(?:KEY|TOKEN|SECRET|PASSWORD)")
_SECRET_VALUE = re.compile(
    r"\b(?:sk-|hf_|gh[opsu]_|github_pat_|glpat-|xox[abp]-|nvapi-|AKIA|AIza|Bearer\s+)[\w.-]{8,}"
    r"|(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"
)
_SECRET_FIELD = re.compile(
    r"""(["'](?:api_?)?(?:key|token|password)["']\s*:\s*)(?:\[[^]]*\]|"[^"]*"|'[^']*')""", re.I
)


def hide_secrets(words: Sequence[str]) -> list[str]:
    """Return the words of a command line with what looks like a key or password hidden.

    Also inside a word that is a command line itself.

    Examples
    --------
    >>> hide_secrets(["--engine-args", "--api-key abc def --port 80", "--token=1", "x.csv"])
    ['--engine-args', "--api-key '***' '***' --port 80", '--token=***', 'x.csv']
    """
    shown = []
    hiding = False  # --api-key takes several
    for word in words:
        name, equals, value = word.partition("=")
        if _SECRET_OPTION.fullmatch(name):
            shown.append(f"{name}={_HIDDEN}" if equals else word)
            hiding = not equals
            continue
        hiding = hiding and not word.startswith("-")
        if hiding:
            shown.append(_HIDDEN)
        elif equals and _SECRET_VARIABLE.fullmatch(name):
            shown.append(f"{name}={_HIDDEN}")
        elif equals and word.startswith("--") and len(name.split()) == 1:
            shown.append(f"{name}={_hide_inside(value)}")
        else:
            shown.append(_hide_inside(word))
    return shown


def _hide_inside(word: str) -> str:
    if len(word.split()) > 1 or word.startswith("-"):
        try:
            words = shlex.split(word)
        except ValueError:  # no command line
            words = [word]
        if words != [word] and (shown := hide_secrets(words)) != words:
            word = shlex.join(shown)
        elif words == [word] and _SECRET_OPTION.fullmatch(word.partition("=")[0]):
            word = hide_secrets(words)[0]
    return _SECRET_FIELD.sub(rf'\g<1>"{_HIDDEN}"', _SECRET_VALUE.sub(_HIDDEN, word))


def seal(document: Mapping[str, Any]) -> str:
    """Return the hash of a document's other values, to be kept in it as proof against damage."""
    rest = {key: value for key, value in document.items() if key != "seal"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _check(document: Any) -> None:
    """Look at every value, level by level, since recursion is what deep nesting breaks."""
    level = [document]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                below += value.values()
            elif isinstance(value, list):
                below += value
            elif type(value) is int and not _LEAST <= value <= _MOST:
                raise ValueError("it holds a whole number beyond 64 bits")
        if not below:
            return
        level = below
    raise ValueError(f"it is nested more than {MAX_DEPTH} deep")

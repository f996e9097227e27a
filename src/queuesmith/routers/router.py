"""A router: one plain Python file that says which replica a request is sent to."""

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, MappingProxyType
from typing import Any

from queuesmith.documents import printable
from queuesmith.errors import PolicyError, did_you_mean
from queuesmith.policies.language import Contract
from queuesmith.policies.policy import (
    execute,
    parameters_of,
    read_docstring,
    read_spec,
)
from queuesmith.policies.syntax import check_syntax
from queuesmith.request import integer_ranges
from queuesmith.routers.rows import (
    OWN_FIELDS,
    REPLICA_DTYPE,
    REPLICA_FIELDS,
    SENT_DTYPE,
    SENT_FIELDS,
)

#: What is asked of a router's file, in the language of policies.
ROUTER = Contract(
    "router",
    ("route_key",),
    "a number, smaller for the replica to send the request to",
    {"request": SENT_FIELDS, "replica": REPLICA_FIELDS},
    integer_ranges({"request": SENT_DTYPE, "replica": REPLICA_DTYPE}),
)

_BUILTIN_FOLDER = Path(__file__).parent / "builtin"


@dataclass(frozen=True)
class Router:
    """What a router file says, and its hook as a plain Python function.

    Two routers are equal when their name and their text are.

    Attributes
    ----------
    name : str
        The file's stem, with overridden parameters: ``power_of_two(CHOICES=3)``.
    source : str
        The text.
    path : Path
        Where the text was read; for messages.
    summary, knows, origin, caution : str
        From the docstring: its first paragraph, and its Knows, Source and Caution sections.
    parameters : mapping of str to number
        Every UPPER_CASE number that a caller may override.
    route_key : callable
        ``route_key(request, replica) -> float``; the request goes to the replica with the smallest.
    reads : frozenset of str
        The fields it reads, such as ``"replica.num_running"``.
    code : CodeType
        `source`, rewritten so that whole numbers keep to 64 bits.
    """

    name: str
    source: str
    path: Path = field(compare=False)
    summary: str = field(compare=False, repr=False)
    knows: str = field(compare=False, repr=False)
    origin: str = field(compare=False, repr=False)
    caution: str = field(compare=False, repr=False)
    parameters: Mapping[str, int | float] = field(compare=False)
    route_key: Callable[[Any, Any], Any] = field(compare=False, repr=False)
    reads: frozenset[str] = field(compare=False, repr=False)
    code: CodeType = field(compare=False, repr=False)

    @property
    def reads_engines(self) -> bool:
        """Whether where a request goes depends on what the replicas are doing."""
        own = {f"replica.{name}" for name in OWN_FIELDS}
        return any(name.startswith("replica.") and name not in own for name in self.reads)

    @property
    def sha256(self) -> str:
        """Hash of `source`."""
        return hashlib.sha256(self.source.encode()).hexdigest()

    def __repr__(self) -> str:
        return f"Router({self.name})"

    def __str__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        # Functions made by `exec` do not pickle; their text does.
        return load_router, (self.name, self.source, self.path)


def get_router(spec: Router | str | os.PathLike[str]) -> Router:
    """Find and load a router.

    Parameters
    ----------
    spec : Router, str or path
        A built-in name (``"round_robin"``) or the path of a ``.py`` file; text may override
        parameters, ``"power_of_two(CHOICES=3)"``.

    Raises
    ------
    PolicyError
        If there is no such router, or the file cannot be read or breaks the contract.

    Examples
    --------
    >>> get_router("power_of_two(CHOICES=3)").parameters["CHOICES"]
    3
    """
    if isinstance(spec, Router):
        return spec
    return load_router(*read_spec(spec, ROUTER, _locate))


def _locate(name: str) -> Path:
    known = router_names()
    if name in known:
        return _BUILTIN_FOLDER / f"{name}.py"
    raise PolicyError(
        f"there is no router {name!r}.{did_you_mean(name, known)} Known: {', '.join(known)}; a "
        "file is given by its path, such as ./my_router.py"
    )


def router_names() -> list[str]:
    """Names of the built-in routers, sorted."""
    return sorted(path.stem for path in _BUILTIN_FOLDER.glob("*.py") if path.stem != "__init__")


def load_router(name: str, source: str, path: Path) -> Router:
    """Check the text of a router, then execute it.

    Parameters
    ----------
    name : str
    source : str
    path : Path
        For messages and tracebacks; nothing is read there.

    Raises
    ------
    PolicyError
        If the text breaks the contract.
    """
    checked = check_syntax(source, str(path), ROUTER)
    summary, sections = read_docstring(checked.docstring)
    return Router(
        name=printable(name),
        source=source,
        path=path,
        summary=summary,
        knows=sections.get("Knows", ""),
        origin=sections.get("Source", ""),
        caution=sections.get("Caution", ""),
        parameters=MappingProxyType(parameters_of(checked, ROUTER)),
        route_key=execute(checked.code)["route_key"],
        reads=checked.reads["route_key"],
        code=checked.code,
    )

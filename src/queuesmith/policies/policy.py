"""A policy: one plain Python file, loaded after it has passed the static check."""

import ast
import builtins
import hashlib
import importlib.metadata
import importlib.util
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, MappingProxyType
from typing import Any

from queuesmith.documents import printable
from queuesmith.errors import PolicyError, UnknownPolicy, did_you_mean
from queuesmith.policies.arithmetic import keep_to_64_bits
from queuesmith.policies.language import BUILTINS, HOOKS, MAX_BYTES, POLICY, Contract
from queuesmith.policies.syntax import CheckedFile, check_syntax, parse_expression
from queuesmith.request import SHARED_FIELDS

Hook = Callable[[Any, Any], Any]

#: Installed packages offer policies under this entry point group, as ``name = "package.module"``.
ENTRY_POINT_GROUP = "queuesmith.policies"

_BUILTIN_FOLDER = Path(__file__).parent / "builtin"
_SECTION = re.compile(r"(Knows|Source|Caution):\s*(.*)")
_NO_MAPPING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Policy:
    """What a policy file says, and its hooks as plain Python functions.

    Two policies are equal when their name and their text are. The text alone defines what a policy
    does: parameters that were overridden are written into it.

    Attributes
    ----------
    name : str
        The file's stem, with overridden parameters: ``aged_sjf(SECONDS_PER_TOKEN=0.01)``.
    source : str
    path : Path
        Where the text was read; for messages.
    summary, knows, origin, caution : str
        From the docstring: its first paragraph, and its Knows, Source and Caution sections. Empty
        where a file has none.
    parameters : mapping of str to number
        Every UPPER_CASE number that a caller may override.
    waiting_key : callable
        ``waiting_key(request, engine) -> float``, smaller is admitted first.
    victim_key, admit, hold, reject : callable or None
        The optional hooks.
    preemptive : bool
        ``PREEMPTIVE = True``: a better waiting request displaces the worst running one.
    oracle : bool
        ``ORACLE = True``: the engine tells this policy the exact output length as
        ``predicted_output_tokens``. Such a policy cannot be deployed.
    engine : mapping of str to Any
        Settings that the file's ``ENGINE`` overrides.
    reads, operations : mapping of str to frozenset of str, and to int
        For each hook the fields it reads, and how many operations a call takes at most.
    code : CodeType
        `source`, rewritten so that whole numbers keep to 64 bits; what is executed and compiled.
    """

    name: str
    source: str
    path: Path = field(compare=False)
    summary: str = field(compare=False, repr=False)
    knows: str = field(compare=False, repr=False)
    origin: str = field(compare=False, repr=False)
    caution: str = field(compare=False, repr=False)
    parameters: Mapping[str, int | float] = field(compare=False)
    waiting_key: Hook = field(compare=False, repr=False)
    victim_key: Hook | None = field(compare=False, repr=False)
    admit: Hook | None = field(compare=False, repr=False)
    hold: Hook | None = field(compare=False, repr=False)
    reject: Hook | None = field(compare=False, repr=False)
    preemptive: bool = field(compare=False)
    oracle: bool = field(compare=False)
    engine: Mapping[str, Any] = field(compare=False)
    reads: Mapping[str, frozenset[str]] = field(compare=False, repr=False)
    operations: Mapping[str, int] = field(compare=False, repr=False)
    code: CodeType = field(compare=False, repr=False)

    @property
    def static(self) -> bool:
        """Whether `waiting_key` cannot change while a request waits, as far as syntax shows."""
        return not any(
            name.startswith("engine.") or name.removeprefix("request.") in SHARED_FIELDS
            for name in self.reads["waiting_key"]
        )

    def reads_field(self, name: str) -> bool:
        """Tell whether any hook reads a field, such as ``"request.client_tokens"``."""
        return any(name in fields for fields in self.reads.values())

    @property
    def is_bundle(self) -> bool:
        """Whether this is a policy and a configuration in one."""
        return bool(self.engine)

    @property
    def sha256(self) -> str:
        """Hash of `source`."""
        return hashlib.sha256(self.source.encode()).hexdigest()

    @property
    def hooks(self) -> dict[str, Hook]:
        """The hooks this policy has, by name."""
        found = {name: getattr(self, name) for name in HOOKS}
        return {name: hook for name, hook in found.items() if hook is not None}

    def __repr__(self) -> str:
        return f"Policy({self.name})"

    def __str__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        # Functions made by `exec` do not pickle; their text does.
        return load_text, (self.name, self.source, self.path)


def get_policy(spec: "Policy | str | os.PathLike[str]") -> Policy:
    """Find and load a policy.

    Parameters
    ----------
    spec : Policy, str or path
        A built-in name (``"sjf"``), the name of an installed entry point, or the path of a
        ``.py`` file; text may override parameters, ``"aged_sjf(SECONDS_PER_TOKEN=0.01)"``.

    Raises
    ------
    UnknownPolicy
        If no policy has that name.
    PolicyError
        If the file cannot be read or breaks the contract.

    Examples
    --------
    >>> get_policy("aged_sjf(SECONDS_PER_TOKEN=0.01)").parameters["SECONDS_PER_TOKEN"]
    0.01
    """
    if isinstance(spec, Policy):
        return spec
    return load_text(*read_spec(spec, POLICY, _locate))


def read_spec(
    spec: object, contract: Contract, locate: Callable[[str], Path]
) -> tuple[str, str, Path]:
    """Find the file that a caller asks for, by name or path, with parameters or without.

    Parameters
    ----------
    spec : str or path
    contract : Contract
        Of the file.
    locate : callable
        Finds the file of a name, or raises.

    Returns
    -------
    name, text, path : str, str, Path
        The text with the parameters written into it; they are part of the name.

    Raises
    ------
    PolicyError
        If it is neither text nor path, or the file cannot be read or has no such parameters.
    """
    if isinstance(spec, os.PathLike):
        path = Path(os.fspath(spec))
        return path.stem, read_source(path), path
    if not isinstance(spec, str):
        raise PolicyError(f"a {contract.kind} is given by name or path, got {spec!r}")
    target, arguments = split_spec(spec)
    if target.endswith(".py") or "/" in target or os.sep in target:
        path = Path(os.path.expanduser(target))
        name = path.stem
    else:
        name, path = target, locate(target)
    source = read_source(path)
    if arguments:
        source, overridden = write_parameters(name, source, str(path), arguments, contract)
        name = f"{name}({overridden})" if overridden else name
    return name, source, path


def policy_names() -> list[str]:
    """Names of the built-in policies, sorted."""
    return sorted(path.stem for path in _BUILTIN_FOLDER.glob("*.py") if path.stem != "__init__")


def split_policies(text: str) -> list[str]:
    """Split at commas that are outside parentheses.

    >>> split_policies("fcfs, preflow(A=1, B=2)")
    ['fcfs', 'preflow(A=1, B=2)']
    """
    parts, start, depth = [], 0, 0
    for place, letter in enumerate(text):
        if letter == "," and depth == 0:
            parts.append(text[start:place])
            start = place + 1
        depth = max(depth + (letter == "(") - (letter == ")"), 0)
    parts.append(text[start:])
    return [part for name in parts if (part := name.strip())]


def read_source(path: Path) -> str:
    """Read a policy file, refusing what cannot be one."""
    try:
        if path.is_dir():
            raise PolicyError(f"{path} is a folder; give the path of one .py file")
        if not path.exists():
            raise PolicyError(f"{path}: there is no such file; check the path")
        if not path.is_file():
            raise PolicyError(f"{path} is not a regular file; give the path of one .py file")
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise PolicyError(
                f"{path} is larger than the {MAX_BYTES:,} bytes that a policy may have; "
                "a policy is one short file"
            )
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PolicyError(
            f"{path} is not UTF-8 text (byte {error.start}); save it as UTF-8"
        ) from None
    except (OSError, ValueError) as error:
        if isinstance(error, PolicyError):
            raise
        raise PolicyError(f"{path} cannot be read: {error}") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def load_text(name: str, source: str, path: Path) -> Policy:
    """Check the text of a policy, then execute it.

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
    checked = check_syntax(source, str(path))
    namespace = execute(checked.code)
    summary, sections = read_docstring(checked.docstring)
    return Policy(
        name=printable(name),
        source=source,
        path=path,
        summary=summary,
        knows=sections.get("Knows", ""),
        origin=sections.get("Source", ""),
        caution=sections.get("Caution", ""),
        parameters=MappingProxyType(parameters_of(checked, POLICY)),
        waiting_key=namespace["waiting_key"],
        victim_key=namespace.get("victim_key"),
        admit=namespace.get("admit"),
        hold=namespace.get("hold"),
        reject=namespace.get("reject"),
        preemptive=bool(checked.constants.get("PREEMPTIVE", False)),
        oracle=bool(checked.constants.get("ORACLE", False)),
        engine=MappingProxyType(dict(checked.engine)),
        reads=MappingProxyType(dict(checked.reads)),
        operations=MappingProxyType(dict(checked.operations)),
        code=checked.code,
    )


def execute(code: CodeType) -> dict[str, Any]:
    """Run a checked file; it sees the built-ins that the check allows."""
    allowed = {name: getattr(builtins, name) for name in (*BUILTINS, "len", "range", "__import__")}
    namespace: dict[str, Any] = {"__name__": "queuesmith_policy", "__builtins__": allowed}
    exec(code, namespace)
    keep_to_64_bits(namespace)
    return namespace


def parameters_of(checked: CheckedFile, contract: Contract) -> dict[str, int | float]:
    """Return the constants of a file that a caller may override."""
    return {
        name: value
        for name, value in checked.constants.items()
        if name not in contract.switches and not isinstance(value, tuple)
    }


def read_docstring(docstring: str) -> tuple[str, dict[str, str]]:
    """Split a docstring into its first paragraph and its Knows, Source and Caution sections."""
    # Line by line, so that what no terminal or page takes is escaped and the lines stay.
    lines = [printable(line) for line in docstring.expandtabs().splitlines()]
    paragraphs = "\n".join(lines).split("\n\n")
    summary = " ".join(paragraphs[0].split())
    sections: dict[str, str] = {}
    current = ""
    for line in lines:
        found = _SECTION.match(line)
        if found:
            current = found[1]
            sections[current] = found[2].strip()
        elif not line.strip() or not line.startswith(" "):
            current = ""
        elif current:
            sections[current] += " " + line.strip()
    return summary, sections


def split_spec(spec: str) -> tuple[str, str]:
    """Split ``name(PARAM=value)`` into the name and what is between the brackets."""
    text = spec.strip()
    name, bracket, arguments = text.partition("(")
    if bracket and text.endswith(")"):
        return name.strip(), arguments[:-1].strip()
    return text, ""


def _locate(name: str) -> Path:
    """Find the file of a named policy among built-ins, then entry points."""
    if name in policy_names():
        return _BUILTIN_FOLDER / f"{name}.py"
    installed = importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)
    offered = {entry.name: entry for entry in installed}
    if name not in offered:
        raise UnknownPolicy(name, [*policy_names(), *offered])
    module = offered[name].value
    try:
        found = importlib.util.find_spec(module)
    except (ImportError, ValueError, AttributeError):
        found = None
    if found is None or not found.origin:
        raise PolicyError(
            f"policy {name!r} is said to be the module {module!r}, which cannot be found; "
            "reinstall the package that offers it"
        )
    return Path(found.origin)


def write_parameters(
    name: str, source: str, filename: str, arguments: str, contract: Contract = POLICY
) -> tuple[str, str]:
    """Write parameter values into the text; return it, and the values as text."""
    checked = check_syntax(source, filename, contract)
    known = parameters_of(checked, contract)
    values: dict[str, int | float] = {}
    for parameter, value in _parse_arguments(name, arguments):
        if parameter not in known:
            listed = ", ".join(f"{key}={known[key]!r}" for key in known) or "none"
            raise PolicyError(
                f"{contract.kind} {name!r} has no parameter {parameter!r}."
                f"{did_you_mean(parameter, known)} It has: {listed}"
            )
        if parameter in values:
            raise PolicyError(f"{name}: {parameter} is given twice; give it once")
        if isinstance(known[parameter], bool) != isinstance(value, bool):
            raise PolicyError(
                f"{name}: {parameter} must be of the kind of its default {known[parameter]!r}, "
                f"got {value!r}"
            )
        values[parameter] = value
    lines = [line.encode() for line in source.split("\n")]
    # From the last to the first, so that earlier offsets stay right.
    nodes = sorted(
        ((checked.assignments[key], value) for key, value in values.items()),
        key=lambda item: (item[0].lineno, item[0].col_offset),
        reverse=True,
    )
    for node, value in nodes:
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        before, after = lines[first][: node.col_offset], lines[last][node.end_col_offset :]
        lines[first : last + 1] = [before + repr(value).encode() + after]
    shown = ", ".join(f"{key}={value!r}" for key, value in values.items())
    return b"\n".join(lines).decode(), shown


def _parse_arguments(name: str, arguments: str) -> list[tuple[str, int | float]]:
    problem = (
        f"{name}: cannot read the parameters ({arguments[:60]}); write {name}(PARAM=number, ...)"
    )
    try:
        call = parse_expression(f"policy({arguments})")
        if not isinstance(call, ast.Call) or call.args:
            raise PolicyError(problem)
        pairs = [(item.arg or "**", ast.literal_eval(item.value)) for item in call.keywords]
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        raise PolicyError(problem) from None
    for parameter, value in pairs:
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise PolicyError(f"{name}: {parameter} must be a finite number, got {value!r}")
    return pairs

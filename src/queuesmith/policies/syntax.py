"""The static check of a policy file: what the policy language is, told by what it refuses.

A policy runs in three places: compiled by numba, as plain Python, and inside a serving process. So
it may only use what means the same in all three, always ends, and changes nothing. Every refusal
is one line with the file, the line, what is wrong and what to write instead.
"""

import ast
import os
import threading
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import CodeType
from typing import Any

from queuesmith.config import EngineConfig
from queuesmith.errors import PolicyError, did_you_mean
from queuesmith.policies.functions import FunctionChecker, is_docstring
from queuesmith.policies.language import (
    CONSTANT_NAME,
    MAX_BYTES,
    POLICY,
    Contract,
)
from queuesmith.policies.rewriting import rewrite
from queuesmith.policies.scope import Scope

#: Held while text becomes a tree and a tree becomes code: in CPython 3.11 threads that do so at the
#: same time raise SystemError, and `warnings.catch_warnings` is of the whole process.
_parsing = threading.Lock()


def _forget_lock() -> None:
    """Take a new lock in a fork: the old one may be held by a thread that is not there."""
    global _parsing
    _parsing = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_lock)


@dataclass(frozen=True)
class CheckedFile:
    """What a policy file that passed the check consists of.

    Attributes
    ----------
    tree : ast.Module
    docstring : str
    constants : mapping of str to number or tuple
        Every UPPER_CASE constant but ``ENGINE``, with its value.
    assignments : mapping of str to ast.expr
        The expression behind each constant.
    engine : mapping of str to Any
        The ``ENGINE`` overrides.
    functions : tuple of str
    reads : mapping of str to frozenset of str
        For each hook the row fields it reads, such as ``"request.priority"``, also through the
        functions it calls.
    operations : mapping of str to int
        For each hook how many a call takes at most.
    code : CodeType
        The file, rewritten so that whole numbers keep to 64 bits.
    """

    tree: ast.Module
    docstring: str
    constants: Mapping[str, Any]
    assignments: Mapping[str, ast.expr]
    engine: Mapping[str, Any]
    functions: tuple[str, ...]
    reads: Mapping[str, frozenset[str]]
    operations: Mapping[str, int]
    code: CodeType


def check_syntax(source: str, filename: str, contract: Contract = POLICY) -> CheckedFile:
    """Check the text of a policy file, or of another that keeps to the same language.

    Parameters
    ----------
    source : str
    filename : str
        For messages.
    contract : Contract
        What such a file is asked, and what with.

    Raises
    ------
    PolicyError
        At the first thing that the policy language does not have.
    """
    if len(source) > MAX_BYTES:
        raise PolicyError(
            f"{filename}: {len(source):,} characters, more than the {MAX_BYTES:,} that a "
            f"{contract.kind} may have; a {contract.kind} is one short file"
        )
    try:
        with _parsing, warnings.catch_warnings():
            warnings.simplefilter("error")  # an odd escape would warn again wherever this runs
            tree = ast.parse(source, filename)
            return _FileChecker(filename, tree, contract).check()
    except SyntaxError as error:
        text = (error.text or "").strip()
        shown = f": {text[:80]}" if text else ""
        raise PolicyError(
            f"{filename}:{error.lineno or 1}: not Python: {error.msg}{shown}"
        ) from None
    except ValueError as error:
        if isinstance(error, PolicyError):
            raise
        raise PolicyError(f"{filename}: not Python: {error}") from None
    except (RecursionError, MemoryError):
        raise PolicyError(
            f"{filename}: nested too deeply to be read; split long expressions into lines"
        ) from None


def parse_expression(text: str) -> ast.expr:
    """Return the tree of an expression; raise what `ast.parse` does."""
    with _parsing:
        return ast.parse(text, mode="eval").body


class _FileChecker:
    """Walks the top level of one file: imports, constants, functions."""

    def __init__(self, filename: str, tree: ast.Module, contract: Contract) -> None:
        self.tree = tree
        self.contract = contract
        self.scope = Scope(filename, contract)
        self.refuse = self.scope.refuse
        self.assignments: dict[str, ast.expr] = {}
        self.engine: dict[str, Any] = {}

    def check(self) -> CheckedFile:
        docstring = ast.get_docstring(self.tree) or ""
        for statement in self.tree.body[1 if is_docstring(self.tree.body) else 0 :]:
            self.top_level(statement)
        functions = FunctionChecker(self.scope)
        for name in self.scope.functions:
            functions.function(name)
        self.check_names(functions.called)
        filename = self.scope.filename
        compile(self.tree, filename, "exec", dont_inherit=True)  # finds what parsing does not
        rewritten = rewrite(self.tree, self.scope)
        return CheckedFile(
            tree=self.tree,
            docstring=docstring,
            constants=self.scope.constants,
            assignments=self.assignments,
            engine=self.engine,
            functions=tuple(self.scope.functions),
            reads={
                hook: functions.checked[hook][0]
                for hook in self.contract.hooks
                if hook in functions.checked
            },
            operations={
                hook: functions.checked[hook][1]
                for hook in self.contract.hooks
                if hook in functions.checked
            },
            code=compile(rewritten, filename, "exec", dont_inherit=True),
        )

    def top_level(self, statement: ast.stmt) -> None:
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                if alias.name != "math" or alias.asname:
                    self.refuse(
                        statement,
                        f"imports {alias.name!r}; a policy imports nothing but `math`, by its name",
                    )
            self.scope.imported(statement, "math")
        elif isinstance(statement, ast.ImportFrom):
            self.import_from(statement)
        elif isinstance(statement, ast.Assign):
            self.constant(statement)
        elif isinstance(statement, ast.FunctionDef):
            if statement.name in self.scope.functions:
                self.refuse(statement, f"`{statement.name}` is defined twice; keep one of them")
            self.scope.define(statement, statement.name)
            self.scope.functions[statement.name] = statement
        elif isinstance(statement, ast.If | ast.For | ast.AugAssign):
            self.refuse(
                statement, "code outside a function; the top level has only constants and functions"
            )
        elif not isinstance(statement, ast.Pass):
            self.scope.refuse_kind(statement)

    def import_from(self, statement: ast.ImportFrom) -> None:
        if statement.module != "math" or statement.level:
            self.refuse(
                statement,
                f"imports from {statement.module!r}; a policy imports nothing but `math`",
            )
        for alias in statement.names:
            if alias.asname or alias.name == "*":
                self.refuse(statement, "import names of `math` one by one, by their own name")
            self.scope.math_member(statement, alias.name)
            self.scope.imported(statement, alias.name)

    def constant(self, statement: ast.Assign) -> None:
        target = statement.targets[0]
        if len(statement.targets) > 1 or not isinstance(target, ast.Name):
            self.refuse(statement, "assign one constant on each line, such as WEIGHT = 0.5")
        name = target.id
        if not CONSTANT_NAME.fullmatch(name):
            self.refuse(
                statement,
                f"`{name}`: constants are UPPER_CASE; write {name.upper()} = ...",
            )
        if name == "ENGINE":
            if not self.contract.has_engine:
                self.refuse(statement, f"a {self.contract.kind} sets no engine; leave ENGINE out")
            if self.engine:
                self.refuse(statement, "`ENGINE` is defined twice; keep one of them")
            self.engine = self.engine_settings(statement.value)
            return
        self.scope.define(statement, name)
        if isinstance(statement.value, ast.Tuple) and statement.value.elts:
            value: Any = tuple(self.scope.fold(item) for item in statement.value.elts)
            if len({type(item) for item in value}) > 1:
                self.refuse(
                    statement, f"{name} mixes kinds of numbers; write all with or all without a dot"
                )
        else:
            value = self.scope.fold(statement.value)
        if name in self.contract.switches and not isinstance(value, bool):
            self.refuse(statement, f"{name} must be True or False, got {value!r}")
        self.scope.constants[name] = value
        self.assignments[name] = statement.value

    def engine_settings(self, node: ast.expr) -> dict[str, Any]:
        if not isinstance(node, ast.Dict) or not node.keys:
            self.refuse(
                node, 'ENGINE must be a dict of settings, such as {"max_num_scheduled_tokens": 512}'
            )
        known = [field.name for field in fields(EngineConfig)]
        settings: dict[str, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            name = key.value if isinstance(key, ast.Constant) else None
            if not isinstance(name, str):
                self.refuse(node, "ENGINE names its settings in quotes")
            if name not in known:
                self.refuse(
                    node,
                    f"ENGINE: there is no engine setting {name!r}.{did_you_mean(name, known)} "
                    f"Known: {', '.join(known)}",
                )
            if isinstance(value, ast.Constant) and isinstance(value.value, str | None):
                settings[name] = value.value
            else:
                settings[name] = self.scope.fold(value)
        return settings

    def check_names(self, called: set[str]) -> None:
        for name, node in self.scope.functions.items():
            if name not in self.contract.hooks and name not in called:
                hint = did_you_mean(name, self.contract.hooks)
                if hint and not name.startswith("_"):
                    self.refuse(
                        node, f"nothing calls `{name}`, and no hook has that name.{hint} Rename it"
                    )
        first = self.contract.hooks[0]
        if first not in self.scope.functions:
            raise PolicyError(
                f"{self.scope.filename}: there is no `{first}`; define "
                f"{first}({self.contract.signature}), which returns {self.contract.first_hook}"
            )

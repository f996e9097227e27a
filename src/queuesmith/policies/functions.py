"""The check of a policy's functions: statements, expressions, and what they read and cost."""

import ast
from collections.abc import Sequence

from queuesmith.errors import PolicyError, did_you_mean
from queuesmith.policies.language import (
    BUILTINS,
    COMPARISONS,
    FIELD_HELP,
    MATH_CONSTANTS,
    MATH_FUNCTIONS,
    MAX_OPERATIONS,
    OPERATORS,
)
from queuesmith.policies.scope import Scope


class FunctionChecker:
    """Walks functions; every method either accepts its node or raises `PolicyError`.

    *Operations* are what a call executes at most: nodes of the syntax tree, as often as loops and
    calls of the file's own functions come by them.
    """

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.refuse = scope.refuse
        self.rows = scope.contract.rows
        self.checked: dict[str, tuple[frozenset[str], int]] = {}  # reads and operations
        self.open: list[str] = []  # functions being checked, outermost first
        self.called: set[str] = set()
        # Of the innermost open function:
        self.reads: set[str] = set()
        self.local_names: set[str] = set()
        self.parameters: set[str] = set()

    def function(self, name: str) -> tuple[frozenset[str], int]:
        """Check one function, once; return the fields it reads and the operations it takes."""
        node = self.scope.functions[name]
        if name in self.open:
            self.refuse(node, f"`{name}` calls itself and might never end; write a bounded loop")
        if name not in self.checked:
            outer = self.reads, self.local_names, self.parameters
            self.open.append(name)
            self.reads = set()
            self.parameters = set(self._signature(node))
            self.local_names = {
                part.id
                for part in ast.walk(node)
                if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
            }
            rest = node.body[1:] if is_docstring(node.body) else node.body
            defined = self.parameters - set(self.rows)
            returned, operations = self._block(rest, defined)
            if not returned:
                self.refuse(
                    node, f"every path through `{name}` must return a value; add it at the end"
                )
            if operations > MAX_OPERATIONS:
                self.refuse(
                    node,
                    f"`{name}` may take {operations:,} operations, above the {MAX_OPERATIONS:,} "
                    "allowed; loop less, as every waiting request pays for it",
                )
            self.checked[name] = frozenset(self.reads), operations
            self.open.pop()
            self.reads, self.local_names, self.parameters = outer
        return self.checked[name]

    def _signature(self, node: ast.FunctionDef) -> list[str]:
        arguments = node.args
        if node.decorator_list:
            self.refuse(node, f"`{node.name}` has a decorator; leave it out")
        starred = (
            arguments.vararg or arguments.kwarg or arguments.kwonlyargs or arguments.posonlyargs
        )
        if starred or getattr(node, "type_params", None):
            self.refuse(node, f"`{node.name}` must take plain arguments, no `*` and no `/`")
        if arguments.defaults:
            self.refuse(node, f"`{node.name}` has a default; pass every argument instead")
        for note in [node.returns, *(argument.annotation for argument in arguments.args)]:
            if note is not None and not (
                isinstance(note, ast.Name) and note.id in ("float", "int", "bool")
            ):
                self.refuse(node, "annotations may be float, int or bool; leave others out")
        names = [argument.arg for argument in arguments.args]
        contract = self.scope.contract
        if node.name in contract.hooks and names != list(self.rows):
            self.refuse(
                node,
                f"`{node.name}` must take ({contract.signature}), in this order and by these "
                f"names, not ({', '.join(names)})",
            )
        for name in names:
            if name not in self.rows:
                self._local_name(node, name)
        return names

    def _local_name(self, node: ast.AST, name: str) -> None:
        taken = name in BUILTINS or name in ("range", "len") or name in self.scope.math_names
        if (
            taken
            or name in self.scope.constants
            or name in self.scope.functions
            or name in self.rows
        ):
            self.refuse(node, f"`{name}` means something else; choose another local name")

    def _block(self, statements: Sequence[ast.stmt], defined: set[str]) -> tuple[bool, int]:
        """Check statements in order, adding to `defined` the names that surely have a value.

        Returns whether every path has returned, and the operations taken.
        """
        returned, operations = False, 0
        for statement in statements:
            operations += 1
            if isinstance(statement, ast.Return):
                if statement.value is None:
                    self.refuse(statement, "`return` without a value; return a number or a bool")
                if isinstance(statement.value, ast.Tuple):
                    self._tuple_key(statement.value)
                operations += self._expression(statement.value, defined)
                returned = True
            elif isinstance(statement, ast.Assign):
                operations += self._expression(statement.value, defined)
                for target in statement.targets:
                    self._target(target)
                    defined.add(target.id)  # type: ignore[attr-defined]
            elif isinstance(statement, ast.AugAssign):
                self._target(statement.target)
                load = ast.copy_location(
                    ast.Name(statement.target.id, ast.Load()),  # type: ignore[union-attr]
                    statement,
                )
                operation = ast.BinOp(load, statement.op, statement.value)
                operations += self._expression(ast.copy_location(operation, statement), defined)
            elif isinstance(statement, ast.If):
                operations += self._expression(statement.test, defined)
                first, second = set(defined), set(defined)
                first_returned, first_operations = self._block(statement.body, first)
                second_returned, second_operations = self._block(statement.orelse, second)
                operations += max(first_operations, second_operations)
                if first_returned and second_returned:
                    returned = True
                elif first_returned or second_returned:
                    defined |= second if first_returned else first
                else:
                    defined |= first & second
            elif isinstance(statement, ast.For):
                operations += self._loop(statement, defined)
            elif not isinstance(statement, ast.Pass):
                self.scope.refuse_kind(statement)
        return returned, operations

    def _tuple_key(self, node: ast.Tuple) -> None:
        """Refuse keys that are compared one after the other; propose one number in their place."""
        parts = [f"({ast.unparse(part)[:60]})" for part in node.elts[:2]]
        first, second = parts if len(parts) == 2 else ("first", "second")
        self.refuse(
            node,
            "returns a tuple, and a key is one number; give the first part a weight above any "
            f"difference of what follows: return 1e10 * {first} + {second}",
        )

    def _target(self, target: ast.expr) -> None:
        if isinstance(target, ast.Attribute | ast.Subscript):
            self.refuse(
                target,
                f"assigns to `{ast.unparse(target)}`; a policy changes nothing outside itself, so "
                "use a local name",
            )
        if not isinstance(target, ast.Name):
            self.refuse(target, "assign one name at a time")
        self._local_name(target, target.id)

    def _loop(self, statement: ast.For, defined: set[str]) -> int:
        self._target(statement.target)
        call = statement.iter
        if statement.orelse:
            self.refuse(statement, "`else` after a loop; put those lines after it")
        if (
            not isinstance(call, ast.Call)
            or not isinstance(call.func, ast.Name)
            or call.func.id != "range"
            or call.keywords
            or not 1 <= len(call.args) <= 3
        ):
            self.refuse(statement, "a loop must run over range(...): `for step in range(8):`")
        bounds = []
        for argument in call.args:
            try:
                bound = self.scope.fold(argument)
            except PolicyError:
                bound = None
            if not isinstance(bound, int) or isinstance(bound, bool):
                self.refuse(
                    argument,
                    f"`range({ast.unparse(argument)[:40]})`: a bound must be a whole number known "
                    "beforehand; use a constant, and `if` inside the loop",
                )
            bounds.append(bound)
        if len(bounds) == 3 and bounds[2] == 0:
            self.refuse(statement, "the step of range must not be 0")
        count = len(range(*bounds)) if max(map(abs, bounds)) < 2**31 else MAX_OPERATIONS
        inside = set(defined) | {statement.target.id}  # type: ignore[attr-defined]
        _, operations = self._block(statement.body, inside)
        if count:
            defined |= inside
        return count * (1 + operations)

    # Expressions: each returns the operations it takes.

    def _expression(self, node: ast.expr, defined: set[str]) -> int:
        match node:
            case ast.Constant(value=value):
                if isinstance(value, str | bytes):
                    self.refuse(
                        node,
                        "text has no use in a policy; give each class a number in its place, such "
                        "as 0 if request.priority < 1 else 1",
                    )
                if type(value) not in (int, float, bool):
                    self.refuse(node, f"{value!r} is not a number; write one, or math.inf for last")
                if isinstance(value, int) and value >= 2**63:
                    self.refuse(node, "does not fit in 64 bits; write this number with a dot")
                return 1
            case ast.Name():
                self._name(node, defined)
                return 1
            case ast.Attribute():
                self._attribute(node)
                return 1
            case ast.Subscript(value=ast.Name(id=name), slice=index) if isinstance(
                self.scope.constants.get(name), tuple
            ):
                return self._index(node, name, index, defined)
            case ast.BinOp(left=left, op=op, right=right) if isinstance(op, OPERATORS):
                if isinstance(op, ast.Pow):
                    self.refuse(
                        node,
                        "`**` does not give the same bits compiled; write x * x, math.sqrt(x), "
                        "math.exp2(x) for 2**x, or math.exp(y * math.log(x)) for x**y",
                    )
                return 1 + self._expression(left, defined) + self._expression(right, defined)
            case ast.UnaryOp(op=ast.USub() | ast.UAdd() | ast.Not(), operand=operand):
                return 1 + self._expression(operand, defined)
            case ast.BoolOp(values=values):
                return 1 + sum(self._expression(value, defined) for value in values)
            case ast.Compare(left=left, ops=ops, comparators=others):
                if not all(isinstance(op, COMPARISONS) for op in ops):
                    self.refuse(node, "compare numbers with < <= > >= == != only")
                return 1 + sum(self._expression(value, defined) for value in [left, *others])
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return 1 + sum(self._expression(value, defined) for value in (test, body, orelse))
            case ast.Call():
                return self._call(node, defined)
        if isinstance(node, ast.BinOp | ast.UnaryOp):
            self.refuse(node, "bits and matrices have no use here; use + - * / // %")
        if isinstance(node, ast.Subscript):
            self.refuse(node, "only a tuple in an UPPER_CASE constant can be indexed")
        self.scope.refuse_kind(node)

    def _name(self, node: ast.Name, defined: set[str]) -> None:
        name = node.id
        if name in self.rows and name in self.parameters:
            example = f"{name}.{self.rows[name][0]}"
            self.refuse(node, f"`{name}` is a row, not a number; read a field, such as {example}")
        if name in defined:
            return
        if name in self.local_names:
            self.refuse(
                node, f"`{name}` has no value on some path to this line; assign it before the `if`"
            )
        if name in self.scope.constants:
            if isinstance(self.scope.constants[name], tuple):
                self.refuse(node, f"`{name}` is a tuple; index it, such as {name}[0]")
            return
        if name in self.scope.math_names and name in MATH_CONSTANTS:
            return
        if name in self.scope.functions or name in BUILTINS or name in self.scope.math_names:
            self.refuse(node, f"`{name}` is a function; call it with its arguments")
        known = [*defined, *self.scope.constants, *self.scope.functions]
        self.refuse(node, f"`{name}` is not defined.{did_you_mean(name, known)}")

    def _attribute(self, node: ast.Attribute) -> None:
        owner = node.value.id if isinstance(node.value, ast.Name) else ""
        if owner == "math" and "math" in self.scope.math_names:
            self.scope.math_member(node, node.attr)
            if node.attr in MATH_FUNCTIONS:
                self.refuse(node, f"`math.{node.attr}` is a function; call it")
            return
        if owner == "math":
            self.refuse(node, "`math` is not imported; write `import math` at the top")
        if owner not in self.rows:
            first, second = (f"`{name}`" for name in self.rows)
            self.refuse(
                node,
                f"`{ast.unparse(node)[:60]}`: only {first}, {second} and `math` have a dot; "
                f"a helper that reads a row names its parameter {first} or {second}",
            )
        if owner not in self.parameters:
            self.refuse(node, f"`{owner}` is not a parameter of `{self.open[-1]}`; add it")
        if node.attr not in self.rows[owner]:
            known = self.rows[owner]
            elsewhere = [name for name in self.rows if node.attr in self.rows[name]]
            if elsewhere:
                hint = f" Write {elsewhere[0]}.{node.attr}."
            elif node.attr in FIELD_HELP:
                hint = f" {FIELD_HELP[node.attr]}."
            else:
                hint = did_you_mean(node.attr, known)
            self.refuse(
                node, f"`{owner}` has no field {node.attr!r}.{hint} Known: {', '.join(known)}"
            )
        self.reads.add(f"{owner}.{node.attr}")

    def _index(self, node: ast.Subscript, name: str, index: ast.expr, defined: set[str]) -> int:
        try:
            position = self.scope.fold(index)
        except PolicyError:
            return 1 + self._expression(index, defined)
        size = len(self.scope.constants[name])
        if not isinstance(position, int) or not -size <= position < size:
            self.refuse(node, f"`{ast.unparse(node)[:60]}`: {name} has positions 0 to {size - 1}")
        return 1

    def _call(self, node: ast.Call, defined: set[str]) -> int:
        if node.keywords:
            self.refuse(node, "give arguments by position, not by name")
        if self.scope.is_tuple_length(node):
            return 1
        function = node.func
        imported = self.scope.math_names & set(MATH_FUNCTIONS)
        if isinstance(function, ast.Name) and function.id in self.scope.functions:
            return self._own_call(node, function.id, defined)
        if isinstance(function, ast.Name) and function.id in BUILTINS:
            self._count(node, function.id, BUILTINS[function.id])
        elif isinstance(function, ast.Name) and function.id in imported:
            self._count(node, function.id, MATH_FUNCTIONS[function.id])
        elif isinstance(function, ast.Attribute) and getattr(function.value, "id", "") == "math":
            if "math" not in self.scope.math_names:
                self.refuse(node, "`math` is not imported; write `import math` at the top")
            self.scope.math_member(node, function.attr)
            if function.attr in MATH_CONSTANTS:
                self.refuse(node, f"`math.{function.attr}` is a number; leave out the brackets")
            self._count(node, f"math.{function.attr}", MATH_FUNCTIONS[function.attr])
        else:
            name = ast.unparse(function)[:60]
            known = [*BUILTINS, *self.scope.functions, *MATH_FUNCTIONS]
            self.refuse(
                node,
                f"`{name}` cannot be called.{did_you_mean(name, known)} A policy may call "
                f"{', '.join(BUILTINS)}, functions of math, and its own functions",
            )
        return 1 + sum(self._expression(argument, defined) for argument in node.args)

    def _count(self, node: ast.Call, name: str, expected: int | None) -> None:
        if expected is None and len(node.args) < 2:
            self.refuse(node, f"`{name}` needs at least two numbers here")
        if expected is not None and len(node.args) != expected:
            self.refuse(node, f"`{name}` takes {expected} argument(s), not {len(node.args)}")

    def _own_call(self, node: ast.Call, name: str, defined: set[str]) -> int:
        self.called.add(name)
        reads, operations = self.function(name)
        self.reads |= reads
        parameters = [argument.arg for argument in self.scope.functions[name].args.args]
        self._count(node, name, len(parameters))
        for parameter, argument in zip(parameters, node.args, strict=True):
            if parameter not in self.rows:
                operations += self._expression(argument, defined)
            elif not (
                isinstance(argument, ast.Name)
                and argument.id == parameter
                and parameter in self.parameters
            ):
                self.refuse(node, f"`{name}` takes the row `{parameter}`; pass that row itself")
        return 1 + operations


def is_docstring(body: Sequence[ast.stmt]) -> bool:
    """Whether a body starts with a docstring."""
    return (
        bool(body)
        and isinstance(body[0], ast.Expr)
        and isinstance(body[0].value, ast.Constant)
        and isinstance(body[0].value.value, str)
    )

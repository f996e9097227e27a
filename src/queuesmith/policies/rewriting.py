"""Rewrites a policy so that whole numbers keep to 64 bits, in plain Python as in compiled code.

A checked file is rewritten before it is executed or compiled. Where the ranges of the operands do
not prove that a result fits in 64 bits, the operation becomes a call of a function that raises
`OverflowError` beyond them; where a value may be a whole number or a float, it becomes a float, as
the compiler would have it. Nearly every policy is left as it was written.
"""

import ast
from collections.abc import Mapping, Sequence
from copy import copy

from queuesmith.policies.arithmetic import LEAST, MOST
from queuesmith.policies.language import MATH_CONSTANTS
from queuesmith.policies.scope import Scope

#: Up to which a float holds every whole number.
_EXACT = 2**53

#: Smallest and largest value of a whole number; None of a float.
Range = tuple[int, int] | None
_ANY: Range = (LEAST, MOST)
_FLAG: Range = (0, 1)

#: Nodes that may be looked at for one file: nested loops and helpers are looked at repeatedly.
_MAX_VISITS = 200_000
#: Loops of so many rounds are followed round by round; in longer ones any range is possible.
_MAX_ROUNDS = 64
#: After so many changes the range of a helper's parameter is given up.
_MAX_CHANGES = 3

_OPERATIONS = {
    ast.Add: "queuesmith_add",
    ast.Sub: "queuesmith_sub",
    ast.Mult: "queuesmith_mul",
    ast.FloorDiv: "queuesmith_floordiv",
    ast.Mod: "queuesmith_mod",
}


def rewrite(tree: ast.Module, scope: Scope) -> ast.Module:
    """Return the tree in which every whole number fits in 64 bits or is an error.

    Parameters
    ----------
    tree : ast.Module
        Which has passed the check; it is left as it is.
    scope : Scope
        Of its top level.

    Raises
    ------
    PolicyError
        If loops and helpers are nested too deeply to be looked through.
    """
    return _Rewriter(scope).module(tree)


class _Rewriter:
    """Follows ranges through functions, and writes each function anew with what was found."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.integers = scope.contract.integers
        self.parameters: dict[str, list[Range]] = {}
        self.returns: dict[str, Range] = {}
        self.called: set[str] = set()  # functions that other functions call
        self.changes: dict[str, int] = {}
        self.num_changes = 0
        self.followed: set[str] = set()  # since the last time that all hooks were begun with
        self.num_visits = 0
        self.num_rounds = 1  # of the loops around what is followed round by round
        self.open = ""

    def module(self, tree: ast.Module) -> ast.Module:
        hooks = [name for name in self.scope.contract.hooks if name in self.scope.functions]
        before = -1
        while before != self.num_changes:
            before = self.num_changes
            self.followed.clear()
            for name in hooks:
                self.function(name)
        body = [
            self.function(statement.name)
            if isinstance(statement, ast.FunctionDef) and statement.name in self.returns
            else statement
            for statement in tree.body
        ]
        return ast.fix_missing_locations(ast.Module(body, tree.type_ignores))

    def function(self, name: str) -> ast.FunctionDef:
        """Follow one function; return it rewritten by what is known so far."""
        node = self.scope.functions[name]
        names = [argument.arg for argument in node.args.args]
        numbers = [one for one in names if one not in self.scope.contract.rows]
        state = dict(zip(numbers, self.parameters.setdefault(name, []), strict=True))
        outer, self.open = self.open, name
        body, _ = self.block(node.body, state)
        self.open = outer
        written = copy(node)  # whose other parts stay as they are
        written.body = body
        return written

    def call(self, name: str, given: list[Range]) -> Range:
        """Let a function be called with such arguments; return what it returns."""
        known = self.parameters.get(name)
        joined = given if known is None else [*map(_join, known, given)]
        self.called.add(name)
        if joined != known:
            self.num_changes += 1
            self.changes[name] = self.changes.get(name, 0) + 1
            if self.changes[name] > _MAX_CHANGES:
                joined = [one and _ANY for one in joined]
            self.parameters[name] = joined
            self.followed.discard(name)
        if name not in self.followed:
            self.followed.add(name)
            self.function(name)
        return self.returns[name]

    # Statements: each method changes `state`, the ranges of local names.

    def block(
        self, statements: Sequence[ast.stmt], state: dict[str, Range]
    ) -> tuple[list[ast.stmt], bool]:
        """Follow statements in order; return them rewritten, and whether every path returns."""
        written: list[ast.stmt] = []
        returned = False
        for statement in statements:
            if isinstance(statement, ast.Return):
                value = self.returned(statement.value, state)  # type: ignore[arg-type]
                written.append(ast.copy_location(ast.Return(value), statement))
                returned = True
            elif isinstance(statement, ast.Assign):
                value, found = self.expression(statement.value, state)
                for target in statement.targets:
                    state[target.id] = found  # type: ignore[attr-defined]
                written.append(ast.copy_location(ast.Assign(statement.targets, value), statement))
            elif isinstance(statement, ast.AugAssign):
                name: str = statement.target.id  # type: ignore[union-attr]
                operation = ast.BinOp(ast.Name(name, ast.Load()), statement.op, statement.value)
                value, state[name] = self.expression(operation, state)
                target = ast.Name(name, ast.Store())
                written.append(ast.copy_location(ast.Assign([target], value), statement))
            elif isinstance(statement, ast.If):
                one, returns = self.branch(statement, state)
                written.append(one)
                returned |= returns
            elif isinstance(statement, ast.For):
                written += self.loop(statement, state)
            else:
                written.append(statement)
        return written, returned

    def returned(self, node: ast.expr, state: dict[str, Range]) -> ast.expr:
        value, found = self.expression(node, state)
        known = self.returns.get(self.open, found)
        joined = self.returns[self.open] = _join(known, found)
        if joined != known:
            self.num_changes += 1
        # What an engine asks is turned into a float there.
        return _as_float(value, found) if joined is None and self.open in self.called else value

    def branch(self, statement: ast.If, state: dict[str, Range]) -> tuple[ast.If, bool]:
        test, _ = self.expression(statement.test, state)
        first, second = dict(state), dict(state)
        body, first_returned = self.block(statement.body, first)
        orelse, second_returned = self.block(statement.orelse, second)
        state.clear()
        if first_returned or second_returned:
            state.update(second if first_returned else first)
        else:
            state.update(
                {name: _join(first[name], second[name]) for name in first if name in second}
            )
            body += _conversions(first, state)
            orelse += _conversions(second, state)
        written = ast.copy_location(ast.If(test, body, orelse), statement)
        return written, first_returned and second_returned

    def loop(self, statement: ast.For, state: dict[str, Range]) -> list[ast.stmt]:
        target: str = statement.target.id  # type: ignore[attr-defined]
        bounds = [self.scope.fold(argument) for argument in statement.iter.args]  # type: ignore[attr-defined]
        rounds = range(*bounds)
        index: Range = (min(rounds[0], rounds[-1]), max(rounds[0], rounds[-1])) if rounds else _FLAG
        changed = {
            part.id
            for part in ast.walk(statement)
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
        }
        head = dict(state)
        if len(rounds) * self.num_rounds <= _MAX_ROUNDS:
            self.num_rounds *= max(len(rounds), 1)
            for _ in rounds:
                end = {**head, target: index}
                self.block(statement.body, end)
                head = {name: _join(found, end.get(name, found)) for name, found in head.items()}
            self.num_rounds //= max(len(rounds), 1)
        else:
            head.update({name: found and _ANY for name, found in state.items() if name in changed})
        while True:  # until the kinds at the end of a round are those at its beginning
            end = {**head, target: index}
            body, _ = self.block(statement.body, end)
            floats = [name for name in head if head[name] and name in end and end[name] is None]
            if not floats:
                break
            head.update(dict.fromkeys(floats))
        before = _conversions(state, head)
        body += _conversions(end, head)
        state.update(head)
        if rounds:
            state.update({name: found for name, found in end.items() if name not in head})
        written = ast.For(statement.target, statement.iter, body, [], None)
        return [*before, ast.copy_location(written, statement)]

    # Expressions: each method returns one rewritten, and its range.

    def expression(self, node: ast.expr, state: dict[str, Range]) -> tuple[ast.expr, Range]:
        self.num_visits += 1
        if self.num_visits > _MAX_VISITS:
            self.scope.refuse(node, "loops and functions are nested too deeply; write fewer")
        match node:
            case ast.Constant(value=value):
                return node, _of(value)  # type: ignore[arg-type]
            case ast.Name(id=name):
                if name in state:
                    return node, state[name]
                return node, None if name in MATH_CONSTANTS else _of(self.scope.constants[name])
            case ast.Attribute(value=ast.Name(id=owner), attr=name):
                return node, self.integers.get(f"{owner}.{name}")
            case ast.Subscript(value=ast.Name(id=name), slice=index):
                table = self.scope.constants[name]
                written, _ = self.expression(index, state)
                found = None if isinstance(table[0], float) else (min(table), max(table))
                return _like(node, ast.Subscript(node.value, written, node.ctx)), found
            case ast.BinOp(left=left, op=op, right=right):
                return self.operation(
                    node, op, self.expression(left, state), self.expression(right, state)
                )
            case ast.UnaryOp(op=op, operand=operand):
                written, found = self.expression(operand, state)
                if isinstance(op, ast.Not):
                    return _like(node, ast.UnaryOp(op, written)), _FLAG
                if isinstance(op, ast.USub) and found is not None:
                    if found[0] == LEAST:
                        return _called(node, "queuesmith_sub", ast.Constant(0), written), _ANY
                    found = (-found[1], -found[0])
                return _like(node, ast.UnaryOp(op, written)), found
            case ast.BoolOp(op=op, values=values):
                parts, found = self.alike([self.expression(one, state) for one in values])
                return _like(node, ast.BoolOp(op, parts)), found
            case ast.IfExp(test=test, body=body, orelse=orelse):
                condition, _ = self.expression(test, state)
                parts, found = self.alike([self.expression(one, state) for one in (body, orelse)])
                return _like(node, ast.IfExp(condition, *parts)), found
            case ast.Compare(left=left, ops=ops, comparators=others):
                pairs = [self.expression(one, state) for one in (left, *others)]
                if any(found is None for _, found in pairs):
                    pairs = [(_in_float_range(*pair), None) for pair in pairs]
                first, *rest = [written for written, _ in pairs]
                return _like(node, ast.Compare(first, ops, rest)), _FLAG
        assert isinstance(node, ast.Call)
        return self.function_call(node, state)

    def operation(
        self,
        node: ast.BinOp,
        op: ast.operator,
        left: tuple[ast.expr, Range],
        right: tuple[ast.expr, Range],
    ) -> tuple[ast.expr, Range]:
        if isinstance(op, ast.Div):
            return _like(node, ast.BinOp(_in_float_range(*left), op, _in_float_range(*right))), None
        a, b = left[1], right[1]
        written = _like(node, ast.BinOp(left[0], op, right[0]))
        if a is None or b is None:
            return written, None
        low, high = _range(op, a, b)
        if low >= LEAST and high <= MOST:
            return written, (low, high)
        found = max(low, LEAST), min(high, MOST)
        return _called(node, _OPERATIONS[type(op)], left[0], right[0]), found

    def alike(self, pairs: list[tuple[ast.expr, Range]]) -> tuple[list[ast.expr], Range]:
        """Make values that stand for each other floats if one of them is."""
        found = pairs[0][1]
        for _, other in pairs[1:]:
            found = _join(found, other)
        if found is None:
            return [_as_float(*pair) for pair in pairs], None
        return [written for written, _ in pairs], found

    def function_call(self, node: ast.Call, state: dict[str, Range]) -> tuple[ast.expr, Range]:
        if self.scope.is_tuple_length(node):
            length = len(self.scope.constants[node.args[0].id])  # type: ignore[attr-defined]
            return node, (length, length)
        function = node.func
        name = function.id if isinstance(function, ast.Name) else function.attr  # type: ignore[attr-defined]
        if isinstance(function, ast.Name) and name in self.scope.functions:
            return self.own_call(node, name, state)
        pairs = [self.expression(argument, state) for argument in node.args]
        parts, found = [written for written, _ in pairs], pairs[0][1]
        if name in ("min", "max"):
            parts, found = self.alike(pairs)
            if found is not None:
                pick = min if name == "min" else max
                ends = [one for _, one in pairs if one is not None]
                found = pick(one[0] for one in ends), pick(one[1] for one in ends)
        elif name in ("bool", "isnan", "isinf", "isfinite"):
            found = _FLAG
        elif name in ("floor", "ceil", "trunc", "round", "int"):
            if found is not None and name != "int":
                return _like(node, ast.UnaryOp(ast.UAdd(), parts[0])), found
            found = found or _ANY
        elif name == "abs" and found is not None:
            if found[0] == LEAST:
                return _called(node, "queuesmith_abs", *parts), (0, MOST)
            found = (0, max(-found[0], found[1]))
        else:
            found = None
        return _like(node, ast.Call(function, parts, [])), found

    def own_call(
        self, node: ast.Call, name: str, state: dict[str, Range]
    ) -> tuple[ast.expr, Range]:
        rows = self.scope.contract.rows
        names = [argument.arg for argument in self.scope.functions[name].args.args]
        pairs = {
            parameter: self.expression(argument, state)
            for parameter, argument in zip(names, node.args, strict=True)
            if parameter not in rows
        }
        found = self.call(name, [one for _, one in pairs.values()])
        wanted = dict(zip(pairs, self.parameters[name], strict=True))
        parts = [
            argument
            if parameter in rows
            else _as_float(*pairs[parameter])
            if wanted[parameter] is None
            else pairs[parameter][0]
            for parameter, argument in zip(names, node.args, strict=True)
        ]
        return _like(node, ast.Call(node.func, parts, [])), found


def _of(value: float) -> Range:
    return None if isinstance(value, float) else (int(value), int(value))


def _join(one: Range, other: Range) -> Range:
    if one is None or other is None:
        return None
    return min(one[0], other[0]), max(one[1], other[1])


def _range(op: ast.operator, a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    """Return the smallest and the largest result; beyond 64 bits where it must be checked."""
    if isinstance(op, ast.Add):
        return a[0] + b[0], a[1] + b[1]
    if isinstance(op, ast.Sub):
        return a[0] - b[1], a[1] - b[0]
    if isinstance(op, ast.Mult):
        products = [x * y for x in a for y in b]
        return min(products), max(products)
    if a[0] == LEAST and b[0] <= -1 <= b[1]:  # the one quotient that is too large
        return LEAST, MOST + 1
    if isinstance(op, ast.Mod):
        return min(b[0] + 1, 0), max(b[1] - 1, 0)
    most = max(-a[0], a[1])
    return max(-most, LEAST), min(most, MOST)


def _in_float_range(node: ast.expr, found: Range) -> ast.expr:
    """Make a whole number that a float may not hold exactly a float."""
    if found is None or (found[0] >= -_EXACT and found[1] <= _EXACT):
        return node
    return _as_float(node, found)


def _as_float(node: ast.expr, found: Range) -> ast.expr:
    if found is None:
        return node
    if isinstance(node, ast.Constant):
        return ast.copy_location(ast.Constant(float(node.value)), node)  # type: ignore[arg-type]
    written = ast.BinOp(ast.Constant(1.0), ast.Mult(), node)  # numba's `float` takes no flags
    return ast.copy_location(written, node)


def _conversions(state: Mapping[str, Range], wanted: Mapping[str, Range]) -> list[ast.stmt]:
    """Make floats of the local names that are wanted as such and are not yet."""
    return [
        ast.Assign([ast.Name(name, ast.Store())], _as_float(ast.Name(name, ast.Load()), _ANY))
        for name, found in wanted.items()
        if found is None and state.get(name) is not None
    ]


def _called(node: ast.expr, name: str, *arguments: ast.expr) -> ast.expr:
    return _like(node, ast.Call(ast.Name(name, ast.Load()), list(arguments), []))


def _like(node: ast.expr, written: ast.expr) -> ast.expr:
    return ast.copy_location(written, node)

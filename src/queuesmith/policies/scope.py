"""What a policy file has defined at its top level, and the arithmetic of its constants."""

import ast
import math
from typing import Any, NoReturn

from queuesmith.errors import PolicyError, did_you_mean
from queuesmith.policies.language import (
    BUILTINS,
    MATH_CONSTANTS,
    MATH_FUNCTIONS,
    OPERATORS,
    POLICY,
    REFUSED,
    Contract,
)


class Scope:
    """Names of one file and what they stand for; refuses in the file's name.

    Attributes
    ----------
    filename : str
        For messages.
    contract : Contract
    constants : dict of str to number or tuple of numbers
    functions : dict of str to ast.FunctionDef
    math_names : set of str
        ``math`` itself and what was imported from it.
    """

    def __init__(self, filename: str, contract: Contract = POLICY) -> None:
        self.filename = filename
        self.contract = contract
        self.constants: dict[str, Any] = {}
        self.functions: dict[str, ast.FunctionDef] = {}
        self.math_names: set[str] = set()

    def refuse(self, node: ast.AST, message: str) -> NoReturn:
        """Raise `PolicyError` at a line."""
        if self.contract is not POLICY:
            for article in ("a", "A"):
                message = message.replace(f"{article} policy", f"{article} {self.contract.kind}")
        raise PolicyError(f"{self.filename}:{getattr(node, 'lineno', 1)}: {message}")

    def refuse_kind(self, node: ast.AST) -> NoReturn:
        """Refuse a node that the language does not have, with what to write instead."""
        kind = type(node)
        default = (
            f"{kind.__name__} is not part of the policy language; "
            "docs/reference/contract.md lists what is"
        )
        self.refuse(node, REFUSED.get(kind, default))

    def imported(self, node: ast.AST, name: str) -> None:
        """Take in a name of `math`."""
        if name not in self.math_names:
            self.define(node, name)
            self.math_names.add(name)

    def define(self, node: ast.AST, name: str) -> None:
        """Refuse a top-level name that means something else already."""
        if (
            name in self.contract.rows
            or name in BUILTINS
            or name in ("range", "len")
            or name.startswith("__")
        ):
            self.refuse(node, f"`{name}` has a meaning of its own; choose another name")
        if name in self.constants or name in self.functions or name in self.math_names:
            self.refuse(node, f"`{name}` is defined twice; keep one of them")

    def math_member(self, node: ast.AST, name: str) -> None:
        """Refuse what `math` does not have, or numba would compute otherwise."""
        known = [*MATH_FUNCTIONS, *MATH_CONSTANTS]
        if name not in known:
            self.refuse(
                node,
                f"math.{name} cannot be used.{did_you_mean(name, known)} Known: {', '.join(known)}",
            )

    def fold(self, node: ast.expr) -> Any:
        """Compute a constant expression: numbers, earlier constants, arithmetic, ``len``."""
        value: Any = None
        if isinstance(node, ast.Constant) and type(node.value) in (int, float, bool):
            value = node.value
        elif isinstance(node, ast.Name) and node.id in self.constants:
            value = self.constants[node.id]
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
            operand = self.fold(node.operand)
            value = -operand if isinstance(node.op, ast.USub) else +operand
        elif isinstance(node, ast.BinOp) and isinstance(node.op, OPERATORS):
            value = self._arithmetic(node, self.fold(node.left), self.fold(node.right))
        elif self.is_tuple_length(node):
            value = len(self.constants[node.args[0].id])  # type: ignore[attr-defined]
        if isinstance(value, bool):
            return value
        if not isinstance(value, int | float):
            self.refuse(
                node,
                "a constant must be a number, True or False, a tuple of numbers, or arithmetic on "
                f"earlier constants, not `{ast.unparse(node)[:60]}`",
            )
        if (isinstance(value, int) and abs(value) >= 2**63) or not math.isfinite(value):
            self.refuse(node, "a constant must be finite and fit in 64 bits; choose a smaller one")
        return value

    def _arithmetic(self, node: ast.BinOp, left: Any, right: Any) -> Any:
        try:
            match node.op:
                case ast.Add():
                    return left + right
                case ast.Sub():
                    return left - right
                case ast.Mult():
                    return left * right
                case ast.Div():
                    return left / right
                case ast.FloorDiv():
                    return left // right
                case ast.Mod():
                    return left % right
            # In floats first: 10**10**10 as a whole number would take for ever.
            power = float(left) ** float(right)
            whole = isinstance(left, int) and isinstance(right, int) and right >= 0
            if whole and abs(power) > 2.0**64:
                raise OverflowError
            return left**right if whole else power
        except (ArithmeticError, TypeError):
            self.refuse(
                node, f"`{ast.unparse(node)[:60]}` cannot be computed; write the number itself"
            )

    def is_tuple_length(self, node: ast.AST) -> bool:
        """Whether a node is ``len(CONSTANT)`` of a tuple."""
        return (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "len"
            and len(node.args) == 1
            and not node.keywords
            and isinstance(node.args[0], ast.Name)
            and isinstance(self.constants.get(node.args[0].id), tuple)
        )

"""What the policy language has, as tables; :mod:`queuesmith.policies.syntax` enforces them."""

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass

from queuesmith.request import (
    ENGINE_DTYPE,
    ENGINE_FIELDS,
    REQUEST_DTYPE,
    REQUEST_FIELDS,
    integer_ranges,
)

#: The functions an engine asks, each with ``(request, engine)``.
HOOKS = ("waiting_key", "victim_key", "admit", "hold", "reject")
#: Most operations that one call of a hook may take: names, numbers, operators, calls, rounds and
#: statements, each as often as it can be come by. So many take milliseconds in plain Python.
MAX_OPERATIONS = 100_000
MAX_BYTES = 100_000

#: Functions of ``math`` that numba compiles to the same bits, with their number of arguments.
MATH_FUNCTIONS = {
    **dict.fromkeys(("sqrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "fabs"), 1),
    **dict.fromkeys(("floor", "ceil", "trunc", "isnan", "isinf", "isfinite"), 1),
    **dict.fromkeys(("sin", "cos", "tan", "atan", "tanh"), 1),
    **dict.fromkeys(("copysign", "atan2"), 2),
}
MATH_CONSTANTS = ("pi", "e", "tau", "inf", "nan")

ROWS = {"request": REQUEST_FIELDS, "engine": ENGINE_FIELDS}
BUILTINS = {"abs": 1, "float": 1, "int": 1, "bool": 1, "round": 1, "min": None, "max": None}
OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow)
COMPARISONS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)
CONSTANT_NAME = re.compile(r"[A-Z][A-Z0-9_]*")
SWITCHES = ("PREEMPTIVE", "ORACLE")

_TRUE_LENGTH = (
    "a policy cannot see the true output length; request.predicted_output_tokens is what it may "
    "know, request.max_tokens is the client's cap"
)
FIELD_HELP = {
    **dict.fromkeys(("output_len", "output_length", "true_output_len"), _TRUE_LENGTH),
    **dict.fromkeys(("num_tokens_total", "total_output_tokens", "completion_tokens"), _TRUE_LENGTH),
    "num_tokens": "write request.num_prompt_tokens + request.num_output_tokens",
    "prompt_len": "write request.num_prompt_tokens",
}


@dataclass(frozen=True)
class Contract:
    """What is asked of a file in this language.

    Attributes
    ----------
    kind : str
        What such a file is called in messages.
    hooks : tuple of str
        The functions that an engine asks; every file has the first.
    first_hook : str
        What that one returns, in words.
    rows : mapping of str to tuple of str
        Parameters of every hook, in order, and the fields of each.
    integers : mapping of str to (int, int)
        Smallest and largest value of each field that is a whole number.
    switches : tuple of str
        Constants that are True or False and change what the engine does.
    has_engine : bool
        Whether ``ENGINE`` may set how the engine runs.
    """

    kind: str
    hooks: tuple[str, ...]
    first_hook: str
    rows: Mapping[str, tuple[str, ...]]
    integers: Mapping[str, tuple[int, int]]
    switches: tuple[str, ...] = ()
    has_engine: bool = False

    @property
    def signature(self) -> str:
        """Parameters of a hook, as they are written."""
        return ", ".join(self.rows)


POLICY = Contract(
    "policy",
    HOOKS,
    "a number, smaller for the request to admit first",
    ROWS,
    integer_ranges({"request": REQUEST_DTYPE, "engine": ENGINE_DTYPE}),
    SWITCHES,
    has_engine=True,
)

REFUSED: dict[type[ast.AST], str] = {
    ast.While: "`while` could never end; write `for step in range(100):` with a fixed bound",
    ast.AsyncFor: "`async` has no meaning here; write plain functions",
    ast.AsyncFunctionDef: "`async` has no meaning here; write plain functions",
    ast.Global: "`global` would keep state between calls; return the value instead",
    ast.Nonlocal: "`nonlocal` would keep state between calls; return the value instead",
    ast.Lambda: "`lambda` cannot be compiled; write a function at the top level of the file",
    ast.ClassDef: "a class cannot be compiled; a policy is functions and constants",
    ast.Try: "`try` cannot be compiled; test for the bad value with `if` before it does harm",
    ast.TryStar: "`try` cannot be compiled; test for the bad value with `if` before it does harm",
    ast.With: "`with` cannot be compiled; a policy has nothing to open or close",
    ast.Delete: "`del` changes what it is given; leave the name alone",
    ast.Raise: "`raise` would stop the engine; return a key for every request, math.inf for last",
    ast.Assert: "`assert` would stop the engine; return a key for every request",
    ast.Break: "`break` is not part of the policy language; keep the result with `if` and go on",
    ast.Continue: "`continue` is not part of the policy language; put the rest under `if`",
    ast.Import: "only `math` may be imported, and inside no function",
    ast.ImportFrom: "only `math` may be imported, and inside no function",
    ast.FunctionDef: "a function inside a function; move it to the top level of the file",
    ast.AnnAssign: "an annotated assignment; leave the annotation out",
    ast.Expr: "this line computes a value and drops it; assign or return it, or delete the line",
    ast.ListComp: "a comprehension builds a list; write a `for` loop that adds up a number",
    ast.SetComp: "a comprehension builds a set; write a `for` loop that adds up a number",
    ast.DictComp: "a comprehension builds a dict; write a `for` loop that adds up a number",
    ast.GeneratorExp: "a generator cannot be compiled; write a `for` loop that adds up a number",
    ast.Await: "`await` has no meaning here; hooks answer at once",
    ast.Yield: "`yield` would keep state between calls; return the value instead",
    ast.YieldFrom: "`yield` would keep state between calls; return the value instead",
    ast.JoinedStr: "text has no use in a policy, which computes numbers; give each class a number",
    ast.List: "a list; keep numbers in an UPPER_CASE tuple at the top of the file",
    ast.Tuple: "a tuple inside a function; keep it in an UPPER_CASE constant at the top",
    ast.Dict: "a dict; keep numbers in an UPPER_CASE tuple at the top of the file",
    ast.Set: "a set; keep numbers in an UPPER_CASE tuple at the top of the file",
    ast.NamedExpr: "`:=` inside an expression; assign on a line of its own",
    ast.Starred: "`*` arguments cannot be compiled; write the arguments out",
    ast.Slice: "a slice; index one number, such as QUANTA[1]",
}

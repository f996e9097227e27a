"""Arithmetic of policies in plain Python that raises where a whole number leaves 64 bits.

`queuesmith.engine.strict_math` has the same for compiled policies, and
`queuesmith.policies.rewriting` says where it is needed.
"""

import builtins
import math
from types import ModuleType
from typing import Any

LEAST, MOST = -(2**63), 2**63 - 1
TOO_LARGE = "a whole number does not fit in 64 bits; multiply large ones as floats"


def _fits(number: int) -> int:
    if LEAST <= number <= MOST:
        return number
    raise OverflowError(TOO_LARGE)


def _add(left: int, right: int) -> int:
    return _fits(left + right)


def _sub(left: int, right: int) -> int:
    return _fits(left - right)


def _mul(left: int, right: int) -> int:
    return _fits(left * right)


def _floordiv(left: int, right: int) -> int:
    return _fits(left // right)


def _mod(left: int, right: int) -> int:
    return left % right


def _abs(number: int) -> int:
    return _fits(abs(number))


#: Under which name a rewritten text calls what raises beyond 64 bits.
CHECKED = {
    f"queuesmith{function.__name__}": function
    for function in (_add, _sub, _mul, _floordiv, _mod, _abs)
}


def _int(number: Any) -> int:
    return _fits(int(number))


def _round(number: Any) -> int:
    return _fits(builtins.round(number))


def floor(number: float) -> int:  # noqa: D103 - the name says it, here and below
    return _fits(math.floor(number))


def ceil(number: float) -> int:  # noqa: D103
    return _fits(math.ceil(number))


def trunc(number: float) -> int:  # noqa: D103
    return _fits(math.trunc(number))


_TO_INT = {function.__name__: function for function in (floor, ceil, trunc)}
_MATH = ModuleType("queuesmith_math")
_MATH.__dict__.update({name: getattr(math, name) for name in dir(math) if name[0] != "_"} | _TO_INT)


def keep_to_64_bits(namespace: dict[str, Any]) -> None:
    """Put functions that raise beyond 64 bits where a policy's text finds the others."""
    for name, value in list(namespace.items()):
        if value is math:
            namespace[name] = _MATH
        elif getattr(value, "__module__", None) == "math" and value.__name__ in _TO_INT:
            namespace[name] = _TO_INT[value.__name__]
    namespace.update(CHECKED, int=_int, round=_round)

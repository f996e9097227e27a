"""What arithmetic means to a compiled policy: the same as in plain Python.

numba's own ``math.log(0)`` is -inf, its ``int(nan)`` is some number and its whole numbers wrap
around. Inside vLLM the policy is plain Python, where the first two raise, and where
`queuesmith.policies.rewriting` lets the third do so; what fails there must not pass here.
"""

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

from numba import njit

from queuesmith.policies.arithmetic import CHECKED, LEAST, MOST, TOO_LARGE

_DOMAIN = "math domain error"
_RANGE = "math range error"


@njit
def log(x):  # type: ignore[no-untyped-def] # noqa: D103 - the name says it, here and below
    if x <= 0.0:
        raise ValueError(_DOMAIN)
    return math.log(x)


@njit
def log2(x):  # type: ignore[no-untyped-def] # noqa: D103
    if x <= 0.0:
        raise ValueError(_DOMAIN)
    return math.log2(x)


@njit
def log10(x):  # type: ignore[no-untyped-def] # noqa: D103
    if x <= 0.0:
        raise ValueError(_DOMAIN)
    return math.log10(x)


@njit
def log1p(x):  # type: ignore[no-untyped-def] # noqa: D103
    if x <= -1.0:
        raise ValueError(_DOMAIN)
    return math.log1p(x)


@njit
def sqrt(x):  # type: ignore[no-untyped-def] # noqa: D103
    if x < 0.0:
        raise ValueError(_DOMAIN)
    return math.sqrt(x)


@njit
def exp(x):  # type: ignore[no-untyped-def] # noqa: D103
    result = math.exp(x)
    if math.isinf(result) and not math.isinf(x):
        raise OverflowError(_RANGE)
    return result


@njit
def exp2(x):  # type: ignore[no-untyped-def] # noqa: D103
    result = math.exp2(x)
    if math.isinf(result) and not math.isinf(x):
        raise OverflowError(_RANGE)
    return result


@njit
def expm1(x):  # type: ignore[no-untyped-def] # noqa: D103
    result = math.expm1(x)
    if math.isinf(result) and not math.isinf(x):
        raise OverflowError(_RANGE)
    return result


@njit
def sin(x):  # type: ignore[no-untyped-def] # noqa: D103
    if math.isinf(x):
        raise ValueError(_DOMAIN)
    return math.sin(x)


@njit
def cos(x):  # type: ignore[no-untyped-def] # noqa: D103
    if math.isinf(x):
        raise ValueError(_DOMAIN)
    return math.cos(x)


@njit
def tan(x):  # type: ignore[no-untyped-def] # noqa: D103
    if math.isinf(x):
        raise ValueError(_DOMAIN)
    return math.tan(x)


@njit
def _finite(x):  # type: ignore[no-untyped-def]
    if math.isnan(x):
        raise ValueError("cannot convert float NaN to integer")
    if math.isinf(x):
        raise OverflowError("cannot convert float infinity to integer")
    if not -9223372036854775808.0 <= x < 9223372036854775808.0:
        raise OverflowError(TOO_LARGE)
    return x


@njit
def floor(x):  # type: ignore[no-untyped-def] # noqa: D103
    return math.floor(_finite(x))


@njit
def ceil(x):  # type: ignore[no-untyped-def] # noqa: D103
    return math.ceil(_finite(x))


@njit
def trunc(x):  # type: ignore[no-untyped-def] # noqa: D103
    return math.trunc(_finite(x))


@njit
def to_int(x):  # type: ignore[no-untyped-def] # noqa: D103
    return int(_finite(x))


@njit
def to_round(x):  # type: ignore[no-untyped-def] # noqa: D103
    return round(_finite(x))


# Nothing is computed that does not fit: LLVM may take for granted that it does.


@njit
def add(x, y):  # type: ignore[no-untyped-def] # noqa: D103
    if (x > MOST - y) if y >= 0 else (x < LEAST - y):
        raise OverflowError(TOO_LARGE)
    return x + y


@njit
def sub(x, y):  # type: ignore[no-untyped-def] # noqa: D103
    if (x < LEAST + y) if y >= 0 else (x > MOST + y):
        raise OverflowError(TOO_LARGE)
    return x - y


@njit
def mul(x, y):  # type: ignore[no-untyped-def] # noqa: D103
    if x == -1 or y == -1:
        return sub(0, y if x == -1 else x)
    if abs(float(x) * float(y)) > 9.2e18 and x != 1 and y != 1:
        if x == LEAST or y == LEAST:
            raise OverflowError(TOO_LARGE)
        divisor = abs(y)
        most = MOST // divisor
        if (x < 0) != (y < 0) and MOST % divisor == divisor - 1:
            most += 1  # of 2**63, which a negative product may reach
        if abs(x) > most:
            raise OverflowError(TOO_LARGE)
    return x * y


@njit
def floordiv(x, y):  # type: ignore[no-untyped-def] # noqa: D103
    return sub(0, x) if y == -1 else x // y


@njit
def mod(x, y):  # type: ignore[no-untyped-def] # noqa: D103
    return 0 if y == -1 else x % y


@njit
def absolute(x):  # type: ignore[no-untyped-def] # noqa: D103
    return sub(0, x) if x < 0 else x


_CHECKED = dict(zip(CHECKED, (add, sub, mul, floordiv, mod, absolute), strict=True))

_BY_NAME: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (log, log2, log10, log1p, sqrt, exp, exp2, expm1, sin, cos, tan)
} | {function.__name__: function for function in (floor, ceil, trunc)}


def _strict_module() -> ModuleType:
    """Return a module like ``math`` with the strict functions in it."""
    module = ModuleType("queuesmith_strict_math")
    module.__dict__.update({name: getattr(math, name) for name in dir(math) if name[0] != "_"})
    module.__dict__.update(_BY_NAME)
    return module


_MODULE = _strict_module()


def make_strict(namespace: dict[str, Any]) -> None:
    """Put the strict functions where a policy's text finds the others."""
    for name, value in list(namespace.items()):
        if value is math:
            namespace[name] = _MODULE
        elif getattr(value, "__module__", None) == "math" and value.__name__ in _BY_NAME:
            namespace[name] = _BY_NAME[value.__name__]
    namespace.update(_CHECKED, int=to_int, round=to_round)

"""What the policy language offers means the same compiled as in plain Python, to the last bit."""

import math

import numpy as np
import pytest
from numba import njit

from queuesmith.policies.language import BUILTINS, MATH_CONSTANTS, MATH_FUNCTIONS

rng = np.random.default_rng(0)
NUMBERS = [
    *(0.0, -0.0, 1.0, -1.0, 0.5, 2.5, 3.5, 1e-300, 1e300, math.inf, -math.inf, math.nan),
    *rng.uniform(-30, 30, 400).tolist(),
    *(10.0 ** rng.uniform(-8, 8, 400)).tolist(),
]
PAIRS = list(zip(NUMBERS, NUMBERS[::-1], strict=True))
PAIRS += [(x, y) for x in NUMBERS[:12] for y in NUMBERS[:12]]
WHOLE = [(7, 3), (-7, 3), (7, -3), (-7, -3), (0, 5), (100_000_000, 16), (1 << 40, 1 << 20)]

ONE_FLOAT = [f"math.{name}(x)" for name, count in MATH_FUNCTIONS.items() if count == 1]
ONE_FLOAT += [f"{name}(x)" for name, count in BUILTINS.items() if count == 1]
TWO_FLOATS = [f"math.{name}(x, y)" for name, count in MATH_FUNCTIONS.items() if count == 2]
TWO_FLOATS += ["min(x, y)", "max(x, y)", "min(1, x, y)", "max(x, 2, y)"]
TWO_FLOATS += ["x + y", "x - y", "x * y", "x / y", "x // y", "x % y"]
TWO_FLOATS += ["x < y", "x >= y", "x == y", "x != y", "0.0 < x <= y", "x if y else 1.0"]
TWO_FLOATS += ["math.exp(y * math.log(x))", "x * x * x", "math.sqrt(x) / y", "not x and y > 1.0"]
TWO_WHOLE = [
    "x + y",
    "x * y",
    "x / y",
    "x // y",
    "x % y",
    "-x // y",
    "min(x, y)",
    "x < y",
    "abs(x)",
]


def assert_same(expression, pairs):
    scope = {"math": math}
    exec(f"def plain(x, y):\n    return {expression}\n", scope)
    compiled = njit(error_model="python")(scope["plain"])
    compared = 0
    for x, y in pairs:
        try:
            expected = scope["plain"](x, y)
        except (ArithmeticError, ValueError):
            continue  # `check_policy` refuses what raises in plain Python
        if isinstance(expected, int) and abs(expected) >= 2**63:
            continue  # and whole numbers beyond 64 bits
        answer = compiled(x, y)
        compared += 1
        same = answer == expected or (math.isnan(answer) and math.isnan(expected))
        assert same, f"{expression} for x={x!r}, y={y!r}: {expected!r}, compiled {answer!r}"
    assert compared > len(pairs) / 3


@pytest.mark.parametrize("expression", [*ONE_FLOAT, *TWO_FLOATS])
def test_an_expression_of_decimal_numbers_gives_the_same_bits(expression):
    assert_same(expression, PAIRS)


@pytest.mark.parametrize("expression", TWO_WHOLE)
def test_an_expression_of_whole_numbers_gives_the_same_bits(expression):
    assert_same(expression, WHOLE)


@pytest.mark.parametrize("name", MATH_CONSTANTS)
def test_a_constant_is_the_same(name):
    assert_same(f"math.{name} + 0.0 * x", [(1.0, 1.0)])


def test_powers_are_left_out_because_they_do_not():
    """When this fails, compilers have changed and `**` could be allowed."""
    with pytest.raises(AssertionError, match="compiled"):
        assert_same("x ** 3", PAIRS)

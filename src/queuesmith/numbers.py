"""Numbers as a reader wants them: three figures, a unit, and a dash for what is undefined.

ASCII only, so that a terminal of any encoding can print them; the HTML report replaces the hyphen.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

UNDEFINED = "-"


def number(value: float | None, scale: float = 1.0) -> str:
    """Return `value` times `scale` with three significant figures.

    Examples
    --------
    >>> number(0.04321), number(0.04321, 1000), number(12345.6), number(None)
    ('0.0432', '43.2', '12,346', '-')
    """
    if value is None or not math.isfinite(value):
        return UNDEFINED
    value *= scale
    if value == 0:
        return "0"
    if abs(value) < 1e-4:
        return f"{value:.1e}"
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{decimals}f}"


def count(value: float | None) -> str:
    """Return a whole number."""
    return UNDEFINED if value is None or not math.isfinite(value) else f"{value:,.0f}"


def change(value: float | None) -> str:
    """Return a relative change in percent, with its sign.

    Examples
    --------
    >>> change(-0.312), change(0.042), change(2.5), change(0.0)
    ('-31 %', '+4.2 %', '+250 %', '0 %')
    """
    if value is None or not math.isfinite(value):
        return UNDEFINED
    percent = 100 * value
    if abs(percent) < 0.05:
        return "0 %"
    return f"{percent:+,.0f} %" if abs(percent) >= 9.95 else f"{percent:+.1f} %"


def interval(low: float | None, high: float | None) -> str:
    """Return an interval of relative changes, or nothing when an end is undefined."""
    if low is None or high is None:
        return ""
    return f"{change(low)} to {change(high)}"


def share(value: float | None) -> str:
    """Return a fraction between 0 and 1 in percent.

    Examples
    --------
    >>> share(0.973), share(1.0), share(None)
    ('97.3 %', '100 %', '-')
    """
    if value is None or not math.isfinite(value):
        return UNDEFINED
    return f"{100 * value:.1f}".removesuffix(".0") + " %"


def points(value: float | None) -> str:
    """Return a difference of shares in percentage points.

    Examples
    --------
    >>> points(-0.524), points(0.004)
    ('-52.4 points', '+0.4 points')
    """
    if value is None or not math.isfinite(value):
        return UNDEFINED
    return "0 points" if abs(value) < 0.0005 else f"{100 * value:+.1f} points"


def score(value: float | None) -> str:
    """Return a score with its sign and two decimals."""
    return UNDEFINED if value is None or not math.isfinite(value) else f"{value:+.2f}"


def p_value(value: float | None) -> str:
    """Return a p-value with two significant figures.

    Examples
    --------
    >>> p_value(0.0078125), p_value(0.29), p_value(1e-5)
    ('0.0078', '0.29', '<0.001')
    """
    if value is None or not math.isfinite(value):
        return UNDEFINED
    return "<0.001" if value < 0.001 else f"{value:.2g}"


def compact(values: ArrayLike, digits: int) -> list[float | None]:
    """Round to significant digits, so that a figure is small; what is not finite becomes None.

    Examples
    --------
    >>> compact([0.123456, 98765.0, float("nan"), 0.0], 3)
    [0.123, 98800.0, None, 0.0]
    """
    array = np.asarray(values, np.float64)
    finite = np.isfinite(array)
    size = np.abs(np.where(finite & (array != 0), array, 1.0))
    places = digits - 1 - np.floor(np.log10(size)).astype(np.int64)
    # Powers of ten are exact only where they are whole, hence two ways to the same rounding.
    up, down = 10.0 ** np.maximum(places, 0), 10.0 ** np.maximum(-places, 0)
    rounded = np.rint(np.where(finite, array, 0.0) * up / down) * down / up
    return [
        value if known else None
        for value, known in zip(rounded.tolist(), finite.tolist(), strict=True)
    ]


def listed(names: Sequence[str]) -> str:
    """Join names as a sentence does.

    Examples
    --------
    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"

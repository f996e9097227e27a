"""Between which numbers a tree can come out, from what its terms can be."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from queuesmith.evolve.gp.program import LEAST_DIVISOR, Node, apply
from queuesmith.evolve.gp.terminals import TERMS


@dataclass(frozen=True, slots=True)
class Interval:
    """All numbers from `low` to `high`, both included; either may be infinite."""

    low: float
    high: float


#: What is known of terms on the way to a node, besides what always holds.
Bounds = Mapping[str, Interval]

_NOTHING_MORE: Bounds = {}


def interval(tree: Node, bounds: Bounds = _NOTHING_MORE) -> Interval:
    """Return an interval that holds every value a tree has in a reachable state."""
    if tree.is_constant:
        return Interval(tree.value, tree.value)
    if not tree.children:
        found = bounds.get(tree.name)
        return found or Interval(TERMS[tree.name].low, TERMS[tree.name].high)
    parts = [interval(child, bounds) for child in tree.children]
    first = parts[0]
    match tree.name:
        case "add":
            return Interval(first.low + parts[1].low, first.high + parts[1].high)
        case "sub":
            return Interval(first.low - parts[1].high, first.high - parts[1].low)
        case "mul":
            return _span(first, parts[1], _times)
        case "div":
            divisor = Interval(max(parts[1].low, LEAST_DIVISOR), max(parts[1].high, LEAST_DIVISOR))
            return _span(first, divisor, _over)
        case "if":
            return Interval(min(parts[2].low, parts[3].low), max(parts[2].high, parts[3].high))
    # Nothing else falls where an operand rises.
    return Interval(
        _rising(tree.name, [part.low for part in parts]),
        _rising(tree.name, [part.high for part in parts]),
    )


def surely_at_least(tree: Node, least: float) -> bool:
    """Whether a tree cannot fall below a number, for any rows within the contract.

    Unlike `interval` it does not rely on how fields of an engine agree with each other: what a
    guard against a division by 0 is left out for must hold on rows that no engine would show, too.
    """
    upper_unknown = {
        node.name: Interval(TERMS[node.name].low, math.inf)
        for node in tree.walk()
        if node.name in TERMS
    }
    return interval(tree, upper_unknown).low >= least


def _span(first: Interval, second: Interval, combine: Callable[[float, float], float]) -> Interval:
    corners = [
        combine(left, right)
        for left in (first.low, first.high)
        for right in (second.low, second.high)
    ]
    return Interval(min(corners), max(corners))


def _times(left: float, right: float) -> float:
    # An infinite end stands for numbers that are large but finite: 0 times them is 0.
    return 0.0 if left == 0.0 or right == 0.0 else left * right


def _over(left: float, right: float) -> float:
    if left == 0.0:
        return 0.0
    return math.copysign(0.0, left) if math.isinf(right) else left / right


def _rising(name: str, operands: list[float]) -> float:
    if name == "log1p" and math.isinf(operands[0]):
        return max(operands[0], 0.0)
    return apply(name, operands)

"""Algebra on one tree: each rule gives a smaller or plainer tree with the same value.

Two kinds of "the same" are told apart. *Exact* rules keep every bit. *Loose* ones keep the value
but for rounding, such as 2 * (3 * x) = 6 * x; they are not used on what an ``if`` compares, where
the last bit can decide between two branches.
"""

from collections.abc import Mapping
from typing import Any

from queuesmith.evolve.gp.intervals import Bounds, Interval, interval
from queuesmith.evolve.gp.program import LEAST_DIVISOR, MAX_CONSTANT, Node, apply, constant
from queuesmith.evolve.gp.terminals import TERMS

ZERO, ONE = constant(0.0), constant(1.0)

#: Comparisons that were made on the way to a node, with their outcome.
Facts = Mapping[tuple[Node, Node], bool]


def reduce_tree(tree: Node) -> Node:
    """Apply all rules to a tree and what is under it until none applies."""
    return _reduce(tree, {}, {}, loose=True)


def negated(tree: Node) -> Node:
    """Return minus a tree, without an operation more where that is possible."""
    if tree.is_constant:
        return constant(-tree.value)
    if tree.name == "sub":
        return Node("sub", tree.children[::-1])
    if tree.name == "mul" and tree.children[0].is_constant:
        factor, other = tree.children
        return other if factor.value == -1.0 else Node("mul", (negated(factor), other))
    if tree.name == "div" and tree.children[0].is_constant:
        return Node("div", (negated(tree.children[0]), tree.children[1]))
    return Node("mul", (constant(-1.0), tree))


def branch_bounds(tree: Node, bounds: Bounds) -> tuple[Bounds, Bounds]:
    """Return what is known of terms in the two branches of an ``if``."""
    first, second = tree.children[:2]
    one, two = interval(first, bounds), interval(second, bounds)
    above, below = dict(bounds), dict(bounds)
    if first.name in TERMS:
        above[first.name] = Interval(max(one.low, two.low), one.high)
        below[first.name] = Interval(one.low, min(one.high, two.high))
    if second.name in TERMS:
        above[second.name] = Interval(two.low, min(one.high, two.high))
        below[second.name] = Interval(max(one.low, two.low), two.high)
    return above, below


def _reduce(tree: Node, bounds: Bounds, facts: Facts, *, loose: bool) -> Node:
    if not tree.children:
        return tree
    if tree.name == "if":
        first, second = (_reduce(part, bounds, facts, loose=False) for part in tree.children[:2])
        tree = Node("if", (first, second, *tree.children[2:]))
        above, below = branch_bounds(tree, bounds)
        yes = {**facts, (first, second): True, (second, first): False}
        no = {**facts, (first, second): False}
        children: tuple[Node, ...] = (
            first,
            second,
            _reduce(tree.children[2], above, yes, loose=loose),
            _reduce(tree.children[3], below, no, loose=loose),
        )
    else:
        children = tuple(_reduce(part, bounds, facts, loose=loose) for part in tree.children)
    tree = Node(tree.name, children)
    result = _RULES[tree.name](tree, bounds, facts, loose)
    if result is tree or result == tree:
        return tree
    # A rule hands back less than it was given, or moves a constant or a sign up: this ends.
    return _reduce(result, bounds, facts, loose=loose)


def _fold(tree: Node) -> Node | None:
    if not all(child.is_constant for child in tree.children):
        return None
    value = apply(tree.name, [child.value for child in tree.children])
    return constant(value) if abs(value) <= MAX_CONSTANT else None


def _times(factor: float, tree: Node) -> Node | None:
    """Return ``factor * tree``, unless the constant would be too large to be kept."""
    return Node("mul", (constant(factor), tree)) if abs(factor) <= MAX_CONSTANT else None


def _split_factor(tree: Node) -> tuple[float, Node]:
    """Read a tree as a constant times a tree."""
    if tree.name == "mul" and tree.children[0].is_constant:
        return tree.children[0].value, tree.children[1]
    return 1.0, tree


def _split_offset(tree: Node) -> tuple[Node, float]:
    """Read a tree as a tree plus a constant."""
    if tree.name in ("add", "sub") and tree.children[1].is_constant:
        offset = tree.children[1].value
        return tree.children[0], offset if tree.name == "add" else -offset
    return tree, 0.0


def _add(tree: Node, bounds: Bounds, facts: Facts, loose: bool) -> Node:
    left, right = tree.children
    if folded := _fold(tree):
        return folded
    if left.is_constant or (not right.is_constant and _order(right) < _order(left)):
        return Node("add", (right, left))
    if right == ZERO:
        return left
    if right.is_constant and right.value < 0.0:
        return Node("sub", (left, negated(right)))
    if left == right:
        return Node("mul", (constant(2.0), left))
    for one, other in ((left, right), (right, left)):
        factor, rest = _split_factor(one)
        if factor < 0.0:
            positive = rest if factor == -1.0 else Node("mul", (constant(-factor), rest))
            return Node("sub", (other, positive))
        if loose and one.name == "sub" and one.children[1] == other:
            return one.children[0]
    if loose and (moved := _join_offsets(tree)):
        return moved
    return tree


def _sub(tree: Node, bounds: Bounds, facts: Facts, loose: bool) -> Node:
    left, right = tree.children
    if folded := _fold(tree):
        return folded
    if right == ZERO:
        return left
    if left == right:
        return ZERO
    if left == ZERO:
        return negated(right)
    if right.is_constant and right.value < 0.0:
        return Node("add", (left, negated(right)))
    factor, rest = _split_factor(right)
    if factor < 0.0:
        positive = rest if factor == -1.0 else Node("mul", (constant(-factor), rest))
        return Node("add", (left, positive))
    if loose:
        if left.name == "add" and right in left.children:
            return left.children[1] if left.children[0] == right else left.children[0]
        if left.name == "sub" and left.children[0] == right:
            return negated(left.children[1])
        if right.name == "sub" and right.children[0] == left:
            return right.children[1]
        if right.name == "add" and left in right.children:
            other = right.children[1] if right.children[0] == left else right.children[0]
            return negated(other)
        if moved := _join_offsets(tree):
            return moved
    return tree


def _join_offsets(tree: Node) -> Node | None:
    """Bring the constants of a sum together: (x + 1) - (y - 2) = (x - y) + 3."""
    (left, one), (right, two) = (_split_offset(child) for child in tree.children)
    if tree.children[0].is_constant or tree.children[1].is_constant:
        # The sum of a tree and a constant: only a constant inside that tree can join it.
        outer = tree.children[1] if tree.children[1].is_constant else tree.children[0]
        inner, offset = (left, one) if tree.children[1].is_constant else (right, two)
        if offset == 0.0:
            return None
        if tree.name == "add":
            total, rest = offset + outer.value, inner
        elif tree.children[1].is_constant:
            total, rest = offset - outer.value, inner
        else:
            total, rest = outer.value - offset, None
        if abs(total) > MAX_CONSTANT:
            return None
        if rest is None:
            return Node("sub", (constant(total), inner))
        return Node("add", (rest, constant(total)))
    total = one + two if tree.name == "add" else one - two
    if (one == 0.0 and two == 0.0) or abs(total) > MAX_CONSTANT:
        return None
    return Node("add", (Node(tree.name, (left, right)), constant(total)))


def _mul(tree: Node, bounds: Bounds, facts: Facts, loose: bool) -> Node:
    left, right = tree.children
    if folded := _fold(tree):
        return folded
    if right.is_constant or (not left.is_constant and _order(right) < _order(left)):
        return Node("mul", (right, left))
    if left == ZERO:
        return ZERO
    if left == ONE:
        return right
    (one, first), (two, second) = (_split_factor(child) for child in tree.children)
    if left.is_constant:
        if left.value == -1.0 and (plainer := negated(right)) != tree:
            return plainer
        joins = loose or abs(left.value) == 1.0 or abs(two) == 1.0
        if two != 1.0 and joins and (joined := _times(left.value * two, second)):
            return joined
        if loose and right.name == "div" and right.children[0].is_constant:
            numerator = left.value * right.children[0].value
            if abs(numerator) <= MAX_CONSTANT:
                return Node("div", (constant(numerator), right.children[1]))
    elif one * two != 1.0 and (loose or abs(one * two) == 1.0):
        if joined := _times(one * two, Node("mul", (first, second))):
            return joined
    elif one == two == -1.0:
        return Node("mul", (first, second))
    return tree


def _div(tree: Node, bounds: Bounds, facts: Facts, loose: bool) -> Node:
    left, right = tree.children
    if folded := _fold(tree):
        return folded
    if left == ZERO:
        return ZERO
    if right == ONE:
        return left
    if left == right and interval(right, bounds).low >= LEAST_DIVISOR:
        return ONE
    factor, rest = _split_factor(left)
    if factor == -1.0 or (factor != 1.0 and loose):
        return Node("mul", (constant(factor), Node("div", (rest, right))))
    if loose and right.is_constant and left.name == "div" and left.children[1].is_constant:
        divisors = left.children[1].value, right.value
        product = divisors[0] * divisors[1]
        if min(*divisors, product) >= LEAST_DIVISOR and product <= MAX_CONSTANT:
            return Node("div", (left.children[0], constant(product)))
    return tree


def _min_max(tree: Node, bounds: Bounds, facts: Facts, loose: bool) -> Node:
    left, right = tree.children
    if folded := _fold(tree):
        return folded
    if left.is_constant or (not right.is_constant and _order(right) < _order(left)):
        return Node(tree.name, (right, left))
    if left == right:
        return left
    one, two = interval(left, bounds), interval(right, bounds)
    smaller, larger = (left, right) if tree.name == "min" else (right, left)
    if one.high <= two.low:
        return smaller
    if two.high <= one.low:
        return larger
    opposite = "max" if tree.name == "min" else "min"
    for outer, inner in ((left, right), (right, left)):
        if inner.name == tree.name and outer in inner.children:
            return inner
        if inner.name == opposite and outer in inner.children:
            return outer
    if right.is_constant and left.name == tree.name and left.children[1].is_constant:
        limit = constant(apply(tree.name, [left.children[1].value, right.value]))
        return Node(tree.name, (left.children[0], limit))
    return tree


def _clip(tree: Node, bounds: Bounds, facts: Facts, loose: bool) -> Node:
    number, low, high = tree.children
    if folded := _fold(tree):
        return folded
    inside = interval(number, bounds)
    if low.value >= high.value or inside.low >= high.value:
        return high
    if inside.high <= low.value:
        return low
    if inside.low >= low.value:
        return number if inside.high <= high.value else Node("min", (number, high))
    if inside.high <= high.value:
        return Node("max", (number, low))
    return tree


def _log1p(tree: Node, bounds: Bounds, facts: Facts, loose: bool) -> Node:
    if folded := _fold(tree):
        return folded
    return ZERO if interval(tree.children[0], bounds).high <= 0.0 else tree


def _if(tree: Node, bounds: Bounds, facts: Facts, loose: bool) -> Node:
    first, second, above, below = tree.children
    if (known := facts.get((first, second))) is not None:
        return above if known else below
    one, two = interval(first, bounds), interval(second, bounds)
    if above == below or one.low > two.high:
        return above
    if first == second or one.high <= two.low:
        return below
    if (above, below) == (first, second):
        return Node("max", (first, second))
    if (above, below) == (second, first):
        return Node("min", (first, second))
    for left, right in ((first, second), (second, first)):
        if _split_factor(left)[0] == -1.0 and (
            right.is_constant or _split_factor(right)[0] == -1.0
        ):
            return Node("if", (negated(second), negated(first), above, below))
        if right == ZERO and left.name == "sub":  # x - y > 0 just where x > y, rounding included
            more, less = left.children if left is first else left.children[::-1]
            return Node("if", (more, less, above, below))
    return tree


_RULES = {
    "add": _add, "sub": _sub, "mul": _mul, "div": _div, "min": _min_max, "max": _min_max,
    "clip": _clip, "log1p": _log1p, "if": _if,
}  # fmt: skip


def _order(tree: Node) -> tuple[Any, ...]:
    """Return what operands of commutative operations are sorted by, terms before the rest."""
    return (len(tree.children) > 0, tree.name, tree.value, tuple(map(_order, tree.children)))

"""A program made smaller without a change of what it does.

It uses what is true of every queue: algebra, the ranges of terms, and that a key only serves to
order the requests of one step, so that what is the same for all of them can go.
"""

from queuesmith.evolve.gp.intervals import Bounds, interval
from queuesmith.evolve.gp.program import LEAST_DIVISOR, Node, Program
from queuesmith.evolve.gp.rewrite_rules import ZERO, branch_bounds, negated, reduce_tree
from queuesmith.evolve.gp.terminals import TERMS

#: Rounds of rules; two or three are usual, and a program that needs more is still right.
MAX_ROUNDS = 8


def simplify(program: Program) -> Program:
    """Return a program that orders every queue alike, with no more nodes.

    Where two keys differ by rounding alone, which of them comes first may change.

    Examples
    --------
    >>> genome = {"waiting_key": ["add", ["mul", 2, "relative_work"], "kv_use"]}
    >>> simplify(Program.from_json(genome)).to_json()
    {'waiting_key': 'relative_work'}
    """
    waiting_key = simplify_key(program.waiting_key)
    victim_key = simplify_key(program.victim_key) if program.victim_key else None
    if victim_key is not None and victim_key.is_constant:
        victim_key = None  # equal keys leave vLLM's own rule
    simpler = Program(waiting_key, victim_key)
    # A constant that was brought up may have made a tree deeper, seldom too deep.
    return simpler if simpler.fits or not program.fits else program


def simplify_key(tree: Node) -> Node:
    """Simplify one tree, of which only the order matters."""
    for _ in range(MAX_ROUNDS):
        shorter = _same_order(reduce_tree(tree), {})
        if shorter == tree:
            break
        tree = shorter
    return tree


def is_common(tree: Node) -> bool:
    """Whether a tree has the same value for all requests of a step."""
    return all(TERMS[node.name].is_common for node in tree.walk() if node.name in TERMS)


def _same_order(tree: Node, bounds: Bounds) -> Node:
    """Return a simpler tree that orders the requests of a step alike."""
    if is_common(tree):
        return ZERO
    match tree.name:
        case "add" | "sub":
            kept = _without_common(tree)
            return tree if kept == tree else _same_order(kept, bounds)
        case "mul" | "div":
            return _same_order_product(tree, bounds)
        case "log1p" if interval(tree.children[0], bounds).low >= 0.0:
            return _same_order(tree.children[0], bounds)
        case "if":
            return _same_order_branches(tree, bounds)
    return tree


def _without_common(tree: Node) -> Node:
    """Drop the summands that are the same for all requests."""
    if is_common(tree):
        return ZERO
    if tree.name not in ("add", "sub"):
        return tree
    left, right = map(_without_common, tree.children)
    if right == ZERO:
        return left
    if left == ZERO:
        return right if tree.name == "add" else negated(right)
    return Node(tree.name, (left, right))


def _same_order_product(tree: Node, bounds: Bounds) -> Node:
    """Drop the factors and divisors that are the same for all requests and keep their sign."""
    left, right = tree.children
    if tree.name == "div":
        if is_common(right):  # a divisor is always positive
            return _same_order(left, bounds)
        # A divisor that may be below its floor is not left out: it would need the floor.
        if is_common(left) and interval(right, bounds).low >= LEAST_DIVISOR:
            numerator = interval(left, bounds)
            if numerator.low > 0.0:
                return _negative_order(right, bounds)
            if numerator.high < 0.0:
                return _same_order(right, bounds)
        return tree
    factor, other = (left, right) if is_common(left) else (right, left)
    if is_common(factor):
        sign = interval(factor, bounds)
        if sign.low > 0.0:
            return _same_order(other, bounds)
        if sign.high < 0.0:
            return _negative_order(other, bounds)
    return tree


def _negative_order(tree: Node, bounds: Bounds) -> Node:
    """Return a simpler tree that orders the requests of a step the other way round."""
    if tree.name in ("add", "sub"):
        return negated(_without_common(tree))
    return negated(_same_order(tree, bounds))


def _same_order_branches(tree: Node, bounds: Bounds) -> Node:
    """Simplify the branches of an ``if`` where they need not keep their distance.

    They need not if all requests take the same branch, or if whoever takes the one comes before
    whoever takes the other all the same.
    """
    first, second, above, below = tree.children
    one, two = branch_bounds(tree, bounds)
    shorter = _same_order(above, one), _same_order(below, two)
    if is_common(first) and is_common(second):
        return Node("if", (first, second, *shorter))
    candidates = [shorter, (shorter[0], below), (above, shorter[1])]
    for pair in candidates:
        if pair != (above, below) and _keeps_apart((above, below), pair, one, two):
            return Node("if", (first, second, *pair))
    return tree


def _keeps_apart(
    old: tuple[Node, Node], new: tuple[Node, Node], above: Bounds, below: Bounds
) -> bool:
    was = interval(old[0], above), interval(old[1], below)
    now = interval(new[0], above), interval(new[1], below)
    if was[0].high < was[1].low:
        return now[0].high < now[1].low
    return was[1].high < was[0].low and now[1].high < now[0].low

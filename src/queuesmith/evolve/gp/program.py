"""A program: the keys of a policy as trees of terms, constants and a few operations.

Every operation gives a finite number for finite numbers, so that no policy written from a program
can raise: a division has a floor under its divisor, `log1p` one under its argument, and trees are
too small for their numbers to grow beyond what a float holds.
"""

import math
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from queuesmith.errors import PolicyError
from queuesmith.evolve.gp.terminals import HOOKS, TERMS

#: Nodes of a program, over both of its trees, and on the longest way down one of them.
MAX_NODES = 25
MAX_DEPTH = 6
#: The least divisor: ``a / b`` means ``a / max(b, LEAST_DIVISOR)``.
LEAST_DIVISOR = 1e-9
#: The largest constant, and how many digits of one are kept.
MAX_CONSTANT = 1e6
DIGITS = 3

CONSTANT = "constant"
#: Operations with their number of operands. ``clip`` takes a number and two constants, and
#: ``if`` gives its third operand where the first is greater than the second, else its fourth.
ARITY: Mapping[str, int] = {
    "add": 2, "sub": 2, "mul": 2, "div": 2, "min": 2, "max": 2, "clip": 3, "log1p": 1, "if": 4,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Node:
    """A tree: an operation on smaller trees, a term by name, or a constant."""

    name: str  # a key of ``ARITY`` or ``TERMS``, or ``CONSTANT``
    children: tuple["Node", ...] = ()
    value: float = 0.0  # of a constant; 0 otherwise

    @property
    def is_constant(self) -> bool:
        """Whether this is a constant."""
        return self.name == CONSTANT

    @property
    def size(self) -> int:
        """Number of nodes."""
        return 1 + sum([child.size for child in self.children])

    @property
    def depth(self) -> int:
        """Number of nodes on the longest way down."""
        return 1 + max([child.depth for child in self.children], default=0)

    def walk(self) -> Iterator["Node"]:
        """Yield every node, this one first, each before what is under it."""
        yield self
        for child in self.children:
            yield from child.walk()

    def replaced(self, place: int, other: "Node") -> "Node":
        """Return the tree with another one at a place, counted as `walk` does from 0."""
        if place == 0:
            return other
        children = list(self.children)
        place -= 1
        for index, child in enumerate(children):
            if place < child.size:
                children[index] = child.replaced(place, other)
                return replace(self, children=tuple(children))
            place -= child.size
        raise IndexError("the tree has no such place")


def constant(value: float) -> Node:
    """Return a constant; -0.0 is 0.0."""
    return Node(CONSTANT, value=float(value) + 0.0)


def rounded(value: float) -> float:
    """Round a constant to ``DIGITS`` significant digits, within what a constant may be."""
    value = min(max(value, -MAX_CONSTANT), MAX_CONSTANT)
    return float(f"{value:.{DIGITS}g}")


@dataclass(frozen=True, slots=True)
class Program:
    """What a program's policy does: whom it admits first, and whom it preempts first."""

    waiting_key: Node
    victim_key: Node | None = None  # vLLM's own rule without it

    @property
    def trees(self) -> dict[str, Node]:
        """The trees by hook."""
        found = {"waiting_key": self.waiting_key, "victim_key": self.victim_key}
        return {hook: tree for hook, tree in found.items() if tree is not None}

    @property
    def size(self) -> int:
        """Number of nodes of both trees."""
        return sum(tree.size for tree in self.trees.values())

    @property
    def depth(self) -> int:
        """Depth of the deeper tree."""
        return max(tree.depth for tree in self.trees.values())

    @property
    def fits(self) -> bool:
        """Whether it is small enough to be read."""
        return self.size <= MAX_NODES and self.depth <= MAX_DEPTH

    def with_tree(self, hook: str, tree: Node | None) -> "Program":
        """Return the program with another tree for a hook; None leaves `victim_key` out."""
        if hook == "victim_key":
            return Program(self.waiting_key, tree)
        return self if tree is None else Program(tree, self.victim_key)

    def to_json(self) -> dict[str, Any]:
        """Return the genome: nested lists, which JSON can hold.

        >>> Program(Node("mul", (constant(-1), Node("wait_share")))).to_json()
        {'waiting_key': ['mul', -1.0, 'wait_share']}
        """
        return {hook: _to_json(tree) for hook, tree in self.trees.items()}

    @classmethod
    def from_json(cls, genome: Any) -> "Program":
        """Read a genome that `to_json` has written."""
        if not isinstance(genome, Mapping) or "waiting_key" not in genome:
            raise PolicyError(f"a genome is an object with a waiting_key, got {_short(genome)}")
        if unknown := sorted(set(genome) - set(HOOKS)):
            raise PolicyError(f"a genome has the trees {', '.join(HOOKS)}, not {unknown[0]!r}")
        program = cls(**{hook: _from_json(hook, tree, 1) for hook, tree in genome.items()})
        if not program.fits:
            raise PolicyError(
                f"a genome of {program.size} nodes and depth {program.depth} is too large; at most "
                f"{MAX_NODES} and {MAX_DEPTH} are allowed"
            )
        return program


def evaluate(
    tree: Node, values: Mapping[str, NDArray[np.float64]], num_rows: int
) -> NDArray[np.float64]:
    """Compute a tree on many rows at once, to the bit as plain Python computes its text.

    Parameters
    ----------
    values : mapping of str to (num_rows,) float64
        Of `queuesmith.evolve.gp.terminals.term_values`.

    Returns
    -------
    (num_rows,) float64
    """
    return np.broadcast_to(np.asarray(_evaluate(tree, values), np.float64), (num_rows,))


def apply(name: str, operands: list[float]) -> float:
    """Compute one operation on constants."""
    return float(_apply(name, [np.float64(operand) for operand in operands]))


def _evaluate(tree: Node, values: Mapping[str, NDArray[np.float64]]) -> Any:
    if tree.is_constant:
        return np.float64(tree.value)
    if not tree.children:
        return values[tree.name]
    return _apply(tree.name, [_evaluate(child, values) for child in tree.children])


def _apply(name: str, operands: list[Any]) -> Any:
    return _FUNCTIONS[name](*operands)


def _log1p(numbers: Any) -> Any:
    # NumPy's own differs from the C library's in the last bit on some processors.
    if np.ndim(numbers) == 0:
        return np.float64(math.log1p(numbers))
    return np.array([math.log1p(number) for number in numbers.tolist()])


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": lambda one, other: one / np.maximum(other, LEAST_DIVISOR),
    "min": np.minimum,
    "max": np.maximum,
    "clip": lambda number, low, high: np.minimum(np.maximum(number, low), high),
    "log1p": lambda number: _log1p(np.maximum(number, 0.0)),
    "if": lambda one, other, above, below: np.where(one > other, above, below),
}


def _to_json(tree: Node) -> Any:
    if tree.is_constant:
        return tree.value
    if not tree.children:
        return tree.name
    return [tree.name, *(_to_json(child) for child in tree.children)]


def _from_json(hook: str, part: Any, depth: int) -> Node:
    if depth > MAX_DEPTH:
        raise PolicyError(f"a genome has at most depth {MAX_DEPTH}; this one is deeper")
    if isinstance(part, int | float) and not isinstance(part, bool):
        if not abs(part) <= MAX_CONSTANT:
            raise PolicyError(f"a constant of a genome is at most {MAX_CONSTANT:g} in size")
        return constant(part)
    if isinstance(part, str):
        if part not in TERMS or hook not in TERMS[part].hooks:
            raise PolicyError(f"a genome has no term {part!r:.40} in {hook}")
        return Node(part)
    if not isinstance(part, list | tuple) or not part or not isinstance(part[0], str):
        raise PolicyError(f"a genome is made of numbers, names and lists, not {_short(part)}")
    name, *operands = part
    if name not in ARITY:
        raise PolicyError(f"a genome has no operation {name!r:.40}; known: {', '.join(ARITY)}")
    if len(operands) != ARITY[name]:
        raise PolicyError(f"{name} takes {ARITY[name]} operand(s), not {len(operands)}")
    children = tuple(_from_json(hook, operand, depth + 1) for operand in operands)
    if name == "clip" and not (children[1].is_constant and children[2].is_constant):
        raise PolicyError("clip takes its limits as constants")
    return Node(name, children)


def _short(value: Any) -> str:
    return repr(value)[:60]

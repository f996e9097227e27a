"""New programs out of nothing, and out of others: every random choice comes from one generator."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from queuesmith.evolve.gp.program import ARITY, Node, Program, constant, rounded
from queuesmith.evolve.gp.simplify import simplify
from queuesmith.evolve.gp.terminals import HOOKS, usable_terms

#: Tries to make a child that is small enough, before its parent is handed back.
MAX_TRIES = 12
#: How often each operation is drawn.
_WEIGHTS = {
    "add": 3, "sub": 3, "mul": 3, "div": 3, "min": 1, "max": 1, "clip": 1, "log1p": 1, "if": 3,
}  # fmt: skip
_OPERATIONS = tuple(_WEIGHTS)
_SHARES = np.cumsum(list(_WEIGHTS.values())) / sum(_WEIGHTS.values())
_SAME_ARITY = {
    name: tuple(other for other in ("add", "sub", "mul", "div", "min", "max") if other != name)
    for name, arity in ARITY.items()
    if arity == 2
}

#: Programs every search starts from: the classics, in terms that mean the same at every load.
_CLASSICS: dict[str, dict[str, Any]] = {
    "fcfs": {"waiting_key": ["mul", -1, "wait_share"]},
    "sjf": {"waiting_key": "relative_work"},
    "aged_sjf": {"waiting_key": ["sub", ["mul", 0.3, "relative_work"], "backlogs_waited"]},
    "aged_sjf_by_time": {"waiting_key": ["sub", ["mul", 30, "work_share"], "backlogs_waited"]},
    "hrrn": {"waiting_key": ["mul", -1, "times_overtaken"]},
    "hrrn_by_wait": {"waiting_key": ["mul", -1, ["div", "usual_waits", "relative_work"]]},
    "residual_sjf":
        {"waiting_key": ["if", "backlogs_waited", 2, ["mul", -1, "wait_share"], "relative_work"]},
    "sjf_within_backlog":
        {"waiting_key": ["if", "backlogs_waited", 0.7, ["mul", -1, "wait_share"], "relative_work"]},
    "aged_sjf_by_service": {"waiting_key": ["sub", ["mul", 20, "work_share"], "backlogs_served"]},
    "log_aged_by_service":
        {"waiting_key": ["sub", ["mul", 0.4, ["log1p", ["mul", 20, "relative_prompt"]]],
                         "backlogs_served"]},
    "sjf_within_service":
        {"waiting_key": ["if", "backlogs_served", 0.8, ["mul", -1, "backlogs_served"],
                         "relative_work"]},
    "sjf_oldest_first":
        {"waiting_key": ["if", "wait_share", 0.9, ["mul", -1, "wait_share"], "relative_work"]},
    "sjf_small_victims": {"waiting_key": "relative_work", "victim_key": ["mul", -1, "relative_kv"]},
    "sjf_las_victims": {"waiting_key": "relative_work", "victim_key": "relative_kv"},
    "fcfs_short_first": {"waiting_key": ["mul", -1, "wait_share"], "victim_key": "steps_left"},
}  # fmt: skip
CLASSICS: Mapping[str, Program] = {
    name: Program.from_json(genome) for name, genome in _CLASSICS.items()
}


@dataclass(frozen=True)
class Space:
    """Which programs there are to be searched."""

    #: What the traffic tells besides what every engine knows: "deadlines", "predictions".
    knowledge: tuple[str, ...] = ()
    victims: bool = True  # whether programs may choose whom to preempt

    def terms(self, hook: str) -> tuple[str, ...]:
        """Return the names of the terms that a hook may read."""
        return tuple(term.name for term in usable_terms(hook, self.knowledge))


def settled(program: Program) -> Program:
    """Simplify a program and round its constants, until both leave it as it is."""
    for _ in range(4):
        program = simplify(program)
        trees = {hook: map_constants(tree, rounded) for hook, tree in program.trees.items()}
        if trees == program.trees:
            break
        program = Program(**trees)
    return program


def map_constants(tree: Node, change: Callable[[float], float]) -> Node:
    """Return a tree with every constant changed, the first in reading order first."""
    if tree.is_constant:
        return constant(change(tree.value))
    if not tree.children:
        return tree
    return replace(tree, children=tuple([map_constants(child, change) for child in tree.children]))


# From nothing


def random_program(space: Space, rng: np.random.Generator, depth: int, *, full: bool) -> Program:
    """Draw a program.

    Parameters
    ----------
    full : bool
        Whether every way down a tree has that depth, instead of ending anywhere.
    """
    for _ in range(MAX_TRIES):
        program = Program(random_tree(space, "waiting_key", rng, depth, full=full))
        if space.victims and rng.random() < 0.2:
            small = int(rng.integers(1, 4))
            program = program.with_tree(
                "victim_key", random_tree(space, "victim_key", rng, small, full=False)
            )
        if program.fits:
            return program
    return Program(random_tree(space, "waiting_key", rng, 2, full=full))


def ramped(space: Space, rng: np.random.Generator) -> Program:
    """Draw one program of a ramped half-and-half population: any depth, full or grown.

    References
    ----------
    Koza, "Genetic Programming" (1992), section 6.2.
    """
    return random_program(space, rng, int(rng.integers(2, 6)), full=bool(rng.random() < 0.5))


def random_tree(
    space: Space, hook: str, rng: np.random.Generator, depth: int, *, full: bool
) -> Node:
    """Draw a tree of at most a depth."""
    if depth <= 1 or (not full and rng.random() < 0.25):
        if depth > 1 or rng.random() < 0.8:
            return _random_term(space, hook, rng)
        return constant(random_constant(rng))
    name = _OPERATIONS[int(np.searchsorted(_SHARES, rng.random(), side="right"))]
    if name == "clip":
        low, high = sorted((random_constant(rng), random_constant(rng)))
        below = random_tree(space, hook, rng, depth - 1, full=full)
        return Node(name, (below, constant(low), constant(high)))
    return Node(
        name, tuple(random_tree(space, hook, rng, depth - 1, full=full) for _ in range(ARITY[name]))
    )


def random_constant(rng: np.random.Generator) -> float:
    """Draw a constant: around 1, over about two orders of magnitude, seldom negative."""
    value = math.exp(rng.normal(-0.3, 1.2))
    return rounded(-value if rng.random() < 0.15 else value)


def _random_term(space: Space, hook: str, rng: np.random.Generator) -> Node:
    names = space.terms(hook)
    return Node(names[int(rng.integers(len(names)))])


# From others


def crossover(mother: Program, father: Program, rng: np.random.Generator) -> Program:
    """Put a part of one program in the place of a part of another."""
    for _ in range(MAX_TRIES):
        hook = _pick_hook(mother, rng)
        if hook not in father.trees or (father.victim_key and rng.random() < 0.1):
            child = mother.with_tree("victim_key", father.victim_key)
        else:
            place, _, only_constant = _pick_place(mother.trees[hook], rng)
            parts = _places(father.trees[hook])
            if only_constant:
                parts = [part for part in parts if part[1].is_constant]
            if not parts:
                continue
            part = parts[int(rng.integers(len(parts)))][1]
            child = mother.with_tree(hook, mother.trees[hook].replaced(place, part))
        if child.fits and child != mother:
            return child
    return mother


def mutate_subtree(program: Program, space: Space, rng: np.random.Generator) -> Program:
    """Put a new tree in the place of a part."""
    for _ in range(MAX_TRIES):
        hook = _pick_hook(program, rng)
        place, _, only_constant = _pick_place(program.trees[hook], rng)
        part = constant(random_constant(rng))
        if not only_constant:
            part = random_tree(space, hook, rng, int(rng.integers(1, 4)), full=False)
        child = program.with_tree(hook, program.trees[hook].replaced(place, part))
        if child.fits:
            return child
    return program


def mutate_wrap(program: Program, space: Space, rng: np.random.Generator) -> Program:
    """Make a part the operand of a new operation: what a guard or a weight is added by."""
    for _ in range(MAX_TRIES):
        hook = _pick_hook(program, rng)
        tree = program.trees[hook]
        place, part, only_constant = _pick_place(tree, rng)
        if only_constant:
            continue
        if rng.random() < 0.3:  # a guard is mostly over all
            place, part = 0, tree
        around = random_tree(space, hook, rng, 2, full=True)
        if around.name == "if":
            slot = int(rng.integers(2, 4))
            children = list(around.children)
            if rng.random() < 0.5:
                children[1] = constant(random_constant(rng))
            around = replace(around, children=tuple(children))
        else:
            slot = 0 if around.name == "clip" else int(rng.integers(len(around.children)))
        children = [*around.children[:slot], part, *around.children[slot + 1 :]]
        child = program.with_tree(
            hook, tree.replaced(place, replace(around, children=tuple(children)))
        )
        if child.fits:
            return child
    return program


def mutate_point(program: Program, space: Space, rng: np.random.Generator) -> Program:
    """Change one node into another of its kind."""
    hook = _pick_hook(program, rng)
    tree = program.trees[hook]
    nodes = list(tree.walk())
    place = int(rng.integers(len(nodes)))
    node = nodes[place]
    if node.is_constant:
        new = constant(random_constant(rng))
    elif not node.children:
        new = _random_term(space, hook, rng)
    elif node.name in _SAME_ARITY:
        names = _SAME_ARITY[node.name]
        new = replace(node, name=names[int(rng.integers(len(names)))])
    elif node.name == "if":  # the two branches change places
        new = replace(node, children=(*node.children[:2], *node.children[:1:-1]))
    else:
        new = node.children[0]
    return program.with_tree(hook, tree.replaced(place, new))


def mutate_constants(
    program: Program, rng: np.random.Generator, *, scale: float = 0.4, chance: float = 0.7
) -> Program:
    """Multiply constants by random factors about 1; seldom turn one around."""

    def change(value: float) -> float:
        if rng.random() >= chance:
            return value
        sign = -1.0 if rng.random() < 0.03 else 1.0
        return rounded(sign * value * math.exp(scale * rng.normal()))

    trees = {hook: map_constants(tree, change) for hook, tree in program.trees.items()}
    return Program(**trees)


def hoist(program: Program, rng: np.random.Generator) -> Program:
    """Put a part of a tree in the place of the whole."""
    hook = _pick_hook(program, rng)
    parts = [node for node in program.trees[hook].walk() if not node.is_constant]
    part = parts[int(rng.integers(len(parts)))] if parts else program.trees[hook]
    return program.with_tree(hook, part)


def mutate_victims(program: Program, space: Space, rng: np.random.Generator) -> Program:
    """Give a program another choice of victims, or none."""
    if not space.victims or (program.victim_key is not None and rng.random() < 0.5):
        return program.with_tree("victim_key", None)
    for _ in range(MAX_TRIES):
        tree = random_tree(space, "victim_key", rng, int(rng.integers(1, 4)), full=False)
        child = program.with_tree("victim_key", tree)
        if child.fits:
            return child
    return program


def _pick_hook(program: Program, rng: np.random.Generator) -> str:
    """Draw one of a program's trees, a large one more often."""
    hooks = [hook for hook in HOOKS if hook in program.trees]
    sizes = np.cumsum([program.trees[hook].size for hook in hooks])
    return hooks[int(np.searchsorted(sizes, rng.random() * sizes[-1], side="right"))]


def _places(tree: Node, place: int = 0, fixed: bool = False) -> list[tuple[int, Node, bool]]:
    """Return every node with its place, and whether only a constant may stand there."""
    found = [(place, tree, fixed)]
    place += 1
    for index, child in enumerate(tree.children):
        found += _places(child, place, tree.name == "clip" and index > 0)
        place += child.size
    return found


def _pick_place(tree: Node, rng: np.random.Generator) -> tuple[int, Node, bool]:
    """Draw a node, an operation nine times of ten."""
    places = _places(tree)
    inner = [place for place in places if place[1].children]
    chosen = inner if inner and rng.random() < 0.9 else places
    return chosen[int(rng.integers(len(chosen)))]

"""Programs for tests: by hand from short lists, and drawn from a seed."""

import numpy as np
from hypothesis import strategies as st

from queuesmith.evolve.gp import variation
from queuesmith.evolve.gp.program import Node, Program, constant
from queuesmith.evolve.gp.variation import Space

EVERYTHING = Space(knowledge=("deadlines", "predictions"))


def tree(part) -> Node:
    """Build a tree from what a genome is made of, without any check."""
    if isinstance(part, int | float):
        return constant(part)
    if isinstance(part, str):
        return Node(part)
    return Node(part[0], tuple(tree(operand) for operand in part[1:]))


def waiting(part) -> Program:
    """Build a program with a `waiting_key` only."""
    return Program(tree(part))


def draw_program(seed: int, space: Space = EVERYTHING) -> Program:
    """Draw a program as a search would meet it: random, or bred from such over a few steps."""
    rng = np.random.default_rng(seed)
    program = variation.ramped(space, rng)
    for _ in range(int(rng.integers(0, 4))):
        program = vary(program, space, rng)
    return program


def vary(program: Program, space: Space, rng: np.random.Generator) -> Program:
    """Apply one operator."""
    operators = [
        lambda: variation.crossover(program, variation.ramped(space, rng), rng),
        lambda: variation.mutate_subtree(program, space, rng),
        lambda: variation.mutate_wrap(program, space, rng),
        lambda: variation.mutate_point(program, space, rng),
        lambda: variation.mutate_constants(program, rng),
        lambda: variation.hoist(program, rng),
        lambda: variation.mutate_victims(program, space, rng),
    ]
    return operators[int(rng.integers(len(operators)))]()


seeds = st.integers(min_value=0, max_value=2**40)
programs = seeds.map(draw_program)

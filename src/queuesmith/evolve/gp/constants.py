"""The constants of one program, tuned while its shape stays.

A shape with n constants is a function of n numbers, for which evolution strategies are better than
the mutation of trees. Nothing is kept between calls. What an evolution strategy would remember is
written down with every candidate, so that a search resumes from its archive alone.
"""

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from queuesmith.errors import ConfigError, PolicyError
from queuesmith.evolve.gp.program import Program, rounded
from queuesmith.evolve.gp.variation import map_constants

METHODS = ("gaussian", "cmaes")
#: Standard deviation of the first steps, in the logarithm of a constant.
FIRST_STEP = 0.3
#: Generations after which an evolution strategy begins anew.
MAX_GENERATIONS = 30
#: Least number of candidates of one generation of it.
_LEAST_POPULATION = 4
#: What the strategy is told of candidates that did not survive; it only looks at their order.
_WORST = 1e12

Memory = Mapping[str, Any]


class Scored(NamedTuple):
    """A program with its score, larger is better, and what was written down with it."""

    program: Program
    score: float
    memory: Memory | None = None


class Tuned(NamedTuple):
    """A program with other constants, and what to write down with it."""

    program: Program
    memory: Memory | None = None


def check_method(method: str) -> str:
    """Return the name of a method that can be used here."""
    if method not in METHODS:
        raise ConfigError(f"constants are tuned by {' or '.join(METHODS)}, not by {method!r:.40}")
    if method == "cmaes":
        _import_cmaes()
    return method


def shape(program: Program) -> Program:
    """Return a program with its tunable constants replaced by their sign times 2."""
    return _map_tunable(program, lambda value: math.copysign(2.0, value))


def tunable(program: Program) -> NDArray[np.float64]:
    """Return the logarithms of its tunable constants; 0, 1 and -1 belong to the shape."""
    found: list[float] = []

    def note(value: float) -> float:
        found.append(math.log(abs(value)))
        return value

    _map_tunable(program, note)
    return np.array(found, np.float64)


def with_constants(program: Program, logarithms: Sequence[float] | NDArray[np.float64]) -> Program:
    """Return a program with other tunable constants of the same signs."""
    left = list(map(float, logarithms))

    def change(value: float) -> float:
        size = math.exp(min(max(left.pop(0), -50.0), 50.0))
        return rounded(math.copysign(size, value))

    return _map_tunable(program, change)


def tune(
    program: Program, scored: Sequence[Scored], count: int, rng: np.random.Generator, method: str
) -> list[Tuned]:
    """Return up to `count` programs of one shape with new constants.

    Parameters
    ----------
    scored : sequence of Scored
        Who has survived. Those that were tuned before, and their scores, are what "cmaes" learns
        from; whom it does not find there was worse than those it does.
    method : str
        "gaussian": steps of one size about the best. "cmaes": CMA-ES, one generation for each
        call, begun anew when another shape is the best.

    References
    ----------
    Hansen, "The CMA Evolution Strategy: A Tutorial", arXiv:1604.00772 (2016).
    """
    mean = tunable(program)
    if not len(mean) or count < 1:
        return []
    if method == "cmaes" and len(mean) > 1:  # which the package cannot do in one dimension
        return _ask_cmaes(program, mean, scored, count, rng)
    steps = mean + FIRST_STEP * rng.normal(size=(count, len(mean)))
    return [Tuned(with_constants(program, step)) for step in steps]


def _ask_cmaes(
    program: Program,
    mean: NDArray[np.float64],
    scored: Sequence[Scored],
    count: int,
    rng: np.random.Generator,
) -> list[Tuned]:
    """Replay the strategy as far as it was told, tell it of the last generation, ask for one."""
    own = shape(program)
    siblings = [item for item in scored if item.memory and shape(item.program) == own]
    start: dict[str, Any] = {
        "seed": int(rng.integers(2**31)),
        "mean": mean.tolist(),
        "population": max(count, _LEAST_POPULATION),
    }
    told: list[dict[str, float]] = []
    try:
        if siblings:
            latest = max(siblings, key=lambda item: (len(_memory(item)["told"]), item.score))
            memory = _memory(latest)
            last = {
                str(_memory(item)["index"]): item.score
                for item in siblings
                if {**_memory(item), "index": memory["index"]} == memory
            }
            if len(memory["told"]) < MAX_GENERATIONS:
                start = {name: memory[name] for name in start}
                told = [*memory["told"], last]
        optimizer = _replayed(start, told)
    except (KeyError, TypeError, ValueError, AssertionError) as error:
        raise PolicyError(f"what was written down of tuned constants is damaged: {error}") from None
    steps = [optimizer.ask() for _ in range(start["population"])]
    return [
        Tuned(with_constants(program, step), {**start, "told": told, "index": index})
        for index, step in enumerate(steps[:count])
    ]


def _memory(item: Scored) -> dict[str, Any]:
    return dict(item.memory or {})


def _replayed(start: Memory, told: Sequence[Mapping[str, float]]) -> Any:
    """Return the optimizer as it was after it had been told of some generations.

    Parameters
    ----------
    told : sequence of mapping of str to float
        For each generation the scores of those that survived, by their place in it.
    """
    optimizer = _import_cmaes().CMA(
        mean=np.array(start["mean"], np.float64),
        sigma=FIRST_STEP,
        seed=start["seed"],
        population_size=start["population"],
    )
    for survivors in told:
        asked = [optimizer.ask() for _ in range(start["population"])]
        optimizer.tell(
            [
                (step, -survivors[str(index)] if str(index) in survivors else _WORST)
                for index, step in enumerate(asked)
            ]
        )
    return optimizer


def _import_cmaes() -> Any:
    try:
        return importlib.import_module("cmaes")
    except ImportError:
        raise ConfigError(
            "constants = 'cmaes' needs the package cmaes; run pip install 'queuesmith[evolve]', "
            "or write constants = 'gaussian'"
        ) from None


def _map_tunable(program: Program, change: Callable[[float], float]) -> Program:
    def guarded(value: float) -> float:
        return value if value in (0.0, 1.0, -1.0) else change(value)

    trees = {hook: map_constants(tree, guarded) for hook, tree in program.trees.items()}
    return Program(**trees)

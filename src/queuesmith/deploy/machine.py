"""Whether the machine was equally fast for both arms of a measurement."""

import math
from collections.abc import Mapping, Sequence

from queuesmith.deploy.ab import STOCK
from queuesmith.deploy.arms import Run


def machine_ratio(ours: Sequence[Run], stock: Sequence[Run]) -> float:
    """Return how much slower the machine was for the policy; NaN where nobody knows.

    Where what every step computed is known, as seconds over what the step-time model expects: a
    policy may well make batches of another size. Otherwise as ms per step.
    """
    by_work = adjusted([*ours, *stock])

    def slowness(of: Sequence[Run]) -> float:
        seconds = sum(run.step_seconds for run in of)
        return quotient(
            seconds, sum(run.expected_seconds if by_work else run.num_steps for run in of)
        )

    return quotient(slowness(ours), slowness(stock))


def uneven_pairs(
    runs: Mapping[tuple[int, int, str], Run], policy: str, margin: float
) -> set[tuple[int, int]]:
    """Return the cells and repeats whose two runs did not see the same machine."""
    found = set()
    for (cell, repeat, arm), run in runs.items():
        stock = runs.get((cell, repeat, STOCK))
        if arm == policy and stock is not None:
            ratio = machine_ratio([run], [stock])
            if math.isfinite(ratio) and not within(ratio, margin):
                found.add((cell, repeat))
    return found


def within(ratio: float, margin: float) -> bool:
    """Tell whether a ratio is as good as 1."""
    return 1 / (1 + margin) <= ratio <= 1 + margin


def adjusted(of: Sequence[Run]) -> bool:
    """Tell whether it is known of all runs what their steps should have taken."""
    return all(math.isfinite(run.expected_seconds) for run in of if run.num_steps)


def quotient(value: float, base: float) -> float:
    """Return a quotient, NaN by nothing."""
    return value / base if base > 0 else math.nan

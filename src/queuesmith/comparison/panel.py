"""The policies of a comparison: the usual ones, the reference, and grids of a parameter."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from os import PathLike

import numpy as np
import pyarrow as pa

from queuesmith.errors import ConfigError
from queuesmith.evaluation.evaluate import Evaluation
from queuesmith.evaluation.goals import Goal, Guard
from queuesmith.evaluation.judge import REFERENCE
from queuesmith.evaluation.tuned import Grid, Tuned, parse_grid, tune
from queuesmith.policies import Policy, get_policy

#: What is compared when nothing else is said: one policy of each idea that can be deployed. What
#: depends on an absolute number is taken with several, of which one is chosen on other windows.
DEFAULT_POLICIES = (
    "fcfs",
    "sjf",
    "aged_sjf(SECONDS_PER_TOKEN=0.0003|0.001|0.003|0.01)",
    "sjf_aging",
    "sjf_multiplicative_aging(AGING_FACTOR=0.03|0.1|0.3|1.0)",
    "residual_sjf",
    "spjf",
    "srpt",
    "hrrn",
    "preflow",
    "las",
    "edf",
    "fit_first",
)


def split_grids(
    policies: Iterable[str | PathLike[str] | Policy],
) -> tuple[list[Policy], list[Grid]]:
    """Tell single policies from grids of a parameter; a grid of a policy that is there joins in."""
    singles, grids = [], []
    for policy in policies:
        grid = parse_grid(policy) if isinstance(policy, str) else None
        if grid is None:
            singles.append(get_policy(policy))
        else:
            grids.append(grid)
    return singles, grids


def with_tuned(
    evaluation: Evaluation,
    chosen: Sequence[Policy],
    grids: Sequence[Grid],
    loads: Sequence[str],
    goal: Goal,
    guards: Sequence[Guard],
) -> tuple[Evaluation, list[Tuned]]:
    """Replace the members of each grid by the one that is chosen, judged on other windows."""
    samples = {
        key: value
        for key, value in evaluation.samples.items()
        if key[0] in {policy.name for policy in chosen}
    }
    names = evaluation.cells["policy"].to_numpy(zero_copy_only=False)
    windows = evaluation.cells["window"].to_numpy()
    kept = [np.flatnonzero(np.isin(names, [policy.name for policy in chosen]))]
    labels = [names[kept[0]]]
    tuned = []
    for grid in grids:
        one = tune(grid, loads, evaluation.samples, goal, guards)
        if any(one.policy.name == policy.name for policy in chosen):
            raise ConfigError(
                f"{one.policy.name} is given by itself and within a grid; leave out one of them"
            )
        order = np.unique(windows)
        by_window = dict(zip(order.tolist(), one.chosen, strict=True))
        mine = np.flatnonzero(
            [by_window[window] == name for window, name in zip(windows, names, strict=True)]
        )
        kept.append(mine)
        labels.append(np.full(len(mine), one.policy.name, object))
        samples |= {(one.policy.name, load): each for load, each in one.samples.items()}
        tuned.append(one)
    cells = evaluation.cells.take(np.concatenate(kept))
    cells = cells.set_column(0, "policy", pa.array(np.concatenate(labels).tolist()))
    return replace(evaluation, cells=cells, samples=samples), tuned


def describe_choice(grid: Grid, tuned: Tuned) -> str:
    """Say how a value was chosen, and how sure the choice is."""
    values = ", ".join(member.name.partition("=")[2].rstrip(")") for member in grid.members)
    return (
        f"{grid.parameter} chosen from {values} by the other windows ({tuned.agreement:.0%} of "
        "windows chose this value)"
    )


def with_reference(policies: list[Policy]) -> list[Policy]:
    """Put FCFS first; a name given twice, or FCFS's own for something else, is a mistake."""
    names = [policy.name for policy in policies]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(
                f"policy {name!r} is given twice; rename one file or leave one out, since results "
                "are told apart by name"
            )
    reference = get_policy(REFERENCE)
    if REFERENCE not in names:
        return [reference, *policies]
    if policies[names.index(REFERENCE)] != reference:
        raise ConfigError(
            f"a file named {REFERENCE}.py would stand in for {REFERENCE}, the reference of every "
            "comparison; rename it"
        )
    return policies

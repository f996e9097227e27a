"""A policy whose parameters are chosen from a small grid, judged so that choosing does not flatter.

Each window is served with the values that were best on all *other* windows (leave-one-out
cross-validation), so no window takes part in the choice it is judged by.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from queuesmith.errors import PolicyError
from queuesmith.evaluation.goals import Goal, Guard
from queuesmith.evaluation.judge import REFERENCE
from queuesmith.evaluation.samples import Ints, Samples
from queuesmith.evaluation.score import gain_and_excess, search_score
from queuesmith.policies import Policy, get_policy

_CHOICE = re.compile(r"(\w+)\s*=\s*([^,()]*\|[^,()]*)")


@dataclass(frozen=True)
class Grid:
    """A policy with several values for one parameter.

    Attributes
    ----------
    name : str
        Of the policy.
    parameter : str
    members : tuple of Policy
    """

    name: str
    parameter: str
    members: tuple[Policy, ...]


def parse_grid(spec: str) -> Grid | None:
    """Read ``aged_sjf(SECONDS_PER_TOKEN=0.001|0.01)``; None for what is a single policy.

    Raises
    ------
    PolicyError
        If a value cannot be read, or two parameters have several values.
    """
    choices = _CHOICE.findall(spec)
    if not choices:
        return None
    if len(choices) > 1:
        raise PolicyError(
            f"{spec!r} gives several values to {len(choices)} parameters; one at a time can be "
            "chosen from a grid"
        )
    parameter, values = choices[0]
    members = []
    for value in values.split("|"):
        members.append(get_policy(spec.replace(values, value.strip())))
    if len({member.name for member in members}) < len(members):
        raise PolicyError(f"{spec!r} gives a value twice")
    return Grid(spec.partition("(")[0].strip(), parameter, tuple(members))


@dataclass(frozen=True, eq=False)
class Tuned:
    """What came of a grid.

    Attributes
    ----------
    policy : Policy
        With the value that is best on all windows: the one to run.
    samples : mapping of str to Samples
        By load; each window with the value that was chosen on the others.
    chosen : tuple of str
        For each window, in ascending order, the policy that was chosen on the others.
    """

    policy: Policy
    samples: Mapping[str, Samples]
    chosen: tuple[str, ...]

    @property
    def agreement(self) -> float:
        """Return the share of windows for which the value to run was chosen."""
        return Counter(self.chosen)[self.policy.name] / len(self.chosen)


def tune(
    grid: Grid,
    loads: Sequence[str],
    samples: Mapping[tuple[str, str], Samples],
    goal: Goal,
    guards: Sequence[Guard],
) -> Tuned:
    """Choose a grid's value by goal and guards over all loads; see :func:`search_score`."""
    num_windows = len(samples[REFERENCE, loads[0]].windows)
    every = np.ones((1, num_windows), np.int64)
    others = 1 - np.eye(num_windows, dtype=np.int64)
    weights = np.vstack([every, others]) if num_windows > 1 else np.vstack([every, every])
    scores = []
    for member in grid.members:
        parts = [
            gain_and_excess(
                samples[member.name, load], samples[REFERENCE, load], goal, guards, weights
            )
            for load in loads
        ]
        gain = np.mean([part[0] for part in parts], axis=0)
        scores.append(search_score(gain, np.max([part[1] for part in parts], axis=0)))
    best = np.nan_to_num(np.array(scores), nan=-np.inf).argmax(axis=0)
    chosen = best[1:]
    mixed = {
        load: mix([samples[member.name, load] for member in grid.members], chosen) for load in loads
    }
    return Tuned(grid.members[best[0]], mixed, tuple(grid.members[place].name for place in chosen))


def mix(members: Sequence[Samples], chosen: Ints) -> Samples:
    """Take each window from one of several runs of the same requests.

    Parameters
    ----------
    members : sequence of Samples
    chosen : (num_windows,) int64
        Which of them, for each window in ascending order.
    """
    first = members[0]
    by_request = chosen[first.unit]
    columns = {}
    for field in fields(Samples):
        values = [getattr(member, field.name) for member in members]
        if field.name != "totals" and values[0] is not None:
            columns[field.name] = np.array(values)[by_request, np.arange(len(by_request))]
    totals = None
    if first.totals is not None:
        rows = np.arange(len(chosen))
        totals = replace(
            first.totals,
            **{
                field.name: np.array([getattr(each.totals, field.name) for each in members])[
                    chosen, rows
                ]
                for field in fields(first.totals)
            },
        )
    return Samples(**columns, totals=totals)

"""Which known policy is most like another one: by the order of pairs, and by what requests wait."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from queuesmith.errors import PolicyError
from queuesmith.evolve.gates.measurements import Measured
from queuesmith.evolve.gp.behaviour import Rows, ask, fixed_queues
from queuesmith.policies import Policy


def rank_by_agreement(candidate: Policy, others: Sequence[Policy]) -> list[dict[str, Any]]:
    """Rank policies by how often they order two waiting requests as the candidate does.

    Returns
    -------
    list of dict
        ``policy`` and ``agreement``, the largest first: the share of all pairs of requests that
        wait in the same of the fixed queues. Chance alone is one half. Equal keys are ordered by
        arrival, as an engine does. A policy that cannot be asked has an agreement of -1.

    Examples
    --------
    >>> from queuesmith.policies import get_policy
    >>> rows = rank_by_agreement(get_policy("sjf"), [get_policy("fcfs"), get_policy("sjf")])
    >>> rows[0]
    {'policy': 'sjf', 'agreement': 1.0}
    """
    rows = fixed_queues().waiting
    pairs = _pairs(rows)
    mine = _first(candidate, rows, pairs)
    found = []
    for place, other in enumerate(others):
        try:
            agreement = float(np.mean(_first(other, rows, pairs) == mine))
        except PolicyError:
            agreement = -1.0
        found.append((-agreement, place, {"policy": other.name, "agreement": agreement}))
    return [row for *_, row in sorted(found, key=lambda one: one[:2])]


def rank_by_times(
    mine: Measured, others: Sequence[Measured], fcfs: Measured
) -> list[dict[str, Any]]:
    """Rank policies by how little the TTFT of the same requests differs.

    Returns
    -------
    list of dict
        ``policy`` and ``difference``, the smallest first: the mean over configurations of the mean
        absolute difference of a request's TTFT, in units of FCFS's mean TTFT.
    """
    found = []
    for place, other in enumerate(others):
        apart = [
            float(np.abs(sample.ttft - other.samples[key].ttft).mean())
            / max(float(fcfs.samples[key].ttft.mean()), 1e-9)
            for key, sample in mine.samples.items()
        ]
        row = {"policy": other.policy.name, "difference": float(np.mean(apart))}
        found.append((row["difference"], place, row))
    return [row for *_, row in sorted(found, key=lambda one: one[:2])]


def _pairs(rows: Rows) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return all pairs of rows in the same queue, the earlier arrival first."""
    first, second = np.triu_indices(len(rows.queue), k=1)
    together = rows.queue[first] == rows.queue[second]
    return first[together], second[together]


def _first(
    policy: Policy, rows: Rows, pairs: tuple[NDArray[np.int64], NDArray[np.int64]]
) -> NDArray[np.bool_]:
    """Tell of each pair whether the earlier arrival is admitted first."""
    keys = np.zeros(len(rows.queue))  # without a hook, the engine's own order
    if "waiting_key" in policy.hooks:
        keys = ask(policy, "waiting_key", rows)
    known = np.where(np.isnan(keys), np.inf, keys)
    earlier: NDArray[np.bool_] = known[pairs[0]] <= known[pairs[1]]
    return earlier

"""One ranking from several sources."""

import numpy as np

from queuesmith.stats.draws import Floats
from queuesmith.study.conditions import Conditions
from queuesmith.study.grid import SHARES, better


def pool(conditions: Conditions, means: Floats, metric: int) -> Floats:
    """Pool oriented means, (sources, ..., policies), into one score per policy, small is good.

    Of metrics between 0 and 1, and by `Options.plain_pooling`, the mean over sources. Of the rest
    the geometric mean of each policy's ratio to the reference, so that a source with long queues
    does not outvote the others; NaN where a source has no ratio.
    """
    grid, options = conditions.grid, conditions.options
    name = grid.metrics[metric]
    if options.plain_pooling or name in SHARES or options.reference not in grid.policies:
        return np.asarray(means.mean(axis=0))
    base = means[..., [grid.policies.index(options.reference)]]
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(means / base)
    ratio = np.exp(np.where(np.isfinite(logs), logs, np.nan).mean(axis=0))
    return np.asarray(-ratio if better(name) == "higher" else ratio)

"""The values of single windows that LSSP published, and its windows that are at hand."""

from queuesmith.study.inputs import Source
from queuesmith.study.lssp_windows import NUM_WINDOWS, RECIPES, read_slot_inputs
from queuesmith.study.published import _WINDOW_LEN, _table, short_name


def published_anwg(window, region):
    """Return the published ANWG of each primary policy; w10 to w39 come first, then w00 to w09."""
    place = (int(window.rpartition("w")[2]) + 30) % 40
    policies = _table()["anwg"][short_name(window)][region]
    return {name: counts[place] / _WINDOW_LEN for name, counts in policies.items()}


def lssp_windows(folder=None):
    """Return LSSP's windows: 40 of each source whose trace is at hand, else the ten published."""
    sources = [
        Source(name, (recipe.trace, f"{name}.csv"), "", NUM_WINDOWS)
        for name, recipe in RECIPES.items()
    ]
    return [window for inputs in read_slot_inputs(sources, folder) for window in inputs.windows]

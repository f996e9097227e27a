"""A toy run brought to its end, to be told about: at two loads, so that something differs."""

import pytest

from queuesmith.evolve import run

from .toy import evaluator, toy_config, use_toys

#: Few classics keep a test short.
CLASSICS = ("sjf", "aged_sjf(SECONDS_PER_TOKEN=0.001)", "hrrn")
TWO_LOADS = ('loads = ["heavy"]', 'loads = ["knee", "heavy"]')


def finished_run(folder, *changes):
    """Run a toy to its end in a new folder; return the folder."""
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        use_toys(patch)
        run.begin(toy_config(TWO_LOADS, *changes), folder)
        run.go_on(folder, make_evaluator=evaluator())
    return folder

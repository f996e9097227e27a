"""Which code decides that a stored part of a study is out of date."""

from pathlib import Path

import pytest

from queuesmith.study import parts


@pytest.mark.parametrize("pattern", [*parts._COMMON, *parts._OURS, *parts._SLOTS])
def test_every_pattern_names_code_that_is_there(pattern):
    root = Path(parts.__file__).parents[1]

    assert [file for file in root.glob(pattern) if file.suffix == ".py"]


def test_the_compiled_loop_and_the_windows_decide():
    root = Path(parts.__file__).parents[1]
    named = {
        file.relative_to(root).as_posix() for pattern in parts._OURS for file in root.glob(pattern)
    }

    assert {
        "engine/kernel/loop.py",
        "engine/presets/step_times.toml",
        "evaluation/evaluate.py",
        "windows.py",
    } <= named

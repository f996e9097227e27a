"""Toy runs for every test of evolve."""

import pytest

from queuesmith.evolve import run

from .toy import toy_config, use_toys


@pytest.fixture
def begin(tmp_path, monkeypatch):
    """Begin a toy run in a folder of a name."""
    use_toys(monkeypatch)

    def begin(name, *changes):
        folder = tmp_path / name
        folder.mkdir()
        run.begin(toy_config(*changes), folder)
        return folder

    return begin

"""Some thousand spoiled files and commands, always the same ones; `benchmarks/fuzz.py` draws more.

Whatever is read, a user gets an answer that makes sense or one line that says what is wrong.
"""

from random import Random

import pytest

from . import command_line
from .targets import TARGETS, fuzz, read

VERBS = {" ".join(path): (path, app) for path, app in command_line.verbs()}
NUM_FILES, NUM_COMMANDS = 60, 10


@pytest.mark.parametrize("name", TARGETS)
def test_a_spoiled_file_is_read_or_refused(tmp_path, name):
    target = TARGETS[name]
    kinds = []
    for number in range(NUM_FILES):
        data, outcome = fuzz(target, Random(f"{name} {number}"), tmp_path / "x")
        assert outcome.kind != "fault", (number, outcome, data[:2_000])
        kinds.append(outcome.kind)

    assert "refused" in kinds or name == "option"


@pytest.mark.parametrize("name", TARGETS)
def test_a_file_that_was_not_spoiled_is_read(tmp_path, name):
    for sample in TARGETS[name].samples:
        outcome = read(TARGETS[name], sample, Random(0), tmp_path / "x")
        assert outcome.kind == "accepted", outcome


@pytest.fixture(scope="module")
def furnished(tmp_path_factory):
    """Be in a folder with files of every kind."""
    folder = tmp_path_factory.mktemp("fuzz") / "x"
    command_line.furnish(folder)
    with command_line.inside(folder):
        yield folder


@pytest.mark.parametrize("name", VERBS)
def test_a_command_with_something_wrong_in_it_ends_well(furnished, name):
    path, app = VERBS[name]
    for number in range(NUM_COMMANDS):
        words, outcome = command_line.fuzz(path, app, Random(f"{name} {number}"))
        assert outcome.kind != "fault", (number, outcome, words)


def test_every_verb_is_called(furnished):
    assert {path for path, _ in VERBS.values()} == set(command_line.USUAL)
    for words in (["policies", "sjf"], ["simulate", "log.csv", "--json"]):
        assert command_line.call(words)

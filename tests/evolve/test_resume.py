"""Stopped anywhere, in any way, a run goes on to the end it would have had."""

import json
import os
import random
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from queuesmith.errors import ConfigError
from queuesmith.evolve import run
from queuesmith.evolve.archive.archive import Archive
from queuesmith.evolve.scoring.traffic import WINDOWS_FILE

from .toy import Aged, evaluator, read, toy_config, use_toys

TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Return what the archive of a run holds that nobody has stopped, and what it came to."""
    folder = tmp_path_factory.mktemp("undisturbed")
    with pytest.MonkeyPatch.context() as monkeypatch:
        use_toys(monkeypatch)
        run.begin(toy_config(), folder)
        document = run.go_on(folder, make_evaluator=evaluator())
    return read(folder), document


def without_times(document):
    return {
        key: value for key, value in document.items() if key not in ("spent", "folder", "windows")
    }


def test_twenty_kills_lose_nothing_and_change_nothing(begin, undisturbed):
    folder = begin("killed")
    done = subprocess.run(
        [sys.executable, "-m", "evolve.kill", str(folder), "22"],
        cwd=TESTS,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])},
        capture_output=True,
        text=True,
        timeout=300,
    )
    report = json.loads(done.stdout)

    assert report["killed"] >= 20, done.stderr
    assert report["lost"] == []
    document = run.go_on(folder, make_evaluator=evaluator())
    assert read(folder) == undisturbed[0]
    assert without_times(document) == without_times(undisturbed[1])


class Stopped(BaseException):
    """Stands for whatever ends a process, at a moment that the test chooses."""


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_a_run_may_be_stopped_around_any_transaction(begin, undisturbed, monkeypatch, before):
    """Again and again, each time some transactions after the last time."""
    folder = begin("stopped")
    write = Archive.write
    delays = random.Random(1)
    left = 0

    @contextmanager
    def counted(archive):
        nonlocal left
        left -= 1
        if before and left < 0:
            raise Stopped
        with write(archive) as writer:
            yield writer
        if left < 0:
            raise Stopped

    monkeypatch.setattr(Archive, "write", counted)
    num_stops = 0
    document = None
    while document is None:
        left = delays.randint(1, 6)
        try:
            document = run.go_on(folder, make_evaluator=evaluator())
        except Stopped:
            num_stops += 1

    assert num_stops >= 20
    assert read(folder) == undisturbed[0]
    assert without_times(document) == without_times(undisturbed[1])


def test_going_on_with_a_finished_run_changes_nothing(begin):
    folder = begin("finished")
    first = run.go_on(folder, make_evaluator=evaluator())
    before = read(folder)
    seen = []
    again = run.go_on(folder, make_evaluator=evaluator(seen=seen))

    assert read(folder) == before
    assert without_times(again) == without_times(first)
    assert seen[0].num_runs == 0


def test_answers_that_were_paid_for_are_not_asked_for_again(begin, monkeypatch):
    """A proposer that costs money is stopped in the middle of a generation."""
    asked = []

    class Paid:
        name = "paid"
        left = None

        def propose(self, parents, count, rng):
            asked.append((count, dict(self.left)))
            (found,) = Aged(self.name).propose(parents, count, rng)
            return [replace(found, meta={**found.meta, "usage": {"llm_calls": 1}})]

    monkeypatch.setattr(run, "make_proposer", lambda share: Paid())
    folder = begin("paid", ("[search]", "[budget]\nllm_calls = 1_000\n\n[search]"))
    made = evaluator()

    def failing(config, traffic, scale, workers, stack):
        inner = made(config, traffic, scale, workers, stack)

        class Failing:
            def evaluate(self, texts, windows, limits):
                for place, outcome in enumerate(inner.evaluate(texts, windows, limits)):
                    if place == 2:
                        raise Stopped
                    yield outcome

        return Failing()

    with pytest.raises(Stopped):
        run.go_on(folder, make_evaluator=failing)
    first = len(asked)
    document = run.go_on(folder, make_evaluator=evaluator())

    assert first == 6  # one generation, one by one
    assert len(asked) == 6 * 3  # none is asked for twice
    assert asked == [(1, {"llm_calls": 1_000 - place}) for place in range(18)]
    assert document["spent"]["llm_calls"] == 18


def test_other_windows_than_those_it_began_with_are_refused(begin):
    folder = begin("changed")
    path = folder / WINDOWS_FILE
    path.write_text(path.read_text() + "# harmless\n")

    with pytest.raises(ConfigError, match="not the one that the run began with"):
        run.go_on(folder, make_evaluator=evaluator())


def test_a_run_is_not_begun_over_another(begin, tmp_path):
    folder = begin("there")

    with pytest.raises(ConfigError, match="holds a run already; go on with `queuesmith evolve"):
        run.begin(toy_config(), folder)

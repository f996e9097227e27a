"""Nothing of a corpus of hostile texts runs, takes this process down, or leaves anything behind."""

import os
import time
from collections import defaultdict
from contextlib import suppress

import pytest

from queuesmith.errors import CandidateError
from queuesmith.evolve.sandbox.allow_list import check_form
from queuesmith.evolve.sandbox.containment import ANSWERED
from queuesmith.evolve.sandbox.sandbox import Sandbox

from .hostile.cells import small_job
from .hostile.corpus import corpus
from .hostile.watch import MARK, processes_with, run_raw, state_of, watched_folder
from .processes import children_of

CORPUS = corpus()
FILTER = "system call filter"


@pytest.fixture
def watched():
    with watched_folder() as folder:
        yield folder


def placed(text, folder):
    return text.replace("FOLDER", str(folder))


def test_the_corpus_is_large_and_says_what_stops_each_text():
    families = {hostile.family for hostile in CORPUS}

    assert len({hostile.text for hostile in CORPUS}) >= 300
    assert len(families) >= 20
    assert all(hostile.stopped_by for hostile in CORPUS)


def test_every_text_ends_as_its_family_says_and_leaves_nothing(watched):
    before, children = state_of(watched), children_of(os.getpid(), even_over=True)
    texts = [placed(hostile.text, watched) for hostile in CORPUS]
    with Sandbox(small_job(), workers=2, cpu_seconds=1, memory_mib=256) as sandbox:
        outcomes = list(sandbox.run(texts))

    wrong = [
        f"{hostile}: {outcome.status} ({outcome.reason}): {hostile.text[:300]!r}"
        for hostile, outcome in zip(CORPUS, outcomes, strict=True)
        if outcome.status not in hostile.stopped_by
    ]
    assert not wrong
    for outcome in outcomes:
        assert (outcome.reason == "") == (outcome.status == "ok")
        assert "\n" not in outcome.reason
    assert state_of(watched) == before
    assert children_of(os.getpid(), even_over=True) == children


def test_the_form_check_of_every_text_is_over_at_once():
    slowest = defaultdict(float)
    for hostile in CORPUS:
        start = time.process_time()
        with suppress(CandidateError):
            check_form(hostile.text)
        slowest[hostile.family] = max(slowest[hostile.family], time.process_time() - start)

    assert max(slowest.values()) < 0.5, slowest


def test_a_refusal_says_the_line():
    refused = {}
    for hostile in CORPUS:
        if hostile.family in ("files", "network", "processes", "imports", "dunder_walks"):
            with pytest.raises(CandidateError) as caught:
                check_form(hostile.text)
            refused[str(hostile)] = str(caught.value)

    assert all(reason.startswith("line ") for reason in refused.values()), refused


# What follows executes texts without reading them, so that the child's limits stand alone.


def test_texts_that_reach_outside_fail_even_when_nobody_has_read_them(watched):
    attacks = [hostile for hostile in CORPUS if hostile.raw == "must fail"]
    before = state_of(watched)
    fences, ended = run_raw([placed(hostile.text, watched) for hostile in attacks], watched)
    if FILTER not in fences:
        pytest.skip("this system has no seccomp filter for the machine it runs on")

    assert len(attacks) > 150
    finished = [
        f"{hostile}: {hostile.text[:200]!r}"
        for hostile, end in zip(attacks, ended, strict=True)
        if end["how"] == ANSWERED and not end["answer"].startswith("raised ")
    ]
    assert not finished
    assert state_of(watched) == before
    assert not processes_with(MARK)
    assert not processes_with(str(watched))


def test_other_unread_texts_do_what_they_like_and_leave_nothing(watched):
    attacks = [hostile for hostile in CORPUS if hostile.raw == "yes"]
    before = state_of(watched)
    fences, ended = run_raw([placed(hostile.text, watched) for hostile in attacks], watched)
    if FILTER not in fences:
        pytest.skip("this system has no seccomp filter for the machine it runs on")

    assert len(ended) == len(attacks) > 100
    assert state_of(watched) == before
    assert not processes_with(MARK)


def test_limits_alone_keep_texts_from_files_sockets_and_processes(watched):
    """Where there is no filter, nothing can be opened, started or written all the same."""
    attacks = [hostile.text for hostile in CORPUS if hostile.family == "network"]
    attacks += [
        "open('FOLDER/x', 'w')",
        "open('/etc/passwd')",
        "import os; os.open('x', os.O_CREAT)",
        "import os; os.pipe()",
        "import os; os.listdir('/')",
        "import os\nwhile True:\n    os.fork()",
        "import threading; threading.Thread(target=print).start()",
        "import subprocess; subprocess.Popen(['sleep', '98765'])",
        "import os; os.write(1, b'x'); os.truncate('FOLDER/kept', 10**6)",
    ]
    before = state_of(watched)
    _, ended = run_raw([placed(text, watched) for text in attacks], watched, filtered=False)

    assert [end for end in ended if not end["answer"].startswith("raised ")] == []
    assert state_of(watched) == before
    assert not processes_with(MARK)

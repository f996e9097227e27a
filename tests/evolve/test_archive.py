"""The archive: whole or absent, one writer, and one clear error for a file that is no archive."""

import os
import sqlite3
import subprocess
import sys
from contextlib import suppress

import numpy as np
import pytest

from queuesmith.engine.result import ITL_EDGES
from queuesmith.errors import ConfigError
from queuesmith.evolve.archive.archive import FILE, Archive
from queuesmith.evolve.archive.schema import Member, Verdict
from queuesmith.evolve.candidate import Generation, Proposal, text_sha256
from queuesmith.evolve.scoring.cells import TOTALS, Cell, CellResult, largest


@pytest.fixture
def folder(tmp_path):
    Archive.create(tmp_path, {"name": "test"}).close()
    return tmp_path


FIRST = Generation(3, "search", 0)


def cell_result(*seconds):
    """What is kept of a cell whose requests waited so long, and then had a token every 20 ms."""
    kept = np.zeros(len(TOTALS) + len(ITL_EDGES) - 1 + 3 * 4)
    kept[0] = kept[TOTALS.index("ttft_num")] = len(seconds)
    kept[TOTALS.index("ttft_sum")] = sum(seconds)
    kept[len(TOTALS) + 300] = 17
    kept[-12:-8] = largest(np.array(seconds), 4)
    return CellResult(kept)


def add(writer, text="text", behaviour="b", **meta):
    proposal = Proposal(text, "gp", (1, 2), "a note", 7, meta)
    known = {"size": 7, "text_sha256": text_sha256(text), "behaviour": behaviour}
    return writer.add(FIRST, 1, 0, proposal, **known)


def test_what_is_written_is_read_back(folder):
    results = {
        Cell(4, "heavy"): cell_result(0.1 + 0.2, 1.5, 2.5),
        Cell(5, "knee"): cell_result(1 / 3, np.pi),
    }
    with Archive.resume(folder) as archive, archive.write() as writer:
        writer.open_generation(FIRST, [4, 5], [3, 0, 0])
        number = add(writer, prompt="p", answer="a", genome=["x", 1.5])
        writer.results(number, results)
        writer.outcome(number, "ok", score=0.5, window_scores=(0.1, 0.2), clean=True)
        writer.verdict(number, Verdict("keep", "it is good"))
        writer.close_generation(FIRST, [Member(1, number, 0.5, (0.1, 0.2), True)])
        writer.spend({"wall_seconds": 2.5})
    with Archive.read(folder) as archive:
        found = archive.candidate(number)
        kept = archive.results(number)

        assert archive.run() == {"name": "test"}
        assert archive.spent()["wall_seconds"] == 2.5
        assert archive.is_closed((3, "search", 0))
        assert archive.members((3, "search", 0)) == [Member(1, number, 0.5, (0.1, 0.2), True)]
    assert (found.seed, found.track, found.island, found.size) == (3, "search", 1, 7)
    assert found.meta == {"genome": ["x", 1.5], "prompt": "p", "answer": "a"}
    assert found.parents == (1, 2)
    assert (found.score, found.window_scores, found.clean) == (0.5, (0.1, 0.2), True)
    assert (found.verdict, found.sentence) == ("keep", "it is good")
    assert {cell: one.mean for cell, one in kept.items()} == {
        cell: one.mean for cell, one in results.items()
    }
    assert all(np.array_equal(kept[cell].values, results[cell].values) for cell in results)


def test_a_text_that_was_changed_is_not_believed(folder):
    with Archive.resume(folder) as archive, archive.write() as writer:
        number = add(writer)
        writer.outcome(number, "ok", score=0.5, window_scores=(0.1,), clean=True)
    with Archive.read(folder) as archive:
        assert archive.candidate(number).text == "text"
    database = sqlite3.connect(folder / "archive.sqlite")
    database.execute("UPDATE candidates SET text = 'uext'")  # one bit
    database.commit()
    database.close()

    with Archive.read(folder) as archive:
        for read in (lambda: archive.candidate(number), archive.candidates):
            with pytest.raises(ConfigError, match=f"text of candidate {number} is not the one"):
                read()


def test_a_transaction_is_whole_or_absent(folder):
    with Archive.resume(folder) as archive:
        with suppress(KeyboardInterrupt), archive.write() as writer:
            add(writer)
            raise KeyboardInterrupt
        assert archive.candidates() == []
        with archive.write() as writer:
            add(writer)
        assert len(archive.candidates()) == 1


def test_behaviours_name_the_first_of_their_kind(folder):
    with Archive.resume(folder) as archive, archive.write() as writer:
        first = add(writer, "one", "same")
        add(writer, "two", "same")
        add(writer, "three", "")
    with Archive.read(folder) as archive:
        known = archive.behaviours(3, "search")

        assert known["same"] == first
        assert set(known) == {"same", *map(text_sha256, ("one", "two", "three"))}
        assert archive.behaviours(3, "control") == {}


def test_it_is_on_disk_when_a_transaction_returns(folder):
    """Another process, started afterwards, sees it though the writer has not closed the file."""
    code = (
        "import sqlite3, sys; rows = sqlite3.connect(sys.argv[1])"
        ".execute('SELECT count(*) FROM candidates'); print(rows.fetchone()[0])"
    )
    with Archive.resume(folder) as archive:
        with archive.write() as writer:
            add(writer)
        (mode,) = archive.rows("PRAGMA journal_mode")[0]
        (synchronous,) = archive.rows("PRAGMA synchronous")[0]
        seen = subprocess.run(
            [sys.executable, "-c", code, str(folder / FILE)], capture_output=True, text=True
        )

    assert (mode, synchronous) == ("wal", 2)  # FULL
    assert seen.stdout == "1\n"


def test_one_process_writes_and_others_read(folder):
    with Archive.resume(folder) as archive:
        with pytest.raises(ConfigError, match="another process is writing the run"):
            Archive.resume(folder)
        with Archive.read(folder) as reader, archive.write() as writer:
            add(writer)
            assert reader.candidates() == []  # not before it is on disk
    Archive.resume(folder).close()


def test_there_is_one_archive_in_a_folder(folder):
    with pytest.raises(ConfigError, match="holds a run already; go on with `queuesmith evolve"):
        Archive.create(folder, {})


def one_line(folder, match):
    for way in (Archive.resume, Archive.read):
        with pytest.raises(ConfigError, match=match) as caught:
            way(folder)
        assert "\n" not in str(caught.value)


def test_no_archive_is_said(tmp_path):
    one_line(tmp_path, f"there is no run in .*{FILE} is missing")
    one_line(tmp_path / "nowhere", "there is no run in")


@pytest.mark.parametrize("content", [b"not a database at all" * 300, os.urandom(5_000)])
def test_a_file_that_is_no_database_is_said(tmp_path, content):
    (tmp_path / FILE).write_bytes(content)

    one_line(tmp_path, "is damaged or is no database")


def test_a_database_of_another_program_is_said(tmp_path):
    with sqlite3.connect(tmp_path / FILE) as connection:
        connection.execute("CREATE TABLE bookmarks (url TEXT)")
    connection.close()

    one_line(tmp_path, "is a database of another program")


def test_an_archive_of_another_version_is_said(folder):
    with sqlite3.connect(folder / FILE) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()

    one_line(folder, "has schema 99, this version reads 2")


def test_a_run_that_was_killed_before_it_began_is_said(tmp_path):
    (tmp_path / FILE).touch()

    one_line(tmp_path, "is empty: its run was stopped before it began")


def test_damage_in_the_middle_is_said(folder):
    with Archive.resume(folder) as archive:
        fill(archive)
    path = folder / FILE
    content = bytearray(path.read_bytes())
    content[4096 * 3 : 4096 * 30] = os.urandom(4096 * 27)
    path.write_bytes(content)

    one_line(folder, "is damaged")


def test_a_truncated_archive_is_said(folder):
    with Archive.resume(folder) as archive:
        fill(archive)
    path = folder / FILE
    path.write_bytes(path.read_bytes()[: 4096 * 5])

    one_line(folder, "is damaged")


def test_a_full_disk_is_one_line(folder):
    """SQLite says the same of a file that may not grow."""
    with Archive.resume(folder) as archive:
        archive.rows("PRAGMA max_page_count = 1")

        with pytest.raises(ConfigError, match="cannot be used: database or disk is full"):
            fill(archive)
        assert archive.candidates() == []


def fill(archive):
    with archive.write() as writer:
        for place in range(200):
            add(writer, f"text {place}" * 100)

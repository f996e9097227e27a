"""The ledger: held-out windows are opened once, whatever happens in between."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from queuesmith.errors import ConfigError
from queuesmith.evolve.gates.ledger import HeldOut, Ledger, Spent, ledger_path
from queuesmith.windows.frozen import WindowSet

from .kill_ledger import windows

WHO = {"policy": "mine", "policy_sha256": "ab" * 32, "engine": "e", "loads": ["heavy"]}
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "state" / "ledger.jsonl")


def held_out(*spans, source="5" * 64):
    """Windows of one source, by first row and length."""
    return HeldOut(
        tuple((source, row, length, f"{row:032x}{length:032x}") for row, length in spans)
    )


def test_an_opening_is_on_disk_before_there_is_a_result(ledger):
    opening = ledger.open(windows(1), WHO, now=NOW)

    [entry] = Ledger(ledger.path).entries()
    assert entry == opening.entry
    assert entry["kind"] == "opened"
    assert entry["time"] == "2026-01-02T03:04:05Z"
    assert entry["policy_sha256"] == "ab" * 32
    assert entry["windows_sha256"] == windows(1).sha256
    assert not opening.spent
    ledger.close(opening, {"passed": True, "sentence": "it holds"})
    _, result = ledger.entries()
    assert result["opening"] == entry["sha256"]
    assert result["previous"] == entry["sha256"]


def test_a_second_opening_is_refused_whoever_asks(ledger):
    opening = ledger.open(windows(1), WHO, now=NOW)
    ledger.close(opening, {"passed": False, "sentence": "it does not hold"})

    with pytest.raises(Spent, match="opened on 2026-01-02T03:04:05Z for mine") as refusal:
        ledger.open(windows(1), {**WHO, "policy": "another", "policy_sha256": "cd" * 32})
    assert "it does not hold" in str(refusal.value)
    assert "--spent" in str(refusal.value)
    assert "\n" not in str(refusal.value)
    with pytest.raises(Spent):
        ledger.refuse(windows(1))
    assert len(ledger.entries()) == 2
    ledger.close(ledger.open(windows(2), WHO), {})
    assert ledger.about(windows(1)) == ledger.entries()[:2]
    assert ledger.about(windows(2)) == ledger.entries()[2:]
    assert ledger.about(windows(3)) == []


def test_an_opening_without_a_result_counts(ledger):
    ledger.open(windows(1), WHO)

    with pytest.raises(Spent, match="no result was written"):
        ledger.open(windows(1), WHO)


def test_spent_windows_can_be_opened_and_are_marked(ledger):
    ledger.open(windows(1), WHO)

    again = ledger.open(windows(1), WHO, spent=True)
    fresh = ledger.open(windows(2), WHO, spent=True)
    assert again.spent
    assert not fresh.spent
    assert [entry["spent"] for entry in ledger.entries()] == [False, True, False]


@pytest.mark.parametrize(
    ("others", "num_seen"),
    [
        (held_out((100, 50), (200, 50)), 2),
        (held_out((100, 50), (300, 50)), 1),
        (held_out((149, 10)), 1),
        (held_out((90, 11)), 1),
        (held_out((0, 1_000)), 1),
        (held_out((150, 50), (0, 100)), 0),
        (held_out((100, 50), source="6" * 64), 1),  # the same rows in another file
        (held_out((101, 50), source="6" * 64), 0),
    ],
)
def test_windows_that_share_rows_are_not_unseen(ledger, others, num_seen):
    opened = held_out((100, 50), (200, 50))
    ledger.open(opened, WHO)

    assert others.num_seen(opened.windows) == num_seen
    if num_seen:
        with pytest.raises(Spent, match="these"):
            ledger.open(others, WHO)
    else:
        ledger.open(others, WHO)


def test_the_name_of_a_set_and_its_other_windows_do_not_count(tmp_path):
    source = {"file": "azure_2023_code@model", "num_requests": 2_000}
    sets = []
    for name in ("one", "two"):
        path = tmp_path / f"{name}.toml"
        text = WindowSet.freeze(name, [source], num_windows=2, window_len=100)
        if name == "two":  # other tuning windows
            start = text.index("[source.tuning]")
            text = text[:start] + text[text.index("[source.validation]") :]
        path.write_text(text)
        sets.append(WindowSet.load(path))
    path = tmp_path / "three.toml"
    path.write_text(WindowSet.freeze("one", [source], num_windows=2, window_len=100, seed=1))

    one, two = map(HeldOut.of, sets)
    assert sets[0].sha256 != sets[1].sha256
    assert one == two
    assert one.sha256 == two.sha256
    assert len(one.windows) == 2
    assert HeldOut.of(WindowSet.load(path)).sha256 != one.sha256


def test_of_many_at_once_one_opens(tmp_path):
    def try_it(number):
        try:
            Ledger(tmp_path / "ledger.jsonl").open(windows(1), {**WHO, "number": number})
        except Spent:
            return 0
        return 1

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(try_it, range(1, 25))) == 1
    assert len(Ledger(tmp_path / "ledger.jsonl").entries()) == 1


def test_who_reads_while_others_write_sees_whole_entries(tmp_path):
    def write(first):
        ledger = Ledger(tmp_path / "ledger.jsonl")
        for number in range(first, first + 15):
            ledger.open(windows(number), WHO)

    with ThreadPoolExecutor(2) as pool:
        writers = [pool.submit(write, first) for first in (0, 100)]
        lengths = [0]
        while not all(writer.done() for writer in writers):
            lengths.append(len(Ledger(tmp_path / "ledger.jsonl").entries()))
        for writer in writers:
            writer.result()
    assert lengths == sorted(lengths)
    assert len(Ledger(tmp_path / "ledger.jsonl").entries()) == 30


def test_a_full_disk_opens_nothing(ledger, monkeypatch):
    ledger.open(windows(1), WHO)
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, line, place: write(file, line[:40], place))
    with pytest.raises(ConfigError, match="No space left"):
        ledger.open(windows(2), WHO)
    monkeypatch.undo()

    assert len(ledger.entries()) == 1
    ledger.open(windows(2), WHO)
    assert len(ledger.entries()) == 2


def test_kills_lose_no_opening(tmp_path):
    path = tmp_path / "ledger.jsonl"
    command = [sys.executable, "-m", "tests.evolve.kill_ledger", path, "20"]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=Path(__file__).parents[2], timeout=120
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)

    ledger = Ledger(path)
    entries = ledger.entries()  # which checks the chain
    opened = {entry["windows_sha256"] for entry in entries if entry["kind"] == "opened"}
    closed = {entry["windows_sha256"] for entry in entries if entry["kind"] == "result"}
    assert said["killed"] == 20
    assert len(said["opened"]) >= 20
    assert {windows(number).sha256 for number in said["opened"]} <= opened
    assert {windows(number).sha256 for number in said["closed"]} <= closed
    for number in set(said["opened"]) - set(said["closed"]):
        with pytest.raises(Spent):
            ledger.open(windows(number), WHO)
    ledger.open(windows(10**9), WHO)


def test_what_a_power_cut_left_of_a_line_is_no_entry(ledger):
    ledger.open(windows(1), WHO)
    with ledger.path.open("ab") as file:
        file.write(b'{"schema": "queuesmith.ledger/1", "num')

    assert len(ledger.entries()) == 1
    ledger.open(windows(2), WHO)
    assert len(Ledger(ledger.path).entries()) == 2


def test_a_head_that_is_an_entry_behind_is_no_tampering(ledger):
    ledger.open(windows(1), WHO)
    head = ledger.path.with_name("ledger.jsonl.head")
    before = head.read_bytes()
    ledger.open(windows(2), WHO)
    head.write_bytes(before)

    assert len(ledger.entries()) == 2
    head.unlink()
    with pytest.raises(ConfigError, match="head is missing"):
        ledger.entries()


def _lines(change):
    def tamper(path):
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(change(lines)))

    return tamper


def _forge(lines):
    entry = json.loads(lines[-1])
    entry["number"] += 1
    entry["previous"] = entry["sha256"]
    return [*lines, json.dumps(entry) + "\n"]


@pytest.mark.parametrize(
    "tamper",
    [
        _lines(lambda lines: [lines[0].replace("mine", "yours"), *lines[1:]]),
        _lines(lambda lines: lines[1:]),
        _lines(lambda lines: lines[:-1]),
        _lines(lambda lines: []),
        _lines(lambda lines: [lines[1], lines[0], *lines[2:]]),
        _lines(lambda lines: [lines[0], *lines]),
        _lines(lambda lines: [*lines[:-1], lines[-1][:-20]]),
        _lines(lambda lines: [*lines[:1], "\n", *lines[1:]]),
        _lines(lambda lines: ["[]\n", *lines[1:]]),
        _lines(lambda lines: ["[" * 100_000 + "\n", *lines[1:]]),
        _lines(_forge),
        lambda path: path.unlink(),
        lambda path: path.with_name("ledger.jsonl.head").write_text("nonsense"),
        lambda path: path.with_name("ledger.jsonl.head").write_text("[]"),
    ],
)
def test_tampering_is_noticed(ledger, tamper):
    for number in range(3):
        ledger.open(windows(number), WHO)
    tamper(ledger.path)

    for attempt in (ledger.entries, lambda: ledger.open(windows(9), WHO, spent=True)):
        with pytest.raises(ConfigError, match="was changed since it was written") as error:
            attempt()
        assert "\n" not in str(error.value)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_no_byte_can_change(tmp_path, data):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    if not ledger.path.exists():
        for number in range(2):
            ledger.open(windows(number), WHO)
        (tmp_path / "kept").write_bytes(ledger.path.read_bytes())
    content = bytearray((tmp_path / "kept").read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] = data.draw(st.integers(0, 255).filter(lambda byte: byte != content[place]))
    ledger.path.write_bytes(content)

    with pytest.raises(ConfigError, match="was changed"):
        ledger.entries()


def test_who_has_a_say_on_where_it_is(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("QUEUESMITH_LEDGER", raising=False)
    assert ledger_path() == tmp_path / "queuesmith" / "ledger.jsonl"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert ledger_path() == tmp_path / ".local" / "state" / "queuesmith" / "ledger.jsonl"
    monkeypatch.setenv("QUEUESMITH_LEDGER", "mine.jsonl")
    assert ledger_path() == Path("mine.jsonl")
    assert ledger_path(Path("given.jsonl")) == Path("given.jsonl")


def test_places_that_cannot_be_used_are_told_in_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file" / "ledger.jsonl"):
        with pytest.raises(ConfigError, match="--ledger") as error:
            Ledger(path).open(windows(1), WHO)
        assert "\n" not in str(error.value)
    with pytest.raises(ConfigError, match="cannot be read"):
        Ledger(tmp_path).entries()
    with pytest.raises(ConfigError, match="no held-out windows"):
        Ledger(tmp_path / "ledger.jsonl").open(HeldOut(()), WHO)
    assert Ledger(tmp_path / "ledger.jsonl").entries() == []

"""The catalogue: every entry is complete and true, and names lead to the right files."""

import json
import re
from dataclasses import fields, replace
from urllib.parse import urlsplit

import pytest

from queuesmith.errors import ConfigError, TraceError
from queuesmith.traces import catalog, load_trace
from queuesmith.traces.catalog import (
    Entry,
    catalogue,
    fault_of,
    find_file,
    find_imported,
    get_entry,
    list_imported,
    resolve,
    traces_folder,
)
from queuesmith.traces.imported import import_file

#: Of the licences on the SPDX list, those under which traces have been published so far.
SPDX = {"CC-BY-4.0", "Apache-2.0"}
#: Where the publishers keep their files; a new one is a decision, not a slip.
HOSTS = {"raw.githubusercontent.com", "media.githubusercontent.com", "github.com"}
READERS = {"azure", "burstgpt", "bailian", "mooncake", "servegen"}
TABLE = "arrival_time,prompt_len,output_len\n0,5,6\n1.5,7,8\n2,7,0\n"

ENTRIES = pytest.mark.parametrize("entry", catalogue().values(), ids=lambda entry: entry.name)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return an empty folder of traces, with no other behind it."""
    folder = tmp_path / "traces"
    folder.mkdir()
    monkeypatch.setenv("QUEUESMITH_TRACES", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


@pytest.fixture
def tiny(monkeypatch):
    """Let azure_2023_conv be a file of three bytes."""
    sha256 = (
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # of b"abc", FIPS 180
    )
    entry = replace(get_entry("azure_2023_conv"), file="tiny.csv", bytes=3, sha256=sha256)
    monkeypatch.setattr(catalog, "get_entry", lambda name: entry)
    return entry


@ENTRIES
def test_licences_are_known_by_their_spdx_identifiers(entry):
    assert entry.license in SPDX
    assert isinstance(entry.redistribute, bool)


@ENTRIES
def test_addresses_are_https_and_the_publishers_own(entry):
    for url in (entry.url, entry.license_url):
        assert urlsplit(url).scheme == "https"
        assert " " not in url
    assert urlsplit(entry.url).hostname in HOSTS


@ENTRIES
def test_there_is_a_file_to_fetch_or_a_way_to_get_it(entry):
    assert entry.url.endswith("/" + entry.file) != bool(entry.how_to_get)


@ENTRIES
def test_what_a_reader_needs_to_know_is_said(entry):
    for name in ("title", "file", "citation", "columns", "known_gaps"):
        assert getattr(entry, name).strip(), name
    assert entry.reader in READERS
    assert re.search(r"20\d\d$", entry.citation)


@ENTRIES
def test_a_hash_is_whole_and_says_where_it_comes_from(entry):
    if entry.sha256:
        assert re.fullmatch("[0-9a-f]{64}", entry.sha256)
        assert entry.sha256_from in {"file", "git-lfs", "cited"}
    else:
        assert entry.sha256_from == ""
    for number in (entry.bytes, entry.num_rows):
        assert number is None or number > 0


def test_names_files_hashes_and_addresses_are_unique():
    entries = list(catalogue().values())
    for values in (
        [entry.name for entry in entries],
        [entry.file for entry in entries],
        [entry.url for entry in entries],
        [entry.sha256 for entry in entries if entry.sha256],
    ):
        assert len(values) == len(set(values))


def test_entries_have_no_fields_but_those_described():
    described = re.findall(r"^ *(\w+) : ", Entry.__doc__, flags=re.MULTILINE)

    assert described == [one.name for one in fields(Entry)]


def test_files_at_hand_are_those_of_the_catalogue(traces_dir):
    """Every file of a catalogued name has its size and hash; hashes from files are checked so."""
    checked = []
    for name, entry in catalogue().items():
        for path in traces_dir.rglob(entry.file):
            assert fault_of(entry, path) is None, path
            assert find_file(name).resolve() == path.resolve()
            if entry.sha256:
                checked.append(name)
    if not checked:
        pytest.skip("no catalogued file is at hand")


def test_published_counts_are_those_of_the_files(traces_dir):
    for name, entry in catalogue().items():
        path = find_file(name)
        if path is not None and entry.num_rows is not None:
            trace = load_trace(path)
            assert len(trace) + sum(trace.origin.dropped.values()) == entry.num_rows


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(TraceError, match=r"Did you mean 'burstgpt_1'\?"):
        get_entry("burstgpt1")


def test_the_named_folder_comes_first_and_the_cache_is_a_folder_of_the_user(tmp_path, monkeypatch):
    monkeypatch.setenv("QUEUESMITH_TRACES", str(tmp_path))
    assert traces_folder() == tmp_path

    monkeypatch.delenv("QUEUESMITH_TRACES")
    assert traces_folder().parts[-2:] == ("queuesmith", "traces")


def test_a_file_is_found_anywhere_below_the_folder(folder, tiny):
    path = folder / "a" / "b" / "tiny.csv"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"abc")

    assert find_file("azure_2023_conv") == path
    assert resolve("azure_2023_conv") == path


def test_a_file_of_the_cache_is_found_behind_the_named_folder(folder, tiny, tmp_path):
    path = tmp_path / "cache" / "queuesmith" / "traces" / "tiny.csv"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"abc")

    assert find_file("azure_2023_conv") == path


@pytest.mark.parametrize("content", [b"abd", b"abcd"])
def test_a_wrong_file_is_not_found_and_a_right_one_behind_it_is(folder, tiny, content):
    (folder / "tiny.csv").write_bytes(content)
    assert find_file("azure_2023_conv") is None
    with pytest.raises(TraceError, match=r"the catalogue says .*queuesmith traces fetch"):
        resolve("azure_2023_conv")

    (folder / "z").mkdir()
    (folder / "z" / "tiny.csv").write_bytes(b"abc")
    assert find_file("azure_2023_conv") == folder / "z" / "tiny.csv"


def test_a_listing_goes_by_size_alone(folder, tiny):
    (folder / "tiny.csv").write_bytes(b"abd")

    assert find_file("azure_2023_conv", check_hash=False) is not None


def test_a_name_without_a_file_says_how_to_get_one(folder):
    with pytest.raises(TraceError, match="`queuesmith traces fetch azure_2023_conv` gets it"):
        resolve("azure_2023_conv")
    with pytest.raises(TraceError, match="fetch servegen_m_small` says how to get it"):
        resolve("servegen_m_small")


def test_a_file_here_comes_before_a_name(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "azure_2023_conv").write_text(TABLE)

    assert load_trace(resolve("azure_2023_conv")).origin.reader == "table"


def test_what_is_neither_file_nor_name_is_left_to_its_reader(folder):
    assert str(resolve("nowhere/none.csv")) == "nowhere/none.csv"


def test_a_file_of_ones_own_gets_a_name(folder, tmp_path):
    path = tmp_path / "log.csv"
    path.write_text(TABLE)

    imported = import_file(path, "mine")

    assert resolve("mine") == imported.path
    assert imported.path.read_text() == TABLE
    assert imported.record["origin"] == str(path.resolve())
    assert imported.record["sha256"] == imported.record["origin_sha256"]
    assert imported.record["dropped"] == {"output_len 0: a failed request": 1}
    assert [one.name for one in list_imported()] == ["mine"]
    assert find_imported("other") is None


def test_what_needs_options_needs_them_no_longer_once_imported(folder, tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("when,in,out,who\n0,5,6,x\n1500,7,8,y\n")
    columns = {"arrival_time": "when", "prompt_len": "in", "output_len": "out", "client": "who"}

    import_file(path, "mine", columns=columns, unit="ms")
    trace = load_trace(resolve("mine"))

    assert trace.arrival_time.tolist() == [0.0, 1.5]
    assert trace.output_len.tolist() == [6, 8]
    assert trace.client.tolist() == [0, 1]


def test_hashes_and_think_times_stay_what_they_are_once_imported(folder, tmp_path):
    rows = [
        {"session_id": "a", "timestamp": 0, "hash_ids": [1, 2, 3], "input_length": 48},
        {"session_id": "a", "delay": 250, "hash_ids": [1, 2, 9, 10], "input_length": 60},
    ]
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(json.dumps(row | {"output_length": 5}) for row in rows))
    expected = load_trace(path, unit="ms")

    import_file(path, "mine", unit="ms", hash_block_size=16)
    trace = load_trace(resolve("mine"))

    assert expected.block_hashes.block_size == trace.block_hashes.block_size == 16
    assert trace.sha256 == expected.sha256
    assert trace.think_time.tolist()[1] == 0.25
    assert trace.origin.notes == ()


def test_importing_the_same_file_twice_is_one_import_and_another_file_is_refused(folder, tmp_path):
    path = tmp_path / "log.csv"
    path.write_text(TABLE)
    first = import_file(path, "mine")
    assert import_file(path, "mine") == first

    path.write_text(TABLE + "3,1,1\n")
    with pytest.raises(ConfigError, match="'mine' is taken"):
        import_file(path, "mine")
    assert first.path.read_text() == TABLE


@pytest.mark.parametrize("name", ["", "Mine", "../mine", "a/b", ".mine", "a b", "x" * 65])
def test_a_name_must_be_plain(folder, tmp_path, name):
    with pytest.raises(ConfigError, match="a name must be"):
        import_file(tmp_path / "log.csv", name)


def test_a_name_of_the_catalogue_is_not_given_away(folder, tmp_path):
    with pytest.raises(ConfigError, match="public trace of the catalogue"):
        import_file(tmp_path / "log.csv", "burstgpt_1")


def test_what_is_no_trace_is_not_imported(folder, tmp_path):
    (tmp_path / "notes.txt").write_text("hello\nworld\n")

    with pytest.raises(TraceError):
        import_file(tmp_path / "notes.txt", "mine")
    assert list(folder.iterdir()) == []

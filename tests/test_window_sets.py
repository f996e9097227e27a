"""Window sets: frozen windows come back byte for byte, or not at all."""

import tomllib

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from queuesmith.errors import ConfigError, TraceError
from queuesmith.windows import Window
from queuesmith.windows.frozen import PARTS, WindowSet

NUM_ROWS = 400


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a folder with two traces, which nothing else points to."""
    monkeypatch.delenv("QUEUESMITH_TRACES", raising=False)
    (tmp_path / "sub").mkdir()
    for name in ("a.csv", "sub/b.csv"):
        rows = "".join(f"{10 + row * 0.5},{row + 1},{len(name)}\n" for row in range(NUM_ROWS))
        (tmp_path / name).write_text("arrival_time,prompt_len,output_len\n" + rows)
    return tmp_path


def freeze(folder, **options):
    options = {"num_windows": 3, "window_len": 20, "folder": folder} | options
    return WindowSet.freeze("mine", ["a.csv", "sub/b.csv"], **options)


def save(folder, text):
    (folder / "set.toml").write_text(text, encoding="utf-8")
    return folder / "set.toml"


def test_frozen_windows_come_back_as_they_were(folder):
    loaded = WindowSet.load(save(folder, freeze(folder)))

    assert loaded.name == "mine"
    for part in PARTS:
        windows = loaded.windows(part)
        assert [window.index for window in windows] == list(range(6))
        assert [window.name for window in windows] == [f"{part}/{index}" for index in range(6)]
        assert [window.trace.origin.source for window in windows] == ["a.csv"] * 3 + ["b.csv"] * 3
        for window in windows:
            assert window.trace.arrival_time.tolist() == [row * 0.5 for row in range(20)]
            assert window.trace.prompt_len[0] == window.start_row + 1
            assert window.sha256 == window.trace.sha256


def test_parts_come_from_disjoint_periods_in_order(folder):
    loaded = WindowSet.load(save(folder, freeze(folder)))

    for part, (start, end) in {
        "tuning": (0, 200),
        "validation": (200, 300),
        "held_out": (300, 400),
    }.items():
        for window in loaded.windows(part):
            assert start <= window.start_row <= end - 20


def test_requests_that_arrive_together_stay_in_one_part(tmp_path):
    rows = "".join(f"{row // 50},1,1\n" for row in range(NUM_ROWS))
    (tmp_path / "a.csv").write_text("arrival_time,prompt_len,output_len\n" + rows)
    text = WindowSet.freeze(
        "x",
        ["a.csv"],
        parts={"tuning": 0.3, "held_out": 0.7},
        num_windows=1,
        window_len=100,
        folder=tmp_path,
    )

    loaded = WindowSet.load(save(tmp_path, text))
    (tuning,) = loaded.windows("tuning", tmp_path)
    (held_out,) = loaded.windows("held_out", tmp_path)

    # 30 % is row 120, in the midst of 50 requests that arrive together.
    assert tuning.start_row == 0
    assert held_out.start_row >= 100


def test_the_same_seed_freezes_the_same_bytes_and_another_others(folder):
    assert freeze(folder) == freeze(folder)
    assert freeze(folder) != freeze(folder, seed=1)
    loaded = WindowSet.load(save(folder, freeze(folder)))
    other = WindowSet.load(save(folder, freeze(folder, seed=100)))
    assert loaded.sha256 != other.sha256
    # Each part is cut with a seed of its own.
    starts = [window.start_row for window in loaded.windows("validation")]
    assert [row - 100 for row in starts] != [
        window.start_row for window in loaded.windows("held_out")
    ]


def test_a_set_says_whether_its_windows_adjoin(folder):
    apart = freeze(folder)
    filled = freeze(folder, num_windows=5)

    for text, adjoin in ((apart, [False] * 3), (filled, [False, True, True])):
        loaded = WindowSet.load(save(folder, text))
        assert [loaded.adjoin(part) for part in PARTS] == adjoin
        source = tomllib.loads(text)["source"][0]
        assert [source[part]["adjoin"] for part in PARTS] == adjoin


def test_other_bytes_are_refused(folder):
    loaded = WindowSet.load(save(folder, freeze(folder)))
    path = folder / "sub/b.csv"
    path.write_bytes(path.read_bytes() + b"9999,1,1\n")

    with pytest.raises(TraceError, match=r"b\.csv has other content than window set mine"):
        loaded.windows("tuning")


def test_the_same_bytes_read_differently_are_refused(folder):
    text = freeze(folder)
    sha256 = tomllib.loads(text)["source"][0]["tuning"]["windows"][0]["sha256"]
    loaded = WindowSet.load(save(folder, text.replace(sha256, "0" * 64)))

    with pytest.raises(TraceError, match="tuning/0 of set mine has other rows"):
        loaded.windows("tuning")
    assert len(loaded.windows("held_out")) == 6


def test_windows_beyond_the_end_are_refused(folder):
    text = freeze(folder)
    row = tomllib.loads(text)["source"][0]["held_out"]["windows"][-1]["start_row"]
    loaded = WindowSet.load(save(folder, text.replace(f"start_row = {row}", "start_row = 9999")))

    with pytest.raises(TraceError, match="has other rows"):
        loaded.windows("held_out")


def test_sources_are_found_in_the_folder_given_then_in_the_variable_then_beside_the_set(
    folder, tmp_path_factory, monkeypatch
):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    loaded = WindowSet.load(save(elsewhere, freeze(folder)))

    with pytest.raises(TraceError, match="there is no file"):
        loaded.windows("tuning")
    assert len(loaded.windows("tuning", folder)) == 6
    monkeypatch.setenv("QUEUESMITH_TRACES", str(folder))
    assert len(loaded.windows("tuning")) == 6
    with pytest.raises(TraceError, match="there is no file"):
        loaded.windows("tuning", elsewhere)


def test_options_of_a_source_are_kept(folder):
    (folder / "c.csv").write_text(
        "received,prompt_len,output_len\n" + "".join(f"{row * 500},1,1\n" for row in range(100))
    )
    source = {"file": "c.csv", "columns": {"arrival_time": "received"}, "unit": "ms"}

    text = WindowSet.freeze("x", [source], num_windows=1, window_len=10, folder=folder)

    (window,) = WindowSet.load(save(folder, text)).windows("held_out")
    assert window.trace.arrival_time.tolist() == [row * 0.5 for row in range(10)]


def test_a_model_is_a_source_too(folder):
    source = {"file": "azure_2023_conv@model", "num_requests": 400, "seed": 5}

    text = WindowSet.freeze("x", [source], num_windows=2, window_len=20)
    loaded = WindowSet.load(save(folder, text))

    assert [len(window.trace) for window in loaded.windows("tuning")] == [20, 20]
    changed = WindowSet.load(save(folder, text.replace("seed = 5", "seed = 6")))
    with pytest.raises(TraceError, match="other content"):
        changed.windows("tuning")


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"parts": {"train": 1.0}}, ConfigError, "tuning, validation, held_out"),
        ({"parts": {"tuning": 0.0}}, ConfigError, "shares above 0"),
        ({"parts": {"tuning": 0.8, "held_out": 0.3}}, ConfigError, "sum to 1 at most"),
        ({"parts": {}}, ConfigError, "needs a source"),
        ({"window_len": 40}, TraceError, r"validation has 100 requests for 3 windows of 40"),
        ({"num_windows": 0}, ConfigError, "num_windows must be at least 1"),
        ({"seed": -1}, ConfigError, "seed must be at least 0"),
    ],
)
def test_sets_that_cannot_be_are_refused(folder, options, error, says):
    with pytest.raises(error, match=says):
        freeze(folder, **options)


def test_sources_that_make_no_sense_are_refused(folder):
    for source in ({"unit": "s"}, {"file": "a.csv", "units": "s"}):
        with pytest.raises(ConfigError, match="a source has a file"):
            WindowSet.freeze("x", [source], folder=folder)
    with pytest.raises(TraceError, match="there is no file"):
        WindowSet.freeze("x", ["missing.csv"], folder=folder)


def test_a_part_that_is_not_there(folder):
    loaded = WindowSet.load(save(folder, freeze(folder, parts={"tuning": 1.0})))

    with pytest.raises(ConfigError, match=r"no part 'tunin'.*Did you mean 'tuning'"):
        loaded.windows("tunin")
    with pytest.raises(ConfigError, match=r"no part 'held_out'"):
        loaded.windows("held_out")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("schema = 1", "schema = 2", "must have schema = 1, got 2"),
        ('name = "mine"', "name = 7", "name must be a TOML string"),
        ("seed = 0", "seed = true", "seed must be a TOML integer"),
        ("seed = 0", "seed = ", "is not a window set in TOML"),
        ('sha256 = "', 'sha256 = "x', "64 hexadecimal digits"),
        ("num_requests = 20", "num_requests = 0", "in order and apart"),
        ("num_requests = 20", "num_requests = 200", "in order and apart"),
        ("start_row = ", "start_row = -", "in order and apart"),
        ("start_row", "row", "start_row must be a TOML integer"),
        ("adjoin = false", "adjoin = true", "contradicts its rows"),
        ("adjoin = false", "", "adjoin must be a TOML boolean"),
        ("windows = [", "windows = [7,", "start_row must be"),
        ("[source.held_out]", "[source.held_ou]", r"no field 'held_ou'.*'held_out'"),
        ('file = "a.csv"', "", "file must be a TOML string"),
    ],
)
def test_a_set_that_was_edited_is_refused_in_one_line(folder, old, new, says):
    text = freeze(folder)
    assert old in text

    with pytest.raises(TraceError, match=says) as caught:
        WindowSet.load(save(folder, text.replace(old, new)))

    assert "set.toml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_are_no_window_set(tmp_path):
    with pytest.raises(TraceError, match="there is no window set"):
        WindowSet.load(tmp_path / "missing.toml")
    with pytest.raises(TraceError, match="not a window set in TOML"):
        WindowSet.load(tmp_path)
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(TraceError, match="not a window set in TOML"):
        WindowSet.load(tmp_path / "bytes")


def windows_or_message(path, part):
    try:
        return WindowSet.load(path).windows(part)
    except (TraceError, ConfigError) as error:
        return str(error)


@given(data=st.data())
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_damaged_set_gives_the_frozen_windows_or_an_error(folder, data):
    text = freeze(folder, num_windows=1)
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 12)))
    piece = data.draw(st.sampled_from(["", "0", "-", '"', "[", "]", "\n", "1e9", "a", "tuning"]))
    path = save(folder, text[:start] + piece + text[end:])

    windows = windows_or_message(path, "tuning")

    if isinstance(windows, str):
        assert "\n" not in windows
        return
    for window in windows:
        rows = window.trace.prompt_len
        assert rows.tolist() == list(range(rows[0], rows[0] + len(rows)))
        assert window.sha256 in text


def test_a_window_set_of_published_traces(traces_dir, tmp_path):
    text = WindowSet.freeze(
        "published",
        ["azure_2023/AzureLLMInferenceTrace_conv.csv", "mooncake/conversation_trace.jsonl"],
        num_windows=4,
        window_len=500,
        folder=traces_dir,
    )

    windows = WindowSet.load(save(tmp_path, text)).windows("held_out", traces_dir)

    assert [len(window.trace) for window in windows] == [500] * 8
    assert all(isinstance(window, Window) for window in windows)
    assert windows[-1].trace.block_hashes is not None
    assert np.diff([window.start_row for window in windows[:4]]).min() >= 500

"""Windows of a source: real ones first, then modelled ones, and each says which it is."""

import math

import numpy as np
import pytest

from queuesmith.errors import TraceError
from queuesmith.study.inputs import Source, describe_window, features, read_inputs
from queuesmith.traces import Trace, load_trace

MODEL = "azure_2023_conv@model"


@pytest.fixture
def read(tmp_path, monkeypatch, write_log):
    """Read a source from a folder with a log of 80 requests."""
    monkeypatch.delenv("QUEUESMITH_TRACES", raising=False)
    write_log(tmp_path / "log.csv")

    def read(*files, model="", num_windows=2, name="mine", seed=0, window_len=30):
        source = Source(name, files, model, num_windows)
        return read_inputs(source, window_len=window_len, seed=seed, folder=tmp_path)

    return read


def rows_of(inputs):
    return [window.window.trace.sha256 for window in inputs.windows]


def test_real_windows_are_cut_from_the_file_and_know_their_place(read, tmp_path):
    inputs = read("log.csv")
    trace = load_trace(tmp_path / "log.csv")

    assert [window.kind for window in inputs.windows] == ["real", "real"]
    for index, entry in enumerate(inputs.windows):
        start = entry.window.start_row
        assert entry.window.index == index
        assert entry.position == start / 80
        assert entry.window.trace.prompt_len.tolist() == (
            trace.prompt_len[start : start + 30].tolist()
        )
    assert inputs.file == "log.csv"
    assert len(inputs.file_sha256) == 64
    assert inputs.model_version == ""


def test_a_source_with_too_few_requests_is_topped_up_by_its_model(read):
    inputs = read("log.csv", model=MODEL, num_windows=5)

    assert [window.kind for window in inputs.windows] == ["real"] * 2 + ["modelled"] * 3
    assert [window.window.index for window in inputs.windows] == list(range(5))
    assert all(math.isnan(window.position) for window in inputs.windows[2:])
    assert (inputs.num("real"), inputs.num("modelled")) == (2, 3)
    assert "2 of 5 windows" in inputs.notes[-1]
    assert inputs.model_version.startswith("model ")


def test_a_share_of_a_file_is_fewer_users_at_the_times_they_had(tmp_path, read, write_log):
    write_log(tmp_path / "log.csv")
    whole = load_trace(tmp_path / "log.csv")
    source = Source("mine", ("log.csv",), "", 2, share=0.5)
    inputs = read_inputs(source, window_len=10, seed=0, folder=tmp_path)

    lengths = whole.prompt_len.tolist()
    for entry in inputs.windows:
        trace = entry.window.trace
        assert len(trace) == 10
        assert trace.duration > 10 / 80 * whole.duration
        assert set(trace.prompt_len.tolist()) <= set(lengths)


def test_a_table_of_windows_cannot_be_thinned(tmp_path):
    header = "window_id,lambda_ref,request_index,arrival_time_s,prompt_tokens,output_tokens,"
    header += "predicted_output_tokens\n"
    (tmp_path / "windows.csv").write_text(header + "a_w1,2,0,0,5,5,5\na_w1,2,1,1,5,5,5\n")
    source = Source("mine", ("windows.csv",), "", 1, share=0.5)

    with pytest.raises(TraceError, match="cannot be thinned; leave out share"):
        read_inputs(source, window_len=2, seed=0, folder=tmp_path)


def test_a_short_window_does_not_count_as_a_window(read):
    inputs = read("log.csv", model=MODEL, window_len=81)

    assert [window.kind for window in inputs.windows] == ["modelled"] * 2
    assert [len(window.window.trace) for window in inputs.windows] == [81, 81]


def test_modelled_windows_are_drawn_apart(read):
    inputs = read(model=MODEL, num_windows=6)

    assert len(set(rows_of(inputs))) == 6
    assert {window.kind for window in inputs.windows} == {"modelled"}


def test_the_same_seed_gives_the_same_windows_and_another_seed_others(read):
    for options in ({"model": MODEL}, {}):
        files = () if options else ("log.csv",)
        assert rows_of(read(*files, **options)) == rows_of(read(*files, **options))
        assert rows_of(read(*files, **options)) != rows_of(read(*files, seed=1, **options))


def test_two_sources_of_one_model_draw_other_windows(read):
    one, other = read(model=MODEL, name="one"), read(model=MODEL, name="other")

    assert not set(rows_of(one)) & set(rows_of(other))


def test_the_first_file_at_hand_is_used(read):
    assert read("none.csv", "log.csv").file == "log.csv"
    assert read("azure_2023_conv", "log.csv").file == "log.csv"


def test_files_are_found_below_the_folder_of_traces(read, tmp_path, monkeypatch, write_log):
    inside = tmp_path / "traces" / "deep"
    inside.mkdir(parents=True)
    write_log(inside / "other.csv", seed=1)
    monkeypatch.setenv("QUEUESMITH_TRACES", str(tmp_path / "traces"))

    assert read("other.csv").file == "other.csv"
    assert read("deep/other.csv").file == "other.csv"


def test_without_its_file_a_source_is_modelled_and_says_why(read):
    inputs = read("azure_2023_conv", "none.csv", model=MODEL)

    assert inputs.num("modelled") == 2
    assert inputs.file == ""
    assert "traces fetch azure_2023_conv" in inputs.notes[0]
    assert "none.csv is not beside the design" in inputs.notes[0]


@pytest.mark.parametrize(
    ("files", "options", "reason"),
    [
        (("none.csv",), {}, "none.csv is not beside the design"),
        (("log.csv",), {"num_windows": 3}, "log.csv has 2 of 3 windows of 30 requests"),
        (("empty.csv",), {"model": MODEL}, r"empty.csv is empty \(0 bytes\)"),
        (("damaged.csv",), {"model": MODEL}, "damaged.csv"),
    ],
)
def test_what_is_missing_without_a_model_or_damaged_is_refused(
    read, tmp_path, files, options, reason
):
    (tmp_path / "empty.csv").write_bytes(b"")
    (tmp_path / "damaged.csv").write_bytes(b"\x28\xb5\x2f\xfd\0\0\0\0")

    with pytest.raises(TraceError, match=reason):
        read(*files, **options)


def test_a_table_of_windows_keeps_its_windows_and_predictions(read, tmp_path):
    head = "window_id,lambda_ref,arrival_time_s,prompt_tokens,output_tokens,predicted_output_tokens"
    lines = [
        f"w{window},2.5,{row},{row + 1},{row + 2},{row + 3 + window}"
        for window in range(3)
        for row in range(5)
    ]
    (tmp_path / "windows.csv").write_text("\n".join([head, *lines]) + "\n")

    inputs = read("windows.csv")

    assert [window.window.name for window in inputs.windows] == ["w0", "w1"]
    assert inputs.windows[1].window.predicted_output_tokens.tolist() == [4, 5, 6, 7, 8]
    assert describe_window(inputs.windows[0])["lambda_ref"] == 2.5
    # Rows are the same in both; only the predictions differ.
    assert len({window.window.sha256 for window in inputs.windows}) == 1
    assert len({window.sha256 for window in inputs.windows}) == 2


def test_features_are_those_of_the_trace():
    lengths = np.arange(1, 101)
    trace = Trace(
        np.arange(100) * 0.5, lengths, lengths[::-1], client=[0] * 60 + [1] * 30 + [-1] * 10
    )

    measured = features(trace)

    assert measured["gap_cv"] == 0
    assert measured["count_cv_1s"] == 0
    assert measured["prompt_p50"] == 50.5
    assert measured["rank_corr"] == pytest.approx(-1)
    assert measured["share_one_client"] == 0.6
    assert measured["prompt_cv"] == pytest.approx(lengths.std() / lengths.mean())


def test_features_of_a_trace_too_short_for_them_are_nan():
    measured = features(Trace([0.0, 0.1], [5, 5], [3, 4]))

    assert math.isnan(measured["count_cv_1s"])
    assert math.isnan(measured["rank_corr"])
    assert math.isnan(measured["share_one_client"])


def test_real_traces_come_first_in_the_atlas(traces_dir, monkeypatch):
    from queuesmith.study.design import Design

    monkeypatch.setenv("QUEUESMITH_TRACES", str(traces_dir))
    counts = {
        inputs.source.name: (inputs.num("real"), inputs.num("modelled"))
        for inputs in Design.load("atlas").inputs
    }

    assert counts["azure_2023_conv"] == (19, 1)
    assert counts["azure_2023_code"] == (8, 12)
    assert counts["mooncake_conversation"] == (12, 8)
    assert {real + modelled for real, modelled in counts.values()} == {20}

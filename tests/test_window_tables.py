"""Tables of windows: one row per request, every window on its own clock."""

import numpy as np
import pytest

from queuesmith.errors import TraceError
from queuesmith.windows import UNKNOWN_ROW, adjoin
from queuesmith.windows.tables import read_windows

HEADER = (
    "window_id,lambda_ref,request_index,arrival_time_s,prompt_tokens,output_tokens,"
    "predicted_output_tokens\n"
)
ROWS = "b,2.5,0,0.0,10,4,5\nb,2.5,1,0.5,11,5,6\na,3,0,0,20,6,7\na,3,1,7,21,7,8\n"


@pytest.fixture
def read(tmp_path):
    """Return a function that writes a table and reads its windows."""

    def read_text(text):
        path = tmp_path / "windows.csv"
        path.write_text(text, encoding="utf-8")
        return read_windows(path)

    return read_text


def test_windows_in_order_of_appearance_with_what_was_published_of_them(read):
    first, second = windows = read(HEADER + ROWS)

    assert [(window.name, window.index) for window in windows] == [("b", 0), ("a", 1)]
    assert (first.lambda_ref, second.lambda_ref) == (2.5, 3)
    assert first.trace.arrival_time.tolist() == [0, 0.5]
    assert second.trace.prompt_len.tolist() == [20, 21]
    assert second.trace.output_len.tolist() == [6, 7]
    assert first.predicted_output_tokens.tolist() == [5, 6]
    assert first.trace.origin.reader == "lssp"
    assert first.trace.session is None
    assert first.sha256 == first.trace.sha256 != second.sha256
    assert first.start_row == UNKNOWN_ROW
    assert not adjoin(windows)


def test_predictions_stay_with_rows_that_are_dropped_and_sorted(read):
    (window,) = read(
        HEADER
        + "w,1,0,3,10,4,40\nw,1,1,1,11,0,50\nw,1,2,1,12,6,60\nw,1,3,2,13,7,\nw,1,4,2,14,7,-3\n"
    )

    assert window.trace.prompt_len.tolist() == [12, 13, 14, 10]
    assert window.predicted_output_tokens == pytest.approx([60, np.nan, np.nan, 40], nan_ok=True)
    assert window.trace.origin.dropped == {"output_len 0: a failed request": 1}


def test_rows_without_a_window_are_counted(read):
    windows = read(HEADER + ROWS + ",1,0,0,1,1,1\nb,2\n")

    assert [len(window.trace) for window in windows] == [2, 2]
    assert windows[0].trace.origin.notes == (
        "rows of the file that could not be read: 1",
        "rows of the file that name no window: 1",
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (HEADER.replace("lambda_ref", "rate") + ROWS, "no column lambda_ref"),
        ("arrival_time,prompt_len,output_len\n1,2,3\n", "load_trace reads traces"),
        (HEADER, "has no window"),
        (HEADER + ROWS.replace("a,3,1", "a,4,1"), "window a must have the same lambda_ref"),
        (HEADER + ROWS.replace("2.5", "0"), "window b must have the same lambda_ref"),
        (HEADER + ROWS.replace("2.5", "inf"), "window b must have the same lambda_ref"),
        (HEADER + "w,1,0,0,0,0,1\n", "no usable row"),
    ],
)
def test_what_is_no_table_of_windows_is_refused(read, text, says):
    with pytest.raises(TraceError, match=says):
        read(text)


@pytest.mark.parametrize(
    ("name", "lambda_ref", "first", "last"),
    [
        ("azure_llm_2024", 114.818270379, (496, 40, 47), "azure_llm_2024_pilot_v2_w19"),
        ("bailian_qwen", 55.683059817, (344, 21, 24), "bailian_qwen_pilot_v2_w19"),
        ("burstgpt", 444.533334928, (202, 7, 8), "burstgpt_pilot_v2_w19"),
    ],
)
def test_the_published_windows(traces_dir, name, lambda_ref, first, last):
    windows = read_windows(traces_dir / "lssp_windows" / f"{name}.csv")

    assert [len(window.trace) for window in windows] == [200] * 10
    assert windows[0].lambda_ref == lambda_ref
    trace = windows[0].trace
    predicted = int(windows[0].predicted_output_tokens[0])
    assert (int(trace.prompt_len[0]), int(trace.output_len[0]), predicted) == first
    assert windows[-1].name == last
    assert all(window.trace.origin.dropped == {} for window in windows)

"""Damaged files: whatever the bytes, a reader gives a sound trace or a TraceError, nothing else."""

import gzip
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from queuesmith.errors import TraceError
from queuesmith.traces import MAX_TOKENS, load_trace

NUM_ROWS = 12


def _table():
    return pa.table(
        {
            "arrival_time": np.arange(NUM_ROWS) * 0.25,
            "prompt_len": np.arange(NUM_ROWS) + 100,
            "output_len": np.arange(NUM_ROWS) + 1,
            "client": [f"client {row % 3}" for row in range(NUM_ROWS)],
            "max_tokens": pa.array([None, *range(100, 99 + NUM_ROWS)]),
            "deadline": np.arange(NUM_ROWS) + 10.0,
        }
    )


def _parquet():
    stream = pa.BufferOutputStream()
    pa.parquet.write_table(_table(), stream, compression="none")
    return stream.getvalue().to_pybytes()


def _csv():
    lines = [",".join(_table().column_names)]
    for row in _table().to_pylist():
        lines.append(",".join("" if value is None else str(value) for value in row.values()))
    return "\n".join(lines).encode()


def _azure():
    rows = [f"2023-11-16 18:17:{row:02d}.1234567,{row + 5},{row + 1}" for row in range(NUM_ROWS)]
    return "\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]).encode()


FILES = {
    "azure": _azure(),
    "csv": _csv(),
    "jsonl": "\n".join(json.dumps(row) for row in _table().to_pylist()).encode(),
    "gzip": gzip.compress(_csv(), mtime=0),
    "zstd": pa.compress(_azure(), codec="zstd", asbytes=True),
    "parquet": _parquet(),
}
#: Pieces that readers trip over, beside random bytes.
PIECES = [
    *(b",", b"\n", b"\r", b'"', b"{", b"}", b"[", b"#", b";", b"-", b"e", b".", b"\0", b"\xff"),
    *(b"nan", b"inf", b"-1", b"0", b"1e308", b"9" * 25, b"null", b"true", b"0.5", b"PAR1"),
    *(b"2024-02-30 10:00:00", b"1700-01-01", b"2262-01-01", b"+25:00", b"Z", b"\\ud800", b"\xef"),
]


def read_or_refuse(path):
    """Return the trace, or the message of the TraceError."""
    try:
        return load_trace(path)
    except TraceError as error:
        return str(error)


@st.composite
def damaged(draw, content):
    """Cut out, put in, repeat and truncate pieces of a valid file."""
    data = bytearray(content)
    for _ in range(draw(st.integers(1, 6))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(0, 12)))
        piece = draw(st.sampled_from(PIECES) | st.binary(max_size=6))
        action = draw(st.sampled_from(["replace", "insert", "delete", "repeat", "truncate"]))
        if action == "replace":
            data[start : start + len(piece)] = piece
        elif action == "insert":
            data[start:start] = piece
        elif action == "delete":
            del data[start:end]
        elif action == "repeat":
            data[end:end] = data[start:end] * 3
        else:
            del data[max(start, 1) :]
    return bytes(data)


@pytest.mark.parametrize("form", FILES)
@given(data=st.data())
@settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_damaged_file_gives_a_sound_trace_or_a_trace_error(tmp_path, form, data):
    path = tmp_path / "trace"
    path.write_bytes(data.draw(damaged(FILES[form])))

    trace = read_or_refuse(path)

    if isinstance(trace, str):
        assert "\n" not in trace
        assert len(trace) < 2_000
        return
    assert len(trace) >= 1
    assert trace.arrival_time[0] == 0
    assert (np.diff(trace.arrival_time) >= 0).all()
    for lengths in (trace.prompt_len, trace.output_len):
        assert ((lengths >= 1) & (lengths <= MAX_TOKENS)).all()
    assert all(count > 0 for count in trace.origin.dropped.values())


CELLS = st.sampled_from(
    ["1", "7", "0", "-1", "1.5", "", " ", "nan", "inf", "x", "1e9", "2024-01-01", '"a,b"', "é"]
)


@given(rows=st.lists(st.lists(CELLS, min_size=1, max_size=5), max_size=12))
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_no_row_of_a_table_goes_missing_uncounted(tmp_path, rows):
    """Kept and dropped rows add up; a first row that is fine keeps every file readable."""
    lines = ["arrival_time,prompt_len,output_len", "1,1,1", *(",".join(row) for row in rows)]
    path = tmp_path / "trace"
    path.write_text("\n".join(lines), encoding="utf-8")

    trace = read_or_refuse(path)

    if isinstance(trace, str):
        assert "no usable row" in trace  # most times are dates, so the number is none
        assert sum(row[:1] == ["2024-01-01"] for row in rows) > 1
        return
    blank = sum(len(row) == 1 and not row[0] for row in rows)
    assert len(trace) + sum(trace.origin.dropped.values()) == len(rows) + 1 - blank

"""Damaged files: whatever the bytes, a reader gives a sound trace or a TraceError, nothing else."""

import gzip
import io
import json
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from queuesmith.errors import TraceError
from queuesmith.traces import MAX_TOKENS, load_trace
from queuesmith.traces.readers.servegen import read_servegen
from queuesmith.windows.tables import read_windows

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


def _burstgpt():
    rows = [
        f"{row},GPT-{row % 2},{row + 9},{row + 1},{2 * row + 10},API log,{row // 3},0.5"
        for row in range(NUM_ROWS)
    ]
    header = (
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type,Session ID,"
        "Elapsed time"
    )
    return "\n".join([header, *rows]).encode()


def _hashed(names):
    return "\n".join(
        json.dumps(
            dict.fromkeys(names, row - 1)
            | {"chat_id": row, "turn": 1, "type": "text"}
            | {"timestamp": row * 1000, "input_length": row + 9, "output_length": row + 1}
            | {"hash_ids": [1, row]}
        )
        for row in range(NUM_ROWS)
    ).encode()


def _windows():
    rows = [
        f"w{row // 6},1.5,{row % 6},{row % 6 * 0.5},{row + 9},{row + 1},{row + 2}"
        for row in range(NUM_ROWS)
    ]
    header = (
        "window_id,lambda_ref,request_index,arrival_time_s,prompt_tokens,output_tokens,"
        "predicted_output_tokens"
    )
    return "\n".join([header, *rows]).encode()


FILES = {
    "azure": _azure(),
    "azure seconds": b"# shuffled, 2024-05-10\n" + _azure().replace(b"TIMESTAMP", b"arrival_s"),
    "burstgpt": _burstgpt(),
    "mooncake": _hashed([]).replace(b'"chat_id"', b'"id"'),
    "bailian": _hashed(["parent_chat_id"]),
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


def read_or_refuse(path, read=load_trace):
    """Return what was read, or the message of the TraceError."""
    try:
        return read(path)
    except TraceError as error:
        return str(error)


def assert_one_line(message):
    assert "\n" not in message
    assert len(message) < 2_000


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
        assert_one_line(trace)
        return
    assert len(trace) >= 1
    assert trace.arrival_time[0] == 0
    assert (np.diff(trace.arrival_time) >= 0).all()
    for lengths in (trace.prompt_len, trace.output_len):
        assert ((lengths >= 1) & (lengths <= MAX_TOKENS)).all()
    assert all(count > 0 for count in trace.origin.dropped.values())


@given(data=st.data())
@settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_damaged_table_of_windows_gives_sound_windows_or_a_trace_error(tmp_path, data):
    path = tmp_path / "windows"
    path.write_bytes(data.draw(damaged(_windows())))

    windows = read_or_refuse(path, read_windows)

    if isinstance(windows, str):
        assert_one_line(windows)
        return
    for window in windows:
        assert window.trace.arrival_time[0] == 0
        assert len(window.predicted_output_tokens) == len(window.trace)
        assert 0 < window.lambda_ref < np.inf


SERVEGEN = {
    "chunk-0-trace.csv": b"0,0,0,,0,0\n600,0.5,1.2,Gamma,0.7,2.9\n1200,0.1,2,Weibull,0.5,5\n",
    "chunk-0-dataset.json": json.dumps(
        {
            "0": {"input_tokens": "{45: 0.25, 9: 0.75}", "output_tokens": "{7: 1.0}"},
            "21600": {"input_tokens": "{}", "output_tokens": "{}", "reason_ratio": "{0.5: 1}"},
        }
    ).encode(),
}


@pytest.mark.parametrize("name", SERVEGEN)
@given(data=st.data())
@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_damaged_statistics_are_sound_or_a_trace_error(tmp_path, name, data):
    for each, content in SERVEGEN.items():
        (tmp_path / each).write_bytes(data.draw(damaged(content)) if each == name else content)

    statistics = read_or_refuse(tmp_path, read_servegen)

    if isinstance(statistics, str):
        assert_one_line(statistics)
        return
    (client,) = statistics.clients
    assert (np.diff(client.start) > 0).all()
    assert np.isfinite(client.rate).all()
    for one in client.lengths:
        assert one.prompt_len.values[0] >= 1
        assert one.output_len.weights.sum() == pytest.approx(1)


@given(data=st.data())
@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_damaged_archive_of_statistics_is_read_or_a_trace_error(tmp_path, data):
    packed = io.BytesIO()
    with tarfile.open(
        fileobj=packed, mode=data.draw(st.sampled_from(["w", "w:xz", "w:gz"]))
    ) as tar:
        for name, content in SERVEGEN.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    path = tmp_path / "statistics"
    path.write_bytes(data.draw(damaged(packed.getvalue())))

    for read in (read_servegen, load_trace):
        answer = read_or_refuse(path, read)
        if isinstance(answer, str):
            assert_one_line(answer)
        else:
            assert read is read_servegen


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


@pytest.mark.parametrize(
    "client",
    [
        pa.DictionaryArray.from_arrays(pa.array([0] * 3000, pa.int32()), pa.array(["x" * 100_000])),
        pa.array([[7] * 10_000] * 3000, pa.list_(pa.int8())),
    ],
    ids=["texts", "lists"],
)
def test_a_small_file_that_unpacks_to_much_is_refused_before_it_does(tmp_path, client):
    numbers = pa.array(range(3000))
    table = pa.table({"arrival_time": numbers, "prompt_len": numbers, "client": client})
    path = tmp_path / "small.parquet"
    pa.parquet.write_table(table.append_column("output_len", numbers), path, compression="zstd")
    assert path.stat().st_size < 300_000

    before = pa.default_memory_pool().max_memory()
    with pytest.raises(TraceError, match=r"bytes unpack to [23]\d\d,\d{3},\d{3}, as those of no"):
        load_trace(path)
    assert pa.default_memory_pool().max_memory() <= max(before, 100_000_000)


def test_texts_that_are_kept_once_each_are_read_as_they_are(tmp_path):
    names = [None, "one", "two", "one"]
    columns = {"arrival_time": [0, 1, 2, 3], "prompt_len": [1] * 4, "output_len": [1] * 4}
    plain, nested = tmp_path / "plain.parquet", tmp_path / "nested.parquet"
    pa.parquet.write_table(pa.table(columns | {"client": names}), plain, row_group_size=2)
    within = [{"client": name} for name in names]
    pa.parquet.write_table(pa.table(columns | {"of": within}), nested, row_group_size=2)

    clients = load_trace(plain).client.tolist()
    assert clients[0] == -1
    assert clients[1] == clients[3] != clients[2]
    assert load_trace(nested, columns={"client": "of.client"}).client.tolist() == clients

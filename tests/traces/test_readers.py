"""Reading trace files: what is understood, what is left out and counted, what is refused."""

import gzip
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from queuesmith.errors import ConfigError, TraceError
from queuesmith.traces import load_trace
from queuesmith.traces.columns import jsonl

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
2023-11-16 18:18:03.9799601,110,27
"""
PLAIN = "arrival_time,prompt_len,output_len\n10,100,7\n10.5,200,8\n12,300,9\n"
HEADER = "arrival_time,prompt_len,output_len\n"
ASSUMED = "arrival_time taken as seconds, since nothing in the file says; --unit says otherwise"
AS_MOONCAKE = (
    "times taken as s, since in ms, as in Mooncake traces, 1,000 requests would come in a second; "
    "--unit says otherwise"
)


@pytest.fixture
def write(tmp_path):
    """Return a function that writes text or bytes to a file and returns its path."""

    def write_file(content, name="trace.dat"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write_file


def rows(trace):
    return [
        (float(arrival), int(prompt), int(output))
        for arrival, prompt, output in zip(
            trace.arrival_time, trace.prompt_len, trace.output_len, strict=True
        )
    ]


PLAIN_ROWS = [(0.0, 100, 7), (0.5, 200, 8), (2.0, 300, 9)]


def test_azure_timestamps_keep_all_seven_digits(write):
    trace = load_trace(write(AZURE))

    assert trace.origin.reader == "azure_2023"
    assert trace.arrival_time == pytest.approx([0, 0.052, 60.0000001], abs=1e-9)
    assert trace.prompt_len.tolist() == [4808, 3180, 110]
    assert trace.output_len.tolist() == [10, 8, 27]


def test_azure_2024_time_zones_comments_and_column_order(write):
    text = (
        "# about the file\n# more\n"
        "generatedTokens,Timestamp,CONTEXTTOKENS\n"
        "17,2024-05-12 00:00:00.001163+00:00,2320\n"
        "18,2024-05-12 02:00:00.501163+02:00,2321\n"
    )

    trace = load_trace(write(text))

    assert trace.origin.reader == "azure_2024"
    assert rows(trace) == [(0.0, 2320, 17), (0.5, 2321, 18)]


def test_times_with_and_without_zone_mix_and_count_as_utc(write):
    text = HEADER + "2024-01-01 00:00:00,1,1\n2024-01-01T02:00:01+01:00,1,1\n2024-01-01,2,1\n"

    trace = load_trace(write(text))

    assert rows(trace) == [(0.0, 1, 1), (0.0, 2, 1), (3601.0, 1, 1)]


@pytest.mark.parametrize(
    "content",
    [
        PLAIN,
        "\ufeff" + PLAIN,
        PLAIN.replace("\n", "\r\n"),
        PLAIN.replace(",", ";"),
        PLAIN.replace(",", "\t"),
        PLAIN.rstrip("\n"),
        "\n\n" + PLAIN,
        PLAIN.replace("100", '"100"').replace("prompt_len", '"prompt_len"'),
        PLAIN.replace("100", " 100 "),
        "text,model,arrival_time,prompt_len,output_len\n"
        '"a ""b"", c",x,10,100,7\n"two\nlines",x,10.5,200,8\n,,12,300,9\n',
        "Output Tokens,Prompt Tokens,Timestamp\n7,100,10\n8,200,10.5\n9,300,12\n",
        "output_length,input_length,TIMESTAMP\n7,100.0,1e1\n8,2e2,+10.5\n9,300,12.\n",
        gzip.compress(PLAIN.encode(), mtime=0),
        pa.compress(PLAIN.encode(), codec="zstd", asbytes=True),
        '{"timestamp": 10, "input_length": 100, "output_length": 7}\n'
        '{"output_length": 8, "timestamp": 10.5, "input_length": 200, "hash": [1]}\n\n'
        '{"timestamp": "12", "input_length": "300", "output_length": 9}\n',
    ],
    ids=[
        "plain",
        "byte order mark",
        "windows line ends",
        "semicolons",
        "tabs",
        "no last line end",
        "blank lines first",
        "quotes",
        "spaces",
        "more columns, quoted line end",
        "other order and names",
        "other number forms",
        "gzip",
        "zstd",
        "jsonl",
    ],
)
def test_one_table_in_many_spellings(write, content):
    trace = load_trace(write(content))

    assert rows(trace) == PLAIN_ROWS
    assert trace.origin.dropped == {}
    assert trace.origin.notes in ((ASSUMED,), (AS_MOONCAKE,))


@pytest.mark.parametrize("arrivals", ["float", "timestamp", "date string", "decimal"])
def test_parquet_of_any_time_type(tmp_path, arrivals):
    seconds = pa.array([10.0, 10.5, 12.0])
    column = {
        "float": seconds,
        "timestamp": pa.array([10_000, 10_500, 12_000], pa.timestamp("ms", "UTC")),
        "date string": pa.array([f"2024-01-01T00:00:{s}Z" for s in ("10", "10.5", "12")]),
        "decimal": seconds.cast(pa.decimal128(10, 2)),
    }[arrivals]
    table = pa.table(
        {
            "arrival_time": column,
            "prompt_tokens": pa.array([100, 200, 300], pa.int16()),
            "output_tokens": pa.array([7, 8, 9], pa.uint8()),
            "user": pa.array(["b", "a", "b"]).dictionary_encode(),
        }
    )
    pa.parquet.write_table(table, tmp_path / "no_suffix")

    trace = load_trace(tmp_path / "no_suffix")

    assert rows(trace) == PLAIN_ROWS
    assert trace.client.tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("unit", "per_second"), [("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)]
)
def test_units_of_whole_numbers_lose_no_digit(write, unit, per_second):
    start = 1_700_000_000 * per_second
    text = HEADER + f"{start},1,1\n{start + 1},2,2\n"

    trace = load_trace(write(text), unit=unit)

    assert trace.arrival_time[1] == 1 / per_second


def test_columns_are_mapped_by_the_user(write):
    text = (
        "when,in,out,who,chat,urgency,cap,due,prompt_len\n"
        "1,10,5,ann,x,2,50,9,777\n2,20,6,bob,x,0,,,777\n3,30,7,ann,,-1,70,12,777\n"
    )

    trace = load_trace(
        write(text),
        columns={
            "arrival_time": "when",
            "prompt_len": "in",
            "output_len": "out",
            "client": "who",
            "session": "chat",
            "priority": "urgency",
            "max_tokens": "cap",
            "deadline": "due",
        },
    )

    assert rows(trace) == [(0, 10, 5), (1, 20, 6), (2, 30, 7)]
    assert trace.client.tolist() == [0, 1, 0]
    assert trace.session.tolist() == [0, 0, -1]
    assert trace.priority.tolist() == [2, 0, -1]
    assert trace.max_tokens[[0, 2]].tolist() == [50, 70]
    assert trace.deadline.tolist() == [8, np.inf, 11]
    assert trace.origin.notes == (
        "requests without max_tokens: 1",
        "requests without deadline: 1",
        ASSUMED,
    )


def test_client_numbers_stay_and_missing_ones_are_minus_one(write):
    text = "arrival_time,prompt_len,output_len,client_id\n1,1,1,42\n2,1,1,\n3,1,1,7\n"

    assert load_trace(write(text)).client.tolist() == [42, -1, 7]


def test_client_numbers_that_pandas_made_floats_stay_numbers(tmp_path):
    table = pa.table(
        {
            "arrival_time": [1.0, 2.0, 3.0],
            "prompt_len": [1.0, 1.0, 1.0],
            "output_len": [1, 1, 1],
            "client": [42.0, float("nan"), 7.0],
        }
    )
    pa.parquet.write_table(table, tmp_path / "trace")

    assert load_trace(tmp_path / "trace").client.tolist() == [42, -1, 7]


def test_every_bad_row_is_counted_under_its_first_reason(write):
    text = (
        HEADER
        + "nan,1,1\ninf,1,1\n,1,1\nyesterday,1,1\n-1,1,1\n1e300,1,1\n"
        + "5,0,1\n5,-3,1\n5,1.5,1\n5,,1\n5,many,1\n5,100000001,1\n"
        + "5,1,0\n5,1,-1\n5,1,0.5\n5,1,1e30\n"
        + "5,1\n5,1,1,1\n"
        + "6,10,20\n7,10,20\n"
    )

    trace = load_trace(write(text))

    assert trace.origin.dropped == {
        "row could not be read": 2,
        "arrival_time missing, infinite or not a time": 4,
        "arrival_time negative": 1,
        "arrival_time above 3.2e+11 s": 1,
        "output_len 0: a failed request": 1,
        "prompt_len missing or not a number": 2,
        "prompt_len negative": 1,
        "prompt_len not a whole number": 1,
        "prompt_len above 100,000,000 tokens": 1,
        "prompt_len 0": 1,
        "output_len negative": 1,
        "output_len not a whole number": 1,
        "output_len above 100,000,000 tokens": 1,
    }
    assert rows(trace) == [(0, 10, 20), (1, 10, 20)]


def test_a_date_that_does_not_exist_costs_one_row(write):
    text = HEADER + "2024-02-29 10:00:00,1,1\n2024-02-30 10:00:00,1,1\n2024-02-29 10:00:05,2,2\n"

    trace = load_trace(write(text))

    assert rows(trace) == [(0, 1, 1), (5, 2, 2)]
    assert sum(trace.origin.dropped.values()) == 1


def test_the_first_kept_arrival_is_zero(write):
    trace = load_trace(write(HEADER + "3,0,1\n10,1,1\n11,1,1\n"))

    assert trace.arrival_time.tolist() == [0, 1]


def test_rows_out_of_order_are_sorted_stably_with_a_note(write):
    trace = load_trace(write(HEADER + "5,1,1\n3,2,1\n5,3,1\n3,4,1\n"))

    assert rows(trace) == [(0, 2, 1), (0, 4, 1), (2, 1, 1), (2, 3, 1)]
    assert trace.origin.notes == ("rows out of order, now sorted by arrival time: 2", ASSUMED)


def test_broken_json_lines_cost_their_rows_only(write):
    good = '{"arrival_time": %d, "input_length": 1, "output_length": 1}\n'
    text = good % 1 + '{"timestamp": 2, "inp\n[1, 2]\n' + "[" * 100_000 + "\n" + good % 3

    trace = load_trace(write(text))

    assert trace.arrival_time.tolist() == [0, 2]
    assert trace.origin.dropped == {"row could not be read": 3}


def test_json_values_of_mixed_type_are_judged_one_by_one(write):
    outputs = [5, "6", 7.0, None, True, [8], {"n": 9}, "ten", 10**30, "\ud800", float("nan")]
    text = "".join(
        json.dumps({"timestamp": second, "input_length": 1, "output_length": output}) + "\n"
        for second, output in enumerate(outputs)
    )

    trace = load_trace(write(text))

    assert rows(trace) == [(0, 1, 5), (1, 1, 6), (2, 1, 7)]
    assert sum(trace.origin.dropped.values()) == 8


def test_json_keys_may_be_missing_from_the_first_lines(write):
    text = (
        '{"timestamp": 0, "input_length": 1, "output_length": 1}\n'
        '{"timestamp": 1, "input_length": 1, "output_length": 1, "max_tokens": 64}\n'
    )

    assert load_trace(write(text)).max_tokens[1] == 64


def test_one_column_may_serve_twice(write):
    trace = load_trace(
        write("ts,tokens\n1,5\n"), columns={"prompt_len": "tokens", "output_len": "tokens"}
    )

    assert rows(trace) == [(0, 5, 5)]


def test_the_origin_names_the_file_and_hashes_its_bytes(write):
    path = write(gzip.compress(PLAIN.encode(), mtime=0), "mine.csv.gz")

    origin = load_trace(path).origin

    assert (origin.kind, origin.source, origin.reader) == ("real", "mine.csv.gz", "table")
    assert len(origin.sha256) == 64
    assert origin.sha256 != load_trace(write(PLAIN)).origin.sha256


def test_the_first_requests_of_a_file(write):
    trace = load_trace(write(PLAIN), num_requests=2)

    assert rows(trace) == PLAIN_ROWS[:2]
    assert trace.origin.notes == (ASSUMED, "the first 2 of 3 requests")


PARQUET = pa.BufferOutputStream()
pa.parquet.write_table(pa.table({"arrival_time": [1.0], "prompt_len": [1]}), PARQUET)
PARQUET_BYTES = PARQUET.getvalue().to_pybytes()
LIST_COLUMN = pa.BufferOutputStream()
pa.parquet.write_table(
    pa.table({"arrival_time": [1.0], "prompt_len": [[1]], "output_len": [1]}), LIST_COLUMN
)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "is empty"),
        ("\n\n", "no rows"),
        ("# only a comment", "no rows"),
        (HEADER, "no rows"),
        (HEADER + "x,y,z\n", "no usable row"),
        (HEADER + "1,1\n", "no usable row"),
        ("1,2,3\n4,5,6\n", "--columns"),
        ("arrival_time,prompt_len\n1,2\n", "--columns output_len=NAME"),
        ("ts,prompt_len,output_len,prompt_len\n1,2,3,4\n", "more than one column named"),
        ("a" * 100_000, "no table with a header"),
        ('"' * 100_001, "trace.dat"),
        (PLAIN.encode("utf-16"), "save it as"),
        (PLAIN.encode() + b"\xff\xfe", "not UTF-8"),
        (PLAIN.encode() + b"\0", "is binary"),
        ("[" + '{"timestamp": 1}' + "]", "no column known as prompt_len"),
        ("[1, 2]", "--columns"),
        ('{"timestamp": 1\n', "no line is a JSON object"),
        ("{}\n", "no line is a JSON object"),
        (gzip.compress(PLAIN.encode(), mtime=0)[:-12], "damaged gzip"),
        (gzip.compress(PLAIN.encode(), mtime=0) + b"junk", "damaged gzip"),
        (b"\x1f\x8b", "damaged gzip"),
        (b"\x28\xb5\x2f\xfd123", "damaged zstd"),
        (b"PAR1", "damaged Parquet"),
        (PARQUET_BYTES[:-20], "damaged Parquet"),
        (PARQUET_BYTES, "--columns output_len=NAME"),
        (LIST_COLUMN.getvalue().to_pybytes(), "not numbers"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_line_that_names_the_file(write, content, says):
    path = write(content)

    with pytest.raises(TraceError) as caught:
        load_trace(path)

    message = str(caught.value)
    assert says in message
    assert "trace.dat" in message
    assert "\n" not in message
    assert caught.value.__cause__ is None


def test_missing_files_and_directories(tmp_path):
    with pytest.raises(TraceError, match="there is no file"):
        load_trace(tmp_path / "missing.csv")
    with pytest.raises(TraceError, match="is a directory"):
        load_trace(tmp_path)
    with pytest.raises(TraceError, match="cannot be read"):
        load_trace(Path("x" * 300 + ".csv"))
    with pytest.raises(TraceError, match="cannot be read"):
        load_trace("a\0b.csv")


def test_options_that_make_no_sense(write):
    path = write(PLAIN)

    with pytest.raises(ConfigError, match="Did you mean 'prompt_len'"):
        load_trace(path, columns={"promt_len": "prompt_len"})
    with pytest.raises(TraceError, match=r"no column 'promptlen'.*Did you mean 'prompt_len'"):
        load_trace(path, columns={"prompt_len": "promptlen"})
    with pytest.raises(ConfigError, match="unit must be one of s, ms, us, ns"):
        load_trace(path, unit="min")
    with pytest.raises(ConfigError, match="num_requests must be from 1"):
        load_trace(path, num_requests=0)


def test_deadlines_on_another_clock_are_refused(write):
    text = "arrival_time,prompt_len,output_len,deadline\n2024-01-01,1,1,5\n"

    with pytest.raises(TraceError, match="one clock"):
        load_trace(write(text))


def test_times_that_a_log_has_batched_are_noted(write):
    batched = HEADER + "".join(f"{row // 5 * 3},1,1\n" for row in range(200))
    plain = HEADER + "".join(f"{row * 3},1,1\n" for row in range(200))

    assert load_trace(write(batched)).origin.notes == (
        "the requests arrive at only 40 different times, mostly 3 s apart: shorter gaps are not "
        "known",
        ASSUMED,
    )
    assert load_trace(write(plain)).origin.notes == (ASSUMED,)


def test_duplicated_rows_are_requests_of_their_own(write):
    trace = load_trace(write(PLAIN + "12,300,9\n12,300,9\n"))

    assert rows(trace) == [*PLAIN_ROWS, PLAIN_ROWS[-1], PLAIN_ROWS[-1]]


def test_broken_lines_of_a_large_jsonl_file_cost_their_rows_only(write, monkeypatch):
    """Blocks are read apart, here with whole numbers, floats, text, nothing, or a broken line."""
    monkeypatch.setattr(jsonl, "_BLOCK", 200)
    lines = [
        f'{{"timestamp": {second}, "input_length": 5, "output_length": {output}}}'
        for second, output in enumerate(
            [*[3] * 20, *["4.0"] * 20, '"5"', *[6] * 20, "null", *[7] * 20, "[8]"]
        )
    ]
    lines.insert(50, '{"timestamp": 9')

    trace = load_trace(write("\n".join(lines)))

    assert trace.output_len.tolist() == [3] * 20 + [4] * 20 + [5] + [6] * 20 + [7] * 20
    assert trace.arrival_time.tolist() == [*range(61), *range(62, 82)]
    assert trace.origin.dropped == {
        "row could not be read": 1,
        "output_len missing or not a number": 2,
    }


def test_two_objects_in_a_line_are_one_broken_line(write):
    good = '{"arrival_time": %d, "input_length": 1, "output_length": 1}'
    text = f"{good % 0}\n{good % 1} {good % 2}\n{good % 3}\n"

    trace = load_trace(write(text))

    assert trace.arrival_time.tolist() == [0, 3]
    assert trace.origin.dropped == {"row could not be read": 1}

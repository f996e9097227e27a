"""Published formats: each is known by its columns, however they are written down."""

import csv
import gzip
import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from queuesmith.errors import ConfigError, TraceError
from queuesmith.traces import load_trace
from queuesmith.traces.readers.bailian import link_sessions

BURSTGPT = [
    {
        "Timestamp": 5 + 40 * row,
        "Model": "ChatGPT" if row % 3 else "GPT-4",
        "Request tokens": 472 + row,
        "Response tokens": 0 if row == 4 else 18 + row,
        "Total tokens": 490 + 2 * row,
        "Log Type": "Conversation log",
    }
    for row in range(12)
]
BURSTGPT_2 = [
    row | {"Session ID": f"s{place // 2}" if place != 3 else "", "Elapsed time": 0.5}
    for place, row in enumerate(BURSTGPT)
]
AZURE_2023 = [
    {
        "TIMESTAMP": f"2023-11-16 18:17:{row:02d}.9799600",
        "ContextTokens": 100 + row,
        "GeneratedTokens": 10 + row,
    }
    for row in range(12)
]
AZURE_2024 = [
    row | {"TIMESTAMP": f"2024-05-12 00:00:{place:02d}.001163+00:00"}
    for place, row in enumerate(AZURE_2023)
]
MOONCAKE = [
    {
        "timestamp": 3000 * row,
        "input_length": 1000 + row,
        "output_length": 5 + row,
        "hash_ids": [0, row + 1],
    }
    for row in range(12)
]
BAILIAN = [
    {
        "chat_id": 100 + row,
        "parent_chat_id": 97 + row if row > 2 else -1,
        "timestamp": 61.114 + row,
        "input_length": 30 + row % 3,
        "output_length": 132 + row,
        "type": "text",
        "turn": row // 3 + 1,
        "hash_ids": [7, 1000 + row],
    }
    for row in range(12)
]
FORMATS = {
    "azure_2023": AZURE_2023,
    "azure_2024": AZURE_2024,
    "burstgpt": BURSTGPT,
    "burstgpt 1.2": BURSTGPT_2,
    "mooncake": MOONCAKE,
    "bailian": BAILIAN,
}
#: Formats without lists, which CSV can hold.
FLAT = [name for name in FORMATS if name not in ("mooncake", "bailian")]


def as_csv(rows, **options):
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n", **options)
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def as_jsonl(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def as_parquet(rows):
    stream = pa.BufferOutputStream()
    pa.parquet.write_table(pa.Table.from_pylist(rows), stream)
    return stream.getvalue().to_pybytes()


def usual(name):
    return as_csv(FORMATS[name]) if name in FLAT else as_jsonl(FORMATS[name])


@pytest.fixture
def load(tmp_path):
    """Return a function that writes content to a file and reads it as a trace."""

    def load_content(content, **options):
        path = tmp_path / "trace.dat"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return load_trace(path, **options)

    return load_content


def test_burstgpt(load):
    trace = load(usual("burstgpt"))

    assert trace.origin.reader == "burstgpt"
    assert trace.arrival_time.tolist() == [40 * row for row in range(12) if row != 4]
    assert trace.prompt_len.tolist() == [472 + row for row in range(12) if row != 4]
    assert trace.output_len.tolist() == [18 + row for row in range(12) if row != 4]
    assert trace.session is None
    assert trace.origin.dropped == {"output_len 0: a failed request": 1}
    assert trace.origin.notes == ("models served together: ChatGPT (8 rows), GPT-4 (4 rows)",)


def test_burstgpt_with_sessions(load):
    trace = load(usual("burstgpt 1.2"))

    assert trace.session.tolist() == [0, 0, 1, -1, 2, 3, 3, 4, 4, 5, 5]
    assert trace.origin.reader == "burstgpt"


def test_mooncake(load):
    trace = load(usual("mooncake"))

    assert trace.origin.reader == "mooncake"
    assert trace.arrival_time.tolist() == [3 * row for row in range(12)]
    assert trace.block_hashes.block_size == 512
    assert trace.block_hashes[5].tolist() == [0, 6]
    assert trace.origin.notes == (
        "times taken as ms, as in Mooncake traces; --unit says otherwise",
    )
    assert load(usual("mooncake"), unit="s").arrival_time[1] == 3000
    assert load(usual("mooncake"), unit="s").origin.notes == ()


def in_blocks(size, count=12):
    """Return rows with a hash for every block of so many tokens, of which the first is shared."""
    rng = np.random.default_rng(size)
    lengths = rng.integers(600, 4_000, count).tolist()
    return [
        {
            "timestamp": 3000 * row,
            "input_length": length,
            "output_length": 5,
            "hash_ids": [0, *range(row * 10_000 + 1, row * 10_000 + -(-length // size))],
        }
        for row, length in enumerate(lengths)
    ]


@pytest.mark.parametrize("size", [16, 48, 64, 128, 256, 400])
def test_the_size_of_blocks_is_told_by_prompts_and_their_hashes(load, size):
    trace = load(as_jsonl(in_blocks(size, 200)))

    assert trace.block_hashes.block_size == size
    (note,) = [note for note in trace.origin.notes if "hashes" in note]
    assert f"taken as of {size}-token blocks" in note
    assert "--hash-block-size" in note


@pytest.mark.parametrize("form", ["mooncake", "bailian", "table"])
def test_the_size_of_blocks_is_told_in_every_reader_of_hashes(load, form):
    rows = in_blocks(32)
    for number, row in enumerate(rows):
        if form == "bailian":
            row |= {"chat_id": number, "parent_chat_id": -1}
        elif form == "table":
            row["arrived_at"] = row.pop("timestamp") / 1000
    content = as_parquet(rows) if form == "table" else as_jsonl(rows)

    trace = load(content)

    assert trace.origin.reader == form
    assert trace.block_hashes.block_size == 32
    assert load(content, hash_block_size=32).block_hashes.block_size == 32
    assert load(content, hash_block_size=0).block_hashes is None


def test_the_published_block_size_stays_where_it_fits(load):
    trace = load(as_jsonl(in_blocks(512)))

    assert trace.block_hashes.block_size == 512
    assert not any("hash" in note for note in trace.origin.notes)


def test_a_block_size_that_contradicts_the_prompts_is_refused(load):
    content = as_jsonl(in_blocks(16))

    with pytest.raises(TraceError, match=r"size 512 contradicts.*leave it out, for 16"):
        load(content, hash_block_size=512)


def test_hashes_that_fit_no_block_size_are_refused_with_what_can_be_done(load):
    rows = in_blocks(16)
    for number, row in enumerate(rows):
        row["hash_ids"] = row["hash_ids"][: 2 + 5 * number]
    content = as_jsonl(rows)

    with pytest.raises(TraceError, match=r"of no block size.*--hash-block-size 0"):
        load(content)
    assert load(content, hash_block_size=0).block_hashes is None


def test_a_block_size_needs_hashes(load):
    with pytest.raises(ConfigError, match="no hashes of prompt blocks"):
        load(usual("azure_2023"), hash_block_size=16)
    with pytest.raises(ConfigError, match="hash_block_size must be from 1"):
        load(usual("mooncake"), hash_block_size=-1)


def test_mooncake_without_hashes_has_the_same_times(load):
    rows = [{key: row[key] for key in row if key != "hash_ids"} for row in MOONCAKE]

    for content in (as_jsonl(rows), as_csv(rows), as_parquet(rows)):
        trace = load(content)
        assert trace.origin.reader == "mooncake"
        assert trace.arrival_time.tolist() == [3 * row for row in range(12)]
        assert trace.origin.notes == (
            "times taken as ms, as in Mooncake traces; --unit says otherwise",
        )


def test_mooncake_names_with_times_in_seconds_are_taken_so_and_said_to_be(load):
    for hashes in ({}, {"hash_ids": [1, 2]}):
        rows = [
            {"timestamp": 0.4 * row, "input_length": 1000, "output_length": 3, **hashes}
            for row in range(12)
        ]

        trace = load(as_jsonl(rows))

        assert trace.arrival_time == pytest.approx(0.4 * np.arange(12))
        assert "taken as s, since in ms" in trace.origin.notes[0]
        assert load(as_jsonl(rows), unit="ms").duration == pytest.approx(4.4e-3)


def test_mooncake_keeps_what_else_a_table_has(load):
    rows = [row | {"ttft_ms": 50, "user": f"u{place % 2}"} for place, row in enumerate(MOONCAKE)]

    trace = load(as_jsonl(rows))

    assert trace.measured.ttft == pytest.approx(0.05)
    assert trace.client.tolist() == [0, 1] * 6


def test_later_turns_with_a_delay_wait_for_the_answer_before(load):
    def turn(session, length, **when):
        return {"session_id": session, "input_length": length, "output_length": 5, **when}

    rows = [
        turn("a", 100, timestamp=1_000),
        turn("a", 110, delay=500),
        turn("b", 200, timestamp=1_200, delay=9),
        turn("a", 120, delay=250.5),
        turn("c", 300, delay=100),  # of which no first turn is there
        turn("b", 210, delay=-1),
    ]

    trace = load(as_jsonl(rows))

    assert trace.prompt_len.tolist() == [100, 200, 110, 120]
    assert trace.arrival_time == pytest.approx([0, 0.2, 0.5, 0.7505])
    assert trace.think_time == pytest.approx([np.nan, np.nan, 0.5, 0.2505], nan_ok=True)
    assert trace.session.tolist() == [0, 1, 0, 0]
    assert any("delay instead of a time: 2" in note for note in trace.origin.notes)
    assert trace.origin.dropped == {"arrival_time missing, infinite or not a time": 2}


def test_images_of_the_multimodal_azure_trace_are_said(load):
    rows = [row | {"NumImages": place % 3} for place, row in enumerate(AZURE_2024)]

    trace = load(as_csv(rows))

    assert trace.sha256 == load(usual("azure_2024")).sha256
    assert trace.origin.notes[0].startswith("requests with images: 8; their tokens are in")


def test_bailian(load):
    trace = load(usual("bailian"))

    assert trace.origin.reader == "bailian"
    assert trace.arrival_time == pytest.approx(np.arange(12))
    assert trace.session.tolist() == [100, 101, 102] * 4
    assert trace.turn.tolist() == [1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4]
    assert trace.block_hashes.block_size == 16
    assert trace.block_hashes[11].tolist() == [7, 1011]
    assert trace.origin.notes == ()


def test_bailian_without_hashes_or_turns(load):
    rows = [{key: row[key] for key in row if key not in ("hash_ids", "turn")} for row in BAILIAN]

    trace = load(as_csv(rows))

    assert trace.origin.reader == "bailian"
    assert trace.session.tolist() == [100, 101, 102] * 4
    assert trace.block_hashes is None


def test_sessions_follow_parents_that_failed_or_are_not_there(load):
    rows = [dict(row) for row in BAILIAN]
    rows[3]["output_length"] = 0  # its follow-up still belongs to chat 100
    rows[1]["parent_chat_id"] = 7  # was before the log began
    rows[4]["parent_chat_id"] = 7
    rows[8]["parent_chat_id"] = 111  # 111 comes from 108: a circle
    rows[2]["chat_id"] = None

    trace = load(as_jsonl(rows))

    assert trace.session.tolist() == [100, 7, -1, 7, 102, 100, 7, -1, 100, 7, -1]
    assert trace.origin.dropped == {"output_len 0: a failed request": 1}
    assert "rows whose session is unknown: 3" in trace.origin.notes


def test_long_conversations_and_long_circles_end():
    num_chats = 5_000
    chat = np.arange(num_chats)
    line, circle = chat - 1, np.roll(chat, 1)

    assert set(link_sessions(chat, line).tolist()) == {0}
    assert set(link_sessions(chat, circle).tolist()) == {-1}
    assert link_sessions(np.array([3, -1, 5]), np.array([3, 3, 3])).tolist() == [3, -1, 3]


def test_hashes_that_are_no_numbers_cost_the_hashes_of_their_row_only(load):
    rows = [dict(row) for row in MOONCAKE]
    rows[1]["hash_ids"] = None
    rows[2]["hash_ids"] = [1, "x"]
    rows[3]["hash_ids"] = "none"
    rows[4]["hash_ids"] = [1, 2**70]
    rows[5]["hash_ids"] = []
    rows[6]["hash_ids"] = [1]

    trace = load(as_jsonl(rows))

    assert len(trace) == 12
    assert trace.block_hashes.num_blocks.tolist() == [2, 0, 0, 0, 0, 0, 1, 2, 2, 2, 2, 2]
    assert trace.block_hashes[11].tolist() == [0, 12]
    assert trace.origin.notes[1:] == ("requests without block hashes: 5",)


def test_prompts_that_are_not_as_long_as_their_blocks_are_counted(load):
    rows = [dict(row) for row in MOONCAKE]
    rows[0] |= {"input_length": 1024, "hash_ids": [1, 2]}
    rows[1] |= {"input_length": 1025, "hash_ids": [1, 2]}  # the part block was not hashed
    rows[2] |= {"input_length": 1024, "hash_ids": [1, 2, 3]}
    rows[3] |= {"input_length": 100, "hash_ids": [1, 2]}
    rows[4] |= {"input_length": 2000, "hash_ids": [1, 2]}

    trace = load(as_jsonl(rows))

    assert trace.prompt_len[2:5].tolist() == [1024, 100, 2000]
    assert trace.origin.notes[1:] == (
        "requests whose prompt is not as long as its 512-token blocks: 3",
    )


def test_hashes_stay_with_their_rows_when_rows_are_dropped_and_sorted(load):
    rows = [MOONCAKE[place] for place in (3, 1, 0, 2)]
    rows.insert(2, MOONCAKE[5] | {"output_length": -1})

    trace = load(as_jsonl(rows))

    assert trace.block_hashes.hashes.tolist() == [0, 1, 0, 2, 0, 3, 0, 4]


def test_azure_copies_with_seconds_carry_their_caveat(load):
    rows = [
        {"arrival_s": f"{row * 0.5:.6f}", "ContextTokens": 9 + row, "GeneratedTokens": 2}
        for row in range(4)
    ]
    comment = "# exact, relative to 2024-05-10T00:00:00Z; pairs are real but IN SHUFFLED ORDER\n"

    trace = load(comment + as_csv(rows))
    plain = load(as_csv(rows))

    assert trace.origin.reader == "azure_2024"
    assert trace.arrival_time.tolist() == [0, 0.5, 1, 1.5]
    assert "shuffled order" in trace.origin.notes[0]
    assert (plain.origin.reader, plain.origin.notes) == ("azure", ())


@pytest.mark.parametrize("name", FORMATS)
def test_the_way_a_format_is_written_changes_nothing(load, name):
    rows = FORMATS[name]
    expected = load(usual(name))
    other_order = [dict(reversed(row.items())) for row in rows]
    more = [{"note": "a, b", **row, "future": place} for place, row in enumerate(rows)]
    upper = [{key.upper(): value for key, value in row.items()} for row in rows]
    spelled = [{key.replace(" ", "_"): value for key, value in row.items()} for row in rows]
    spellings = [as_jsonl(each) for each in (rows, other_order, more, upper, spelled)]
    spellings += [as_jsonl(rows).replace("\n", "\r\n"), as_jsonl(rows).rstrip("\n")]
    spellings += [as_parquet(rows), gzip.compress(as_jsonl(rows).encode())]
    if name in FLAT:
        spellings += [as_csv(each) for each in (other_order, more, upper, spelled)]
        spellings += [as_csv(rows, quoting=csv.QUOTE_ALL), as_csv(rows, delimiter=";")]
        spellings += [as_csv(rows).replace("\n", "\r\n"), "\ufeff" + as_csv(rows)]

    for content in spellings:
        trace = load(content)
        assert trace.sha256 == expected.sha256, content[:200]
        assert trace.origin.reader == expected.origin.reader == name.split(" ")[0]
        assert trace.origin.dropped == expected.origin.dropped
        assert trace.origin.notes == expected.origin.notes


@pytest.mark.parametrize("name", FORMATS)
def test_bad_values_cost_their_rows_in_every_format(load, name):
    rows = [dict(row) for row in FORMATS[name] if row.get("Response tokens") != 0]
    time, prompt, output = {
        "azure": ("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
        "burstgpt": ("Timestamp", "Request tokens", "Response tokens"),
        "mooncake": ("timestamp", "input_length", "output_length"),
        "bailian": ("timestamp", "input_length", "output_length"),
    }[name.split(" ")[0].split("_")[0]]
    rows[1][prompt] = -5
    rows[2][prompt] = float("nan")
    rows[3][output] = float("inf")
    rows[4][output] = 0
    rows[5][output] = 10**12
    rows[6][time] = "soon"
    rows[7], rows[8] = rows[8], rows[7]
    content = as_csv(rows) + "1,2\n" if name in FLAT else as_jsonl(rows) + '{"times\n'

    trace = load(content)

    assert trace.origin.dropped == {
        "row could not be read": 1,
        "arrival_time missing, infinite or not a time": 1,
        "output_len 0: a failed request": 1,
        "prompt_len negative": 1,
        "prompt_len missing or not a number": 1,
        "output_len above 100,000,000 tokens": 2,
    }
    assert len(trace) == len(rows) - 6
    assert (np.diff(trace.arrival_time) >= 0).all()
    assert "rows out of order, now sorted by arrival time: 1" in trace.origin.notes


def test_a_mapping_makes_any_file_a_plain_table(load):
    trace = load(usual("burstgpt"), columns={"prompt_len": "Total tokens"})

    assert trace.origin.reader == "table"
    assert trace.prompt_len[0] == 490


def test_a_table_of_windows_is_no_trace(load):
    text = "window_id,lambda_ref,arrival_time_s,prompt_tokens,output_tokens\nw0,1.5,0,1,1\n"

    with pytest.raises(TraceError, match=r"queuesmith\.windows\.tables\.read_windows"):
        load(text)


SHUFFLED = (
    "the file says that lengths are in shuffled order against the arrivals: each prompt has its "
    "own output, but not its own arrival time",
)


@pytest.mark.parametrize(
    ("file", "reader", "count", "first", "tenth", "last", "notes"),
    [
        (
            "azure_2023/AzureLLMInferenceTrace_conv.csv",
            *("azure_2023", 19_366, (0, 374, 44), (8.464985, 209, 152)),
            *((3501.721937, 197, 183), ()),
        ),
        (
            "azure_2023/AzureLLMInferenceTrace_code.csv",
            *("azure_2023", 8_819, (0, 4808, 10), (1.299337, 201, 24)),
            *((3435.948056, 549, 173), ()),
        ),
        (
            "azure_2024/AzureLLM2024_conv_first50k.csv",
            *("azure_2024", 49_999, (0, 2320, 17), (0.498064, 358, 9)),
            *((2034.762068, 5681, 9), SHUFFLED),
        ),
        (
            "azure_2024/AzureLLM2024_code_first50k.csv",
            *("azure_2024", 49_999, (0, 6336, 14), (0.252299, 1736, 2)),
            *((2247.003474, 140, 78), SHUFFLED),
        ),
        (
            "burstgpt/BurstGPT_1_first1000.csv",
            *("burstgpt", 888, (0, 472, 18), (530, 89, 370), (49_312, 128, 18)),
            (
                "models served together: ChatGPT (746 rows), GPT-4 (253 rows)",
                "logs served together: Conversation log (997 rows), API log (2 rows)",
            ),
        ),
        (
            "mooncake/conversation_trace.jsonl",
            *("mooncake", 12_031, (0, 6758, 500), (0, 17_450, 610), (3536.999, 20_774, 508)),
            (
                "times taken as ms, as in Mooncake traces; --unit says otherwise",
                "the requests arrive at only 1,180 different times, mostly 3 s apart: shorter gaps "
                "are not known",
            ),
        ),
    ],
    ids=lambda value: value.split("/")[1] if isinstance(value, str) and "/" in value else "",
)
def test_the_published_files(traces_dir, file, reader, count, first, tenth, last, notes):
    trace = load_trace(traces_dir / file)

    assert len(trace) == count
    assert [
        (float(trace.arrival_time[row]), int(trace.prompt_len[row]), int(trace.output_len[row]))
        for row in (0, 9, -1)
    ] == [first, tenth, last]
    assert trace.origin.reader == reader
    assert trace.origin.notes == notes
    failed = {"output_len 0: a failed request": 111} if reader == "burstgpt" else {}
    assert trace.origin.dropped == failed


def test_the_blocks_of_the_published_mooncake_file(traces_dir):
    blocks = load_trace(traces_dir / "mooncake" / "conversation_trace.jsonl").block_hashes

    assert blocks[0].tolist() == list(range(14))
    assert blocks[1].tolist() == [0, *range(14, 28)]
    assert blocks.block_size == 512

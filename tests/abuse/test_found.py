"""What fuzzing has found, a test for each kind of fault: tracebacks, hangs, memory without end."""

import gzip
import json
import os
import re
import sqlite3
import time
from random import Random

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from queuesmith.documents import MAX_DEPTH, parse_json, parse_toml
from queuesmith.errors import ConfigError, PolicyError, QueuesmithError, TraceError
from queuesmith.evolve.archive.archive import FILE, Archive
from queuesmith.limits import Limit
from queuesmith.policies import get_policy, split_policies
from queuesmith.traces import load_trace
from queuesmith.traces.readers.servegen import read_servegen

from . import command_line, samples
from .targets import TARGETS, read


def outcome_of(name, data, folder):
    return read(TARGETS[name], data, Random(0), folder)


def refused(name, data, folder):
    outcome = outcome_of(name, data, folder / "x")
    assert outcome.kind == "refused", outcome
    assert outcome.seconds < 5
    assert outcome.grown_mib < 512
    return outcome.message


TOML = ["study design", "evolve config", "engine preset", "workload model", "window set"]
JSON = ["judgement", "summary of a study", "ledger: ledger.jsonl", "record of steps"]


@pytest.mark.parametrize("value", ["0x" + "f" * 5_000, "9" * 5_000, "1" + "0" * 310])
@pytest.mark.parametrize("name", TOML)
def test_a_whole_number_of_any_length_is_refused(tmp_path, name, value):
    """Python cannot even show those of more than 4,300 digits."""
    line = f"seed = {value}\n".encode()
    assert "TOML" in refused(
        name, line + TARGETS[name].samples[0].replace(b"seed", b"seeds"), tmp_path
    )


@pytest.mark.parametrize("name", TOML)
@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 100_000,
        ".".join("a" * 5_000) + " = 1",
        "a = " + "{a=" * 900 + "1" + "}" * 900,
    ],
)
def test_toml_of_any_depth_is_refused(tmp_path, name, text):
    assert refused(name, text.encode(), tmp_path)


@pytest.mark.parametrize("name", JSON)
@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a":' * 3_000 + "1" + "}" * 3_000, "9" * 5_000, "1e999"]
)
def test_json_of_any_depth_is_refused(tmp_path, name, text):
    assert refused(name, text.encode(), tmp_path)


@pytest.mark.parametrize(
    ("parse", "start", "end"), [(parse_toml, "a = " + "[", "]"), (parse_json, "[", "]")]
)
def test_what_a_file_needs_is_read(parse, start, end):
    deep = MAX_DEPTH - 2
    assert parse(start + "[" * (deep - 1) + "-9223372036854775808" + "]" * (deep - 1) + end)
    with pytest.raises(ValueError, match="64 bits"):
        parse(start + "9223372036854775808" + end)
    with pytest.raises(ValueError, match=f"more than {MAX_DEPTH} deep"):
        parse(start + "[" * MAX_DEPTH + "1" + "]" * MAX_DEPTH + end)


def test_a_table_of_very_many_columns_is_refused_at_once(tmp_path):
    head = b"arrival_time,prompt_len,output_len" + b",1" * 300_000
    assert "300,003 columns" in refused("trace: csv", head + b"\n1,2,3\n", tmp_path)


@pytest.mark.parametrize(
    "pack", [gzip.compress, lambda data: pa.compress(data, "zstd", asbytes=True)]
)
def test_a_file_that_unpacks_without_end_is_refused(tmp_path, pack):
    data = bytes(pack(samples.log() + b"\n" * 300_000_000))
    assert len(data) < 1_000_000
    assert "unpacks to more than 200 times its size" in refused("trace: gzip", data, tmp_path)


@pytest.mark.parametrize("name", ["study design", "evolve config", "window set"])
def test_a_name_that_no_file_can_have_is_the_name_of_none(tmp_path, name):
    """Asking the file system for a name of 5,000 letters is an error of its own there."""
    sample = TARGETS[name].samples[0].decode()
    text = re.sub(
        r'(\b(?:file|files)\b\s*=\s*\[?\s*")([^"]*)"', r"\g<1>" + "l" * 5_000 + '"', sample
    )
    assert text != sample

    outcome = outcome_of(name, text.encode(), tmp_path / "x")

    assert outcome.kind in ("refused", "accepted"), outcome


@pytest.mark.parametrize(
    ("before", "after"),
    [('name = "', 'name = "a\\nb'), ("[fit]\n", "[fit]\nsource = 7\n")],
)
def test_a_model_with_such_a_name_or_source_is_named_in_one_line(tmp_path, before, after):
    text = TARGETS["workload model"].samples[0].decode()
    text = re.sub(r"(?m)^source = .*\n", "", text).replace(before, after, 1)
    text = text.replace("time_scales = [", "time_scales = [-1, ", 1)

    assert "\n" not in refused("workload model", text.encode(), tmp_path)


def test_a_column_of_text_that_is_not_utf8_is_refused(tmp_path):
    times = pa.array([b"1.0", b"\xff\xfe", b"3"], pa.binary()).view(pa.string())
    table = pa.table({"arrival_time": times, "prompt_len": [5, 5, 5], "output_len": [1, 1, 1]})
    path = tmp_path / "bytes.parquet"
    pa.parquet.write_table(table, path)

    with pytest.raises(QueuesmithError, match="not UTF-8"):
        load_trace(path)


def test_a_line_of_very_many_letters_is_read_at_once(tmp_path):
    """From each letter a name of a value may begin; to look at all of them took minutes."""
    line = (
        b'10.0.0.7 - - [30/Nov/2026:10:00:01 +0000] "GET / HTTP/1.1" 200 5 "-" "-" prompt_tokens=9 '
    )
    path = tmp_path / "access.log"
    path.write_bytes(line + b"completion_tokens=4\n" + line + b"x" * 1_000_000 + b"\n")
    started = time.process_time()

    trace = load_trace(path)

    assert trace.output_len.tolist() == [4]
    assert time.process_time() - started < 5


def test_a_log_that_packs_well_is_read(tmp_path):
    path = tmp_path / "log.csv.gz"
    path.write_bytes(gzip.compress(samples.log(1) + b"5,100,5\n" * 1_000_000))
    assert len(load_trace(path)) == 1_000_001


def test_a_parquet_file_of_many_equal_rows_is_refused(tmp_path):
    rows = pa.array([1], pa.int64()).take(pa.array([0] * 1_000, pa.int32()))
    one = pa.chunked_array([pa.concat_arrays([rows] * 1_000)] * 8)
    path = tmp_path / "trace"
    names = ["arrival_time", "prompt_len", "output_len"]
    pa.parquet.write_table(pa.table([one] * 3, names), path, compression="zstd")

    with pytest.raises(TraceError, match="8,000,000 rows in"):
        load_trace(path)


READERS = {
    "trace": ("simulate", "{}"),
    "model": ("simulate", "{}.toml@model"),
    "window set": ("compare", "{}.toml"),
    "design": ("study", "run", "{}.toml", "--dry-run"),
    "evolution": ("evolve", "run", "{}.toml", "--dry-run"),
    "engine": ("simulate", "log.csv", "--engine", "{}.toml"),
    "policy": ("simulate", "log.csv", "--policy", "{}.py"),
    "summary": ("study", "advise", "--trace", "log.csv", "--study", "{}"),
    "records": ("calibrate", "--records", "{}"),
}


@pytest.fixture
def place(tmp_path):
    """Be in a folder with a log and nothing else."""
    folder = tmp_path / "x"
    folder.mkdir()
    (folder / "log.csv").write_bytes(samples.log())
    with command_line.inside(folder):
        yield folder


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("what", ["pipe", "device", "loop", "dangling"])
def test_a_path_without_end_is_not_waited_for(place, reader, what):
    for suffix in ("", ".toml", ".py"):
        path = place / f"odd{suffix}"
        if what == "pipe":
            os.mkfifo(path)
        else:
            path.symlink_to({"device": "/dev/zero", "loop": path.name, "dangling": "nowhere"}[what])
    words = [word.format("odd") for word in READERS[reader]]
    outcome = command_line.watch(lambda: command_line.call(words))

    assert outcome.kind == "refused", outcome


def test_a_pipe_that_is_written_is_read(place):
    reader, writer = os.pipe()
    os.write(writer, samples.log())
    os.close(writer)
    try:
        assert len(load_trace(f"/dev/fd/{reader}")) == 80
    finally:
        os.close(reader)


@pytest.mark.parametrize("name", ["[/].csv", "[bold]x", "[/red]x.csv", "{0}%s.csv", "<b>&.csv"])
@pytest.mark.parametrize(
    "words", [("simulate",), ("traces", "describe"), ("traces", "import", "--name", "a")]
)
def test_a_name_that_means_something_to_a_terminal_is_a_name(place, name, words):
    (place / name).parent.mkdir(exist_ok=True)
    (place / name).write_bytes(samples.log())

    assert command_line.call([*words, name])
    assert command_line.call(["traces", "list"])


def test_a_study_with_markup_for_a_title_is_shown(place):
    (place / "small.toml").write_bytes(samples.DESIGN.replace(b"A small study", b"[/] [bold]x"))

    assert "[/] [bold]x" in command_line.call(["study", "run", "small.toml", "--dry-run"])


@pytest.mark.parametrize("policies", ["~nobody-here/x.py", "~\x01/x.py", "~"])
def test_a_home_that_nobody_has_is_no_policy(place, policies):
    with pytest.raises(QueuesmithError):
        command_line.call(["simulate", "log.csv", "--policy", policies])


def test_a_time_of_very_many_digits_is_no_time(tmp_path):
    for name, content in samples.SERVEGEN.items():
        (tmp_path / name).write_bytes(content.replace(b'"21600"', b'"' + b"9" * 5_000 + b'"'))

    with pytest.raises(TraceError, match="must map seconds to distributions"):
        read_servegen(tmp_path)


@pytest.mark.parametrize("text", ['{"schema": "queuesmith.study/1"}', "edited", "[]"])
def test_a_document_of_a_study_that_was_changed_is_refused(tmp_path, text):
    target = TARGETS["study folder: study.json"]
    if text == "edited":
        document = json.loads(target.samples[0])
        document["design"]["seed"] = 4
        text = json.dumps(document)
    assert "study.json" in refused(target.name, text.encode(), tmp_path)


def test_a_summary_that_was_changed_is_refused(tmp_path):
    sound = TARGETS["summary of a study"].samples[0]
    other = sound.replace(b'"window_len": 1000', b'"window_len": "long"')
    assert other != sound
    assert "is not what was written" in refused("summary of a study", other, tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE candidates SET meta = '{'",
        "UPDATE candidates SET parents = 'x'",
        "UPDATE candidates SET window_scores = '1'",
        "UPDATE members SET window_scores = 'null'",
        "UPDATE scores SET kept = x'00'",
        "UPDATE candidates SET text = CAST(x'0aff0a' AS TEXT)",
        "UPDATE run SET value = '[' WHERE key = 'classics'",
        "DELETE FROM run",
    ],
)
def test_an_archive_of_values_that_nobody_wrote_is_damaged(tmp_path, change):
    target = TARGETS["evolution: archive"]
    target.put(tmp_path, target.samples[0])
    with sqlite3.connect(tmp_path / FILE) as connection:
        connection.execute(change)
    connection.close()
    with Archive.read(tmp_path):  # as a database it is whole
        pass

    outcome = command_line.watch(lambda: target.use(tmp_path, Random(0)))

    assert outcome.kind == "refused", outcome
    assert "is damaged" in outcome.message


def test_a_record_whose_engine_is_a_list_is_no_record(place):
    (place / "steps").write_bytes(
        samples.RECORD.replace(b'{"max_num_seqs": 64, "num_gpu_blocks": 900}', b"[1]")
    )

    with pytest.raises(QueuesmithError, match="does not say with which settings"):
        command_line.call(["calibrate", "--records", "steps"])


def test_the_files_of_an_exported_schedule_are_listed_as_json(place):
    words = "ab --policy sjf --trace log.csv --export timed_trace --load 2/s --window-len 10 --json"
    document = json.loads(command_line.call(words.split()))

    assert len(document["files"]) == 8
    assert all((place / file).is_file() for file in document["files"])


@pytest.mark.parametrize("text", ["a.a(" * 100_000, "a," * 100_000, "a(b," * 100_000])
def test_a_name_of_any_length_is_refused_at_once(text):
    """Patterns that looked back from every bracket took minutes."""
    start = time.process_time()
    with pytest.raises(PolicyError):
        get_policy(text)
    assert all(split_policies(text))

    assert time.process_time() - start < 10


@pytest.mark.parametrize(
    "text", ["ttft_p99 > a" + " @" * 100_000, "ttft_p99 > 1 * a" + " " * 100_000]
)
def test_a_limit_of_any_length_is_refused_at_once(text):
    start = time.process_time()
    with pytest.raises(ConfigError, match="cannot be read; write it like"):
        Limit.parse(text + ".", ["a"], ["knee"])

    assert time.process_time() - start < 10


def test_requests_as_even_as_ticks_can_be_fitted(tmp_path):
    rows = "".join(f"{0.5 * row},{20 + row % 30},{3 + row % 4}\n" for row in range(700))
    (tmp_path / "even.csv").write_text(f"arrival_time,prompt_len,output_len\n{rows}")
    words = ["traces", "fit", "even.csv", "--name", "even"]
    with command_line.inside(tmp_path):
        command_line.call(words)
        drawn = load_trace("even.toml@model", num_requests=2_000, seed=1)

    gaps = np.diff(drawn.arrival_time)
    assert gaps.mean() == pytest.approx(0.5, rel=0.1)
    assert gaps.std() < 0.5 * gaps.mean()  # far from Poisson


def test_more_workers_than_any_machine_has_are_refused(tmp_path):
    command_line.furnish(tmp_path)
    words = ["plan", "log.csv", "--policies", "fcfs", "--workers", "4294967296"]
    with command_line.inside(tmp_path), pytest.raises(QueuesmithError, match="at most 10,000"):
        command_line.call(words)

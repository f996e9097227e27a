"""``queuesmith traces``: what each verb prints, writes, and returns."""

import json
import re
from io import StringIO
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import pytest
from rich.console import Console

from queuesmith.cli import run
from queuesmith.report.traffic.figures import build_traffic_figures
from queuesmith.report.traffic.page import render_traffic
from queuesmith.report.traffic.text import picture, print_description, sentences
from queuesmith.traces import BlockHashes, Trace
from queuesmith.traces.catalog import catalogue
from queuesmith.traces.describe import describe
from queuesmith.traces.synthetic import model_names

DOCUMENTATION = Path(__file__).parents[2] / "docs" / "reference" / "traces.md"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Run in an empty folder, with no traces but what a test makes."""
    folder = tmp_path / "traces"
    monkeypatch.setenv("QUEUESMITH_TRACES", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.fixture
def log(tmp_path):
    """Return a log of 3,000 made-up requests with columns of its own."""
    rng = np.random.default_rng(0)
    times = np.cumsum(rng.exponential(200.0, 3000))
    rows = zip(times, rng.geometric(0.01, 3000), rng.geometric(0.02, 3000), strict=True)
    path = tmp_path / "log.csv"
    path.write_text("when,in,out\n" + "".join(f"{t:.3f},{p},{o}\n" for t, p, o in rows))
    return path


COLUMNS = ("--columns", "arrival_time=when,prompt_len=in,output_len=out", "--unit", "ms")


@pytest.fixture
def full_trace():
    """Return a trace that has everything a description can be about."""
    rng = np.random.default_rng(0)
    rows = [[k % 7, 100 + k % 50, 1000 + k] for k in range(600)]
    blocks = BlockHashes(np.arange(601) * 3, np.concatenate(rows), 16)
    return Trace(
        np.cumsum(rng.gamma(0.3, 3, 600)),
        np.full(600, 48),
        rng.geometric(0.02, 600),
        client=rng.integers(0, 9, 600),
        session=rng.integers(0, 99, 600),
        block_hashes=blocks,
    )


def output_of(capsys, *arguments, status=0):
    assert run(["traces", *map(str, arguments)]) == status
    return capsys.readouterr()


def json_of(capsys, *arguments):
    return json.loads(output_of(capsys, *arguments, "--json").out)


def test_the_list_has_every_trace_and_model(capsys):
    document = json_of(capsys, "list")

    assert document["schema"] == "queuesmith.traces.list/1"
    assert [entry["name"] for entry in document["traces"]] == list(catalogue())
    assert all(entry["path"] is None for entry in document["traces"])
    assert [model["name"] for model in document["models"]] == [f"{n}@model" for n in model_names()]

    text = output_of(capsys, "list").out
    for name in catalogue():
        assert name in text


def test_a_description_of_a_file(capsys, log):
    document = json_of(capsys, "describe", log, *COLUMNS)

    assert document["schema"] == "queuesmith.traces.describe/1"
    assert document["num_requests"] == 3000
    assert document["rate"] == pytest.approx(5, rel=0.1)
    assert document["origin"]["kind"] == "real"

    text = output_of(capsys, "describe", log, *COLUMNS).out
    assert "3,000 requests over" in text
    assert "Bursts, in bins of" in text


def test_a_description_of_a_model_says_that_it_is_one(capsys):
    arguments = ("describe", "azure_2023_conv@model", "--num-requests", "500")

    assert json_of(capsys, *arguments)["origin"]["kind"] == "modelled"
    assert "modelled traffic: azure_2023_conv@model" in output_of(capsys, *arguments).out


def test_a_page_is_written_beside_the_text(capsys, log, tmp_path):
    said = output_of(capsys, "describe", log, *COLUMNS, "--output", tmp_path / "page.html")

    assert "page.html" in said.err
    page = (tmp_path / "page.html").read_text()
    assert "3,000 requests over" in page
    assert "http-equiv=" in page


def test_a_page_that_could_not_be_written_is_refused_before_any_work(capsys, tmp_path):
    said = output_of(
        capsys, "describe", "no_such_file", "--output", tmp_path / "none" / "x.html", status=2
    )

    assert "there is no folder" in said.err


def test_a_name_without_a_file_leads_to_fetch(capsys):
    said = output_of(capsys, "describe", "burstgpt_1", status=2)

    assert said.err.startswith("error: ")
    assert "`queuesmith traces fetch burstgpt_1`" in said.err


def test_an_import_is_listed_and_known_by_name(capsys, log, folder):
    document = json_of(capsys, "import", log, "--name", "mine", *COLUMNS)

    assert document["num_requests"] == 3000
    assert Path(document["path"]).is_relative_to(folder)
    assert json_of(capsys, "describe", "mine")["num_requests"] == 3000
    assert [one["name"] for one in json_of(capsys, "list")["imported"]] == ["mine"]
    text = re.sub(r"\s", "", output_of(capsys, "list").out)  # long paths are folded
    assert str(log) in text


def test_what_a_reader_guesses_is_said_beside_results(capsys, tmp_path):
    rows = [
        {"timestamp": 300 * row, "input_length": 118, "output_length": 9, "hash_ids": [*range(8)]}
        for row in range(60)
    ]
    path = tmp_path / "blocks.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))

    for verb in (["simulate"], ["compare", "--window-len", "50", "--policies", "fcfs,sjf"]):
        assert run([*verb, str(path)]) == 0
        said = " ".join(capsys.readouterr().out.split())
        assert "times taken as ms" in said
        assert "hashes taken as of 16-token blocks" in said
        assert run([*verb, str(path), "--unit", "ms", "--hash-block-size", "16"]) == 0
        assert "taken as" not in capsys.readouterr().out
    assert run(["traces", "describe", str(path)]) == 0
    assert "hashes taken as of 16-token blocks" in " ".join(capsys.readouterr().out.split())


def test_nested_columns_and_units_can_be_named(capsys, tmp_path):
    rows = [{"at": 250 * row, "n": {"in": 100, "out": 9}, "ttft": 50} for row in range(20)]
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    columns = "arrival_time=at,prompt_len=n.in,output_len=n.out"

    assert run(["traces", "describe", str(path), "--columns", columns, "--unit", "ms"]) == 0
    assert run(["traces", "import", str(path), "--name", "mine", "--columns", columns]) == 0
    assert run(["traces", "describe", str(path), "--columns", columns, "--unit", "ttft=min"]) == 2
    assert "unit must be one of s, ms, us, ns" in capsys.readouterr().err


def test_a_fit_can_be_described_like_any_model(capsys, log, tmp_path):
    document = json_of(capsys, "fit", log, "--name", "mine", *COLUMNS)

    assert document["fit"]["num_requests"] == 3000
    for source in ("mine.toml", "mine.toml@model"):
        described = json_of(capsys, "describe", source, "--num-requests", "2000")
        assert described["origin"]["source"] == "mine@model"
        assert described["num_requests"] == 2000
        assert described["rate"] == pytest.approx(5, rel=0.2)
    text = (tmp_path / "mine.toml").read_text()
    for row in log.read_text().splitlines()[1:20]:
        assert row.split(",")[0] not in text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["fit", "log.csv", "--name", "burstgpt_1"], "public trace"),
        (["fit", "log.csv", "--name", "mine", "--output", "mine.txt"], "writes .toml"),
        (["describe", "none.toml@model"], "cannot be read"),
        (["describe", "none.csv"], "there is no file"),
        (["fetch", "burstgpt_one"], "Did you mean"),
        (["fetch", "servegen_m_small"], "clone https://"),
        (["import", "log.csv"], "--name"),
    ],
)
def test_mistakes_end_with_one_line_and_status_2(capsys, log, arguments, says):
    said = output_of(capsys, *arguments, status=2)

    assert says in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""


def test_a_file_at_hand_needs_no_network(capsys, traces_dir, monkeypatch):
    monkeypatch.setenv("QUEUESMITH_TRACES", str(traces_dir))
    document = json_of(capsys, "fetch", "azure_2023_conv")

    assert document["verified"] is True
    assert document["downloaded"] is False
    assert document["license"] == "CC-BY-4.0"
    assert "verified" in output_of(capsys, "fetch", "azure_2023_conv").out


def keys_of(document):
    """Return the keys of a document, without those that are data."""
    found = set()
    for key, value in document.items():
        found.add(key)
        inner = value[0] if isinstance(value, list) and value else value
        if isinstance(inner, dict) and key not in ("dropped", "columns", "top_share", "fit"):
            found |= keys_of(inner)
    return found


def test_every_key_of_every_document_is_documented(capsys, log, full_trace):
    text = DOCUMENTATION.read_text(encoding="utf-8")
    documents = [
        json_of(capsys, "import", log, "--name", "mine", *COLUMNS),
        json_of(capsys, "list"),
        json_of(capsys, "fit", log, "--name", "fitted", *COLUMNS),
        describe(full_trace),
    ]

    keys = set().union(*(keys_of(document) for document in documents))

    assert len(keys) > 60
    assert [key for key in sorted(keys) if f"`{key}`" not in text] == []


def test_every_figure_is_of_plotlys_schema(full_trace):
    figures = build_traffic_figures(full_trace)

    assert [figure.name for figure in figures] == [
        "workload",
        "burstiness",
        "lengths",
        "clients",
        "sessions",
        "prefixes",
    ]
    for figure in figures:
        for panel in figure.panels:
            go.Figure(panel)  # raises on what plotly would not draw


@pytest.mark.parametrize("num_requests", [1, 2, 30])
def test_the_smallest_traces_have_a_page_and_a_text(num_requests):
    trace = Trace(np.zeros(num_requests), np.ones(num_requests), np.ones(num_requests))
    text = StringIO()

    print_description(describe(trace), Console(file=text, width=80))

    assert f"{num_requests} requests over 0 seconds" in text.getvalue()
    assert f"{num_requests} requests over 0 seconds" in render_traffic(describe(trace), trace)


def test_a_page_shows_what_it_knows_and_nothing_hostile(full_trace):
    trace = full_trace.with_origin(source="<script>alert(1)</script>.csv", notes=("<b>bold</b>",))
    page = render_traffic(describe(trace), trace)

    assert "<script>alert" not in page
    assert "<b>bold" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert page == render_traffic(describe(trace), trace)


def test_the_sentences_say_what_the_numbers_say(full_trace):
    said = sentences(describe(full_trace))

    assert [line.partition(":")[0] for line in said] == [
        "Bursts",
        "Inequality",
        "Clients",
        "Conversations",
        "Prefixes",
    ]
    share = describe(full_trace)["prefixes"]["reused_token_share"]
    assert f"{100 * share:.1f}" in said[-1]


def test_a_picture_is_as_wide_as_its_values_and_as_plain_as_the_terminal():
    values = [0.0, 1.0, 2.0, 8.0]

    assert len(picture(values, "utf-8")) == 4
    assert picture(values, "utf-8")[-1] == "\N{FULL BLOCK}"
    assert picture(values, "ascii").isascii()
    assert picture([0.0], "ascii") == "_"


def test_no_table_is_wider_than_the_terminal(full_trace):
    text = StringIO()

    print_description(describe(full_trace), Console(file=text, width=80))

    tables = [line for line in text.getvalue().splitlines() if re.search(r"\S {2,}\S", line)]
    assert len(tables) > 20
    assert max(map(len, tables)) <= 80
    assert "\N{HORIZONTAL ELLIPSIS}" not in text.getvalue()

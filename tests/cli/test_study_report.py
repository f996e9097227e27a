"""``queuesmith study report`` and ``study advise``: what they print, write and refuse."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from queuesmith.errors import ConfigError
from queuesmith.study.run import Study
from queuesmith.study.summary import save_summary, summarize_study
from study.synthetic import SOURCES, TRAFFIC, synthetic_study


@pytest.fixture(scope="module")
def study():
    return synthetic_study()


@pytest.fixture
def folder(study, monkeypatch, tmp_path_factory):
    """Return the folder of a study, which here is read from memory."""
    folder = tmp_path_factory.mktemp("study")

    def load(given):
        if given.resolve() != folder.resolve():
            raise ConfigError(f"{given} holds no study")
        return SimpleNamespace(**vars(study), sha256=study.document["sha256"])

    monkeypatch.setattr(Study, "load", load)
    return folder


@pytest.fixture
def summary_file(study, tmp_path_factory):
    path = tmp_path_factory.mktemp("summary") / "summary.json"
    save_summary(summarize_study(study, draws=300), path)
    return path


@pytest.fixture
def log(tmp_path_factory):
    """Write a trace of chat-like requests."""
    rng = np.random.default_rng(5)
    num_requests = 9_000
    _, _, prompt, _, prompt_cv, output, _, output_cv = TRAFFIC["chat"]

    first = rng.normal(size=num_requests)
    second = 0.2 * first + np.sqrt(1 - 0.2**2) * rng.normal(size=num_requests)

    def lengths(median, cv, ranks):
        sigma = np.sqrt(np.log(1 + cv**2))
        return np.maximum(1, median * np.exp(sigma * ranks)).astype(int)

    path = tmp_path_factory.mktemp("log") / "requests.csv"
    times = np.cumsum(rng.exponential(0.6, num_requests))
    rows = zip(
        times, lengths(prompt, prompt_cv, first), lengths(output, output_cv, second), strict=True
    )
    lines = [f"{time:.3f},{prompt},{output}" for time, prompt, output in rows]
    path.write_text("arrival_time,prompt_len,output_len\n" + "\n".join(lines) + "\n")
    return path


def test_report_writes_page_document_and_tables(run, folder):
    ran = run("study", "report", folder, "--output", "atlas")

    assert ran.code == 0
    document = json.loads(_read("atlas/atlas.json"))
    assert document["schema"] == "queuesmith.atlas/2"
    assert document["command"].startswith("queuesmith")
    assert ran.created == {
        "atlas",
        "atlas/atlas.html",
        "atlas/atlas.json",
        *(f"atlas/{file}" for file in document["tables"].values()),
    }
    for answer in document["answers"]:
        assert " ".join(answer["text"].split()) in " ".join(ran.out.split())
    assert "page: atlas/atlas.html" in ran.err


def _read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def test_report_prints_the_document_it_writes(run, folder):
    ran = run("study", "report", folder, "--output", "atlas", "--json")

    assert ran.code == 0
    assert ran.out == _read("atlas/atlas.json")


def test_report_goes_into_the_studys_own_folder_when_nothing_is_said(run, folder):
    ran = run("study", "report", folder)

    assert ran.code == 0
    assert (folder / "atlas.html").is_file()


def test_report_makes_the_summary_that_advise_reads(run, folder, log):
    made = run("study", "report", folder, "--output", "atlas", "--summary", "summary.json")
    from_file = run("study", "advise", "--trace", log, "--study", "summary.json", "--json")
    from_folder = run("study", "advise", "--trace", log, "--study", folder, "--json")

    assert made.code == from_file.code == from_folder.code == 0
    assert "summary.json" in made.created
    first, second = (json.loads(ran.out) for ran in (from_file, from_folder))
    assert first == second
    assert first["study"]["sha256"] == "5eed" * 16


def test_advise_places_a_trace_on_the_map(run, log, summary_file):
    ran = run("study", "advise", "--trace", log, "--study", summary_file, "--json")

    assert ran.code == 0
    advice = json.loads(ran.out)
    assert advice["schema"] == "queuesmith.advise/3"
    assert advice["nearest"] in ("chat", "chat_too")
    assert advice["policy"] == "hrrn"
    assert advice["question"]["load"] == "knee"
    assert {one["source"] for one in advice["distances"]} == set(SOURCES)
    assert advice["traffic"]["num_windows"] == 9
    assert advice["traffic"]["features"]["prompt_p50"] == pytest.approx(900, rel=0.1)
    assert advice["traffic"]["kind"] == "real"


def test_advise_speaks_in_sentences(run, log, summary_file):
    ran = run(
        *("study", "advise", "--trace", log, "--study", summary_file),
        *("--metric", "ttft_p99", "--load", "heavy", "--engine", "constant_1ms"),
    )

    assert ran.code == 0
    first, *more = ran.out.splitlines()
    assert first.startswith("Try ")
    assert "first at heavy load (rho 1.5) on constant_1ms" in first
    assert "p99 TTFT" in first
    assert more


def test_advise_says_what_is_wanting_about_a_short_trace(run, log, summary_file):
    ran = run("study", "advise", "--trace", log, "--num-requests", 300, "--study", summary_file)

    assert ran.code == 0
    assert "windows of 300 requests were measured, and those of the study have 1,000" in ran.err
    assert "only 1 windows" not in ran.err
    assert "only one window" in ran.err


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--metric", "ttft_men"), "no metric 'ttft_men'. Did you mean 'ttft_mean'?"),
        (("--load", "0"), "load must be one of light, knee, heavy, or a positive rho, got '0'"),
        (("--engine", "h200"), "no engine 'h200'"),
        (("--num-requests", "2"), "give a longer trace"),
    ],
)
def test_advise_refuses_what_the_study_cannot_say(refused, log, summary_file, options, complaint):
    error = refused("study", "advise", "--trace", log, "--study", summary_file, *options)

    assert complaint in error


def test_advise_refuses_what_is_no_study(refused, log, tmp_path):
    assert "there is no summary" in refused("study", "advise", "--trace", log, "--study", "nowhere")


def test_report_refuses_a_folder_without_a_study(refused, folder, tmp_path_factory):
    empty = tmp_path_factory.mktemp("empty")

    assert "holds no study" in refused("study", "report", empty, "--output", "atlas")


def test_report_refuses_a_place_that_cannot_be_written_before_it_works(refused, folder):
    assert "name a folder with --output" in refused(
        "study", "report", folder, "--output", "/dev/null/atlas"
    )
    assert "create it first" in refused(
        "study", "report", folder, "--output", "atlas", "--summary", "no/where.json"
    )

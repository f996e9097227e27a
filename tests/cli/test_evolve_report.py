"""``queuesmith evolve report`` and ``diagnose``: what they print and write, what they refuse."""

import json
import shutil

import pytest

from evolve.told import finished_run
from queuesmith.evolve.archive.archive import FILE


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return finished_run(tmp_path_factory.mktemp("cli") / "run")


@pytest.fixture
def folder(made, tmp_path):
    shutil.copytree(made, tmp_path / "run")
    return "run"


def test_report_writes_a_page_and_its_numbers_and_says_them(run, folder):
    ran = run("evolve", "report", folder, "--workers", 1)

    assert ran.code == 0, ran.err
    assert ran.created == {"run/evolution.html", "run/evolution.json"}
    assert ran.err == "page: run/evolution.html\n"
    assert ran.out.startswith("The champion (no. ")
    assert "on validation windows" in ran.out
    assert "- On tuning windows" in ran.out


def test_report_prints_the_very_json_that_it_writes(run, folder, tmp_path):
    ran = run("evolve", "report", folder, "--json", "--output", "told", "--workers", 1)
    document = json.loads(ran.out)

    assert ran.created == {"told", "told/evolution.html", "told/evolution.json"}
    assert ran.out == (tmp_path / "told" / "evolution.json").read_text()
    assert document["schema"] == "queuesmith.evolution/1"
    assert document["diagnosis"]["schema"] == "queuesmith.diagnosis/1"
    champion = document["champion"]
    assert champion["text"] == (tmp_path / "run" / "best.py").read_text()
    page = (tmp_path / "told" / "evolution.html").read_text()
    assert f"champion (no. {champion['candidate']})" in page


def test_diagnose_says_what_to_try_and_writes_nothing(run, folder):
    ran = run("evolve", "diagnose", folder, "--workers", 1)

    assert ran.code == 0, ran.err
    assert ran.created == set()
    assert ran.err == ""
    assert "tuning windows" in ran.out
    assert "validation windows" in ran.out
    assert "held-out windows were not opened" in ran.out


def test_diagnose_takes_any_policy_file(run, folder, policy_file):
    path = policy_file("return -request.arrival_time", name="lcfs")
    ran = run("evolve", "diagnose", folder, "--candidate", path, "--json", "--workers", 1)
    assert ran.code == 0, ran.err
    document = json.loads(ran.out)

    assert document["policy"]["name"] == "lcfs"
    assert document["suggestions"][0]["kind"] == "guard"


@pytest.mark.parametrize("verb", ["report", "diagnose"])
def test_what_makes_no_sense_is_one_line(refused, folder, tmp_path, verb):
    assert "there is no run in nowhere" in refused("evolve", verb, "nowhere")
    assert "--workers must be from 1 to 1,000, got 0" in refused(
        "evolve", verb, folder, "--workers", 0
    )
    assert "none.py: there is no such file" in refused(
        "evolve", verb, folder, "--candidate", "none.py"
    )
    judged = tmp_path / "run" / "judged" / "mine-12345678"
    judged.mkdir(parents=True)
    (judged / "judgement.json").write_text("{")
    assert "is no judgement" in refused("evolve", verb, folder)
    (tmp_path / "run" / FILE).write_bytes(b"no database, but longer than a header of one" * 99)
    (judged / "judgement.json").unlink()
    assert "is damaged" in refused("evolve", verb, folder)


def test_report_refuses_a_place_that_cannot_be_written_before_it_works(refused, folder):
    assert "name a folder with --output" in refused(
        "evolve", "report", folder, "--output", "/dev/null/told"
    )

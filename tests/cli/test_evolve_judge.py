"""``queuesmith evolve judge``: what it prints and writes, how it ends, what it refuses."""

import json
from functools import partial

import pytest

from evolve.judged import GOOD_TEXT, small_case, with_run
from queuesmith.evolve.gates import judge as judgement
from queuesmith.evolve.gates.ledger import HeldOut, Ledger
from queuesmith.windows.frozen import WindowSet

CONFIG = """
name = "small"
seeds = [0]
loads = ["heavy"]
second_engine = "llama-3.1-8b/a100_sxm"

[[source]]
file = "azure_2023_code@model"
num_requests = 4_000

[windows]
num_windows = 8
window_len = 60
per_generation = 2

[search]
generations = 1
children = 6
islands = 1
depth = 2
classics = ["las"]
"""

#: Ties everywhere, so that it is FCFS under another name.
IDLE = "def waiting_key(request, engine):\n    return 0.0\n"


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(CONFIG)
    return path


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(IDLE)
    return path


@pytest.fixture(autouse=True)
def ledger(tmp_path, monkeypatch):
    """Keep the account's ledger out of it."""
    path = tmp_path / "state" / "ledger.jsonl"
    monkeypatch.setenv("QUEUESMITH_LEDGER", str(path))
    return Ledger(path)


def test_a_persons_file_is_led_through_the_gates(run, config, mine, ledger):
    ran = run("evolve", "judge", config, "--candidate", mine, "--output", "out")

    assert ran.code == 1
    lines = ran.out.splitlines()
    assert [line.split(".")[0] for line in lines[:3]] == [
        "G0 form: passed", "G1 behaviour: passed", "G2 tuning: fell short",
    ]  # fmt: skip
    assert lines[3].startswith("mine: fell short at G2 tuning: gain +0.000 (+0.000 to +0.000)")
    assert len(lines) == 4
    assert ran.err == "written: out/judgement.json\n"
    assert ran.created == {"out", "out/judgement.json", "out/windows.toml"}
    assert ledger.entries() == []


def test_json_is_the_whole_judgement(run, config, mine, tmp_path):
    ran = run(
        "evolve", "judge", config, "--candidate", mine, "--output", "out", "--json", "--all",
        "--through", "G4",
    )  # fmt: skip
    document = json.loads(ran.out)

    assert ran.code == 1
    assert document["schema"] == "queuesmith.judgement/1"
    assert document == json.loads((tmp_path / "out" / "judgement.json").read_text())
    outcomes = {gate["gate"]: gate["outcome"] for gate in document["gates"]}
    assert outcomes == {
        "G0": "passed", "G1": "passed", "G2": "fell short", "G3": "fell short", "G4": "not run",
    }  # fmt: skip
    assert document["policy"]["text"] == IDLE


def test_what_passes_all_that_was_asked_ends_with_0(run, config, mine):
    ran = run("evolve", "judge", config, "--candidate", mine, "--through", "G1", "--output", "out")

    assert ran.code == 0
    assert ran.out.splitlines()[-1] == (
        "mine: passed G0 to G1; the held-out windows were not opened"
    )


def test_the_best_of_a_run_is_judged_in_its_folder(run, config, tmp_path, ledger):
    run("evolve", "run", config, "--output", "out", "--workers", 1)
    ran = run("evolve", "judge", "out", "--json", "--all", "--through", "G6")
    document = json.loads(ran.out)

    assert ran.code == 1
    assert [row["seed"] for row in document["competition"]] == [0]
    assert document["lineage"][-1]["text_sha256"] == document["policy"]["sha256"]
    gates = {gate["gate"]: gate for gate in document["gates"]}
    assert gates["G4"]["sentence"].startswith("1 seed(s) of the 5 that it takes")
    assert gates["G6"]["outcome"] == "not run"
    assert ledger.entries() == []
    place = f"out/judged/best_seed_0-{document['policy']['sha256'][:8]}"
    assert ran.created == {"out/judged", place, f"{place}/judgement.json"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("small.toml",), "name a policy file with --candidate"),
        (("nowhere", "--candidate", "mine.py"), "there is no configuration 'nowhere'"),
        ((".", "--candidate", "mine.py"), "there is no run in ."),
        (("small.toml", "--candidate", "nowhere.py"), "there is no such file"),
        (("small.toml", "--candidate", "mine.py", "--through", "G8"), "--through must be one of"),
        (("small.toml", "--candidate", "mine.py", "--workers", "0"), "--workers must be from 1"),
        (("small.toml", "--candidate", "mine.py", "--ab", "small.toml"), "no ab.json"),
        (("small.toml", "--candidate", "mine.py", "--ab", "nowhere"), "check --ab"),
        (("small.toml", "--candidate", "mine.py", "--ledger", "."), "name another file"),
        (("small.toml", "--candidate", "mine.py", "--output", "mine.py"), "is a file"),
        ((), "RUN"),
    ],
)
@pytest.mark.usefixtures("config", "mine")
def test_what_makes_no_sense_is_one_line(refused, arguments, message):
    assert message in refused("evolve", "judge", *arguments)


def test_windows_that_were_opened_are_refused_before_any_work(run, config, mine, ledger, tmp_path):
    run("evolve", "judge", config, "--candidate", mine, "--through", "G0", "--output", "out")
    held_out = HeldOut.of(WindowSet.load(tmp_path / "out" / "windows.toml"))
    ledger.open(held_out, {"policy": "another", "policy_sha256": "ab"})
    ran = run("evolve", "judge", config, "--candidate", mine, "--through", "G6", "--output", "b")

    assert ran.code == 2
    assert ran.out == ""
    assert "held-out windows were opened on" in ran.err
    assert "for another" in ran.err
    assert ran.err.count("\n") == 1


def test_what_has_opened_the_held_out_windows_has_a_proof_sheet(run, tmp_path, monkeypatch, ledger):
    """With a case that has a run behind it, and few classics, so that it passes quickly."""
    monkeypatch.setattr(
        "queuesmith.evolve.gates.case.find_case", lambda _, folder: with_run(small_case(folder))
    )
    monkeypatch.setattr(judgement, "judge", partial(judgement.judge, classics=()))
    (tmp_path / "good.py").write_text(GOOD_TEXT)
    judge = ("evolve", "judge", "quick", "--candidate", "good.py", "--through", "G6", "--output")

    ran = run(*judge, "out")
    assert ran.code == 0, ran
    assert ran.out.splitlines()[-1] == "good: passed G0 to G6; not measured in real vLLM (G7)"
    assert ran.err == "written: out/proof.md\n"
    assert {"out/proof.md", "out/proof.json", "out/judgement.json"} <= ran.created
    sheet = json.loads((tmp_path / "out" / "proof.json").read_text())
    assert [entry["kind"] for entry in ledger.entries()] == ["opened", "result"]
    assert sheet["ledger"] == ledger.entries()
    first = (tmp_path / "out" / "proof.md").read_bytes()

    refused = run(*judge, "out")
    assert refused.code == 2
    assert "(sha256 " in refused.err
    assert "no guard broken" in refused.err
    again = run(*judge, "out", "--spent")
    assert again.code == 1
    assert "SPENT" in again.out.splitlines()[-1]
    assert again.created == {
        "out/judgement-spent.json",
        "out/proof-spent.json",
        "out/proof-spent.md",
    }
    assert (tmp_path / "out" / "proof.md").read_bytes() == first

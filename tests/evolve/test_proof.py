"""The proof sheet: everything a claim rests on, and nothing that is not so."""

import json
from dataclasses import replace

import numpy as np
import pytest

from queuesmith.evolve.gates.judge import judge
from queuesmith.evolve.gates.ledger import Ledger
from queuesmith.evolve.gates.measurements import Bench
from queuesmith.evolve.gates.proof import _aims, _code, _table, markdown, plain, proof

from .judged import GOOD_TEXT, policy, small_case, with_run

NAME = "azure_2023_code@model"


@pytest.fixture(scope="module")
def judgement(tmp_path_factory):
    """Of the good policy, at two loads of which one is idle."""
    folder = tmp_path_factory.mktemp("proof")
    case = with_run(small_case(folder, ('loads = ["heavy"]', 'loads = ["0.0001", "heavy"]')))
    return judge(case, None, ledger=Ledger(folder / "ledger.jsonl"), through="G6", classics=())


@pytest.fixture(scope="module")
def sheet(judgement):
    return plain(proof(judgement, "queuesmith evolve judge RUN --through G6"))


def rows_of(text, title):
    """Return the cells of the first table below a heading."""
    lines = text[text.index(f"## {title}\n") :].splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("| "))
    rows = []
    for line in lines[first:]:
        if not line.startswith("| "):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return [rows[0], *rows[2:]]


def test_it_holds_what_is_needed_to_check_the_claim(judgement, sheet):
    assert json.loads(json.dumps(sheet, allow_nan=False)) == sheet
    assert sheet["policy"]["text"] == GOOD_TEXT
    assert sheet["policy"]["sha256"] == policy(GOOD_TEXT).sha256
    assert sheet["command"] == "queuesmith evolve judge RUN --through G6"
    assert set(sheet["versions"]) == {"queuesmith", "python", "numpy", "numba", "scipy"}
    [source] = sheet["windows"]["sources"]
    assert source["kind"] == "modelled"
    assert {part: len(cut) for part, cut in source["parts"].items()} == {
        "tuning": 8, "validation": 8, "held_out": 8,
    }  # fmt: skip
    seen = [gate["saw"]["windows"] for gate in sheet["gates"] if "windows" in gate["saw"]]
    assert seen[-1] == [window["sha256"] for window in source["parts"]["held_out"]]
    assert [entry["kind"] for entry in sheet["ledger"]] == ["opened", "result"]
    assert sheet["ledger"][0]["windows_sha256"] == sheet["windows"]["held_out_sha256"]
    assert sheet["config"]["evaluations"]["4"] == {"search": 12, "control": 12}
    assert {row["load"] for row in sheet["does"]} == {"low", "high"}


def test_its_numbers_are_those_of_the_windows(judgement, sheet):
    """Against means taken by hand, from runs made anew."""
    case = judgement.case
    bench = Bench(case.config, case.window_set)
    bench._opened = sheet["windows"]["held_out_sha256"]
    fcfs = bench.fcfs("held_out")
    [mine] = bench.measure([policy(GOOD_TEXT)], "held_out")
    saw = next(gate for gate in sheet["gates"] if gate["gate"] == "G6")["saw"]

    assert len(saw["configurations"]) == 2
    for row in saw["configurations"]:
        ours, theirs = mine.samples[row["source"], row["load"]], fcfs.samples[NAME, row["load"]]
        assert row["num_requests"] == len(ours.ttft) == 1_200
        assert row["mean_change"] == pytest.approx(ours.ttft.mean() / theirs.ttft.mean() - 1)
        tails = np.quantile(ours.ttft, 0.99), np.quantile(theirs.ttft, 0.99)
        assert row["p99_change"] == pytest.approx(tails[0] / tails[1] - 1, abs=1e-12)
        assert row["mean_change_low"] <= row["mean_change"] <= row["mean_change_high"]
    idle = {row["load"]: row["idle"] for row in saw["configurations"]}
    assert idle == {"0.0001": True, "heavy": False}


def test_it_can_be_read(sheet):
    text = markdown(sheet)

    assert text.startswith(f"# best_seed_0: {sheet['verdict']}\n")
    assert "Traffic: modelled." in text
    assert "Not measured in real vLLM" in text
    assert "SPENT" not in text
    held_out = rows_of(text, "Held-out windows")
    assert held_out[0][:4] == ["source", "load", "windows", "mean TTFT"]
    assert [row[:3] for row in held_out[1:]] == [
        [NAME, "heavy", "8 x 150"],
        [NAME, "0.0001 (idle)", "8 x 150"],
    ]
    assert held_out[1][3].startswith("-")
    assert held_out[1][6].startswith("longest quarter of prompts")
    assert held_out[2][3].startswith("0 %")
    gates = rows_of(text, "Gates")
    assert [row[0][:2] for row in gates[1:]] == [f"G{number}" for number in range(7)]
    assert f"```python\n{GOOD_TEXT.rstrip()}\n```" in text
    assert sheet["ledger"][0]["sha256"][:16] in text
    assert "best_seed_0" in text
    assert "| las | " in text
    for line in text.splitlines():
        assert not line.startswith("error")


def test_spent_windows_are_marked_everywhere(judgement, sheet):
    spent = replace(judgement, spent=True)
    again = plain(proof(spent, "c"))

    assert again["spent"]
    assert "SPENT" in spent.verdict
    assert markdown(again).count("SPENT") >= 2


def configuration(**changes):
    row = {
        "source": "a", "load": "heavy", "idle": False, "mean_change": -0.4, "ttft_mean_fcfs": 9.0,
    }  # fmt: skip
    row |= changes
    return {"goal_worse": row["mean_change"], **row}


def held_out(*rows, score=2.0, best=0.9, tails=()):
    return {
        "configurations": list(rows),
        "score": {"value": score},
        "best_classic": "sjf",
        "standings": [{"policy": "sjf", "score": best}],
        "broken_guards": list(tails),
        "goal": "ttft",
    }


@pytest.mark.parametrize(
    ("saw", "missed"),
    [
        (held_out(configuration()), []),
        (held_out(configuration(), configuration(load="busy", mean_change=0.02)), [0]),
        (held_out(configuration(), configuration(load="busy", ttft_mean_fcfs=1.0, mean_change=0.0)),
         []),
        (held_out(configuration(), tails=["a at heavy"]), [1]),
        (held_out(configuration(), score=1.7), [2]),
        (held_out(configuration(), score=-1.0, best=-3.0), [2]),
        (held_out(configuration(mean_change=-0.3)), [3]),
        (held_out(configuration(), configuration(source="b", mean_change=-0.1)), [3]),
        (held_out(configuration(), configuration(load="light", idle=True, mean_change=-0.02)), [4]),
        (held_out(configuration(), configuration(load="light", idle=True, mean_change=0.005)), []),
    ],
)  # fmt: skip
def test_aims_are_met_or_missed(saw, missed):
    assert [place for place, aim in enumerate(_aims(saw)) if not aim["met"]] == missed


def test_json_holds_no_number_that_is_not_finite():
    assert plain({"a": [np.float64("nan"), np.int64(3)], 4: (np.inf, True, "x", None, 0.5)}) == {
        "a": [None, 3],
        "4": [None, True, "x", None, 0.5],
    }


def test_nothing_breaks_out_of_its_place():
    shown = _table([{"a": "one | two\nthree"}], {"a": "a"})
    assert shown.splitlines()[-1] == "| one \\| two three |"
    assert _code("'''```'''") == "````python\n'''```'''\n````"

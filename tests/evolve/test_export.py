"""`evaluate` for other programs: the loop's own score, never an exception, from many processes."""

import json
import math
import multiprocessing
import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial

import pytest

from queuesmith.errors import ConfigError
from queuesmith.evolve import export
from queuesmith.evolve.champion import make_reference, samples
from queuesmith.evolve.config import read_config
from queuesmith.evolve.export import FAILED, evaluate
from queuesmith.evolve.scoring.scale import make_scale
from queuesmith.evolve.scoring.traffic import freeze_windows, tuning_traffic
from queuesmith.policies import get_policy

from .hostile.cells import SLOW
from .toy import CONFIG

FAULT = "def waiting_key(request, engine):\n    return 1 / (request.priority * 0)\n"
KEYS = {
    *("combined_score", "score", "goal", "broken_guards", "reasons", "gains", "guards"),
    *("per_window", "status", "error"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("export")
    (folder / "toy.toml").write_text(CONFIG)
    for name in ("fcfs", "sjf", "lcfs"):
        (folder / f"{name}.py").write_text(get_policy(name).source)
    yield folder
    export.close()


@pytest.fixture
def toy(folder):
    return partial(evaluate, config=str(folder / "toy.toml"))


def test_fcfs_has_score_0_everywhere(folder, toy):
    answer = toy(folder / "fcfs.py")

    assert answer.keys() == KEYS
    assert (answer["score"], answer["combined_score"], answer["broken_guards"]) == (0.0, 0.0, 0)
    assert set(answer["gains"]) == {"ttft", "e2el", "slo", "goodput", "tpot"}
    assert set(answer["gains"].values()) == {0.0}
    for changes in answer["guards"].values():
        assert {"ttft_p99", "e2el_mean", "itl_p99", "output_throughput"} <= changes.keys()
        assert set(changes.values()) == {0.0}
    assert set(answer["per_window"].values()) == {0.0}
    assert (answer["status"], answer["error"]) == ("ok", "")


@pytest.mark.parametrize("name", ["sjf", "lcfs"])
def test_the_answer_is_what_the_loop_would_say(folder, toy, tmp_path, name):
    config = read_config(str(folder / "toy.toml"))
    traffic = tuning_traffic(config, freeze_windows(config, tmp_path))
    scale = make_scale(traffic)
    results = traffic.measure(get_policy(name))
    standing = scale.stand(results, sorted(scale.sources))
    mine, fcfs = samples(scale, results), samples(scale, scale.reference)
    beside = make_reference(scale).lay_beside(mine)

    answer = toy(folder / f"{name}.py")

    assert answer["combined_score"] == pytest.approx(standing.score)
    assert list(answer["per_window"].values()) == pytest.approx(
        list(scale.cell_scores(results).values())
    )
    assert answer["broken_guards"] == len(beside.broken) == len(answer["reasons"])
    (term,) = [math.log(fcfs[key].ttft.mean() / mine[key].ttft.mean()) for key in mine]
    assert answer["gains"]["ttft"] == pytest.approx(answer["score"])
    assert answer["score"] == pytest.approx(term)


@pytest.mark.parametrize(
    ("text", "status", "reason"),
    [
        ("", "form", "waiting_key"),
        ("import os\n", "form", "os"),
        ("def waiting_key(request, engine:\n", "form", "not Python"),
        ("\0", "form", "x00"),
        (FAULT, "fault", ""),
    ],
)
def test_a_bad_candidate_is_an_answer(tmp_path, toy, text, status, reason):
    file = tmp_path / "candidate.py"
    file.write_text(text)

    answer = toy(file)

    assert answer.keys() == KEYS
    assert (answer["status"], answer["combined_score"]) == (status, FAILED)
    assert answer["error"]
    assert reason in answer["error"]
    assert "\n" not in answer["error"]


@pytest.mark.parametrize("path", ["none.py", ".", "x" * 5_000, "a\0b.py", "/dev/null"])
def test_a_file_that_cannot_be_read_is_an_answer(toy, path):
    answer = toy(path)

    assert (answer["status"], answer["combined_score"]) == ("unreadable", FAILED)
    assert "\n" not in answer["error"]


def test_a_candidate_that_takes_too_long_is_ended_and_its_successor_asked(folder, tmp_path):
    config = tmp_path / "hasty.toml"
    config.write_text(CONFIG + "\n[sandbox]\nwall_seconds = 0.1\n")
    file = tmp_path / "slow.py"
    file.write_text(SLOW)

    slow, bad = (evaluate(path, str(config)) for path in (file, folder / "none.py"))

    assert (slow["status"], slow["combined_score"]) == ("timeout", FAILED)
    assert "0.1 s" in slow["error"]
    assert bad["status"] == "unreadable"


def test_every_answer_is_json_with_finite_numbers(folder, toy):
    for name in ("fcfs", "sjf", "lcfs", "none"):
        json.dumps(toy(folder / f"{name}.py"), allow_nan=False)


def test_a_wrong_configuration_is_the_caller_s_mistake(folder):
    with pytest.raises(ConfigError, match="no configuration 'quikc'"):
        evaluate(folder / "sjf.py", "quikc")


def test_it_is_called_from_another_process_beside_this_one(folder, toy):
    here = toy(folder / "sjf.py")

    # A fork, which inherits what this process keeps; any other process begins as this one did.
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        there = list(pool.map(toy, [folder / "sjf.py", folder / "lcfs.py"]))

    assert there[0] == here
    assert there[1] != here
    assert toy(folder / "sjf.py") == here


def test_threads_wait_for_one_another(folder, toy):
    files = [folder / f"{name}.py" for name in ("sjf", "lcfs", "fcfs") * 2]

    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(toy, files))

    assert answers == [toy(file) for file in files]


def test_nothing_is_left_behind_by_processes_that_end(folder, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import multiprocessing\n"
        "from queuesmith.evolve.export import evaluate\n"
        f"given = {str(folder / 'sjf.py')!r}, {str(folder / 'toy.toml')!r}\n"
        "if __name__ == '__main__':\n"
        "    child = multiprocessing.get_context('fork').Process(target=evaluate, args=given)\n"
        "    child.start()\n"
        "    evaluate(*given)\n"
        "    child.join()\n"
    )
    place = tmp_path / "place"
    place.mkdir()

    done = subprocess.run(
        [sys.executable, script],
        env={**os.environ, "TMPDIR": str(place)},
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert [item.name for item in place.iterdir() if item.name.startswith("queuesmith")] == []


def test_the_command_prints_one_json_document(folder, capsys):
    code = export.main([str(folder / "sjf.py"), "--config", str(folder / "toy.toml"), "--json"])

    assert code == 0
    assert json.loads(capsys.readouterr().out).keys() == KEYS


def test_the_command_tells_a_bad_candidate_from_a_bad_configuration(folder, capsys):
    toy = str(folder / "toy.toml")

    assert export.main([str(folder / "none.py"), "--config", toy]) == 1
    assert "no such file" in capsys.readouterr().out
    assert export.main([str(folder / "sjf.py"), "--config", "none.toml"]) == 2
    assert capsys.readouterr().err.startswith("error: ")
    assert export.main([str(folder / "sjf.py"), "--config", toy]) == 0
    assert "guard(s) broken" in capsys.readouterr().out

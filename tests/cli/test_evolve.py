"""``queuesmith evolve``: what it prints and writes, how it ends, how it goes on."""

import json
import signal
import time

import pytest

from queuesmith.cli.evolve import describe
from queuesmith.errors import ConfigError
from queuesmith.evolve.archive.archive import Archive
from queuesmith.evolve.loop import Progress
from queuesmith.policies import get_policy

CONFIG = """
name = "tiny"
seeds = [0]
loads = ["heavy"]

[[source]]
file = "azure_2023_code@model"
num_requests = 1_000

[windows]
num_windows = 3
window_len = 60
per_generation = 2

[search]
generations = {generations}
children = 6
islands = 1
depth = 2
classics = ["sjf"]
"""

FILES = {"archive.sqlite", "archive.lock", "windows.toml", "best.py", "best_seed_0.py"}


@pytest.fixture
def config(tmp_path):
    """Write a small configuration; return its path."""

    def config(generations=2, name="tiny.toml"):
        path = tmp_path / name
        path.write_text(CONFIG.format(generations=generations))
        return path

    return config


def test_a_run_names_the_best_of_each_seed_and_writes_it(run, config, tmp_path):
    ran = run("evolve", "run", config(), "--output", "out", "--workers", 1, "--seed", 5)
    said = " ".join(ran.out.split())

    assert ran.code in (0, 1), ran.err
    assert {path.removeprefix("out/") for path in ran.created} - {"out"} == {
        name.replace("seed_0", "seed_5") for name in FILES
    }
    assert ran.err == "best: out/best.py\n"
    assert "no. " in said
    assert "classics on the same windows: " in said
    assert "all generations are done; traffic: modelled" in said
    best = get_policy(tmp_path / "out" / "best.py")

    again = run("evolve", "resume", "out", "--workers", 2, "--json")
    document = json.loads(again.out)
    assert document["schema"] == "queuesmith.evolve/1"
    assert document["evaluations"] == {"search": 12, "control": 12}
    found = document["seeds"][0]["search"]
    assert document["best"] == {"seed": 5, **found}
    assert found["text_sha256"] == best.sha256
    assert f"no. {found['candidate']}" in said
    assert ran.code == again.code == (0 if found["clean"] and found["score"] > 0 else 1)
    assert {row["policy"] for row in document["classics"]} == {"fcfs", "sjf"}


def test_a_dry_run_writes_nothing(run, config):
    ran = run("evolve", "run", config(), "--dry-run")

    assert ran.code == 0
    assert ran.created == set()
    assert ran.out.startswith("24 evaluations (search and control, 1 seed(s))")
    assert "CPU minutes" in ran.out
    assert "No LLM is asked" in ran.out
    ran = run("evolve", "run", config(), "--dry-run", "--json", "--seed", 1, "--seed", 2)
    assert json.loads(ran.out)["evaluations"] == 48


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "quik"), "there is no configuration 'quik'. Did you mean 'quick'?"),
        (("run", "nowhere.toml"), "there is no file 'nowhere.toml'"),
        (("run", "quick", "--workers", "0"), "--workers must be from 1 to 1,000, got 0"),
        (("run", "quick", "--seed", "1", "--seed", "1"), "seeds must be different"),
        (("resume", "nowhere"), "there is no run in nowhere"),
        (("run",), "CONFIG"),
        (("rum", "quick"), 'Did you mean "run"?'),
    ],
)
def test_what_makes_no_sense_is_one_line(refused, arguments, message):
    assert message in refused("evolve", *arguments)


def test_a_folder_with_a_run_is_not_overwritten(run, config, tmp_path):
    (tmp_path / "out").mkdir()
    Archive.create(tmp_path / "out", {}).close()
    ran = run("evolve", "run", config(), "--output", "out")

    assert ran.code == 2
    assert "go on with `queuesmith evolve resume out`" in ran.err
    assert ran.created == set()


def test_ctrl_c_leaves_what_resumes(start, config, tmp_path):
    path = config(generations=60)
    process = start("evolve", "run", path, "--output", "out", "--workers", 2)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and num_evaluated(tmp_path / "out") < 3:
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)

    assert process.returncode == 130
    assert out == ""
    assert err == (
        "interrupted; nothing that was scored is lost: `queuesmith evolve resume out` goes on\n"
    )
    assert num_evaluated(tmp_path / "out") >= 3
    Archive.resume(tmp_path / "out").close()  # nobody holds it any more


def num_evaluated(folder):
    try:
        with Archive.read(folder) as archive:
            return archive.num_evaluated()
    except ConfigError:  # it is not there yet
        return 0


def test_progress_is_one_line():
    now = Progress(0, 2, 20, 0.5312, None, 310, 1_200, 60.0, {"wall_seconds": 120.0})

    assert describe(now) == (
        "seed 0 generation 3/20, best +0.531, control -, 310/min, wall_seconds left 120"
    )

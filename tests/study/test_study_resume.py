"""A study that is killed or damaged goes on, loses no finished part, and ends in the same bytes."""

import json
import os
import random
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

import queuesmith.study.run
from queuesmith.errors import ConfigError
from queuesmith.study.parts import part_path, read_part, sweep, write_part
from queuesmith.study.run import run_study

SERIAL = {"backend": "threading", "num_workers": 1}
SCRIPT = Path(sys.executable).with_name("queuesmith")


def same_runs(study, other):
    """NaN equals NaN here, unlike in `pyarrow.Table.equals`."""
    return str(study.runs.to_pylist()) == str(other.runs.to_pylist())


def bytes_in(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.*")}


@pytest.fixture
def ran(monkeypatch):
    """List the parts that were run."""
    seen = []

    def spy(part):
        seen.append(part.key)
        return part.cells.run()

    monkeypatch.setattr(queuesmith.study.run, "_run", spy)
    return seen


#: Starts a study again and again in a child, and kills it with SIGKILL; a process that is warm and
#: has one thread forks the child, so that twenty kills take seconds.
KILLER = """
import json, os, random, signal, sys, time
from pathlib import Path
from queuesmith.engine.compile import compile_policy
from queuesmith.study.design import Design
from queuesmith.study.run import run_study

path, folder, num_kills = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
design = Design.load(path)
assert design.windows
for policy in design.policies:
    compile_policy(policy)
rng = random.Random(0)

def parts():
    return sorted(file.name for file in folder.glob("parts/*.parquet"))

for kill in range(num_kills):
    before = len(parts())
    child = os.fork()
    if child == 0:
        run_study(design, folder, backend="threading", num_workers=1)
        os._exit(0)
    # Half of the kills come at any moment, half just after a part got its name.
    end = time.monotonic() + rng.uniform(0.0, 0.15)
    while time.monotonic() < end or kill % 2:
        if kill % 2 and len(parts()) > before:
            time.sleep(rng.uniform(0.0, 0.02))
            break
        if os.waitpid(child, os.WNOHANG)[0]:
            sys.exit("the study ended before it could be killed; make it larger")
        time.sleep(0.0005)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    now = {name: (folder / "parts" / name).stat() for name in parts()}
    print(json.dumps({name: [stat.st_ino, stat.st_mtime_ns] for name, stat in now.items()}))
"""


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL and fork are of POSIX")
def test_twenty_two_kills_lose_no_finished_part(write_design, small, tmp_path, ran):
    num_kills = 22
    path = write_design(
        num_windows=50, sources=[{"name": "drawn", "model": "azure_2023_conv@model"}]
    )
    folder = tmp_path / "killed"

    killer = subprocess.run(
        [sys.executable, "-c", KILLER, path, folder, str(num_kills)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert killer.returncode == 0, killer.stderr
    after_kill = [json.loads(line) for line in killer.stdout.splitlines()]
    assert len(after_kill) == num_kills
    for before, after in pairwise(after_kill):
        assert before.items() <= after.items()  # the same files, neither lost nor written again
    finished = set(after_kill[-1])
    assert 11 <= len(finished) < 50
    for name in finished:
        assert read_part(folder, name.removesuffix(".parquet")) is not None

    design = queuesmith.study.run.Design.load(path)
    resumed = run_study(design, folder, **SERIAL)

    assert {f"{key}.parquet" for key in ran} == set(resumed_names(resumed)) - finished
    in_one_go = run_study(design, tmp_path / "whole", **SERIAL)
    assert same_runs(resumed, in_one_go)
    kept = {name: data for name, data in bytes_in(folder).items() if not name.endswith(".part")}
    assert kept == bytes_in(tmp_path / "whole")


def resumed_names(study):
    return [f"{key}.parquet" for key in study.document["parts"]]


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="looks at /proc")
def test_a_killed_command_goes_on_and_its_workers_end(write_design, tmp_path):
    path = write_design(num_windows=15)
    command = [SCRIPT, "study", "run", path, "--output", tmp_path / "study", "--workers", "2"]
    (tmp_path / "log.csv").write_text(
        "arrival_time,prompt_len,output_len\n"
        + "".join(f"{row},{1 + row % 400},{1 + row % 50}\n" for row in range(900))
    )

    with (tmp_path / "log.txt").open("w") as log:  # a pipe would be open while workers live
        first = subprocess.Popen(command, stdout=log, stderr=log)
    while not list((tmp_path / "study").glob("parts/*.parquet")):
        assert first.poll() is None, (tmp_path / "log.txt").read_text()
        time.sleep(0.01)
    workers = children_of(first.pid)
    first.kill()
    first.wait()
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.glob("study/parts/*.parquet")}
    second = subprocess.run(command, capture_output=True, text=True, check=False)

    assert second.returncode == 0, second.stderr
    assert len(list(tmp_path.glob("study/parts/*.parquet"))) == 30
    assert (
        kept.items()
        <= {
            path: path.stat().st_mtime_ns for path in tmp_path.glob("study/parts/*.parquet")
        }.items()
    )
    assert workers
    end = time.monotonic() + 20
    while any(is_alive(pid) for pid in workers):
        assert time.monotonic() < end, "workers outlive the command that started them"
        time.sleep(0.1)


def children_of(pid):
    """Return the worker processes of a command."""
    ps = ["ps", "-ww", "--ppid", str(pid), "-o", "pid=", "-o", "args="]
    listed = subprocess.run(ps, capture_output=True, text=True, check=False).stdout.splitlines()
    return [int(line.split()[0]) for line in listed if "LokyProcess" in line]


def is_alive(pid):
    try:
        return "LokyProcess" in Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return False


def test_a_finished_study_runs_nothing_again(small, tmp_path, ran):
    first = run_study(small(), tmp_path / "study", **SERIAL)
    before = bytes_in(tmp_path / "study")
    assert ran == first.document["parts"]
    ran.clear()

    again = run_study(small(), tmp_path / "study", **SERIAL)

    assert ran == []
    assert same_runs(again, first)
    assert bytes_in(tmp_path / "study") == before


def cut(data):
    return data[: len(data) // 2]


def lose_the_end(data):
    return data[:-1]


def flip(data):
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 0xFF]) + data[middle + 1 :]


@pytest.mark.parametrize(
    "damage", [cut, lose_the_end, flip, lambda _: b"", lambda _: b"PAR1PAR1", lambda _: b"\0" * 999]
)
def test_a_damaged_part_is_run_again(small, tmp_path, ran, damage):
    first = run_study(small(), tmp_path / "study", **SERIAL)
    before = bytes_in(tmp_path / "study")
    key = first.document["parts"][2]
    path = part_path(tmp_path / "study", key)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ConfigError, match="1 of 4 parts are missing or damaged"):
        queuesmith.study.run.Study.load(tmp_path / "study")
    ran.clear()

    again = run_study(small(), tmp_path / "study", **SERIAL)

    assert ran == [key]
    assert same_runs(again, first)
    assert bytes_in(tmp_path / "study") == before


def test_a_part_under_the_name_of_another_is_run_again(small, tmp_path, ran):
    first = run_study(small(), tmp_path / "study", **SERIAL)
    one, other = first.document["parts"][:2]
    path = part_path(tmp_path / "study", one)
    path.write_bytes(part_path(tmp_path / "study", other).read_bytes())
    ran.clear()

    assert same_runs(run_study(small(), tmp_path / "study", **SERIAL), first)
    assert ran == [one]


def test_a_part_with_another_number_in_it_is_run_again(small, tmp_path, ran):
    """Whole as a file, with the metadata of the real one, but edited."""
    first = run_study(small(), tmp_path / "study", **SERIAL)
    key = first.document["parts"][0]
    path = part_path(tmp_path / "study", key)
    table = parquet.read_table(path)
    column = table.column_names.index("ttft_mean")
    better = pa.array([0.0] * len(table), pa.float64())
    parquet.write_table(table.set_column(column, "ttft_mean", better), path)
    ran.clear()

    assert same_runs(run_study(small(), tmp_path / "study", **SERIAL), first)
    assert ran == [key]


def test_no_changed_byte_passes(tmp_path):
    table = pa.table({"policy": ["fcfs", "sjf"], "ttft_mean": [1.5, float("nan")]})
    write_part(tmp_path, "key", table)
    path = part_path(tmp_path, "key")
    whole = path.read_bytes()
    assert str(read_part(tmp_path, "key").to_pylist()) == str(table.to_pylist())
    rng = random.Random(0)

    for place in range(len(whole)):
        changed = bytes([whole[place] ^ rng.randint(1, 255)])
        path.write_bytes(whole[:place] + changed + whole[place + 1 :])
        assert read_part(tmp_path, "key") is None, place


def test_what_a_kill_left_half_written_is_swept_away_when_it_is_old(small, tmp_path):
    run_study(small(), tmp_path / "study", **SERIAL)
    old, new = (tmp_path / "study" / "parts" / f".{name}.part" for name in ("old", "new"))
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 3600,) * 2)

    sweep(tmp_path / "study")

    assert not old.exists()
    assert new.exists()  # perhaps of another run that is writing it now


def test_parts_survive_a_lost_document(small, tmp_path, ran):
    first = run_study(small(), tmp_path / "study", **SERIAL)
    (tmp_path / "study" / "study.json").unlink()
    ran.clear()

    assert run_study(small(), tmp_path / "study", **SERIAL).document == first.document
    assert ran == []


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_refused(small, tmp_path):
    folder = tmp_path / "study"
    folder.mkdir(mode=0o500)

    with pytest.raises(ConfigError, match="cannot be written"):
        run_study(small(), folder, **SERIAL)


def test_an_interrupt_keeps_what_is_finished(small, tmp_path, monkeypatch):
    def stop(done, total):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_study(small(), tmp_path / "study", progress=stop, **SERIAL)

    assert len(list((tmp_path / "study" / "parts").glob("*.parquet"))) == 2

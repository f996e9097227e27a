"""Machines and people as they are: full disks, no home, no terminal, no network, impatience.

Most tests run the installed command in a process of its own, as its users do.
"""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest

import queuesmith
from queuesmith.cli import DONE, INTERRUPTED, WRONG
from queuesmith.study.parts import sweep, write_part

from . import samples

SCRIPT = Path(sys.executable).with_name("queuesmith")
QUICK = ("compare", "log.csv", "--policies", "sjf", "--loads", "heavy", "--window-len", "10")
TERMINATED = 128 + signal.SIGTERM

STUDY = """name = "long"
policies = ["fcfs", "sjf"]
loads = ["busy"]
engines = ["llama-3.1-8b/a100_sxm"]
window_len = {window_len}
num_windows = {num_windows}
metrics = ["ttft_mean"]
sources = [{{ name = "drawn", model = "azure_2023_conv@model" }}]
"""


@pytest.fixture
def start(tmp_path):
    """Start the command in an empty folder, in a group of its own; stop what is left of it."""
    (tmp_path / "log.csv").write_bytes(samples.log())
    started = []

    def start(*words, environment=None, **options):
        defaults = {
            "cwd": tmp_path,
            "env": {**os.environ, "COLUMNS": "80", **(environment or {})},
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "text": True,
            "errors": "backslashreplace",
            "start_new_session": True,
        }
        process = subprocess.Popen([SCRIPT, *map(os.fspath, words)], **{**defaults, **options})
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


@pytest.fixture
def run(start):
    """Run the command to its end; return status, output and errors."""

    def run(*words, **options):
        process = start(*words, **options)
        out, err = process.communicate(timeout=300)
        assert "Traceback" not in (out or "") + (err or "")
        return process.returncode, out, err

    return run


def assert_one_error(err):
    assert [line for line in err.splitlines() if line] == err.splitlines()
    assert err.startswith("error: ")
    assert err.count("\n") == 1


def whole_files(folder):
    """Return the files of a folder that are not plainly a part of one."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".part")


# A disk that fills


def few_bytes(most):
    """Let a process write no file larger than this: what a full disk does, without one."""

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

    return limit


@pytest.mark.parametrize(
    ("words", "most"),
    [
        ((*QUICK, "--output", "made"), 2_000),
        (("simulate", "log.csv", "--requests", "made.csv"), 500),
        (("study", "run", "long.toml", "--backend", "threading", "--output", "made"), 3_000),
        (("evolve", "run", "toy.toml", "--output", "made"), 3_000),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else str(value),
)
def test_a_disk_that_is_full_is_one_line_and_no_half_file(run, tmp_path, words, most):
    (tmp_path / "long.toml").write_text(STUDY.format(window_len=20, num_windows=2))
    (tmp_path / "toy.toml").write_bytes(samples.EVOLVE)
    before = whole_files(tmp_path)

    status, out, err = run(*words, preexec_fn=few_bytes(most))

    assert status == WRONG
    assert out == ""
    assert_one_error(err)
    assert "too large" in err or "disk I/O error" in err  # what the system says of the limit
    for path in whole_files(tmp_path):
        assert path in before or path.stat().st_size < most, path
        if path not in before and path.suffix == ".json":
            json.loads(path.read_text())


def test_output_to_a_full_disk_is_one_line(run):
    with open("/dev/full", "w") as full:
        status, _, err = run("policies", stdout=full)

    assert status == WRONG
    assert "No space left on device" in err
    assert_one_error(err)


# No home, nothing to write to


def test_without_a_home_everything_runs(run, tmp_path):
    """As under a user number that the system does not know, in a container."""
    nowhere = {"HOME": "/proc", "XDG_CACHE_HOME": "/proc/x", "XDG_STATE_HOME": "/proc/x"}

    status, _, err = run(*QUICK, "--output", "made", environment=nowhere)

    assert status == DONE, err
    assert (tmp_path / "made" / "report.html").exists()


def test_a_home_that_cannot_be_written_is_said_where_it_matters(run):
    status, _, err = run(
        "traces",
        "import",
        "log.csv",
        "--name",
        "mine",
        environment={
            "XDG_CACHE_HOME": "/proc/x",
            "QUEUESMITH_TRACES": "",
        },
    )

    assert status == WRONG
    assert "cannot be written" in err
    assert_one_error(err)


def test_code_that_is_compiled_needs_no_folder_of_its_own(tmp_path):
    """Installed where nobody may write, for somebody without a home."""
    package = Path(queuesmith.__file__).parent
    for source in package.rglob("*"):
        copy = tmp_path / "installed" / "queuesmith" / source.relative_to(package)
        if "__pycache__" in copy.parts:
            continue
        if source.is_dir():
            copy.mkdir(parents=True)
            (copy / "__pycache__").touch()  # a file, so that not even root makes it a folder
        else:
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(source.read_bytes())
    (tmp_path / "installed" / "queuesmith" / "__pycache__").touch()
    (tmp_path / "temporary").mkdir()
    program = (
        "import queuesmith.stats.draws, os, sys\n"
        "assert sys.modules['queuesmith'].__file__.startswith(sys.argv[1])\n"
        "print(os.environ['NUMBA_CACHE_DIR'])"
    )

    done = subprocess.run(
        [sys.executable, "-B", "-c", program, str(tmp_path)],
        env={
            "PATH": os.environ["PATH"],
            "HOME": "/proc",
            "PYTHONPATH": str(tmp_path / "installed"),
            "TMPDIR": str(tmp_path / "temporary"),
        },
        capture_output=True,
        text=True,
        timeout=300,
    )

    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.strip())
    assert folder.parent == tmp_path / "temporary"
    assert folder.stat().st_mode & 0o077 == 0  # machine code of others is not run


# Terminals, pipes, encodings


def test_a_reader_of_both_streams_may_leave(start):
    process = start("policies", "nobody", stderr=subprocess.STDOUT)
    process.stdout.close()

    assert process.wait(timeout=300) == WRONG


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_any_stream_may_be_closed(tmp_path, closed):
    (tmp_path / "log.csv").write_bytes(samples.log())
    words = f"exec {SCRIPT} simulate log.csv --json --requests made.csv {closed}"

    done = subprocess.run(["sh", "-c", words], cwd=tmp_path, capture_output=True, timeout=300)

    assert done.returncode == DONE
    assert b"Traceback" not in done.stdout + done.stderr
    if ">&-" not in closed.replace("2>&-", ""):
        json.loads(done.stdout)  # nothing meant for the other stream has gone here
    assert (tmp_path / "made.csv").read_bytes().count(b"\n") == 81


@pytest.mark.parametrize(
    "environment",
    [
        {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "COLUMNS": "1"},
        {"PYTHONIOENCODING": "ascii", "TERM": "dumb", "NO_COLOR": "1"},
        {"PYTHONIOENCODING": "latin-1:strict", "COLUMNS": "many", "LINES": "-1"},
        {"TERM": "no-such-terminal", "FORCE_COLOR": "1"},
    ],
    ids=lambda environment: next(iter(environment.values())),
)
def test_any_terminal_shows_any_name(run, tmp_path, environment):
    path = tmp_path / "日本語 é\udcff\x1b[2J[b].csv"
    path.write_bytes(samples.log())

    status, out, err = run("simulate", os.fsencode(path), environment=environment)

    assert status == DONE, err
    assert "80" in out or environment.get("COLUMNS") == "1"
    assert "\x1b[2J" not in out + err


def test_names_of_odd_bytes_reach_every_file_of_a_comparison(run, tmp_path):
    name = "\udcff\x1b[2J[b]&.csv"
    (tmp_path / name).write_bytes(samples.log())
    (tmp_path / "[b]\udcfe.py").write_bytes(samples.POLICY)
    words = [name if word == "log.csv" else word for word in QUICK]

    status, _, err = run(
        *map(os.fsencode, words), "--output", "made", "--policy", os.fsencode("./[b]\udcfe.py")
    )

    assert status == DONE, err
    source = json.loads((tmp_path / "made" / "comparison.json").read_text())["origin"]["source"]
    assert source == r"\udcff\x1b[2J[b]&.csv"
    assert r"\udcff" in (tmp_path / "made" / "report.html").read_text("utf-8")


# Networks, clocks, processors


def test_without_a_network_fetch_says_what_to_do_by_hand(run, tmp_path):
    nowhere = dict.fromkeys(("https_proxy", "HTTPS_PROXY"), "http://nowhere.invalid:9")

    status, out, err = run(
        "traces",
        "fetch",
        "azure_2023_code",
        "--folder",
        "made",
        environment={**nowhere, "QUEUESMITH_TRACES": "", "HOME": str(tmp_path)},
    )

    assert (status, out) == (WRONG, "")
    assert_one_error(err)
    assert "is there a network?" in err
    assert "By hand: download https://" in err


def test_a_clock_that_jumps_changes_no_number(tmp_path, monkeypatch, capsys):
    (tmp_path / "log.csv").write_bytes(samples.log())
    monkeypatch.chdir(tmp_path)
    words = [*QUICK, "--json", "--output"]
    assert queuesmith.cli.run([*words, "steady"]) == DONE
    steady = json.loads(capsys.readouterr().out)
    jumps = count()
    monkeypatch.setattr(time, "time", lambda: [4e9, 0.0, -5.0, 1.7e9][next(jumps) % 4])

    assert queuesmith.cli.run([*words, "jumping"]) == DONE

    jumping = json.loads(capsys.readouterr().out)
    for document in (steady, jumping):
        document["config"].pop("command")
    assert {**jumping, "seconds": 0} == {**steady, "seconds": 0}


def test_a_clock_that_was_set_back_keeps_the_part_of_a_run_beside(tmp_path, monkeypatch):
    write_part(tmp_path, "key", pa.table({"a": [1]}))
    part = tmp_path / "parts" / ".other.parquet.1.part"
    part.touch()
    monkeypatch.setattr(time, "time", lambda: 0.0)

    sweep(tmp_path)

    assert part.exists()


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="Linux binds processes to CPUs")
def test_one_processor_is_enough(run):
    one = min(os.sched_getaffinity(0))

    status, _, err = run(*QUICK, preexec_fn=lambda: os.sched_setaffinity(0, {one}))

    assert status == DONE, err


# Two at once


@pytest.mark.parametrize(
    "words",
    [
        (*QUICK, "--output", "made"),
        ("study", "run", "long.toml", "--backend", "threading", "--output", "made"),
    ],
    ids=lambda words: words[0],
)
def test_two_runs_in_one_folder_both_end_well(start, tmp_path, words):
    (tmp_path / "long.toml").write_text(STUDY.format(window_len=20, num_windows=4))
    both = [start(*words) for _ in range(2)]
    for process in both:
        _, err = process.communicate(timeout=300)
        assert process.returncode == DONE, err
    content = {path.name: path.read_bytes() for path in whole_files(tmp_path / "made")}

    alone = start(*words[:-1], "alone")
    alone.communicate(timeout=300)
    assert alone.returncode == DONE

    again = {path.name: path.read_bytes() for path in whole_files(tmp_path / "alone")}
    assert content.keys() == again.keys()
    for name in content.keys() - {"report.html", "comparison.json"}:  # they hold the command
        assert content[name] == again[name]
    assert not list((tmp_path / "made").rglob("*.part"))


TOY = samples.EVOLVE.replace(b"seeds = [3, 4]", b"seeds = [3]").replace(
    b"children = 6", b"children = 4"
)


def wait_for(process, is_there, seconds=200):
    end = time.monotonic() + seconds
    while not is_there():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.02)


def children(parent):
    """Return the processes that any of its threads has started."""
    lists = [each.read_text() for each in Path(f"/proc/{parent}/task").glob("*/children")]
    return [int(number) for number in " ".join(lists).split()]


def wait_until_gone(processes, seconds=30):
    end = time.monotonic() + seconds
    while any(Path(f"/proc/{number}").exists() for number in processes):
        assert time.monotonic() < end, "somebody is left"
        time.sleep(0.02)


@pytest.fixture
def evolving(start, tmp_path):
    """Start an evolution and wait until its archive is there."""
    (tmp_path / "toy.toml").write_bytes(TOY)

    def evolving():
        process = start("evolve", "run", "toy.toml", "--output", "made", "--workers", "1")
        wait_for(process, (tmp_path / "made" / "archive.sqlite").exists)
        time.sleep(1.0)
        return process

    return evolving


# Impatience


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, INTERRUPTED), (signal.SIGTERM, TERMINATED)]
)
def test_an_evolution_that_is_stopped_goes_on(evolving, run, tmp_path, number, status):
    first = evolving()
    second, _, refusal = run("evolve", "resume", "made")
    os.killpg(first.pid, number)
    out, err = first.communicate(timeout=300)

    assert second == WRONG
    assert "another process is writing the run in made" in refusal
    assert first.returncode == status
    assert out == ""
    assert err.splitlines() == [
        "interrupted; nothing that was scored is lost: `queuesmith evolve resume made` goes on"
    ]
    if number == signal.SIGINT:  # once is enough: it takes seconds
        ended, _, err = run("evolve", "resume", "made", "--workers", "1")
        assert ended in (0, 1), err
        assert (tmp_path / "made" / "best.py").exists()


@pytest.mark.parametrize(
    ("number", "status", "backend"),
    [(signal.SIGINT, INTERRUPTED, "threading"), (signal.SIGTERM, TERMINATED, "loky")],
)
def test_a_study_that_is_stopped_goes_on(start, run, tmp_path, number, status, backend):
    (tmp_path / "long.toml").write_text(STUDY.format(window_len=300, num_windows=60))
    words = ("study", "run", "long.toml", "--output", "made", "--workers", "2")
    first = start(*words, "--backend", backend)
    wait_for(first, lambda: list(tmp_path.glob("made/parts/*.parquet")))
    os.killpg(first.pid, number)
    out, err = first.communicate(timeout=300)
    kept = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("made/parts/*.parquet")}

    assert (first.returncode, out) == (status, "")
    assert err == "interrupted; nothing half-written is left\n"
    assert 0 < len(kept) < 60
    assert not list(tmp_path.rglob("*.part"))
    if backend == "threading":  # once is enough: it takes seconds
        ended, _, err = run(*words, "--backend", "threading")
        assert ended == DONE, err
        after = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("made/parts/*")}
        assert len(after) == 60
        assert kept.items() <= after.items()


@pytest.mark.parametrize("backend", ["loky", "dask"])
@pytest.mark.parametrize("wait", [0.1, 0.4, 0.8])
def test_workers_that_are_just_starting_are_ended_in_silence(start, tmp_path, backend, wait):
    if backend == "dask":
        pytest.importorskip("distributed")
    (tmp_path / "long.toml").write_text(STUDY.format(window_len=2000, num_windows=60))
    words = ("--output", "made", "--workers", "2", "--backend", backend)
    process = start("study", "run", "long.toml", *words)
    wait_for(process, lambda: children(process.pid))
    time.sleep(wait)
    family = children(process.pid)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)

    assert (process.returncode, err) == (INTERRUPTED, "interrupted; nothing half-written is left\n")
    wait_until_gone(family)


def test_a_second_interrupt_is_obeyed_at_once(start, tmp_path):
    (tmp_path / "long.toml").write_text(STUDY.format(window_len=300, num_windows=60))
    process = start("study", "run", "long.toml", "--output", "made", "--backend", "loky")
    wait_for(process, lambda: list(tmp_path.glob("made/parts/*.parquet")))
    for _ in range(3):
        os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=300)

    assert process.returncode in (INTERRUPTED, -signal.SIGINT)
    assert "Traceback" not in err


def test_what_nohup_has_asked_for_is_kept(start, tmp_path):
    """A job in the background of a script ignores Ctrl-C meant for another."""

    def ignore():
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)

    process = start(*QUICK, preexec_fn=ignore)
    time.sleep(0.5)
    for number in (signal.SIGINT, signal.SIGHUP):
        process.send_signal(number)
    _, err = process.communicate(timeout=300)

    assert process.returncode == DONE, err

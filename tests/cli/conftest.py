"""Run a command in an empty folder and see all that it did."""

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import queuesmith.cli

#: The script that pip installs.
SCRIPT = Path(sys.executable).with_name("queuesmith")


@dataclass(frozen=True)
class Ran:
    """What a command did: exit status, output, errors, and the paths that it created."""

    code: int
    out: str
    err: str
    created: set[str] = field(default_factory=set)


def paths_in(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run a command in this process, in an empty folder that is the current one."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        before = paths_in(tmp_path)
        capsys.readouterr()
        code = queuesmith.cli.run([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return Ran(code, out, err, paths_in(tmp_path) - before)

    return run


@pytest.fixture
def refused(run):
    """Run a command that must be refused: status 2, one line, nothing printed or written."""

    def refused(*arguments):
        ran = run(*arguments)
        assert ran.code == 2, ran
        assert ran.out == ""
        assert ran.created == set()
        assert ran.err.startswith("error: ")
        assert ran.err.count("\n") == 1
        assert ran.err.endswith("\n")
        assert "Traceback" not in ran.err
        return ran.err

    return refused


@pytest.fixture
def start(tmp_path):
    """Start a command in a process of its own, in an empty folder."""

    def start(*arguments, **options):
        command = [SCRIPT, *map(str, arguments)]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        environment = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1"}
        return subprocess.Popen(command, cwd=tmp_path, env=environment, **{**streams, **options})

    return start


@pytest.fixture
def log(tmp_path):
    """Write a trace of 80 requests; return its path."""
    lines = ["arrival_time,prompt_len,output_len"]
    lines += [f"{0.5 * row},{100 + 37 * row % 900},{5 + row % 7}" for row in range(80)]
    path = tmp_path / "log.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def quick(log):
    """Arguments of a comparison of two policies that takes 20 ms."""
    return ("compare", log, "--policies", "fcfs,sjf", "--loads", "heavy", "--window-len", 10)


@pytest.fixture
def policy_file(tmp_path):
    """Write a policy; return its path."""

    def policy_file(body, name="mine", head=""):
        path = tmp_path / f"{name}.py"
        path.write_text(f"{head}def waiting_key(request, engine):\n    {body}\n")
        return path

    return policy_file

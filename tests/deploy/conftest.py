"""Workloads for replays that take a fraction of a second."""

from dataclasses import dataclass

import numpy as np
import pytest

import queuesmith.cli
from queuesmith.config import EngineConfig
from queuesmith.engine import prepare
from queuesmith.traces.trace import Trace


@pytest.fixture
def make_workload():
    def make_workload(num_requests=8, gap=0.01, **columns):
        rows = np.arange(num_requests)
        columns = {"prompt_len": 10 + rows, "output_len": 3 + rows % 4, **columns}
        trace = Trace(5.0 + gap * rows, **columns)
        return prepare(trace, EngineConfig(), np.full(num_requests, np.nan))

    return make_workload


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run a command in this process, in an empty folder that is the current one."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        capsys.readouterr()
        code = queuesmith.cli.run([str(argument) for argument in arguments])
        return Ran(code, *capsys.readouterr())

    return run

"""``queuesmith ab`` in a process of its own, as it is stopped and as two of them meet."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import hostile_server as hostile
import pytest

from queuesmith.cli import DONE, INTERRUPTED

SCRIPT = Path(sys.executable).with_name("queuesmith")


@pytest.fixture
def start(tmp_path):
    """Start a measurement of six runs of eight requests each; stop what is left of it."""
    lines = ["arrival_time,prompt_len,output_len"]
    lines += [f"{0.5 * row},{20 + row},3" for row in range(8)]
    (tmp_path / "log.csv").write_text("\n".join(lines) + "\n")
    started = []

    def start(stock, ours):
        words = ["ab", "--policy", "sjf", "--trace", "log.csv", "--load", "10/s", "--windows", "1"]
        # What is asked here is not which arm is faster, on a machine that others use, too.
        words += ["--window-len", "8", "--output", "out", "--machine-margin", "9"]
        process = subprocess.Popen(
            [SCRIPT, *words, "--base-url", stock.base_url, ours.base_url],
            cwd=tmp_path,
            env={**os.environ, "COLUMNS": "80"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def well_ended(process, err):
    """A machine that others use may have sent late, which withholds the verdict: not asked here."""
    return process.returncode == DONE or "no verdict at" in err


def kept(folder):
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("out/runs/*.json")}


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, INTERRUPTED), (signal.SIGTERM, 128 + signal.SIGTERM)]
)
def test_a_measurement_that_is_stopped_goes_on(start, tmp_path, number, status):
    with hostile.serving() as stock, hostile.serving() as ours:
        first = start(stock, ours)
        end = time.monotonic() + 300
        while not kept(tmp_path):
            assert first.poll() is None, first.communicate()
            assert time.monotonic() < end, "no run was kept"
            time.sleep(0.01)
        first.send_signal(number)
        out, err = first.communicate(timeout=300)
        before = kept(tmp_path)

        assert (first.returncode, out) == (status, "")
        assert err.splitlines()[-1] == "interrupted; nothing half-written is left"
        assert "Traceback" not in err
        assert 0 < len(before) < 6
        assert not list(tmp_path.rglob("*.part"))

        again = start(stock, ours)
        _, err = again.communicate(timeout=300)

    assert well_ended(again, err), err
    assert len(kept(tmp_path)) == 6
    assert before.items() <= kept(tmp_path).items()


def test_two_measurements_in_one_folder_both_end_well(start, tmp_path):
    with hostile.serving() as stock, hostile.serving() as ours:
        both = [start(stock, ours) for _ in range(2)]
        for process in both:
            _, err = process.communicate(timeout=300)
            assert well_ended(process, err), err

    assert len(kept(tmp_path)) == 6
    assert json.loads((tmp_path / "out" / "ab.json").read_text())["failures"] == []
    assert not list(tmp_path.rglob("*.part"))

"""The command line as a process: help, exit status, interruptions, closed pipes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import queuesmith
from queuesmith.cli import DONE, INTERRUPTED, WRONG

from .conftest import SCRIPT, paths_in

HEAVY = {"numpy", "numba", "pyarrow", "scipy", "plotly", "joblib"}
VERBS = ["compare", "simulate", "policies"]

#: Long enough to be interrupted: some 3,000 runs of 1,000 requests.
LONG = ("compare", "azure_2023_conv@model", "--num-requests", "100000", "--windows", "40")


@pytest.mark.parametrize("arguments", [["--help"], *([verb, "--help"] for verb in VERBS)])
def test_help_imports_nothing_heavy(arguments):
    """A second of imports before a line of help would be the first thing anybody sees."""
    program = (
        "import sys, queuesmith.cli\n"
        "status = queuesmith.cli.run(sys.argv[1:])\n"
        f"print(sorted({HEAVY!r} & set(sys.modules)), status)\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=60
    )

    *shown, imported = done.stdout.splitlines()
    assert imported == f"[] {DONE}", done.stderr
    assert shown[0].startswith("Usage: queuesmith")


def test_help_names_every_verb(run):
    ran = run("--help")

    assert ran.code == DONE
    assert [verb for verb in VERBS if verb in ran.out] == VERBS


def test_the_version_is_printed(run):
    assert run("--version").out == f"{queuesmith.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compair"], 'Unknown command "compair". Did you mean "compare"?'),
        (["policies", "--chek"], "Unknown option: --chek. Did you mean --check?"),
        (["compare"], "TRACE"),
        (["compare", "a.csv", "--windows", "many"], 'unable to convert "many" into int'),
        (["compare", "a.csv", "b.csv"], "b.csv"),
        (["compare", "a.csv", "--seed", "1", "--seed", "2"], "--seed"),
        (["simulate", "a.csv", "--horizon", "high"], 'unable to convert "high" into float'),
        (["compare", "a.csv", "--output"], "--output requires an argument"),
    ],
)
def test_a_command_line_that_cannot_be_read_is_one_line_that_points_to_help(
    refused, arguments, message
):
    error = refused(*arguments)

    assert message.lower() in error.lower()
    verb = f" {arguments[0]}" if arguments[0] in VERBS else ""
    assert error.endswith(f"See `queuesmith{verb} --help`.\n")


def test_the_process_exits_with_the_status(start, quick):
    done = start(*quick, "--fail-if", "ttft_p99 > 0", "--json")
    out, err = done.communicate(timeout=120)

    assert done.returncode == 1
    assert out.startswith("{")
    assert "failed: sjf at heavy" in err
    wrong = start("policies", "nobody")
    assert wrong.communicate(timeout=60) == ("", wrong_message("nobody"))
    assert wrong.returncode == WRONG


def wrong_message(name):
    return (
        f"error: there is no policy {name!r}. `queuesmith policies` lists them; a file is given by "
        "its path, such as ./my_policy.py\n"
    )


def has_worked(process, seconds):
    """Wait until a process has used so much processor time, which a busy machine gives slowly."""
    stat, ticks = Path(f"/proc/{process.pid}/stat"), os.sysconf("SC_CLK_TCK")
    deadline = time.monotonic() + 300
    while process.poll() is None and time.monotonic() < deadline:
        user, system = stat.read_text().rsplit(")", 1)[1].split()[11:13]
        if int(user) + int(system) > seconds * ticks:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells processor time on Linux only")
def test_an_interrupted_comparison_stops_at_once_and_leaves_nothing(start, tmp_path):
    process = start(*LONG, "--policies", "all")
    assert has_worked(process, 3.0)  # of a minute

    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)  # a compilation is not interrupted

    assert process.returncode == INTERRUPTED
    assert out == ""
    assert err == "interrupted; nothing half-written is left\n"
    assert paths_in(tmp_path) == set()


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (["policies"], 0),
        (["policies", "--json"], 0),
        (["policies", "sjf"], 0),
        (["simulate", "log.csv"], 0),
        (["--help"], 0),
        (["compare", "log.csv", "--window-len", "10", "--policies", "sjf", "--loads", "2"], 0),
        (
            [
                *("compare", "log.csv", "--window-len", "10", "--policies", "sjf", "--json"),
                *("--loads", "2", "--fail-if", "ttft_p99 > 0"),
            ],
            1,
        ),
    ],
)
def test_a_reader_who_leaves_changes_nothing_but_the_output(start, log, command, status):
    """What ``| head -1`` does, at its most impatient: the pipe is closed before the first line."""
    process = start(*command)
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()

    assert process.wait(timeout=120) == status
    assert "Traceback" not in err
    assert "error" not in err.lower()


def test_output_may_be_closed(start, quick, tmp_path):
    """As by ``>&-``: Python has no sys.stdout then."""
    command = " ".join(["exec", str(SCRIPT), *map(str, quick), ">&-"])
    done = subprocess.run(
        ["sh", "-c", command], cwd=tmp_path, stderr=subprocess.PIPE, text=True, timeout=120
    )

    assert done.returncode == DONE
    assert done.stderr.startswith("report: ")


def test_without_a_terminal_nothing_but_text_is_printed(start, quick):
    out, err = start(*quick).communicate(timeout=120)

    assert "\x1b" not in out + err
    assert "\r" not in out + err
    assert out.isascii() or "─" in out
    assert max(map(len, out.splitlines())) <= 80


def test_a_message_does_not_repeat_a_name_of_any_length(run):
    ran = run("policies", "x" * 100_000)

    assert ran.code == WRONG
    assert len(ran.err) < 3_000
    assert ran.err.startswith("error: there is no policy 'xxx")
    assert "`queuesmith policies` lists them" in ran.err

"""The same requests through other simulators of LLM serving, timed side by side.

``python benchmarks/peers.py [TRACE]`` installs each peer into a virtual environment that is thrown
away afterwards, hands it the trace with the same arrival times and lengths, and prints requests
simulated per second of wall time. Every simulator runs in a process of its own on settings as close
to an H100 with Llama-3.1-8B as it allows; what differs is printed below the table, and so is the
reason of a peer that could not be installed or run.

Timed is the fastest of ``--repeats`` simulations, from requests in memory to results in memory,
after one untimed run of 200 requests. Installs, imports, compilation and start-up are left out.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

import simulators
from rich.console import Console
from rich.table import Table
from simulators import SIMULATORS, Requests

import queuesmith as qs

INSTALL_LIMIT = 900  # s; Vidur brings about a hundred packages


class Failed(Exception):
    """A simulator could not be installed or run; the message says why, in one line."""


def call(command: list[str | Path], limit: float, what: str, **options: Any) -> None:
    """Run a command, or raise with the last line that it said."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, **options)
    except subprocess.TimeoutExpired:
        raise Failed(f"{what} took more than {limit:g} s") from None
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or f"status {done.returncode}").split(
            "\n"
        )
        errors = [line for line in said if line.startswith("ERROR")]
        raise Failed(f"{what} failed: {(errors or said)[-1].strip()}")


def compare_one(name: str, requests: Requests, repeats: int, limit: float) -> dict[str, Any]:
    """Install one simulator into a throw-away environment and measure it there."""
    simulator = SIMULATORS[name]
    with tempfile.TemporaryDirectory(prefix="peers-") as folder:
        scratch = Path(folder)
        python: Path | str = sys.executable
        if simulator.requirement:
            call([sys.executable, "-m", "venv", scratch / "venv"], INSTALL_LIMIT, "making a venv")
            python = scratch / "venv" / "bin" / "python"
            call(
                [python, "-m", "pip", "install", "--quiet", simulator.requirement],
                INSTALL_LIMIT,
                f"pip install {simulator.requirement}",
            )
        job = {"name": name, "repeats": repeats, "limit": limit, "requests": vars(requests)}
        (scratch / "job.json").write_text(json.dumps(job))
        measured = scratch / "measured.json"
        call(
            [python, Path(simulators.__file__).resolve(), scratch / "job.json", measured],
            limit,
            "the simulation",
            cwd=scratch,
            env={**os.environ, "WANDB_MODE": "disabled"},  # Vidur reports to it otherwise
        )
        row: dict[str, Any] = json.loads(measured.read_text())
        return row


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("trace", nargs="?", default="azure_2023_conv@model")
    parser.add_argument("--num-requests", type=int, help="only so many, from the start")
    parser.add_argument("--speedup", type=float, default=1.0, help="divides arrival times")
    parser.add_argument("--limit", type=float, default=300, help="seconds for each simulator")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=SIMULATORS, default=list(SIMULATORS))
    options = parser.parse_args()

    trace = qs.load_trace(options.trace, num_requests=options.num_requests)
    requests = Requests(
        ((trace.arrival_time - trace.arrival_time[:1]) / options.speedup).tolist(),
        trace.prompt_len.tolist(),
        trace.output_len.tolist(),
    )

    measured: dict[str, dict[str, Any]] = {}
    failed: dict[str, str] = {}
    for name in options.only:
        print(f"{name} ...", file=sys.stderr, flush=True)
        try:
            measured[name] = compare_one(name, requests, options.repeats, options.limit)
        except Failed as failure:
            failed[name] = str(failure)

    title = f"{options.trace}, fastest of {options.repeats}; ratio is to queuesmith"
    table = Table(title=title, title_justify="left", box=None)
    for column in ("simulator", "version"):
        table.add_column(column)
    for column in ("requests", "finished", "s", "requests/s", "ratio", "mean TTFT"):
        table.add_column(column, justify="right")
    rates = {name: row["num_requests"] / row["seconds"] for name, row in measured.items()}
    for name in options.only:
        version = SIMULATORS[name].requirement.partition("==")[2] or qs.__version__
        if name in failed:
            table.add_row(name, version, *["-"] * 6)
            continue
        row = measured[name]
        table.add_row(
            name,
            version,
            f"{row['num_requests']:,}",
            f"{row['num_finished']:,}",
            f"{row['seconds']:.3g}",
            f"{rates[name]:,.0f}",
            f"{rates[name] / rates['queuesmith']:.2g}" if "queuesmith" in rates else "-",
            f"{1000 * row['mean_ttft']:.1f} ms",
        )
    Console(width=100).print(table)
    for name in options.only:
        remark = failed.get(name) or SIMULATORS[name].differs
        if remark:
            print("\n" + textwrap.fill(f"{name}: {remark}", 98, subsequent_indent="  "))
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()

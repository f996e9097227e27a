"""How often the simulator and vLLM's own scheduler disagree, over millions of random steps.

Run in the environment that has vLLM:

    requirements/with_vllm.sh python benchmarks/vllm_differential.py --steps 2000000 [--vllm 0.33]

Every case is drawn anew (`tests/vllm/differential.py` tells how): the kernel's recording, the
reference engine and vLLM's ``Scheduler``, with the plug-in where a policy orders, must agree on
every step. Another version than the installed one is driven without its model: the Python files of
its wheel, downloaded once into ``.venv-vllm/versions``, stand before those that are installed.

Exits with 1 after the first disagreement, whose message draws the case again; with 2 if too little
was compared, or too much refused, to mean anything.
"""

import argparse
import logging
import os
import platform
import subprocess
import sys
import time
import zipfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "vllm"))

from queuesmith.deploy.plugin import OLDER_VERSIONS, TESTED_VERSIONS, installed_version

ROOT = Path(__file__).parents[1]
STOCK_FCFS_EVERY = 5
#: Share of the draws that the simulator may refuse.
MAX_REFUSED = 0.2
VERSIONS = [*OLDER_VERSIONS, *TESTED_VERSIONS]


def start_with(version: str) -> int:
    """Run this script again with another version of vLLM; return its exit status."""
    folder = ROOT / ".venv-vllm" / "versions" / version
    if not (folder / "vllm").is_dir():
        print(f"downloading vLLM {version} for its Python files", file=sys.stderr)
        wheels = folder.parent / f"{version}.wheels"
        command = [sys.executable, "-m", "pip", "download", "-qq", "--no-deps", "--dest", wheels]
        subprocess.run([*command, f"vllm=={version}.*"], check=True)
        for wheel in wheels.glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                names = [name for name in archive.namelist() if not name.endswith(".so")]
                archive.extractall(folder, names)
            wheel.unlink()
        wheels.rmdir()
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "VLLM_TARGET_DEVICE": "cpu"}
    return subprocess.run([sys.executable, *sys.argv], env=environment).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=2_000_000)
    parser.add_argument("--first-seed", type=int, default=2_000_000)
    parser.add_argument("--vllm", choices=VERSIONS, help="the installed version by default")
    arguments = parser.parse_args()
    minor = ".".join((installed_version() or "").split(".")[:2])
    if arguments.vllm not in (None, minor):
        if "QUEUESMITH_DIFFERENTIAL" in os.environ:
            parser.error(f"vLLM {minor} was found where {arguments.vllm} should be")
        os.environ["QUEUESMITH_DIFFERENTIAL"] = arguments.vllm
        return start_with(arguments.vllm)

    from differential import POLICIES, Mismatch, Tally, run_case

    logging.disable(logging.WARNING)  # vLLM's remarks on the machine, thousands of times
    tally = Tally()
    start = told = time.monotonic()
    seed = arguments.first_seed
    while tally.steps < arguments.steps:
        of_vllm = seed % STOCK_FCFS_EVERY == 0
        place = (seed - seed // STOCK_FCFS_EVERY) % len(POLICIES)
        name = "stock fcfs" if of_vllm else POLICIES[place]
        try:
            run_case(seed, name, tally, large=True)
        except Mismatch as mismatch:
            print(f"MISMATCH {mismatch}")
            return 1
        seed += 1
        if seed - arguments.first_seed > 50 and tally.refused > (seed - arguments.first_seed) / 2:
            break
        if time.monotonic() > told + 60:
            told = time.monotonic()
            print(f"{tally.steps:,} steps, 0 mismatches", file=sys.stderr, flush=True)
    minutes = (time.monotonic() - start) / 60
    num_drawn = seed - arguments.first_seed
    fewest, fewest_steps = min(tally.by_policy.items(), key=lambda item: item[1], default=("-", 0))
    print(
        f"vLLM {installed_version()}, Python {platform.python_version()}, "
        f"seeds {arguments.first_seed} to {seed - 1}, {minutes:.0f} min"
    )
    for what, number in (
        ("mismatches", 0),
        ("steps", tally.steps),
        ("of these with the same block ids", tally.steps_with_block_ids),
        ("cases", tally.cases),
        ("of these vLLM's own fcfs", tally.stock_fcfs_cases),
        ("of these of the sizes of a real server", tally.large_cases),
        ("of these for the V2 model runner", tally.v2_cases),
        ("of these until somebody had waited for --max-wait", tally.cut_short),
        ("policies", len(tally.by_policy)),
        (f"steps of the policy with the fewest, {fewest}", fewest_steps),
        ("admissions", tally.admissions),
        ("preemptions", tally.preemptions),
        ("of these displacements", tally.displacements),
        ("requests ended by a stop token", tally.stopped_early),
        ("requests whose client gave up", tally.aborted),
        ("tokens found in the prefix cache", tally.cached_tokens),
        ("steps under asynchronous scheduling", tally.async_steps),
        ("draws that the simulator refuses", tally.refused),
    ):
        print(f"{number:>12,}  {what}")
    problems = []
    if tally.steps == 0 or tally.cases == 0:
        problems.append("nothing was compared")
    if tally.refused > MAX_REFUSED * num_drawn:
        problems.append(f"{tally.refused} of {num_drawn} draws were refused")
    if num_drawn >= 50 and tally.stock_fcfs_cases < 0.9 * num_drawn / STOCK_FCFS_EVERY:
        problems.append("vLLM's own fcfs was compared too seldom")
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return 2 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

"""How often the simulator and vLLM's own scheduler disagree, over millions of random steps.

Run in the environment that has vLLM:

    requirements/with_vllm.sh python benchmarks/vllm_differential.py --steps 2000000

Every case is drawn anew (`tests/vllm/differential.py` tells how): the kernel's recording, the
reference engine and vLLM's ``Scheduler``, with the plug-in where a policy orders, must agree on
every step. Exits with 1 after the first disagreement, whose message draws the case again.
"""

import argparse
import logging
import platform
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "vllm"))

from differential import POLICIES, Mismatch, Tally, run_case

from queuesmith.deploy.plugin import installed_version


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=2_000_000)
    parser.add_argument("--first-seed", type=int, default=2_000_000)
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)  # vLLM's remarks on the machine, thousands of times
    tally = Tally()
    start = told = time.monotonic()
    seed = arguments.first_seed
    while tally.steps < arguments.steps:
        try:
            run_case(seed, POLICIES[seed % len(POLICIES)], tally)
        except Mismatch as mismatch:
            print(f"MISMATCH {mismatch}")
            return 1
        seed += 1
        if time.monotonic() > told + 60:
            told = time.monotonic()
            print(f"{tally.steps:,} steps, 0 mismatches", file=sys.stderr, flush=True)
    minutes = (time.monotonic() - start) / 60
    fewest, fewest_steps = min(tally.by_policy.items(), key=lambda item: item[1])
    print(
        f"vLLM {installed_version()}, Python {platform.python_version()}, "
        f"seeds {arguments.first_seed} to {seed - 1}, {minutes:.0f} min"
    )
    for what, number in (
        ("mismatches", 0),
        ("steps", tally.steps),
        ("cases", tally.cases),
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
    return 0


if __name__ == "__main__":
    sys.exit(main())

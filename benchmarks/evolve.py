"""How many candidates a minute a search tries: proposed, checked, contained, scored, written down.

Run as ``python benchmarks/evolve.py [WORKERS]``. Modelled traffic: 8 tuning windows of 800
requests, all of them in every generation. The last column is from CPU seconds, those of candidates'
processes over the workers and the loop's own, as if every worker had an idle core; the one before
it is from the clock, with the start of the children in it.
"""

import os
import platform
import resource
import sys
import tempfile
import time
from pathlib import Path

from queuesmith.evolve.archive.archive import Archive
from queuesmith.evolve.config import EvolveConfig, parse_config
from queuesmith.evolve.run import begin, go_on

#: Candidates a minute that the project promises on two cores.
AT_LEAST = 300

CONFIG = """
name = "benchmark"
seeds = [0]
loads = [{loads}]

[[source]]
file = "azure_2023_conv@model"
num_requests = 30_000

[windows]
num_windows = 8
window_len = 800
per_generation = 8

[search]
generations = 3
children = 20
islands = 2
stop_early = {stop_early}
"""


def measure(what: str, config: EvolveConfig, workers: int) -> float:
    """Run a search; print a row; return candidates a minute if all cores were free."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        begin(config, folder)
        own = time.process_time()
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        start = time.perf_counter()
        document = go_on(folder, workers=workers)
        wall = time.perf_counter() - start
        own = time.process_time() - own
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        with Archive.read(folder) as archive:
            ((stopped,),) = archive.rows("SELECT count(*) FROM candidates WHERE status = 'stopped'")
    evaluations = sum(document["evaluations"].values())
    candidates = document["spent"]["cpu_seconds"]
    spawned = after.ru_utime + after.ru_stime - children.ru_utime - children.ru_stime
    # The loop waits for candidates or works itself, and children start while nothing else runs.
    busy = candidates / workers + own
    print(
        f"{what:<44} {evaluations:>10} {stopped:>8} {1e3 * candidates / evaluations:>10.0f} "
        f"{1e3 * own / evaluations:>8.0f} {spawned - candidates:>8.1f} "
        f"{60 * evaluations / wall:>10.0f} {60 * evaluations / busy:>10.0f}"
    )
    return 60 * evaluations / busy


def main() -> None:
    workers = int(sys.argv[1]) if len(sys.argv) > 1 else min(os.cpu_count() or 1, 2)
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    print(f"{workers} worker(s); at least {AT_LEAST} candidates a minute are promised on 2 cores\n")
    print(
        f"{'':<44} {'candidates':>10} {'stopped':>8} {'CPU ms':>10} {'loop ms':>8} {'start s':>8} "
        f"{'by clock':>10} {'a minute':>10}"
    )
    for what, loads, stop_early in (
        ("8 windows x 800, rho 1.5", "1.5", "true"),
        ("8 windows x 800, rho 0.6, 0.95, 1.1, 1.5", "0.6, 0.95, 1.1, 1.5", "true"),
        ("  the same, none stopped early", "0.6, 0.95, 1.1, 1.5", "false"),
    ):
        config = parse_config(CONFIG.format(loads=loads, stop_early=stop_early), "benchmark")
        measure(what, config, workers)


if __name__ == "__main__":
    main()

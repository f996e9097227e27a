"""How fast the simulator is: requests per second, one core, compiled.

Run as ``python benchmarks/engine.py [TRACE]``; the default trace is modelled. Times are the best of
several runs: CPU seconds of the engine, seconds by the clock of commands. They depend on the
machine, so quote them with it, or quote their ratios.
"""

import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import queuesmith as qs
from queuesmith.engine import prepare, simulate_workload
from queuesmith.engine.compile import compile_policy
from queuesmith.engine.presets.step_time import DEFAULT_PRESET, get_preset
from queuesmith.evaluation.evaluate import Load, scale_to_load
from queuesmith.windows import cut_windows

DEFAULT_TRACE = "azure_2023_conv@model"
PRESET = get_preset(DEFAULT_PRESET)


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    what: str
    num_requests: int
    seconds: float
    at_least: float = 0.0  # requests/s that the project promises on a machine like its author's

    def __str__(self) -> str:
        rate = self.num_requests / self.seconds
        target = f"{self.at_least:>12,.0f}" if self.at_least else " " * 12
        times = f"{self.num_requests:>10,} {1e3 * self.seconds:>10.1f} {rate:>12,.0f}"
        return f"{self.what:<58} {times} {target}"


def best_of(repeats: int, run: Callable[[], object]) -> float:
    """Return the CPU seconds of the fastest run; the first one, which warms up, is not counted.

    CPU time, since one thread does all the work and a machine is seldom alone.
    """
    run()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times)


def measure(
    what: str,
    trace: qs.Trace,
    policy: str,
    at_least: float = 0.0,
    *,
    jump: bool = True,
    **settings: bool,
) -> Row:
    config = PRESET.config.override(settings)
    workload = prepare(trace, config, trace.output_len.astype(float))
    compiled = compile_policy(qs.get_policy(policy))

    def run() -> object:
        return simulate_workload(workload, compiled, config, PRESET.step_time, jump=jump)

    return Row(what, len(trace), best_of(15, run), at_least)


def million() -> tuple[Row, float]:
    """Simulate a million requests in a process of its own; return the row and the peak GiB."""
    code = (
        "import resource, time, queuesmith as qs\n"
        "trace = qs.load_trace('azure_2023_conv@model', num_requests=1_000_000)\n"
        "start = time.perf_counter()\n"
        "qs.simulate(trace, output_length='exact')\n"
        "peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "print(time.perf_counter() - start, peak)\n"
    )
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    seconds, kib = map(float, out.stdout.split())
    return Row("fcfs, a million requests, with all set-up", 1_000_000, seconds), kib / 2**20


def command(what: str, arguments: list[str], environment: dict[str, str] | None = None) -> str:
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [Path(sys.executable).with_name("queuesmith"), *arguments],
            check=True,
            capture_output=True,
            cwd=folder,
            env={**os.environ, **(environment or {})},
        )
    return f"{what:<78} {time.perf_counter() - start:>8.2f} s"


def main() -> None:
    source = sys.argv[1] if len(sys.argv) > 1 else DEFAULT_TRACE
    trace = qs.load_trace(source)
    window = cut_windows(trace, num_windows=1, window_len=min(2000, len(trace)))[0].trace
    print(f"{trace.origin.kind} traffic: {source}, {len(trace):,} requests; engine {PRESET.name}")
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}\n")
    numbers = f"{'requests':>10} {'CPU ms':>10} {'requests/s':>12} {'at least':>12}"
    print(f"{'policy and load':<58} {numbers}")
    knee = scale_to_load(window, Load("", 0.95), PRESET.config, PRESET.step_time)
    heavy = scale_to_load(window, Load("", 1.5), PRESET.config, PRESET.step_time)
    print(measure("fcfs, whole trace at its own rate", trace, "fcfs", 1e6))
    print(measure("  the same, step by step (no jumps)", trace, "fcfs", jump=False))
    for name in ("async_scheduling", "enable_prefix_caching"):
        print(measure(f"  the same without {name}", trace, "fcfs", **{name: False}))
    for policy in ("hrrn", "preflow", "weighted_fair", "srpt", "slai"):
        at_least = 3e5 if policy in ("hrrn", "preflow") else 0.0
        print(measure(f"{policy} (key changes while waiting), rho 0.95", knee, policy, at_least))
    for policy in ("fcfs", "sjf", "hrrn", "srpt", "fit_first"):
        print(measure(f"{policy}, rho 1.5", heavy, policy, 5e4))
    row, gib = million()
    print(row)
    print(f"{'  its peak memory':<58} {gib:>10.2f} GiB\n")

    print(command("queuesmith --help", ["--help"]))
    small = ["compare", DEFAULT_TRACE, "--windows", "1", "--output", "out"]
    with tempfile.TemporaryDirectory() as cache:
        cold = {"NUMBA_CACHE_DIR": cache, "QUEUESMITH_CACHE": cache}
        print(command("the first compare on a machine, compiling everything", small, cold))
    print(command("compare, 12 policies x 3 loads x 1 window of 1,000", small))
    print(command("compare, 12 policies x 3 loads x 8 windows of 1,000", small[:2]))


if __name__ == "__main__":
    main()

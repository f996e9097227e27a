"""What a fleet costs: CPU time per request by number of replicas and router, beside one engine.

Run as ``python benchmarks/replicas.py [TRACE]``. The load per replica is the same everywhere. Times
are CPU seconds, the best of several runs, on one core.
"""

import os
import platform
import sys
import time
from dataclasses import replace

import numpy as np

import queuesmith as qs
from queuesmith.engine import prepare, simulate_workload
from queuesmith.engine.compile import compile_policy
from queuesmith.engine.fleet import Fleet
from queuesmith.engine.presets.step_time import DEFAULT_PRESET, get_preset
from queuesmith.engine.workload import Workload
from queuesmith.evaluation.evaluate import Load, scale_to_load
from queuesmith.routers import get_router, router_names
from queuesmith.windows import scale_arrivals

PRESET = get_preset(DEFAULT_PRESET)
NUM_REQUESTS = 10_000  # of modelled traffic
REPEATS = 5


def microseconds(workload: Workload, fleet: Fleet | None) -> float:
    """Return the CPU time per request of the fastest run; the first one warms up."""
    compiled = compile_policy(qs.get_policy("fcfs"))
    times = []
    for _ in range(REPEATS + 1):
        start = time.process_time()
        simulate_workload(workload, compiled, PRESET.config, PRESET.step_time, fleet=fleet)
        times.append(time.process_time() - start)
    return 1e6 * min(times[1:]) / len(workload.trace)


def main() -> None:
    source = sys.argv[1] if len(sys.argv) > 1 else "azure_2023_conv@model"
    trace = qs.load_trace(source, num_requests=NUM_REQUESTS if source.endswith("@model") else None)
    busy = scale_to_load(trace, Load("", 0.8), PRESET.config, PRESET.step_time)
    print(f"{busy.origin.kind} traffic: {source}, {len(busy):,} requests; engine {PRESET.name}")
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    print("CPU microseconds per request at rho 0.8, fcfs\n")

    def workload(num_replicas: int, **columns: np.ndarray) -> Workload:
        scaled = replace(scale_arrivals(busy, 1 / num_replicas), **columns)
        return prepare(scaled, PRESET.config, busy.output_len.astype(float))

    print(f"{'one engine, no router':<24}{microseconds(workload(1), None):8.2f}\n")
    sizes = (1, 4, 16)
    print(f"{'replicas':<24}" + "".join(f"{size:8d}" for size in sizes))
    for name in router_names():
        fleets = [Fleet(size, get_router(name)) for size in sizes]
        cells = [microseconds(workload(fleet.num_replicas), fleet) for fleet in fleets]
        print(f"{name:<24}" + "".join(f"{cell:8.2f}" for cell in cells))

    rng = np.random.default_rng(0)
    print(
        "\nevery fifth request is the next turn of a session, least_loaded, by shortest think time"
    )
    for shortest in (1.0, 0.1, 0.001):
        session = np.where(np.arange(len(busy)) % 5 == 0, np.arange(len(busy)) // 5 % 500, -1)
        think_time = shortest + rng.exponential(5.0, len(busy))
        cells = []
        for size in sizes:
            turns = workload(size, session=session, think_time=think_time)
            cells.append(microseconds(turns, Fleet(size, get_router("least_loaded"))))
        print(f"{shortest:>8g} s{'':<14}" + "".join(f"{cell:8.2f}" for cell in cells))


if __name__ == "__main__":
    main()

"""What it costs to spread work: ``python benchmarks/backends.py [BACKEND ...]``.

For each backend that is installed, with two workers on this machine: seconds until they are there,
seconds per 1,000 tasks that do nothing (and how much of them is CPU time of this process, where the
scheduler of Dask is too), and *efficiency* at real work: CPU seconds that the tasks
take in this process, one after the other, over wall seconds times workers. A task of the latter is
a window of 1,000 requests under one policy, simulated ten times. On a machine that does other
things the wall seconds are those of the neighbours too.
"""

import os
import sys
import time
from functools import partial

import numpy as np

NUM_WORKERS = 2
NUM_EMPTY, NUM_REAL, REPEATS = 1_000, 64, 10


def main() -> None:
    from queuesmith.backends import BACKENDS, Backend, open_pool
    from queuesmith.errors import ConfigError

    tasks = make_tasks()
    work(tasks[0])  # compiles
    start = time.process_time()
    expected = [work(task) for task in tasks]
    alone = time.process_time() - start
    load = os.getloadavg()[0]
    print(f"{len(tasks)} tasks of {1000 * alone / len(tasks):.0f} ms CPU; load average {load:.1f}")
    print("| backend | start, s | s per 1,000 tasks | of them CPU here | efficiency at 2 workers |")
    print("|---|---|---|---|---|")
    for name in sys.argv[1:] or BACKENDS:
        try:
            backend = Backend.choose(name, NUM_WORKERS)
        except ConfigError as error:
            print(f"| {name} | {error} | | | |")
            continue
        start = time.perf_counter()
        with open_pool(backend) as pool:
            found = dict(pool.run(work, tasks[: 2 * NUM_WORKERS]))  # imports in every worker
            ready = time.perf_counter() - start
            start, own = time.perf_counter(), time.process_time()
            assert len(list(pool.run(abs, range(NUM_EMPTY)))) == NUM_EMPTY
            empty = (time.perf_counter() - start) * 1_000 / NUM_EMPTY
            own = (time.process_time() - own) * 1_000 / NUM_EMPTY
            start = time.perf_counter()
            found = dict(pool.run(work, tasks))
            wall = time.perf_counter() - start
        assert [found[place] for place in range(len(tasks))] == expected
        efficiency = alone / (NUM_WORKERS * wall)
        print(
            f"| {name} | {ready:.1f} | {empty:.2f} | {own:.2f} | {100 * efficiency:.0f} % |",
            flush=True,
        )


def make_tasks() -> list[object]:
    from queuesmith.engine import prepare
    from queuesmith.engine.presets.step_time import get_preset
    from queuesmith.evaluation.evaluate import Load, scale_to_load
    from queuesmith.policies import get_policy
    from queuesmith.traces import load_trace

    preset = get_preset("llama-3.1-8b/h100_sxm")
    trace = load_trace("azure_2023_conv@model", num_requests=1_000)
    scaled = scale_to_load(trace, Load("", 0.95), preset.config, preset.step_time)
    workload = prepare(scaled, preset.config, np.full(len(scaled), np.nan))
    policies = [get_policy(name) for name in ("fcfs", "sjf", "srpt", "las")]
    return [(policies[number % 4], workload, preset) for number in range(NUM_REAL)]


def work(task: object) -> float:
    from queuesmith.engine import simulate_workload
    from queuesmith.engine.compile import compile_policy

    policy, workload, preset = task
    run = partial(
        simulate_workload, workload, compile_policy(policy), preset.config, preset.step_time
    )
    return sum(run().end_time for _ in range(REPEATS))


if __name__ == "__main__":
    main()

"""How fast a study runs: ``python benchmarks/study.py [FOLDER_WITH_TRACES]``.

One engine of the design `atlas` in its smallest form, 13 policies on 120 windows of 1,000 requests
at 6 loads, run to a new folder with as many processes as there are cores. Compilation comes first
and is not counted; the start of processes and the writing of parts are.
"""

import os
import resource
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

ENGINE = "llama-3.1-8b/h100_sxm"
NUM_POLICIES = 13
MAX_SECONDS, MAX_GIB = 90.0, 2.0


def main() -> None:
    if len(sys.argv) > 1:
        os.environ["QUEUESMITH_TRACES"] = str(Path(sys.argv[1]).resolve())
    from queuesmith.engine.compile import compile_policy
    from queuesmith.study.design import Design
    from queuesmith.study.run import plan, run_study

    atlas = Design.load("atlas")
    design = replace(
        atlas,
        policies=atlas.policies[:NUM_POLICIES],
        policy_names=atlas.policy_names[:NUM_POLICIES],
        engines=tuple(preset for preset in atlas.engines if preset.name == ENGINE),
        sensitivity=None,
    )
    counts = {kind: sum(one.num(kind) for one in design.inputs) for kind in ("real", "modelled")}
    for policy in design.policies:
        compile_policy(policy)
    parts = plan(design)
    num_runs = sum(part.cells.num_runs for part in parts)
    cores = os.cpu_count() or 1

    with tempfile.TemporaryDirectory() as folder:
        start, own = time.perf_counter(), time.process_time()
        study = run_study(design, folder, backend="loky", num_workers=cores)
        seconds, parent = time.perf_counter() - start, time.process_time() - own
        stored = sum(path.stat().st_size for path in Path(folder).rglob("*.parquet"))
    assert study.runs.num_rows == num_runs

    # Processes of loky end with this one, so what they used is measured on a sample.
    sample = parts[:: max(len(parts) // 12, 1)]
    start = time.process_time()
    for part in sample:
        part.cells.run()
    cpu = (time.process_time() - start) / sum(part.cells.num_runs for part in sample) * num_runs
    gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    workers = _workers_gib()

    print(f"{num_runs:,} runs of 1,000 requests, {ENGINE}, windows: {counts}")
    print(f"wall: {seconds:.1f} s with {cores} processes (limit {MAX_SECONDS:.0f} s on 2 cores)")
    print(f"CPU: about {cpu:.1f} s in workers, {parent:.1f} s in the parent")
    print(f"memory at most: {gib:.2f} GiB in the parent, {workers:.2f} GiB in all workers")
    print(f"parts: {len(parts)} files, {stored / 2**20:.1f} MiB")


def _workers_gib() -> float:
    """Return the peak memory of the worker processes that are there; 0 where Linux is not."""
    kib = 0
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
            if int(fields["PPid"]) == os.getpid():
                kib += int(fields["VmHWM"].split()[0])
        except (OSError, KeyError, ValueError):
            continue  # it ended, or is not ours to read
    return kib / 2**20


if __name__ == "__main__":
    main()

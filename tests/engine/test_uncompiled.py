"""The kernel is Python: with numba's compiler off it takes the same decisions.

So it can be stepped through in a debugger and its coverage measured, and nothing in it hangs on
what only machine code does, such as integers that wrap around.
"""

import json
import os
import subprocess
import sys

PROGRAM = """
import hashlib, json, sys
import numba
import numpy as np
import queuesmith as qs

rng = np.random.default_rng(0)
trace = qs.Trace(
    np.cumsum(rng.exponential(0.02, 60)),
    prompt_len=rng.integers(1, 200, 60),
    output_len=rng.integers(1, 30, 60),
)
config = qs.EngineConfig(
    max_num_seqs=8, max_num_batched_tokens=64, max_model_len=256, block_size=16, num_gpu_blocks=30
)
runs = {}
for policy in sys.argv[1:]:
    result = qs.simulate(trace, policy=policy, config=config, step_time=qs.StepTime(a=0.01, c=1e-3))
    digest = hashlib.sha256(result.requests.tobytes()).hexdigest()
    runs[policy] = digest, int(result.requests["num_preemptions"].sum())
print(json.dumps([bool(numba.config.DISABLE_JIT), runs]))
"""
POLICIES = ["fcfs", "sjf", "srpt", "hrrn", "las"]


def run(disable_jit: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *POLICIES],
        env={**os.environ, "NUMBA_DISABLE_JIT": disable_jit},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_kernel_decides_alike_without_a_compiler():
    uncompiled, compiled = json.loads(run("1")), json.loads(run("0"))

    assert (uncompiled[0], compiled[0]) == (True, False)
    assert uncompiled[1] == compiled[1]
    digests = {digest for digest, _ in compiled[1].values()}
    assert len(digests) == len(POLICIES)  # the policies differ here, so agreement says something
    assert any(preemptions for _, preemptions in compiled[1].values())

"""A small job: one crowded window, and a trap for policies by which nobody gets to an end."""

import math

import numpy as np

from queuesmith.config import EngineConfig
from queuesmith.engine import prepare
from queuesmith.engine.presets.step_time import StepTime
from queuesmith.evolve.sandbox.sandbox import Cell, SimulationJob
from queuesmith.traces.trace import Trace

#: Of good form; in the trap it would compute 700 sines in each of two million steps.
SLOW = """
import math


def waiting_key(request, engine):
    return request.arrival_time


def victim_key(request, engine):
    return request.num_computed_tokens + 1e-9 * f5(engine.now)


def f0(x):
    return math.sin(x) + math.sin(x + 1.0) + math.sin(x + 2.0)
"""
SLOW += "".join(
    f"\n\ndef f{n}(x):\n    return f{n - 1}(x) + f{n - 1}(x + {n}.1) + f{n - 1}(x + {n}.2)\n"
    for n in range(1, 6)
)

STEP_TIME = StepTime(a=0.01, b2=1e-4, c=1e-4, d=1e-6)


def crowded_cell(seed: int, num_requests: int = 60) -> Cell:
    """Return a window that waits, and preempts now and then."""
    rng = np.random.default_rng(seed)
    trace = Trace(
        np.cumsum(rng.exponential(0.02, num_requests)),
        prompt_len=rng.integers(1, 100, num_requests),
        output_len=rng.integers(1, 20, num_requests),
    )
    config = EngineConfig(
        max_num_seqs=8,
        max_num_batched_tokens=128,
        num_gpu_blocks=100,
        block_size=4,
        max_model_len=200,
    )
    return Cell(prepare(trace, config, np.full(num_requests, math.nan)), config, STEP_TIME)


def trap_cell() -> Cell:
    """Return a window in which neither prompt fits beside a chunk of the other."""
    trace = Trace([0.0, 0.0], prompt_len=[40, 40], output_len=[1, 1])
    config = EngineConfig(
        max_num_seqs=4,
        max_num_batched_tokens=8,
        num_gpu_blocks=41,
        block_size=1,
        max_model_len=64,
        long_prefill_token_threshold=4,
        scheduler_reserve_full_isl=False,
    )
    return Cell(prepare(trace, config, np.full(2, math.nan)), config, STEP_TIME)


def small_job() -> SimulationJob:
    """Return three cells: two windows and the trap."""
    return SimulationJob((crowded_cell(0), crowded_cell(1), trap_cell()))

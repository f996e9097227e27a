"""Simulators of LLM serving that ``peers.py`` compares: how each is asked for the same run.

Every function of this module runs in the virtual environment of its simulator, which is why each
imports it inside, and why the module needs nothing else.
"""

import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# The engine that every simulator is asked to be.
MAX_NUM_SEQS = 256
MAX_NUM_BATCHED_TOKENS = 8192
NUM_GPU_BLOCKS = 27_000
BLOCK_SIZE = 16

WARM_UP_REQUESTS = 200


@dataclass(frozen=True)
class Requests:
    """Columns of a trace; seconds and tokens."""

    arrival_time: list[float]
    prompt_len: list[int]
    output_len: list[int]

    def __len__(self) -> int:
        return len(self.arrival_time)

    def __iter__(self) -> Iterator[tuple[float, int, int]]:
        return zip(self.arrival_time, self.prompt_len, self.output_len, strict=True)

    def first(self, num_requests: int) -> "Requests":
        """Return the earliest of them."""
        return Requests(*(column[:num_requests] for column in vars(self).values()))


@dataclass(frozen=True)
class Run:
    """One simulation: how long it took, and what shows that it did the work."""

    seconds: float
    num_finished: int
    mean_ttft: float  # s, simulated


def run_queuesmith(requests: Requests) -> Run:
    import numpy as np

    import queuesmith as qs
    from queuesmith.config import EngineConfig

    trace = qs.Trace(requests.arrival_time, requests.prompt_len, requests.output_len)
    config = EngineConfig(
        max_num_seqs=MAX_NUM_SEQS,
        max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS,
        num_gpu_blocks=NUM_GPU_BLOCKS,
        block_size=BLOCK_SIZE,
    )
    start = time.perf_counter()
    result = qs.simulate(trace, policy="fcfs", engine="llama-3.1-8b/h100_sxm", config=config)
    seconds = time.perf_counter() - start
    rows = result.requests
    return Run(
        seconds,
        num_finished=int(np.isfinite(rows.last_token_ts).sum()),
        mean_ttft=float(np.mean(rows.first_token_ts - rows.arrival_time)),
    )


def run_dynamo(requests: Requests) -> Run:
    from dynamo import _core

    engine = _core._normalize_mocker_config(
        {
            "engine": {
                "backend": "vllm",
                "num_gpu_blocks": NUM_GPU_BLOCKS,
                "block_size": BLOCK_SIZE,
                "max_num_seqs": MAX_NUM_SEQS,
                "max_num_batched_tokens": MAX_NUM_BATCHED_TOKENS,
                "enable_chunked_prefill": True,
                "enable_prefix_caching": False,
            }
        }
    )
    trace = Path("mooncake.jsonl")
    with trace.open("w") as lines:
        next_hash = 0
        for arrival_time, prompt_len, output_len in requests:
            num_blocks = math.ceil(prompt_len / BLOCK_SIZE)
            request = {
                "timestamp": 1000 * arrival_time,
                "input_length": prompt_len,
                "output_length": output_len,
                "hash_ids": list(range(next_hash, next_hash + num_blocks)),
            }
            next_hash += num_blocks
            lines.write(json.dumps(request) + "\n")
    summary = _core.run_mocker_trace_replay(
        [trace],
        extra_engine_args=engine,
        trace_block_size=BLOCK_SIZE,
        capture_planner_details=False,
    ).summary
    return Run(
        seconds=summary["wall_time_ms"] / 1000,
        num_finished=summary["completed_requests"],
        mean_ttft=summary["mean_ttft_ms"] / 1000,
    )


def run_sched_sim(requests: Requests) -> Run:
    from sched_sim.core.event_engine import Simulator
    from sched_sim.core.request import Request
    from sched_sim.hardware.presets import PRESETS
    from sched_sim.schedulers.factory import create_scheduler

    a100 = PRESETS["a100"]  # carries an 8B Llama, where the H100 preset carries a 70B one
    llama_on_h100 = PRESETS["h100"].model_copy(
        update={
            name: getattr(a100, name)
            for name in (
                "parameter_count_billions",
                "num_layers",
                "hidden_size",
                "num_heads",
                "num_kv_heads",
                "head_dim",
            )
        }
    )
    scheduler = create_scheduler(
        "chunked",
        llama_on_h100,
        token_budget=MAX_NUM_BATCHED_TOKENS,
        max_batch_size=MAX_NUM_SEQS,
    )
    simulator = Simulator(llama_on_h100, scheduler, block_size=BLOCK_SIZE)
    simulator.submit_workload(
        [
            Request(
                request_id=str(row),
                arrived_at=arrival_time,
                prompt_tokens=prompt_len,
                output_tokens=output_len,
            )
            for row, (arrival_time, prompt_len, output_len) in enumerate(requests)
        ]
    )
    start = time.perf_counter()
    metrics = simulator.run()
    seconds = time.perf_counter() - start
    return Run(seconds, metrics.completed_requests, metrics.ttft_ms.mean / 1000)


def run_vidur(requests: Requests) -> Run:
    import logging

    from vidur._native.entities import ExecutionTime
    from vidur.config import config as vidur
    from vidur.entities import Replica, Request
    from vidur.execution_time_predictor import (
        BaseExecutionTimePredictor,
        ExecutionTimePredictorRegistry,
    )
    from vidur.request_generator import RequestGeneratorRegistry
    from vidur.simulator import Simulator
    from vidur.types import ExecutionTimePredictorType, RequestGeneratorType

    logging.disable(logging.INFO)

    class StepTime(BaseExecutionTimePredictor):
        """Llama-3.1-8B on an H100 by queuesmith's formula, in ms."""

        def get_execution_time(self, batch: Any, pipeline_stage: int) -> ExecutionTime:
            prefill_tokens = num_decodes = kv_tokens = 0
            attention = 0.0
            for request, new, context in zip(
                batch.requests, batch.num_q_tokens, batch.num_kv_tokens, strict=True
            ):
                computed = context - new
                if request.is_prefill_complete:
                    num_decodes += 1
                    kv_tokens += computed
                else:
                    prefill_tokens += new
                    attention += new * (computed + new / 2)
            tokens = prefill_tokens + num_decodes
            step_time = (
                6.36
                + 0.00666 * min(tokens, 384)
                + 0.0205 * max(tokens - 384, 0)
                + 0.00428 * num_decodes
                + 4.31e-5 * kv_tokens
                + 7.89e-7 * attention
                + (0.373 if prefill_tokens else 0.0)
            )
            return ExecutionTime(1, 0, 0, step_time, *[0.0] * 11)

    # Its parts of a step (attention, projections, ...) are abstract, and not asked for here.
    StepTime.__abstractmethods__ = frozenset()

    class StepTimeConfig(vidur.BaseExecutionTimePredictorConfig):
        @staticmethod
        def get_type() -> ExecutionTimePredictorType:
            return ExecutionTimePredictorType.DUMMY

    arrivals = [Request(*request) for request in requests]

    class GivenRequests:
        def __init__(self, config: Any) -> None:
            pass

        def generate(self) -> list[Request]:
            return list(arrivals)

    for registry, key, given in (
        (ExecutionTimePredictorRegistry, ExecutionTimePredictorType.DUMMY, StepTime),
        (RequestGeneratorRegistry, RequestGeneratorType.TRACE_REPLAY, GivenRequests),
    ):
        registry._registry[key] = given

    Replica._id = -1  # counts through the process, while its router expects replica 0
    longest = max(map(sum, zip(requests.prompt_len, requests.output_len, strict=True)))
    simulator = Simulator(
        vidur.SimulationConfig(
            log_level="error",
            cluster_config=vidur.ClusterConfig(
                replica_config=vidur.ReplicaConfig(
                    model_name="meta-llama/Llama-3-8B",
                    num_pipeline_stages=1,
                    tensor_parallel_size=1,
                    device="h100",
                    network_device="h100_dgx",
                ),
                cache_config=vidur.CacheConfig(
                    block_size=BLOCK_SIZE,
                    num_blocks=NUM_GPU_BLOCKS,
                    watermark_blocks_fraction=0.0,
                ),
                replica_scheduler_config=vidur.SarathiSchedulerConfig(
                    batch_size_cap=MAX_NUM_SEQS, chunk_size=MAX_NUM_BATCHED_TOKENS
                ),
            ),
            request_generator_config=vidur.TraceRequestGeneratorConfig(max_tokens=longest),
            execution_time_predictor_config=StepTimeConfig(),
            metrics_config=vidur.MetricsConfig(
                write_metrics=False, store_plots=False, enable_chrome_trace=False
            ),
        )
    )
    start = time.perf_counter()
    simulator.run()
    seconds = time.perf_counter() - start
    finished = [request for request in arrivals if request.completed]
    ttfts = [request.prefill_completed_at - request.arrived_at for request in finished]
    return Run(seconds, len(finished), sum(ttfts) / max(len(ttfts), 1))


@dataclass(frozen=True)
class Simulator:
    """A simulator, where to get it, and how it differs from the engine that was asked for."""

    run: Callable[[Requests], Run]
    requirement: str  # for pip; empty for what is installed already
    differs: str = ""


SIMULATORS = {
    "queuesmith": Simulator(run_queuesmith, ""),
    "dynamo": Simulator(
        run_dynamo,
        "ai-dynamo-runtime==1.6.1",
        "NVIDIA Dynamo's mocker (Rust), offline replay with the vLLM backend. Its built-in "
        "polynomial step time, not an H100's. Seconds are those of its own report, which leave out "
        "reading the trace.",
    ),
    "sched-sim": Simulator(
        run_sched_sim,
        "sched-sim==0.2.1",
        "Chunked prefill, its own roofline step time for an H100, KV blocks counted from 80 GB "
        "(33,045). Decodes one token more per request than it was asked for.",
    ),
    "vidur": Simulator(
        run_vidur,
        "vidur==0.0.26",
        "Its Sarathi scheduler, the one nearest to vLLM's. Its profiled step times are a separate "
        "download, so steps are priced by queuesmith's formula through its predictor interface; "
        "its TTFT should therefore be queuesmith's. Writes no metrics files.",
    ),
}


def measure(name: str, requests: Requests, repeats: int, limit: float) -> dict[str, Any]:
    """Return the fastest of some runs, on fewer requests where all would take too long."""
    run = SIMULATORS[name].run
    run(requests.first(WARM_UP_REQUESTS))
    pilot = requests.first(5 * WARM_UP_REQUESTS)
    rate = len(pilot) / run(pilot).seconds
    # Half of the limit, since later requests may meet a longer queue than the first.
    requests = requests.first(max(len(pilot), int(rate * limit / 2 / repeats)))
    runs = [run(requests) for _ in range(repeats)]
    best = min(runs, key=lambda run: run.seconds)
    return {"num_requests": len(requests), **vars(best)}


if __name__ == "__main__":
    job = json.loads(Path(sys.argv[1]).read_text())
    job["requests"] = Requests(**job["requests"])
    Path(sys.argv[2]).write_text(json.dumps(measure(**job)))

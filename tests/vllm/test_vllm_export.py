"""The exported schedule in the tools it is for: they send what it says, when it says so."""

import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("vllm.v1.core.sched.scheduler", reason="vLLM is not installed here")

from tiny_model import write_tiny_model
from vllm.benchmarks import serve as bench
from vllm.utils.argparse_utils import FlexibleArgumentParser

from queuesmith.config import EngineConfig
from queuesmith.deploy.schedule import write_schedule
from queuesmith.engine import prepare
from queuesmith.traces.trace import Trace

sys.path.append(str(Path(__file__).parents[1] / "deploy"))
import hostile_server as hostile

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def workload():
    """Requests of all lengths, the first of which no chunk of 16 tokens divides."""
    rows = np.arange(12)
    trace = Trace(7.0 + 0.1 * rows, prompt_len=1 + 13 * rows, output_len=2 + rows % 5)
    return prepare(trace, EngineConfig(), np.full(12, 9.0))


def test_vllm_bench_sends_the_timed_trace_as_it_is_written(workload, tmp_path):
    path = tmp_path / "schedule.jsonl"
    write_schedule(workload, "timed_trace", hostile.MODEL, 0, path)
    tokenizer = write_tiny_model(tmp_path / "model")
    came = []

    def note(handler, number):
        came.append(time.monotonic())
        return False

    with hostile.serving(note) as server:
        parser = FlexibleArgumentParser()
        bench.add_cli_args(parser)
        bench.main(
            parser.parse_args(
                [
                    *("--backend", "vllm", "--base-url", server.base_url, "--model", hostile.MODEL),
                    *("--tokenizer", str(tokenizer), "--dataset-name", "timed_trace"),
                    *("--dataset-path", str(path), "--num-prompts", "1000"),
                    *("--temperature", "0", "--disable-tqdm"),
                ]
            )
        )
        bodies = list(server.bodies)

    trace = workload.trace
    order = np.argsort([len(body["prompt"]) for body in bodies])  # threads may overtake each other
    bodies, came = [bodies[k] for k in order], np.array(came)[order]
    assert [len(body["prompt"]) for body in bodies] == trace.prompt_len.tolist()
    assert [body["max_tokens"] for body in bodies] == trace.output_len.tolist()
    assert all(body["ignore_eos"] for body in bodies)
    assert len({tuple(body["prompt"][:16]) for body in bodies}) == len(bodies)
    assert np.all(came - came[0] >= trace.arrival_time - trace.arrival_time[0] - 0.05)
    assert came[-1] - came[0] < 1.1 + 3  # however busy the machine is

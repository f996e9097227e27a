"""The whole CPU engine, with a model: whatever a policy does, each request gets the same tokens."""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("vllm.v1.core.sched.scheduler", reason="vLLM is not installed here")

import numpy as np
import real_scheduler  # noqa: F401 - sets vLLM's environment before it is imported
from tiny_model import write_tiny_model
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.executor.abstract import Executor

from vllm import EngineArgs, SamplingParams

# What vLLM and torch warn about is theirs to mend.
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

HOOKS = Path(__file__).parents[1] / "engine" / "hooks"
NUM_REQUESTS = 18
PLUGIN = "queuesmith.deploy.plugin.make_scheduler"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(write_tiny_model(tmp_path_factory.mktemp("model") / "tiny"))


def requests():
    """Draw prompts, half of them with a start in common, and output lengths."""
    rng = np.random.default_rng(3)
    shared = rng.integers(10, 3900, 96).tolist()
    drawn = []
    for row in range(NUM_REQUESTS):
        own = rng.integers(10, 3900, int(rng.integers(5, 150))).tolist()
        start = shared[: int(rng.integers(32, 97))] if row % 2 else []
        drawn.append((row // 3, start + own, int(rng.integers(8, 40))))
    return drawn


def serve(model, monkeypatch, policy=None, *, async_scheduling=False, **settings):
    """Serve the requests in this process; return their tokens, the scheduler, the drafts tried."""
    if policy is not None:
        monkeypatch.setenv("QUEUESMITH_POLICY", str(policy))
        monkeypatch.setenv("QUEUESMITH_MAX_WAIT", "inf")
        monkeypatch.setenv("QUEUESMITH_TIME_LIMIT", "inf")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    arguments = EngineArgs(
        model,
        dtype="float32",
        seed=0,
        enforce_eager=True,
        skip_tokenizer_init=True,
        max_num_seqs=6,
        max_num_batched_tokens=128,
        block_size=32,
        max_model_len=512,
        num_gpu_blocks_override=24,
        **{"enable_prefix_caching": False, **settings},
        **({} if policy is None else {"scheduler_cls": PLUGIN}),
    )
    config = arguments.create_engine_config()
    config.scheduler_config.async_scheduling = async_scheduling
    engine = LLMEngine(
        vllm_config=config,
        executor_class=Executor.get_class(config),
        log_stats=False,
        multiprocess_mode=False,
    )
    scheduler = engine.engine_core.engine_core.scheduler
    schedule, num_drafts = scheduler.schedule, 0

    def counted(*arguments):
        nonlocal num_drafts
        output = schedule(*arguments)
        num_drafts += sum(map(len, output.scheduled_spec_decode_tokens.values()))
        return output

    scheduler.schedule = counted
    tokens, pending, step = {}, requests(), 0
    while pending or engine.has_unfinished_requests():
        while pending and pending[0][0] <= step:
            _, prompt, max_tokens = pending.pop(0)
            engine.add_request(
                str(NUM_REQUESTS - len(pending)),
                {"prompt_token_ids": prompt},
                SamplingParams(
                    max_tokens=max_tokens, ignore_eos=True, temperature=0.0, detokenize=False
                ),
            )
        step += 1
        for output in engine.step():
            if output.finished:
                # vLLM makes ids unique by something random after a dash.
                name = output.request_id.partition("-")[0]
                tokens[name] = list(output.outputs[0].token_ids)
    engine.engine_core.shutdown()
    return tokens, scheduler, num_drafts


@pytest.fixture(scope="module")
def stock(model):
    with pytest.MonkeyPatch.context() as monkeypatch:
        tokens, _, _ = serve(model, monkeypatch)
    assert len(tokens) == NUM_REQUESTS
    assert len({tuple(one[:8]) for one in tokens.values()}) > NUM_REQUESTS // 2
    return tokens


NGRAM = {
    "speculative_config": {
        "method": "ngram",
        "num_speculative_tokens": 3,
        "prompt_lookup_min": 1,
        "prompt_lookup_max": 2,
    }
}


@pytest.mark.parametrize(
    ("policy", "settings"),
    [
        ("sjf", {}),
        (HOOKS / "all_hooks.py", {}),
        (HOOKS / "all_hooks.py", {"enable_prefix_caching": True, "async_scheduling": True}),
        (HOOKS / "all_hooks.py", NGRAM),
    ],
    ids=["order", "every hook", "every hook, caching, async", "every hook, n-gram speculation"],
)
def test_every_request_gets_the_tokens_it_gets_from_vllm_as_it_is(
    model, stock, policy, settings, monkeypatch
):
    tokens, scheduler, num_drafts = serve(model, monkeypatch, policy, **settings)

    monitor = scheduler.policy_monitor
    asynchronous = settings.get("async_scheduling", False)
    assert type(scheduler).__name__ == (
        "PolicyAsyncScheduler" if asynchronous else "PolicyScheduler"
    )
    assert (num_drafts > 0) == ("speculative_config" in settings)
    assert monitor.on
    assert not monitor.faults
    assert monitor.totals["reorderings"] > 5
    if policy != "sjf":
        assert monitor.totals["displaced"] > 2
    assert tokens == stock


@pytest.fixture(scope="module")
def server(model, tmp_path_factory):
    """A server started by `queuesmith serve`; its address."""
    port = 18_473 + os.getpid() % 1000
    log = tmp_path_factory.mktemp("server") / "log"
    code = "import sys; from queuesmith.cli import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", code, "serve", model, "--policy", "sjf"]
    command += ["--port", str(port), "--dtype", "float32", "--enforce-eager", "--max-num-seqs", "1"]
    command += ["--max-model-len", "512", "--block-size", "32", "--max-num-batched-tokens", "128"]
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "INFO"}
    environment.pop("VLLM_ENABLE_V1_MULTIPROCESSING", None)
    with log.open("w") as file:
        process = subprocess.Popen(command, env=environment, stdout=file, stderr=file)
    address = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 180
        while True:
            try:
                urllib.request.urlopen(f"{address}/health", timeout=5).close()
                break
            except (urllib.error.URLError, OSError):
                assert process.poll() is None, log.read_text()[-3000:]
                assert time.monotonic() < deadline, log.read_text()[-3000:]
                time.sleep(0.5)
        yield address, log
    finally:
        process.terminate()
        assert process.wait(timeout=60) is not None


def test_a_server_orders_by_the_policy_and_says_so_on_its_metrics_endpoint(server, model):
    address, log = server

    def complete(prompt_len):
        body = {
            "model": model,
            "prompt": [7] * prompt_len,
            "max_tokens": 16,
            "ignore_eos": True,
            "vllm_xargs": {"client": "a", "predicted_output_tokens": 16},
        }
        request = urllib.request.Request(
            f"{address}/v1/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            answer = json.load(response)
        return answer["usage"]["completion_tokens"]

    with ThreadPoolExecutor(12) as pool:
        counts = list(pool.map(complete, [400, 300, 200, 100, 50, 20] * 2))
    assert counts == [16] * 12
    with urllib.request.urlopen(f"{address}/metrics", timeout=10) as response:
        metrics = response.read().decode()

    values = {
        line.partition("{")[0]: float(line.rpartition(" ")[2])
        for line in metrics.splitlines()
        if line.startswith("queuesmith_")
    }
    assert values["queuesmith_policy_on"] == 1
    assert values["queuesmith_decisions_total"] > 0
    assert values["queuesmith_reorderings_total"] > 0
    assert values["queuesmith_overhead_seconds_count"] > 0
    assert "queuesmith_faults_total" not in values
    assert "vllm:request_success_total" in metrics
    assert "policy sjf" in log.read_text()

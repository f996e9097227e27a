"""The whole CPU engine, with a model: whatever a policy does, each request gets the same tokens."""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("vllm.v1.core.sched.scheduler", reason="vLLM is not installed here")

from tiny_model import write_tiny_model

pytestmark = pytest.mark.vllm

HOOKS = str(Path(__file__).parents[1] / "engine" / "hooks" / "all_hooks.py")
NGRAM = {
    "method": "ngram",
    "num_speculative_tokens": 3,
    "prompt_lookup_min": 1,
    "prompt_lookup_max": 2,
}
ARMS = {
    "as it is": {},
    "an order": {"policy": "sjf"},
    "every hook": {"policy": HOOKS},
    "every hook, caching, async": {
        "policy": HOOKS,
        "enable_prefix_caching": True,
        "async_scheduling": True,
    },
    "every hook, speculation": {"policy": HOOKS, "speculative_config": NGRAM},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what torch and its friends warn about is theirs to mend
        return str(write_tiny_model(tmp_path_factory.mktemp("model") / "tiny"))


@pytest.fixture(scope="module")
def served(model):
    """The same requests, served in every way."""
    script = Path(__file__).with_name("engine_arms.py")
    ran = subprocess.run(
        [sys.executable, script, model, json.dumps(ARMS)], capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return json.loads(ran.stdout.splitlines()[-1])


def test_the_output_depends_on_the_whole_context(served):
    """Or equal tokens would prove nothing."""
    tokens = served["as it is"]["tokens"]

    assert len(tokens) == 18
    assert len({tuple(one[:8]) for one in tokens.values()}) > 12


@pytest.mark.parametrize("arm", [arm for arm in ARMS if arm != "as it is"])
def test_every_request_gets_the_tokens_it_gets_from_vllm_as_it_is(served, arm):
    run, settings = served[arm], ARMS[arm]

    asynchronous = settings.get("async_scheduling", False)
    assert run["scheduler"] == ("PolicyAsyncScheduler" if asynchronous else "PolicyScheduler")
    assert (run["num_drafts"] > 0) == ("speculative_config" in settings)
    assert run["on"]
    assert run["faults"] == {}
    assert run["totals"]["reorderings"] > 5
    if settings["policy"] == HOOKS:
        assert run["totals"]["displaced"] > 2
        assert run["totals"]["held"] > 2
    assert run["tokens"] == served["as it is"]["tokens"]


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

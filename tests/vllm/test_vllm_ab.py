"""A/B measurements with real vLLM: its scheduler on a virtual clock, and servers of one's own."""

import json
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("vllm.v1.core.sched.scheduler", reason="vLLM is not installed here")

from queuesmith.config import EngineConfig
from queuesmith.deploy.ab import STOCK, Store, make_cells, measure, plan
from queuesmith.deploy.arms import VirtualArm, read_steps
from queuesmith.deploy.calibrate import Steps
from queuesmith.deploy.engine_file import config_of
from queuesmith.deploy.local_server import LocalServer
from queuesmith.deploy.replay import replay
from queuesmith.deploy.verdict import judge_runs
from queuesmith.deploy.virtual_clock import serve_on_virtual_clock
from queuesmith.engine import prepare, simulate_workload
from queuesmith.engine.compile import compile_policy
from queuesmith.engine.presets.step_time import StepTime
from queuesmith.errors import PolicyError
from queuesmith.evaluation.evaluate import parse_loads
from queuesmith.evaluation.goals import GUARDS, get_goal
from queuesmith.policies import get_policy
from queuesmith.traces.trace import Trace
from queuesmith.windows import cut_windows
from queuesmith.windows.predictions import OutputLengthKnowledge

pytestmark = pytest.mark.vllm

CONFIG = EngineConfig(
    max_num_seqs=8, max_num_batched_tokens=512, num_gpu_blocks=400, max_model_len=4096
)
#: Not powers of two, so that sums of times are rounded as they are in earnest.
STEP = StepTime(a=5e-3, b1=7e-6, b2=3e-5, t0=96, c=1e-4, d=3e-7, e=1e-8, f=3e-4)


@pytest.fixture(scope="module")
def trace():
    rng = np.random.default_rng(0)
    long = rng.random(240) < 0.2
    prompts = np.where(long, rng.integers(800, 2000, 240), rng.integers(20, 120, 240))
    return Trace(np.cumsum(rng.exponential(size=240)), prompts, rng.integers(8, 64, 240))


@pytest.fixture(scope="module")
def cells(trace):
    return make_cells(
        cut_windows(trace, num_windows=2, window_len=120),
        parse_loads("overload,0.02"),
        [CONFIG],
        STEP,
        OutputLengthKnowledge(),
        seed=0,
    )


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("name", ["stock", "fcfs", "sjf", "srpt", "las", "edf", "slai", "hrrn"])
def test_vllm_on_the_virtual_clock_equals_the_simulator(cells, name, asynchronous):
    policy = get_policy("fcfs" if name == "stock" else name)
    config = CONFIG.override({**policy.engine, "async_scheduling": asynchronous})
    for cell in cells:
        result = simulate_workload(cell.workload, compile_policy(policy), config, STEP)
        served, _, num_steps = serve_on_virtual_clock(
            cell.workload, None if name == "stock" else policy, config, STEP
        )
        rows = result.requests

        assert num_steps == result.num_steps
        assert np.abs([one.first_token_ts for one in served] - rows.first_token_ts).max() <= 1e-9
        assert np.abs([one.last_token_ts for one in served] - rows.last_token_ts).max() <= 1e-9


@pytest.fixture(scope="module")
def outcome(cells, tmp_path_factory):
    arms = {
        STOCK: VirtualArm(None, CONFIG, STEP),
        "sjf": VirtualArm(get_policy("sjf"), CONFIG, STEP),
    }
    store = Store(tmp_path_factory.mktemp("ab"), "key")
    measured = list(measure(cells, arms, plan(len(cells), list(arms), 1, seed=0), store))
    return judge_runs(
        measured,
        cells,
        "sjf",
        goal=get_goal("ttft", None),
        guards=GUARDS,
        slo=None,
        margin=0.1,
        seed=0,
        virtual=True,
    )


def test_shortest_first_is_clearly_sooner_under_overload(outcome):
    assert outcome.loads[0].changes["ttft_mean"].change < -0.2


def test_an_idle_server_serves_both_alike(outcome):
    assert abs(outcome.loads[1].changes["ttft_mean"].change) < 1e-3


def test_an_oracle_is_refused(cells):
    with pytest.raises(PolicyError, match="reads the true output length"):
        serve_on_virtual_clock(cells[0].workload, get_policy("srpt_oracle"), CONFIG, STEP)


@pytest.fixture
def tiny_model(tmp_path):
    """A Llama of random weights, which is described and never downloaded."""
    (tmp_path / "config.json").write_text(
        json.dumps(
            {
                "architectures": ["LlamaForCausalLM"],
                "model_type": "llama",
                "hidden_size": 64,
                "intermediate_size": 128,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "num_key_value_heads": 1,
                "vocab_size": 32_000,
                "max_position_embeddings": 4096,
                "torch_dtype": "bfloat16",
                "bos_token_id": 1,
                "eos_token_id": 2,
            }
        )
    )
    return tmp_path


def test_a_real_server_serves_every_request_and_records_every_step(tiny_model, tmp_path, trace):
    workload = prepare(
        Trace(np.arange(12) * 0.01, trace.prompt_len[:12], trace.output_len[:12]),
        CONFIG,
        np.full(12, np.nan),
    )
    arguments = (
        "--load-format dummy --dtype bfloat16 --enforce-eager --block-size 32 --max-model-len 4096 "
        "--max-num-seqs 8 --max-num-batched-tokens 4096 --skip-tokenizer-init"
    )
    environment = {"QUEUESMITH_POLICY": "sjf", "VLLM_CPU_KVCACHE_SPACE": "1"}
    with LocalServer(str(tiny_model), arguments, environment, tmp_path / "run", 60.0) as own:
        served = replay(own.server, own.server.find_model(), workload)
    header, records = read_steps(own.steps)
    steps = Steps.of(records)

    assert [one.error for one in served] == [""] * 12
    assert [one.num_output_tokens for one in served] == workload.output_len.tolist()
    assert config_of(header).max_num_seqs == 8
    # Every prompt token is computed once, every output token but the first by a decode.
    assert steps.work[:, 0].sum() == workload.trace.prompt_len.sum()
    assert steps.work[:, 1].sum() == workload.output_len.sum() - 12


def test_the_command_prints_one_document(trace, tmp_path):
    columns = (trace.arrival_time, trace.prompt_len, trace.output_len)
    lines = ["arrival_time,prompt_len,output_len"]
    lines += [",".join(map(str, row)) for row in zip(*map(np.ndarray.tolist, columns), strict=True)]
    (tmp_path / "log.csv").write_text("\n".join(lines) + "\n")
    command = [sys.executable, "-c", "from queuesmith.cli import main; main()", "ab"]
    command += ["--policy", "sjf", "--trace", "log.csv", "--load", "overload,0.02"]
    command += ["--windows", "2", "--window-len", "120", "--virtual-clock", "--json"]
    command += ["--engine-args", "--max-num-seqs 8 --max-num-batched-tokens 512"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)

    document = json.loads(ran.stdout)
    verdicts = {row["verdict"] for row in document["loads"]}
    assert ran.returncode == (1 if verdicts & {"worse", "mixed"} else 0), ran.stderr
    assert document["config"]["where"].startswith("vLLM's own Scheduler")
    overload, idle = document["loads"]
    assert overload["changes"]["ttft_mean"]["change"] < -0.1
    assert abs(idle["changes"]["ttft_mean"]["change"]) < 1e-3

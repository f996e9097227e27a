"""Files that are right, one of every kind that is read: what `mutate` spoils."""

import gzip
import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from queuesmith.traces.models.model_file import format_clients
from queuesmith.traces.synthetic import load_model
from queuesmith.windows.frozen import WindowSet

TESTS = Path(__file__).parents[1]
NUM_ROWS = 12

RECORD = (
    '{"vllm": "0.32.0", "engine": {"max_num_seqs": 64, "num_gpu_blocks": 900}}\n'
    + '{"t": 1.0, "seconds": 0.01, "num_prefill_tokens": 5, "num_decodes": 1, "kv_tokens": 7, '
    '"attention": 12.5}\n' * 3
).encode()

POLICY = b'''"""Shortest first, aged.

Knows:   arrival time and prompt length.
Source:  nowhere.
"""

SECONDS_PER_TOKEN = 0.01
ENGINE = {"max_num_seqs": 64, "watermark": 0.01}


def weight(tokens):
    return min(tokens, 512) / 2 if tokens > 3 else 1.0


def waiting_key(request, engine):
    waited = engine.now - request.arrival_time
    return weight(request.num_prompt_tokens) * SECONDS_PER_TOKEN - waited


def victim_key(request, engine):
    return -request.arrival_time


def admit(request, engine):
    return engine.num_running < 8 or request.priority == 0
'''

DESIGN = b"""# A small study.
name = "small"
title = "A small study"
policies = ["fcfs", "sjf", "spjf"]
loads = ["busy", 1.5]
engines = ["llama-3.1-8b/a100_sxm"]
window_len = 30
num_windows = 2
output_length = "noisy:0.2"
metrics = ["ttft_mean", "anwg"]
reference = "fcfs"
seed = 3
slo = { ttft = 1.0, tpot = 0.05 }

[[sources]]
name = "logged"
files = ["log.csv"]
num_windows = 2

[[sources]]
name = "drawn"
model = "azure_2023_conv@model"

[sensitivity]
predictions = ["exact", "none"]
engines = ["llama-3.1-8b/a100_sxm"]
loads = ["busy"]
policies = ["fcfs", "sjf"]
"""

SLOTS = b"""name = "slots"
engine = "lssp_slots"
policies = ["fifo", "edf"]
reference = "fifo"
multipliers = { LOW = 0.5, HIGH = 1.2 }
window_len = 30
metrics = ["anwg"]
sources = [{ name = "drawn", model = "azure_2023_conv@model", num_windows = 2 }]
"""

EVOLVE = b"""schema = 1
name = "toy"
seeds = [3, 4]
loads = ["heavy", 0.9]
engine = "llama-3.1-8b/h100_sxm"
second_engine = "llama-3.1-8b/a100_sxm"
output_length = "noisy:0.198"

[[source]]
file = "azure_2023_code@model"
num_requests = 1_000
parts = ["tuning", "validation", "held_out"]
stand_in = "azure_2023_conv@model"

[windows]
num_windows = 4
window_len = 60
per_generation = 2
tuning = 0.5

[search]
generations = 3
children = 6
islands = 2
depth = 2
parents = 3
migrate_every = 2
classics = ["sjf"]

[budget]
evaluations = 100
llm_calls = 5
llm_money = 1.5

[sandbox]
cpu_seconds = 20
wall_seconds = 120.0
memory_mib = 512

[[proposer]]
name = "gp"
share = 1.0
"""

PRESET = b"""# Written by `queuesmith calibrate`; use it with --engine FILE.
schema = "queuesmith.engine/1"
name = "mine/gpu"
title = "mine, measured"

[step_time]  # seconds
a = 0.004
b1 = 1e-05
b2 = 5e-05
t0 = 64
c = 2e-05
d = 3e-08
e = 1e-09
f = 0.0005
provenance = "measured"

[engine]
max_num_seqs = 64
max_num_batched_tokens = 2048
num_gpu_blocks = 900
block_size = 16
max_model_len = 8192
enable_chunked_prefill = true
watermark = 0.01
scheduling_policy = "fcfs"

[fit]
num_fitted = 10

[fit.fitted.all]
mean = 0.02
"""

MODEL_CONFIG = json.dumps(
    {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": False,
    },
    indent=1,
).encode()

ARGUMENTS = (
    b"--max-num-seqs 64 --max-num-batched-tokens=8192 --no-enable-chunked-prefill "
    b"--gpu-memory-utilization 0.9 --max-model-len 4096 --scheduling-policy priority "
    b"--num-gpu-blocks-override '1000' --watermark 0.01 --enforce-eager --dtype bfloat16"
)


def log(num_rows: int = 80) -> bytes:
    """Return a trace as CSV."""
    rows = [f"{0.5 * row},{100 + 37 * row % 900},{5 + row % 7}" for row in range(num_rows)]
    return "\n".join(["arrival_time,prompt_len,output_len", *rows, ""]).encode()


def measured(num_rows: int = 80) -> bytes:
    """Return a trace that also says how long each request took, in seconds."""
    head, *rows = log(num_rows).decode().split()
    rows = [
        f"{row},{0.05 + 0.01 * place % 7},{0.5 + 0.1 * place % 3}" for place, row in enumerate(rows)
    ]
    return "\n".join([f"{head},ttft,e2el", *rows, ""]).encode()


def _table() -> pa.Table:
    rows = np.arange(NUM_ROWS)
    return pa.table(
        {
            "arrival_time": rows * 0.25,
            "prompt_len": rows + 100,
            "output_len": rows + 1,
            "client": [f"client {row % 3}" for row in rows],
            "session": pa.array([f"s{row // 4}" for row in rows]).dictionary_encode(),
            "turn": rows % 4,
            "priority": -(rows % 3),
            "max_tokens": pa.array([None, *range(100, 99 + NUM_ROWS)]),
            "deadline": rows + 10.0,
            "abort_time": rows + 20.0,
        }
    )


def _parquet(**options: object) -> bytes:
    stream = pa.BufferOutputStream()
    pa.parquet.write_table(_table(), stream, **options)
    return bytes(stream.getvalue().to_pybytes())


def _csv() -> bytes:
    lines = [",".join(_table().column_names)]
    for row in _table().to_pylist():
        lines.append(",".join("" if value is None else str(value) for value in row.values()))
    return "\n".join(lines).encode()


def _azure() -> bytes:
    rows = [f"2023-11-16 18:17:{row:02d}.1234567,{row + 5},{row + 1}" for row in range(NUM_ROWS)]
    return "\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]).encode()


def _burstgpt() -> bytes:
    header = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
    rows = [
        f"{row},GPT-{row % 2},{row + 9},{row + 1},{2 * row + 10},API log" for row in range(NUM_ROWS)
    ]
    sessions = [f"{line},{row // 3},0.5" for row, line in enumerate(rows)]
    return "\n".join([f"{header},Session ID,Elapsed time", *sessions]).encode()


def _hashed(**own: int) -> bytes:
    rows = [
        {
            **{name: row + first for name, first in own.items()},
            "turn": 1,
            "type": "text",
            "timestamp": row * 1000,
            "input_length": row + 9,
            "output_length": row + 1,
            "hash_ids": [1, row],
        }
        for row in range(NUM_ROWS)
    ]
    return "\n".join(map(json.dumps, rows)).encode()


def _jsonl() -> bytes:
    return "\n".join(json.dumps(row) for row in _table().to_pylist()).encode()


def _dated() -> bytes:
    rows = [
        f'"2024-05-{row + 1:02d}T10:00:00+0{row % 9}:00";{row + 5};{row + 1};"a;b"'
        for row in range(NUM_ROWS)
    ]
    return "\n".join(["# a comment", "ts;input_tokens;output_tokens;user", *rows]).encode()


TRACES = {
    "azure": _azure(),
    "azure, shuffled": b"# shuffled, 2024-05-10\n" + _azure().replace(b"TIMESTAMP", b"arrival_s"),
    "burstgpt": _burstgpt(),
    "mooncake": _hashed(id=0),
    "bailian": _hashed(chat_id=0, parent_chat_id=-1),
    "csv": _csv(),
    "csv with dates": _dated(),
    "jsonl": _jsonl(),
    **{
        path.name: path.read_bytes()
        for path in sorted((TESTS / "traces" / "samples").iterdir())
        if path.is_file()
    },
}
PACKED = {
    "gzip": gzip.compress(_csv(), mtime=0),
    "zstd": bytes(pa.compress(_azure(), codec="zstd", asbytes=True)),
    "parquet": _parquet(compression="none"),
    "parquet, packed": _parquet(compression="zstd", row_group_size=5),
    "parquet, v1": _parquet(version="1.0", use_dictionary=False, compression="gzip"),
}

WINDOW_TABLE = "\n".join(
    [
        "window_id,lambda_ref,request_index,arrival_time_s,prompt_tokens,output_tokens,"
        "predicted_output_tokens",
        *(
            f"w{row // 6},1.5,{row % 6},{row % 6 * 0.5},{row + 9},{row + 1},{row + 2}"
            for row in range(NUM_ROWS)
        ),
    ]
).encode()

SERVEGEN = {
    "chunk-0-trace.csv": b"0,0,0,,0,0\n600,0.5,1.2,Gamma,0.7,2.9\n1200,0.1,2,Weibull,0.5,5\n",
    "chunk-0-dataset.json": json.dumps(
        {
            "0": {"input_tokens": "{45: 0.25, 9: 0.75}", "output_tokens": "{7: 1.0}"},
            "21600": {"input_tokens": "{}", "output_tokens": "{}", "reason_ratio": "{0.5: 1}"},
        }
    ).encode(),
}


def tar() -> bytes:
    """Return the statistics of ServeGen as they are published."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as archive:
        for name, content in SERVEGEN.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def workload_models() -> list[bytes]:
    """Return models of one client, of several, and with sessions, each as its file."""
    texts = []
    for name in ("azure_2023_conv", "mooncake_conversation"):
        model = load_model(name)
        texts.append(format_clients(model.name, model.clients, model.fit).encode())
    one = load_model("azure_2023_conv")
    texts.append(format_clients("two", one.clients * 2, one.fit).encode())
    return texts


def window_set(folder: Path) -> bytes:
    """Write a trace into a folder; return a set of windows of it and of a model."""
    (folder / "log.csv").write_bytes(log())
    return WindowSet.freeze(
        "mine",
        ["log.csv", {"file": "azure_2023_code@model", "num_requests": 80, "seed": 1}],
        num_windows=2,
        window_len=5,
        folder=folder,
    ).encode()

r"""A policy against vLLM as it is, on its CPU engine, with a model that is made here.

Run in the environment that has vLLM, with a trace and whatever else `queuesmith ab` takes:

    requirements/with_vllm.sh python benchmarks/vllm_ab.py FOLDER \
        --policy sjf --trace TRACE --load overload

FOLDER gets the model (a Llama of six layers and width 768, random weights), what `queuesmith
calibrate` measures of it on this machine, and the result. With 8 windows of 60 requests it takes
half an hour, of which a fresh server for every run takes most, and wants a machine of its own.
"""

import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "vllm"))

from tiny_model import write_tiny_model

#: Attention on CPUs takes blocks of a multiple of 32 tokens. The longest prompts must fit, since
#: they are the ones that pay: the longest of Azure's code traces has 7,437 tokens.
ENGINE_ARGS = (
    "--max-num-seqs 16 --max-model-len 8192 --block-size 32 --dtype bfloat16 --enforce-eager"
)


def main() -> int:
    if len(sys.argv) < 3:
        print(__doc__, file=sys.stderr)
        return 2
    folder = Path(sys.argv[1])
    model, engine = folder / "model", folder / "engine.toml"
    if not model.exists():
        write_tiny_model(
            model, width=768, inner=2048, layers=6, heads=12, kv_heads=4, max_model_len=8192
        )
    # GiB; without it the engine takes half the machine for KV blocks that nothing here fills.
    environment = {"VLLM_CPU_KVCACHE_SPACE": "1", **os.environ}
    common = ["--model", str(model), "--engine-args", ENGINE_ARGS]
    if not engine.exists():
        calibrate = ["queuesmith", "calibrate", *common, "--seconds", "15", "--output", str(engine)]
        subprocess.run(calibrate, env=environment, check=True)
    given = sys.argv[2:]
    if "--window-len" not in given:
        given += ["--window-len", "60"]
    measure = ["queuesmith", "ab", *common, "--engine", str(engine), "--output", str(folder / "ab")]
    return subprocess.run([*measure, *given], env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())

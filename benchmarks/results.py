"""Make the summaries in results/: ``python benchmarks/results.py FOLDER_WITH_TRACES [--seeds 20]``.

Each is the ``--json`` document of one run of ``queuesmith compare`` with its defaults, less the
row per window. With ``--seeds`` the answers of so many seeds are counted, too, into
``results/seeds.json``; results/README.md says what they show.
"""

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

import queuesmith as qs
from queuesmith.comparison.compare import Comparison, compare
from queuesmith.windows import Window
from queuesmith.windows.tables import read_windows

RESULTS = Path(__file__).parents[1] / "results"
SOURCES = {
    "azure_2023_conv": "azure_2023/AzureLLMInferenceTrace_conv.csv",
    "azure_2023_code": "azure_2023/AzureLLMInferenceTrace_code.csv",
    "azure_2024_conv": "azure_2024/AzureLLM2024_conv_first50k.csv",
    "azure_2024_code": "azure_2024/AzureLLM2024_code_first50k.csv",
    "mooncake_conversation": "mooncake/conversation_trace.jsonl",
    "bailian_windows": "lssp_windows/bailian_qwen.csv",
    "burstgpt_windows": "lssp_windows/burstgpt.csv",
}
MODELS = (
    "azure_2023_conv",
    "azure_2023_code",
    "azure_2024_conv",
    "azure_2024_code",
    "burstgpt",
    "mooncake_conversation",
    "qwen_bailian",
    "servegen_deepseek_r1",
    "servegen_m_small",
)


def load(name: str, folder: Path, seed: int) -> qs.Trace | list[Window]:
    if name.endswith("@model"):
        return qs.load_trace(name, num_requests=32_000, seed=seed)
    read = read_windows if "windows" in name else qs.load_trace
    return read(folder / SOURCES[name])


def write(name: str, document: object) -> None:
    path = RESULTS / name
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def summarize(name: str, folder: Path) -> Comparison:
    comparison = compare(load(name, folder, 0))
    document = comparison.to_json()
    del document["cells"]
    write(f"compare_{name}.json", document)
    return comparison


def count_answers(name: str, folder: Path, seeds: int) -> dict[str, object]:
    """Count the answers of several seeds, and which policy most of them name.

    An answer names a policy as the one to run, as one that would do as well, or as undecided. The
    values of a policy's parameters are counted as one.
    """
    answers = [compare(load(name, folder, seed), seed=seed).answer for seed in range(seeds)]
    named = Counter(
        policy
        for each in answers
        for policy in {one.partition("(")[0] for one in (each.policy, *each.tied, *each.undecided)}
    )
    most, times = named.most_common(1)[0]
    return {
        "source": name,
        "seeds": seeds,
        "named_most": most,
        "named_in": times,
        "answers": dict(Counter(answer.policy for answer in answers)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("folder", type=Path, help="with the public traces")
    parser.add_argument("--seeds", type=int, default=0, help="count the answers of so many seeds")
    options = parser.parse_args()
    for name in SOURCES:
        print(f"{name}: {summarize(name, options.folder)!r}\n", flush=True)
    if options.seeds:
        found = []
        for name in (*SOURCES, *(f"{model}@model" for model in MODELS)):
            found.append(count_answers(name, options.folder, options.seeds))
            print(json.dumps(found[-1]), flush=True)
        write("seeds.json", found)


if __name__ == "__main__":
    sys.exit(main())

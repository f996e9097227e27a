"""Make the summaries in results/: ``python benchmarks/results.py FOLDER_WITH_TRACES``.

Each is the ``--json`` document of one run of ``queuesmith compare`` with its defaults, less the
row per window; results/README.md says what they show.
"""

import json
import sys
from pathlib import Path

import queuesmith as qs
from queuesmith.comparison import compare
from queuesmith.window_tables import read_windows
from queuesmith.windows import Window

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


def summarize(name: str, traffic: qs.Trace | list[Window]) -> dict[str, object]:
    document = dict(compare(traffic).document)
    del document["cells"]
    path = RESULTS / f"compare_{name}.json"
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return document


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = Path(sys.argv[1])
    for name, file in SOURCES.items():
        read = read_windows if "windows" in name else qs.load_trace
        answer = summarize(name, read(folder / file))["answer"]
        print(f"{name}: {' '.join(answer['sentences'])}\n")  # type: ignore[index]


if __name__ == "__main__":
    main()

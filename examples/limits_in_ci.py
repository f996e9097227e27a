"""Limits in CI: a change of policy is refused when somebody pays for it.

On the command line: queuesmith compare TRACE --policy ./ours.py --fail-if "ttft_p99 > 1.05*fcfs"
"""

import numpy as np

import queuesmith as qs
from queuesmith.limits import Limit

rng = np.random.default_rng(1)
trace = qs.Trace(
    arrival_time=np.cumsum(rng.exponential(size=1_600)),
    prompt_len=rng.choice([200, 4_000], size=1_600, p=[0.9, 0.1]),
    output_len=rng.integers(50, 150, 1_600),
)
comparison = qs.compare(trace, ["fcfs", "sjf", "lcfs"], ["knee", "heavy"], window_len=200)

policies = comparison.config["policies"]
loads = [load["name"] for load in comparison.config["loads"]]
rows = [(row.policy, row.load, row.metrics) for row in comparison.loads]
for text in ("ttft_mean > 1.1*fcfs", "ttft_p99 > 1.05*fcfs @ heavy", "tpot_p99 > 1"):
    limit = Limit.parse(text, policies, loads)
    broken = limit.broken(rows, watched=["sjf", "lcfs"])
    print(f"{'broken' if broken else 'kept'}: {text}")
    for sentence in broken:
        print(f"  {sentence}")

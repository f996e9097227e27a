"""A long prompt ahead of three short ones, on an engine with room for two: who waits?"""

import queuesmith as qs
from queuesmith.config import EngineConfig

trace = qs.Trace(
    arrival_time=[0.00, 0.01, 0.02, 0.03, 0.05],
    prompt_len=[1_000, 30_000, 200, 200, 200],
    output_len=[50, 50, 50, 50, 50],
)
config = EngineConfig(max_num_seqs=2, max_num_batched_tokens=8_192)

print("TTFT in ms of   " + "".join(f"{length:>9,}" for length in trace.prompt_len))
for policy in ("fcfs", "sjf"):
    result = qs.simulate(trace, policy, engine="llama-3.1-8b/h100_sxm", config=config)
    ttft = result.requests.first_token_ts - result.requests.arrival_time
    print(f"{policy:<16}" + "".join(f"{1000 * value:9.0f}" for value in ttft))

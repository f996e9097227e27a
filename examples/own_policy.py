"""A policy of your own: write it, check it, run it beside the built-ins.

It puts short prompts first, but a second of waiting makes up for so many tokens of length.
"""

from pathlib import Path

import queuesmith as qs

TEXT = """
TOKENS_PER_SECOND = 5_000.0


def waiting_key(request, engine):
    waited = engine.now - request.arrival_time
    return request.num_uncached_tokens - TOKENS_PER_SECOND * waited
"""
Path("patient.py").write_text(TEXT)

print(str(qs.check_policy("./patient.py")).splitlines()[0])

# Ten long prompts arrive first, then more short ones than the engine can serve at once.
trace = qs.Trace(
    arrival_time=[0.0] * 10 + [second / 60 for second in range(600)],
    prompt_len=[30_000] * 10 + [500] * 600,
    output_len=[20] * 610,
)
print("\npolicy                             mean TTFT   largest TTFT")
for policy in ("fcfs", "sjf", "./patient.py", "./patient.py(TOKENS_PER_SECOND=9000.0)"):
    result = qs.simulate(trace, policy)
    ttft = result.requests.first_token_ts - result.requests.arrival_time
    print(f"{result.policy:<34}{ttft.mean():>8.2f} s{ttft.max():>13.2f} s")

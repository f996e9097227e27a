"""Compare three policies in code: traffic of two kinds, at two loads, and which one to run."""

import numpy as np

import queuesmith as qs

rng = np.random.default_rng(0)
num_requests = 3_200
long = rng.random(num_requests) < 0.2  # one request in five brings a document along
trace = qs.Trace(
    arrival_time=np.cumsum(rng.exponential(size=num_requests)),
    prompt_len=np.where(long, 6_000, 300) + rng.integers(0, 200, num_requests),
    output_len=rng.integers(50, 250, num_requests),
)

comparison = qs.compare(trace, ["fcfs", "sjf", "hrrn"], ["knee", 1.2], window_len=200)

print(f"run {comparison.answer.policy}\n")
print("policy    load  mean TTFT   change    95 % interval   mean E2EL   guards broken")
for row in comparison.loads:
    change = row.changes["ttft_mean"]
    print(
        f"{row.policy:<8}{row.load:>6}{change.value:>9.2f} s{change.change:>9.0%}   "
        f"[{change.low:>5.0%}, {change.high:>4.0%}]{row.metrics['e2el_mean']:>10.2f} s   "
        f"{', '.join(row.broken) or '-'}"
    )

"""Four engines behind a router: where is a request sent, and how long does it wait there?"""

import numpy as np

import queuesmith as qs
from queuesmith.windows import scale_arrivals

trace = qs.load_trace("azure_2023_conv@model", num_requests=4_000)
trace = scale_arrivals(trace, 0.1)  # ten times as fast, since there are four

print(f"{'TTFT in ms':<20}{'mean':>8}{'p99':>8}   requests of each replica")
for router in ("random", "round_robin", "power_of_two", "least_loaded"):
    requests = qs.simulate(trace, "fcfs", replicas=4, router=router).requests
    ttft = 1000 * (requests.first_token_ts - requests.arrival_time)
    counts = " ".join(f"{count:5d}" for count in np.bincount(requests.replica))
    print(f"{router:<20}{ttft.mean():8.0f}{np.quantile(ttft, 0.99):8.0f}   {counts}")

"""Logs of made-up servers: what they measured is known, so the errors of a check are, too."""

from dataclasses import replace

import numpy as np

from queuesmith.config import EngineConfig
from queuesmith.engine import simulate
from queuesmith.engine.presets.step_time import Preset, StepTime
from queuesmith.traces.measured import clean_measured
from queuesmith.traces.trace import Origin, Trace

ENGINE = Preset(
    "made_up",
    "Made up",
    StepTime(a=0.01, b2=1e-4, c=2e-4, d=1e-7, provenance="made up"),
    EngineConfig(
        max_num_seqs=32, max_num_batched_tokens=512, num_gpu_blocks=4000, max_model_len=4000
    ),
)


def traffic(num_requests=800, rate=4.0, seed=0, bursts=False):
    """Return arrivals at a rate, of which `bursts` makes the middle third three times as fast."""
    rng = np.random.default_rng(seed)
    gaps = rng.exponential(1 / rate, num_requests)
    if bursts:
        gaps[num_requests // 3 : 2 * num_requests // 3] /= 3
    return Trace(
        np.cumsum(gaps),
        rng.integers(20, 900, num_requests),
        rng.integers(1, 60, num_requests),
        origin=Origin(source="server.log", reader="table"),
    )


def serve(trace, engine=ENGINE, *, policy="fcfs", scale=1.0, noise=0.0, network=0.0, seed=0):
    """Return the trace with what a server measured whose steps take `scale` times as long."""
    step_time = replace(
        engine.step_time,
        **{name: scale * getattr(engine.step_time, name) for name in ("a", "b2", "c", "d")},
    )
    rows = simulate(trace, policy, engine=replace(engine, step_time=step_time)).requests
    jitter = np.exp(np.random.default_rng(seed).normal(0, noise, len(rows)))
    ttft = (rows.first_token_ts - rows.arrival_time) * jitter + network
    e2el = ttft + (rows.last_token_ts - rows.first_token_ts) * jitter
    queued = rows.scheduled_ts - rows.arrival_time
    measured, _ = clean_measured(trace.output_len, ttft=ttft, e2el=e2el, queued_time=queued)
    return replace(trace, measured=measured)


def error_of(document, latency="ttft", statistic="mean", load="all"):
    """Return the row of one error."""
    [row] = [
        row
        for row in document["errors"]
        if (row["latency"], row["statistic"], row["load"]) == (latency, statistic, load)
    ]
    return row


def reasons(document):
    """Return why it says that there are errors."""
    return [item["reason"] for item in document["advice"]]

"""What the comparison of the report's tests is made from."""

from dataclasses import replace

import numpy as np

from queuesmith.traces.trace import Origin, Trace

POLICIES = (
    *("fcfs", "sjf_aging", "sjf", "aged_sjf(SECONDS_PER_TOKEN=0.0003|0.003)", "las"),
    *("srpt_oracle", "vllm_unchunked"),
)
LOADS = ("own", "knee", "heavy")


def make_trace(num_requests=1600, seed=1):
    rng = np.random.default_rng(seed)
    rate = 4 + 3 * np.sin(np.arange(num_requests) / num_requests * 12)
    return Trace(
        np.cumsum(rng.exponential(1 / rate)),
        prompt_len=np.clip(rng.lognormal(6.3, 1.2, num_requests), 4, 30_000).astype(int),
        output_len=np.clip(rng.lognormal(4.0, 0.9, num_requests), 1, 2_000).astype(int),
        priority=np.arange(num_requests) % 2,
        origin=Origin(
            source="AzureLLMInferenceTrace_conv.csv",
            sha256="5c1d" * 16,
            reader="azure",
            dropped={"longer than max_model_len": 12},
            notes=("2 rows were out of order",),
        ),
    )


def renamed(comparison, policies, loads):
    """Return the comparison with other names for policies and loads, and nothing else changed."""
    answer, config = comparison.answer, dict(comparison.config)
    config["policies"] = [policies[name] for name in config["policies"]]
    config["reference"] = policies[config["reference"]]
    config["loads"] = [{**load, "name": loads[load["name"]]} for load in config["loads"]]
    return replace(
        comparison,
        answer=replace(
            answer,
            policy=policies[answer.policy],
            loads=tuple(loads[name] for name in answer.loads),
            goals=tuple(
                replace(one, policy=policies[one.policy], tied=tuple(policies[n] for n in one.tied))
                for one in answer.goals
            ),
        ),
        leaderboard=tuple(
            replace(
                row,
                policy=policies[row.policy],
                broken=tuple(replace(one, load=loads[one.load]) for one in row.broken),
            )
            for row in comparison.leaderboard
        ),
        loads=tuple(
            replace(row, policy=policies[row.policy], load=loads[row.load])
            for row in comparison.loads
        ),
        config=config,
        samples={
            (policies[policy], loads[load]): sample
            for (policy, load), sample in comparison.samples.items()
        },
    )

"""What limits an answer."""

from collections.abc import Sequence

from queuesmith.config import EngineConfig
from queuesmith.evaluation.evaluate import Evaluation
from queuesmith.evaluation.judge import MIN_WINDOWS
from queuesmith.numbers import listed
from queuesmith.policies import Policy, get_policy
from queuesmith.traces.trace import Trace


def caveats(
    policies: Sequence[Policy],
    config: EngineConfig,
    trace: Trace,
    evaluation: Evaluation,
    num_windows: int,
    asked_windows: int,
    window_len: int,
) -> list[str]:
    """Say what limits the answer, beginning with what limits it most."""
    found = []
    if num_windows < MIN_WINDOWS:
        limit = (
            "there is no interval and nothing can be recommended"
            if num_windows == 1
            else f"sign tests need {MIN_WINDOWS}, and intervals over so few are rough"
        )
        found.append(f"only {num_windows} windows of {window_len} requests: {limit}")
    elif num_windows < asked_windows:
        found.append(
            f"the trace has room for {num_windows} windows of {window_len} requests, not the "
            f"{asked_windows} asked for"
        )
    if window_len < 1000:
        found.append(
            f"windows of {window_len} requests hold {window_len / 100:g} beyond their p99; use "
            "1000 and more to judge tails"
        )
    if trace.block_hashes is not None and not config.enable_prefix_caching:
        found.append(
            "the trace knows which prompts begin alike, but prefix caching is off: "
            '--engine-args "--enable-prefix-caching" turns it on, as vLLM has it'
        )
    if config.scheduling_policy == "priority" and get_policy("fcfs") in policies:
        found.append(
            "fcfs is vLLM as it runs with --scheduling-policy priority: the lower priority first, "
            "then in order of arrival"
        )
    if evaluation.num_dropped:
        found.append(
            f"{evaluation.num_dropped} requests can never run on this engine (longer than "
            "max_model_len or the KV cache) and were left out for every policy"
        )
    if evaluation.num_truncated:
        found.append(
            f"{evaluation.num_truncated} outputs were cut where the context window or the "
            "client's max_tokens ends them"
        )
    fair = [policy.name for policy in policies if policy.reads_field("request.client_tokens")]
    if trace.client is None and fair:
        found.append(
            f"the trace names no clients for {listed(fair)} to be fair to: each request is a "
            "client of its own"
        )
    return found

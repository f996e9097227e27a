"""The requests of a workload as a server gets them: prompts of exact length, all of them unlike."""

import math
from typing import Any

import numpy as np

from queuesmith.engine.workload import Workload

#: Token ids that prompts are made of: in every vocabulary, and special in none.
FIRST_TOKEN, NUM_TOKENS = 100, 512
#: Tokens of the head that makes a prompt unlike every other: 512**5 of them.
HEAD = 5


def make_prompt(row: int, length: int, seed: int) -> list[int]:
    """Return token ids that no other (row, seed) shares a first KV block with.

    Examples
    --------
    >>> make_prompt(0, 6, seed=1)[:2] != make_prompt(1, 6, seed=1)[:2]
    True
    """
    number = row + (seed << 24)
    head = [FIRST_TOKEN + number // NUM_TOKENS**place % NUM_TOKENS for place in range(HEAD)]
    rng = np.random.default_rng([seed, row])
    body: list[int] = rng.integers(NUM_TOKENS, size=max(length - HEAD, 0)).tolist()
    return head[:length] + [FIRST_TOKEN + token for token in body]


def known_to_policies(workload: Workload, row: int) -> dict[str, Any]:
    """Return what a client would say of a request: never its true output length."""
    trace = workload.trace
    known: dict[str, Any] = {"max_tokens": int(workload.max_tokens[row])}
    predicted = float(workload.predicted_output_tokens[row])
    if math.isfinite(predicted):
        known["predicted_output_tokens"] = predicted
    left = float(workload.deadline[row]) - float(trace.arrival_time[row])
    if math.isfinite(left):
        known["time_to_deadline"] = left
    if trace.priority is not None:
        known["priority"] = int(trace.priority[row])
    if trace.client is not None and trace.client[row] >= 0:
        known["client"] = f"client {int(trace.client[row])}"
    return known


def request_body(workload: Workload, row: int, model: str, seed: int) -> dict[str, Any]:
    """Return the body of one request, for ``POST /v1/completions``."""
    return {
        "model": model,
        "prompt": make_prompt(row, int(workload.trace.prompt_len[row]), seed),
        "max_tokens": int(workload.output_len[row]),
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "vllm_xargs": known_to_policies(workload, row),
    }

"""LSSP's slot engine: steps of 1 ms, 64 seats, prompts for nothing, one token each a step.

It is kept apart from :mod:`queuesmith.engine`, which models vLLM, and nothing else uses it. Its
acceptance tests are LSSP's published numbers.

A step, in order: requests that have arrived join the queue; the policy says whom to preempt, to
hold and to admit; the preempted lose all progress and go to the front of the queue; every active
request that is not held produces a token, stamped with the step's end; those that have all theirs
finish. An idle engine skips to the step just before the next arrival.

References
----------
Vahidi, "How Portable Are LLM-Serving Scheduler Rankings Across Workloads, Operating Regions, and
Metrics?", 2026 (LSSP).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from queuesmith.errors import ConfigError, did_you_mean
from queuesmith.study.lssp_paged import BLOCK_SIZE, release
from queuesmith.study.lssp_panel import CREDIT_MAX, NAMES, NUM_KEYS, decide
from queuesmith.study.lssp_slots import (
    ACTIVE,
    ADMITTED,
    DRAIN_STEPS,
    MAX_KV_TOKENS,
    MAX_NUM_SEQS,
    NUM_QUEUES,
    PREEMPTED,
    ROW,
    STATE,
    STEP_TIME,
    WAITING,
)


@dataclass(frozen=True, eq=False)
class SlotRequests:
    """What LSSP's engine serves, in order of arrival; times are seconds from the first one."""

    arrival_time: NDArray[np.float64]
    prompt_len: NDArray[np.int64]
    output_len: NDArray[np.int64]
    predicted_output_tokens: NDArray[np.int64]
    deadline: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.arrival_time)


@dataclass(frozen=True, eq=False)
class SlotResult:
    """What became of the requests: `ROW` each, in which instants that did not come are NaN.

    Skipped steps are not counted; `end_time` is the start of the last step, s, which LSSP divides
    by.
    """

    rows: Any
    num_steps: int
    end_time: float

    @property
    def finished(self) -> NDArray[np.bool_]:
        """Whether each request finished before the run was cut off."""
        return np.asarray(~np.isnan(self.rows.last_token_ts))


def simulate_slots(
    policy: str,
    requests: SlotRequests,
    *,
    max_num_seqs: int = MAX_NUM_SEQS,
    max_kv_tokens: int = MAX_KV_TOKENS,
    drain_steps: int = DRAIN_STEPS,
) -> SlotResult:
    """Run one policy of LSSP's panel on its slot engine; other limits than LSSP's are for tests."""
    if policy not in NAMES:
        raise ConfigError(
            f"LSSP has no policy {policy!r}.{did_you_mean(policy, NAMES)} "
            f"Its panel is {', '.join(NAMES)}"
        )
    rows = np.zeros(len(requests), ROW)
    for name in (
        "arrival_time",
        "prompt_len",
        "output_len",
        "predicted_output_tokens",
        "deadline",
    ):
        rows[name] = getattr(requests, name)
    for name in ("admitted_ts", "first_token_ts", "last_token_ts"):
        rows[name] = np.nan
    rows["due"] = -1.0
    state = np.zeros(1, STATE)
    state["step_time"] = STEP_TIME
    state["max_num_seqs"] = max_num_seqs
    state["max_kv_tokens"] = max_kv_tokens
    state["num_blocks"] = state["num_free_blocks"] = max_kv_tokens // BLOCK_SIZE
    state["credit"] = CREDIT_MAX
    slots = np.zeros((NUM_QUEUES, max(len(rows), max_num_seqs)), np.int64)
    keys = np.zeros((len(rows), NUM_KEYS))
    num_steps, end_time = _run(NAMES.index(policy), rows, state, slots, keys, drain_steps)
    return SlotResult(rows.view(np.recarray), num_steps, end_time)


@njit(cache=True)
def _run(
    policy: int,
    rows: Any,
    state: Any,
    slots: Any,
    keys: NDArray[np.float64],
    drain_steps: int,
) -> tuple[int, float]:
    """Step until all is done or cut off; return the steps taken and the start of the last one."""
    s = state[0]
    num_requests = len(rows)
    num_arrived = 0
    num_drained = 0
    num_steps = 0
    step = 0
    while True:
        s.now = step * s.step_time
        num_steps += 1
        while num_arrived < num_requests and rows[num_arrived].arrival_time <= s.now:
            slots[WAITING, s.num_waiting] = num_arrived
            s.num_waiting += 1
            num_arrived += 1
        s.num_admitted = 0
        s.num_preempted = 0
        s.num_kv_tokens = 0
        for slot in range(s.num_active):
            row = slots[ACTIVE, slot]
            s.num_kv_tokens += rows[row].prompt_len + rows[row].num_output_tokens
            rows[row].held = False
        decide(policy, rows, s, slots, keys)
        _apply(rows, s, slots)
        _produce(rows, s, slots, (step + 1) * s.step_time)

        all_arrived = num_arrived == num_requests
        num_drained += all_arrived
        idle = s.num_waiting == 0 and s.num_active == 0
        if all_arrived and (idle or num_drained >= drain_steps):
            return num_steps, s.now
        if idle:
            step = max(step, int(rows[num_arrived].arrival_time / s.step_time) - 1)
        step += 1


@njit(cache=True)
def _apply(rows: Any, s: Any, slots: Any) -> None:
    """Move the preempted to the front of the queue and the admitted to the seats."""
    for place in range(s.num_preempted):
        row = slots[PREEMPTED, place]
        s.num_active = _take_out(slots[ACTIVE], s.num_active, row)
        for slot in range(s.num_waiting, 0, -1):
            slots[WAITING, slot] = slots[WAITING, slot - 1]
        slots[WAITING, 0] = row
        s.num_waiting += 1
        rows[row].num_output_tokens = 0
        rows[row].first_token_ts = np.nan
        rows[row].admitted_ts = np.nan
        rows[row].num_preemptions += 1
    for place in range(s.num_admitted):
        row = slots[ADMITTED, place]
        s.num_waiting = _take_out(slots[WAITING], s.num_waiting, row)
        slots[ACTIVE, s.num_active] = row
        s.num_active += 1
        rows[row].admitted_ts = s.now


@njit(cache=True)
def _take_out(queue: NDArray[np.int64], length: int, row: int) -> int:
    """Remove a row, keep the order of the others and return the new length."""
    kept = 0
    for slot in range(length):
        if queue[slot] != row:
            queue[kept] = queue[slot]
            kept += 1
    return kept


@njit(cache=True)
def _produce(rows: Any, s: Any, slots: Any, end: float) -> None:
    """Give every active request that is not held a token; take out those that have all."""
    kept = 0
    for slot in range(s.num_active):
        row = slots[ACTIVE, slot]
        request = rows[row]
        if not request.held:
            request.num_output_tokens += 1
            if request.num_output_tokens == 1:
                request.first_token_ts = end
            if request.num_output_tokens >= request.output_len:
                request.last_token_ts = end
                release(rows, s, row)
                continue
        slots[ACTIVE, kept] = row
        kept += 1
    s.num_active = kept

"""LSSP's 13 policies, to the letter: eleven primary ones and two "style approximations".

What is wrong with some of them is part of the study and stays: see ``docs/background/lssp.md``.
They live in LSSP's slot engine alone and cannot be deployed; the
policies of :mod:`queuesmith.policies.builtin` can.

Compiled, with the parameters of :mod:`queuesmith.study.lssp_paged`; `keys` has room for
`NUM_KEYS` numbers of each waiting request. An estimate of service is half a step for each prompt
token and one for each predicted output token. Every request has the same class, and a priority of
1 that no result depends on, so neither appears in a key.
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from queuesmith.study.lssp_paged import admit, chunked_vllm, fits, sarathi, slai, vllm
from queuesmith.study.lssp_slots import MAX_NUM_SEQS, WAITING

NUM_KEYS = 3
#: kv_constrained_online: share of the KV cache kept for requests with at most this laxity, s.
MAX_KV_USAGE, URGENT = 0.82, 0.25
#: scorpio_style_slo_guard, in its own order: credits gained in a step and kept; pressure of KV
#: cache, seats and queue that arms the guard; what counts as a long answer, tokens, and as nearly
#: late, s; weights of age (1/s) and of a decode's load (1/token).
CREDIT_GAIN, CREDIT_MAX = 2.0, 4.0
KV_PRESSURE, SEAT_PRESSURE, QUEUE_PRESSURE = 0.65, 0.70, 3.0
LONG_ANSWER, NEARLY_LATE = 256, 0.5
AGE_WEIGHT, LOAD_WEIGHT = 0.05, 0.35
_LEAST = 1e-9


#: LSSP's policies by its names, in its order. Those with "style" it calls approximations.
NAMES = (
    "fifo",
    "edf",
    "least_laxity_first",
    "estimated_service_time_first",
    "weighted_fair_share",
    "kv_constrained_online",
    "vllm_faithful",
    "vllm_chunked_prefill_faithful",
    "sarathi_faithful",
    "slai_faithful",
    "admission_control",
    "vllm_style_token_budget",
    "scorpio_style_slo_guard",
)
#: Those that LSSP's tables compare.
PRIMARY = tuple(name for name in NAMES if "style" not in name)

(
    _FIFO,
    _EDF,
    _LEAST_LAXITY,
    _SERVICE_TIME,
    _FAIR_SHARE,
    _KV_CONSTRAINED,
    _VLLM,
    _CHUNKED_VLLM,
    _SARATHI,
    _SLAI,
    _ADMISSION_CONTROL,
    _TOKEN_BUDGET,
    _SCORPIO,
) = range(len(NAMES))


@njit(cache=True)
def decide(policy: int, rows: Any, s: Any, slots: Any, keys: NDArray[np.float64]) -> None:
    """Ask one policy, by its place in `NAMES`, whom to preempt, to hold and to admit."""
    if policy == _VLLM:
        vllm(rows, s, slots)
    elif policy == _CHUNKED_VLLM:
        chunked_vllm(rows, s, slots)
    elif policy == _SARATHI:
        sarathi(rows, s, slots)
    elif policy == _SLAI:
        slai(rows, s, slots)
    elif policy == _SCORPIO:
        _scorpio(rows, s, slots, keys)
    elif s.num_active < s.max_num_seqs:  # else nobody could be admitted, in whatever order
        for slot in range(s.num_waiting):
            _fill_keys(policy, rows, s, slots[WAITING, slot], keys[slot])
        _admit_greedily(policy, rows, s, slots, keys)


@njit(cache=True)
def _estimate(row: Any) -> float:
    """Service, steps."""
    return float(0.5 * row.prompt_len + 1.0 * row.predicted_output_tokens)


@njit(cache=True)
def _laxity(row: Any, s: Any) -> float:
    """Seconds to spare."""
    return float(row.deadline - s.now - _estimate(row) * s.step_time)


@njit(cache=True)
def _fill_keys(policy: int, rows: Any, s: Any, row: int, key: NDArray[np.float64]) -> None:
    """Write what a request is ordered by, least first; ties stay in the order of the queue."""
    request = rows[row]
    key[:] = 0.0
    if policy == _EDF:
        key[0] = request.deadline
    elif policy == _LEAST_LAXITY:
        # Sic: seconds less steps.
        key[0] = request.deadline - s.now - _estimate(request)
        key[1] = request.deadline
    elif policy == _SERVICE_TIME:
        key[0] = _estimate(request)
        key[1] = request.deadline
    elif policy == _FAIR_SHARE:
        # Both counts are of the one class there is.
        deficit = s.num_waiting / max(1, s.num_active + 1)
        key[0] = -(deficit / max(_estimate(request), _LEAST))
        key[1] = request.arrival_time
    elif policy == _KV_CONSTRAINED:
        laxity = _laxity(request, s)
        key[0] = 1.0 if laxity > URGENT else 0.0
        key[1] = request.prompt_len + 0.25 * request.predicted_output_tokens
        key[2] = laxity
    elif policy == _ADMISSION_CONTROL:
        key[0] = _laxity(request, s)
        key[1] = _estimate(request) * s.step_time
        key[2] = request.deadline
    elif policy == _TOKEN_BUDGET:
        key[0] = request.predicted_output_tokens
        key[1] = request.arrival_time


@njit(cache=True)
def _admit_greedily(policy: int, rows: Any, s: Any, slots: Any, keys: NDArray[np.float64]) -> None:
    """Walk the queue in order of the keys and admit all that fits, skipping what does not."""
    last = -1
    for _ in range(s.num_waiting):
        last = _next_slot(s, keys, last)
        row = slots[WAITING, last]
        charge = rows[row].prompt_len
        if policy == _TOKEN_BUDGET:
            charge = (charge + 15) // 16 * 16
        if not fits(rows, s, charge):
            if s.num_active + s.num_admitted == s.max_num_seqs:
                return
            continue
        if policy == _KV_CONSTRAINED:
            usage = (s.num_kv_tokens + charge) / s.max_kv_tokens
            if usage > MAX_KV_USAGE and _laxity(rows[row], s) > URGENT:
                continue
        admit(rows, s, slots, row, charge)


@njit(cache=True)
def _next_slot(s: Any, keys: NDArray[np.float64], last: int) -> int:
    """Return the place in the queue with the least keys after those of `last`, or of all (-1)."""
    best = -1
    for slot in range(s.num_waiting):
        if (last < 0 or _before(keys, last, slot)) and (best < 0 or _before(keys, slot, best)):
            best = slot
    return best


@njit(cache=True)
def _before(keys: NDArray[np.float64], slot: int, other: int) -> bool:
    for column in range(NUM_KEYS):
        if keys[slot, column] != keys[other, column]:
            return bool(keys[slot, column] < keys[other, column])
    return slot < other


@njit(cache=True)
def _scorpio(rows: Any, s: Any, slots: Any, keys: NDArray[np.float64]) -> None:
    """Urgent first; what is late is never served; under pressure long answers and credits."""
    if s.num_waiting == 0:
        return
    s.credit = min(CREDIT_MAX, s.credit + CREDIT_GAIN)
    kv_usage = s.num_kv_tokens / s.max_kv_tokens
    seats = s.num_active / MAX_NUM_SEQS
    total = 0.0
    num_candidates = 0
    for slot in range(s.num_waiting):
        row = rows[slots[WAITING, slot]]
        laxity = _laxity(row, s)
        prefill = row.deadline - s.now - 0.5 * row.prompt_len * s.step_time
        # Once below 0 they stay there: this request waits to the end of the run.
        keys[slot, 0] = np.inf if laxity < 0.0 or prefill < 0.0 else laxity
        if keys[slot, 0] < np.inf:
            total += laxity
            num_candidates += 1
    if num_candidates == 0:
        return
    guarded = (
        kv_usage >= KV_PRESSURE
        or seats >= SEAT_PRESSURE
        or s.num_waiting / MAX_NUM_SEQS >= QUEUE_PRESSURE
        or total / num_candidates < 0.0  # never, after what was left out above
    )
    num_candidates = 0
    for slot in range(s.num_waiting):
        row = rows[slots[WAITING, slot]]
        laxity = keys[slot, 0]
        short_of_memory = guarded and kv_usage >= KV_PRESSURE
        is_long = row.predicted_output_tokens > LONG_ANSWER
        if short_of_memory and is_long and not laxity < NEARLY_LATE:
            laxity = np.inf
        score = 1.0 / max(laxity, _LEAST) + 1.0 + AGE_WEIGHT * (s.now - row.arrival_time)
        if guarded:
            score -= LOAD_WEIGHT * row.predicted_output_tokens * seats
        keys[slot, 0] = -score if laxity < np.inf else np.inf
        keys[slot, 1] = laxity
        keys[slot, 2] = row.arrival_time
        num_candidates += laxity < np.inf
    most = max(1, int(s.credit)) if guarded else num_candidates
    last = -1
    for _ in range(num_candidates):
        if s.num_admitted >= most:
            return
        last = _next_slot(s, keys, last)
        row_index = slots[WAITING, last]
        if fits(rows, s, rows[row_index].prompt_len):
            admit(rows, s, slots, row_index, rows[row_index].prompt_len)
            if guarded:
                s.credit = max(0.0, s.credit - 1.0)

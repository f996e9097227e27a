"""The compiled step loop. Arrays in, arrays out; the caller has checked them.

Read `run` first: it is one step in order. The rules are those of vLLM 0.32.0's
``Scheduler.schedule``; `engine.reference.engine` says the same in plain Python. Nothing here knows
a string, raises, or allocates inside the loop; an exception that a policy raises passes through,
and `fault_hook` and `fault_row` of the state say what it was asked.

The parts are in `kv_blocks`, `waiting`, `running`, `client_events`, `outputs` and `fast_forward`.
All take one bundle, `Kernel`; none counts references (``_nrt=False``), so that a use of an array in
it is free.
"""

from contextlib import suppress
from pathlib import Path

import numba
from numba import njit, types

from queuesmith.engine.kernel.client_events import take_messages
from queuesmith.engine.kernel.fast_forward import jump
from queuesmith.engine.kernel.outputs import complete_step, note_state, overlap
from queuesmith.engine.kernel.running import (
    displace,
    order_by_victim_key,
    order_matters,
    schedule_running,
    set_aside_held,
)
from queuesmith.engine.kernel.state import (
    BLOCK_DTYPE,
    CLIENT_DTYPE,
    CONTENT_DTYPE,
    ITL_DTYPE,
    SETTINGS_DTYPE,
    STATE_DTYPE,
    STEP_DTYPE,
    WORK_DTYPE,
    Kernel,
)
from queuesmith.engine.kernel.waiting import observe, schedule_waiting
from queuesmith.request import ENGINE_DTYPE, REQUEST_DTYPE

REQUEST = numba.from_dtype(REQUEST_DTYPE)
ENGINE = numba.from_dtype(ENGINE_DTYPE)
KEY = types.float64(REQUEST, ENGINE)
FLAG = types.boolean(REQUEST, ENGINE)

_RUN = types.int64(
    REQUEST[::1],
    ENGINE[::1],
    numba.from_dtype(SETTINGS_DTYPE)[::1],
    numba.from_dtype(STATE_DTYPE)[::1],
    numba.from_dtype(WORK_DTYPE)[::1],
    types.int64[:, ::1],
    numba.from_dtype(CLIENT_DTYPE)[::1],
    numba.from_dtype(ITL_DTYPE)[::1],
    numba.from_dtype(BLOCK_DTYPE)[::1],
    numba.from_dtype(CONTENT_DTYPE)[::1],
    types.int64[:, ::1],
    types.int64[::1],
    numba.from_dtype(STEP_DTYPE)[::1],
    types.int64[:, ::1],
    types.int64[::1],
    types.FunctionType(KEY),
    types.FunctionType(KEY),
    types.FunctionType(FLAG),
    types.FunctionType(FLAG),
    types.FunctionType(FLAG),
)

FINISHED, STALLED, LIVELOCK, PAUSED = range(4)  # what `run` returns

MAX_EMPTY_STEPS = 10_000
MAX_STEPS_WITHOUT_FINISH = 2_000_000


@njit(forceinline=True, _nrt=False)
def next_start(requests, s):
    """Return when the next step starts, while not all requests have ended: now, or on arrival."""
    if s.num_running == 0 and s.num_waiting == 0 and not s.is_under_way:
        return max(s.now, requests[s.next_row].arrival_time)
    return s.now


@njit(forceinline=True, _nrt=False)
def schedule(k):
    """Decide what one step computes: the policy's questions, then vLLM's rules."""
    p, s = k.settings, k.state
    observe(k)
    s.keys_are_fresh = False
    if p.has_hold:
        set_aside_held(k)
    if p.preemptive and s.num_waiting > 0 and s.num_running + s.num_held >= p.seats:
        displace(k)
    if p.has_victim_key and order_matters(k):
        order_by_victim_key(k)
    budget, preempted = schedule_running(k)
    if not preempted:
        schedule_waiting(k, budget)


PARTS = (
    "kv_blocks",
    "waiting",
    "running",
    "client_events",
    "outputs",
    "fast_forward",
    "state",
)


def forget_stale_code(function, parts):
    """Remove machine code that is older than what was inlined into it.

    numba's disk cache looks at the file of the outermost function alone.

    Parameters
    ----------
    function : str
        ``module.name`` of the outermost one, in this folder.
    parts : sequence of str
        Modules in this folder that it is made of, beside its own.
    """
    folder = Path(__file__).parent
    newest = max((folder / f"{name}.py").stat().st_mtime for name in parts)
    kept = [folder / "__pycache__", *([Path(path)] if (path := numba.config.CACHE_DIR) else [])]
    for index in (index for place in kept for index in place.rglob(f"{function}-*.nbi")):
        if index.stat().st_mtime < newest:
            index.unlink(missing_ok=True)


with suppress(OSError):  # a folder that cannot be written has no code of ours to go stale
    forget_stale_code("loop.run", PARTS)


@njit(_RUN, cache=True, nogil=True, _nrt=False)
def run(
    requests,
    engine,
    settings,
    state,
    work,
    lists,
    clients,
    itl,
    pool,
    contents,
    tables,
    residues,
    log_steps,
    log_tokens,
    log_preemptions,
    waiting_key,
    victim_key,
    admit,
    hold,
    reject,
):
    """Simulate until every known request has ended or the next step would start at `until`.

    It also returns when `allowance` of the state is used up, so that Python hears of signals.

    Everything is changed in place; all arrays but `requests` and `work` start as zeros. Called
    again with more rows or a later `until` it goes on as if it had not stopped.

    Parameters
    ----------
    requests : (num_requests,) REQUEST_DTYPE
        In order of arrival; the first `num_rows` of the state are known.
    engine : (1,) ENGINE_DTYPE
        The row that policies read.
    settings : (1,) SETTINGS_DTYPE
    state : (1,) STATE_DTYPE
        With `now`, `until`, `allowance`, `num_rows`, `num_free_blocks`, `num_aborts`, `under_way`,
        `token_rate`, `recent_ttft` and `step_time` set.
    work : (num_requests,) WORK_DTYPE
    lists : (at most NUM_LISTS, num_requests) int64
        ``lists[ABORTS, :num_aborts]`` names the requests that have an `abort_time`, by that.
    clients : (num_clients,) CLIENT_DTYPE
    itl : (num_bins,) ITL_DTYPE
    pool : (num_gpu_blocks,) BLOCK_DTYPE
        All blocks in the ring of free ones; a single row without prefix caching.
    contents : (num_contents,) CONTENT_DTYPE
        All -1.
    tables : (2, total) int64
        A stretch per request, from its `table`: blocks, and `Contents.numbers`.
    residues : (block_size,) int64
    log_steps : (num_steps,) STEP_DTYPE
        Empty when nothing is to be recorded; then so are the two others.
    log_tokens : (num_entries, 2) int64
    log_preemptions : (num_preemptions,) int64
    waiting_key, victim_key : float64(request, engine)
    admit, hold, reject : boolean(request, engine)

    Returns
    -------
    int
        ``FINISHED``, ``STALLED`` (no token in `MAX_EMPTY_STEPS` steps in a row) or ``LIVELOCK``
        (no request finished in `MAX_STEPS_WITHOUT_FINISH` steps and ten context windows of them) or
        ``PAUSED``.
    """
    p, s = settings[0], state[0]
    k = Kernel(
        requests,
        engine[0],
        p,
        s,
        work,
        lists,
        clients,
        itl,
        pool,
        contents,
        tables,
        residues,
        log_steps,
        log_tokens,
        log_preemptions,
        waiting_key,
        victim_key,
        admit,
        hold,
        reject,
    )
    while s.num_ended < s.num_rows:
        start = next_start(requests, s)
        if start >= s.until:
            break
        if s.allowance <= 0:
            return PAUSED
        s.allowance -= 1
        s.now = start
        take_messages(k)
        if p.jump and not p.has_hold and jump(k):
            continue
        somebody = s.num_running > 0 or s.num_waiting > 0
        if not somebody and not s.is_under_way:
            continue  # whoever came was turned away, or has given up already
        if somebody:
            schedule(k)
        note_state(s)
        num_scheduled = 0
        num_scheduled = overlap(k, somebody) if p.async_scheduling else complete_step(k)
        s.num_empty_steps = 0 if num_scheduled > 0 else s.num_empty_steps + 1
        if s.num_empty_steps >= MAX_EMPTY_STEPS:
            return STALLED
        if s.num_steps - s.steps_at_end > MAX_STEPS_WITHOUT_FINISH + 10 * p.max_model_len:
            return LIVELOCK
    return FINISHED

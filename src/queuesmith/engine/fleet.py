"""Several engines behind a router, and sessions whose next turn waits for the last answer.

`simulate_workload` comes here whenever not all arrivals of one engine are known beforehand.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from queuesmith.config import EngineConfig
from queuesmith.engine.compile import CompiledPolicy, compile_router
from queuesmith.engine.kernel import loop as kernel
from queuesmith.engine.kernel.state import (
    CLIENT_DTYPE,
    FLEET_DTYPE,
    ITL_DTYPE,
    LINE_DTYPE,
    PLACED_REPLICA,
    PLACED_ROW,
    STATE_DTYPE,
    STEP_DTYPE,
)
from queuesmith.engine.presets.step_time import StepTime
from queuesmith.engine.result import ITL_EDGES, Recording, Result
from queuesmith.engine.run import (
    block_pool,
    explain_fault,
    explain_stall,
    in_turns,
    make_settings,
    num_lists,
    result_rows,
    set_up,
    work_rows,
    zeros,
)
from queuesmith.engine.workload import Workload, request_rows
from queuesmith.errors import ConfigError, EngineError, PolicyError
from queuesmith.policies import Policy
from queuesmith.request import ENGINE_DTYPE, REQUEST_DTYPE
from queuesmith.routers import Router, get_router
from queuesmith.routers.rows import REPLICA_DTYPE, REPLICA_FIELDS, SENT_DTYPE, SENT_FIELDS

#: More are refused: each costs memory for every request that it could be sent.
MAX_REPLICAS = 1_000

Counts = tuple[int, int, int]


@dataclass(frozen=True)
class Fleet:
    """How many replicas of an engine there are, and who sends requests to them.

    Attributes
    ----------
    num_replicas : int
    router : Router
    seed : int or tuple of int
        Of the random orders that a router may read; the same for every policy.

    Raises
    ------
    ConfigError
        If `num_replicas` is not between 1 and `MAX_REPLICAS`.
    """

    num_replicas: int
    router: Router
    seed: int | tuple[int, ...] = 0

    def __post_init__(self) -> None:
        if not 1 <= self.num_replicas <= MAX_REPLICAS:
            raise ConfigError(
                f"replicas must be between 1 and {MAX_REPLICAS:,}, got {self.num_replicas}"
            )

    def with_seed(self, *seed: int) -> Self:
        """Return the same fleet with other random orders."""
        return replace(self, seed=seed)

    def random_ranks(self, num_requests: int) -> NDArray[np.int64]:
        """Draw an order of the replicas for each request, as (num_requests, num_replicas).

        Empty where the router looks at none. The order belongs to the row of the trace, so that it
        is the same under every policy.
        """
        if "replica.random_rank" not in self.router.reads:
            return np.zeros((0, self.num_replicas), np.int64)
        seeds = self.seed if isinstance(self.seed, tuple) else (self.seed,)
        rng = np.random.default_rng([*seeds, _STREAM])
        orders = np.tile(np.arange(self.num_replicas), (num_requests, 1))
        return rng.permuted(orders, axis=1)


#: Tells the stream of random orders from others that are drawn of the same seed.
_STREAM = 0x526F757465
ONE_REPLICA = Fleet(1, get_router("round_robin"))


def simulate_fleet(
    workload: Workload,
    compiled: CompiledPolicy,
    config: EngineConfig,
    step_time: StepTime,
    fleet: Fleet,
    *,
    horizon: float = math.inf,
    record: bool = False,
    jump: bool = True,
) -> Result:
    """Run several engines; `simulate_workload` calls this where one will not do.

    Raises
    ------
    PolicyError
        If a hook of the policy or the router fails.
    EngineError
        If an engine makes no progress, or memory does not suffice.
    """
    settings = make_settings(workload, config, step_time, compiled.policy, jump and not record)
    route_key = compile_router(fleet.router)

    def run(sizes: Counts) -> _FleetRun:
        try:
            run = _FleetRun(workload, compiled.policy, settings, fleet, horizon, sizes)
        except MemoryError:
            raise EngineError(
                f"memory does not suffice for {fleet.num_replicas} replicas of "
                f"{len(workload.trace):,} requests; use fewer, or a shorter trace"
            ) from None
        run.go(compiled, route_key)
        return run

    first = run((0, 0, 0))
    if not record:
        return first.result()
    counted = first.state[:, 0]
    return run(
        (
            int(counted.num_steps.max()),
            int(counted.num_entries.max()),
            int(counted.num_preemptions.max()),
        )
    ).result(recorded=True)


class _FleetRun:
    """The arrays of one run."""

    def __init__(
        self,
        workload: Workload,
        policy: Policy,
        settings: Any,
        fleet: Fleet,
        horizon: float,
        log_sizes: Counts,
    ) -> None:
        self.workload, self.policy, self.settings, self.fleet = workload, policy, settings, fleet
        self.source = request_rows(workload, policy)
        self.source_work = work_rows(workload)
        num, num_requests = fleet.num_replicas, len(self.source)
        self.sent = sent_rows(workload, self.source)
        self.arrival = np.array(self.source.arrival_time)
        self.placed = np.full((2, num_requests), -1)
        self.control = zeros(1, FLEET_DTYPE)
        self.control.horizon = horizon
        self.control.lookahead = np.inf
        self.control.reads_engines = fleet.router.reads_engines
        reads_hits = "replica.num_cached_tokens" in fleet.router.reads
        self.control.reads_hits = reads_hits and settings.caching[0]
        known = np.arange(num_requests)
        if workload.next_turn is None or workload.think_time is None:
            self.next_turn, self.think_time = np.full(num_requests, -1), np.zeros(num_requests)
        else:
            self.next_turn, self.think_time = workload.next_turn, workload.think_time
            later = self.next_turn[self.next_turn >= 0]
            self.control.lookahead = self.think_time[later].min()
            known = np.setdiff1d(known, later)
            self.arrival[later] = np.nan
        # In order of arrival, which is that of a heap.
        self.heap = np.zeros(num_requests, np.int64)
        self.heap[: len(known)] = known
        self.control.num_future = len(known)
        self.lines = zeros(num, LINE_DTYPE)
        self.lines.next_abort = np.inf
        self.views = zeros(num, REPLICA_DTYPE)
        self.views.index = np.arange(num)
        self.views.num_replicas = num
        self.views.last_sent_ts = -np.inf
        is_closed = workload.next_turn is not None
        self.watched = np.zeros((num, num_requests if is_closed else 0), np.int64)
        self.ranks = fleet.random_ranks(num_requests)
        # What follows has a row for each replica.
        self.requests = zeros((num, num_requests), REQUEST_DTYPE)
        self.engine = zeros((num, 1), ENGINE_DTYPE)
        self.state = zeros((num, 1), STATE_DTYPE)
        set_up(self.state, settings, float(self.source.arrival_time[0]))
        self.work = zeros((num, num_requests), self.source_work.dtype)
        self.lists = np.zeros((num, num_lists(settings), num_requests), np.int64)
        self.clients = zeros((num, int(workload.client.max()) + 1), CLIENT_DTYPE)
        self.itl = zeros((num, len(ITL_EDGES) - 1), ITL_DTYPE)
        self.itl.edge = ITL_EDGES[:-1]
        pool, contents, self.tables = block_pool(
            workload, self.source_work, int(settings.num_gpu_blocks[0])
        )
        self.pool = np.tile(pool, (num, 1)).view(np.recarray)
        self.contents = np.tile(contents, (num, 1)).view(np.recarray)
        num_steps, num_entries, num_preemptions = log_sizes
        self.log_steps = zeros((num, num_steps), STEP_DTYPE)
        self.log_tokens = np.zeros((num, num_entries, 2), np.int64)
        self.log_preemptions = np.zeros((num, num_preemptions), np.int64)

    def go(self, compiled: CompiledPolicy, route_key: Callable[..., float]) -> None:
        """Run the kernel; say what went wrong."""
        # Only here: most of those who import this have one engine, and this one compiles.
        from queuesmith.engine.kernel import fleet_loop as fleet_kernel

        arguments = (
            self.source,
            self.source_work,
            self.sent,
            self.arrival,
            self.heap,
            self.next_turn,
            self.think_time,
            self.placed,
            self.control,
            self.lines,
            self.views,
            self.watched,
            self.ranks,
            self.requests,
            self.engine,
            self.settings,
            self.state,
            self.work,
            self.lists,
            self.clients,
            self.itl,
            self.pool,
            self.contents,
            self.tables,
            np.zeros(int(self.settings.block_size[0]), np.int64),
            self.log_steps,
            self.log_tokens,
            self.log_preemptions,
            compiled.waiting_key,
            compiled.victim_key,
            compiled.admit,
            compiled.hold,
            compiled.reject,
            route_key,
        )
        try:
            status = in_turns(fleet_kernel.run_fleet, arguments, self.control)
        except (ArithmeticError, ValueError, IndexError) as error:
            control = self.control[0]
            k = int(control.fault_replica)
            if control.is_routing:
                raise _explain_route(
                    self.fleet.router, self.sent[control.fault_row], self.views[k], error
                ) from None
            raise explain_fault(
                self.policy, self.requests[k], self.engine[k, 0], self.state[k, 0], error
            ) from None
        if status != kernel.FINISHED:
            k = int(self.control.fault_replica[0])
            raise explain_stall(self.policy, self.state[k, 0], status)

    def result(self, *, recorded: bool = False) -> Result:
        """Return what the fleet did: requests in the order of the trace, totals over replicas."""
        replica, row = self.placed[PLACED_REPLICA], self.placed[PLACED_ROW]
        requests, work = self.source.copy(), self.source_work.copy()
        requests.arrival_time = np.nan  # of a turn whose session did not come so far
        arrived = replica >= 0
        requests[arrived] = self.requests[replica[arrived], row[arrived]]
        work[arrived] = self.work[replica[arrived], row[arrived]]
        workload, state = self.workload, self.state[:, 0]
        rows = result_rows(workload, requests, work)
        rows.replica = replica
        total = self._summary(rows, self.itl["count"].sum(axis=0), state)
        if not recorded:
            return total
        return replace(total, replicas=tuple(self._replica(rows, k) for k in range(len(state))))

    def _summary(self, rows: Any, itl_counts: NDArray[np.int64], states: Any) -> Result:
        return Result(
            policy=self.policy.name,
            trace=self.workload.trace,
            requests=rows,
            itl_counts=itl_counts,
            num_steps=int(states.num_steps.sum()),
            num_jumps=int(states.num_jumps.sum()),
            num_computed_tokens=int(states.num_computed_tokens.sum()),
            num_recomputed_tokens=int(states.num_recomputed_tokens.sum()),
            num_cached_tokens=int(states.num_cached_tokens.sum()),
            end_time=float(states.now.max()),
            num_dropped=self.workload.num_dropped,
            num_truncated=self.workload.num_truncated,
        )

    def _replica(self, rows: Any, k: int) -> Result:
        """Return what one replica did, with its requests in the order in which it got them."""
        own = np.flatnonzero(self.placed[PLACED_REPLICA] == k)
        own = own[np.argsort(self.placed[PLACED_ROW, own])]
        state = self.state[k, 0]
        recording = Recording(
            self.log_steps[k, : state.num_steps],
            self.log_tokens[k, : state.num_entries],
            self.log_preemptions[k, : state.num_preemptions],
        )
        alone = self._summary(rows[own], self.itl[k]["count"].copy(), self.state[k])
        return replace(alone, recording=recording)


def sent_rows(workload: Workload, requests: Any) -> Any:
    """Return what a router sees of requests, as a (num_requests,) record array of SENT_DTYPE."""
    trace = workload.trace
    rows = zeros(len(requests), SENT_DTYPE)
    for name in SENT_FIELDS:
        if name in ("client", "session"):
            values = getattr(trace, name)
            rows[name] = -1 if values is None else values
        else:
            rows[name] = requests[name]
    # Of what is to be known, not of what an oracle is told.
    rows.predicted_output_tokens = workload.predicted_output_tokens
    return rows


def _explain_route(router: Router, request: Any, replica: Any, error: Exception) -> PolicyError:
    """Ask the hook again in plain Python, which knows the line."""
    sent = SimpleNamespace(**{name: request[name].item() for name in SENT_FIELDS})
    view = SimpleNamespace(**{name: replica[name].item() for name in REPLICA_FIELDS})
    line = ""
    try:
        router.route_key(sent, view)
    except Exception as again:
        error = again
        trace = again.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == str(router.path):
                line = f", line {trace.tb_lineno}"
            trace = trace.tb_next
    return PolicyError(
        f"router {router.name!r} failed in route_key{line} ({router.path}): "
        f"{type(error).__name__}: {error}. It was asked at {sent.arrival_time:g} s about replica "
        f"{view.index}; a hook must return a number for every replica"
    )

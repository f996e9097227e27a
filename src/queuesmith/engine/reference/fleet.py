"""Reference engines behind a router, in obvious Python: slow, for tests and for reading.

Everything happens in order of time: a client gives up, a step ends, a request arrives and is sent
to a replica, a step begins; at one instant in that order. `fleet_loop` must come to the same.
"""

import math
from dataclasses import dataclass, field
from types import SimpleNamespace

from queuesmith.config import EngineConfig
from queuesmith.engine.fleet import Fleet, sent_rows
from queuesmith.engine.presets.step_time import StepTime
from queuesmith.engine.reference.engine import ReferenceEngine, Request, make_requests
from queuesmith.engine.workload import Workload, in_vllm_order, request_rows
from queuesmith.policies import Policy
from queuesmith.routers.rows import SENT_FIELDS

GIVES_UP, ENDS, ARRIVES, BEGINS = range(4)


def simulate_reference_fleet(
    workload: Workload,
    policy: Policy,
    config: EngineConfig,
    step_time: StepTime,
    fleet: Fleet,
    *,
    horizon: float = math.inf,
) -> "ReferenceFleet":
    """Run reference engines behind a router on a workload and return them as they ended."""
    policy = in_vllm_order(policy, config.scheduling_policy)
    replicas = [
        Replica(index, ReferenceEngine([], policy, config, step_time))
        for index in range(fleet.num_replicas)
    ]
    run = ReferenceFleet(workload, make_requests(workload, policy), replicas, fleet, horizon)
    sent = sent_rows(workload, request_rows(workload, policy))
    run.sent = [
        SimpleNamespace(**{name: sent[name][row].item() for name in SENT_FIELDS})
        for row in range(len(sent))
    ]
    run.run()
    return run


@dataclass(eq=False)
class Replica:
    """An engine, and what the router remembers of it."""

    index: int
    engine: ReferenceEngine
    is_computing: bool = False
    rows: list[int] = field(default_factory=list)  # in the trace, of the requests it was sent
    last_sent_ts: float = -math.inf

    @property
    def ends(self) -> float:
        """When the step that is computed ends."""
        step = self.engine.computing
        return self.engine.now + (0.0 if step is None else step.duration)


@dataclass(eq=False)
class ReferenceFleet:
    """Engines behind a router.

    Attributes
    ----------
    replicas : list of Replica
    replica : dict of int to int
        Which one each row of the trace was sent to.
    """

    workload: Workload
    requests: list[Request]
    replicas: list[Replica]
    fleet: Fleet
    horizon: float
    sent: list[SimpleNamespace] = field(default_factory=list)
    replica: dict[int, int] = field(default_factory=dict)
    future: dict[int, float] = field(default_factory=dict)  # known arrivals, by row
    waited_for: list[int] = field(default_factory=list)  # rows sent, whose end somebody awaits

    def run(self) -> None:
        """Let one thing happen after the other until nothing is left."""
        turns = [] if self.workload.next_turn is None else self.workload.next_turn.tolist()
        for row, request in enumerate(self.requests):
            if row not in turns:
                self.future[row] = float(request.view.arrival_time)
        self.ranks = self.fleet.random_ranks(len(self.requests)).tolist()
        while events := self.events():
            time, what, number = min(events)
            if what == GIVES_UP:
                self.follow(number, time)
            elif what == ARRIVES:
                self.send(number, time)
            else:
                replica = self.replicas[number]
                if what == BEGINS:
                    replica.engine.begin()
                else:
                    replica.engine.end()
                replica.is_computing = what == BEGINS
                for row in list(self.waited_for):
                    if not math.isnan(self.requests[row].finished_ts):
                        self.follow(row, self.requests[row].finished_ts)
                    elif not math.isnan(self.requests[row].rejected_ts):
                        self.follow(row, self.requests[row].rejected_ts)

    def events(self) -> list[tuple[float, int, int]]:
        """Return when something happens next, what, and to which row or replica."""
        found = [(time, ARRIVES, row) for row, time in self.future.items()]
        found += [(self.requests[row].abort_time, GIVES_UP, row) for row in self.waited_for]
        for replica in self.replicas:
            engine = replica.engine
            if replica.is_computing:
                found.append((replica.ends, ENDS, replica.index))
            elif engine.has_work and engine.next_start < self.horizon:
                found.append((engine.next_start, BEGINS, replica.index))
        return [event for event in found if event[0] < math.inf]

    def follow(self, row: int, end: float) -> None:
        """Let the request arrive that was waiting for the end of this one."""
        self.waited_for.remove(row)
        assert self.workload.next_turn is not None
        assert self.workload.think_time is not None
        after = int(self.workload.next_turn[row])
        arrival = end + float(self.workload.think_time[after])
        if arrival < self.horizon:
            self.future[after] = arrival

    def send(self, row: int, now: float) -> None:
        """Send a request to the replica with the smallest key."""
        del self.future[row]
        request, sent = self.requests[row], self.sent[row]
        delay = now - request.view.arrival_time
        if delay != 0.0:
            request.view.arrival_time = request.view.last_token_ts = now
            request.view.deadline += delay
            request.abort_time = max(request.abort_time + delay, now)
            sent.arrival_time = now
            sent.deadline += delay
        keys = []
        for replica in self.replicas:
            key = float(self.fleet.router.route_key(sent, self.show(replica, request, row)))
            keys.append(math.inf if math.isnan(key) else key)
        chosen = self.replicas[keys.index(min(keys))]
        self.replica[row] = chosen.index
        request.row = len(chosen.rows)
        if not any(replica.rows for replica in self.replicas):
            for replica in self.replicas:
                replica.engine.now = now
        chosen.rows.append(row)
        chosen.engine.requests.append(request)
        chosen.last_sent_ts = now
        if self.workload.next_turn is not None and self.workload.next_turn[row] >= 0:
            self.waited_for.append(row)

    def show(self, replica: Replica, request: Request, row: int) -> SimpleNamespace:
        """Return what a router sees of a replica."""
        engine = replica.engine
        on_the_way = engine.requests[engine.num_arrived :]
        usable = engine.config.num_gpu_blocks - 1
        used = usable - engine.num_free_blocks
        waiting_tokens = sum(r.view.num_uncached_tokens for r in engine.waiting)
        return SimpleNamespace(
            index=replica.index,
            num_replicas=len(self.replicas),
            num_waiting=len(engine.waiting) + len(on_the_way),
            num_running=len(engine.running),
            waiting_tokens=waiting_tokens + sum(r.view.num_prompt_tokens for r in on_the_way),
            kv_usage=used / usable,
            used_kv_tokens=used * engine.config.block_size,
            num_cached_tokens=len(engine.find_hits(request)) * engine.config.block_size,
            num_sent=len(replica.rows),
            last_sent_ts=replica.last_sent_ts,
            random_rank=self.ranks[row][replica.index] if self.ranks else 0,
        )

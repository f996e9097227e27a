"""Who runs candidates on tuning cells: child processes, or whatever has the same interface."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Protocol

from queuesmith.backends import Backend
from queuesmith.evolve.config import EvolveConfig
from queuesmith.evolve.sandbox.remote import RemoteSandbox
from queuesmith.evolve.sandbox.sandbox import Cell as SandboxCell
from queuesmith.evolve.sandbox.sandbox import Sandbox, SimulationJob
from queuesmith.evolve.scoring.cells import Cell, CellResult
from queuesmith.evolve.scoring.scale import Limit, Scale, StopRule, Traffic, hopeless


@dataclass(frozen=True)
class Evaluated:
    """What running a candidate showed: `status` is ok, stopped, or what went wrong and `reason`."""

    status: str
    reason: str
    results: Mapping[Cell, CellResult]
    cpu_seconds: float = 0.0


class Evaluator(Protocol):
    """Runs candidates on tuning cells."""

    def evaluate(
        self, texts: Sequence[str], windows: Sequence[int], limits: Sequence[Limit]
    ) -> Iterator[Evaluated]:
        """Yield one outcome for each text, in order; the same for any number of workers.

        Status is ok with results of all the windows' cells, or stopped with those that showed that
        the text's limit is out of reach.
        """
        ...


#: Makes what runs the candidates: from traffic and scale to an evaluator, for a ``with``.
EvaluatorFactory = Callable[[EvolveConfig, Traffic, Scale, int, ExitStack], Evaluator]


def make_sandbox(
    config: EvolveConfig,
    traffic: Traffic,
    scale: Scale,
    workers: int,
    stack: ExitStack,
    backend: Backend | None = None,
) -> Evaluator:
    """Make child processes that hold the tuning windows, and nothing else of the traffic.

    They are on this machine, since threads and processes would come to the same, unless the
    backend is a cluster.
    """
    job = SimulationJob(cells_of(traffic), stop=StopRule(scale), given_read=traffic.keep)
    limits = asdict(config.sandbox)
    if backend is not None and backend.is_cluster:
        return SandboxEvaluator(RemoteSandbox(job, backend, **limits), scale, stack)
    return SandboxEvaluator(Sandbox(job, workers=workers, **limits), scale, stack)


def cells_of(traffic: Traffic, order: Sequence[int] | None = None) -> tuple[SandboxCell, ...]:
    """Return cells of some traffic as child processes take them; all in their order by default."""
    return tuple(
        SandboxCell(traffic.workloads[index], traffic.config, traffic.step_time)
        for index in (range(len(traffic.workloads)) if order is None else order)
    )


class SandboxEvaluator:
    """Runs candidates in child processes, which start with the first of them."""

    def __init__(self, sandbox: Sandbox | RemoteSandbox, scale: Scale, stack: ExitStack) -> None:
        self._sandbox, self._scale, self._stack = sandbox, scale, stack
        self._started = False

    def evaluate(
        self, texts: Sequence[str], windows: Sequence[int], limits: Sequence[Limit]
    ) -> Iterator[Evaluated]:
        """Yield one outcome for each text, in order."""
        if texts and not self._started:
            self._stack.enter_context(self._sandbox)
            self._started = True
        cells = self._scale.cells_of(windows)
        asked = [self._scale.cells[index] for index in cells]
        asking = [None if limit == Limit() else limit for limit in limits]
        outcomes = self._sandbox.run(texts, cells=cells, limits=asking) if texts else iter(())
        for outcome, limit in zip(outcomes, limits, strict=True):
            results = {
                cell: CellResult(values)
                for cell, values in zip(asked, outcome.values, strict=False)
            }
            status, reason = str(outcome.status), outcome.reason
            if status == "ok" and len(results) < len(asked):
                status = "stopped"
                if not hopeless(self._scale.bound(results, windows), limit):
                    # What comes out of a candidate's process is not to be believed.
                    status, reason, results = "crash", "it stopped without having to", {}
            yield Evaluated(status, reason, results, outcome.cpu_seconds)

"""The two sides of a measurement: vLLM as it is, and vLLM with a policy.

An arm serves a workload on a fresh engine and says what became of each request and how fast the
machine was meanwhile: on the virtual clock, on a server that it starts itself, or on one that runs.
"""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from queuesmith.config import EngineConfig
from queuesmith.deploy.local_server import LocalServer
from queuesmith.deploy.replay import Served, Server, replay
from queuesmith.deploy.steps import StepWork
from queuesmith.documents import parse_json, read_file
from queuesmith.engine.presets.step_time import StepTime
from queuesmith.engine.workload import Workload, prepare
from queuesmith.errors import ConfigError
from queuesmith.policies import Policy
from queuesmith.traces.trace import Trace

#: Seconds to wait for a server to have nothing left of earlier requests.
IDLE_TIMEOUT = 120.0
STEPS_METRIC = "vllm:iteration_tokens_total_count"
PRESENT_METRICS = ("vllm:num_requests_running", "vllm:num_requests_waiting")


@dataclass(frozen=True)
class Run:
    """One arm serving one workload once.

    Attributes
    ----------
    served : list of Served
    num_steps : int
        0 where nobody counted.
    step_seconds : float
        That these steps took; NaN where nobody knows.
    expected_seconds : float
        That they would have taken by the step-time model; NaN without one.
    notes : tuple of str
    """

    served: list[Served]
    num_steps: int = 0
    step_seconds: float = math.nan
    expected_seconds: float = math.nan
    notes: tuple[str, ...] = ()


class Arm(Protocol):
    """One side of the measurement."""

    def run(self, workload: Workload, seed: int, folder: Path) -> Run:
        """Serve a workload on a fresh engine; `seed` is of the prompts."""


@dataclass(frozen=True)
class VirtualArm:
    """vLLM's scheduler on the clock of the step-time model; nothing depends on the machine."""

    policy: Policy | None
    config: EngineConfig
    step_time: StepTime

    def run(self, workload: Workload, seed: int, folder: Path) -> Run:
        """Serve a workload."""
        from queuesmith.deploy.virtual_clock import serve_on_virtual_clock

        served, seconds, steps = serve_on_virtual_clock(
            workload, self.policy, self.config, self.step_time
        )
        return Run(served, steps, seconds, seconds)


@dataclass(frozen=True)
class RunningArm:
    """A server that somebody else has started, and that serves nobody else meanwhile."""

    server: Server
    model: str

    def run(self, workload: Workload, seed: int, folder: Path) -> Run:
        """Serve a workload, once the server has nothing else to do."""
        notes = [] if wait_until_idle(self.server) else ["the server was never idle before"]
        failure = warm_up(self.server, self.model, seed)
        if failure:
            return not_sent(workload, failure)
        before = self.server.metrics()
        served = replay(self.server, self.model, workload, seed=seed)
        steps = self.server.metrics().get(STEPS_METRIC, 0) - before.get(STEPS_METRIC, 0)
        if STEPS_METRIC not in before or steps <= 0:
            notes.append("the server counts no steps, so ms per step is unknown")
            return Run(served, notes=tuple(notes))
        return Run(served, int(steps), busy_seconds(served), notes=tuple(notes))


@dataclass(frozen=True)
class OwnArm:
    """A server that is started for each run and stopped after it.

    Attributes
    ----------
    model, engine_args : str
    environment : mapping of str to str
        Names the policy, if any.
    step_time : StepTime or None
        What steps should take here, if it is known.
    """

    model: str
    engine_args: str
    environment: Mapping[str, str]
    step_time: StepTime | None
    timeout: float = 600.0

    def run(self, workload: Workload, seed: int, folder: Path) -> Run:
        """Start a server, serve a workload, stop the server."""
        with LocalServer(
            self.model, self.engine_args, self.environment, folder, self.timeout
        ) as own:
            model = own.server.find_model()
            failure = warm_up(own.server, model, seed)
            if failure:
                return not_sent(workload, failure)
            num_before = len(read_steps(own.steps)[1])
            served = replay(own.server, model, workload, seed=seed)
        records = read_steps(own.steps)[1][num_before:]
        seconds = [record["seconds"] for record in records]
        expected = math.nan
        if self.step_time is not None:
            expected = sum(self.step_time.seconds(*work_of(record)) for record in records)
        return Run(served, len(records), sum(seconds), expected)


def warm_up(server: Server, model: str, seed: int) -> str:
    """Send one short request; return what went wrong, or nothing."""
    trace = Trace([0.0], prompt_len=[64], output_len=[8])
    workload = prepare(trace, EngineConfig(), np.full(1, math.nan))
    return replay(server, model, workload, seed=seed + (1 << 16))[0].error


def not_sent(workload: Workload, why: str) -> Run:
    """Return a run in which the warm-up failed, so that nothing was sent."""
    return Run(
        [
            Served(row, arrival, error=f"not sent: the warm-up request failed: {why}")
            for row, arrival in enumerate(workload.trace.arrival_time.tolist())
        ]
    )


def wait_until_idle(server: Server) -> bool:
    """Wait for a server to have no requests; tell whether it came to that, or does not say."""
    give_up_at = time.monotonic() + IDLE_TIMEOUT
    while time.monotonic() < give_up_at:
        metrics = server.metrics()
        if not any(metrics.get(name, 0.0) for name in PRESENT_METRICS):
            return True
        time.sleep(0.5)
    return False


def busy_seconds(served: list[Served]) -> float:
    """Return for how long at least one request was there, as the client saw it.

    >>> busy_seconds([Served(0, 0, 0.0, 1.0, 2.0, 5), Served(1, 1, 1.0, 2.0, 3.0, 5)])
    3.0
    """
    busy, end = 0.0, -math.inf
    for one in sorted(served, key=lambda one: one.sent):
        if math.isnan(one.last_token_ts):
            continue
        busy += max(one.last_token_ts - max(one.sent, end), 0.0)
        end = max(end, one.last_token_ts)
    return busy


def read_steps(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the header and the steps of a record; a last line cut short is left out.

    Raises
    ------
    ConfigError
        If the file is not a record of steps.
    """
    wrong = f"{path} is not a record of steps"
    try:
        lines = read_file(path).decode("utf-8").splitlines(keepends=True)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{wrong}: {getattr(error, 'strerror', None) or error}") from None
    header: dict[str, Any] = {}
    steps = []
    for number, line in enumerate(lines, start=1):
        try:
            record = parse_json(line)
            if "engine" in record:
                header = record
                continue
            work_of(record)
            if not 0 < float(record["seconds"]) < math.inf:
                raise ValueError("seconds must be positive")
            steps.append(record)
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            if number == len(lines) and not line.endswith("\n"):
                break
            raise ConfigError(f"{wrong}: line {number}: {error}") from None
    return header, steps


def work_of(record: Mapping[str, Any]) -> StepWork:
    """Return what a recorded step computed."""
    return StepWork(
        int(record["num_prefill_tokens"]),
        int(record["num_decodes"]),
        int(record["kv_tokens"]),
        float(record["attention"]),
    )

"""Both engines behind one call: decisions that are checked by hand must be those of each."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

from queuesmith.config import EngineConfig
from queuesmith.engine import prepare, simulate, simulate_reference
from queuesmith.engine.presets.step_time import StepTime
from queuesmith.engine.reference.agreement import first_difference
from queuesmith.engine.reference.engine import ReferenceEngine
from queuesmith.engine.result import Result
from queuesmith.policies import get_policy
from queuesmith.policies.policy import Policy, load_text
from queuesmith.windows.predictions import OutputLengthKnowledge

#: Every step takes one second, so that step k starts at second k while nothing is idle.
ONE_SECOND = StepTime(a=1.0)


class Step(NamedTuple):
    """What one step decided."""

    start: float
    tokens: dict[int, int]
    preempted: list[int]
    free: int


@dataclass(frozen=True)
class Decisions:
    """Steps that kernel and reference agree on, and both runs as they ended."""

    steps: list[Step]
    result: Result
    reference: ReferenceEngine

    @property
    def tokens(self) -> list[dict[int, int]]:
        return [step.tokens for step in self.steps]

    @property
    def rows(self) -> list[int]:
        """The one row that each step ran."""
        assert all(len(step.tokens) == 1 for step in self.steps)
        return [row for step in self.steps for row in step.tokens]

    @property
    def preempted(self) -> list[list[int]]:
        return [step.preempted for step in self.steps]

    @property
    def starts(self) -> list[float]:
        return [step.start for step in self.steps]

    @property
    def free(self) -> list[int]:
        return [step.free for step in self.steps]


def recorded_steps(result: Result) -> list[Step]:
    """Take the recording of a run apart."""
    steps = []
    entry = preemption = 0
    for row in result.recording.steps:
        tokens = dict(result.recording.tokens[entry : row.end_entry].tolist())
        preempted = result.recording.preemptions[preemption : row.end_preemption].tolist()
        steps.append(Step(float(row.start), tokens, preempted, int(row.num_free_blocks)))
        entry, preemption = row.end_entry, row.end_preemption
    return steps


@pytest.fixture(scope="session")
def steps_of() -> Callable[[Result], list[Step]]:
    return recorded_steps


@pytest.fixture(scope="session")
def policy_from() -> Callable[[str], Policy]:
    """Make a policy of some text."""
    return lambda text, name="written": load_text(name, text, Path(f"{name}.py"))


@pytest.fixture(scope="session")
def decide() -> Callable[..., Decisions]:
    """Run both engines on a trace and return what they decided, which must be the same.

    So must be what comes of it when the kernel jumps, which it does not while it records.
    """

    def run(
        trace,
        config: EngineConfig,
        policy="fcfs",
        *,
        step_time: StepTime = ONE_SECOND,
        output_length: str = "exact",
        horizon: float = float("inf"),
    ) -> Decisions:
        policy = get_policy(policy)
        options = {
            "config": config,
            "step_time": step_time,
            "output_length": output_length,
            "horizon": horizon,
        }
        result = simulate(trace, policy, **options, record=True)
        jumped = simulate(trace, policy, **options)
        assert jumped.requests.tobytes() == result.requests.tobytes()
        assert jumped.itl_counts.tobytes() == result.itl_counts.tobytes()
        assert jumped.num_steps == result.num_steps

        config = config.override(policy.engine)
        predicted = OutputLengthKnowledge.parse(output_length).predict(trace, 0)
        workload = prepare(trace, config, predicted)
        reference = simulate_reference(workload, policy, config, step_time, horizon=horizon)
        assert first_difference(result, reference) == ""
        return Decisions(recorded_steps(result), result, reference)

    return run

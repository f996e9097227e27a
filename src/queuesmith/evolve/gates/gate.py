"""What came of one gate: passed, fell short or not run, with what it saw."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: Every gate in its order, with its name.
GATES = {
    "G0": "form",
    "G1": "behaviour",
    "G2": "tuning",
    "G3": "validation",
    "G4": "control",
    "G5": "physics",
    "G6": "held-out",
    "G7": "real",
}


@dataclass(frozen=True)
class Gate:
    """What came of one gate."""

    #: gate, name: a key of ``GATES`` and its value.
    gate: str
    name: str
    passed: bool | None  # none when it was not run
    sentence: str  # why, in one sentence
    #: What it was decided on, as JSON can hold it.
    saw: Mapping[str, Any] = field(default_factory=dict)

    @property
    def outcome(self) -> str:
        """Say how it ended: passed, fell short, not run."""
        return {True: "passed", False: "fell short", None: "not run"}[self.passed]


def make_gate(gate: str, passed: bool | None, sentence: str, **saw: Any) -> Gate:
    """Return a gate under its name."""
    return Gate(gate, GATES[gate], passed, sentence, saw)


def not_run(gate: str, why: str) -> Gate:
    """Return a gate that could not be run."""
    return make_gate(gate, None, why)


def finite(value: float) -> float:
    """Put what is undefined below all else."""
    return -math.inf if math.isnan(value) else value

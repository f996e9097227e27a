"""How a policy stands beside FCFS in every configuration: the goal's gain, and broken guards."""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from queuesmith import numbers
from queuesmith.evaluation import judge
from queuesmith.evaluation.goals import Goal, Guard
from queuesmith.evaluation.judge import BrokenGuard, base_values
from queuesmith.evaluation.samples import Samples
from queuesmith.evaluation.statistics import STATISTICS, draw_weights
from queuesmith.evolve.scoring.cells import Configuration
from queuesmith.stats import holm
from queuesmith.stats.intervals import Draws


@dataclass(frozen=True)
class Difference:
    """A gain, or one less another, with the 95 % interval over windows; above 0 is better."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, draws: Draws) -> "Difference":
        """Read it from an estimate and its draws."""
        return cls(draws.estimate, *draws.interval())

    @property
    def sure(self) -> bool:
        """Whether it is above 0, and its interval too; not when the interval is unknown."""
        return self.value > 0 and self.low > 0

    def __str__(self) -> str:
        return f"{self.value:+.3f} ({self.low:+.3f} to {self.high:+.3f})"


@dataclass(frozen=True, eq=False)
class Beside:
    """A policy beside FCFS on the same windows."""

    goal: Goal
    guards: tuple[Guard, ...]
    #: Without draws, which would take megabytes.
    configurations: Mapping[Configuration, judge.Beside]
    #: The mean over configurations of the goal's gain, a log ratio or of a share a difference;
    #: above 0 is better. Draws are the same ones for every policy, so that two gains compare as
    #: pairs.
    gain: Draws

    @property
    def broken(self) -> list[BrokenGuard]:
        """Every guard that is broken in any configuration."""
        return [one for each in self.configurations.values() for one in each.broken]

    @property
    def clean(self) -> bool:
        """Whether no guard is broken."""
        return not self.broken

    @property
    def reasons(self) -> list[str]:
        """Say which guards are broken, and by how much."""
        return [tell(one) for one in self.broken]

    def p_values(self) -> dict[Configuration, float]:
        """Return the sign tests of the goal, adjusted over the loads of each source (Holm)."""
        found = {key: one.p_value for key, one in self.configurations.items()}
        for source in {key.source for key in found}:
            tested = [
                key for key, value in found.items() if key.source == source and value == value
            ]
            adjusted = holm([found[key] for key in tested]).tolist()
            found |= dict(zip(tested, adjusted, strict=True))
        return found


class Reference:
    """What policies are laid beside: FCFS in every configuration, and what is bred for."""

    def __init__(
        self, samples: Mapping[Configuration, Samples], goal: Goal, guards: Sequence[Guard]
    ) -> None:
        self.samples, self.goal, self.guards = samples, goal, tuple(guards)
        # Loads of a source are the same windows with time scaled, and share their draws; sources
        # are drawn independently.
        self._weights = {
            key: draw_weights(len(base.windows), [0, zlib.crc32(key.source.encode())])
            for key, base in samples.items()
        }
        self._base = {key: base_values(base, self._weights[key]) for key, base in samples.items()}

    def lay_beside(self, samples: Mapping[Configuration, Samples]) -> Beside:
        """Lay a policy beside it; `samples` are of the same requests."""
        found, gains = {}, []
        for key, mine in samples.items():
            one = judge.beside(
                mine,
                self.samples[key],
                load=f"{key.source} at {key.load}",
                goal=self.goal,
                guards=self.guards,
                weights=self._weights[key],
                base=self._base[key],
            )
            gains.append(one.draws[self.goal.name])
            found[key] = replace(one, draws={})
        return Beside(self.goal, self.guards, found, self._mean(gains))

    def _mean(self, gains: Sequence[Draws]) -> Draws:
        sign = -1.0 if self.goal.statistic.better == "lower" else 1.0
        least = min(len(part.values) for part in gains)  # no draws where there is a single window
        with np.errstate(invalid="ignore"):
            mean = np.mean([part.values[:least] for part in gains], axis=0)
        return Draws(sign * mean + 0.0, min(part.num_units for part in gains))


def less(one: Draws, other: Draws) -> Draws:
    """Subtract a gain from another of the same windows."""
    with np.errstate(invalid="ignore"):
        return Draws(one.values - other.values, one.num_units)


def tell(broken: BrokenGuard) -> str:
    """Say how a guard is broken.

    Examples
    --------
    >>> from queuesmith.evaluation.judge import Change
    >>> change = Change(2.4, 2.0, 0.2, 0.1, 0.3)
    >>> tell(BrokenGuard("ttft_p99", "p99 TTFT", "azure at heavy", change, 0.15, True))
    'p99 TTFT 2.40 s beside 2.00 s, +20 % of at most +5 % (azure at heavy)'
    """
    change, statistic = broken.change, STATISTICS.get(broken.guard)
    unit = "s" if statistic is None else "" if statistic.unit == "share" else statistic.unit
    value, base = (
        f"{numbers.number(each)} {unit}".strip() for each in (change.value, change.reference)
    )
    sign = 1 if statistic is None or statistic.better == "lower" else -1
    worse = change.change * sign
    margin = (worse - broken.excess) * sign
    if broken.relative:
        by = f"{change.change:+.0%} of at most {margin:+.0%}".replace("%", " %")
    else:
        by = f"{100 * change.change:+.1f} points of at most {100 * margin:+.1f}"
    return f"{broken.label} {value} beside {base}, {by} ({broken.load})"


def gain_of(beside: judge.Beside, goal: Goal) -> float:
    """Return the goal's gain in one configuration: a log ratio, or of a share the difference."""
    statistic = goal.statistic
    change = beside.changes[statistic.name].change
    with np.errstate(divide="ignore"):
        return -statistic.worse(float(np.log1p(change)) if statistic.relative else change) + 0.0


def guard_rows(beside: judge.Beside, guards: Sequence[Guard]) -> list[dict[str, Any]]:
    """Return one row for each guard, as JSON can hold it; classes are told where they break."""
    broken = {one.guard: one for one in beside.broken}
    rows = []
    for guard in guards:
        change = beside.changes.get(guard.name)
        if change is None:
            if guard.name not in broken:
                continue
            change = broken[guard.name].change
        rows.append(
            {
                "guard": guard.name,
                "margin": guard.margin,
                "value": change.value,
                "reference": change.reference,
                "change": change.change,
                "low": change.low,
                "high": change.high,
                "broken": guard.name in broken,
            }
        )
    return rows

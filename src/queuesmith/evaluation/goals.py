"""What is wanted, and what must not get worse on the way.

A goal orders policies. Guards are always on: a policy that breaks one is never recommended and
stands below all that break none. ``docs/background/metrics.md`` gives the reasons for the margins.
"""

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from queuesmith.config import Slo
from queuesmith.errors import ConfigError, did_you_mean
from queuesmith.evaluation.statistics import (
    E2EL_MEAN,
    GOODPUT,
    SLO_ATTAINMENT,
    STATISTICS,
    TPOT_MEAN,
    TTFT_MEAN,
    Statistic,
)

#: Changes within this share of the reference, or points of a share, are a tie.
MARGIN = 0.01


@dataclass(frozen=True)
class Goal:
    """What a policy is chosen by.

    Attributes
    ----------
    name : str
        As ``--goal`` spells it.
    statistic : Statistic
    """

    name: str
    statistic: Statistic

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle it by its name, since a statistic holds functions that have none."""
        return _by_name, (self.name,)

    @property
    def needs_slo(self) -> bool:
        """Whether it is undefined without an SLO."""
        return self.statistic in (SLO_ATTAINMENT, GOODPUT)


def _by_name(name: str) -> Goal:
    return GOALS[name]


GOALS: dict[str, Goal] = {
    name: Goal(name, statistic)
    for name, statistic in {
        "ttft": TTFT_MEAN,
        "e2el": E2EL_MEAN,
        "slo": SLO_ATTAINMENT,
        "goodput": GOODPUT,
        "tpot": TPOT_MEAN,
    }.items()
}
DEFAULT_GOAL = "ttft"


def get_goal(name: str, slo: Slo | None) -> Goal:
    """Return a goal by name.

    Raises
    ------
    ConfigError
        If there is none of that name, or it needs an SLO and there is none.
    """
    if name not in GOALS:
        raise ConfigError(
            f"there is no goal {name!r}.{did_you_mean(name, GOALS)} Known: {', '.join(GOALS)}"
        )
    goal = GOALS[name]
    if goal.needs_slo and not has_limits(slo):
        raise ConfigError(
            f"the goal {name} needs an SLO with at least one limit: --slo ttft=1.0,tpot=0.05"
        )
    return goal


def has_limits(slo: Slo | None) -> bool:
    """Tell whether an SLO limits anything."""
    return slo is not None and any(limit is not None for limit in (slo.ttft, slo.tpot, slo.e2el))


@dataclass(frozen=True)
class Guard:
    """A statistic that must not get worse than the reference's by more than a margin.

    It is broken when the change is for the worse by more than the margin and by more than `least`,
    and its 95 % interval leaves no doubt that it is for the worse.

    Attributes
    ----------
    name : str
        A statistic of :data:`STATISTICS`, ``priority_ttft`` or ``client_ttft``.
    margin : float
        Share of the reference's value; of a share, the difference: 0.01 is one point.
    least : float
        In the statistic's own unit: below it nobody would notice.
    """

    name: str
    margin: float
    least: float = 0.0


#: The last two are of each priority class and each client, where a trace says which is which.
GUARDS: tuple[Guard, ...] = (
    Guard("ttft_p99", 0.05),
    Guard("ttft_p999", 0.25, least=1.0),
    Guard("ttft_max", 0.25, least=1.0),
    Guard("e2el_mean", 0.01),
    Guard("e2el_p99", 0.10),
    Guard("tpot_mean", 0.10, least=0.001),
    Guard("tpot_p99", 0.10, least=0.001),
    Guard("itl_p99", 0.10, least=0.001),
    Guard("output_throughput", 0.01),
    Guard("slo_attainment", 0.01),
    Guard("slowdown_max", 0.25, least=1.0),
    Guard("recompute_tax", 0.05),
    Guard("served", 0.001),
    Guard("priority_ttft", 0.10, least=0.01),
    Guard("client_ttft", 0.25, least=0.1),
)
_CLASSES = {"priority_ttft": "mean TTFT of a priority class", "client_ttft": "of a client"}

#: Requests, over all windows, from which on a p99.9 is more than the largest value.
LEAST_FOR_P999 = 1_000


def guard_label(name: str) -> str:
    """Return a guard's name as sentences have it."""
    return STATISTICS[name].label if name in STATISTICS else _CLASSES[name]


def parse_guards(texts: Sequence[str]) -> tuple[Guard, ...]:
    """Read changes to the default guards.

    Parameters
    ----------
    texts : sequence of str
        Each ``NAME=MARGIN``, ``NAME=off``, or the path of a ``.toml`` file with such entries.

    Raises
    ------
    ConfigError
        If a name is no guard or a margin no number of at least 0.

    Examples
    --------
    >>> [guard.margin for guard in parse_guards(["e2el_p99=0.2"]) if guard.name == "e2el_p99"]
    [0.2]
    """
    guards = {guard.name: guard for guard in GUARDS}
    for text in texts:
        if text.endswith(".toml"):
            entries: Mapping[str, Any] = _read(Path(text))
        else:
            name, equals, value = (part.strip() for part in text.partition("="))
            if not equals:
                raise ConfigError(
                    f"--guard must look like e2el_p99=0.2 or itl_p99=off, or name a .toml file, "
                    f"got {text!r}"
                )
            entries = {name: value}
        for name, value in entries.items():
            known = [guard.name for guard in GUARDS]
            if name not in known:
                raise ConfigError(
                    f"there is no guard {name!r}.{did_you_mean(name, known)} "
                    f"Known: {', '.join(known)}"
                )
            if value in ("off", False):
                guards.pop(name, None)
                continue
            default = next(guard for guard in GUARDS if guard.name == name)
            guards[name] = replace(default, margin=_margin(name, value))
    return tuple(guards.values())


def _margin(name: str, value: Any) -> float:
    try:
        margin = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        margin = math.nan
    if not 0 <= margin < 1e6:
        raise ConfigError(
            f"the margin of guard {name} must be a share of at least 0 such as 0.05, or off, got "
            f"{value!r}"
        )
    return margin


def _read(path: Path) -> dict[str, Any]:
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"guards cannot be read from {path}: {error}") from None
    return found

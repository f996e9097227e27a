"""Broken guards, values and loads in words."""

from collections.abc import Sequence

from queuesmith import numbers
from queuesmith.evaluation.evaluate import Offered
from queuesmith.evaluation.judge import BrokenGuard
from queuesmith.evaluation.statistics import STATISTICS

#: Guards in the order in which a sentence names them: what costs everybody comes first.
_WORST_FIRST = (
    "served",
    "output_throughput",
    "e2el_mean",
    "slo_attainment",
    "ttft_p99",
    "ttft_max",
    "ttft_p999",
)


def severity(broken: BrokenGuard) -> tuple[int, str]:
    """Order broken guards as sentences name them."""
    place = _WORST_FIRST.index(broken.guard) if broken.guard in _WORST_FIRST else len(_WORST_FIRST)
    return place, broken.load


def named(broken: Sequence[BrokenGuard]) -> str:
    """Name the worst case of each guard, the gravest guards first; at most four."""
    worst: dict[str, BrokenGuard] = {}
    for one in sorted(broken, key=lambda each: -each.excess):
        worst.setdefault(one.guard, one)
    ordered = sorted(worst.values(), key=severity)
    told = [describe_broken(one) for one in ordered[:4]]
    if len(ordered) > 4:
        told.append(f"{len(ordered) - 4} more")
    return "; ".join(told)


def describe_broken(one: BrokenGuard) -> str:
    """Say which statistic went from what to what, at which load."""
    before, after = (
        describe_value(one.guard, value) for value in (one.change.reference, one.change.value)
    )
    if before.partition(" ")[2] == after.partition(" ")[2]:
        before = before.partition(" ")[0]
    return f"{one.label} {before} -> {after} at {one.load}"


def describe_value(name: str, value: float) -> str:
    """Return a statistic's value with its unit."""
    statistic = STATISTICS.get(name)
    unit = "s" if statistic is None else statistic.unit
    if unit == "share":
        return numbers.share(value)
    if unit == "s" and abs(value) < 1:
        return f"{numbers.number(value, 1000)} ms"
    return f"{numbers.number(value)} {'times' if unit == 'x' else unit}"


def describe_load(load: Offered) -> str:
    """Return a load as name, rho and requests/s."""
    return f"{load.name} (rho {load.rho:.2f}, {numbers.number(load.rate)}/s)"

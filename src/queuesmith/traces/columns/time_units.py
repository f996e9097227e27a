"""In which unit a log gives its times: by the field's name, by size, or as the user says."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Self

import numpy as np
from numpy.typing import NDArray

from queuesmith.errors import ConfigError, did_you_mean

#: Ticks per second of every unit that times may be given in.
UNITS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}

_SPELLED = {
    "s": ("s", "sec", "secs", "second", "seconds"),
    "ms": ("ms", "msec", "msecs", "millis", "millisecond", "milliseconds"),
    "us": ("us", "usec", "usecs", "micros", "microsecond", "microseconds"),
    "ns": ("ns", "nsec", "nsecs", "nano", "nanos", "nanosecond", "nanoseconds"),
}
_UNIT_OF = {spelling: unit for unit, spellings in _SPELLED.items() for spelling in spellings}
#: ``ttft_ms``, ``Latency (ms)``, ``latencyMs``, ``startTimeUnixNano``; a final S alone ends words.
_ENDING = re.compile(
    rf"(?P<stem>.*?)(?:[ _.(\[-]+(?P<low>(?i:{'|'.join(_UNIT_OF)}))[)\]]?"
    r"|(?<=[a-z])(?P<camel>Ms|Us|Ns|Nanos?|Micros|Millis|Seconds))",
)
_LONGEST_NAME = 300
#: From 2001 to 2096, in seconds since 1970.
_EPOCH = (1e9, 4e9)
#: The share of times that must lie there, since some may be damaged.
_MOST = 0.9
#: No log is longer; times that only look like ones since 1970 are further apart.
_LONGEST = 10 * 366 * 86_400.0


@lru_cache(maxsize=4096)
def unit_of(name: str) -> str | None:
    """Return the unit that ends a field's name, None where none does.

    Examples
    --------
    >>> [unit_of(name) for name in ("ttft_ms", "usage.latencyMs", "startTimeUnixNano", "ts", "e2e")]
    ['ms', 'ms', 'ns', None, None]
    """
    ending = _ending(name)
    return _UNIT_OF[(ending["low"] or ending["camel"]).lower()] if ending else None


@lru_cache(maxsize=4096)
def without_unit(name: str) -> str:
    """Return a field's name without the unit that ends it.

    Examples
    --------
    >>> without_unit("arrival_time_us"), without_unit("ts")
    ('arrival_time', 'ts')
    """
    ending = _ending(name)
    return ending["stem"] if ending else name


def _ending(name: str) -> re.Match[str] | None:
    # The pattern takes the square of the length; no field has such a name.
    return _ENDING.fullmatch(name) if len(name) <= _LONGEST_NAME else None


def units_of(names: Mapping[str, str]) -> dict[str, str]:
    """Return the units that the names of a file's fields tell, by our column's name."""
    return {ours: unit for ours, there in names.items() if (unit := unit_of(there)) is not None}


def epoch_unit(times: NDArray[np.float64]) -> str | None:
    """Return the unit in which most of some numbers are times since 1970, None if in none.

    Examples
    --------
    >>> epoch_unit(np.array([1.7672e12, 1.7673e12])), epoch_unit(np.array([0.0, 4.5, 1e3]))
    ('ms', None)
    """
    for unit, per_second in UNITS.items():
        seconds = times / per_second
        inside = seconds[(seconds >= _EPOCH[0]) & (seconds < _EPOCH[1])]
        if len(inside) and len(inside) >= _MOST * len(times):
            first, last = np.quantile(inside, [0.05, 0.95])
            return unit if last - first <= _LONGEST else None
    return None


@dataclass(frozen=True)
class GivenUnits:
    """What the user says: of all columns whose name tells no unit, and of single ones.

    Attributes
    ----------
    general : str or None
    columns : mapping of str to str
        By our name; these are beyond doubt.
    """

    general: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str | None, known: Iterable[str]) -> Self:
        """Read ``ms``, or ``arrival_time=us,ttft=ms``; `known` are our columns of times.

        Raises
        ------
        ConfigError
            If there is no such unit or column.
        """
        if text is None:
            return cls()
        known = tuple(known)
        general, columns = None, {}
        for part in text.split(","):
            name, equals, unit = (piece.strip() for piece in part.rpartition("="))
            if unit not in UNITS:
                raise ConfigError(
                    f"unit must be one of {', '.join(UNITS)}, or say it of single columns as in "
                    f"arrival_time=us,ttft=ms; got {text!r}"
                )
            if equals and name not in known:
                raise ConfigError(
                    f"unit: there is no column of times {name!r}.{did_you_mean(name, known)} "
                    f"Known: {', '.join(known)}"
                )
            if equals:
                columns[name] = unit
            else:
                general = unit
        return cls(general, columns)

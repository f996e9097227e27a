"""The times of a file in seconds, each column in its own unit, with what had to be assumed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from queuesmith.errors import ConfigError, TraceError
from queuesmith.traces.columns.time_units import UNITS, GivenUnits, epoch_unit
from queuesmith.traces.columns.values import Times, read_numbers, read_times
from queuesmith.traces.measured import INSTANTS, LATENCIES
from queuesmith.traces.trace import Guess

#: Our columns that hold instants, and those that hold durations.
CLOCKED = ("arrival_time", "deadline", "abort_time", *INSTANTS.values())
LASTING = ("think_time", *LATENCIES)

_WORDS = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
#: With fewer requests a strange pace may be chance.
_MIN_FOR_PACE = 10
#: Seconds between two requests, beyond which an assumed unit is refused, and any unit but a given.
_SLOWEST, _FASTEST = 3_600.0, 1e-6

#: Where a unit comes from: a date, the user, the field's name, the size of times since 1970, the
#: format, or nowhere.
How = Literal["dated", "given", "named", "size", "format", "assumed"]


@dataclass(frozen=True)
class Clock:
    """A column of instants in some unit."""

    times: Times
    unit: str
    how: How

    @property
    def per_second(self) -> int:
        """Ticks in a second."""
        return UNITS[self.unit]

    @property
    def seconds(self) -> NDArray[np.float64]:
        """Every instant, (num_rows,) float64."""
        return np.asarray(self.times.ticks / self.per_second, np.float64)


class Clocks:
    """The columns of times of one file.

    Parameters
    ----------
    name : str
        The file's, for errors.
    columns : mapping of str to pyarrow.Array
        By our name; others than those of times are left alone.
    unit : str, optional
        What the user says, as `queuesmith.load_trace` takes it.
    units : mapping of str to str, optional
        What names of fields or the format say of single columns, beyond doubt.
    own_unit : str, optional
        What the format says of instants, unless the user says otherwise.

    Raises
    ------
    ConfigError
        If there is no such unit, or it contradicts the name of the arrivals' field.
    TraceError
        If arrivals hold neither numbers nor dates.
    """

    def __init__(
        self,
        name: str,
        columns: Mapping[str, pa.Array],
        unit: str | None,
        units: Mapping[str, str] | None = None,
        own_unit: str | None = None,
    ) -> None:
        self._name = name
        self._columns = columns
        self._given = GivenUnits.parse(unit, (*CLOCKED, *LASTING))
        self._units = dict(units or {})
        self._own_unit = own_unit
        self._assumed: dict[str, list[str]] = {}
        self._sized: dict[str, list[str]] = {}
        named = self._units.get("arrival_time")
        if (
            named is not None
            and self._given.general not in (None, named)
            and "arrival_time" not in self._given.columns
        ):
            raise ConfigError(
                f"{name}: the field of arrival_time is in {named} by its name or format, and "
                f"--unit says {self._given.general}; leave --unit out, or say of which columns it "
                f"is, as in --unit ttft={self._given.general}"
            )
        self.arrivals = self.instants("arrival_time")

    def instants(self, name: str) -> Clock:
        """Return a column of instants."""
        where = f"{self._name}: the column for {name}"
        times = read_times(where, self._columns[name])
        if times.dated:
            return Clock(times, "ns", "dated")
        unit, how = self._decide(name, times)
        return Clock(times, unit, how)

    def durations(self, name: str) -> tuple[NDArray[np.float64], How]:
        """Return a column of durations in seconds, and where its unit comes from."""
        where = f"{self._name}: the column for {name}"
        numbers = read_numbers(where, self._columns[name])
        unit, how = self._decide(name, None)
        return numbers / UNITS[unit], how

    def since_arrival(self, name: str) -> NDArray[np.float64] | None:
        """Return how long after its arrival an instant was; None on another clock than arrivals."""
        start, end = self.arrivals, self.instants(name)
        if start.times.dated != end.times.dated:
            return None
        if start.unit == end.unit:
            passed = (end.times.ticks - start.times.ticks) / start.per_second
        else:
            passed = end.seconds - start.seconds
        return np.where(end.times.known, passed, np.nan)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was assumed, and what was told by size."""
        notes = tuple(
            Guess(
                f"{_listed(names)} taken as {_WORDS[unit]}, since nothing in the file says; --unit "
                "says otherwise"
            )
            for unit, names in self._assumed.items()
        )
        for unit, names in self._sized.items():
            notes += (Guess(f"{_listed(names)} taken as {_WORDS[unit]} since 1970, by size"),)
        return notes

    def check_pace(self, seconds: NDArray[np.float64]) -> None:
        """Refuse arrivals that no log has.

        Parameters
        ----------
        seconds : (num_requests,) float64
            In order.

        Raises
        ------
        TraceError
            If the unit of arrivals makes them impossibly rare or dense.
        """
        how = self.arrivals.how
        if len(seconds) < _MIN_FOR_PACE or how in ("dated", "given"):
            return
        first, last = np.quantile(seconds, [0.1, 0.9])  # a few may be damaged
        gap = (last - first) / (0.8 * len(seconds))
        slow = how == "assumed" and gap > _SLOWEST
        if not slow and not 0 < gap < _FASTEST:
            return
        unit = self.arrivals.unit
        ticks = (seconds[-1] - seconds[0]) * UNITS[unit]
        named = "arrival_time=" if how in ("named", "size") else ""
        others = "".join(
            f"--unit {named}{other} ({_spelled(ticks / per_second)}), "
            for other, per_second in UNITS.items()
            if other != unit and _FASTEST < gap * UNITS[unit] / per_second < _SLOWEST
        )
        raise TraceError(
            f"{self._name}: {len(seconds):,} requests over {_spelled(seconds[-1] - seconds[0])} if "
            f"arrival_time is in {_WORDS[unit]}{', as assumed' if slow else ''}; say the unit: "
            f"{others}or --unit {named}{unit} if that is right"
        )

    def check_latencies(
        self, found: Mapping[str, NDArray[np.float64]], seconds: NDArray[np.float64]
    ) -> None:
        """Refuse latencies of an assumed unit that are longer than the log.

        Parameters
        ----------
        found : mapping of str to (num_requests,) float64
            Latencies whose unit is assumed, in seconds so far.
        seconds : (num_requests,) float64
            Arrivals, in order.

        Raises
        ------
        TraceError
            If most of one are longer than all arrivals took.
        """
        lasted = float(seconds[-1] - seconds[0])
        for name, values in found.items():
            known = values[np.isfinite(values)]
            if len(known) < _MIN_FOR_PACE or lasted == 0:
                continue
            usual = float(np.median(known))
            if usual > lasted:
                # Said of everything, it must not change what arrivals are in.
                alone = self.arrivals.how in ("dated", "size")
                named = "" if alone else f"{name}="
                raise TraceError(
                    f"{self._name}: half of all requests have a {name} above {_spelled(usual)}, "
                    f"longer than the whole log ({_spelled(lasted)}), if in seconds, as assumed; "
                    f"say the unit: --unit {named}ms or {named}us, or --unit {name}=s if that is "
                    "right"
                )

    def _decide(self, name: str, times: Times | None) -> tuple[str, How]:
        """Return a column's unit, and where it comes from; `times` are those of an instant."""
        if name in self._given.columns:
            return self._given.columns[name], "given"
        if name in self._units:
            return self._units[name], "named"
        sized = None if times is None else epoch_unit(times.ticks[times.known].astype(np.float64))
        if sized is not None:
            if sized != "s":
                _note(self._sized, sized, name)
            return sized, "size"
        if self._given.general is not None:
            return self._given.general, "given"
        if name == "arrival_time":
            if self._own_unit is not None:
                return self._own_unit, "format"
        elif name not in LATENCIES and self.arrivals.how in (
            ("format", "assumed") if times is None else ("named", "given", "format", "assumed")
        ):
            # Other instants are on the clock of arrivals, and so are pauses between them.
            return self.arrivals.unit, self.arrivals.how
        _note(self._assumed, "s", name)
        return "s", "assumed"


def _note(kind: dict[str, list[str]], unit: str, name: str) -> None:
    names = kind.setdefault(unit, [])
    if name not in names:
        names.append(name)


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _spelled(seconds: float) -> str:
    """Return a duration in a unit that a person reads."""
    for unit, size in (("days", 86_400), ("hours", 3_600), ("s", 1), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:,.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"

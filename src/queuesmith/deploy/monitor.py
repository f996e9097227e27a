"""What the plug-in tells the operator: counters on vLLM's metrics endpoint, logs, a record.

Counting is in plain integers; Prometheus is told about once a second, so that a step pays nothing.
"""

import functools
import json
import logging
from collections import Counter
from pathlib import Path
from typing import Any, TextIO

from queuesmith.errors import ConfigError

logger = logging.getLogger("vllm.queuesmith")  # below vLLM's own logger, so that it is shown

#: Bytes after which no more is recorded.
MAX_RECORD = 1 << 28
#: Requests named per list in a record.
MAX_NAMED = 8

_TOTALS = {
    "decisions": "Steps in which the policy was asked.",
    "reorderings": "Decisions that differ from first come, first served.",
    "displaced": "Running requests displaced by better waiting ones.",
    "held": "Times a running request was left out of a step.",
    "set_aside": "Times a waiting request was passed over since it was not admissible.",
    "overdue": "Times a waiting request went first because it had waited too long.",
}
_BUCKETS = (5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 5e-2)


class Monitor:
    """Counts decisions and faults of one policy.

    Parameters
    ----------
    policy : str
        Its name, a label of every metric.
    shadow : bool
        Whether decisions are not carried out, another label.
    max_faults : int
        After so many faults the policy is off.
    record : str
        File for decisions that differ from FCFS; empty for none.

    Attributes
    ----------
    on : bool
        Whether the policy is still asked.
    totals : Counter
        By the names of `_TOTALS`.
    faults : Counter
        By kind.
    """

    def __init__(self, policy: str, *, shadow: bool, max_faults: int, record: str = "") -> None:
        self.on = True
        self.totals: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self._max_faults = max_faults
        self._labels = {"policy": policy, "mode": "shadow" if shadow else "active"}
        self._overheads: list[float] = []
        self._told: Counter[str] = Counter()
        self._told_faults: Counter[str] = Counter()
        self._next_flush = 0.0
        self._exports = True
        self._path = Path(record) if record else None
        self._record: TextIO | None = None
        self._recorded = 0
        if self._path is not None:
            # Line by line, so that a server that is killed leaves whole lines.
            try:
                self._record = self._path.open("a", buffering=1, encoding="utf-8")
            except OSError as error:
                raise ConfigError(
                    f"{self._path} cannot be written: {error.strerror}; name another file to record"
                ) from None
        self.flush()

    def count(self, **amounts: int) -> None:
        """Add to the totals."""
        for name, amount in amounts.items():
            self.totals[name] += amount

    def overhead(self, seconds: float) -> None:
        """Note how long the plug-in took in a step in which the policy was asked."""
        self._overheads.append(seconds)

    def fault(self, kind: str, error: BaseException | None, *, fatal: bool = False) -> None:
        """Count a fault, log the first of its kind, and switch the policy off after too many."""
        self.faults[kind] += 1
        name = self._labels["policy"]
        if self.faults[kind] == 1:
            logger.error(
                "policy %s failed in %s; this step runs first come, first served. Further faults "
                "of this kind are only counted.",
                name,
                kind,
                exc_info=error,
            )
        if self.on and (fatal or self.faults.total() >= self._max_faults):
            self.on = False
            logger.error(
                "policy %s is switched off after %d fault(s); the server goes on first come, "
                "first served until it is restarted.",
                name,
                self.faults.total(),
            )
        self.flush()

    def write(self, **decision: Any) -> None:
        """Record a decision as one line of JSON."""
        if self._record is None:
            return
        line = json.dumps(decision) + "\n"
        try:
            self._recorded += self._record.write(line)
            if self._recorded > MAX_RECORD:
                raise OSError(f"more than {MAX_RECORD:,} bytes recorded")
        except OSError as error:
            logger.warning("nothing more is recorded in %s: %s", self._path, error)
            self.close()

    @property
    def records(self) -> bool:
        """Whether decisions are still written down."""
        return self._record is not None

    def close(self) -> None:
        """Tell Prometheus the last, and close the record."""
        self.flush()
        record, self._record = self._record, None
        if record is not None:
            record.close()

    def tick(self, now: float, idle: bool) -> None:
        """Tell Prometheus, about once a second and before the engine falls idle."""
        if idle or now >= self._next_flush:
            self._next_flush = now + 1.0
            self.flush()

    def flush(self) -> None:
        """Tell Prometheus what has been counted since the last time."""
        if not self._exports:
            return
        try:
            self._export()
        except Exception as error:  # a full disk, say; the server goes on
            self._exports = False
            logger.warning("metrics of policy %s end here: %s", self._labels["policy"], error)

    def _export(self) -> None:
        collectors = _collectors()
        if collectors is None:
            return
        for name in _TOTALS:
            collectors[name].labels(**self._labels).inc(self.totals[name] - self._told[name])
        self._told = self.totals.copy()
        for kind, number in self.faults.items():
            faults = collectors["faults"].labels(kind=kind, **self._labels)
            faults.inc(number - self._told_faults[kind])
        self._told_faults = self.faults.copy()
        collectors["policy_on"].labels(**self._labels).set(float(self.on))
        histogram = collectors["overhead_seconds"].labels(**self._labels)
        for seconds in self._overheads:
            histogram.observe(seconds)
        self._overheads.clear()


@functools.cache
def _collectors() -> dict[str, Any] | None:
    """Return Prometheus collectors by name, of which a process may have one each."""
    try:
        from prometheus_client import Counter as Total
        from prometheus_client import Gauge, Histogram
    except ImportError:
        return None
    labels = ("policy", "mode")
    found: dict[str, Any] = {
        name: Total(f"queuesmith_{name}", text, labels) for name, text in _TOTALS.items()
    }
    found["faults"] = Total(
        "queuesmith_faults", "Steps that fell back to FCFS, by kind.", (*labels, "kind")
    )
    found["policy_on"] = Gauge(
        "queuesmith_policy_on",
        "1 while the policy is asked, 0 after too many faults.",
        labels,
        multiprocess_mode="mostrecent",
    )
    found["overhead_seconds"] = Histogram(
        "queuesmith_overhead_seconds",
        "Time that asking and ordering added to a step in which the policy was asked.",
        labels,
        buckets=_BUCKETS,
    )
    return found

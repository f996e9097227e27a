"""What is kept of a window at a load: as much as every goal and guard needs, and no more.

Pooled over windows it gives the statistics of :mod:`queuesmith.evaluation.statistics` exactly, in a
fiftieth of their time: a search cannot keep the requests of thousands of candidates.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from queuesmith.config import Slo
from queuesmith.engine.result import ITL_EDGES, Result
from queuesmith.evaluation.samples import Samples, Totals
from queuesmith.metrics import e2el, met_slo, slowdown, span, tpot, ttft

Floats = NDArray[np.float64]

#: What is added up, in this order; then come the histogram of gaps between output tokens, and the
#: largest values of each latency.
TOTALS = (
    "num_requests",
    "num_met",
    "span",
    "num_output_tokens",
    "num_computed_tokens",
    "num_recomputed_tokens",
    "ttft_max",
    "slowdown_max",
    *(f"{name}_{what}" for name in ("ttft", "e2el", "tpot") for what in ("num", "sum")),
)
LATENCIES = ("ttft", "e2el", "tpot")
_NUM_BINS = len(ITL_EDGES) - 1
_HEAD = len(TOTALS) + _NUM_BINS


class Configuration(NamedTuple):
    """Where a policy was measured: whose traffic, at which load."""

    source: str
    load: str


class Cell(NamedTuple):
    """A tuning window at a load, by the window's index and the load's name."""

    window: int
    load: str


@dataclass(frozen=True, eq=False)
class CellResult:
    """What is kept of one cell."""

    #: (len(TOTALS) + number of ITL bins + 3 * tail_len,) float64: Of each latency, in the order of
    #: `LATENCIES`, the largest values, ascending; where a cell has fewer, zeros come first.
    values: Floats

    def total(self, name: str) -> float:
        """Return one of `TOTALS`."""
        return float(self.values[TOTALS.index(name)])

    @property
    def num_requests(self) -> int:
        """Requests of the cell."""
        return int(self.values[0])

    @property
    def tails(self) -> Floats:
        """The largest of each latency, as (3, tail_len), s."""
        return self.values[_HEAD:].reshape(len(LATENCIES), -1)

    @property
    def itl_counts(self) -> Floats:
        """Histogram of the gaps between output tokens."""
        return self.values[len(TOTALS) : _HEAD]

    @property
    def mean(self) -> float:
        """Mean TTFT, s."""
        return float(pooled([[self]])["ttft_mean"][0])

    @property
    def p99(self) -> float:
        """99th percentile of TTFT, s."""
        return float(pooled([[self]])["ttft_p99"][0])

    def pack(self) -> bytes:
        """Write it down; the histogram is mostly zeros, which are left out."""
        used = np.flatnonzero(self.itl_counts)
        parts = [[len(used)], used, self.itl_counts[used], self.values[: len(TOTALS)]]
        return np.concatenate([*parts, self.values[_HEAD:]]).astype("<f8").tobytes()

    @classmethod
    def unpack(cls, packed: bytes) -> "CellResult":
        """Undo `pack`; raises `ValueError` or `IndexError` for what it has not written."""
        found = np.frombuffer(packed, "<f8")
        num_used = int(found[0])
        used, counts, rest = np.split(found[1:], [num_used, 2 * num_used])
        if num_used < 0 or len(rest) <= len(TOTALS) or (len(rest) - len(TOTALS)) % len(LATENCIES):
            raise ValueError("what is kept of a cell has a wrong length")
        bins = np.zeros(_NUM_BINS)
        bins[used.astype(np.int64)] = counts
        return cls(np.concatenate([rest[: len(TOTALS)], bins, rest[len(TOTALS) :]]))


@dataclass(frozen=True, eq=False)
class Keep:
    """Makes of a result what is kept of it; small enough to go to child processes."""

    tail_len: int  # largest values of each latency to keep
    alone: tuple[Floats, ...]  # by cell: E2EL of each request alone on an idle engine, s
    slo: Slo | None

    def size(self, number: int) -> int:
        """Return how many numbers are kept of a cell."""
        return _HEAD + len(LATENCIES) * self.tail_len

    def __call__(self, number: int, result: Result) -> Floats:
        """Return the values of a `CellResult`."""
        latencies = [ttft(result), e2el(result), tpot(result)]
        finished = ~np.isnan(result.requests.last_token_ts)
        slowdowns = slowdown(result, self.alone[number])
        known = [values[~np.isnan(values)] for values in latencies]
        totals = [
            len(result.requests),
            0 if self.slo is None else met_slo(result, self.slo).sum(),
            span(result),
            result.requests.output_len[finished].sum(),
            result.num_computed_tokens,
            result.num_recomputed_tokens,
            known[0].max(initial=0.0),
            slowdowns[finished].max(initial=0.0),
            *(value for values in known for value in (len(values), values.sum())),
        ]
        tails = [largest(values, self.tail_len) for values in known]
        return np.concatenate([totals, result.itl_counts, *tails])


def largest(values: Floats, count: int) -> Floats:
    """Return the largest values, ascending, with zeros before them where there are too few."""
    rest = max(len(values) - count, 0)
    kept = np.sort(np.partition(values, rest)[rest:] if rest else values)
    return np.concatenate([np.zeros(count - len(kept)), kept])


def tail_len(num_requests: int) -> int:
    """Largest values of a cell that the p99 of `num_requests` pooled ones can depend on."""
    return num_requests - int((num_requests - 1) * 0.99)


def pooled(groups: Sequence[Sequence[CellResult]], *, has_slo: bool = True) -> dict[str, Floats]:
    """Return every statistic of :data:`queuesmith.evaluation.statistics.STATISTICS`.

    Returns
    -------
    mapping of str to (len(groups),) float64
        NaN where a statistic is undefined.
    """
    sizes = np.array([len(group) for group in groups])
    rows = np.stack([one.values for group in groups for one in group])
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    head = np.add.reduceat(rows[:, :_HEAD], starts, axis=0)
    sums = dict(zip(TOTALS, head[:, : len(TOTALS)].T, strict=True))
    tails = _pooled_tails(rows[:, _HEAD:], sizes, starts)
    met = sums["num_met"] if has_slo else np.full(len(groups), np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = {
            **{f"{name}_mean": sums[f"{name}_sum"] / sums[f"{name}_num"] for name in LATENCIES},
            "ttft_max": sums["ttft_max"] / sizes,
            "slowdown_max": sums["slowdown_max"] / sizes,
            "output_throughput": sums["num_output_tokens"] / sums["span"],
            "slo_attainment": met / sums["num_requests"],
            "goodput": met / sums["span"],
            "recompute_tax": sums["num_recomputed_tokens"] / sums["num_computed_tokens"],
            "served": sums["ttft_num"] / sums["num_requests"],
        }
    for place, name in enumerate(LATENCIES):
        found[f"{name}_p99"] = _quantile(tails[place], sums[f"{name}_num"], 0.99)
    found["ttft_p999"] = _quantile(tails[0], sums["ttft_num"], 0.999)
    found["itl_p99"] = _itl_quantile(head[:, len(TOTALS) :], 0.99)
    found["num_requests"] = sums["num_requests"]
    return found


def _pooled_tails(
    rows: Floats, sizes: NDArray[np.int64], starts: NDArray[np.int64]
) -> list[Floats]:
    """Return for each latency the tails of each group, ascending, zeros before the shorter ones."""
    width = rows.shape[1] // len(LATENCIES)
    most = int(sizes.max())
    found = []
    for place in range(len(LATENCIES)):
        part = rows[:, place * width : (place + 1) * width]
        if most == 1:
            found.append(part)
            continue
        wide = np.zeros((len(sizes), most * width))
        for group, (start, size) in enumerate(zip(starts, sizes, strict=True)):
            wide[group, : size * width] = part[start : start + size].reshape(-1)
        wide.sort(axis=1)
        found.append(wide)
    return found


def _quantile(tails: Floats, num: Floats, level: float) -> Floats:
    """Quantile of each row, of `num` values of which only the largest are in the row."""
    position = (num - 1) * level
    rank = position.astype(np.int64)
    fraction = position - rank
    last = tails.shape[1] - 1
    row = np.arange(len(tails))
    place = last - (np.maximum(num, 1).astype(np.int64) - 1 - rank)
    low, high = tails[row, place], tails[row, np.minimum(place + 1, last)]
    gap = high - low  # as `queuesmith.stats.between`
    value = np.where(fraction < 0.5, low + gap * fraction, high - gap * (1.0 - fraction))
    value = np.where((fraction == 0.0) | (gap == 0.0), low, value)
    return np.where(num > 0, value, np.nan)


def _itl_quantile(counts: Floats, level: float) -> Floats:
    """As `queuesmith.evaluation.statistics.ItlQuantile`, from counts by row."""
    upto = np.cumsum(counts, axis=1)
    wanted = level * upto[:, -1]
    place = (upto >= wanted[:, None]).argmax(axis=1)
    rows = np.arange(len(counts))
    within = 1.0 - (upto[rows, place] - wanted) / np.maximum(counts[rows, place], 1)
    low, high = ITL_EDGES[place], ITL_EDGES[place + 1]
    return np.where(wanted > 0, low * (high / low) ** within, np.nan)


def samples_of(cells: Sequence[tuple[int, CellResult]], *, has_slo: bool) -> Samples:
    """Return samples whose every statistic is that of the requests, also when windows are drawn.

    Requests below a cell's tail get their common mean, which changes neither a mean nor a quantile
    of a tail. So one latency of a request says nothing of another, and nothing is known of classes.
    """
    columns: dict[str, list[NDArray[Any]]] = {name: [] for name in LATENCIES}
    met, slowdowns = [], []
    for _, one in cells:
        size = one.num_requests
        for place, name in enumerate(LATENCIES):
            num, total = int(one.total(f"{name}_num")), one.total(f"{name}_sum")
            tail = one.tails[place]
            tail = tail[max(len(tail) - num, 0) :]
            num_rest = num - len(tail)
            rest = max((total - float(tail.sum())) / num_rest, 0.0) if num_rest else 0.0
            missing = np.full(size - num, np.nan)
            columns[name].append(np.concatenate([np.full(num_rest, rest), tail, missing]))
        met.append(np.arange(size) < one.total("num_met"))
        slowdowns.append(np.full(size, one.total("slowdown_max")))
    window = np.repeat([window for window, _ in cells], [one.num_requests for _, one in cells])
    order = np.argsort([window for window, _ in cells], kind="stable")
    ordered = [cells[place][1] for place in order]

    def totals(name: str) -> Floats:
        return np.array([one.total(name) for one in ordered])

    unknown = np.zeros(len(window), np.int64)
    return Samples(
        ttft=np.concatenate(columns["ttft"]),
        tpot=np.concatenate(columns["tpot"]),
        e2el=np.concatenate(columns["e2el"]),
        slowdown=np.concatenate(slowdowns),
        prompt_len=unknown,
        output_len=unknown,
        window=window,
        met=np.concatenate(met) if has_slo else None,
        totals=Totals(
            span=totals("span"),
            num_output_tokens=totals("num_output_tokens"),
            num_computed_tokens=totals("num_computed_tokens"),
            num_recomputed_tokens=totals("num_recomputed_tokens"),
            itl_counts=np.array([one.itl_counts for one in ordered]).astype(np.int64),
        ),
    )

"""The runs table of a study as dense arrays, one axis per thing that varies.

A *cell* is one (engine, load, source). In it every policy has met the same windows, so that any two
are compared window by window.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from queuesmith.errors import ConfigError, did_you_mean
from queuesmith.metrics import METRICS
from queuesmith.stats.draws import Floats

KEY = ("engine", "source", "window", "load", "prediction", "policy")
NEEDED = (*KEY, "kind", "position", "rho", "multiplier")

#: Metrics of a study that no single run of `queuesmith.metrics` has, and which way is better.
STUDY_METRICS = {
    "anwg_slack_0.5": "higher",
    "anwg_slack_2": "higher",
    "anwg_slack_4": "higher",
    "weighted_goodput": "higher",
    "slo_violation_rate": "lower",
    "completion_fraction": "higher",
    "e2el_p95": "lower",
    "ttft_p95": "lower",
}

#: Metrics between 0 and 1, of which a difference means something even where one of them is 0.
SHARES = frozenset(
    {"anwg", "slo_attainment", "jain", "recompute_tax"}
    | {"anwg_slack_0.5", "anwg_slack_2", "anwg_slack_4"}
    | {"weighted_goodput", "slo_violation_rate", "completion_fraction"}
)


#: Two windows adjoin when no more than this share of a window lies between them.
GAP = 0.25


def better(metric: str) -> str | None:
    """Return "lower" or "higher", or None for what nothing is ranked by."""
    if metric in METRICS:
        return METRICS[metric].better
    return STUDY_METRICS.get(metric)


@dataclass(frozen=True, eq=False)
class Grid:
    """Runs of one prediction, in arrays.

    Attributes
    ----------
    engines, loads, sources, metrics, policies : tuple of str
        What the axes are. Loads go from light to heavy, the rest as they first appear.
    values : (engines, loads, sources, metrics, policies, windows) float64
        NaN where undefined, and past the last window of a source that has fewer than others.
    windows : mapping of str to (n,) int64
        Number of each window of a source, in order of time.
    position : (sources, windows) float64
        Where in its source a window lies, from 0 to 1; NaN where unknown or modelled.
    is_real : (sources, windows) bool
    adjoins : (sources,) bool
        Whether most windows begin where the one before ends, or shortly after.
    present : (engines, loads, sources) bool
        Whether the cell was run at all.
    notes : tuple of str
        What was left out, and why.
    """

    engines: tuple[str, ...]
    loads: tuple[str, ...]
    sources: tuple[str, ...]
    metrics: tuple[str, ...]
    policies: tuple[str, ...]
    values: Floats
    windows: dict[str, NDArray[np.int64]]
    position: Floats
    is_real: NDArray[np.bool_]
    adjoins: NDArray[np.bool_]
    present: NDArray[np.bool_]
    notes: tuple[str, ...]
    _table: pa.Table = field(repr=False)
    _where: tuple[NDArray[np.int64], ...] = field(repr=False)

    def column(self, name: str) -> Floats | None:
        """Any other column as (engines, loads, sources, policies, windows); None if not there."""
        if name not in self._table.column_names:
            return None
        return _dense(self._table, name, self._where, self.values.shape[:3] + self.values.shape[4:])

    def num_windows(self, source: int) -> int:
        """Count the windows of a source, by its number."""
        return len(self.windows[self.sources[source]])

    def oriented(self) -> Floats:
        """`values` with those negated of which more is better, so that small is good."""
        flip = np.array([-1.0 if better(metric) == "higher" else 1.0 for metric in self.metrics])
        return np.asarray(self.values * flip[:, None, None])


def make_grid(
    runs: pa.Table,
    windows: pa.Table | None,
    *,
    metrics: Sequence[str],
    prediction: str,
    leave_out: Sequence[str] = (),
) -> Grid:
    """Arrange the runs of one prediction.

    Parameters
    ----------
    runs : pyarrow.Table
        One row per (engine, source, window, load, prediction, policy).
    windows : pyarrow.Table or None
        Rows of `source`, `window`, `start_row`, `num_requests`; without it no windows adjoin.
    metrics : sequence of str
        Columns to arrange.
    leave_out : sequence of str
        Policies.

    Raises
    ------
    ConfigError
        If a column is missing, a run is there twice, or nothing is left.
    """
    _check(runs, metrics)
    keep = pc.equal(runs["prediction"], prediction)
    if leave_out:
        keep = pc.and_(keep, pc.invert(pc.is_in(runs["policy"], pa.array(list(leave_out)))))
    table = runs.filter(keep)
    if not len(table):
        raise ConfigError(
            f"the study has no runs with prediction {prediction!r} of the policies asked for; it "
            f"has {', '.join(sorted(set(runs['prediction'].to_pylist()))) or 'no runs at all'}"
        )
    table, notes = _whole_windows(table)
    engines, engine = _coded(table["engine"])
    sources, source = _coded(table["source"])
    policies, policy = _coded(table["policy"])
    loads, load = _coded(table["load"])
    loads, load = _ordered_loads(table, loads, load)
    numbers = table["window"].to_numpy()
    window = np.empty(len(table), np.int64)
    by_source = {}
    for row, name in enumerate(sources):
        mine = source == row
        by_source[name], window[mine] = np.unique(numbers[mine], return_inverse=True)
    most_windows = max(len(found) for found in by_source.values())
    shape = (len(engines), len(loads), len(sources), len(policies), most_windows)
    where = (engine, load, source, policy, window)
    counts = np.zeros(shape, np.int64)
    np.add.at(counts, where, 1)
    if (counts > 1).any():
        e, n, s, p, w = np.argwhere(counts > 1)[0]
        raise ConfigError(
            f"the study has policy {policies[p]!r} twice on window {by_source[sources[s]][w]} of "
            f"{sources[s]!r} at load {loads[n]!r} on {engines[e]!r}; a run counts once"
        )
    real = np.zeros((len(sources), shape[-1]), np.bool_)
    real[source, window] = np.asarray(pc.equal(table["kind"], "real"))
    position = np.full(real.shape, np.nan)
    position[source, window] = _floats(table, "position")
    values = np.stack([_dense(table, name, where, shape) for name in metrics], axis=3)
    return Grid(
        engines,
        loads,
        sources,
        tuple(metrics),
        policies,
        values,
        by_source,
        np.where(real, position, np.nan),
        real,
        np.array([_adjoin(windows, name, by_source[name]) for name in sources]),
        np.asarray(counts.any(axis=(3, 4))),
        notes,
        table,
        where,
    )


def _check(runs: pa.Table, metrics: Sequence[str]) -> None:
    for name in (*NEEDED, *metrics):
        if name not in runs.column_names:
            raise ConfigError(
                f"the runs of a study have no column {name!r}."
                f"{did_you_mean(name, runs.column_names)} Run the study again with this version"
            )
    for name in metrics:
        if better(name) is None:
            raise ConfigError(
                f"nothing can be ranked by {name!r}, of which neither less nor more is better; "
                "choose a metric of docs/background/metrics.md that says which"
            )
    if len(set(metrics)) < len(metrics):
        raise ConfigError(f"a metric is given twice in {', '.join(metrics)}; give each once")


def _whole_windows(table: pa.Table) -> tuple[pa.Table, tuple[str, ...]]:
    """Leave out windows that lack runs which others of their source have."""
    counted = table.group_by(["source", "window"]).aggregate([("policy", "count")])
    most: dict[str, int] = {}
    rows = counted.to_pylist()
    for row in rows:
        most[row["source"]] = max(most.get(row["source"], 0), row["policy_count"])
    unfinished = [row for row in rows if row["policy_count"] < most[row["source"]]]
    if not unfinished:
        return table, ()
    notes = []
    for source in dict.fromkeys(row["source"] for row in unfinished):
        mine = sorted(row["window"] for row in unfinished if row["source"] == source)
        notes.append(f"{len(mine)} windows of {source} lack runs and are left out.")
        pair = pc.and_(pc.equal(table["source"], source), pc.is_in(table["window"], pa.array(mine)))
        table = table.filter(pc.invert(pair))
    return table, tuple(notes)


def _coded(column: pa.ChunkedArray) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    coded = column.combine_chunks().dictionary_encode()
    return tuple(coded.dictionary.to_pylist()), coded.indices.to_numpy().astype(np.int64)


def _ordered_loads(
    table: pa.Table, loads: tuple[str, ...], load: NDArray[np.int64]
) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    size = np.fmax(_floats(table, "rho"), _floats(table, "multiplier"))
    first = np.array([np.flatnonzero(load == row)[0] for row in range(len(loads))])
    order = np.argsort(size[first], kind="stable")
    return tuple(loads[row] for row in order), np.argsort(order)[load]


def _floats(table: pa.Table, name: str) -> Floats:
    column = table[name].cast(pa.float64())
    return np.asarray(pc.fill_null(column, float("nan")).to_numpy(), np.float64)


def _dense(
    table: pa.Table, name: str, where: tuple[NDArray[np.int64], ...], shape: tuple[int, ...]
) -> Floats:
    values = np.full(shape, np.nan)
    values[where] = _floats(table, name)
    return values


def _adjoin(windows: pa.Table | None, source: str, numbers: NDArray[np.int64]) -> bool:
    """Whether most windows begin where the one before ends, or less than `GAP` of a window later.

    Windows of a trace that they nearly fill lie a few requests apart, and are as alike as if they
    adjoined.
    """
    if windows is None or len(numbers) < 2 or "start_row" not in windows.column_names:
        return False
    mine = windows.filter(
        pc.and_(
            pc.and_(pc.equal(windows["source"], source), pc.equal(windows["kind"], "real")),
            pc.is_in(windows["window"], pa.array(numbers)),
        )
    ).sort_by("window")
    start, length = _floats(mine, "start_row"), _floats(mine, "num_requests")
    gap = start[1:] - (start[:-1] + length[:-1])
    return int(((gap >= 0) & (gap <= GAP * length[:-1])).sum()) * 2 > len(numbers)

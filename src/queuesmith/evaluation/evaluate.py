"""Policies x windows x loads, every one on the same requests, lengths and predictions.

This is where windows meet engines: the load of a window is set by its own capacity on the engine,
deadlines are built from what an idle engine would need, and a policy's ``ENGINE`` settings are
applied to the engine of its own runs only.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from queuesmith.backends import Backend, spread
from queuesmith.config import EngineConfig, Slo
from queuesmith.engine import Workload, can_run, prepare, simulate_workload
from queuesmith.engine.compile import compile_policy, compile_router
from queuesmith.engine.fleet import Fleet
from queuesmith.engine.isolated_latency import e2el_alone
from queuesmith.engine.presets.step_time import StepTime
from queuesmith.engine.result import Result
from queuesmith.errors import ConfigError, TraceError, did_you_mean
from queuesmith.evaluation.samples import Samples, pool
from queuesmith.metrics import METRICS, summarize
from queuesmith.policies import Policy, get_policy
from queuesmith.traces.block_hashes import BlockHashes
from queuesmith.traces.trace import Trace
from queuesmith.windows import Window, offered_rate, scale_arrivals
from queuesmith.windows.predictions import OutputLengthKnowledge

#: Named load regions, as offered rate / capacity.
LOADS = {
    "light": 0.3,
    "moderate": 0.6,
    "busy": 0.8,
    "knee": 0.95,
    "overload": 1.1,
    "heavy": 1.5,
}

#: A deadline where a trace has none: this many times the latency on an idle engine.
DEADLINE_FACTOR = 5.0


@dataclass(frozen=True)
class Load:
    """How fast requests arrive, given in one of three ways.

    Attributes
    ----------
    name : str
    rho : float or None
        Offered rate over what the engine carries under FCFS: each window is brought to it.
    rate : float or None
        Requests/s of all windows together, which are sped up by one factor.

    Without either, requests arrive as they did.
    """

    name: str
    rho: float | None = None
    rate: float | None = None

    def __post_init__(self) -> None:
        if self.rho is not None and not 0.0 < self.rho <= 100.0:
            raise ConfigError(f"a load must be above 0 and at most 100, got {self.rho!r}")
        if self.rate is not None and not 0.0 < self.rate <= 1e6:
            raise ConfigError(f"a rate must be above 0 and at most 1e6/s, got {self.rate!r}/s")


#: The trace's own rate.
OWN = Load("own")


def parse_load(text: str) -> Load:
    """Read one load: own, the name of a region, rho as a number, or requests/s as in ``6/s``.

    Raises
    ------
    ConfigError
        If it is none of these.

    Examples
    --------
    >>> parse_load("6/s")
    Load(name='6/s', rho=None, rate=6.0)
    """
    text = text.strip()
    if text == OWN.name:
        return OWN
    if text in LOADS:
        return Load(text, LOADS[text])
    number = text.removesuffix("/s")
    try:
        value = float(number)
    except ValueError:
        raise ConfigError(
            f"there is no load {text!r}.{did_you_mean(text, [OWN.name, *LOADS])} Give own (the "
            f"trace's own rate), one of {', '.join(LOADS)}, offered rate over capacity such as "
            "0.9, or requests per second such as 6/s"
        ) from None
    return Load(text, value) if number == text else Load(text, rate=value)


def parse_loads(loads: str | Iterable[str | float | Load]) -> list[Load]:
    """Read loads, given as in `parse_load`.

    Raises
    ------
    ConfigError
        If a load is none, or is given twice.

    Examples
    --------
    >>> [load.name for load in parse_loads("own,moderate,0.9,6/s")]
    ['own', 'moderate', '0.9', '6/s']
    """
    items = loads.split(",") if isinstance(loads, str) else list(loads)
    parsed = [item if isinstance(item, Load) else parse_load(str(item)) for item in items]
    if not parsed:
        raise ConfigError("no load was given; name one such as knee, 0.9 or 6/s")
    if len({(load.rho, load.rate) for load in parsed}) < len(parsed):
        raise ConfigError(f"a load is given twice: {', '.join(load.name for load in parsed)}")
    return parsed


@dataclass(frozen=True)
class Offered:
    """What a load comes to on an engine.

    Attributes
    ----------
    name : str
    rho : float
        Offered rate over capacity, all windows together.
    rate : float
        Requests/s.
    """

    name: str
    rho: float
    rate: float


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Every run of a comparison.

    Attributes
    ----------
    cells : pyarrow.Table
        One row per (policy, load, window): `policy`, `load`, `rho`, `window`, then `METRICS`, then
        what else was measured.
    samples : mapping of (policy, load) to Samples
    loads : tuple of Offered
        What each load came to.
    own : Offered
        The traffic at its own rate.
    capacity : (num_windows,) float64
        Requests/s that the engine, or all replicas of it, carries of each window.
    num_dropped, num_truncated : int
        Requests, over all windows, that cannot run on the engine, and whose output it cuts.
    """

    cells: pa.Table
    samples: Mapping[tuple[str, str], Samples]
    loads: tuple[Offered, ...]
    own: Offered
    capacity: NDArray[np.float64]
    num_dropped: int
    num_truncated: int


def capacity(trace: Trace, config: EngineConfig, step_time: StepTime) -> float:
    """Return the requests/s of this mix that an engine carries under FCFS.

    It is ``N / (T2 - T1)``, T1 and T2 the times to finish the N requests once and twice in a row
    when all of them arrive at once, so that ramp-up and drain cancel. Requests so few that most of
    T1 is ramp-up and drain, and both copies run side by side, are repeated until they are not. A
    copy shares prefixes within itself as the trace does, and none with another copy. Nobody is
    turned away.
    """
    config = config.override({"max_num_queued_reqs": None, "max_num_queued_tokens": None})

    def seconds(repeats: int) -> float:
        rows = np.tile(np.arange(len(trace)), repeats)
        burst = Trace(
            np.zeros(len(rows)),
            trace.prompt_len[rows],
            trace.output_len[rows],
            block_hashes=_repeat_hashes(trace.block_hashes, repeats),
        )
        workload = prepare(burst, config, np.full(len(rows), np.nan))
        fcfs = compile_policy(get_policy("fcfs"))
        return simulate_workload(workload, fcfs, config, step_time).end_time

    repeats, once, twice = 1, seconds(1), seconds(2)
    while twice < 1.5 * once:
        repeats *= 2
        once, twice = twice, seconds(2 * repeats)
    return repeats * len(trace) / (twice - once)


def _repeat_hashes(hashes: BlockHashes | None, repeats: int) -> BlockHashes | None:
    """Return the blocks of `repeats` copies of a trace that have no block in common."""
    if hashes is None:
        return None
    code = np.unique(hashes.hashes, return_inverse=True)[1].reshape(-1)
    copies = np.arange(repeats)[:, None]
    offsets = (hashes.offsets[1:] + copies * hashes.offsets[-1]).reshape(-1)
    numbers = (code + copies * (len(code) + 1)).reshape(-1)
    return BlockHashes(np.concatenate([[0], offsets]), numbers, hashes.block_size)


def scale_to_load(trace: Trace, load: Load, config: EngineConfig, step_time: StepTime) -> Trace:
    """Return the same requests arriving at a load."""
    if load.rate is not None:
        return scale_arrivals(trace, offered_rate(trace) / load.rate)
    if load.rho is None:
        return trace
    runnable = trace.take(np.flatnonzero(can_run(trace, config)))
    carried = capacity(runnable if len(runnable) else trace, config, step_time)
    return scale_arrivals(trace, offered_rate(trace) / (load.rho * carried))


def evaluate(
    policies: Sequence[Policy],
    windows: Sequence[Window],
    loads: Sequence[Load],
    *,
    config: EngineConfig,
    step_time: StepTime,
    output_length: OutputLengthKnowledge,
    slo: Slo | None = None,
    seed: int = 0,
    fleet: Fleet | None = None,
    backend: str = "threading",
    num_workers: int | None = None,
    scheduler_address: str | None = None,
    progress: Callable[[int], None] | None = None,
    measure: Callable[[Result], Mapping[str, float]] | None = None,
) -> Evaluation:
    """Run every policy on every window at every load.

    Parameters
    ----------
    policies, windows, loads : sequence
    config, step_time
        The engine of every policy that brings no settings of its own.
    output_length : OutputLengthKnowledge
    slo : Slo, optional
    seed : int
        Of the noise on predictions, with the window's number.
    fleet : Fleet, optional
        Several replicas of the engine behind a router; a load is then the offered rate over what
        all of them carry.
    backend : {"threading", "loky", "dask", "ray"}
        Threads do well on one machine, since the kernel runs without the interpreter lock. The
        numbers are the same for any choice.
    num_workers : int, optional
        All cores when left out.
    scheduler_address : str, optional
        Of a Dask or Ray cluster that is there.
    progress : callable, optional
        Called with the number of finished runs.
    measure : callable, optional
        Further numbers of each run, which become columns of `Evaluation.cells` after `METRICS`;
        the same names for every run.

    Raises
    ------
    QueuesmithError
        What a policy or an engine setting does wrong; no partial result is returned.
    """
    chosen = Backend.choose(backend, num_workers, scheduler_address)
    configs = {policy.name: _own_config(policy, config) for policy in policies}
    for policy in policies:
        compile_policy(policy)  # once, so that every worker finds it compiled
    if fleet is not None:
        compile_router(fleet.router)
    num_replicas = 1 if fleet is None else fleet.num_replicas
    prepared = [
        prepare_window(
            window,
            config,
            list(configs.values()),
            step_time,
            output_length,
            seed,
            num_replicas=num_replicas,
        )
        for window in windows
    ]

    keys = list(product(policies, loads, range(len(windows))))
    own_rate = pooled_rate(prepared)
    workloads = {
        (load, index, own): prepared[index].at(load, own, own_rate)
        for load, index, own in product(loads, range(len(windows)), set(configs.values()))
    }

    tasks = []
    for policy, load, index in keys:
        own = configs[policy.name]
        workload, alone = workloads[load, index, own], prepared[index].alone
        behind = None if fleet is None else fleet.with_seed(seed, windows[index].index)
        tasks.append(_Run(policy, workload, alone, own, step_time, slo, measure, behind))
    done: dict[int, tuple[Result, dict[str, float]]] = {}
    for place, run in spread(_run, tasks, chosen):
        done[place] = run
        if progress is not None:
            progress(len(done))
    runs = [done[place] for place in range(len(tasks))]

    offered = {load: offer(load, prepared) for load in loads}
    columns: dict[str, list[object]] = {
        "policy": [policy.name for policy, _, _ in keys],
        "load": [load.name for _, load, _ in keys],
        "rho": [offered[load].rho for _, load, _ in keys],
        "window": [windows[index].index for _, _, index in keys],
    }
    for name in runs[0][1] if runs else METRICS:
        columns[name] = [summary[name] for _, summary in runs]
    samples = {}
    for place in range(0, len(keys), len(windows)):
        policy, load, _ = keys[place]
        results = [result for result, _ in runs[place : place + len(windows)]]
        samples[policy.name, load.name] = pool(
            results,
            [window.alone for window in prepared],
            [window.index for window in windows],
            slo,
        )
    return Evaluation(
        cells=pa.table(columns),
        samples=samples,
        loads=tuple(offered.values()),
        own=offer(OWN, prepared),
        capacity=np.array([window.capacity for window in prepared]),
        num_dropped=sum(window.num_dropped for window in prepared),
        num_truncated=sum(window.workload.num_truncated for window in prepared),
    )


@dataclass(frozen=True, eq=False)
class _Run:
    """A policy on a window at a load, with all that a worker needs for it."""

    policy: Policy
    workload: Workload
    alone: NDArray[np.float64]
    config: EngineConfig
    step_time: StepTime
    slo: Slo | None
    measure: Callable[[Result], Mapping[str, float]] | None
    fleet: Fleet | None


def _run(run: _Run) -> tuple[Result, dict[str, float]]:
    compiled = compile_policy(run.policy)
    result = simulate_workload(run.workload, compiled, run.config, run.step_time, fleet=run.fleet)
    summary = summarize(result, run.slo, run.alone)
    return result, summary if run.measure is None else {**summary, **run.measure(result)}


def _own_config(policy: Policy, config: EngineConfig) -> EngineConfig:
    try:
        return config.override(policy.engine)
    except ConfigError as error:
        raise ConfigError(f"ENGINE of policy {policy.name!r}: {error}") from None


@dataclass(frozen=True, eq=False)
class PreparedWindow:
    """A window with what does not depend on policy or load."""

    workload: Workload  # under the common configuration, at the trace's own rate
    alone: NDArray[np.float64]
    slack: NDArray[np.float64]  # deadline - arrival
    capacity: float
    num_dropped: int

    def at(self, load: Load, config: EngineConfig, own_rate: float) -> Workload:
        """Return the requests at a load, as an engine runs them.

        `own_rate` is that of all windows together, from `pooled_rate`.
        """
        trace = self.workload.trace
        if load.rho is not None:
            trace = scale_arrivals(trace, offered_rate(trace) / (load.rho * self.capacity))
        elif load.rate is not None:
            trace = scale_arrivals(trace, own_rate / load.rate)
        trace = replace(trace, deadline=trace.arrival_time + self.slack)
        return prepare(trace, config, self.workload.predicted_output_tokens)


def pooled_rate(windows: Sequence[PreparedWindow]) -> float:
    """Return the requests/s of all windows together: gaps over duration."""
    traces = [window.workload.trace for window in windows]
    num_gaps = sum(map(len, traces)) - len(traces)
    return num_gaps / sum((len(trace) - 1) / offered_rate(trace) for trace in traces)


def offer(load: Load, windows: Sequence[PreparedWindow]) -> Offered:
    """Say what a load comes to, all windows together."""
    sizes = np.array([len(window.workload.trace) for window in windows], np.float64)
    capacities = np.array([window.capacity for window in windows])
    carried = float(sizes.sum() / (sizes / capacities).sum())
    if load.rho is not None:
        return Offered(load.name, load.rho, load.rho * carried)
    rate = load.rate or pooled_rate(windows)
    return Offered(load.name, rate / carried, rate)


def prepare_window(
    window: Window,
    config: EngineConfig,
    configs: Sequence[EngineConfig],
    step_time: StepTime,
    output_length: OutputLengthKnowledge,
    seed: int,
    *,
    num_replicas: int = 1,
) -> PreparedWindow:
    """Leave out what any of the engines cannot run, so that all policies serve the same."""
    predicted = output_length.predict(window.trace, [seed, window.index])
    if window.predicted_output_tokens is not None and output_length.kind == "noisy":
        predicted = window.predicted_output_tokens  # as published, so that results compare
    keep = np.all([can_run(window.trace, each) for each in (config, *configs)], axis=0)
    if not keep.any():
        prepare(window.trace, config, predicted)  # says what is too long for what
        raise TraceError(
            f"window {window.index}: no request fits the engines of all policies at once; leave "
            "out the policy whose ENGINE has the shortest context"
        )
    if keep.sum() < 2:
        raise TraceError(
            f"window {window.index}: only one request is left, which has no rate to be scaled; "
            "give a longer trace or a larger window"
        )
    trace = window.trace.take(np.flatnonzero(keep))
    workload = prepare(trace, config, predicted[keep])
    alone = e2el_alone(trace.prompt_len, workload.output_len, config, step_time)
    if trace.deadline is None:
        believed = np.where(np.isnan(predicted[keep]), np.median(trace.output_len), predicted[keep])
        slack = DEADLINE_FACTOR * e2el_alone(trace.prompt_len, believed, config, step_time)
    else:
        slack = trace.deadline - trace.arrival_time
    return PreparedWindow(
        workload=workload,
        alone=alone,
        slack=slack,
        capacity=num_replicas * capacity(trace, config, step_time),
        num_dropped=len(window.trace) - len(trace),
    )

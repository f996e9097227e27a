"""One engine offered the same traffic at many rates, and what its requests then saw.

Every window is sped up by the same factor, so a busy window stays busier than a quiet one: this is
the traffic as it is, so many times as fast.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from joblib import Parallel, delayed

from queuesmith.config import EngineConfig, Slo
from queuesmith.engine import Workload, prepare, simulate_workload
from queuesmith.engine.compile import CompiledPolicy, compile_policy
from queuesmith.engine.isolated_latency import e2el_alone, ttft_alone
from queuesmith.engine.presets.step_time import Preset
from queuesmith.errors import ConfigError
from queuesmith.evaluation.evaluate import PreparedWindow, capacity, prepare_window
from queuesmith.metrics import e2el, tpot, ttft
from queuesmith.planning.curve import GRID, Curve, Floats
from queuesmith.policies import Policy
from queuesmith.windows import Window, offered_rate, scale_arrivals
from queuesmith.windows.predictions import OutputLengthKnowledge

LIMITS = ("ttft", "tpot", "e2el")


class Outcome(NamedTuple):
    """What the requests of one window saw: how many met the SLO, and why the others did not.

    A request over several limits is counted under each. `unserved` are those whose client gave up.
    """

    num_requests: int
    met: int
    over_ttft: int
    over_tpot: int
    over_e2el: int
    unserved: int
    ttft_max: float  # s
    e2el_mean: float  # s, of finished requests


@dataclass(frozen=True, eq=False)
class Service:
    """An engine and windows of traffic, ready to be offered at any rate.

    Attributes
    ----------
    preset : Preset
    configs : mapping of str to EngineConfig
        By policy: the preset's, or with the policy's own settings.
    windows : list of PreparedWindow
    rate : float
        Requests/s of the traffic as it is: gaps over duration, all windows together.
    carried : mapping of EngineConfig to float
        Requests/s of this mix that an engine finishes under FCFS when there is always work.
    """

    preset: Preset
    configs: Mapping[str, EngineConfig]
    windows: Sequence[PreparedWindow]
    rate: float
    carried: Mapping[EngineConfig, float]

    @property
    def load(self) -> float:
        """Return rho of the traffic as it is."""
        return self.rate / self.carried[self.preset.config]

    def of_windows(self, rho: float) -> Floats:
        """Return rho of each window when all together are offered at `rho`."""
        own = [offered_rate(window.workload.trace) / window.capacity for window in self.windows]
        return np.array(own) * (rho / self.load)

    def idle(self, config: EngineConfig, slo: Slo) -> Outcome:
        """Count what would be within the SLO if every request met an idle engine."""
        prompt = np.concatenate([one.workload.trace.prompt_len for one in self.windows])
        output = np.concatenate([one.workload.output_len for one in self.windows])
        first = ttft_alone(prompt, config, self.preset.step_time)
        last = e2el_alone(prompt, output, config, self.preset.step_time)
        gap = (last - first) / np.maximum(output - 1, 1)
        return _count(slo, {"ttft": first, "tpot": gap, "e2el": last})


def make_service(
    preset: Preset,
    policies: Sequence[Policy],
    windows: Sequence[Window],
    output_length: OutputLengthKnowledge,
    seed: int,
) -> Service:
    """Prepare windows for an engine; requests that some policy's engine cannot run are left out.

    Raises
    ------
    QueuesmithError
        If no request is left, all of a window arrive at once, or a policy's ``ENGINE`` is wrong.
    """
    configs = {}
    for policy in policies:
        try:
            configs[policy.name] = preset.config.override(policy.engine)
        except ConfigError as error:
            raise ConfigError(f"ENGINE of policy {policy.name!r}: {error}") from None
    prepared = [
        prepare_window(
            window,
            preset.config,
            list(configs.values()),
            preset.step_time,
            output_length,
            seed,
        )
        for window in windows
    ]
    traces = [window.workload.trace for window in prepared]
    num_requests = sum(map(len, traces))
    carried = {}
    for config in dict.fromkeys([preset.config, *configs.values()]):
        rates = [
            window.capacity
            if config == preset.config
            else capacity(window.workload.trace, config, preset.step_time)
            for window in prepared
        ]
        seconds = sum(len(trace) / rate for trace, rate in zip(traces, rates, strict=True))
        carried[config] = num_requests / seconds
    seconds = sum((len(trace) - 1) / offered_rate(trace) for trace in traces)
    rate = (num_requests - len(traces)) / seconds
    return Service(preset, configs, prepared, rate, carried)


@dataclass(frozen=True, eq=False)
class Probes:
    """What one policy did at every load that was probed: load to one outcome per window."""

    outcomes: dict[float, list[Outcome]] = field(default_factory=dict)

    @property
    def curve(self) -> Curve:
        """Return the requests within the SLO against load."""
        met = {
            rho: np.array([outcome.met for outcome in outcomes], np.float64)
            for rho, outcomes in self.outcomes.items()
        }
        first = next(iter(self.outcomes.values()))
        return Curve.of(met, np.array([one.num_requests for one in first], np.float64))

    def at(self, rho: float) -> Outcome:
        """Return the outcome of all windows together at a load that was probed."""
        outcomes = self.outcomes[rho]
        finished = np.array([one.num_requests - one.unserved for one in outcomes])
        means = np.array([one.e2el_mean for one in outcomes])
        sums = np.where(finished > 0, means * finished, 0.0)
        return Outcome(
            num_requests=sum(one.num_requests for one in outcomes),
            met=sum(one.met for one in outcomes),
            over_ttft=sum(one.over_ttft for one in outcomes),
            over_tpot=sum(one.over_tpot for one in outcomes),
            over_e2el=sum(one.over_e2el for one in outcomes),
            unserved=sum(one.unserved for one in outcomes),
            ttft_max=max(one.ttft_max for one in outcomes),
            e2el_mean=float(sums.sum() / max(finished.sum(), 1)),
        )


def search(
    service: Service,
    policies: Sequence[Policy],
    slo: Slo,
    target: float,
    *,
    weights: Floats,
    num_workers: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Probes]:
    """Probe every policy at `GRID` and the own rate, then where attainment falls below the target.

    Parameters
    ----------
    service : Service
    policies : sequence of Policy
    slo : Slo
    target : float
        Share of requests within the SLO.
    weights : (1 + draws, num_windows) float64
        All windows once, then draws of them, around whose interval is probed too.
    num_workers : int
        Threads; the outcomes are the same for any number.
    progress : callable, optional
        Called with the number of finished runs and of those known to be needed.
    """
    compiled = {policy.name: compile_policy(policy) for policy in policies}
    probes = {policy.name: Probes() for policy in policies}
    loads = sorted({*GRID, service.load})
    wanted = [(policy.name, rho) for rho in loads for policy in policies]
    parallel = Parallel(n_jobs=num_workers, backend="threading", return_as="generator")
    num_windows, done = len(service.windows), 0
    while wanted:
        total = done + len(wanted) * num_windows
        outcomes = []
        for outcome in parallel(
            delayed(_serve)(service, window, compiled[name], rho, slo)
            for name, rho in wanted
            for window in service.windows
        ):
            outcomes.append(outcome)
            if progress is not None:
                progress(done + len(outcomes), total)
        done = total
        for place, (name, rho) in enumerate(wanted):
            rows = slice(place * num_windows, (place + 1) * num_windows)
            probes[name].outcomes[rho] = outcomes[rows]
        changed = list(dict.fromkeys(name for name, _ in wanted))
        wanted = []
        for name in changed:
            curve = probes[name].curve
            draws = curve.capacity(target, weights)
            wanted += [(name, rho) for rho in curve.wanted(target, draws)]
    return probes


def _serve(
    service: Service, window: PreparedWindow, compiled: CompiledPolicy, rho: float, slo: Slo
) -> Outcome:
    config = service.configs[compiled.policy.name]
    workload = _offered(window, rho / service.load, config)
    result = simulate_workload(workload, compiled, config, service.preset.step_time)
    times = {"ttft": ttft(result), "tpot": tpot(result), "e2el": e2el(result)}
    return _count(slo, times)


def _offered(window: PreparedWindow, factor: float, config: EngineConfig) -> Workload:
    """Return the requests of a window arriving `factor` times as fast as they did."""
    trace = scale_arrivals(window.workload.trace, 1 / factor)
    trace = replace(trace, deadline=trace.arrival_time + window.slack)
    return prepare(trace, config, window.workload.predicted_output_tokens)


def _count(slo: Slo, times: Mapping[str, Floats]) -> Outcome:
    """Count requests by the limit they are over; NaN is over none."""
    over = {
        name: np.zeros(len(times[name]), np.bool_)
        if getattr(slo, name) is None
        else times[name] > getattr(slo, name)
        for name in LIMITS
    }
    finished = np.isfinite(times["e2el"])
    first = times["ttft"]
    return Outcome(
        num_requests=len(first),
        met=int((finished & ~over["ttft"] & ~over["tpot"] & ~over["e2el"]).sum()),
        over_ttft=int(over["ttft"].sum()),
        over_tpot=int(over["tpot"].sum()),
        over_e2el=int(over["e2el"].sum()),
        unserved=int((~finished).sum()),
        ttft_max=float(np.where(np.isnan(first), -np.inf, first).max()),
        e2el_mean=float(times["e2el"][finished].mean()) if finished.any() else float("nan"),
    )

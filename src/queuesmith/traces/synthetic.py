"""Draw traces from workload models: numbers fitted to real traffic, shipped with the package.

A model has three parts, each small enough to read in its TOML file:

* *Arrivals* are gamma-spaced at a rate that moves on several time scales at once. The logarithm of
  the rate is a sum of stationary Ornstein-Uhlenbeck processes, one per time scale.
* *Lengths* follow quantile tables of prompts and outputs, joined by a checkerboard copula: the
  share of requests in each cell of (prompt rank, output rank), uniform within a cell.
* *Drift*: successive requests resemble each other a little for a long time. The normal score that
  picks a length is the sum of fresh noise, a slow first-order autoregression over requests, and
  the logarithm of the rate, with which lengths may go.

:mod:`queuesmith.traces.fit` makes the files.
"""

import hashlib
import tomllib
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter
from scipy.special import ndtr

from queuesmith.errors import ConfigError, TraceError, did_you_mean
from queuesmith.traces.trace import Origin, Trace

#: Steps of the rate per shortest time scale.
_STEPS_PER_SCALE = 4
_BLOCK = 1 << 14


@dataclass(frozen=True)
class Drift:
    """How long neighbouring requests stay alike in one length.

    Attributes
    ----------
    share : float
        Of the variance of the normal score, that is slow by itself; 0 is no memory.
    num_requests : float
        Over which that memory fades to 1/e.
    with_rate : float
        Correlation of the normal score with the logarithm of the rate.
    """

    share: float
    num_requests: float
    with_rate: float


@dataclass(frozen=True, eq=False)
class WorkloadModel:
    """Parameters of one workload.

    Attributes
    ----------
    name : str
    version : str
        Of the parameters: the start of a hash.
    rate : float
        Mean requests per second.
    gap_shape : float
        Of the gamma distribution of gaps at a constant rate; 1 is Poisson, less is burstier.
    time_scales : (num_scales,) float64
        Seconds after which each part of the rate has forgotten itself to 1/e.
    log_rate_variance : (num_scales,) float64
        Of each part.
    levels : (num_levels,) float64
        From 0 to 1.
    prompt_len, output_len : (num_levels,) float64
        Quantiles at `levels`, in tokens.
    copula : (num_bins, num_bins) float64
        Weight of each cell of prompt rank (rows) and output rank (columns).
    prompt_drift, output_drift : Drift
        Of outputs, and of what outputs leave open about prompts.
    fit : dict
        To what, and by which command, the parameters were fitted.
    """

    name: str
    rate: float
    gap_shape: float
    time_scales: NDArray[np.float64]
    log_rate_variance: NDArray[np.float64]
    levels: NDArray[np.float64]
    prompt_len: NDArray[np.float64]
    output_len: NDArray[np.float64]
    copula: NDArray[np.float64]
    prompt_drift: Drift
    output_drift: Drift
    version: str = ""
    fit: dict[str, Any] = field(default_factory=dict)

    def sample(self, num_requests: int, seed: int = 0) -> Trace:
        """Draw a trace that starts at 0 s.

        Parameters
        ----------
        num_requests : int
            At least 1.
        seed : int
            Equal seeds give equal bytes.

        Raises
        ------
        ConfigError
            If `num_requests` is below 1 or `seed` is negative.
        """
        if num_requests < 1:
            raise ConfigError(f"num_requests must be at least 1, got {num_requests}")
        if seed < 0:
            raise ConfigError(f"seed must be at least 0, got {seed}")
        arrivals_rng, lengths_rng = np.random.default_rng(seed).spawn(2)
        arrival_time, rate_score = self._arrivals(num_requests, arrivals_rng)
        prompt_len, output_len = self._lengths(rate_score, lengths_rng)
        note = f"drawn with seed {seed} from a model fitted to {self.fit.get('source', 'a trace')}"
        origin = Origin(
            "modelled", f"{self.name}@model", reader=f"model {self.version}", notes=(note,)
        )
        return Trace(arrival_time, prompt_len, output_len, origin=origin)

    def _arrivals(
        self, num_requests: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Space requests evenly but for gamma noise, in a clock that runs with the rate.

        Return arrival times in s, and the standard normal score of the rate at each.
        """
        shape = self.gap_shape
        ticks = np.cumsum(rng.gamma(shape, 1 / shape, num_requests))
        step = float(self.time_scales.min()) / _STEPS_PER_SCALE
        variance = float(self.log_rate_variance.sum())
        clock = [np.zeros(1)]
        log_rates: list[NDArray[np.float64]] = []
        # A request is likelier to come while the rate is high, and this is how high it finds it;
        # so started, every request sees the same distribution, however short the draw.
        state = np.sqrt(self.log_rate_variance)
        while clock[-1][-1] <= ticks[-1]:
            log_rate = np.full(_BLOCK, -variance / 2)
            for part, scale in enumerate(self.time_scales):
                memory = float(np.exp(-step / scale))
                walk = _autoregression(_BLOCK, memory, rng, state[part], fresh=not log_rates)
                state[part] = walk[-1]
                log_rate += np.sqrt(self.log_rate_variance[part]) * walk
            log_rates.append(log_rate)
            clock.append(clock[-1][-1] + np.cumsum(self.rate * step * np.exp(log_rate)))
        edges = np.concatenate(clock)
        steps = np.interp(ticks, edges, np.arange(len(edges)))
        seen = np.concatenate(log_rates)[steps.astype(np.int64)] - variance / 2
        return (steps - steps[0]) * step, seen / max(variance, 1e-12) ** 0.5

    def _lengths(
        self, rate_score: NDArray[np.float64], rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Pick output ranks, which drift most, then prompt ranks given the output's bin."""
        num_requests = len(rate_score)
        output_rank = ndtr(_drifting_scores(rate_score, self.output_drift, rng))
        given_bin = ndtr(_drifting_scores(rate_score, self.prompt_drift, rng))
        num_bins = len(self.copula)
        bins = np.minimum((output_rank * num_bins).astype(np.int64), num_bins - 1)
        prompt_rank = np.empty(num_requests)
        edges = np.linspace(0, 1, num_bins + 1)
        for output_bin in range(num_bins):
            share = np.concatenate([[0.0], np.cumsum(self.copula[:, output_bin])])
            rows = bins == output_bin
            prompt_rank[rows] = np.interp(given_bin[rows], share / share[-1], edges)
        prompt_len = np.rint(np.interp(prompt_rank, self.levels, self.prompt_len))
        output_len = np.rint(np.interp(output_rank, self.levels, self.output_len))
        return prompt_len.astype(np.int64), output_len.astype(np.int64)


def model_names() -> list[str]:
    """List the workload models in the package."""
    folder = resources.files("queuesmith.traces") / "models"
    return sorted(
        entry.name.removesuffix(".toml")
        for entry in folder.iterdir()
        if entry.name.endswith(".toml")
    )


def load_model(name: str) -> WorkloadModel:
    """Load a workload model of the package by name.

    Raises
    ------
    TraceError
        If there is none of that name.
    """
    known = model_names()
    if name not in known:
        raise TraceError(
            f"there is no workload model {name!r}.{did_you_mean(name, known)} "
            f"Known: {', '.join(known)}"
        )
    text = (resources.files("queuesmith.traces") / "models" / f"{name}.toml").read_text("utf-8")
    return parse_model(text)


def parse_model(text: str) -> WorkloadModel:
    """Make a model of the TOML text that `queuesmith.traces.fit.format_model` writes."""
    values = tomllib.loads(text)
    arrivals, lengths, drift = values["arrivals"], values["lengths"], values["drift"]
    return WorkloadModel(
        name=values["name"],
        version=hashlib.sha256(text.encode()).hexdigest()[:12],
        rate=arrivals["rate"],
        gap_shape=arrivals["gap_shape"],
        time_scales=np.array(arrivals["time_scales"], np.float64),
        log_rate_variance=np.array(arrivals["log_rate_variance"], np.float64),
        levels=np.array(lengths["levels"], np.float64),
        prompt_len=np.array(lengths["prompt_len"], np.float64),
        output_len=np.array(lengths["output_len"], np.float64),
        copula=np.array(lengths["copula"], np.float64),
        prompt_drift=Drift(**drift["prompt"]),
        output_drift=Drift(**drift["output"]),
        fit=values["fit"],
    )


def _drifting_scores(
    rate_score: NDArray[np.float64], drift: Drift, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Draw standard normal scores of which a share is slow."""
    num_requests = len(rate_score)
    fresh = rng.standard_normal(num_requests)
    memory = float(np.exp(-1 / drift.num_requests))
    slow = _autoregression(num_requests, memory, rng, 0.0, fresh=True)
    rest = 1 - drift.share - drift.with_rate**2
    scores = drift.with_rate * rate_score + np.sqrt(drift.share) * slow + np.sqrt(rest) * fresh
    return np.asarray(scores)


def _autoregression(
    length: int, memory: float, rng: np.random.Generator, last: float, fresh: bool
) -> NDArray[np.float64]:
    """Draw a standard normal AR(1) that goes on from `last`, or starts with `last` as its mean."""
    noise = rng.standard_normal(length)
    noise[1:] *= np.sqrt(1 - memory**2)
    if fresh:
        noise[0] += last
    else:
        noise[0] = memory * last + np.sqrt(1 - memory**2) * noise[0]
    return np.asarray(lfilter([1.0], [1.0, -memory], noise))

"""One population of requests in a workload model: when they come, and how long they are.

* *Arrivals* are spaced by gamma gaps (or by gaps of a table, where a gamma distribution cannot say
  how long the pauses are) at a rate that moves on several time scales at once. The logarithm of
  the rate is a sum of stationary Ornstein-Uhlenbeck processes, one per time scale, around a
  curve over the hours of the day.
* *Lengths* follow quantile tables of prompts and outputs, joined by a checkerboard copula: the
  share of requests in each cell of (prompt rank, output rank), uniform within a cell.
* *Drift*: successive requests resemble each other a little for a long time. The normal score that
  picks a length is the sum of fresh noise, a slow first-order autoregression over requests, and
  the logarithm of the rate, with which lengths may go.

Every random number has its own place in its own stream, so that a longer draw begins with the
shorter ones.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from queuesmith.traces.models.sessions import Draw, Sessions, follow_up

#: Seconds.
HOUR = 3600.0
HOURS = 24
#: Steps of the rate per shortest time scale.
_STEPS_PER_SCALE = 4
_LONGEST_STEP = HOUR / 4
_BLOCK = 1 << 14
_CANDIDATES = 256


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

    share: float = 0.0
    num_requests: float = 1.0
    with_rate: float = 0.0


@dataclass(frozen=True)
class Start:
    """Where a draw begins.

    Attributes
    ----------
    time_of_day : float
        Seconds since midnight.
    with_request : bool
        Whether the first arrival is the request that the draw begins with. A request is likelier to
        come while the rate is high; so started, every request sees the same distribution, however
        short the draw.
    """

    time_of_day: float
    with_request: bool


@dataclass(frozen=True, eq=False)
class Client:
    """Parameters of one population.

    Attributes
    ----------
    name : str
    rate : float
        Mean requests per second; of first turns, where there are sessions.
    gap_shape : float
        Of the gamma distribution of gaps at a constant rate; 1 is Poisson, less is burstier.
    time_scales : (num_scales,) float64
        Seconds after which each part of the rate has forgotten itself to 1/e. May be empty.
    log_rate_variance : (num_scales,) float64
        Of each part.
    levels : (num_levels,) float64
        From 0 to 1.
    prompt_len, output_len : (num_levels,) float64
        Quantiles at `levels`, in tokens.
    copula : (num_bins, num_bins) float64, optional
        Weight of each cell of prompt rank (rows) and output rank (columns); independent lengths
        when left out.
    prompt_drift, output_drift : Drift
        Of outputs, and of what outputs leave open about prompts.
    gap_levels, gaps : (num_gap_levels,) float64, optional
        Quantiles of gaps at a constant rate, in place of `gap_shape`; scaled to mean 1 when drawn.
    hourly : (24,) float64, optional
        Rate in each hour of the day, in units of the mean; constant when left out.
    sessions : Sessions, optional
        What follows a request, where requests are turns of conversations.
    """

    name: str
    rate: float
    gap_shape: float
    time_scales: NDArray[np.float64]
    log_rate_variance: NDArray[np.float64]
    levels: NDArray[np.float64]
    prompt_len: NDArray[np.float64]
    output_len: NDArray[np.float64]
    copula: NDArray[np.float64] | None = None
    prompt_drift: Drift = Drift()
    output_drift: Drift = Drift()
    gap_levels: NDArray[np.float64] | None = None
    gaps: NDArray[np.float64] | None = None
    hourly: NDArray[np.float64] | None = None
    sessions: Sessions | None = None

    @property
    def request_rate(self) -> float:
        """Mean requests per second, of all turns."""
        return self.rate if self.sessions is None else self.rate * self.sessions.mean_turns

    def rate_at(self, time_of_day: float) -> float:
        """Return the mean requests per second, of all turns, at a time of day in seconds."""
        if self.hourly is None:
            return self.request_rate
        return float(self.request_rate * self.hourly[int(time_of_day / HOUR) % HOURS])

    def draw(self, num_requests: int, seeds: np.random.SeedSequence, start: Start) -> Draw:
        """Draw requests in order of arrival.

        Parameters
        ----------
        num_requests : int
            At least 1; of first turns, where there are sessions.
        seeds : SeedSequence
            Equal ones give equal requests, however many are drawn.
        start : Start
        """
        # A sequence remembers what it has spawned; a fresh copy spawns the same again.
        fresh = np.random.SeedSequence(seeds.entropy, spawn_key=seeds.spawn_key)
        *streams, session_seeds = fresh.spawn(7)
        rngs = [np.random.default_rng(stream) for stream in streams]
        arrival_time, rate_score = self._arrivals(num_requests, rngs[0], rngs[1], start)
        prompt_len, output_len = self._lengths(rate_score, rngs[2:])
        draw = Draw(arrival_time, prompt_len, output_len, float(arrival_time[-1]))
        return draw if self.sessions is None else follow_up(draw, self.sessions, session_seeds)

    def _arrivals(
        self,
        num_requests: int,
        gap_rng: np.random.Generator,
        rate_rng: np.random.Generator,
        start: Start,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Space requests evenly but for the gaps' noise, in a clock that runs with the rate.

        Return arrival times in s, and the standard normal score of the rate at each.
        """
        candidates, (place, within) = self._gaps(_CANDIDATES, gap_rng), gap_rng.random(2)
        gaps = self._gaps(num_requests, gap_rng)
        if start.with_request:
            gaps[0] = 0.0
        else:
            # Who looks at a random time looks into a long gap, somewhere within it.
            sizes = np.cumsum(candidates)
            into = np.searchsorted(sizes, place * sizes[-1])
            gaps[0] = within * candidates[min(into, _CANDIDATES - 1)]
        ticks = np.cumsum(gaps)
        variance = float(self.log_rate_variance.sum())
        shortest = float(self.time_scales.min()) if len(self.time_scales) else np.inf
        step = min(shortest / _STEPS_PER_SCALE, _LONGEST_STEP)
        clock = [np.zeros(1)]
        log_rates: list[NDArray[np.float64]] = []
        state = np.sqrt(self.log_rate_variance) * start.with_request
        while clock[-1][-1] <= ticks[-1]:
            log_rate = np.full(_BLOCK, -variance / 2)
            for part, scale in enumerate(self.time_scales):
                memory = float(np.exp(-step / scale))
                walk = _autoregression(_BLOCK, memory, rate_rng, state[part], not log_rates)
                state[part] = walk[-1]
                log_rate += np.sqrt(self.log_rate_variance[part]) * walk
            rate = self.rate * np.exp(log_rate)
            if self.hourly is not None:
                places = start.time_of_day + step * (len(log_rates) * _BLOCK + np.arange(_BLOCK))
                rate *= self.hourly[(places / HOUR).astype(np.int64) % HOURS]
            log_rates.append(log_rate)
            clock.append(clock[-1][-1] + np.cumsum(step * rate))
        edges = np.concatenate(clock)
        steps = np.interp(ticks, edges, np.arange(len(edges)))
        seen = np.concatenate(log_rates)[steps.astype(np.int64)] - variance / 2
        return steps * step, seen / max(variance, 1e-12) ** 0.5

    def _gaps(self, num_requests: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """Draw gaps of mean 1."""
        if self.gaps is None or self.gap_levels is None:
            return rng.gamma(self.gap_shape, 1 / self.gap_shape, num_requests)
        # Gaps span decades, so they are straight between levels on a logarithmic scale, on which
        # the mean between two levels is (b - a) / log(b / a).
        log_gaps = np.log(self.gaps)
        rise = np.diff(log_gaps)
        shape = np.divide(np.expm1(rise), rise, out=np.ones_like(rise), where=rise > 1e-9)
        mean = float((np.diff(self.gap_levels) * self.gaps[:-1] * shape).sum())
        return np.exp(np.interp(rng.random(num_requests), self.gap_levels, log_gaps)) / mean

    def _lengths(
        self, rate_score: NDArray[np.float64], rngs: list[np.random.Generator]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Pick output ranks, which drift most, then prompt ranks given the output's bin."""
        output_rank = _drifting_ranks(rate_score, self.output_drift, rngs[0], rngs[1])
        prompt_rank = _drifting_ranks(rate_score, self.prompt_drift, rngs[2], rngs[3])
        if self.copula is not None:
            prompt_rank = _join(prompt_rank, output_rank, self.copula)
        prompt_len = np.rint(np.interp(prompt_rank, self.levels, self.prompt_len))
        output_len = np.rint(np.interp(output_rank, self.levels, self.output_len))
        return prompt_len.astype(np.int64), output_len.astype(np.int64)


def _join(
    within: NDArray[np.float64], given: NDArray[np.float64], copula: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Turn ranks within each bin of another variable into ranks."""
    num_bins = len(copula)
    bins = np.minimum((given * num_bins).astype(np.int64), num_bins - 1)
    ranks = np.empty(len(within))
    edges = np.linspace(0, 1, num_bins + 1)
    for one in range(num_bins):
        share = np.concatenate([[0.0], np.cumsum(copula[:, one])])
        rows = bins == one
        ranks[rows] = np.interp(within[rows], share / share[-1], edges)
    return ranks


def _drifting_ranks(
    rate_score: NDArray[np.float64],
    drift: Drift,
    fresh_rng: np.random.Generator,
    slow_rng: np.random.Generator,
) -> NDArray[np.float64]:
    """Draw ranks whose normal score is slow by a share."""
    # Only here: numba takes time to import, and reading a file needs none of it.
    from queuesmith.traces.models.walk import normal_cdf

    num_requests = len(rate_score)
    rest = 1 - drift.share - drift.with_rate**2
    scores = np.sqrt(rest) * fresh_rng.standard_normal(num_requests)
    if drift.share:
        memory = float(np.exp(-1 / drift.num_requests))
        scores += np.sqrt(drift.share) * _autoregression(num_requests, memory, slow_rng, 0.0, True)
    if drift.with_rate:
        scores += drift.with_rate * rate_score
    return np.asarray(normal_cdf(scores))


def _autoregression(
    length: int, memory: float, rng: np.random.Generator, last: float, fresh: bool
) -> NDArray[np.float64]:
    """Draw a standard normal AR(1) that goes on from `last`, or starts with `last` as its mean."""
    from queuesmith.traces.models.walk import autoregress

    noise = rng.standard_normal(length)
    noise[1:] *= np.sqrt(1 - memory**2)
    if fresh:
        noise[0] += last
    else:
        noise[0] = memory * last + np.sqrt(1 - memory**2) * noise[0]
    return np.asarray(autoregress(noise, memory))

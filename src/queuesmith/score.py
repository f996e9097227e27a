"""How good a policy is beside a reference, by the time to first token.

Both have served the same windows of requests at the same loads. The reference is FCFS unless said
otherwise; where it left a request without a first token (a TTFT of +inf) there is nothing to
measure against and the outcome is NaN. A policy that did so where the reference did not is
infinitely worse in the mean.

Intervals and tests count windows, not requests: requests of a window wait for one another.
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from queuesmith.errors import ConfigError
from queuesmith.stats import (
    bootstrap_weights,
    holm,
    interval,
    pooled_mean_draws,
    pooled_quantile_draws,
    quantiles,
    sign_test,
)

#: Two values that differ by no more than this share of the reference are tied.
MARGIN = 0.01
#: Windows without ties that a sign test needs: with fewer even a clean sweep proves little.
MIN_WINDOWS = 8

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Configuration(NamedTuple):
    """Where a policy was measured: whose traffic, at which load."""

    source: str
    load: float | str


@dataclass(frozen=True, eq=False)
class Sample:
    """What one configuration's requests waited for their first token.

    Parameters
    ----------
    ttft : (n,) array_like
        Seconds, at least 0; NaN (no first token before the horizon) is kept as +inf.
    window : (n,) array_like
        Number of the window that each request belongs to.
    """

    ttft: Floats
    window: Ints

    def __init__(self, ttft: ArrayLike, window: ArrayLike) -> None:
        times, windows = np.array(ttft, np.float64), np.asarray(window, np.int64)
        if times.ndim != 1 or times.shape != windows.shape or not len(times):
            raise ConfigError(
                "a sample needs one window for each TTFT and at least one of both, "
                f"got shapes {times.shape} and {windows.shape}"
            )
        times[np.isnan(times)] = np.inf
        if times.min() < 0:
            raise ConfigError(f"a TTFT must be at least 0 s, got {times.min():g}")
        object.__setattr__(self, "ttft", times)
        object.__setattr__(self, "window", windows)


@dataclass(frozen=True)
class Term:
    """What one configuration adds to a score.

    Attributes
    ----------
    mean_gain : float
        ln(mean of the reference / mean); above 0 is better.
    p99_gain, p99_gain_unclipped : float
        The same of p99: at most 0, since a lower tail earns nothing; and as it is, for reading.
    penalty : float
        By how much p99 / p99 of the reference exceeds 1.02.
    value : float
        ``mean_gain / 2 + p99_gain / 2 - 4 * penalty``.
    """

    mean_gain: float
    p99_gain: float
    penalty: float
    p99_gain_unclipped: float
    value: float


@dataclass(frozen=True)
class Score:
    """The sum of the terms of all configurations, with an interval; the reference has 0."""

    value: float
    low: float
    high: float
    terms: Mapping[Configuration, Term]


def score(
    policy: Mapping[Configuration, Sample],
    reference: Mapping[Configuration, Sample],
    *,
    draws: int = 10_000,
    seed: int = 0,
    level: float = 0.95,
) -> Score:
    """Score a policy; higher is better.

    Parameters
    ----------
    policy, reference : mapping of Configuration to Sample
        The same configurations and windows. ``("azure", 0.8)`` does for a Configuration.
    draws : int
        Bootstrap draws. The interval is NaN without any, or if a source has a single window.
    seed : int
        The same seed draws the same windows for every policy, so that scores compare as pairs.
    level : float
        Of the interval.

    Raises
    ------
    ConfigError
        If the two were not measured on the same windows.

    Notes
    -----
    ``S = sum_c [ln(mean_F / mean) / 2 + min(0, ln(p99_F / p99)) / 2 - 4 max(0, p99 / p99_F -
    1.02)]`` over configurations c, F the reference, both statistics pooled over a configuration's
    windows. The penalty starts below the limit of `tail_violation` and has no step, so that there
    is no edge to sit on.

    A draw takes whole windows of a source with replacement, and takes the same ones for policy and
    reference (they served the same requests) and at every load: loads are the same windows with
    time scaled, and drawing them apart would count one window several times as independent
    evidence. Sources are drawn independently; a source's draws do not depend on the others present.

    Examples
    --------
    >>> fcfs = {("azure", 0.8): Sample([1.0, 3.0, 2.0, 2.0], [0, 0, 1, 1])}
    >>> halved = {("azure", 0.8): Sample([0.5, 1.5, 1.0, 1.0], [0, 0, 1, 1])}
    >>> round(score(halved, fcfs).value, 4)  # ln(2) / 2
    0.3466
    >>> score(fcfs, fcfs).low
    0.0
    """
    pairs = _paired(policy, reference)
    by_source: dict[str, Ints] = {}
    for configuration, pair in pairs.items():
        windows = by_source.setdefault(configuration.source, pair.windows)
        if not np.array_equal(windows, pair.windows):
            raise ConfigError(
                f"the loads of {configuration.source} must be measured on the same windows, got "
                f"{windows.tolist()} and {pair.windows.tolist()}"
            )
    draws = 0 if min(map(len, by_source.values())) < 2 else draws
    weights = {
        source: _weights(len(windows), draws, [seed, zlib.crc32(source.encode())])
        for source, windows in by_source.items()
    }
    terms: dict[Configuration, Term] = {}
    total = np.zeros(1 + draws)
    for configuration, pair in pairs.items():
        drawn = weights[configuration.source]
        columns = term_columns(pair.mean_ratio(drawn), pair.p99_ratio(drawn))
        terms[configuration] = Term(*(float(column[0]) for column in columns))
        with np.errstate(invalid="ignore"):  # one term endlessly good, another endlessly bad: NaN
            total += columns[-1]
    return Score(float(total[0]), *interval(total[1:], level), terms)


def term_columns(mean_ratio: Floats, p99_ratio: Floats) -> tuple[Floats, ...]:
    """Columns in the order of the fields of `Term`; subtracted from 0 to have no minus zero."""
    with np.errstate(divide="ignore"):
        mean_gain, unclipped = 0.0 - np.log(mean_ratio), 0.0 - np.log(p99_ratio)
    clipped = np.minimum(0.0, unclipped)
    penalty = np.maximum(0.0, p99_ratio - 1.02)
    return mean_gain, clipped, penalty, unclipped, mean_gain / 2 + clipped / 2 - 4 * penalty


@dataclass(frozen=True)
class Tail:
    """Whether a policy makes the unluckiest requests of a configuration wait too long.

    `reason` says which limit was passed, with the numbers, and is empty when none was. The ratios
    are over the reference's, pooled; `low` and `high` are the 95 % interval of `p99_ratio`.
    """

    violated: bool
    reason: str
    p99_ratio: float
    low: float
    high: float
    p999_ratio: float
    max_ratio: float


def tail_violation(
    policy: Sample, reference: Sample, *, draws: int = 10_000, seed: int = 0
) -> Tail:
    """Decide whether a policy violates the tail of one configuration.

    It does if pooled p99 is above 1.05 of the reference's and the lower end of the ratio's interval
    is above 1 (a single window has no interval); or if pooled p99.9 or the largest TTFT is above
    1.25 of the reference's and more than 1 s worse, because a policy that starves one request in a
    hundred can halve its p99. A ratio of NaN, to an infinite reference, violates nothing.

    Examples
    --------
    >>> fcfs = Sample([1.0, 1.0, 1.0, 1.0], [0, 0, 1, 1])
    >>> starving = Sample([0.5, 0.5, 0.5, 9.0], [0, 0, 1, 1])
    >>> tail_violation(starving, fcfs).reason
    'p99.9 TTFT 8.97 s is 8.97 times 1 s'
    """
    pair = _pair(policy, reference)
    p99 = pair.p99_ratio(_weights(len(pair.windows), draws, [seed]))
    low, high = interval(p99[1:])
    worst = np.array(quantiles(policy.ttft, [0.999, 1.0]))
    limit = np.array(quantiles(reference.ttft, [0.999, 1.0]))
    ratios = ratio_to(worst, limit)
    reason = ""
    if p99[0] > 1.05 and low > 1:
        reason = f"p99 TTFT is {p99[0]:.3g} times the reference's, at least {low:.3g} times"
    for name, value, base, ratio in zip(("p99.9", "largest"), worst, limit, ratios, strict=True):
        if not reason and ratio > 1.25 and value > base + 1.0:
            reason = f"{name} TTFT {value:.3g} s is {ratio:.3g} times {base:.3g} s"
    return Tail(bool(reason), reason, float(p99[0]), low, high, *ratios.tolist())


@dataclass(frozen=True)
class Improvement:
    """By which share TTFT is lower than the reference's, with 95 % intervals; below 0 if higher."""

    mean: float
    mean_low: float
    mean_high: float
    p99: float
    p99_low: float
    p99_high: float


def improvement(
    policy: Sample, reference: Sample, *, draws: int = 10_000, seed: int = 0
) -> Improvement:
    """Compare the pooled mean and p99 of one configuration.

    Examples
    --------
    >>> fcfs = Sample([1.0, 1.0, 3.0, 3.0], [0, 0, 1, 1])
    >>> improvement(Sample([0.5, 0.5, 1.5, 1.5], [0, 0, 1, 1]), fcfs).mean
    0.5
    """
    pair = _pair(policy, reference)
    weights = _weights(len(pair.windows), draws, [seed])
    mean = 1.0 - pair.mean_ratio(weights)
    p99 = 1.0 - pair.p99_ratio(weights)
    return Improvement(float(mean[0]), *interval(mean[1:]), float(p99[0]), *interval(p99[1:]))


class Wins(NamedTuple):
    """Windows that a policy won, tied and lost."""

    wins: int
    ties: int
    losses: int


def window_wins(policy: Sample, reference: Sample, margin: float = MARGIN) -> Wins:
    """Count the windows whose mean TTFT is outside `margin` of the reference's.

    A window whose reference has an infinite mean is in none of the counts.

    Examples
    --------
    >>> fcfs = Sample([1.0, 1.0, 1.0], [0, 1, 2])
    >>> window_wins(Sample([0.5, 1.005, 2.0], [0, 1, 2]), fcfs)
    Wins(wins=1, ties=1, losses=1)
    """
    pair = _pair(policy, reference)
    ratio = pair.mean_ratio(np.eye(len(pair.windows), dtype=np.int64))
    wins = int((ratio < 1 - margin).sum())
    losses = int((ratio > 1 + margin).sum())
    return Wins(wins, int((~np.isnan(ratio)).sum()) - wins - losses, losses)


@dataclass(frozen=True)
class LoadTest:
    """An exact two-sided sign test over the windows of one configuration.

    `p_holm` is `p` adjusted over the loads of the same source. Both are NaN with fewer than
    ``MIN_WINDOWS`` windows without ties.
    """

    wins: int
    ties: int
    losses: int
    p: float
    p_holm: float


def load_tests(
    policy: Mapping[Configuration, Sample],
    reference: Mapping[Configuration, Sample],
    margin: float = MARGIN,
) -> dict[Configuration, LoadTest]:
    """Test at every load whether a policy wins more windows than it loses, or fewer.

    Loads are tested one by one, since they share their windows, and sources are not pooled. A load
    with too few windows without ties is neither tested nor counted by Holm: a sign test is
    conditional on its ties, so leaving it out favours nobody.
    """
    pairs = _paired(policy, reference)
    tests: dict[Configuration, LoadTest] = {}
    for source in dict.fromkeys(configuration.source for configuration in pairs):
        counts = {
            configuration: window_wins(pair.policy, pair.reference, margin)
            for configuration, pair in pairs.items()
            if configuration.source == source
        }
        tested = [key for key, count in counts.items() if count.wins + count.losses >= MIN_WINDOWS]
        p = [sign_test(counts[key].wins, counts[key].losses) for key in tested]
        found = dict(zip(tested, zip(p, holm(p).tolist(), strict=True), strict=True))
        for key, count in counts.items():
            tests[key] = LoadTest(*count, *found.get(key, (float("nan"), float("nan"))))
    return tests


@dataclass(frozen=True)
class _Pair:
    """Two samples of the same windows, with each request's column in the weights of windows."""

    policy: Sample
    reference: Sample
    windows: Ints
    policy_unit: Ints
    reference_unit: Ints

    def mean_ratio(self, weights: Ints) -> Floats:
        """Mean over the reference's, for each row of weights."""
        return ratio_to(
            pooled_mean_draws(self.policy.ttft, self.policy_unit, weights),
            pooled_mean_draws(self.reference.ttft, self.reference_unit, weights),
        )

    def p99_ratio(self, weights: Ints) -> Floats:
        """p99 over the reference's, for each row of weights."""
        return ratio_to(
            pooled_quantile_draws(self.policy.ttft, self.policy_unit, weights, 0.99),
            pooled_quantile_draws(self.reference.ttft, self.reference_unit, weights, 0.99),
        )


def _paired(
    policy: Mapping[Configuration, Sample], reference: Mapping[Configuration, Sample]
) -> dict[Configuration, _Pair]:
    if policy.keys() != reference.keys() or not policy:
        odd = ", ".join(str(tuple(key)) for key in policy.keys() ^ reference.keys())
        raise ConfigError(
            "a policy and its reference must be measured in the same configurations, at least one; "
            + (f"only one of them has {odd}" if odd else "there is none")
        )
    return {Configuration(*key): _pair(policy[key], reference[key]) for key in policy}


def _pair(policy: Sample, reference: Sample) -> _Pair:
    windows, unit, counts = np.unique(policy.window, return_inverse=True, return_counts=True)
    others, other_unit, other_counts = np.unique(
        reference.window, return_inverse=True, return_counts=True
    )
    if not (np.array_equal(windows, others) and np.array_equal(counts, other_counts)):
        served = np.column_stack([windows, counts]).tolist()
        raise ConfigError(
            "a policy and its reference must have served the same windows, got (window, requests) "
            f"{served} and {np.column_stack([others, other_counts]).tolist()}"
        )
    return _Pair(policy, reference, windows, unit, other_unit)


def _weights(num_windows: int, draws: int, seed: list[int]) -> Ints:
    """Row 0 takes every window once, so that an estimate and its draws are one computation."""
    draws = draws if num_windows > 1 else 0  # draws of one window are alike, which proves nothing
    drawn = bootstrap_weights(num_windows, draws, np.random.default_rng(seed))
    return np.vstack([np.ones((1, num_windows), np.int64), drawn])


def ratio_to(value: Floats, base: Floats) -> Floats:
    """`value` over `base`: 1 where both are 0, NaN where `base` is infinite."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = value / base
    ratio[(value == 0) & (base == 0)] = 1.0
    ratio[np.isinf(base)] = np.nan
    return ratio

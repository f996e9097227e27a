"""How far traffic lies from the sources of a study, by what can be measured of both.

A *feature* is compared as a logarithm (a rank correlation as it is) and in units of its *scale*:
how much it differs between the study's sources and between windows of one, both robustly. The
distance of two kinds of traffic is the root mean square of those differences over all features
that both have, so every feature weighs the same.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

#: Measured on each window at its own rate; the names are those of the windows table.
FEATURES = (
    "gap_cv",
    "count_cv_1s",
    "prompt_p50",
    "prompt_p99",
    "prompt_cv",
    "output_p50",
    "output_p99",
    "output_cv",
    "rank_corr",
)
#: Sources that agree in a feature more closely than this, 5 %, are not told apart by it.
LEAST_SCALE = 0.05
_NORMAL = 1.4826  # median absolute deviation to standard deviation, of a normal distribution

#: Feature to its middle and its spread, both on the scale on which it is compared.
Features = dict[str, dict[str, float]]


def features_of(windows: Mapping[str, ArrayLike]) -> Features:
    """Sum up the windows of one source: `middle` and `spread` of each feature that some window has.

    The median, and 1.4826 times the median distance from it.

    Examples
    --------
    >>> features_of({"rank_corr": [0.1, 0.2, 0.6]})
    {'rank_corr': {'middle': 0.2, 'spread': 0.14826}}
    """
    found = {}
    for name in FEATURES:
        if name not in windows:
            continue
        values = _compared(name, np.asarray(windows[name], np.float64))
        values = values[np.isfinite(values)]
        if len(values):
            middle, spread = _robust(values)
            found[name] = {"middle": round(middle, 6), "spread": round(spread, 6)}
    return found


def shown(name: str, middle: float) -> float:
    """Return a feature's middle in the unit in which it was measured."""
    return middle if name == "rank_corr" else math.exp(middle)


def scales(sources: Mapping[str, Features]) -> dict[str, float]:
    """Return the unit of each feature's differences.

    The root of the squared spread between the sources' middles plus the squared median spread
    within a source, and `LEAST_SCALE` at least.
    """
    found = {}
    for name in FEATURES:
        there = [features[name] for features in sources.values() if name in features]
        if there:
            between = _robust(np.array([one["middle"] for one in there]))[1]
            within = float(np.median([one["spread"] for one in there]))
            found[name] = max(math.hypot(between, within), LEAST_SCALE)
    return found


def differences(own: Features, other: Features, scale: Mapping[str, float]) -> dict[str, float]:
    """Return by how many scales each feature that both have is larger in `own`."""
    return {
        name: (own[name]["middle"] - other[name]["middle"]) / scale[name]
        for name in FEATURES
        if name in own and name in other and name in scale
    }


def distance(own: Features, other: Features, scale: Mapping[str, float]) -> float:
    """Return the root mean square difference; infinite where no feature is known of both.

    Examples
    --------
    >>> here = {"rank_corr": {"middle": 0.0, "spread": 0.1}}
    >>> there = {"rank_corr": {"middle": 0.4, "spread": 0.1}}
    >>> distance(here, there, {"rank_corr": 0.2})
    2.0
    """
    values = list(differences(own, other, scale).values())
    return math.sqrt(sum(value**2 for value in values) / len(values)) if values else math.inf


def radius(source: Features, scale: Mapping[str, float]) -> float:
    """Return how far a window of a source typically lies from the source's middle."""
    shares = [one["spread"] / scale[name] for name, one in source.items()]
    return math.sqrt(sum(share**2 for share in shares) / len(shares)) if shares else 0.0


def nearest_others(
    sources: Mapping[str, Features], scale: Mapping[str, float]
) -> dict[str, tuple[str, float]]:
    """Return for each source the nearest of the others and its distance; empty for one source."""
    found = {}
    for name, features in sources.items():
        others = [
            (distance(features, other, scale), key) for key, other in sources.items() if key != name
        ]
        if others:
            gap, key = min(others)
            found[name] = (key, gap)
    return found


def describe_traffic(features: Mapping[str, Any]) -> str:
    """Say in a few words what kind of traffic it is, from its median lengths and its gaps.

    Chat-like is an answer of 40 tokens and more to a prompt of less than 4,000; code-like a shorter
    answer to a prompt of 500 and more; bursty is a CV of gaps of 2 and more.
    """
    known = {name: shown(name, one["middle"]) for name, one in features.items()}
    prompt, output = known.get("prompt_p50"), known.get("output_p50")
    words = ""
    if prompt is not None and output is not None:
        if prompt >= 4000:
            words = "long-context"
        elif output >= 40:
            words = "chat-like"
        elif prompt >= 500:
            words = "code-like"
        else:
            words = "short-call"
    bursty = "bursty" if known.get("gap_cv", 0.0) >= 2 else ""
    return " ".join(word for word in (bursty, words) if word) or "this"


def _compared(name: str, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return values on the scale on which they are compared: ratios count, not differences."""
    if name == "rank_corr":
        return values
    return np.log(values, out=np.full(values.shape, np.nan), where=values > 0)


def _robust(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return the median and 1.4826 times the median distance from it."""
    middle = float(np.median(values))
    return middle, float(_NORMAL * np.median(np.abs(values - middle)))


def table_features(windows: Mapping[str, Sequence[Any]], source: str) -> Features:
    """Sum up one source of a windows table, given as columns."""
    rows = [row for row, name in enumerate(windows["source"]) if name == source]
    return features_of(
        {
            name: np.array([windows[name][row] for row in rows], np.float64)
            for name in FEATURES
            if name in windows
        }
    )

"""Which known source a trace is like: its lengths and bursts against those of the models.

A source is known by the model in the package that was fitted to it. Traces are compared by 16
statistics that do not depend on how busy a service is: percentiles of both lengths, how uneven
gaps and counts are over some tens of requests, and the rank correlation of the lengths.
"""

import math
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from queuesmith.traces.describe import gap_cv
from queuesmith.traces.statistics import rank_correlation
from queuesmith.traces.synthetic import load_model, model_names
from queuesmith.traces.trace import Trace

#: With fewer requests the percentiles say more about chance than about the traffic.
MIN_REQUESTS = 200
#: A source whose statistics are further off than this, typically, is not like the trace. The six
#: public traces are 1.02 to 1.4 from their own models, and 1.5 to 2.8 from the nearest other one.
FAR = 2.0

_PERCENTILES = (10, 25, 50, 75, 90, 99)
#: Mean requests per bin, whatever the rate.
_PER_BIN = (10, 50)
#: Bursts are looked at in blocks of so many requests, so that slow drifts, which grow with the
#: length of a record, do not count.
_BLOCK = 1_000
_MAX_BLOCKS = 10
#: From each of these draws from a model come stretches as long as the trace, of which the nearest
#: counts: in some models hours differ, or clients are so few that no two stretches are alike. Not
#: the seeds that users choose, or a draw would meet itself.
_SEEDS = (9_000_001, 9_000_002, 9_000_003)
_MAX_STRETCHES = 3
#: Less uneven than this is even; a logarithm needs a floor.
_LEAST_CV = 0.05


def resemblance(trace: Trace) -> dict[str, Any] | None:
    """Say which known source a trace resembles most, and how nearly.

    Parameters
    ----------
    trace : Trace

    Returns
    -------
    dict or None
        ``name`` of the source, None when the trace is unlike all (`FAR`); and ``sources``, nearest
        first, each with its ``name``, its ``factor``, by which a typical one of the 16 statistics
        differs (the exponential of the mean absolute difference of their logarithms; of the
        correlation, which has none, of its values), ``lengths`` and ``arrivals``, the same over
        the percentiles and over the bursts alone, and ``correlation``, the absolute difference.
        None when the trace has fewer than `MIN_REQUESTS` requests.

    Examples
    --------
    >>> model = load_model("azure_2023_code")
    >>> resemblance(model.sample(2_000, seed=7))["name"]
    'azure_2023_code'
    """
    if len(trace) < MIN_REQUESTS:
        return None
    own = _Fingerprint(trace)
    num_requests = min(len(trace), _BLOCK * _MAX_BLOCKS)
    found = {
        name: min(map(own.compare, prints), key=_factor)
        for name, prints in _known(num_requests).items()
    }
    nearest = sorted(found, key=lambda name: _factor(found[name]))
    return {
        "name": nearest[0] if _factor(found[nearest[0]]) <= FAR else None,
        "sources": [{"name": name, **found[name]} for name in nearest],
    }


def _factor(compared: dict[str, float]) -> float:
    return compared["factor"]


class _Fingerprint:
    """The statistics of a trace, as logarithms where they are positive by nature."""

    def __init__(self, trace: Trace) -> None:
        blocks = _cut(trace, min(_BLOCK, len(trace)), _MAX_BLOCKS)
        self.lengths = np.log(
            np.concatenate(
                [
                    np.percentile(np.concatenate(tokens), _PERCENTILES)
                    for tokens in (
                        [block.prompt_len for block in blocks],
                        [block.output_len for block in blocks],
                    )
                ]
            )
        )
        uneven = np.median([_unevenness(block) for block in blocks], axis=0)
        self.arrivals = np.log(np.maximum(uneven, _LEAST_CV))
        # Lengths that never vary go together with nothing.
        self.correlation = float(
            np.median(
                np.nan_to_num(
                    [rank_correlation(block.prompt_len, block.output_len) for block in blocks]
                )
            )
        )

    def compare(self, other: "_Fingerprint") -> dict[str, float]:
        lengths = np.abs(self.lengths - other.lengths)
        arrivals = np.abs(self.arrivals - other.arrivals)
        correlation = abs(self.correlation - other.correlation)
        return {
            "factor": math.exp(np.mean([*lengths, *arrivals, correlation])),
            "lengths": math.exp(lengths.mean()),
            "arrivals": math.exp(arrivals.mean()),
            "correlation": correlation,
        }


@lru_cache(maxsize=4)
def _known(num_requests: int) -> dict[str, list[_Fingerprint]]:
    return {
        name: [
            _Fingerprint(stretch)
            for seed in _SEEDS
            for stretch in _cut(
                load_model(name).sample(_BLOCK * _MAX_BLOCKS, seed), num_requests, _MAX_STRETCHES
            )
        ]
        for name in model_names()
    }


def _cut(trace: Trace, size: int, most: int) -> list[Trace]:
    """Cut out as many pieces of a size as fit, at most so many, evenly spread."""
    starts = np.linspace(0, len(trace) - size, min(most, len(trace) // size)).astype(int)
    return [trace.take(slice(start, start + size)) for start in starts]


def _unevenness(block: Trace) -> list[float]:
    """Return coefficients of variation: of gaps, and of counts in bins of each size."""
    if block.duration == 0:
        return [0.0] * (1 + len(_PER_BIN))
    return [gap_cv(block) or 0.0, *(_count_cv(block, mean) for mean in _PER_BIN)]


def _count_cv(block: Trace, per_bin: int) -> float:
    arrivals = block.arrival_time - block.arrival_time[0]
    num_bins = len(block) // per_bin
    counts: NDArray[np.int64] = np.bincount(
        np.minimum(arrivals / block.duration * num_bins, num_bins - 1).astype(np.int64),
        minlength=num_bins,
    )
    return float(counts.std() / counts.mean())

"""What each request of one policy at one load experienced, pooled over windows."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from queuesmith.config import Slo
from queuesmith.engine.result import Result
from queuesmith.metrics import e2el, met_slo, slowdown, span, tpot, ttft

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Totals:
    """What the engine did in each window; row k is the k-th smallest window number.

    Attributes
    ----------
    span : (num_windows,) float64
        Seconds from the first arrival to the end of the last step.
    num_output_tokens, num_computed_tokens, num_recomputed_tokens : (num_windows,) float64
    itl_counts : (num_windows, num_bins) int64
        Histogram of the gaps between output tokens, by ``ITL_EDGES``.
    """

    span: Floats
    num_output_tokens: Floats
    num_computed_tokens: Floats
    num_recomputed_tokens: Floats
    itl_counts: Ints


@dataclass(frozen=True, eq=False)
class Samples:
    """Row k is the same request under every policy at one load.

    Attributes
    ----------
    ttft, tpot, e2el : (num_requests,) float64
        Seconds; NaN when the request was not served to its end, and the TPOT of a one-token answer.
    slowdown : (num_requests,) float64
        E2EL over E2EL alone on an idle engine; NaN when the request did not finish.
    prompt_len, output_len, window : (num_requests,) int64
    met : (num_requests,) bool or None
        Whether each request met the SLO; None without one.
    priority, client : (num_requests,) int64 or None
        None where the trace does not say.
    totals : Totals or None
        None where only requests were measured.
    """

    ttft: Floats
    slowdown: Floats
    prompt_len: Ints
    output_len: Ints
    window: Ints
    tpot: Floats | None = None
    e2el: Floats | None = None
    met: NDArray[np.bool_] | None = None
    priority: Ints | None = None
    client: Ints | None = None
    totals: Totals | None = None

    @cached_property
    def windows(self) -> Ints:
        """Return the window numbers, ascending."""
        return np.unique(self.window)

    @cached_property
    def unit(self) -> Ints:
        """Return the place of each request's window in `windows`."""
        return np.searchsorted(self.windows, self.window)


def pool(
    results: Sequence[Result],
    alone: Sequence[Floats],
    windows: Sequence[int],
    slo: Slo | None,
) -> Samples:
    """Pool the runs of one policy at one load.

    Parameters
    ----------
    results : sequence of Result
        One per window.
    alone : sequence of (num_requests,) float64
        E2EL of each request alone on an idle engine, s.
    windows : sequence of int
        Number of each window.
    slo : Slo, optional
    """

    def column(name: str) -> Ints | None:
        values = [getattr(result.trace, name) for result in results]
        return None if any(each is None for each in values) else np.concatenate(values)

    order = np.unique(list(windows), return_inverse=True)[1]

    def total(values: list[float]) -> Floats:
        return np.bincount(order, np.array(values, np.float64)).astype(np.float64)

    itl_counts = np.zeros((order.max() + 1, len(results[0].itl_counts)), np.int64)
    np.add.at(itl_counts, order, [result.itl_counts for result in results])
    finished = [~np.isnan(result.requests.last_token_ts) for result in results]
    return Samples(
        ttft=np.concatenate([ttft(result) for result in results]),
        tpot=np.concatenate([tpot(result) for result in results]),
        e2el=np.concatenate([e2el(result) for result in results]),
        slowdown=np.concatenate(
            [slowdown(result, each) for result, each in zip(results, alone, strict=True)]
        ),
        prompt_len=np.concatenate([result.requests.prompt_len for result in results]),
        output_len=np.concatenate([result.requests.output_len for result in results]),
        window=np.repeat(list(windows), [len(result.requests) for result in results]),
        met=None if slo is None else np.concatenate([met_slo(result, slo) for result in results]),
        priority=column("priority"),
        client=column("client"),
        totals=Totals(
            span=total([span(result) for result in results]),
            num_output_tokens=total(
                [
                    int(result.requests.output_len[done].sum())
                    for result, done in zip(results, finished, strict=True)
                ]
            ),
            num_computed_tokens=total([result.num_computed_tokens for result in results]),
            num_recomputed_tokens=total([result.num_recomputed_tokens for result in results]),
            itl_counts=itl_counts,
        ),
    )

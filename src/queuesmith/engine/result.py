"""What one simulation leaves behind."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from queuesmith.traces.trace import Trace

#: One row per simulated request. Times are seconds on the clock of the trace; NaN marks an instant
#: that was not reached before the horizon.
RESULT_DTYPE = np.dtype(
    [
        ("row", "i8"),  # of the request in the trace that was given
        ("arrival_time", "f8"),
        ("prompt_len", "i8"),
        ("output_len", "i8"),
        ("predicted_output_tokens", "f8"),  # what the policy could know
        ("deadline", "f8"),  # +inf for none
        ("scheduled_ts", "f8"),  # start of the first step that computed any of its tokens
        ("first_token_ts", "f8"),
        ("last_token_ts", "f8"),  # NaN unless the request finished
        ("aborted_ts", "f8"),  # when its client gave up; NaN if it did not, or was served by then
        ("rejected_ts", "f8"),  # when it was turned away; NaN if it was not
        ("num_output_tokens", "i8"),  # produced; `output_len` once finished
        ("num_preemptions", "i8"),
        ("replica", "i8"),  # it was sent to; -1 for a later turn that did not come
    ],
    align=True,
)

#: Edges of the inter-token histogram in seconds: 2 % apart, from 10 us to about 10,000 s. Smaller
#: and larger gaps are counted in the first and last bin.
ITL_EDGES: NDArray[np.float64] = 1e-5 * np.power(1.02, np.arange(1048), dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Recording:
    """What every step of a run decided.

    Attributes
    ----------
    steps : (num_steps,) STEP_DTYPE of :mod:`queuesmith.engine.kernel.state`
    tokens : (num_entries, 2) int64
        Row and tokens of everything scheduled, step after step; a step's entries end at its
        ``end_entry``.
    preemptions : (num_preemptions,) int64
        Rows; a step's preemptions end at its ``end_preemption``.
    """

    steps: NDArray[np.void]
    tokens: NDArray[np.int64]
    preemptions: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Result:
    """One row per simulated request, run totals and the inter-token histogram.

    Attributes
    ----------
    policy : str
    trace : Trace
        What was simulated: the trace given, less the requests that could never run.
    requests : (num_requests,) RESULT_DTYPE, record array
        In order of arrival: ``result.requests.first_token_ts``.
    itl_counts : (len(ITL_EDGES) - 1,) int64
        How many gaps between consecutive output tokens of a request fell between two edges.
    num_steps : int
        Steps the engine took.
    num_jumps : int
        Stretches of pure decode that the kernel jumped over.
    num_computed_tokens, num_recomputed_tokens : int
        Tokens computed in all; those lost to a preemption and not found again, hence computed
        again.
    num_cached_tokens : int
        Tokens not computed because a prefix was cached.
    end_time : float
        When the last step ended, s.
    num_dropped : int
        Requests of the given trace that could never run under this configuration.
    num_truncated : int
        Requests whose output the context window or their ``max_tokens`` cut.
    recording : Recording or None
        Of the one engine.
    replicas : tuple of Result
        When several engines were recorded, what each did: its requests in the order in which it got
        them, its own totals and its recording.
    """

    policy: str
    trace: Trace
    requests: np.recarray
    itl_counts: NDArray[np.int64]
    num_steps: int
    num_jumps: int
    num_computed_tokens: int
    num_recomputed_tokens: int
    end_time: float
    num_dropped: int
    num_truncated: int = 0
    num_cached_tokens: int = 0
    recording: Recording | None = None
    replicas: tuple["Result", ...] = ()

    @property
    def num_preemptions(self) -> int:
        """Preemptions in all, for KV blocks and by a ``PREEMPTIVE`` policy."""
        return int(self.requests.num_preemptions.sum())

    @property
    def num_rejected(self) -> int:
        """Requests turned away, by vLLM's limits or the policy's `reject`."""
        return int((~np.isnan(self.requests.rejected_ts)).sum())

    def __repr__(self) -> str:
        return (
            f"Result({self.policy}: {len(self.requests):,} requests, {self.num_steps:,} steps, "
            f"{self.num_preemptions:,} preemptions, {self.end_time:.6g} s)"
        )

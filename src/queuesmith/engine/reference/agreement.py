"""Whether the compiled kernel and the reference engine took the same decisions."""

import math
from itertools import zip_longest

import numpy as np

from queuesmith.engine.reference.engine import ReferenceEngine
from queuesmith.engine.result import ITL_EDGES, Result

#: Seconds by which instants may differ.
TOLERANCE = 1e-9


def first_difference(result: Result, reference: ReferenceEngine) -> str:
    """Say where two runs of the same workload part; return an empty string if nowhere.

    Compared are, step by step, the tokens of each request, the preemptions in their order, the free
    KV blocks and the instants; then what each request experienced, the totals and the histogram of
    inter-token gaps.

    Parameters
    ----------
    result : Result
        Of the kernel, recorded.
    reference : ReferenceEngine
        As it ended.

    Raises
    ------
    ValueError
        If `result` was not recorded.
    """
    if result.recording is None:
        raise ValueError("there is nothing to compare: record the kernel's run")
    recording = result.recording
    entry = preemption = 0
    for step, (ours, theirs) in enumerate(zip_longest(recording.steps, reference.steps)):
        if ours is None or theirs is None:
            return (
                f"the kernel took {len(recording.steps)} steps, "
                f"the reference {len(reference.steps)}"
            )
        tokens = {int(row): int(new) for row, new in recording.tokens[entry : ours["end_entry"]]}
        preempted = recording.preemptions[preemption : ours["end_preemption"]].tolist()
        entry, preemption = ours["end_entry"], ours["end_preemption"]
        for what, kernel_says, reference_says in (
            ("tokens by row", tokens, theirs.tokens),
            ("preempted rows", preempted, theirs.preempted),
            ("free KV blocks", int(ours["num_free_blocks"]), theirs.num_free_blocks),
        ):
            if kernel_says != reference_says:
                return f"step {step}: {what} {kernel_says} in the kernel, {reference_says} not"
        for what in ("scheduled", "start", "duration"):
            if not abs(ours[what] - getattr(theirs, what)) <= TOLERANCE:
                return f"step {step}: {what} {ours[what]!r} and {getattr(theirs, what)!r} s"
    for ours, request in zip(result.requests, reference.requests, strict=True):
        for what, kernel_says, reference_says in (
            ("scheduled", ours.scheduled_ts, request.scheduled_ts),
            ("first token", ours.first_token_ts, request.first_token_ts),
            ("last token", ours.last_token_ts, request.finished_ts),
            ("aborted", ours.aborted_ts, request.aborted_ts),
            ("rejected", ours.rejected_ts, request.rejected_ts),
        ):
            if math.isnan(kernel_says) and math.isnan(reference_says):
                continue
            if not abs(kernel_says - reference_says) <= TOLERANCE:
                return f"row {request.row}: {what} at {kernel_says!r} and {reference_says!r} s"
    for what in ("num_computed_tokens", "num_recomputed_tokens", "num_cached_tokens"):
        if getattr(result, what) != getattr(reference, what):
            return f"{what}: {getattr(result, what)} and {getattr(reference, what)}"
    gaps = np.clip(reference.gaps, ITL_EDGES[0], ITL_EDGES[-1] * (1 - 1e-9))
    if not np.array_equal(result.itl_counts, np.histogram(gaps, ITL_EDGES)[0]):
        return "the histograms of inter-token gaps differ"
    return ""

"""Sessions as a closed loop: the next turn arrives a think time after the last answer.

A log says when turns arrived on the server that it is of. On a slower or faster one they would have
come later or earlier, since a user reads an answer before asking again.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from queuesmith.config import EngineConfig
from queuesmith.engine.isolated_latency import e2el_alone
from queuesmith.engine.presets.step_time import StepTime
from queuesmith.errors import TraceError
from queuesmith.traces.trace import Trace


def close_loop(trace: Trace, config: EngineConfig, step_time: StepTime) -> Trace:
    """Return the same requests, with later turns of sessions waiting for the answers before.

    A think time is the time from the end of a turn to the arrival of the session's next one, or 0
    where that came earlier. Ends are taken from the log where it has them; else the answer is
    taken to have lasted as long as on the idle engine that is given. A note of the trace says how
    many of each there were. Think times that the trace has already are kept.

    Raises
    ------
    TraceError
        If the trace has no sessions, or none of more than one turn.
    """
    source = trace.origin.source
    if trace.session is None:
        raise TraceError(
            f"{source} does not say which requests are of one session, so no turn can wait for "
            "another; map a column, such as --columns session=NAME"
        )
    order = np.argsort(trace.session, kind="stable")
    before, after = order[:-1], order[1:]
    same = (trace.session[after] >= 0) & (trace.session[after] == trace.session[before])
    before, after = before[same], after[same]
    if not len(after):
        raise TraceError(f"{source} has no session of two requests, so no turn waits for an answer")
    answer = e2el_alone(trace.prompt_len, trace.output_len, config, step_time)
    known: NDArray[np.bool_] = np.zeros(len(trace), np.bool_)
    if trace.measured is not None:
        known = np.isfinite(trace.measured.e2el)
        answer = np.where(known, trace.measured.e2el, answer)
    end = trace.arrival_time[before] + answer[before]
    think_time = np.full(len(trace), np.nan)
    think_time[after] = np.maximum(trace.arrival_time[after] - end, 0.0)
    given = np.full(len(trace), np.nan) if trace.think_time is None else trace.think_time
    is_given = ~np.isnan(given[after])
    think_time = np.where(np.isnan(given), think_time, given)
    estimated = int((~known[before] & ~is_given).sum())
    early = int(((trace.arrival_time[after] < end) & ~is_given).sum())
    notes = [f"turns that wait for the session's last answer: {len(after):,}"]
    if estimated:
        notes.append(
            f"think times without a recorded end, as if the answer had come from an idle engine: "
            f"{estimated:,}"
        )
    if early:
        notes.append(f"turns that came before the answer had ended, now right after it: {early:,}")
    return replace(trace, think_time=think_time).with_origin(notes=(*trace.origin.notes, *notes))

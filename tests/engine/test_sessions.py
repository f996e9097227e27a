"""Think times out of a log of sessions."""

import numpy as np
import pytest

from queuesmith.config import EngineConfig
from queuesmith.engine.closed_loop import close_loop
from queuesmith.engine.presets.step_time import StepTime
from queuesmith.errors import TraceError
from queuesmith.traces import load_trace
from queuesmith.traces.measured import Measured
from queuesmith.traces.trace import Trace

CONFIG = EngineConfig(max_num_seqs=4, num_gpu_blocks=100, max_model_len=512)
ONE_SECOND = StepTime(a=1.0)  # an answer of n tokens takes n seconds on an idle engine


def log(arrivals, session, output_len=2, **columns):
    size = len(arrivals)
    return Trace(arrivals, np.full(size, 10), np.full(size, output_len), session=session, **columns)


def close(trace):
    return close_loop(trace, CONFIG, ONE_SECOND)


def test_without_recorded_ends_an_answer_lasts_as_on_an_idle_engine():
    closed = close(log([0.0, 1.0, 5.0, 6.5], [1, 2, 1, 1]))

    assert closed.think_time.tolist()[2:] == [3.0, 0.0]
    assert np.isnan(closed.think_time[:2]).all()
    assert closed.origin.notes == (
        "turns that wait for the session's last answer: 2",
        "think times without a recorded end, as if the answer had come from an idle engine: 2",
        "turns that came before the answer had ended, now right after it: 1",
    )


def test_recorded_ends_come_first():
    unknown = np.full(3, np.nan)
    measured = Measured(unknown, unknown, np.array([0.5, np.nan, 1.0]), unknown)
    closed = close(log([0.0, 4.0, 10.0], [7, 7, 7], measured=measured))

    assert closed.think_time.tolist()[1:] == [3.5, 4.0]
    assert "as if the answer had come from an idle engine: 1" in closed.origin.notes[1]


def test_think_times_that_are_there_are_kept():
    trace = log([0.0, 4.0, 10.0], [7, 7, 7], think_time=[np.nan, 0.25, np.nan])

    assert close(trace).think_time.tolist()[1:] == [0.25, 4.0]


def test_requests_of_unknown_sessions_wait_for_nobody():
    closed = close(log([0.0, 4.0, 10.0, 20.0], [-1, -1, 3, 3]))

    assert np.isnan(closed.think_time[:3]).all()
    assert closed.think_time[3] == 8.0


def test_a_trace_without_sessions_is_refused_in_one_line():
    with pytest.raises(TraceError, match="does not say which requests are of one session"):
        close(Trace([0.0], [1], [1]))
    with pytest.raises(TraceError, match="no session of two requests"):
        close(log([0.0, 1.0], [1, 2]))


def test_a_table_may_hold_think_times(tmp_path):
    file = tmp_path / "log.csv"
    file.write_text(
        "arrival_time,prompt_len,output_len,session,think_time\n"
        "0,10,2,a,\n1,10,2,a,2.5\n2,10,2,a,-1\n3,10,2,b,inf\n"
    )
    trace = load_trace(file)

    assert trace.think_time[1] == 2.5
    assert np.isnan(trace.think_time[[0, 2, 3]]).all()
    assert "think times negative or too large: 1" in trace.origin.notes


def test_think_times_have_the_unit_of_the_table(tmp_path):
    file = tmp_path / "log.csv"
    file.write_text(
        "arrival_time,prompt_len,output_len,session,think_time\n0,10,2,1,\n1000,10,2,1,2500\n"
    )

    assert load_trace(file, unit="ms").think_time[1] == 2.5


def test_think_times_without_sessions_are_left_out(tmp_path):
    file = tmp_path / "log.csv"
    file.write_text("arrival_time,prompt_len,output_len,think_time\n0,10,2,\n1,10,2,2.5\n")
    trace = load_trace(file)

    assert trace.think_time is None
    assert any("think_time left out" in note for note in trace.origin.notes)

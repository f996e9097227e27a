"""A run as a file that Perfetto and chrome://tracing open."""

import json
from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest

from queuesmith.config import EngineConfig
from queuesmith.engine import simulate
from queuesmith.engine.presets.step_time import StepTime
from queuesmith.errors import ConfigError
from queuesmith.report.traffic.timeline import write_timeline
from queuesmith.traces.trace import Trace

SMALL = EngineConfig(
    max_num_seqs=4, max_num_batched_tokens=64, num_gpu_blocks=11, block_size=1, max_model_len=64
)
ENGINE, REQUESTS = 1, 2


@pytest.fixture
def draw(tmp_path):
    """Simulate with steps of one second, write the timeline and read it back."""

    def run(trace, config=SMALL, policy="fcfs", **options):
        result = simulate(
            trace, policy, config=config, step_time=StepTime(a=1.0), record=True, **options
        )
        path = write_timeline(result, tmp_path / "run.json")
        return result, json.loads(path.read_text())["traceEvents"]

    return run


def bars(events, process):
    return [event for event in events if event["ph"] == "X" and event["pid"] == process]


def spans(events, process):
    """Name, start and end in seconds."""
    return [
        (event["name"], event["ts"] / 1e6, (event["ts"] + event["dur"]) / 1e6)
        for event in bars(events, process)
    ]


def a_busy_run(draw, **options):
    rng = np.random.default_rng(0)
    num_requests = 60
    trace = Trace(
        np.cumsum(rng.exponential(4.0, num_requests)),
        rng.integers(1, 5, num_requests),
        rng.integers(1, 6, num_requests),
    )
    return draw(trace, **options)


def test_steps_by_hand(draw):
    # Blocks run out in the third step: row 1 gives up its own and is computed again from 4 on.
    _, events = draw(Trace([0.0, 0.0], [4, 4], [4, 4]))

    assert spans(events, ENGINE) == [
        ("prefill + decode", 0.0, 1.0),
        ("decode", 1.0, 2.0),
        ("decode", 2.0, 3.0),
        ("decode", 3.0, 4.0),
        ("prefill + decode", 4.0, 5.0),
        ("decode", 5.0, 6.0),
    ]
    arguments = [event["args"] for event in bars(events, ENGINE)]
    assert [step["preemptions"] for step in arguments] == [0, 0, 1, 0, 0, 0]
    assert [step["prefill tokens"] for step in arguments] == [8, 0, 0, 0, 6, 0]
    assert [step["decodes"] for step in arguments] == [0, 2, 1, 1, 0, 1]


def test_requests_by_hand(draw):
    _, events = draw(Trace([0.0, 0.5], [4, 1], [3, 1]))

    assert spans(events, REQUESTS) == [
        ("prefill", 0.0, 1.0),
        ("decode", 1.0, 3.0),
        ("waiting", 0.5, 1.0),
        ("prefill", 1.0, 2.0),
    ]
    first = bars(events, REQUESTS)[0]["args"]
    assert first == {"row": 0, "prompt tokens": 4, "output tokens": 3, "preemptions": 0}


def test_like_decodes_in_a_row_are_one_event_that_counts_them(draw):
    _, events = draw(Trace([0.0, 20.0], [1, 1], [9, 3]))

    assert spans(events, ENGINE) == [
        ("prefill + decode", 0.0, 1.0),
        ("decode", 1.0, 9.0),
        ("prefill + decode", 20.0, 21.0),
        ("decode", 21.0, 23.0),
    ]
    assert [event["args"]["steps"] for event in bars(events, ENGINE)] == [1, 8, 1, 2]


def test_an_idle_gap_is_not_drawn_over(draw):
    # Both stretches decode one request; between them the engine is idle.
    _, events = draw(Trace([0.0, 0.0], [1, 1], [2, 2]), SMALL.override({"max_num_seqs": 1}))
    assert [event["args"]["steps"] for event in bars(events, ENGINE)] == [1, 1, 1, 1]


def test_every_step_and_token_is_drawn_once(draw):
    result, events = a_busy_run(draw)
    arguments = [event["args"] for event in bars(events, ENGINE)]

    assert sum(step["steps"] for step in arguments) == result.num_steps
    assert sum(step["preemptions"] for step in arguments) == result.num_preemptions > 0
    tokens = sum(step["prefill tokens"] + step["decodes"] * step["steps"] for step in arguments)
    assert tokens == result.num_computed_tokens
    assert {event["args"]["row"] for event in bars(events, REQUESTS)} == set(range(60))


def test_bars_on_one_line_do_not_overlap(draw):
    result, events = a_busy_run(draw)

    lines = defaultdict(list)
    for event in bars(events, REQUESTS):
        lines[event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for line in lines.values():
        line.sort()
        assert all(end <= start for (_, end), (start, _) in pairwise(line))
    start, end = result.requests.arrival_time, result.requests.last_token_ts
    most_present = max(((start <= now) & (now < end)).sum() for now in start)
    assert len(lines) == most_present  # a line is used again as soon as it falls free


def test_counters_stand_where_steps_start(draw):
    _, events = draw(Trace([0.0, 0.0], [4, 4], [4, 4]))
    counters = [event for event in events if event["ph"] == "C"]

    running = [event["args"] for event in counters if event["name"] == "requests"]
    free = [event["args"]["free"] for event in counters if event["name"] == "free KV blocks"]
    assert running[0] == {"waiting": 2, "running": 0}
    assert running[3] == {"waiting": 1, "running": 1}
    assert free == [2, 0, 4, 3, 4, 3]


def test_what_a_horizon_cuts_is_drawn_to_the_end(draw):
    result, events = draw(
        Trace([0.0, 0.0, 9.0], [1, 1, 1], [9, 9, 1]),
        SMALL.override({"max_num_seqs": 1}),
        horizon=4.0,
    )

    assert result.end_time == 4.0
    assert spans(events, REQUESTS) == [
        ("prefill", 0.0, 1.0),
        ("decode", 1.0, 4.0),
        ("waiting", 0.0, 4.0),
    ]


def test_the_policy_is_named(draw):
    _, events = draw(Trace([0.0], [1], [1]), policy="sjf")

    names = [event["args"]["name"] for event in events if event["ph"] == "M"]
    assert names == ["engine under sjf", "requests", "steps"]


def test_a_run_without_steps_is_a_valid_file(draw):
    _, events = draw(Trace([0.0], [1], [1]), horizon=-1.0)

    assert bars(events, ENGINE) == bars(events, REQUESTS) == []


def test_a_result_without_a_recording_is_refused(tmp_path):
    result = simulate(Trace([0.0], [1], [1]))

    with pytest.raises(ConfigError, match="a timeline needs a recording; simulate with record="):
        write_timeline(result, tmp_path / "run.json")
    assert not (tmp_path / "run.json").exists()

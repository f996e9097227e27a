"""Units of times: told by names, by size, by the user, or assumed with a note; never in silence."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuesmith.errors import ConfigError, TraceError
from queuesmith.traces import load_trace
from queuesmith.traces.columns.time_units import UNITS, epoch_unit, unit_of, without_unit

NAN = float("nan")
START = 1_767_225_600
#: A request every quarter of a second, 20 of them; the first token after 50 ms.
SECONDS = np.arange(20) * 0.25
UNIT = pytest.mark.parametrize("unit", UNITS)


@pytest.fixture
def write(tmp_path):
    """Return a function that writes columns as CSV, JSONL or Parquet and returns the path."""

    def write_columns(form="csv", **columns):
        path = tmp_path / f"log.{form}"
        size = len(next(iter(columns.values())))
        rows = {**columns, "prompt_len": [100] * size, "output_len": [5] * size}
        table = pa.table({name: pa.array(list(values)) for name, values in rows.items()})
        if form == "parquet":
            pa.parquet.write_table(table, path)
        elif form == "jsonl":
            path.write_text("\n".join(map(json.dumps, table.to_pylist())))
        else:
            lines = [",".join(map(str, row.values())) for row in table.to_pylist()]
            path.write_text("\n".join([",".join(table.column_names), *lines]))
        return path

    return write_columns


def ticks(unit, seconds=SECONDS, start=0):
    return [int(start) * UNITS[unit] + round(second * UNITS[unit]) for second in seconds]


def notes_on_units(trace):
    return [note for note in trace.origin.notes if "taken as" in note]


@pytest.mark.parametrize(
    ("name", "unit", "stem"),
    [
        ("arrival_time_us", "us", "arrival_time"),
        ("ttft_ms", "ms", "ttft"),
        ("start_time_ns", "ns", "start_time"),
        ("arrival_s", "s", "arrival"),
        ("duration_seconds", "s", "duration"),
        ("latencyMs", "ms", "latency"),
        ("startTimeUnixNano", "ns", "startTimeUnix"),
        ("usage.total_time_ms", "ms", "usage.total_time"),
        ("Latency (ms)", "ms", "Latency"),
        ("E2E_MS", "ms", "E2E"),
        *((name, None, name) for name in ("timestamp", "ts", "ms", "tokens", "params", "status")),
    ],
)
def test_the_ending_of_a_name_is_its_unit(name, unit, stem):
    assert unit_of(name) == unit
    assert without_unit(name) == stem


@UNIT
@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_a_name_tells_the_unit_of_every_column(write, unit, form):
    path = write(
        form,
        **{
            f"arrival_time_{unit}": ticks(unit),
            f"ttft_{unit}": ticks(unit, [0.05] * 20),
            f"e2e_latency_{unit}": ticks(unit, [0.45] * 20),
            f"deadline_{unit}": ticks(unit, SECONDS + 3),
            f"first_token_ts_{unit}": ticks(unit, SECONDS + 9),
        },
    )
    if unit == "s":
        path = write(form, arrival_time_s=SECONDS, ttft_s=[0.05] * 20, e2e_latency_s=[0.45] * 20)

    trace = load_trace(path)

    assert trace.arrival_time == pytest.approx(SECONDS)
    assert trace.measured.ttft == pytest.approx(0.05)  # said, so that the instant is not asked
    assert trace.measured.tpot == pytest.approx(0.1)
    assert notes_on_units(trace) == []
    if unit != "s":
        assert trace.deadline == pytest.approx(SECONDS + 3)


def test_columns_may_differ_in_unit(write):
    path = write(
        arrival_time_us=ticks("us", start=START),
        first_token_ts_ns=ticks("ns", SECONDS + 0.05, START),
        last_token_ms=ticks("ms", SECONDS, START),
        e2el_ms=[450.0] * 20,
    )

    measured = load_trace(path).measured

    assert measured.ttft == pytest.approx(0.05, abs=1e-6)
    assert measured.e2el == pytest.approx(0.45)


@UNIT
@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_times_since_1970_are_known_by_their_size(write, unit, form):
    seconds = SECONDS if unit != "s" else np.arange(20.0)
    path = write(form, timestamp=ticks(unit, seconds, START))

    trace = load_trace(path)

    assert trace.arrival_time == pytest.approx(seconds)
    words = {"ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
    said = [] if unit == "s" else [f"arrival_time taken as {words[unit]} since 1970, by size"]
    assert notes_on_units(trace) == said


@UNIT
def test_times_since_1970_are_known_by_their_size_in_nested_logs_too(tmp_path, unit):
    seconds = SECONDS if unit != "s" else np.arange(20.0)
    usage = {"prompt_tokens": 100, "completion_tokens": 5}
    attributes = {"gen_ai.usage.input_tokens": 100, "gen_ai.usage.output_tokens": 5}
    rows = {
        "usage": [{"timestamp": time, "usage": usage} for time in ticks(unit, seconds, START)],
        "litellm": [
            {"startTime": time, "spend": 0, **usage} for time in ticks(unit, seconds, START)
        ],
        "spans": [
            {"span_id": str(time), "start_time": time, "attributes": attributes}
            for time in ticks(unit, seconds, START)
        ],
        "named": [{f"started_at_{unit}": time, "usage": usage} for time in ticks(unit, seconds)],
        "array": [],
    }
    rows["array"] = rows["usage"]
    for name, found in rows.items():
        path = tmp_path / name
        path.write_text(json.dumps(found) if name == "array" else "\n".join(map(json.dumps, found)))

        assert load_trace(path).arrival_time == pytest.approx(seconds), name


def test_what_the_user_says_is_of_everything_that_does_not_say_itself(write):
    path = write(timestamp=ticks("ms"), ttft=[50.0] * 20, e2el_us=[450_000.0] * 20)

    trace = load_trace(path, unit="ms")

    assert trace.arrival_time == pytest.approx(SECONDS)
    assert trace.measured.ttft == pytest.approx(0.05)
    assert trace.measured.e2el == pytest.approx(0.45)
    assert notes_on_units(trace) == []


def test_units_may_be_given_column_by_column(write):
    path = write(timestamp=ticks("us"), ttft=[50.0] * 20, e2el_us=[450.0] * 20)

    trace = load_trace(path, unit="arrival_time=us,ttft=ms,e2el=ms")

    assert trace.arrival_time == pytest.approx(SECONDS)
    assert trace.measured.ttft == pytest.approx(0.05)
    assert trace.measured.e2el == pytest.approx(0.45)


def test_a_unit_for_latencies_leaves_times_since_1970_and_dates_alone(write):
    epoch = [START + second for second in SECONDS]
    dates = [f"2026-01-01T00:00:{second:05.2f}Z" for second in SECONDS]

    for times in (epoch, dates):
        trace = load_trace(write(timestamp=times, latency=[450.0] * 20), unit="ms")
        assert trace.arrival_time == pytest.approx(SECONDS)
        assert trace.measured.e2el == pytest.approx(0.45)


def test_what_is_assumed_is_said_in_one_note(write):
    path = write(timestamp=SECONDS, ttft=[0.05] * 20, e2el=[0.45] * 20)

    assert notes_on_units(load_trace(path)) == [
        "arrival_time, ttft and e2el taken as seconds, since nothing in the file says; --unit "
        "says otherwise"
    ]
    assert notes_on_units(load_trace(path, unit="s")) == []


def refusal(path, **options):
    with pytest.raises((TraceError, ConfigError)) as caught:
        load_trace(path, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_requests_of_years_are_refused_with_the_cure(write):
    rng = np.random.default_rng(1)
    path = write(arrival=np.cumsum(rng.exponential(30_600, 2_000)).round())

    message = refusal(path)

    assert "2,000 requests over 7" in message
    assert "days if arrival_time is in seconds, as assumed" in message
    assert "--unit ms (" in message
    assert "--unit us (" in message
    assert load_trace(path, unit="us").duration == pytest.approx(61, rel=0.1)
    assert load_trace(path, unit="s").duration > 6e7  # who insists is believed


def test_a_log_of_years_with_dates_is_one(write):
    trace = load_trace(write(timestamp=[f"{2000 + year}-01-01" for year in range(20)]))

    assert trace.duration > 18 * 365 * 86_400


def test_requests_within_microseconds_are_refused_with_the_cure(write):
    path = write(start_time_ns=[1_000_000 + 100 * number for number in range(40)])

    message = refusal(path)

    assert "40 requests over 3.9 us" in message
    assert "--unit arrival_time=us" in message
    assert load_trace(path, unit="arrival_time=us").duration == pytest.approx(3.9e-3)


def test_latencies_longer_than_the_log_are_refused_with_the_cure(write):
    epoch = [START + second for second in SECONDS]
    cases = (("timestamp", epoch, "ms"), ("arrival", SECONDS, "ttft=ms"))
    for name, times, cure in cases:
        path = write(**{name: times, "ttft": [50.0] * 20})

        message = refusal(path)

        assert "half of all requests have a ttft above 50 s" in message
        assert "longer than the whole log (4.75 s)" in message
        assert f"--unit {cure} " in message
        trace = load_trace(path, unit=cure)
        assert trace.measured.ttft == pytest.approx(0.05)
        assert trace.arrival_time == pytest.approx(SECONDS)
        assert load_trace(path, unit="ttft=s").measured.ttft == pytest.approx(50)


def test_a_burst_that_was_served_long_after_is_believed_where_the_unit_is_said(write):
    trace = load_trace(write(arrival_s=SECONDS, ttft_s=[50.0] * 20))

    assert trace.measured.ttft == pytest.approx(50)


def test_a_unit_against_the_name_of_the_arrivals_is_refused_with_the_cure(write):
    path = write(arrival_time_us=ticks("us"), ttft=[50.0] * 20)

    assert "--unit ttft=ms" in refusal(path, unit="ms")
    assert load_trace(path, unit="ttft=ms").measured.ttft == pytest.approx(0.05)
    assert load_trace(path, unit="arrival_time=ms,ttft=ms").duration == pytest.approx(4750)


@pytest.mark.parametrize(
    ("unit", "says"),
    [
        ("min", "must be one of s, ms, us, ns"),
        ("ttft=min", "must be one of s, ms, us, ns"),
        ("tfft=ms", "Did you mean 'ttft'"),
        ("prompt_len=ms", "no column of times 'prompt_len'"),
        ("", "must be one of"),
    ],
)
def test_a_unit_that_is_none_is_refused(write, unit, says):
    assert says in refusal(write(timestamp=SECONDS), unit=unit)


def test_times_too_large_for_seconds_name_the_option(write):
    message = refusal(write(timestamp=[1e17 + number for number in range(5)]))

    assert "above 3.2e+11 s" in message
    assert "--unit" in message


@given(
    start=st.floats(1.0e9, 3.9e9),
    gaps=st.lists(st.floats(0, 1e4), min_size=1, max_size=30),
    unit=st.sampled_from(list(UNITS)),
)
def test_any_times_of_this_century_are_known_by_their_size(start, gaps, unit):
    seconds = start + np.cumsum(gaps)

    assert epoch_unit(seconds * UNITS[unit]) == unit


@given(st.lists(st.floats(0, 9e8), max_size=30))
def test_times_from_zero_are_not_taken_for_times_since_1970(seconds):
    assert epoch_unit(np.array(seconds)) is None


def test_a_clock_that_only_looks_like_1970_is_none():
    # Nanoseconds since a machine was started, of 20 minutes: as milliseconds they last 38 years.
    assert epoch_unit(np.linspace(1.2e12, 2.4e12, 500)) is None


def test_a_name_of_a_million_brackets_is_no_unit_at_once():
    name = "[" * 1_000_000 + "ms"

    assert unit_of(name) is None
    assert without_unit(name) == name

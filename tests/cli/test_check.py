"""``queuesmith check``: what it prints, what it writes, and what it refuses."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from pyarrow import parquet

import queuesmith as qs
from queuesmith.config import EngineConfig
from queuesmith.engine.presets.step_time import get_preset
from queuesmith.traces.trace import Trace

#: The log is of a server on which one factor explains all, so that the engine is written, too.
FILES = {"check.json", "requests.parquet", "report.html", "engine.toml"}
NAME = "llama-3.1-8b/h100_sxm"


def served(scale=1.5, num_requests=300):
    """Return requests, and what each experienced on a server whose steps take longer."""
    rng = np.random.default_rng(0)
    trace = Trace(
        np.cumsum(rng.exponential(0.08, num_requests)),
        rng.integers(50, 2000, num_requests),
        rng.integers(2, 120, num_requests),
    )
    preset = get_preset(NAME)
    names = ("a", "b1", "b2", "c", "d", "e", "f")
    longer = {name: scale * getattr(preset.step_time, name) for name in names}
    step_time = qs.StepTime(**longer, t0=preset.step_time.t0)
    return qs.simulate(trace, engine=NAME, step_time=step_time).requests


def as_table(rows):
    lines = ["ts,prompt_tokens,completion_tokens,ttft_ms,e2el"]
    for row in rows:
        ttft, e2el = row.first_token_ts - row.arrival_time, row.last_token_ts - row.arrival_time
        times = [float(row.arrival_time), row.prompt_len, row.output_len, 1e3 * ttft, e2el]
        lines.append(",".join(f"{value:.12g}" for value in times))
    return "\n".join(lines) + "\n"


def as_vllm_bench(rows):
    gaps = [
        [float(row.last_token_ts - row.first_token_ts) / (row.output_len - 1)]
        * int(row.output_len - 1)
        for row in rows
    ]
    return json.dumps(
        {
            "completed": len(rows),
            "request_throughput": 1.0,
            "total_input_tokens": 1,
            "start_times": [77.0 + float(row.arrival_time) for row in rows],
            "input_lens": rows.prompt_len.tolist(),
            "output_lens": rows.output_len.tolist(),
            "ttfts": (rows.first_token_ts - rows.arrival_time).tolist(),
            "itls": gaps,
            "errors": [""] * len(rows),
        }
    )


def as_aiperf(rows):
    def line(row):
        tokens = {"input_sequence_length": row.prompt_len, "output_sequence_length": row.output_len}
        times = {
            "time_to_first_token": row.first_token_ts - row.arrival_time,
            "request_latency": row.last_token_ts - row.arrival_time,
        }
        start = 1_764_500_000_000_000_000 + round(1e9 * row.arrival_time)
        metrics = {name: {"value": int(one), "unit": "tokens"} for name, one in tokens.items()}
        metrics |= {name: {"value": 1e3 * one, "unit": "ms"} for name, one in times.items()}
        metadata = {"request_start_ns": start, "benchmark_phase": "profiling"}
        return json.dumps({"metadata": metadata, "metrics": metrics, "error": None})

    return "\n".join(map(line, rows))


def as_guidellm(rows):
    requests = [
        {
            "request_start_time": 1e6 + float(row.arrival_time),
            "prompt_tokens": int(row.prompt_len),
            "output_tokens": int(row.output_len),
            "time_to_first_token_ms": 1e3 * float(row.first_token_ts - row.arrival_time),
            "request_latency": float(row.last_token_ts - row.arrival_time),
        }
        for row in rows
    ]
    return json.dumps({"benchmarks": [{"metrics": {}, "requests": {"successful": requests}}]})


def as_vllm_answers(rows):
    def line(row):
        usage = {"prompt_tokens": int(row.prompt_len), "completion_tokens": int(row.output_len)}
        metrics = {
            "time_to_first_token_ms": 1e3 * float(row.first_token_ts - row.scheduled_ts),
            "queue_time_ms": 1e3 * float(row.scheduled_ts - row.arrival_time),
            "generation_time_ms": 1e3 * float(row.last_token_ts - row.first_token_ts),
        }
        answer = {"usage": usage, "metrics": metrics}
        return json.dumps({"arrival_time": float(row.arrival_time), "response": answer})

    return "\n".join(map(line, rows))


def as_spans(rows):
    def line(row):
        attributes = {
            "gen_ai.usage.prompt_tokens": int(row.prompt_len),
            "gen_ai.usage.completion_tokens": int(row.output_len),
            "gen_ai.latency.time_to_first_token": float(row.first_token_ts - row.arrival_time),
            "gen_ai.latency.e2e": float(row.last_token_ts - row.arrival_time),
        }
        start = str(1_764_500_000_000_000_000 + round(1e9 * row.arrival_time))
        return json.dumps({"startTimeUnixNano": start, "attributes": attributes})

    return "\n".join(map(line, rows))


def as_spend_logs(rows):
    def when(seconds):
        return str(
            np.datetime64("2026-11-30T10:00:00") + np.timedelta64(round(1e6 * seconds), "us")
        )

    lines = ["spend,prompt_tokens,completion_tokens,startTime,completionStartTime,endTime"]
    lines += [
        f"1,{row.prompt_len},{row.output_len},"
        + ",".join(map(when, (row.arrival_time, row.first_token_ts, row.last_token_ts)))
        for row in rows
    ]
    return "\n".join(lines) + "\n"


FORMS = {
    "table": as_table,
    "vllm_bench": as_vllm_bench,
    "aiperf": as_aiperf,
    "guidellm": as_guidellm,
    "openai_usage": as_vllm_answers,
    "otel": as_spans,
    "litellm": as_spend_logs,
}


@pytest.fixture(scope="module")
def rows():
    return served()


@pytest.fixture
def log(rows, tmp_path):
    path = tmp_path / "server.csv"
    path.write_text(as_table(rows))
    return path


@pytest.mark.parametrize("reader", FORMS)
def test_the_error_put_in_is_found_in_every_format(reader, rows, run, tmp_path):
    path = tmp_path / "log"
    path.write_text(FORMS[reader](rows))

    ran = run("check", path, "--json", "--output", "here")

    document = json.loads(ran.out)
    assert document["logs"][0]["reader"] == reader
    assert document["scale"]["factor"] == pytest.approx(1.5, rel=2e-3)
    assert [item["reason"] for item in document["advice"]] == ["step_time"]
    assert {"ttft", "tpot", "e2el"} <= document["correlations"].keys()
    assert all(
        row["error"] < -0.25
        for row in document["errors"]
        if (row["statistic"], row["load"]) == ("mean", "all")
    )


def test_the_verdict_is_printed_and_the_report_is_written(run, log):
    ran = run("check", log, "--output", "here")

    assert ran.code == 0
    assert ran.out.startswith("Do not quote simulated latencies for this server yet")
    text = " ".join(ran.out.split())
    assert "advice: steps on your server take 1.50" in text
    assert "real traffic: server.csv, 300 requests" in text
    assert "TTFT mean 300" in text
    assert ran.created == {"here", *(f"here/{name}" for name in FILES)}
    assert ran.err == f"report: {Path('here/report.html')}\n"


def test_json_is_the_document_that_is_written_and_requests_lie_beside_it(run, log, rows, tmp_path):
    ran = run("check", log, "--json", "--output", "here")

    document = json.loads(ran.out)
    assert document["schema"] == "queuesmith.check/1"
    assert document == json.loads((tmp_path / "here/check.json").read_text())
    table = parquet.read_table(tmp_path / "here/requests.parquet")
    assert table.num_rows == len(rows)
    expected = rows.first_token_ts - rows.arrival_time
    assert table["measured_ttft"].to_numpy() == pytest.approx(expected)
    assert table["simulated_ttft"].to_numpy().mean() < expected.mean()


def test_a_claim_that_does_not_hold_is_status_1(run, log):
    ran = run("check", log, "--within", 0.15, "--output", "here")

    assert ran.code == 1
    assert "failed: mean TTFT is " in ran.err
    assert ran.err.endswith(f"report: {Path('here/report.html')}\n")


def test_a_claim_that_holds_is_status_0(run, tmp_path):
    path = tmp_path / "same.csv"
    path.write_text(as_table(served(scale=1.0)))

    ran = run("check", path, "--within", 0.01, "--output", "here")

    assert ran.code == 0
    assert ran.out.startswith("Simulated latencies hold on this log within 0 %")


def test_what_simulate_writes_can_be_checked(run, tmp_path):
    run("simulate", "azure_2023_conv@model", "--num-requests", 300, "--requests", "log.parquet")

    ran = run("check", tmp_path / "log.parquet", "--json", "--output", "here")

    errors = [row["error"] for row in json.loads(ran.out)["errors"] if row["statistic"] == "mean"]
    assert errors
    assert errors == pytest.approx([0.0] * len(errors), abs=1e-6)


def test_several_logs_are_checked_together(run, log):
    ran = run("check", log, log, "--json", "--output", "here")

    document = json.loads(ran.out)
    assert len(document["logs"]) == 2
    assert document["loads"][0]["num_requests"] == 600


def test_own_engine_args_are_followed(run, log):
    few = run("check", log, "--engine-args", "--max-num-seqs 2", "--json", "--output", "here")

    document = json.loads(few.out)
    assert document["config"]["engine"]["max_num_seqs"] == 2
    [row] = [row for row in document["errors"] if row["latency"] == "ttft"][:1]
    assert row["error"] > 1


def test_mistakes_are_one_line_and_nothing_is_written(refused, log, tmp_path):
    plain = tmp_path / "plain.csv"
    plain.write_text("arrival_time,prompt_len,output_len\n1,2,3\n")
    (tmp_path / "ab" / "runs").mkdir(parents=True)

    assert "name a log with measured latencies" in refused("check")
    assert "columns ttft and e2el in seconds" in refused("check", plain)
    assert "but not how long they took" in refused("check", log, plain)
    assert "there is no file" in refused("check", tmp_path / "missing.csv")
    assert "there is no policy 'sfj'" in refused("check", log, "--policy", "sfj")
    assert "there is no engine 'h100'" in refused("check", log, "--engine", "h100")
    assert "--within must be a share" in refused("check", log, "--within", "15")
    assert "--within must be a share" in refused("check", log, "--within", "nan")
    assert "--seed must be at least 0" in refused("check", log, "--seed", "-1")
    assert "go with a folder of `queuesmith ab`" in refused("check", log, "--trace", plain)
    assert "go with a folder of `queuesmith ab`" in refused("check", log, "--part", "tuning")
    assert "give the trace that was replayed, too" in refused("check", tmp_path / "ab")
    assert "let `queuesmith ab` end first" in refused(
        "check", tmp_path / "ab", "--trace", "azure_2023_conv@model"
    )
    assert "is a file; name a folder" in refused("check", log, "--output", plain)


@pytest.mark.parametrize(
    "values",
    ["nan,nan", "-1,-2", "0,0", "5,1", "1e999,1e999", ",", "x,y"],
    ids=["nan", "negative", "zero", "ttft above e2el", "infinite", "empty", "text"],
)
def test_latencies_that_cannot_be_are_as_good_as_none(refused, tmp_path, values):
    path = tmp_path / "odd.csv"
    lines = [f"{second},100,5,{values}" for second in range(30)]
    path.write_text("\n".join(["arrival_time,prompt_len,output_len,ttft,e2el", *lines]))

    assert "but not how long they took" in refused("check", path)


def test_a_few_of_them_are_left_out_and_counted(run, rows, tmp_path):
    path = tmp_path / "odd.csv"
    lines = as_table(rows).splitlines()
    for number, times in enumerate(["nan,nan", "-4,1", "9000,1", "0,0"], start=1):
        lines[number] = ",".join([*lines[number].split(",")[:3], times])
    path.write_text("\n".join(lines))

    ran = run("check", path, "--json", "--output", "here")

    document = json.loads(ran.out)
    [row] = [row for row in document["errors"] if row["latency"] == "ttft"][:1]
    assert row["num_requests"] == len(rows) - 4
    assert any("ttft is above their e2el: 1" in line for line in document["warnings"])
    assert any("ttft is zero, negative or endless: 2" in line for line in document["warnings"])


def test_names_in_a_log_cannot_steer_the_terminal(run, log, tmp_path):
    odd = tmp_path / "a\x1b[31mb.csv"
    os.rename(log, odd)

    ran = run("check", odd, "--output", "here")

    assert "\x1b[31m" not in ran.out
    assert "\x1b[31m" not in (tmp_path / "here" / "report.html").read_text()


def test_an_engine_that_can_run_nothing_of_it_is_refused(refused, log):
    config = EngineConfig()
    assert config.max_model_len > 60
    message = refused("check", log, "--engine-args", "--max-model-len 20 --block-size 16")

    assert "none of the 300 requests can run" in message

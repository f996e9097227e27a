"""``queuesmith recommend``: what it says of logs whose truth is known, and what it refuses."""

import json
import shlex

import numpy as np
import pytest

import queuesmith as qs
from queuesmith.engine.presets.step_time import get_preset
from queuesmith.evaluation.goals import GUARDS, MARGIN
from queuesmith.traces.trace import Trace

FILES = {"report.html", "recommendation.json"}
SLOW = get_preset("llama-3.1-8b/a100_sxm")


def busy(num_requests=1600, gap=0.55):
    """One prompt in five is long, so that order matters at this rate on an A100."""
    rng = np.random.default_rng(0)
    return Trace(
        np.cumsum(rng.exponential(gap, num_requests)),
        np.where(rng.random(num_requests) < 0.2, 8000, 200),
        np.full(num_requests, 30),
    )


def write(path, trace, latencies=False, scale=1.0):
    """Write a log, with the latencies of a server whose steps take `scale` times as long."""
    names = ("a", "b1", "b2", "c", "d", "e", "f", "host_overhead")
    times = {name: scale * getattr(SLOW.step_time, name) for name in names}
    step_time = qs.StepTime(**times, t0=SLOW.step_time.t0)
    rows = qs.simulate(trace, engine=SLOW, step_time=step_time).requests
    lines = ["arrival_s,prompt_tokens,completion_tokens" + (",ttft_s,e2el_s" if latencies else "")]
    for row in rows:
        values = [row.arrival_time, row.prompt_len, row.output_len]
        if latencies:
            values += [row.first_token_ts - row.arrival_time, row.last_token_ts - row.arrival_time]
        lines.append(",".join(f"{float(value):.12g}" for value in values))
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def recommend(run, log, *words, engine=SLOW.name):
    ran = run("recommend", log, "--engine", engine, "--json", "--output", "out", *words)
    assert ran.code == 0, ran.err
    return json.loads(ran.out), {name.removeprefix("out/") for name in ran.created} - {"out"}


def test_an_order_that_makes_nothing_worse_is_tried_in_shadow_mode(run):
    found, files = recommend(
        run,
        "azure_2024_conv@model",
        *("--num-requests", "8000"),
        *("--engine-args", "vllm serve org/model --max-num-seqs 1024"),
        engine="llama-3.1-8b/h100_sxm",
    )

    assert found["policy"] != "fcfs"
    words = shlex.split(found["command"])
    assert words[:3] == ["queuesmith", "serve", "org/model"]
    assert words[-1] == "--shadow"
    assert words[words.index("--max-num-seqs") + 1] == "1024"
    assert words[words.index("--policy") + 1] == found["policy"]
    assert qs.get_policy(found["policy"]).name == found["policy"]
    costs = {cost["name"]: cost["change"] for cost in found["costs"]}
    assert costs["ttft_mean"]["high"] < -MARGIN
    assert {guard.name for guard in GUARDS} - {"priority_ttft", "client_ttft"} <= costs.keys()
    assert costs["e2el_mean"]["change"] < MARGIN
    assert "was not checked" in found["sentences"][1]
    assert files == FILES
    assert run("serve", *words[2:], "--dry-run").code == 0


def test_where_nothing_waits_the_server_stays_as_it_is(run, tmp_path):
    log = write(tmp_path / "log.csv", busy(gap=20.0))

    found, _ = recommend(run, log)

    assert (found["policy"], found["command"], found["costs"]) == ("fcfs", "", [])
    assert found["sentences"][0].startswith("Stay as you are")


@pytest.mark.parametrize("scale", [1.0, 1.4])
def test_a_log_with_latencies_checks_the_engine_and_corrects_it(run, tmp_path, scale):
    log = write(tmp_path / "log.csv", busy(num_requests=900, gap=1.2), latencies=True, scale=scale)

    found, files = recommend(run, log)

    assert found["check"]["answer"]["sentences"][0] in found["sentences"][1]
    if scale == 1.0:
        assert files == FILES
        assert found["engine"] == SLOW.name
    else:
        assert files == FILES | {"engine.toml"}
        assert "multiplied by 1.4" in found["sentences"][1]
        corrected, given = found["step_time"]["b1"], SLOW.step_time.b1
        assert corrected == pytest.approx(scale * given, rel=0.03)


def test_a_short_log_has_an_answer_too(run, tmp_path):
    found, _ = recommend(run, write(tmp_path / "log.csv", busy(num_requests=300)), "--slo", "none")

    assert found["policy"]
    assert any("beyond their p99" in warning for warning in found["comparison"]["warnings"])


def test_the_terminal_is_within_its_width(run, tmp_path):
    log = write(tmp_path / "log.csv", busy())

    ran = run("recommend", log, "--engine", SLOW.name, "--goal", "e2el", "--output", "out")

    assert ran.code == 0
    assert max(map(len, ran.out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["missing.csv"], "missing.csv"),
        (["log.csv", "--goal", "slo", "--slo", "none"], "the goal slo needs an SLO"),
        (["log.csv", "--goal", "speed"], "there is no goal 'speed'"),
        (["log.csv", "--engine", "none"], "there is no engine 'none'"),
        (["log.csv", "--seed", "-1"], "seed"),
    ],
)
def test_what_cannot_be_answered_is_refused(run, tmp_path, words, said):
    write(tmp_path / "log.csv", busy(num_requests=60))

    ran = run("recommend", *words)

    assert (ran.code, ran.out, ran.created) == (2, "", set())
    assert ran.err.startswith("error: ")
    assert ran.err.count("\n") == 1
    assert said in ran.err

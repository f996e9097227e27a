"""``queuesmith ab`` and ``queuesmith calibrate`` as a user meets them, against fake servers."""

import json

import hostile_server as hostile
import numpy as np
import pytest
from test_calibrate import HEADER, TRUTH

from queuesmith.deploy.engine_file import read_preset


@pytest.fixture
def log(tmp_path):
    lines = ["arrival_time,prompt_len,output_len"]
    lines += [f"{0.5 * row},{20 + row % 30},{3 + row % 4}" for row in range(24)]
    path = tmp_path / "log.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def ab(run, log, monkeypatch):
    # A machine that others use sends late; whether that withholds a verdict is asked elsewhere.
    monkeypatch.setattr("queuesmith.deploy.verdict.LATE_AT_LEAST", 60.0)

    def ab(stock, ours, *more):
        return run(
            *("ab", "--policy", "sjf", "--trace", log, "--load", "100/s", "--window-len", 24),
            *("--windows", 1, "--output", "out", "--base-url", stock.base_url, ours.base_url),
            *more,
        )

    return ab


def test_a_faster_server_is_found_and_everything_is_written(ab, tmp_path):
    with hostile.serving(gap=0.1) as stock, hostile.serving(gap=0.002) as ours:
        ran = ab(stock, ours, "--json", "--machine-margin", 9)

    assert ran.code == 0, ran.err
    document = json.loads(ran.out)
    assert document == json.loads((tmp_path / "out" / "ab.json").read_text())
    assert document["schema"] == "queuesmith.ab/2"
    [row] = document["loads"]
    assert row["changes"]["ttft_mean"]["change"] < -0.5
    assert row["changes"]["tpot_mean"]["change"] < -0.5
    assert row["changes"]["output_throughput"]["value"] > 0
    assert row["verdict"] in ("better", "unsure")  # one window has no interval
    assert (row["num_paired"], row["num_failed"]) == (72, 0)
    assert [run["repeat"] for run in document["runs"]] == [0, 1, 2]
    assert len(list((tmp_path / "out" / "runs").glob("*.json"))) == 6
    page = (tmp_path / "out" / "report.html").read_text()
    assert "queuesmith ab" in page
    assert page.count('data-figure="ttft-distribution"') == 2
    assert page.count('data-figure="request-by-request"') == 1


def test_servers_of_unlike_speed_get_no_verdict(ab):
    with hostile.serving(gap=0.1) as stock, hostile.serving(gap=0.002) as ours:
        ran = ab(stock, ours)

    assert ran.code == 2
    words = " ".join(ran.out.split())
    assert "error: no verdict at 100/s" in ran.err
    assert "sjf cannot be judged against stock vLLM" in words
    assert "the arms did not see the same machine" in words


def test_failures_end_with_2_keep_what_was_measured_and_only_they_are_repeated(ab, tmp_path):
    broken = hostile.only(3, hostile.status(500, "broken"), head=20)
    with hostile.serving() as stock, hostile.serving(broken) as ours:
        ran = ab(stock, ours, "--json", "--machine-margin", 9)
        document = json.loads(ran.out)
        asked = len(stock.bodies)

        assert ran.code == 2
        assert "requests failed; what was measured is in out" in ran.err
        assert {one["error"] for one in document["failures"]} == {"HTTP 500: broken"}
        assert {one["arm"] for one in document["failures"]} == {"sjf"}
        assert document["loads"][0]["verdict"] == "withheld"
        assert document["loads"][0]["changes"]["ttft_mean"]["change"] is not None
        assert (tmp_path / "out" / "report.html").is_file()

        ours.behave = None
        again = ab(stock, ours, "--json", "--machine-margin", 9)

        assert again.code == 0, again.err
        assert len(stock.bodies) == asked  # no run of the arm that was well


def test_a_server_that_dies_in_the_middle_leaves_what_was_measured(ab, tmp_path):
    def die(handler, number):
        if number < 20:
            return False
        handler.server.shutdown()
        handler.server.socket.close()
        handler.reset()
        return True

    with hostile.serving() as stock, hostile.serving(die) as ours:
        ran = ab(stock, ours, "--json")

    assert ran.code == 2
    document = json.loads(ran.out)
    assert document["failures"]
    assert "stopped after" in " ".join(document["warnings"])
    assert list((tmp_path / "out" / "runs").glob("*.json"))


def test_servers_that_refuse_everything_end_it_at_once_with_a_report(ab, tmp_path):
    refuse = hostile.status(429, "slow down")
    with hostile.serving(refuse) as stock, hostile.serving(refuse) as ours:
        ran = ab(stock, ours)

    assert ran.code == 2
    assert "HTTP 429: slow down" in " ".join(ran.out.split())
    assert len(list((tmp_path / "out" / "runs").glob("*.json"))) == 1
    assert (tmp_path / "out" / "report.html").is_file()


def test_think_times_that_are_not_waited_for_are_said(ab, log):
    lines = log.read_text().splitlines()
    log.write_text(
        "\n".join([f"{lines[0]},session,think_time", *(f"{line},1,0.5" for line in lines[1:])])
    )
    with hostile.serving() as stock, hostile.serving() as ours:
        ran = ab(stock, ours, "--machine-margin", 9)

    assert "think times are not waited for" in " ".join(ran.out.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "say what to measure on"),
        (("--virtual-clock", "--model", "x"), "say what to measure on"),
        (("--base-url", "http://h", "http://h"), "needs two servers"),
        (("--base-url", "nonsense", "http://h"), "must look like http://localhost:8000"),
        (("--model", "x", "--repeats", 2), "--repeats must be at least 3, got 2"),
        (("--export", "csv"), "--export must be one of aiperf, timed_trace"),
        (("--export", "aiperf"), "name the --served-model"),
        (("--virtual-clock", "--machine-margin", 0), "must be a share"),
        (("--virtual-clock", "--engine", "none.toml"), "cannot be read"),
        (("--virtual-clock", "--timeout", "soon"), "--timeout"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(run, log, arguments, message):
    ran = run("ab", "--policy", "sjf", "--trace", log, "--load", "9/s", *arguments)

    assert ran.code == 2
    assert message in ran.err
    assert ran.err.count("\n") == 1
    assert ran.out == ""


def test_without_vllm_that_is_said(run, log, monkeypatch):
    monkeypatch.setattr("queuesmith.deploy.plugin.installed_version", lambda: None)
    for way in (("--virtual-clock",), ("--model", "x")):
        ran = run("ab", "--policy", "sjf", "--trace", log, "--load", "9/s", *way)

        assert ran.code == 2
        assert "vLLM is not installed here" in ran.err


def test_a_wrong_model_name_is_refused_before_anything_is_sent(run, log):
    with hostile.serving() as stock, hostile.serving() as ours:
        ran = run(
            *("ab", "--policy", "sjf", "--trace", log, "--load", "9/s", "--served-model", "big"),
            *("--base-url", stock.base_url, ours.base_url),
        )

        assert ran.code == 2
        assert "does not serve 'big' but tiny" in ran.err
        assert stock.bodies == []


def test_a_schedule_is_exported_for_each_window(run, log, tmp_path):
    ran = run(
        *("ab", "--policy", "sjf", "--trace", log, "--load", "9/s", "--export", "timed_trace"),
        *("--windows", 2, "--window-len", 12, "--output", "out"),
    )

    assert ran.code == 0, ran.err
    files = sorted((tmp_path / "out").iterdir())
    assert [len(path.read_text().splitlines()) for path in files] == [12, 12]
    assert ran.out.split() == [str(path.relative_to(tmp_path)) for path in files]
    lines = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    hashes = [one for line in lines for one in line["hash_ids"]]
    assert len(set(hashes)) == len(hashes)  # nor does one file know the prompts of another


# calibrate


@pytest.fixture
def record(tmp_path):
    """A record of 1,000 steps that take what the truth says, within 3 %."""
    rng = np.random.default_rng(0)
    path = tmp_path / "steps.jsonl"
    with path.open("w") as file:
        file.write(HEADER)
        for number in range(1000):
            prefill = int(rng.integers(1, 2000)) if number % 3 else 0
            decodes = int(rng.integers(1, 64))
            work = (prefill, decodes, decodes * int(rng.integers(20, 900)), prefill * 400.0)
            names = ("num_prefill_tokens", "num_decodes", "kv_tokens", "attention")
            seconds = TRUTH.seconds(*work) * float(np.exp(rng.normal(0, 0.03)))
            line = {"seconds": seconds, **dict(zip(names, work, strict=True))}
            file.write(json.dumps(line) + "\n")
    return path


def test_records_become_an_engine_that_other_commands_take(run, record, log):
    ran = run("calibrate", "--records", record, "--hardware", "a box", "--json")

    assert ran.code == 0, ran.err
    document = json.loads(ran.out)
    assert document["fit"]["unseen"]["all"]["mean"] < 0.05
    preset = read_preset(record.with_name("engine.toml"))
    assert preset.config.num_gpu_blocks == 900
    assert "a box, vLLM 0.32.0" in preset.step_time.provenance
    assert document["step_time"]["a"] == preset.step_time.a


def test_calibrate_prints_errors_by_regime(run, record):
    ran = run("calibrate", "--records", record)

    assert ran.code == 0
    words = " ".join(ran.out.split())
    assert "unseen decode" in words
    assert "unseen mixed" in words


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give either --model"),
        (("--records", "none.jsonl"), "none.jsonl is not a record of steps"),
        (("--model", "x", "--output", "e.json"), "--output must end in .toml"),
        (("--model", "x", "--seconds", 0), "--seconds must be above 0"),
    ],
)
def test_calibrate_refuses_what_makes_no_sense(run, arguments, message):
    ran = run("calibrate", *arguments)

    assert ran.code == 2
    assert message in ran.err
    assert ran.err.count("\n") == 1

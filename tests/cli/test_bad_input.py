"""Bad input: one line that says what is wrong, where, and what to do; nothing written."""

import gzip
import json
import os

import pytest

HEAD = "arrival_time,prompt_len,output_len\n"
ROWS = "".join(f"{0.5 * row},{100 + row},{5 + row % 7}\n" for row in range(40))

BAD_TRACES = {
    "empty": (b"", "trace.csv is empty (0 bytes)"),
    "blank lines": (b"\n\n\n", "trace.csv holds no rows"),
    "header alone": (HEAD, "has a header but no rows"),
    "no header": (ROWS, "has no column known as arrival_time"),
    "other columns": (
        "when,in,out\n1,2,3\n",
        "It has: when, in, out. Say which with --columns arrival_time=NAME",
    ),
    "a column twice": (
        "arrival_time,prompt_len,prompt_len,output_len\n1,2,2,3\n",
        "more than one column named 'prompt_len'; rename or remove one",
    ),
    "not UTF-8": (HEAD.encode() + b"0,\xe9,3\n", "not UTF-8 text (byte 0xe9 at 37)"),
    "binary": (b"\x7fELF\0\0\0", "is binary"),
    "JSON array": ('[{"arrival_time": 1}]', "no column known as prompt_len or output_len"),
    "truncated gzip": (gzip.compress((HEAD + ROWS).encode())[:-12], "damaged gzip file"),
    "truncated Parquet": (b"PAR1\x15\x04", "damaged Parquet file"),
    "negative lengths": (HEAD + "0,-5,3\n1,-1,2\n", "prompt_len negative (2)"),
    "negative times": (HEAD + "-5,5,3\n-1,1,2\n", "arrival_time negative (2)"),
    "NaN": (HEAD + "nan,5,3\nnan,1,2\n", "arrival_time missing, infinite or not a time (2)"),
    "no prompt": (HEAD + "0,0,3\n1,0,2\n", "prompt_len 0 (2)"),
    "no output": (HEAD + "0,3,0\n1,2,0\n", "output_len 0: a failed request (2)"),
    "huge lengths": (HEAD + f"0,1e30,3\n1,{'9' * 25},2\n", "prompt_len above 100,000,000 tokens"),
    "huge times": (HEAD + "1e300,1,3\n2e300,9,2\n", "arrival_time above 3.2e+11 s (2)"),
    "words": (HEAD + "soon,many,few\n", "no usable row"),
    "all at once": (HEAD + "3,10,3\n" * 40, "all 40 requests of trace.csv arrive at the same time"),
    "one request": (HEAD + "3,10,3\n", "only one request is left, which has no rate"),
    "prompts too long": (
        HEAD + "0,10000000,3\n1,20000000,3\n",
        "none of the 2 requests can run: 2 prompts reach max_model_len (131072 tokens)",
    ),
}


@pytest.mark.parametrize("fault", BAD_TRACES)
def test_a_trace_that_cannot_be_used_is_refused(refused, tmp_path, fault):
    content, message = BAD_TRACES[fault]
    data = content if isinstance(content, bytes) else content.encode()
    (tmp_path / "trace.csv").write_bytes(data)

    assert message in refused("compare", "trace.csv", "--policies", "sjf", "--loads", "knee")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nothing.csv", "there is no file 'nothing.csv'; check the path"),
        ("no/such/folder.csv", "there is no file"),
        (".", "is a directory; give one file in it"),
        ("azure_2023_con@model", "Did you mean 'azure_2023_conv'?"),
        ("azure_2023_code2@model", "there is no workload model 'azure_2023_code2'"),
        ("x" * 5000, "there is no file"),
    ],
)
def test_a_trace_that_is_not_there_is_refused(refused, source, message):
    assert message in refused("simulate", source)


def test_rows_out_of_order_are_sorted_and_said_to_be(run, tmp_path):
    (tmp_path / "trace.csv").write_text(HEAD + "\n".join(reversed(ROWS.split())))

    ran = run(*("compare", "trace.csv", "--policies", "sjf", "--loads", "knee", "--json"))

    assert ran.code == 0
    assert any("out of order" in note for note in json.loads(ran.out)["origin"]["notes"])


def test_bad_rows_among_good_ones_are_left_out_and_counted(run, tmp_path):
    bad = "50,-1,3\n51,5,0\n52,nan,3\n53,1,1e30\n54\n"
    (tmp_path / "trace.csv").write_text(HEAD + ROWS + bad)

    ran = run(*("compare", "trace.csv", "--policies", "sjf", "--loads", "knee", "--json"))

    origin = json.loads(ran.out)["origin"]
    assert (origin["num_requests"], sum(origin["dropped"].values())) == (40, 5)


def test_requests_too_long_for_the_engine_are_left_out_and_counted(run, tmp_path):
    (tmp_path / "trace.csv").write_text(HEAD + ROWS + "30,131072,3\n31,131071,3\n")

    ran = run(*("compare", "trace.csv", "--policies", "sjf", "--loads", "knee", "--json"))

    warnings = json.loads(ran.out)["warnings"]
    assert any("1 requests can never run" in warning for warning in warnings)


BAD_POLICIES = {
    "raises": ("raise ValueError('no')", "mine.py:2: `raise` would stop the engine"),
    "loops": ("while True: pass", "mine.py:2: `while` could never end"),
    "loops for long": (
        "return sum([step for step in range(10**12)])",
        "mine.py:2: ",
    ),
    "calls itself": ("return waiting_key(request, engine)", "mine.py"),
    "divides by zero": ("return 1 / 0", "ZeroDivisionError: division by zero"),
    "divides by zero at times": (
        "return 1 / (engine.num_running - 1)",
        "'mine' failed in waiting_key, line 2",
    ),
    "writes to a row": ("request.priority = 3", "mine.py:2: assigns to `request.priority`"),
    "peeks": ("return request.output_len", "cannot see the true output length"),
    "is misspelled": ("return request.num_prompt_token", "Did you mean 'num_prompt_tokens'?"),
    "is not Python": ("return (", "mine.py:2: not Python"),
    "returns text": ("return 'first'", "mine.py:2: text has no use in a policy"),
    "returns nothing": ("pass", "every path through `waiting_key` must return a value"),
    "imports": ("import os", "mine.py:2: "),
    "opens files": ("return open('/etc/passwd')", "mine.py:2: "),
}


@pytest.mark.parametrize("fault", BAD_POLICIES)
def test_a_policy_that_breaks_the_contract_is_refused(refused, quick, policy_file, fault):
    body, message = BAD_POLICIES[fault]
    path = policy_file(body)

    error = refused(*quick, "--policy", path)

    assert message in error
    assert "mine" in error


def test_a_policy_of_bytes_is_refused(refused, quick, tmp_path):
    (tmp_path / "mine.py").write_bytes(b"\0\xff\xfe")

    assert "mine.py is not UTF-8 text" in refused(*quick, "--policy", "mine.py")


def test_a_policy_without_a_hook_is_refused(refused, quick, tmp_path):
    (tmp_path / "mine.py").write_text("SECONDS = 1.0\n")

    assert "there is no `waiting_key`; define" in refused(*quick, "--policy", "./mine.py")


def test_a_policy_that_is_a_folder_is_refused(refused, quick, tmp_path):
    (tmp_path / "mine.py").mkdir()

    assert "mine.py is a folder" in refused(*quick, "--policy", "mine.py")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("fcsf", "there is no policy 'fcsf'. Did you mean 'fcfs'?"),
        ("./mine.py", "mine.py: there is no such file; check the path"),
        ("aged_sjf(SECONDS=1)", "has no parameter 'SECONDS'"),
        ("aged_sjf(SECONDS_PER_TOKEN=much)", "cannot read the parameters"),
        ("sjf", "policy 'sjf' is given twice; rename one file or leave one out"),
    ],
)
def test_a_policy_that_cannot_join_is_refused(refused, quick, spec, message):
    assert message in refused(*quick, "--policy", spec)


def test_two_files_of_one_name_are_refused(refused, quick, policy_file, tmp_path):
    (tmp_path / "other").mkdir()
    first, second = policy_file("return 1.0"), policy_file("return 2.0", name="other/mine")

    assert "policy 'mine' is given twice" in refused(*quick, "--policy", first, "--policy", second)


def test_a_file_cannot_stand_in_for_fcfs(refused, log, policy_file):
    path = policy_file("return -request.arrival_time", name="fcfs")

    error = refused("compare", log, "--policies", "sjf", "--policy", path)

    assert "fcfs.py would stand in for fcfs, the reference of every comparison; rename it" in error


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("'max_num_seqs': 100000", "ENGINE of policy 'mine': max_num_batched_tokens (8192) must"),
        ("'num_gpu_blocks': 1", "num_gpu_blocks must be a whole number of at least 2, got 1"),
        ("'max_num_seq': 8", "Did you mean 'max_num_seqs'?"),
        ("'max_model_len': 1", "no request fits the engines of all policies at once"),
    ],
)
def test_engine_settings_of_a_policy_that_cannot_work_are_refused(
    refused, quick, policy_file, setting, message
):
    path = policy_file("return 1.0", head=f"ENGINE = {{{setting}}}\n")

    assert message in refused(*quick, "--policy", path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--max-num-batched-tokens 4 --max-num-seqs 8", "max_num_batched_tokens (4) must be at"),
        ("--no-enable-chunked-prefill --max-num-batched-tokens 512", "without chunked prefill"),
        ("--gpu-memory-utilization 0.1", "no KV cache fits: 0.1 of 79.6 GiB less 16.96 GiB"),
        ("--gpu-memory-utilization 1.5", "must be a number from 0 to 1, got '1.5'"),
        ("--num-gpu-blocks-override 1", "num_gpu_blocks must be a whole number of at least 2"),
        ("--num-gpu-blocks-override 10", "larger than the KV cache (144 tokens)"),
        ("--max-model-len 64", "80 prompts reach max_model_len (64 tokens)"),
        ("--max-num-seqs many", "whole number such as 8192"),
        ("--max-num-seqs", "--max-num-seqs needs a value"),
        ("--max-num-seqs 0", "max_num_seqs must be a whole number of at least 1, got 0"),
        ("--max-num-seqs '8", "--engine-args cannot be read"),
        ("--scheduling-policy random", "'fcfs' or 'priority', got 'random'"),
    ],
)
def test_engine_arguments_that_vllm_would_refuse_are_refused(refused, log, arguments, message):
    command = ("compare", log, "--policies", "sjf", "--loads", "knee", "--window-len", 80)

    assert message in refused(*command, "--engine-args", arguments)


def test_prompts_longer_than_the_kv_cache_are_refused_by_count(refused, log, policy_file):
    path = policy_file("return 1.0", head="ENGINE = {'num_gpu_blocks': 5}\n")

    error = refused("simulate", log, "--policy", path)

    assert "0 prompts reach max_model_len (131072 tokens)" in error
    assert "80 sequences exceed the KV cache (64 tokens); choose a larger engine" in error


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--windows", "-1"], "num_windows must be at least 1, got -1"),
        (["--window-len", "0"], "window_len must be at least 1, got 0"),
        (["--seed", "-1"], "seed must be at least 0, got -1"),
        (["--workers", "0"], "num_workers must be at least 1, got 0"),
        (["--loads", "nonsense"], "there is no load 'nonsense'"),
        (["--loads", "knee,heavyy"], "Did you mean 'heavy'?"),
        (["--loads", "-0.5"], "above 0 and at most 100, got -0.5"),
        (["--slo", "nonsense"], "--slo must look like name=value"),
        (["--slo", "itl=1"], "--slo has limits ttft, tpot and e2el, got 'itl'"),
        (["--slo", "ttft=soon"], "--slo ttft must be seconds such as 0.5, got 'soon'"),
        (["--slo", "ttft=-1"], "ttft must be positive seconds, got -1.0"),
        (["--slo", "ttft=1,ttft=2"], "--slo names 'ttft' twice"),
        (["--output-length", "guess"], "none, exact, noisy or noisy:SIGMA"),
        (["--output-length", "noisy:-1"], "sigma must be a number of at least 0"),
        (["--columns", "nonsense"], "--columns must look like name=value"),
        (["--columns", "prompt_length=prompt_len"], "Did you mean 'prompt_len'?"),
        (["--columns", "prompt_len=in"], "log.csv has no column 'in' for prompt_len"),
        (["--unit", "min"], "unit must be one of s, ms, us, ns, or say it of single columns"),
        (["--num-requests", "0"], "num_requests must be from 1 to 100,000,000, got 0"),
        (["--engine", "llama-3.1-8b/h100"], "Did you mean 'llama-3.1-8b/h100_sxm'?"),
        (["--host-overhead", "-1"], "host_overhead must be a number from 0 up, got -1.0"),
        (["--model-config", "none.json"], "--model-config needs the GPU too"),
        (["--gpu-flops", "1e15"], "go with --model-config"),
        (["--fail-if", "ttft_p99 is bad"], "cannot be read; write it like"),
        (["--fail-if", "ttft_p98 > 1"], "Did you mean 'ttft_p99'?"),
        (["--fail-if", "ttft_p99 > fcsf"], "Did you mean 'fcfs'? Known: fcfs, "),
        (["--policies", ""], "--policies names no policy"),
        (["--policies", "fcfs,fcfs"], "'fcfs' is given twice"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(refused, log, options, message):
    assert message in refused("compare", log, *options)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file or directory; give a model's config.json"),
        ("not json", "is not JSON; give a model's config.json"),
        ("[]", "holds no JSON object"),
        ("{}", "hidden_size must be a whole number from 1 up, got None"),
        ('{"num_local_experts": 8}', "a mixture of experts"),
    ],
)
def test_a_model_that_cannot_be_read_is_refused(refused, log, tmp_path, content, message):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    gpu = ("--gpu-bandwidth", "3.35e12", "--gpu-flops", "989e12", "--gpu-memory", "80")

    assert message in refused("compare", log, "--model-config", "config.json", *gpu)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rho", "0"], "a load must be above 0 and at most 100, got 0.0"),
        (["--rho", "nan"], "got nan"),
        (["--horizon", "-1"], "--horizon must be above 0 seconds, got -1"),
        (["--horizon", "nan"], "--horizon must be above 0 seconds, got nan"),
        (["--requests", "rows.txt"], "--requests writes .parquet or .csv, got 'rows.txt'"),
        (["--policy", "nobody"], "there is no policy 'nobody'"),
    ],
)
def test_an_option_of_simulate_that_makes_no_sense_is_refused(refused, log, options, message):
    assert message in refused("simulate", log, *options)


@pytest.mark.parametrize("place", ["log.csv", "log.csv/deeper"])
def test_an_output_folder_that_is_a_file_is_refused_before_any_work(refused, quick, place):
    assert "log.csv is a file; name a folder with --output" in refused(*quick, "--output", place)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_output_folder_that_cannot_be_written_is_refused(refused, quick, tmp_path):
    (tmp_path / "locked").mkdir(mode=0o555)

    for place in ("locked", "locked/deeper"):
        assert "locked cannot be written; name another" in refused(*quick, "--output", place)


def test_a_folder_that_the_system_does_not_allow_is_refused(refused, quick, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)

    assert "cannot be written; name another with --output" in refused(*quick, "--output", "here")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--requests", "rows.csv", "--timeline", "none/line.json"], "there is no folder none"),
        (["--requests", "log.csv/rows.csv"], "log.csv is a file; name a folder with --requests"),
        (["--timeline", "."], "is a folder; name a file with --timeline"),
    ],
)
def test_no_file_is_written_when_one_of_two_cannot_be(refused, log, options, message):
    assert message in refused("simulate", log, *options)


def test_a_full_disk_leaves_no_half_written_file(refused, log, monkeypatch):
    def full(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)

    error = refused("simulate", log, "--requests", "rows.csv")

    assert error == (
        "error: rows.csv cannot be written: No space left on device; choose another place\n"
    )


def test_a_policy_that_fails_late_leaves_nothing_behind(refused, quick, policy_file):
    """After some runs have finished: it fails where somebody has waited for 40 ms."""
    path = policy_file("return 1 / (engine.now - request.arrival_time < 0.04)")

    assert "'mine' failed in waiting_key" in refused(*quick, "--policy", path, "--output", "here")

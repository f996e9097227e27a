"""Policies are compiled once and found again, by their text alone."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest

import queuesmith.engine.compile as compile_module
from queuesmith.engine import prepare, simulate
from queuesmith.engine.compile import cache_folder, cached_file, compile_policy
from queuesmith.engine.presets.step_time import get_preset
from queuesmith.engine.workload import request_rows
from queuesmith.errors import PolicyError
from queuesmith.policies import get_policy
from queuesmith.request import ENGINE_DTYPE
from queuesmith.traces.trace import Trace

TRACE = Trace([0.0, 0.1, 0.1], [10, 30, 20], [3, 2, 1])

# Compiles a policy in a process of its own and says whether numba had to compile or could load.
SCRIPT = """
import sys
from queuesmith.engine.compile import compile_policy
from queuesmith.policies import get_policy

compiled = compile_policy(get_policy(sys.argv[1]))
stats = compiled.waiting_key.stats
print(sum(stats.cache_hits.values()), sum(stats.cache_misses.values()))
"""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache folder of its own for everything compiled in a test."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("QUEUESMITH_CACHE", str(folder))
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setattr(compile_module, "_COMPILED", {})  # what other tests have compiled
    return folder


def files_in(folder, suffix):
    return sorted(folder.rglob(f"*{suffix}"))


def test_two_processes_compile_at_once_and_a_third_loads(cache):
    command = [sys.executable, "-c", SCRIPT, "aged_sjf"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    both = [subprocess.Popen(command, **pipes) for _ in range(2)]
    for process in both:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    assert len(files_in(cache, ".py")) == 1
    assert not files_in(cache, ".tmp")
    written = {path: path.stat().st_mtime_ns for path in files_in(cache, ".nbc")}
    assert written

    third = subprocess.run(command, capture_output=True, text=True, check=True)

    assert third.stdout.split() == ["1", "0"]  # loaded, not compiled
    assert {path: path.stat().st_mtime_ns for path in files_in(cache, ".nbc")} == written


def test_the_cache_holds_the_text_of_a_policy_under_its_hash(cache):
    policy = get_policy("aged_sjf(SECONDS_PER_TOKEN=0.0125)")
    compile_policy(policy)

    [path] = files_in(cache, ".py")
    assert path.parent == cache / "policies"
    assert re.fullmatch("aged_sjf_[0-9a-f]{16}.py", path.name)
    assert path.read_text() == policy.source
    assert "SECONDS_PER_TOKEN = 0.0125" in policy.source


def test_two_parameter_values_are_two_functions(cache):
    policies = [get_policy(f"aged_sjf(SECONDS_PER_TOKEN={value})") for value in (0.0, 1000.0)]
    compiled = [compile_policy(policy) for policy in policies]

    assert len(files_in(cache, ".py")) == 2
    assert compiled[0].waiting_key is not compiled[1].waiting_key
    # Row 1, of 30 tokens, comes before row 2, of 20: without a delay per token it goes first.
    trace = Trace([0.0, 0.001, 0.002], [10, 30, 20], [50, 1, 1])
    config = get_preset("constant_1ms").config.override({"max_num_seqs": 1})
    first = [
        simulate(trace, policy, engine="constant_1ms", config=config).requests.scheduled_ts
        for policy in policies
    ]
    assert [times[1] < times[2] for times in first] == [True, False]


def test_changed_text_is_another_file(cache, tmp_path):
    path = tmp_path / "mine.py"
    trace = Trace([0.0, 0.0], [10, 30], [1, 1])
    first_row = {}
    for sign in ("", "-"):
        path.write_text(
            f"def waiting_key(request, engine):\n    return {sign}request.num_prompt_tokens\n"
        )
        os.utime(path, (1e9, 1e9))  # time and size are no guide
        result = simulate(trace, path, engine="constant_1ms", record=True)
        first_row[sign] = int(result.recording.tokens[0, 0])

    assert first_row == {"": 0, "-": 1}
    assert len(files_in(cache, ".py")) == 2


def test_a_damaged_text_in_the_cache_is_written_anew(cache):
    policy = get_policy("aged_sjf(SECONDS_PER_TOKEN=0.0375)")
    path = cached_file(policy)
    path.write_text("def waiting_key(request, engine):\n    return 0.0\n")

    compile_policy(policy)
    assert path.read_text() == policy.source


def test_the_same_text_is_compiled_once_in_a_process(cache):
    policy = get_policy("aged_sjf(SECONDS_PER_TOKEN=0.0625)")

    first, second = compile_policy(policy), compile_policy(get_policy(policy))
    assert first.waiting_key is second.waiting_key
    assert second.policy is policy


def test_a_cache_folder_that_cannot_be_made_is_done_without(tmp_path, monkeypatch):
    blocked = tmp_path / "a-file"
    blocked.write_text("")
    monkeypatch.setenv("QUEUESMITH_CACHE", str(blocked / "cache"))

    policy = get_policy("aged_sjf(SECONDS_PER_TOKEN=0.0875)")
    assert simulate(TRACE, policy).policy == "aged_sjf(SECONDS_PER_TOKEN=0.0875)"


def test_compiled_code_that_cannot_be_written_is_done_without(cache):
    # numba wants a folder of this name beside the text.
    (cache / "policies").mkdir(parents=True)
    (cache / "policies" / "__pycache__").write_text("")

    policy = get_policy("aged_sjf(SECONDS_PER_TOKEN=0.1125)")
    assert simulate(TRACE, policy).policy == "aged_sjf(SECONDS_PER_TOKEN=0.1125)"
    assert not files_in(cache, ".nbc")


def test_the_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("QUEUESMITH_CACHE", str(tmp_path / "mine"))
    assert cache_folder() == tmp_path / "mine"
    monkeypatch.delenv("QUEUESMITH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "queuesmith"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "queuesmith"


def test_helpers_and_constants_of_a_file_are_compiled_with_it(policy_from):
    policy = policy_from("""
import math

QUANTA = (1.0, 4.0, 16.0)


def level(tokens):
    found = 0
    for index in range(3):
        if tokens > QUANTA[index]:
            found += 1
    return found


def waiting_key(request, engine):
    return level(request.num_prompt_tokens) + math.sqrt(request.priority)
""")

    key = compile_policy(policy).waiting_key
    trace = Trace([0.0] * 4, [1, 4, 5, 17], [1] * 4, priority=[0, 4, 0, 9])
    workload = prepare(trace, get_preset("constant_1ms").config, np.ones(4))
    engine = np.recarray(1, ENGINE_DTYPE)[0]
    assert [key(row, engine) for row in request_rows(workload, policy)] == [0.0, 3.0, 2.0, 6.0]


def test_what_cannot_be_compiled_is_a_policy_error(policy_from):
    policy = policy_from("""
LEVELS = (1.0, 2.5)


def waiting_key(request, engine):
    return LEVELS[request.arrival_time]
""")

    with pytest.raises(PolicyError, match="'written': waiting_key does not compile: ") as caught:
        compile_policy(policy)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["{mine}", "{", "%s", "a b.c", "名前", "n" * 200])
def test_a_file_may_have_any_name(cache, tmp_path, name):
    path = tmp_path / f"{name}.py"
    path.write_text("def waiting_key(request, engine):\n    return request.arrival_time\n")

    compile_policy(get_policy(str(path)))

    assert len(list((cache / "policies").glob("*.py"))) == 1

"""A policy that fails, stalls or is shared between threads."""

import math
import threading

import numpy as np
import pytest

import queuesmith as qs
from queuesmith.config import EngineConfig
from queuesmith.engine.presets.step_time import StepTime
from queuesmith.errors import EngineError, PolicyError
from queuesmith.traces.trace import Trace

ONE_SECOND = StepTime(a=1.0)
SMALL = EngineConfig(
    max_num_seqs=4, max_num_batched_tokens=64, num_gpu_blocks=101, block_size=1, max_model_len=64
)
TRACE = Trace([0.0, 0.0, 2.0], [3, 4, 7], [4, 4, 2])

BY_ARRIVAL = "def waiting_key(request, engine):\n    return request.arrival_time\n"


@pytest.fixture
def policy_file(tmp_path):
    def write(text):
        path = tmp_path / "faulty.py"
        path.write_text(text)
        return path

    return write


def simulate(path, trace=TRACE, config=SMALL, **options):
    return qs.simulate(trace, path, config=config, step_time=ONE_SECOND, **options)


@pytest.mark.parametrize(
    ("hook", "text", "line", "when"),
    [
        (
            "waiting_key",
            "def waiting_key(request, engine):\n    return 1 / (request.num_prompt_tokens - 7)\n",
            2,
            "2 s about a request with 7 prompt tokens",
        ),
        (
            "waiting_key",
            "# a comment\n\n\ndef share(request):\n    left = request.num_prompt_tokens - 4\n"
            "    return 1.0 / left\n\n\n"
            "def waiting_key(request, engine):\n    return share(request)\n",
            6,
            "0 s about a request with 4 prompt tokens",
        ),
        (
            "admit",
            BY_ARRIVAL + "def admit(request, engine):\n    return 5 % engine.num_running < 9\n",
            4,
            "0 s about a request with 3 prompt tokens",
        ),
        (
            "hold",
            BY_ARRIVAL + "def hold(request, engine):\n"
            "    return 1.0 / (request.num_output_tokens - 2) > 9.0\n",
            4,
            "2 s about a request with 3 prompt tokens",
        ),
    ],
)
def test_a_fault_names_hook_line_file_time_and_request(policy_file, hook, text, line, when):
    path = policy_file(text)

    with pytest.raises(PolicyError) as caught:
        simulate(path)

    message = str(caught.value)
    assert message.startswith(f"policy 'faulty' failed in {hook}, line {line} ({path}): ")
    assert "ZeroDivisionError" in message
    assert f"It was asked at {when}" in message
    assert "\n" not in message
    assert caught.value.__cause__ is None


def test_a_fault_of_the_victim_key_comes_when_it_is_first_needed(policy_file):
    path = policy_file(
        BY_ARRIVAL + "def victim_key(request, engine):\n"
        "    return 1.0 // (request.num_prompt_tokens - 4)\n"
    )
    config = SMALL.override({"num_gpu_blocks": 11})

    assert simulate(path).num_preemptions == 0  # blocks and budget never run short
    with pytest.raises(PolicyError, match=r"failed in victim_key, line 4 .*ZeroDivisionError"):
        simulate(path, config=config, trace=TRACE.take(slice(0, 2)))


def test_a_fault_in_a_displacing_key_names_the_running_request(policy_file):
    path = policy_file(
        "PREEMPTIVE = True\n"
        "def waiting_key(request, engine):\n"
        "    return 1.0 / (request.num_output_tokens - 2)\n"
    )
    config = SMALL.override({"max_num_seqs": 1})

    with pytest.raises(PolicyError, match=r"waiting_key, line 3 .* at 2 s .* 3 prompt tokens"):
        simulate(path, config=config, trace=Trace([0.0, 1.5], [3, 4], [4, 4]))


@pytest.mark.parametrize("record", [False, True])
def test_a_fault_late_in_a_run_is_found_too(policy_file, record):
    path = policy_file(
        "def waiting_key(request, engine):\n    return 1.0 / (100 - request.num_prompt_tokens)\n"
    )
    num_requests = 3000
    trace = Trace(
        np.arange(num_requests) * 0.25, [5] * (num_requests - 1) + [100], [2] * num_requests
    )

    with pytest.raises(PolicyError, match="a request with 100 prompt tokens"):
        qs.simulate(trace, path, record=record)


def test_a_table_that_is_too_short_is_a_fault_like_any_other(policy_file):
    path = policy_file(
        "SIZES = (1, 2)\n\n\ndef waiting_key(request, engine):\n"
        "    return SIZES[request.num_prompt_tokens]\n"
    )
    with pytest.raises(PolicyError, match="IndexError"):
        simulate(path)


def test_the_next_run_is_not_hurt_by_a_fault(policy_file):
    path = policy_file(
        "def waiting_key(request, engine):\n    return 1 / (request.num_prompt_tokens - 7)\n"
    )
    before = simulate("fcfs")
    with pytest.raises(PolicyError):
        simulate(path)

    assert simulate("fcfs").requests.tobytes() == before.requests.tobytes()
    assert not np.isnan(simulate(path, TRACE.take(slice(0, 2))).requests.last_token_ts).any()


@pytest.mark.parametrize(
    ("expression", "fault"),
    [
        ("math.log(request.num_prompt_tokens - 7)", "ValueError"),
        ("math.log2(request.num_output_tokens)", "ValueError"),
        ("math.log1p(-request.num_prompt_tokens)", "ValueError"),
        ("math.sqrt(request.num_prompt_tokens - 70)", "ValueError"),
        ("math.exp(request.num_prompt_tokens * 1000.0)", "OverflowError"),
        ("math.exp2(request.num_prompt_tokens * 1000.0)", "OverflowError"),
        ("math.sin(request.deadline)", "ValueError"),
        ("math.floor(request.deadline)", "OverflowError"),
        ("int(math.nan * request.arrival_time)", "ValueError"),
        ("round(request.deadline)", "OverflowError"),
    ],
)
def test_what_plain_python_refuses_is_refused_compiled(policy_file, expression, fault):
    """numba's own logarithm of 0 is -inf; in vLLM, where the policy is plain Python, it raises."""
    path = policy_file(f"import math\ndef waiting_key(request, engine):\n    return {expression}\n")

    with pytest.raises(PolicyError, match=rf"failed in waiting_key, line 3 .*: {fault}"):
        simulate(path)
    with pytest.raises(PolicyError, match=f"waiting_key raises {fault}"):
        qs.check_policy(path)


def test_functions_imported_by_name_are_as_strict(policy_file):
    path = policy_file(
        "from math import log\ndef waiting_key(request, engine):\n"
        "    return log(request.num_output_tokens)\n"
    )

    with pytest.raises(PolicyError, match="math domain error"):
        simulate(path)


# Stalls


def test_a_policy_that_admits_only_into_an_empty_engine_serves_one_batch_after_another(policy_file):
    path = policy_file(
        BY_ARRIVAL + "def admit(request, engine):\n    return engine.num_running == 0\n"
    )

    result = simulate(path)
    assert result.requests.scheduled_ts.tolist() == [0.0, 0.0, 4.0]


@pytest.mark.parametrize("hook", ["admit", "hold"])
def test_a_policy_that_never_lets_anybody_go_is_overruled(policy_file, hook):
    answer = "False" if hook == "admit" else "True"
    path = policy_file(BY_ARRIVAL + f"def {hook}(request, engine):\n    return {answer}\n")

    assert not np.isnan(simulate(path).requests.last_token_ts).any()


def test_a_hold_that_starves_the_only_other_request_of_blocks_still_ends(policy_file):
    # Row 0 holds most blocks and is held; row 1 preempts itself again and again until row 0,
    # alone, may go on.
    path = policy_file(
        BY_ARRIVAL + "def hold(request, engine):\n    return request.num_prompt_tokens == 6\n"
    )
    config = SMALL.override({"num_gpu_blocks": 11})

    result = simulate(path, Trace([0.0, 0.0], [6, 3], [4, 4]), config)
    assert not np.isnan(result.requests.last_token_ts).any()
    assert result.num_preemptions > 0


def test_requests_that_throw_each_other_out_for_ever_are_an_error_and_no_hang(policy_file):
    # Neither prompt fits beside a chunk of the other, and who is further gives way.
    path = policy_file(
        BY_ARRIVAL + "def victim_key(request, engine):\n    return request.num_computed_tokens\n"
    )
    config = SMALL.override(
        {
            "num_gpu_blocks": 41,
            "max_num_batched_tokens": 8,
            "long_prefill_token_threshold": 4,
            "scheduler_reserve_full_isl": False,
        }
    )

    with pytest.raises(EngineError) as caught:
        simulate(path, Trace([0.0, 0.0], [40, 40], [1, 1]), config)
    message = str(caught.value)
    assert message.startswith("policy 'faulty' stalls the engine: no request finished in 2,000,")
    assert "2 running" in message or "1 running" in message
    assert "victim_key" in message
    assert "\n" not in message


# Threads


def test_four_threads_give_the_same_bytes_as_one():
    rng = np.random.default_rng(0)
    num_requests = 2000
    trace = Trace(
        np.cumsum(rng.exponential(0.02, num_requests)),
        rng.integers(1, 3000, num_requests),
        rng.integers(1, 200, num_requests),
        client=rng.integers(0, 5, num_requests),
    )
    policies = ["fcfs", "srpt", "weighted_fair", "slai"]
    alone = {policy: qs.simulate(trace, policy).requests.tobytes() for policy in policies}
    start = threading.Barrier(4)
    found = {}

    def work(number):
        start.wait()
        for policy in policies[number:] + policies[:number]:
            found[number, policy] = qs.simulate(trace, policy).requests.tobytes()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(found) == 16
    assert all(found[number, policy] == alone[policy] for number, policy in found)


def test_a_fault_in_one_thread_is_seen_in_that_thread_alone(policy_file):
    path = policy_file(
        "def waiting_key(request, engine):\n    return 1 / (request.num_prompt_tokens - 7)\n"
    )
    outcomes = {}

    def work(number):
        try:
            outcomes[number] = simulate(path if number % 2 else "fcfs").end_time
        except PolicyError:
            outcomes[number] = math.nan

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [math.isnan(outcomes[number]) for number in range(4)] == [False, True, False, True]

"""`check_policy` finds what syntax cannot show, and says where."""

import re
from pathlib import Path

import numpy as np
import pytest

from queuesmith.errors import PolicyError
from queuesmith.policies import get_policy
from queuesmith.testing import _reachable_rows, check_policy

KEY = "def waiting_key(request, engine):\n    return request.arrival_time\n"


@pytest.fixture
def check(tmp_path):
    def check(source):
        path = tmp_path / "mine.py"
        path.write_text(source)
        return check_policy(path)

    return check


def key(expression):
    return f"import math\ndef waiting_key(request, engine):\n    return {expression}\n"


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        (
            "1.0 / request.num_output_tokens",
            "waiting_key raises ZeroDivisionError (float division by zero) "
            "for request.num_output_tokens=0; guard",
        ),
        ("request.arrival_time / engine.mean_wait", "engine.mean_wait=0, request.arrival_time="),
        ("math.log(engine.now - request.arrival_time)", "ValueError"),
        ("math.exp2(engine.now - request.arrival_time)", "OverflowError"),
        ("int(request.predicted_output_tokens)", "cannot convert float NaN to integer"),
        ("int(request.deadline)", "cannot convert float infinity to integer"),
    ],
)
def test_an_exception_on_a_reachable_row_is_reported_with_the_values(check, expression, reason):
    with pytest.raises(PolicyError) as raised:
        check(key(expression))

    assert reason in str(raised.value)


def test_whole_numbers_beyond_64_bits_are_found(check):
    tokens = "request.num_prompt_tokens"

    with pytest.raises(
        PolicyError, match=r"OverflowError \(a whole number does not fit in 64 bits; .* floats"
    ):
        check(key(f"{tokens} * {tokens} * {tokens}"))
    check(key(f"1.0 * {tokens} * {tokens} * {tokens}"))


def test_a_flag_must_be_a_flag(check):
    source = KEY + "def admit(request, engine):\n    return request.priority\n"

    with pytest.raises(PolicyError, match="admit must return True or False, got"):
        check(source)


def test_what_numba_cannot_compile_is_refused(check):
    source = KEY + (
        "SIZES = (1, 2)\n"
        "def hold(request, engine):\n    return SIZES[engine.kv_usage * 0.5 > 1.0] > engine.now\n"
    )
    with pytest.raises(PolicyError, match="mine"):
        check(source.replace("engine.kv_usage * 0.5 > 1.0", "0.0 * engine.kv_usage"))


def test_a_file_outside_the_language_is_refused(check):
    with pytest.raises(PolicyError, match=re.escape("mine.py:1: imports 'os'")):
        check("import os\n" + KEY)


def test_the_report_tells_what_was_checked(check):
    report = check(KEY)

    assert report.policy.name == "mine"
    assert report.notes == ()
    assert "the file is within the policy language" in report.checks
    assert "its key does not change while a request waits" in report.checks
    assert str(report).splitlines()[0] == "mine: keeps the contract"
    assert len(str(report).splitlines()) == 1 + len(report.checks)


def test_a_changing_key_is_not_claimed_to_be_static(check):
    assert not any("while a request waits" in line for line in check(key("-engine.now")).checks)


@pytest.mark.parametrize(
    ("name", "starved"),
    [
        ("fcfs", None),
        ("hrrn", None),
        ("residual_sjf", None),
        ("sjf", "with a longer prompt"),
        ("ljf", "with a shorter prompt"),
        ("lcfs", "like all others"),
        ("random", "like all others"),
        ("spjf", "with a longer predicted output"),
        ("priority", "of lower priority"),
        ("weighted_fair", "of clients that were served more"),
        ("edf", "without a deadline"),
        ("scorpio_guard", "without a deadline, past their deadline"),
    ],
)
def test_starvation_is_noted_and_not_forbidden(name, starved):
    notes = [note for note in check_policy(name).notes if note.startswith("may starve")]

    expected = f"may starve requests {starved}: newer ones pass them however long they have waited"
    assert notes == ([expected] if starved else [])


def test_notes_tell_what_else_a_user_should_know(check):
    assert (
        "cannot be deployed: it is told the exact output length"
        in check_policy("srpt_oracle").notes
    )
    assert any(note.startswith("displaces running") for note in check_policy("las").notes)
    assert "a bundle: it also sets max_num_scheduled_tokens=512" in check_policy("sarathi").notes
    unfit = check("ENGINE = {'max_num_batched_tokens': 8}\n" + KEY)
    assert any(note.startswith("ENGINE does not fit the default") for note in unfit.notes)


def test_the_same_seed_asks_about_the_same_rows():
    first, again, other = (
        _reachable_rows(np.random.default_rng(seed), "waiting") for seed in (0, 0, 1)
    )

    assert first.requests.tobytes() == again.requests.tobytes()
    assert first.engines.tobytes() == again.engines.tobytes()
    assert first.requests.tobytes() != other.requests.tobytes()


@pytest.mark.parametrize("state", ["arriving", "waiting", "running"])
def test_rows_are_ones_that_an_engine_can_reach(state):
    is_running = state == "running"
    rows = _reachable_rows(np.random.default_rng(0), state)
    requests, engines = rows.requests, rows.engines
    tokens = requests.num_prompt_tokens + requests.num_output_tokens

    assert (engines.now >= requests.arrival_time).all()
    assert (requests.last_token_ts <= engines.now).all()
    assert (requests.last_token_ts >= requests.arrival_time).all()
    assert (requests.num_uncached_tokens >= 1).all()
    assert (requests.num_uncached_tokens <= tokens).all()
    assert (requests.num_computed_tokens <= tokens).all()  # equal while its token is under way
    assert is_running == (requests.num_computed_tokens == tokens).any()
    assert (engines.num_running <= engines.max_num_seqs).all()
    assert (engines.token_rate > 0).all()
    assert (engines.num_running >= is_running).all()
    assert (state != "waiting") == (engines.num_waiting == 0).any()
    if not is_running:
        assert (requests.num_computed_tokens == 0).all()
    assert (state == "arriving") == (requests.num_output_tokens == 0).all()
    assert np.isnan(requests.predicted_output_tokens).any()
    assert np.isinf(requests.deadline).any()
    assert (engines.mean_wait == 0.0).any()


def test_a_policy_object_is_checked_as_it_is():
    policy = get_policy("aged_sjf(SECONDS_PER_TOKEN=0.5)")

    assert check_policy(policy).policy is policy


def test_the_first_policy_of_the_contributing_guide_keeps_the_contract(check):
    guide = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text()
    source = re.search(r'```python title="mine.py"\n(.*?)```', guide, re.DOTALL)[1]

    report = check(source)

    assert report.policy.parameters == {"PATIENCE": 2.0}
    assert report.notes == ()

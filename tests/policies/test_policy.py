"""Finding and loading policies: by name, parameters, path and entry point."""

import importlib.metadata
import os
import pickle
from pathlib import Path
from types import SimpleNamespace

import pytest

import queuesmith.policies.policy as policy_module
from queuesmith.errors import PolicyError, UnknownPolicy
from queuesmith.policies import Policy, get_policy, policy_names

MINE = '''"""Cheapest first,
by a price.

Knows:   the prompt,
         and nothing else.
Source:  invented here.
Caution: none.

More words, which are nobody's section.
"""

PRICE = (2 + 1)  # per token
OFFSET = -1.5; SHARE = 0.25
HURRY = True
TIERS = (1, 2)
PREEMPTIVE = True


def waiting_key(request, engine):
    return PRICE * request.num_prompt_tokens + OFFSET + SHARE


def hold(request, engine):
    return slow(engine)


def slow(engine):
    return engine.step_time > 1.0
'''
REQUEST = SimpleNamespace(num_prompt_tokens=10, num_uncached_tokens=10, arrival_time=3.0)


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return path


def test_a_policy_tells_what_its_file_says(mine):
    policy = get_policy(mine)

    assert policy.name == "mine"
    assert policy.path == mine
    assert policy.source == MINE
    assert policy.summary == "Cheapest first, by a price."
    assert policy.knows == "the prompt, and nothing else."
    assert policy.origin == "invented here."
    assert policy.caution == "none."
    assert policy.parameters == {"PRICE": 3, "OFFSET": -1.5, "SHARE": 0.25, "HURRY": True}
    assert policy.preemptive
    assert not policy.oracle
    assert not policy.is_bundle
    assert list(policy.hooks) == ["waiting_key", "hold"]
    assert policy.victim_key is None
    assert policy.admit is None
    assert policy.waiting_key(REQUEST, None) == 28.75
    assert policy.reads == {
        "waiting_key": {"request.num_prompt_tokens"},
        "hold": {"engine.step_time"},
    }


def test_a_policy_may_be_given_in_every_form(mine, monkeypatch):
    monkeypatch.chdir(mine.parent)

    policies = [get_policy(spec) for spec in (mine, str(mine), "mine.py", "./mine.py")]

    assert all(policy == policies[0] and policy.source == MINE for policy in policies)
    assert get_policy(policies[0]) is policies[0]


def test_a_file_without_a_docstring_has_empty_words(tmp_path):
    path = tmp_path / "bare.py"
    path.write_text("def waiting_key(request, engine):\n    return 1\n")

    policy = get_policy(path)

    assert (policy.summary, policy.knows, policy.origin, policy.caution) == ("", "", "", "")


def test_parameters_change_the_text_the_name_and_the_behaviour(mine):
    policy = get_policy(f"{mine}(SHARE=1, OFFSET=2.5, PRICE=-4)")

    assert policy.name == "mine(SHARE=1, OFFSET=2.5, PRICE=-4)"
    assert "PRICE = (-4)  # per token\nOFFSET = 2.5; SHARE = 1\n" in policy.source
    assert policy.parameters == {"PRICE": -4, "OFFSET": 2.5, "SHARE": 1, "HURRY": True}
    assert policy.waiting_key(REQUEST, None) == -36.5
    assert policy.sha256 != get_policy(mine).sha256


def test_parameters_of_a_built_in_leave_the_built_in_alone():
    slow = get_policy("aged_sjf(SECONDS_PER_TOKEN=0.5)")

    assert slow.waiting_key(REQUEST, None) == 8.0
    assert get_policy("aged_sjf").waiting_key(REQUEST, None) == pytest.approx(3.03)
    assert get_policy(" aged_sjf ( SECONDS_PER_TOKEN = 0.5 ) ") == slow
    assert get_policy("aged_sjf()") == get_policy("aged_sjf")


def test_a_parameter_may_set_an_engine_setting():
    assert get_policy("sarathi(CHUNK_SIZE=256)").engine == {"max_num_scheduled_tokens": 256}


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("aged_sjf(SECONDS=1)", "has no parameter 'SECONDS'. It has: SECONDS_PER_TOKEN=0.003"),
        ("aged_sjf(SECONDS_PER_TOKENS=1)", "Did you mean 'SECONDS_PER_TOKEN'?"),
        ("fcfs(SPEED=1)", "It has: none"),
        ("aged_sjf(SECONDS_PER_TOKEN=inf)", "cannot read the parameters"),
        ("aged_sjf(SECONDS_PER_TOKEN=1e999)", "must be a finite number"),
        ("aged_sjf(SECONDS_PER_TOKEN='1')", "must be a finite number, got '1'"),
        ("aged_sjf(SECONDS_PER_TOKEN=True)", "of the kind of its default 0.003, got True"),
        ("aged_sjf(SECONDS_PER_TOKEN=1, SECONDS_PER_TOKEN=2)", "is given twice"),
        ("aged_sjf(0.5)", "write aged_sjf(PARAM=number, ...)"),
        ("aged_sjf(SECONDS_PER_TOKEN)", "write aged_sjf(PARAM=number, ...)"),
        ("aged_sjf(**{})", "must be a finite number"),
        ("aged_sjf(SECONDS_PER_TOKEN=", "there is no policy"),
        ("mlfq(NUM_LEVELS=2.5)", "must be a whole number"),
        ("mlfq(NUM_LEVELS=100000)", "operations, above the 100,000"),
        ("srpt(PREEMPTIVE=False)", "has no parameter 'PREEMPTIVE'"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(spec, reason):
    with pytest.raises(PolicyError) as raised:
        get_policy(spec)

    assert reason in str(raised.value)


def test_an_unknown_name_is_an_error_that_suggests_one():
    with pytest.raises(UnknownPolicy, match=r"no policy 'sfj'. Did you mean 'sjf'\?"):
        get_policy("sfj")


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("missing.py", None, "there is no such file"),
        ("latin.py", b"# \xe9\n", "is not UTF-8 text (byte 2)"),
        ("large.py", b"#" * 100_001, "larger than the 100,000 bytes"),
        ("broken.py", b"def waiting_key(\n", "not Python"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(tmp_path, name, content, reason):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(PolicyError) as raised:
        get_policy(path)

    assert reason in str(raised.value)
    assert str(path) in str(raised.value)


def test_a_folder_a_device_and_a_nameless_path_are_refused(tmp_path):
    with pytest.raises(PolicyError, match="is a folder"):
        get_policy(tmp_path)
    with pytest.raises(PolicyError, match="not a regular file"):
        get_policy(Path(os.devnull))
    with pytest.raises(PolicyError, match="no such file"):
        get_policy("./\0.py")
    with pytest.raises(PolicyError, match="by name or path, got 3"):
        get_policy(3)
    with pytest.raises(UnknownPolicy):
        get_policy("")


def test_a_byte_order_mark_and_windows_line_ends_do_not_change_a_policy(tmp_path, mine):
    other = tmp_path / "other" / "mine.py"
    other.parent.mkdir()
    other.write_bytes(b"\xef\xbb\xbf" + MINE.replace("\n", "\r\n").encode())

    assert get_policy(other).source == MINE
    assert get_policy(f"{other}(SHARE=1)") == get_policy(f"{mine}(SHARE=1)")


def test_nothing_runs_before_the_check(tmp_path):
    path, witness = tmp_path / "eager.py", tmp_path / "witness"
    path.write_text(f"open({str(witness)!r}, 'w')\n{MINE}")

    with pytest.raises(PolicyError):
        get_policy(path)

    assert not witness.exists()


def test_policies_pickle_by_their_text():
    policy = get_policy("aged_sjf(SECONDS_PER_TOKEN=0.5)")

    copy = pickle.loads(pickle.dumps(policy))

    assert copy == policy
    assert hash(copy) == hash(policy)
    assert copy.parameters == policy.parameters
    assert copy.waiting_key(REQUEST, None) == 8.0


def test_a_key_is_static_when_nothing_it_reads_can_change(tmp_path):
    def static(expression):
        path = tmp_path / "key.py"
        path.write_text(
            f"def waiting_key(request, engine):\n    return {expression}\n"
            "def age(request, engine):\n    return engine.now - request.arrival_time\n"
        )
        return get_policy(path).static

    assert static("request.arrival_time + request.num_prompt_tokens")
    assert not static("engine.now")
    assert not static("age(request, engine)")
    assert not static("request.client_tokens")


def test_an_installed_package_can_offer_policies(tmp_path, monkeypatch):
    package = tmp_path / "acme_policies"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "cheapest.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    entries = [
        importlib.metadata.EntryPoint(name, module, "queuesmith.policies")
        for name, module in (("cheap", "acme_policies.cheapest"), ("gone", "acme_policies.none"))
    ]
    monkeypatch.setattr(policy_module.importlib.metadata, "entry_points", lambda group: entries)

    assert get_policy("cheap(PRICE=1)").name == "cheap(PRICE=1)"
    assert get_policy("cheap").source == MINE
    with pytest.raises(PolicyError, match="cannot be found; reinstall"):
        get_policy("gone")
    with pytest.raises(UnknownPolicy, match="Did you mean 'cheap'"):
        get_policy("cheep")


def test_the_list_of_names_is_the_list_of_files():
    folder = Path(policy_module.__file__).parent / "builtin"

    assert policy_names() == sorted(
        path.stem for path in folder.glob("*.py") if path.stem != "__init__"
    )
    assert all(isinstance(get_policy(name), Policy) for name in policy_names())

"""The form of candidates: what is refused, in which words, and that nothing else can happen."""

import pickle
import sys
from contextlib import suppress

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from queuesmith.errors import CandidateError, PolicyError
from queuesmith.evolve.sandbox import allow_list
from queuesmith.evolve.sandbox.allow_list import MAX_BRACKETS, MAX_BYTES, check_form
from queuesmith.policies import get_policy, policy_names
from queuesmith.policies.policy import load_text

from .hostile.corpus import corpus

KEY = "def waiting_key(request, engine):\n    return request.arrival_time\n"


def hook(*lines):
    return "def waiting_key(request, engine):\n" + "".join(f"    {line}\n" for line in lines)


def refusal(text):
    with pytest.raises(CandidateError) as caught:
        check_form(text)
    message = str(caught.value)
    assert "\n" not in message
    return message


# What a candidate may be


@pytest.mark.parametrize("name", policy_names())
def test_built_in_policies_are_of_good_form_unless_they_ask_for_more_than_candidates_get(name):
    policy = get_policy(name)
    reasons = {
        "a loop": "for " in policy.source and "range(" in policy.source,
        "ENGINE": policy.is_bundle,
        "ORACLE": policy.oracle,
    }

    if any(reasons.values()):
        message = refusal(policy.source)
        assert any(word in message for word, holds in reasons.items() if holds)
    else:
        check_form(policy.source)


def test_hooks_helpers_constants_math_and_preemption_are_allowed():
    check_form(
        '''"""Whoever waits longest for its size.

Knows:   arrival time and prompt length.
"""

import math

SECONDS_PER_TOKEN = 0.003
STEPS = (0.5, 1.0, 2.0)
PREEMPTIVE = True


def waiting_key(request, engine):
    wait = engine.now - request.arrival_time
    if wait > 0.9 * engine.oldest_wait and not math.isnan(wait):
        return -math.inf
    return worth(wait, request.num_prompt_tokens) * STEPS[1]


def worth(wait: float, size: int) -> float:
    return SECONDS_PER_TOKEN * size - math.log1p(max(wait, 0.0))


def victim_key(request, engine):
    return -request.num_computed_tokens
'''
    )


# What it may not be


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"x", "a candidate is text, got bytes"),
        (None, "a candidate is text, got NoneType"),
        ("", "there is no `waiting_key`"),
        (KEY + "#" * MAX_BYTES, "16,066 characters, more than the 16,000 of a candidate"),
        ("# caf\u00e9\n" + KEY, "line 1: the character '\\xe9'; write plain ASCII"),
        ("\n\nX\uff11 = 1\n" + KEY, "line 3: the character '\\uff11'"),
        ("\ufeff" + KEY, "line 1: the character '\\ufeff'"),
        (KEY.replace("    ", "\t"), "line 2: the character '\\t'"),
        ("# coding: utf-7\n" + KEY, "line 1: a comment that sets an encoding"),
        ("\n# vim: fileencoding=latin1\n" + KEY, "line 2: a comment that sets an encoding"),
        (hook("x = 1", "x = __debug__", "return x"), "line 3: `__debug__`: no name may begin"),
        (hook("return " + "x" * 61), "line 2: `xxxxxxxxxxxxxxxxxxxx...` has 61 characters"),
        (hook("return " + "9" * 61), "line 2: `99999999999999999999...` has 61 characters"),
        (hook("return " + "(" * 17 + "1" + ")" * 17), "line 2: brackets nested more than 16 deep"),
        (hook("return f'{1}'"), "line 2: text has no use in a policy"),
        (hook("return rF'{1}'"), "line 2: text has no use in a policy"),
        (hook(*["x = 1.0 + 1.0"] * 500, "return x"), "more than the 2,500 names, numbers"),
        (hook("return 1" + " + 1" * 50), "line 2: nested more than 50 deep"),
        (hook("for n in range(3):", "    pass", "return 1"), "line 2: a loop; write its rounds"),
        ("ENGINE = {'max_num_seqs': 8}\n" + KEY, "ENGINE: a candidate is judged on the engine"),
        ("ORACLE = False\n" + KEY, "ORACLE: a candidate is never told"),
        (KEY + KEY.replace("waiting_key", "reject"), "reject: a candidate serves all requests"),
        (hook("return f(1)") + "def f(x):\n    return f(x)\n", "line 3: `f` calls itself"),
        (hook("return 1 / 'x'"), "line 2: text has no use in a policy"),
        (hook("return (1"), "line 2: not Python: '(' was never closed"),
        ("```\n" + KEY + "```\n", "line 1: not Python"),
    ],
)
def test_a_text_is_refused_with_the_reason_and_the_line(text, message):
    assert message in refusal(text)


def test_sizes_are_limits_and_not_beyond():
    exact = KEY + "#" * (MAX_BYTES - len(KEY))
    functions = [f"\n\ndef f{n}(x):\n    return x\n" for n in range(allow_list.MAX_FUNCTIONS)]

    check_form(exact)
    assert "characters" in refusal(exact + "#")
    check_form(KEY + "".join(functions[1:]))
    assert "9 functions, more than the 8" in refusal(KEY + "".join(functions))
    check_form(hook("return 1" + " + 1" * 45))
    check_form(hook("x" * allow_list.MAX_WORD + " = 1", "return 1"))
    check_form(hook("return " + "(" * MAX_BRACKETS + "1" + ")" * MAX_BRACKETS))


def test_brackets_and_names_in_comments_and_docstrings_are_not_counted():
    check_form('"""' + "([{" * 50 + '"""\n# __dunder__ ' + "(" * 50 + "\n" + KEY)


def test_the_error_keeps_its_line_in_another_process():
    with pytest.raises(CandidateError) as caught:
        check_form("\nimport os\n")
    again = pickle.loads(pickle.dumps(caught.value))

    assert (again.line, again.reason) == (2, caught.value.reason)
    assert str(again) == str(caught.value)
    assert isinstance(again, PolicyError)


def test_checking_leaves_warning_filters_and_the_recursion_limit_as_they_were():
    import warnings

    before = list(warnings.filters), sys.getrecursionlimit()
    for text in (KEY, "x = '\\d'\n" + KEY, "x = " + "-" * 2000 + "1\n" + KEY, "1if 1else 2"):
        with suppress(CandidateError):
            check_form(text)

    assert (list(warnings.filters), sys.getrecursionlimit()) == before


# Fuzzing: nothing but acceptance or a CandidateError, and what is accepted compiles or says why not

SOURCES = [get_policy(name).source for name in policy_names()]
HOSTILE = [hostile.text for hostile in corpus() if len(hostile.text) < 3_000]
FRAGMENTS = st.one_of(
    st.sampled_from(
        ["(", ")", ":", "\n", "    ", "request", "engine", ".", "lambda: ", "while 1", "*", "**",
         "=", "return ", "1e999", "None", "\x00", "\udfff", "\u00e9", "def ", "[", "]", "{", "}",
         "for _ in range(9):", "if 1:", "X = 3\n", "import math\n", "math.", "not ", "async ",
         "'", '"""', "#", "\\", "\f", "\r", "0" * 5000, "f'{", "__class__", " if 1 else ", "-" * 99,
         "@", ":=", "waiting_key(request, engine)", "ENGINE = {}\n", "~", "0x", "1_", "...", ","]
    ),
    st.text(max_size=5),
)  # fmt: skip


def changed(text, changes):
    for place, length, fragment in changes:
        start = place % (len(text) + 1)
        text = text[:start] + fragment + text[start + length :]
    return text


CHANGES = st.lists(st.tuples(st.integers(0), st.integers(0, 12), FRAGMENTS), max_size=4)


@given(st.text(max_size=300))
@example("0_0_")
@example("\\")
@example('"\\d"')
@example("1if 1else 1")
@example("\udc80")
@example("f'")
@example('"""')
def test_any_text_is_accepted_or_refused_and_nothing_else(text):
    with suppress(CandidateError):
        check_form(text)


@settings(max_examples=400)
@given(st.sampled_from(SOURCES + HOSTILE), CHANGES)
def test_any_change_to_policies_and_hostile_texts_is_accepted_or_refused(text, changes):
    with suppress(CandidateError):
        check_form(changed(text, changes))


NUMBERS = st.sampled_from(
    ["request.arrival_time", "request.num_prompt_tokens", "engine.now", "engine.num_waiting", "x",
     "W", "T[1]", "T[int(x)]", "0", "-1", "2.5", "math.inf", "True", "1e308", "(2**62)", "nothing"]
)  # fmt: skip
EXPRESSIONS = st.recursive(
    NUMBERS,
    lambda part: st.one_of(
        st.builds("({} {} {})".format, part, st.sampled_from(
            ["+", "-", "*", "/", "//", "%", "<", "==", "and", "or", "**", "<<"]), part),
        st.builds("{}({})".format, st.sampled_from(
            ["math.log1p", "math.exp", "abs", "int", "round", "not ", "-", "f", "bool"]), part),
        st.builds("max({}, {})".format, part, part),
        st.builds("({} if {} else {})".format, part, part, part),
    ),
    max_leaves=6,
)  # fmt: skip


@settings(max_examples=25)
@given(EXPRESSIONS, EXPRESSIONS, st.sampled_from(["waiting_key", "admit", "victim_key"]))
def test_what_is_accepted_compiles_or_is_refused_with_a_reason(
    tmp_path_factory, first, second, where
):
    from queuesmith.engine.compile import compile_policy

    text = "import math\n\nW = 2\nT = (1.0, 2.0)\n\n\n"
    text += "def f(x):\n    return x * W\n\n\n"
    text += f"def {where}(request, engine):\n    x = {first}\n    if x > 1:\n"
    text += f"        x = {second}\n    return x\n"
    text += "" if where == "waiting_key" else "\n\n" + KEY
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QUEUESMITH_CACHE", str(tmp_path_factory.getbasetemp()))
        try:
            check_form(text)
            compile_policy(load_text("candidate", text, tmp_path_factory.getbasetemp() / "c.py"))
        except PolicyError as error:
            reason = str(error)
            assert "\n" not in reason
            assert len(reason) > 10

"""The policy language: what is refused, in what words, and what is allowed."""

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from queuesmith.errors import PolicyError
from queuesmith.policies import get_policy, policy_names
from queuesmith.policies.policy import load_text
from queuesmith.policies.syntax import check_syntax

KEY = "def waiting_key(request, engine):\n    return request.arrival_time\n"


def hook(*lines):
    """A file with one hook of these lines."""
    return "def waiting_key(request, engine):\n" + "".join(f"    {line}\n" for line in lines)


def refusal(source):
    with pytest.raises(PolicyError) as raised:
        check_syntax(source, "mine.py")
    message = str(raised.value)
    assert message.startswith("mine.py")
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (["while True:", "    pass", "return 1"], "mine.py:2: `while` could never end"),
        (["import math", "return 1"], "inside no function"),
        (["from math import exp", "return 1"], "inside no function"),
        (["global total", "return 1"], "`global` would keep state"),
        (["return (lambda: 1)()"], "`lambda: 1` cannot be called"),
        (["key = lambda: 1", "return 1"], "`lambda` cannot be compiled"),
        (["class Key:", "    pass", "return 1"], "a class cannot be compiled"),
        (["try:", "    return 1", "except ValueError:", "    return 2"], "`try` cannot"),
        (["with request:", "    return 1"], "`with` cannot be compiled"),
        (["del request", "return 1"], "`del` changes"),
        (["raise ValueError"], "`raise` would stop the engine"),
        (["assert request.priority", "return 1"], "`assert` would stop the engine"),
        (["return sum([x for x in (1, 2)])"], "`sum` cannot be called"),
        (["x = [n for n in range(3)]", "return 1"], "write a `for` loop"),
        (["x = {n for n in range(3)}", "return 1"], "write a `for` loop"),
        (["x = {n: n for n in range(3)}", "return 1"], "write a `for` loop"),
        (["return max(n for n in range(3))"], "needs at least two"),
        (["return max(*[1, 2], 3)"], "`*` arguments cannot"),
        (["x = [1, 2]", "return 1"], "UPPER_CASE tuple"),
        (["x = {}", "return 1"], "UPPER_CASE tuple"),
        (["x = (1, 2)", "return 1"], "UPPER_CASE constant"),
        (["yield 1"], "drops it"),
        (["x = yield 1", "return 1"], "`yield` would keep state"),
        (["return f'{request.priority}'"], "text has no use"),
        (["x = 'fcfs'", "return 1"], "text has no use"),
        (["return b'x'"], "text has no use"),
        (["return None"], "None is not a number"),
        (["return 1j"], "1j is not a number"),
        (["return ..."], "not a number"),
        (["return 9223372036854775808"], "does not fit in 64 bits"),
        (["return (x := 1)"], "assign on a line of its own"),
        (["x: float = 1.0", "return x"], "leave the annotation out"),
        (["request.priority", "return 1"], "computes a value and drops it"),
        (["def inner():", "    return 1", "return 1"], "top level"),
        (["for n in range(3):", "    break", "return 1"], "`break` is not part"),
        (["for n in range(3):", "    continue", "return 1"], "`continue` is not part"),
        (["for n in range(3):", "    pass", "else:", "    pass", "return 1"], "`else` after"),
        (["for n in (1, 2):", "    pass", "return 1"], "must run over range"),
        (["for n in range(request.priority):", "    pass", "return 1"], "known beforehand"),
        (["for n in range(2.5):", "    pass", "return 1"], "whole number"),
        (["for n in range(0, 9, 0):", "    pass", "return 1"], "must not be 0"),
        (["for n in range(49999):", "    pass", "return 1"], "may take 100,001 operations"),
        (["for n in range(10**12):", "    pass", "return 1"], "operations, above the 100,000"),
        (["for a, b in range(3):", "    pass", "return 1"], "one name at a time"),
        (["match request.priority:", "    case _:", "        return 1"], "Match is not part"),
        (["return request.output_len"], "cannot see the true output length"),
        (["return request.prompt_len"], "write request.num_prompt_tokens"),
        (["return request.num_tokens"], "request.num_prompt_tokens + request.num_output_tokens"),
        (["return request.arival_time"], "Did you mean 'arrival_time'? Known: arrival_time,"),
        (["return request.now"], "Write engine.now"),
        (["return engine.priority"], "Write request.priority"),
        (["return request.priority.real"], "only `request`, `engine` and `math` have a dot"),
        (["return request.__class__"], "no field '__class__'"),
        (["return request"], "`request` is a row"),
        (["return math.exp(1.0)"], "`math` is not imported"),
        (["return math.pi"], "`math` is not imported"),
        (["return arrival_time"], "`arrival_time` is not defined"),
        (["wiat = 1.0", "return wait"], "`wait` is not defined. Did you mean 'wiat'?"),
        (["if request.priority:", "    x = 1", "return x"], "no value on some path"),
        (["for n in range(0):", "    x = 1", "return x"], "no value on some path"),
        (["x += 1", "return x"], "no value on some path"),
        (["request.priority = 1", "return 1"], "assigns to `request.priority`"),
        (["engine.now += 1", "return 1"], "assigns to `engine.now`"),
        (["request = 1", "return 1"], "means something else"),
        (["max = 1", "return 1"], "means something else"),
        (["a, b = 1, 2", "return a"], "a tuple inside a function"),
        (["return print(1)"], "`print` cannot be called"),
        (["return open('x')"], "`open` cannot be called"),
        (["return round(1.5, 1)"], "`round` takes 1"),
        (["return abs()"], "`abs` takes 1"),
        (["return min(1)"], "at least two"),
        (["return max(1, 2, key=abs)"], "by position"),
        (["return abs"], "is a function"),
        (["return waiting_key(request, engine)"], "calls itself"),
        (["return request.priority ** 2"], "write x * x"),
        (["x = 2.0", "x **= 0.5", "return x"], "math.sqrt(x)"),
        (["return request.priority << 2"], "bits and matrices"),
        (["return request.priority ^ 2"], "bits and matrices"),
        (["return ~request.priority"], "bits and matrices"),
        (["return request.priority is 1"], "compare numbers"),
        (["return request.priority in (1, 2)"], "compare numbers"),
        (["return request[0]"], "can be indexed"),
        (["return"], "`return` without a value"),
        (["pass"], "every path through `waiting_key` must return"),
        (["if request.priority:", "    return 1"], "every path"),
        (["for n in range(3):", "    return 1"], "every path"),
    ],
)
def test_a_hook_is_refused_with_the_reason_and_the_line(lines, reason):
    assert reason in refusal(hook(*lines))


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("", "there is no `waiting_key`"),
        ("def victim_key(request, engine):\n    return 1\n", "there is no `waiting_key`"),
        ("import os\n" + KEY, "imports 'os'; a policy imports nothing but `math`"),
        ("import math as m\n" + KEY, "by its name"),
        ("import math, sys\n" + KEY, "imports 'sys'"),
        ("from os import path\n" + KEY, "imports from 'os'"),
        ("from . import fcfs\n" + KEY, "imports from None"),
        ("from math import *\n" + KEY, "one by one"),
        ("from math import exp as e\n" + KEY, "one by one"),
        ("from math import fsum\n" + KEY, "math.fsum cannot be used"),
        ("import math\n" + hook("return math.sqr(4.0)"), "Did you mean 'sqrt'?"),
        ("import math\n" + hook("return math.pow(2.0, 3.0)"), "math.pow cannot be used"),
        ("import math\n" + hook("return math.sqrt(4.0, 1)"), "`math.sqrt` takes 1"),
        ("import math\n" + hook("return math.sqrt"), "is a function"),
        ("import math\n" + hook("return math.pi()"), "leave out the brackets"),
        ("from math import exp\n" + hook("return exp(1.0, 2.0)"), "`exp` takes 1"),
        ("weight = 1\n" + KEY, "write WEIGHT = ..."),
        ("Weight = 1\n" + KEY, "write WEIGHT = ..."),
        ("NAME = 'x'\n" + KEY, "a constant must be a number"),
        ("NAME = None\n" + KEY, "a constant must be a number"),
        ("SIZES = [1, 2]\n" + KEY, "a tuple of numbers"),
        ("SIZES = ()\n" + KEY, "a tuple of numbers"),
        ("SIZES = (1, 2.5)\n" + KEY, "mixes kinds of numbers"),
        ("A = B\nB = 1\n" + KEY, "earlier constants"),
        ("A = 1 / 0\n" + KEY, "cannot be computed"),
        ("A = 1e308 * 10\n" + KEY, "must be finite"),
        ("A = 10**10**10\n" + KEY, "cannot be computed"),
        ("A = 2**63\n" + KEY, "must be finite and fit in 64 bits"),
        (f"A = 0x{'f' * 900}\n" + KEY, "must be finite and fit in 64 bits"),
        ("A = 2**65\n" + KEY, "cannot be computed"),
        ("A = (-8) ** 0.5\n" + KEY, "must be a number"),
        ("A = abs(1)\n" + KEY, "a constant must be a number"),
        ("A = B = 1\n" + KEY, "one constant on each line"),
        ("A: int = 1\n" + KEY, "leave the annotation out"),
        ("A = 1\nA = 2\n" + KEY, "`A` is defined twice"),
        ("A = 1\nA += 2\n" + KEY, "code outside a function"),
        ("if True:\n    A = 1\n" + KEY, "code outside a function"),
        ("print('hello')\n" + KEY, "drops it"),
        (KEY + KEY, "`waiting_key` is defined twice"),
        ("def min(a, b):\n    return a\n" + KEY, "`min` has a meaning of its own"),
        ("def __import__(a):\n    return a\n" + KEY, "has a meaning of its own"),
        ("PREEMPTIVE = 1\n" + KEY, "PREEMPTIVE must be True or False, got 1"),
        ("ORACLE = 0.5\n" + KEY, "ORACLE must be True or False, got 0.5"),
        ("ENGINE = 3\n" + KEY, "ENGINE must be a dict"),
        ("ENGINE = {}\n" + KEY, "ENGINE must be a dict"),
        ("ENGINE = {max_num_seqs: 3}\n" + KEY, "in quotes"),
        ("ENGINE = {**{}}\n" + KEY, "in quotes"),
        ("ENGINE = {'max_num_seq': 3}\n" + KEY, "Did you mean 'max_num_seqs'?"),
        ("ENGINE = {'max_num_seqs': [3]}\n" + KEY, "a constant must be a number"),
        ("ENGINE = {'watermark': 0.1}\nENGINE = {'watermark': 0.2}\n" + KEY, "defined twice"),
        ("def waitng_key(request, engine):\n    return 1\n", "Did you mean 'waiting_key'?"),
        (KEY + "def victim(request, engine):\n    return 1\n", "Did you mean 'victim_key'?"),
        ("def waiting_key(request):\n    return 1\n", "not (request)"),
        ("def waiting_key(engine, request):\n    return 1\n", "not (engine, request)"),
        ("def waiting_key(request, now):\n    return 1\n", "not (request, now)"),
        ("def waiting_key(request, engine=None):\n    return 1\n", "has a default"),
        ("def waiting_key(*rows):\n    return 1\n", "plain arguments"),
        ("def waiting_key(request, /, engine):\n    return 1\n", "plain arguments"),
        ("def waiting_key(request, *, engine):\n    return 1\n", "plain arguments"),
        ("def waiting_key(request, **engine):\n    return 1\n", "plain arguments"),
        ("def waiting_key(request, engine) -> str:\n    return 1\n", "annotations may be float"),
        ("@staticmethod\n" + KEY, "has a decorator"),
        ("async def waiting_key(request, engine):\n    return 1\n", "`async` has no meaning"),
        ("class Policy:\n    pass\n", "a class cannot be compiled"),
        ("S = (1, 2)\n" + hook("return S"), "`S` is a tuple; index it"),
        ("S = (1, 2)\n" + hook("return S[2]"), "positions 0 to 1"),
        ("S = (1, 2)\n" + hook("return S[0:1]"), "index one number"),
        ("S = (1, 2)\n" + hook("S[0] = 1", "return 1"), "assigns to `S[0]`"),
        ("A = 1\n" + hook("A = 2", "return A"), "means something else"),
        ("A = 1\n" + hook("return A[0]"), "can be indexed"),
        (KEY + "def f(x):\n    return g(x)\ndef g(x):\n    return f(x)\n", "calls itself"),
        ("def f(x):\n    return x.now\n" + hook("return f(1)"), "have a dot"),
        ("def f(x):\n    return engine.now\n" + hook("return f(1)"), "not a parameter of `f`"),
        ("def f(x):\n    return x\n" + hook("return f(engine)"), "`engine` is a row"),
        ("def f(x):\n    return x\n" + hook("return f()"), "`f` takes 1"),
        ("def f(engine):\n    return 1\n" + hook("return f(request)"), "takes the row `engine`"),
        ("def f(engine):\n    return 1\n" + hook("return f(1)"), "takes the row `engine`"),
        ("def f(x):\n    y = x\n" + hook("return f(1)"), "every path through `f`"),
        ("def waiting_key(request, engine)\n    return 1\n", "mine.py:1: not Python: expected ':'"),
        ("def f(a, a):\n    return a\n" + KEY, "not Python: duplicate argument"),
        ("return 1\n" + KEY, "Return is not part of"),
        ('"""A \\d"""\n' + KEY, "escape sequence"),
        ("A = \x00\n" + KEY, "not Python"),
        ("A = '\ud800'\n" + KEY, "not Python"),
        (KEY + "#" * 100_000, "more than the 100,000"),
        ("A = " + "-" * 50_000 + "1\n" + KEY, "mine.py"),
        ("A = " + "1 + " * 20_000 + "1\n" + KEY, "nested too deeply"),
        ("A = " + "(" * 1_000 + "1" + ")" * 1_000 + "\n" + KEY, "mine.py"),
    ],
)
def test_a_file_is_refused_with_the_reason(source, reason):
    assert reason in refusal(source)


def test_loops_count_together_with_the_functions_they_call():
    helper = "def total(x):\n    for n in range(200):\n        x += n\n    return x\n"
    few = helper + hook("y = 0", "for n in range(95):", "    y += total(y)", "return y")
    many = helper + hook("y = 0", "for n in range(100):", "    y += total(y)", "return y")

    check_syntax(few, "mine.py")
    assert "`waiting_key` may take 100,905 operations" in refusal(many)


def test_helpers_that_double_each_other_are_refused_before_they_run():
    chain = "def f0(x):\n    return x\n"
    chain += "".join(f"def f{n}(x):\n    return f{n - 1}(x) + f{n - 1}(x)\n" for n in range(1, 40))

    assert "operations, above the 100,000" in refusal(chain + hook("return f39(1)"))


def test_the_whole_language_is_accepted():
    source = '''"""Summary."""
import math
from math import exp, inf

WEIGHT = 0.5
SIZES = (1, 2, 4)
LAST = len(SIZES) - 1
LIMIT = -(2 * WEIGHT) ** 2 % 7 // 1
ON = True
PREEMPTIVE = False
ENGINE = {"max_num_seqs": 8 * 2, "scheduling_policy": "priority", "max_num_active_seqs": None}


def waiting_key(request, engine) -> float:
    """Say what it does."""
    total = count = 0.0
    for size in range(0, len(SIZES), 1):
        total += SIZES[size] * WEIGHT
        pass
    if request.priority < 0 or not ON:
        return -inf
    elif 1 <= total <= 2.5 and count == 0:
        best = exp(-total)
    else:
        best = math.sqrt(abs(total)) if total > 0 else math.nan
    return best + SIZES[LAST] + SIZES[-1] + age(request, engine, WEIGHT) % 3 // 2


def age(request, engine, weight: float):
    return weight * max(engine.now - request.arrival_time, 0.0, float(round(LIMIT)))
'''
    checked = check_syntax(source, "mine.py")

    assert checked.constants["LAST"] == 2
    assert checked.engine == {
        "max_num_seqs": 16,
        "scheduling_policy": "priority",
        "max_num_active_seqs": None,
    }
    assert checked.functions == ("waiting_key", "age")
    assert checked.reads == {
        "waiting_key": {"request.priority", "engine.now", "request.arrival_time"}
    }


SOURCES = [get_policy(name).source for name in policy_names()]
FRAGMENTS = st.sampled_from(
    ["(", ")", ":", "\n", "    ", "request", "engine", ".", "lambda: ", "while 1", "*", "**", "=",
     "return ", "1e999", "None", "\x00", "\udfff", "é", "def ", "[", "for _ in range(9):", "if 1:",
     "X = 3\n", "import math\n", "math.", "not ", "async ", "'", '"""', "#", "\\", "\f", "0" * 5000]
)  # fmt: skip


@given(st.text(max_size=200))
@example("0_0_")
@example("\\")
@example('"\\d"')
@example("1if 1else 1")
def test_any_text_is_accepted_or_refused_and_nothing_else(text):
    with suppress(PolicyError):
        check_syntax(text, "any.py")


@settings(max_examples=300)
@given(st.sampled_from(SOURCES), st.lists(st.tuples(st.integers(0), FRAGMENTS), max_size=4))
def test_any_change_to_a_policy_loads_or_is_refused_and_nothing_else(source, changes):
    for place, fragment in changes:
        place %= len(source)
        source = source[:place] + fragment + source[place + place % 3 :]
    with suppress(PolicyError):
        load_text("mutated", source, Path("mutated.py"))

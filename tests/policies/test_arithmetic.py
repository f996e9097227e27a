"""Whole numbers keep to 64 bits: the same result or fault, compiled as in plain Python."""

import math
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queuesmith.engine.compile import compile_policy
from queuesmith.errors import PolicyError
from queuesmith.policies import get_policy, policy_names
from queuesmith.policies.language import MAX_BYTES, MAX_OPERATIONS
from queuesmith.policies.policy import load_text
from queuesmith.request import ENGINE_DTYPE, REQUEST_DTYPE

LEAST, MOST = -(2**63), 2**63 - 1
NUMBERS = [0, 1, -1, 2, -3, 7, 2**31, -(2**32), 2**53 + 1, 2**62, -(2**62) - 1, MOST, LEAST]


def load(body, *before):
    lines = [*before, "def waiting_key(request, engine):", *(f"    {line}" for line in body)]
    return load_text("written", "\n".join(["import math", *lines]) + "\n", Path("written.py"))


def ask(hook, request, engine):
    """Return the answer, as bits, or the kind of the fault."""
    try:
        answer = float(hook(request, engine))
    except (ArithmeticError, ValueError) as error:
        return type(error)
    return "nan" if math.isnan(answer) else answer.hex()


def both(policy, **fields):
    """Ask plain Python and the compiled hook about one request."""
    request, engine = np.recarray(1, REQUEST_DTYPE)[0], np.recarray(1, ENGINE_DTYPE)[0]
    for row in (request, engine):
        for name in row.dtype.names:
            row[name] = fields.get(name, 1)
    plain = [
        SimpleNamespace(**{name: row[name].item() for name in row.dtype.names})
        for row in (request, engine)
    ]
    compiled = compile_policy(policy, keep=False)
    return ask(policy.waiting_key, *plain), ask(compiled.waiting_key, request, engine)


EXPRESSIONS = [
    "a + b", "a - b", "a * b", "a // b", "a % b", "a / b", "-a", "abs(a)", "a * b * a", "a - b * b",
    "max(a, b) * min(a, b)", "a < b * 0.5", "a * 1.0 < b", "a == b + 0.0", "min(a, 0.5) * b",
    "(a or 0.5) * b", "(a and b) + a", "(a if b > 0 else 0.5) * a", "int(a * 0.5) + b",
    "int(a * 2.0)", "round(b * 3.0)", "math.floor(a * 1.5) * 2", "math.ceil(b)", "math.trunc(a)",
    "round(a) - b", "(a > b) - a", "-(a > b) * b", "math.sqrt(abs(a // 2))", "TABLE[a % 3] * b",
    "len(TABLE) * a", "helper(a, b) + helper(0.5, a)", "helper(helper(a, b), 1)",
]  # fmt: skip
TABLE = "TABLE = (3, -5, 9000000000000000000)"
HELPER = "def helper(x, y):\n    if x > y:\n        return x * y\n    return x - y\n"


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_big_numbers_mean_the_same_compiled(expression):
    policy = load(
        [
            "a = request.priority",
            "b = int(request.deadline) + engine.num_waiting",
            f"return {expression}",
        ],
        TABLE,
        HELPER if "helper" in expression else "",
    )
    kinds = set()
    for a in NUMBERS:
        for b in NUMBERS:
            # `deadline` is a float, so that the rest of b comes as another field.
            near = float(b)
            if not -(2.0**63) <= near < 2.0**63:
                near, rest = -1.0, 0
            else:
                rest = b - int(near)
            plain, compiled = both(policy, priority=a, deadline=near, num_waiting=rest)
            assert plain == compiled, (a, b)
            kinds.add(plain if isinstance(plain, type) else float)
    assert float in kinds


@pytest.mark.parametrize(
    "body",
    [
        ["x = request.num_prompt_tokens", "for i in range(60):", "    x = x * x", "return x"],
        ["x = request.priority", "for i in range(60):", "    x += x", "return x"],
        ["x = 3", "for i in range(70):", "    x *= 3", "return x"],
        ["x = -1", "for i in range(9000):", "    x = x - 9000000000000000", "return x"],
        ["x = 0", "for i in range(70):", "    x = x * 2", "    if i == 65:", "        x = 0.5",
         "    if i == 1:", "        x = 3", "return x"],
        ["x = 1", "y = 1", "for i in range(9):", "    for j in range(9):", "        x = x * 2",
         "        y = x", "    if y > 1000:", "        y = 0.25", "return y * x"],
        ["i = 0.5", "for i in range(3):", "    i = i * 2", "return i * 4611686018427387904"],
        ["x = request.priority", "if x > 3:", "    x = 0.5", "elif x < -3:", "    x = x - 1",
         "return x * 9000000000000000000"],
    ],
)  # fmt: skip
def test_what_grows_in_a_loop_means_the_same_compiled(body):
    policy = load(body)
    for priority in NUMBERS:
        plain, compiled = both(policy, priority=priority, num_prompt_tokens=313)
        assert plain == compiled, priority


NUMBER = st.sampled_from(["a", "b", "c", "0.5", "2", "9000000000000000000", "request.priority"])
EXPRESSION = st.recursive(
    NUMBER,
    lambda inner: st.one_of(
        st.tuples(
            inner, st.sampled_from(["+", "-", "*", "//", "%", "/", "<", "and", "or"]), inner
        ).map(lambda parts: f"({' '.join(parts)})"),
        st.tuples(inner, inner, inner).map("({0[0]} if {0[1]} else {0[2]})".format),
        inner.map("-{}".format),
        st.tuples(st.sampled_from(["min", "max"]), inner, inner).map(
            "{0[0]}({0[1]}, {0[2]})".format
        ),
        inner.map("abs({})".format),
    ),
    max_leaves=8,
)
STATEMENT = st.one_of(
    st.tuples(st.sampled_from("abc"), EXPRESSION).map(lambda p: [f"{p[0]} = {p[1]}"]),
    st.tuples(st.sampled_from("abc"), EXPRESSION, st.sampled_from("abc"), EXPRESSION).map(
        lambda p: [f"if {p[1]}:", f"    {p[0]} = {p[3]}", "else:", f"    {p[2]} = {p[1]}"]
    ),
    st.tuples(st.integers(0, 70), st.sampled_from("abc"), EXPRESSION, st.sampled_from("abci")).map(
        lambda p: [f"for i in range({p[0]}):", f"    {p[1]} = {p[2]}", f"    {p[3]} = {p[1]}"]
    ),
)


@settings(max_examples=25, deadline=None)
@given(st.lists(STATEMENT, min_size=1, max_size=5), EXPRESSION, st.data())
def test_written_at_random_it_means_the_same_compiled(statements, last, data):
    body = ["a = request.num_prompt_tokens", "b = 1", "c = 0.5"]
    body += [line for statement in statements for line in statement]
    policy = load([*body, f"return {last}"])
    for _ in range(5):
        fields = {
            "priority": data.draw(st.sampled_from(NUMBERS)),
            "num_prompt_tokens": data.draw(st.integers(1, 100_000_000)),
        }
        plain, compiled = both(policy, **fields)
        assert plain == compiled


def test_what_cannot_overflow_is_left_as_it_was_written():
    """So that the usual policy pays nothing."""
    for name in ("sjf", "hrrn", "srpt", "las", "slai", "preflow", "mlfq", "fit_first"):
        used = get_policy(name).code.co_consts
        names = {found for part in used if hasattr(part, "co_names") for found in part.co_names}
        assert not [found for found in names if found.startswith("queuesmith")], name


def test_a_policy_that_computes_too_much_is_refused_before_it_runs():
    lines = [f"    x = x + {number % 7}.5" for number in range(1000)]
    with pytest.raises(PolicyError, match=r"may take [\d,]+ operations, above the 100,000"):
        load(["x = 0.0", "for step in range(10000):", *lines, "return x"])


@pytest.mark.parametrize(
    "lines",
    [
        ["x = x * x + 0.5", "x = x * 0.5"],
        ["x = x + math.exp(x * 0.0) * math.sin(x)"],
        ["x = (x * 3 + 1) % 9000000000000000000"],
    ],
)
def test_no_call_takes_longer_than_its_operations(lines):
    """What is allowed at most takes as long as so many operations, not for ever."""
    body = [
        "x = request.num_prompt_tokens",
        "for step in range(ROUNDS):",
        *(f"    {line}" for line in lines),
    ]
    small = load([*body, "return x"], "ROUNDS = 10")
    per_round = (small.operations["waiting_key"] - 4) // 10
    most = load([*body, "return x"], f"ROUNDS = {MAX_OPERATIONS // per_round - 10}")
    assert 0.9 * MAX_OPERATIONS < most.operations["waiting_key"] <= MAX_OPERATIONS
    row = SimpleNamespace(num_prompt_tokens=313)
    begun = time.thread_time()
    ask(most.waiting_key, row, row)
    assert time.thread_time() - begun < 1.0  # some milliseconds; a big whole number never ends


def test_loops_nested_too_deeply_are_refused_in_time():
    depth = 19
    lines = [f"{'    ' * level}for i{level} in range(1):" for level in range(depth)]
    lines += [
        f"{'    ' * depth}{one} = {other}"
        for one, other in zip("abcdefgh", "bcdefghi", strict=True)
    ]
    body = [*(f"{name} = 1" for name in "abcdefgh"), "i = 0.5", *lines, "return a"]
    begun = time.process_time()
    with pytest.raises(PolicyError, match="nested too deeply"):
        load(body)
    assert time.process_time() - begun < 20


def test_every_policy_of_ours_is_far_from_the_limit():
    for name in policy_names():
        assert max(get_policy(name).operations.values()) < MAX_OPERATIONS / 100
    assert MAX_BYTES > MAX_OPERATIONS / 10  # so that the limit can be met at all

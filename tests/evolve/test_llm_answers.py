"""What is found in an answer: whole files, changes, and why there is nothing."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuesmith.evolve.llm.answers import MAX_ANSWER, MAX_CANDIDATES, find_policies
from queuesmith.evolve.sandbox.allow_list import check_form

POLICY = "def waiting_key(request, engine):\n    return request.num_uncached_tokens\n"
PARENT = '''"""Shortest first, aged.

Knows:   arrival time.
"""

SECONDS_PER_TOKEN = 0.003
UNUSED = 1.0


def waiting_key(request, engine):
    return request.arrival_time + SECONDS_PER_TOKEN * request.num_uncached_tokens
'''


@pytest.mark.parametrize(
    "answer",
    [
        POLICY,
        f"```python\n{POLICY}```",
        f"```\n{POLICY}```",
        f"~~~py\n{POLICY}~~~\nThat is it.",
        f"Sure!\n\n  ```Python\n{POLICY}  ```\nIt sorts by length.",
        f"````python\n{POLICY}````",
        f"```python\n{POLICY}",  # cut off after the code
        f"```python\n{POLICY}```".replace("\n", "\r\n"),
        f"<think>```python\n{POLICY.replace('num', 'x')}```</think>\n```python\n{POLICY}```",
        f"Here is the policy you asked for:\n\n{POLICY}\nI hope that this helps.",
        f"```bash\nls\n```\nthen\n```python\n{POLICY}```",
    ],
)
def test_a_policy_is_found_however_it_is_wrapped(answer):
    assert find_policies(answer).texts == (POLICY,)


def test_several_versions_come_in_their_order_each_once_and_no_more_than_a_few():
    versions = [POLICY.replace("return", f"return {number} *") for number in range(12)]
    answer = "\n".join(f"```python\n{text}```" for text in [versions[0], *versions])

    assert find_policies(answer).texts == tuple(versions[:MAX_CANDIDATES])


def test_prose_around_code_without_fences_is_left_out():
    answer = f"My idea.\n\nimport math\n\nLIMIT = 2.0\n\n\n{POLICY}\n\nCheers"

    (text,) = find_policies(answer).texts

    assert text.startswith("import math")
    assert text.endswith("num_uncached_tokens\n")


def test_what_models_type_in_comments_becomes_plain_ascii():
    answer = f"```python\n# \u201cshort\u201d \u2013 first\u2026 \u2264 3\u00d7\n{POLICY}```"

    (text,) = find_policies(answer).texts

    assert text.startswith('# "short" - first... <= 3x\n')
    check_form(text)


def search(old, new):
    return f"<<<<<<< SEARCH\n{old}\n=======\n{new}\n>>>>>>> REPLACE\n"


def test_changes_are_made_to_the_parent():
    answer = "Higher weight.\n" + search("SECONDS_PER_TOKEN = 0.003", "SECONDS_PER_TOKEN = 0.01")
    answer += search("UNUSED = 1.0", "")

    (text,) = find_policies(answer, PARENT).texts

    assert text == PARENT.replace("0.003", "0.01").replace("UNUSED = 1.0\n", "")


def test_changes_inside_a_fence_are_made_as_well():
    answer = "```python\n" + search("UNUSED = 1.0", "UNUSED = 2.0") + "```"

    assert find_policies(answer, PARENT).texts == (PARENT.replace("1.0", "2.0"),)


def test_a_unified_diff_is_applied_even_if_its_line_numbers_are_wrong():
    answer = """```diff
--- a/policy.py
+++ b/policy.py
@@ -60,3 +60,3 @@
-SECONDS_PER_TOKEN = 0.003
+SECONDS_PER_TOKEN = 0.02
 UNUSED = 1.0
@@ -99,1 +99,1 @@
-    return request.arrival_time + SECONDS_PER_TOKEN * request.num_uncached_tokens
+    return request.arrival_time
```"""

    (text,) = find_policies(answer, PARENT).texts

    assert "SECONDS_PER_TOKEN = 0.02\nUNUSED = 1.0\n" in text
    assert text.endswith("    return request.arrival_time\n")


def test_a_line_number_decides_between_places_that_look_alike():
    parent = "A = 1\nB = 1\nA = 1\nB = 1\n" + POLICY
    answer = "@@ -3,1 +3,1 @@\n-A = 1\n+A = 2\n"

    (text,) = find_policies(answer, parent).texts

    assert text == "A = 1\nB = 1\nA = 2\nB = 1\n" + POLICY


@pytest.mark.parametrize(
    ("answer", "parent", "problem"),
    [
        ("", "", "the answer is empty"),
        (" \n\n", "", "the answer is empty"),
        ("I would rather not.", "", "there is no code"),
        ("```java\nclass A {}\n```", "", "not Python but java"),
        ("```python\ndef key(r):\n    return 1\n```", "", "defines waiting_key"),
        (f"```python\n{PARENT}```", PARENT, "repeats the policy"),
        (search("X = 1", "X = 2"), PARENT, "lines that the parent does not have"),
        (search("X = 1", "X = 2"), "", "no parent"),
        (search("", "X = 2"), PARENT, "does not say which lines"),
        (search("A = 1", "A = 2"), "A = 1\nA = 1\n", "fits 2 places"),
        ("".join(search(f"A = {n}", "") for n in range(51)), PARENT, "51 changes"),
    ],
)
def test_an_answer_without_a_policy_says_why(answer, parent, problem):
    found = find_policies(answer, parent)

    assert found.texts == ()
    assert problem in found.problem
    assert "\n" not in found.problem


@pytest.mark.parametrize(
    "answer",
    [
        "<<<<<<< SEARCH\n" * 40_000,
        "```\n" * 100_000,
        "`" * 1_000_000,
        "@@ -1 +1 @@\n-a\n+b\n" * 20_000,
        "def waiting_key(request, engine):\n" * 10_000,
        "def waiting_key(request, engine):\n    return " + "(" * 100_000,
        "A = 1\n" * 60_000 + POLICY,
        "-" * 300_000 + "@@",
    ],
)
def test_a_gigantic_answer_costs_little_time(answer):
    start = time.process_time()

    find_policies(answer, PARENT)

    assert time.process_time() - start < 2.0


def test_nothing_beyond_the_limit_is_read():
    assert find_policies("x" * MAX_ANSWER + f"\n```python\n{POLICY}```").texts == ()


PIECES = st.sampled_from(
    [
        *("```", "```python", "~~~", "<<<<<<< SEARCH", "=======", ">>>>>>> REPLACE", "@@ -1 +1 @@"),
        *("-UNUSED = 1.0", "+UNUSED = 2.0", " ", "UNUSED = 1.0", "</think>", "import os", POLICY),
        *("def waiting_key(", "\ud800", "\0", "--- a", "+++ b", "\\ No newline at end of file"),
    ]
)


@given(st.lists(PIECES | st.text(max_size=20), max_size=15).map("\n".join))
def test_any_answer_gives_policies_or_a_reason(answer):
    found = find_policies(answer, PARENT)

    assert bool(found.texts) != bool(found.problem)
    assert PARENT not in found.texts
    assert all(text.endswith("\n") for text in found.texts)


@given(st.lists(st.sampled_from(PARENT.split("\n")), min_size=1, max_size=12), st.data())
def test_the_diff_between_two_files_leads_from_one_to_the_other(lines, data):
    import difflib

    old = [f"{line} # {number}" for number, line in enumerate(lines)]
    new = [line for line in old if data.draw(st.booleans())] + ["X = 1"]
    diff = "\n".join(difflib.unified_diff(old, new, "a", "b", lineterm="", n=3))

    found = find_policies(f"```diff\n{diff}\n```", "\n".join(old) + "\n")

    assert found.texts == ("\n".join(new).strip("\n") + "\n",)

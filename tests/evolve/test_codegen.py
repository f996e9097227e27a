"""Programs written out: what the text does is what the program says, and a person can read it."""

import ast
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from evolve.programs import EVERYTHING, draw_program, programs, seeds, tree, waiting
from queuesmith.evolve.gp.behaviour import behaviour, draw_queues, fixed_queues
from queuesmith.evolve.gp.codegen import MAX_LINES, WIDTH, write
from queuesmith.evolve.gp.program import ARITY, Program, evaluate
from queuesmith.evolve.gp.simplify import simplify
from queuesmith.evolve.gp.terminals import HOOKS, TERMS, usable_terms
from queuesmith.evolve.gp.variation import CLASSICS, settled
from queuesmith.evolve.sandbox.allow_list import check_form
from queuesmith.evolve.sandbox.decision_table import situations
from queuesmith.policies import get_policy, policy_names
from queuesmith.policies.policy import load_text
from queuesmith.testing import check_policy


def load(program, **said):
    """Return the policy that a program is written out as."""
    return load_text("bred", write(program, **said), Path("bred.py"))


GUARDED = waiting(["if", "wait_share", 0.9, ["mul", -1, "wait_share"], "relative_work"])


# What it does


@given(programs)
@settings(max_examples=150)
def test_a_text_gives_every_key_to_the_bit_as_its_program(program):
    policy, queues = load(program), fixed_queues()
    for hook, part in program.trees.items():
        rows = queues.rows(hook)
        some = np.arange(0, len(rows.queue), 29)
        asked = [float(policy.hooks[hook](rows.requests[row], rows.engines[row])) for row in some]
        assert asked == evaluate(part, rows.values, len(rows.queue))[some].tolist()
    assert set(policy.hooks) == set(program.trees)


def programs_with_everything():
    """Yield few programs that between them have every term and every operation."""
    for hook in HOOKS:
        names = [term.name for term in usable_terms(hook, EVERYTHING.knowledge)]
        for place in range(0, len(names), 8):
            a, b, c, d, e, f, g, h = (*names[place : place + 8], *names[:8])[:8]
            part = [
                "if", ["sub", a, ["clip", b, 0.5, 2.5]], ["log1p", ["sub", c, 0.3]],
                ["div", ["mul", 1.7, d], ["sub", e, f]], ["max", ["min", g, 3.0], ["add", h, 1.1]],
            ]  # fmt: skip
            yield waiting(part) if hook == "waiting_key" else Program(tree(0), tree(part))


def test_all_terms_and_operations_pass_the_suite_that_any_policy_must_pass():
    """Which asks about rows at the edges of every field, compiled and in plain Python."""
    seen = set()
    for program in programs_with_everything():
        check_policy(load(program))
        seen |= {node.name for part in program.trees.values() for node in part.walk()}

    assert seen >= set(ARITY) | set(TERMS)


@given(programs)
@settings(max_examples=150)
def test_a_text_behaves_as_its_program(program):
    assert behaviour(load(program)) == behaviour(program)


# What it looks like


@given(programs)
@settings(max_examples=150)
def test_a_text_has_the_form_of_a_candidate_and_fits_on_a_page(program):
    for each in (program, settled(program)):
        text = write(each)
        check_form(text)
        assert text.count("\n") <= MAX_LINES == 60
        assert max(map(len, text.splitlines())) <= WIDTH
        assert text == "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


@given(programs)
def test_every_name_is_used_and_every_constant_named(program):
    text = write(program)
    module = ast.parse(text)
    constants = {node.targets[0].id for node in module.body if isinstance(node, ast.Assign)}
    for function in module.body:
        if not isinstance(function, ast.FunctionDef):
            continue
        names = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
        stored = {node.id for node in names if isinstance(node.ctx, ast.Store)}
        read = {node.id for node in names if isinstance(node.ctx, ast.Load)}
        assert stored <= read
        constants -= read
        numbers = [node.value for node in ast.walk(function) if isinstance(node, ast.Constant)]
        assert set(map(float, numbers)) <= {0.0, 1.0, 1e-9}
    assert constants == set()


def test_a_guard_reads_as_a_person_would_write_it():
    body = write(GUARDED).split('"""')[2]

    assert (
        body
        == """

WAIT_SHARE_LIMIT = 0.9


def waiting_key(request, engine):
    wait = engine.now - request.arrival_time
    # Its wait, over the longest of all who wait.
    wait_share = wait / max(engine.oldest_wait, engine.step_time)
    # Prefill left, over the mean of all who wait.
    relative_work = request.num_uncached_tokens / max(engine.mean_waiting_tokens, 1.0)
    if wait_share > WAIT_SHARE_LIMIT:
        return -wait_share
    return relative_work
"""
    )


def test_a_large_program_is_broken_up_by_names_that_say_something():
    part = ["sub",
        ["mul", 3.5, ["log1p", "work_share"]],
        ["mul", ["if", "backlog_steps", ["mul", 2, "queue_ratio"],
                 ["clip", "usual_waits", 0.5, 2], ["max", "relative_wait", "times_overtaken"]],
                ["div", "backlogs_waited", ["sub", "kv_use", 0.3]]]]  # fmt: skip

    lines = write(waiting(part)).split("backlogs_waited = ")[1].splitlines()

    assert "USUAL_WAITS_CEILING = 2.0" in write(waiting(part)).splitlines()
    assert [line.strip() for line in lines if "#" not in line][-6:] == [
        "if backlog_steps > QUEUE_RATIO_WEIGHT * queue_ratio:",
        "choice = min(max(usual_waits, USUAL_WAITS_FLOOR), USUAL_WAITS_CEILING)",
        "else:",
        "choice = max(relative_wait, times_overtaken)",
        "product = choice * (backlogs_waited / max(kv_use - KV_USE_OFFSET, 1e-9))",
        "return WORK_SHARE_WEIGHT * math.log1p(work_share) - product",
    ]


def test_what_is_computed_twice_is_written_once():
    twice = ["add", ["log1p", "usual_waits"], "relative_work"]
    text = write(waiting(["mul", twice, ["min", twice, "wait_share"]]))

    assert text.count("math.log1p(") == 1


def test_guards_that_can_never_act_are_left_out():
    needed = write(waiting(["div", "wait_share", ["sub", "relative_work", 1]]))
    needless = write(waiting(["div", "wait_share", "relative_work"]))

    assert "max(relative_work - 1.0, 1e-9)" in needed
    assert "return wait_share / relative_work" in needless
    assert "math.log1p(max(" in write(waiting(["log1p", ["sub", "wait_share", "kv_use"]]))
    assert "math.log1p(wait_share)" in write(waiting(["log1p", "wait_share"]))


def test_the_docstring_tells_what_is_known_and_where_it_is_from():
    policy = load(Program(GUARDED.waiting_key, tree("relative_kv")))

    assert policy.summary == "Admits by wait share and relative work, preempts by relative KV."
    assert policy.knows == "the wait so far, the longest wait, prefill left, tokens computed."
    assert "evolve" in policy.origin
    assert "own traffic" in policy.caution
    assert "nothing in it grows with the wait" in load(waiting("relative_work")).caution


@pytest.mark.parametrize("said", ['a """quoted""" one', "a \\ b \\", "x" * 300 + " y" * 200])
def test_what_is_said_cannot_break_the_file(said):
    policy = load(GUARDED, summary=said, source=said, caution=said)

    assert behaviour(policy) == behaviour(GUARDED)
    assert policy.caution


def test_a_constant_can_be_given_another_value_like_any_parameter(tmp_path):
    (tmp_path / "bred.py").write_text(write(GUARDED))

    policy = get_policy(f"{tmp_path}/bred.py(WAIT_SHARE_LIMIT=0.2)")

    other = waiting(["if", "wait_share", 0.2, ["mul", -1, "wait_share"], "relative_work"])
    assert behaviour(policy) == behaviour(other) != behaviour(GUARDED)


# Behaviour


@given(seeds)
def test_equal_orders_have_one_hash_and_unequal_ones_two(seed):
    program, other = draw_program(seed), draw_program(seed + 1)
    queues = draw_queues(4, np.random.default_rng(0))

    def served(each):
        """Return who is served in which order, by sorting in plain Python as an engine does."""
        found = []
        for hook in HOOKS:
            rows = queues.rows(hook)
            keys = [0.0] * len(rows.queue)
            if hook in each.trees:
                keys = evaluate(each.trees[hook], rows.values, len(keys)).tolist()
            found.append(
                sorted(range(len(keys)), key=lambda row: (rows.queue[row], keys[row], row))
            )
        return found

    for one in (other, simplify(program), Program(tree(1)), Program(program.waiting_key)):
        alike = served(program) == served(one)
        assert (behaviour(program, queues) == behaviour(one, queues)) == alike


@pytest.mark.parametrize(
    ("line", "differs"),
    [
        ("PREEMPTIVE = True", True),
        ("ORACLE = True", True),
        ('ENGINE = {"max_num_seqs": 8}', True),
        ("UNUSED = 3", False),
        ("def admit(request, engine):\n    return engine.kv_usage < 0.5", True),
        ("def admit(request, engine):\n    return True", False),
        ("def hold(request, engine):\n    return request.num_output_tokens > 50", True),
        ("def hold(request, engine):\n    return False", False),
        ("def victim_key(request, engine):\n    return request.num_output_tokens", True),
        ("def victim_key(request, engine):\n    return 5.0", False),
    ],
)
def test_all_that_a_policy_can_do_is_part_of_its_behaviour(line, differs):
    plain = "def waiting_key(request, engine):\n    return request.num_prompt_tokens\n"
    policy = load_text("plain", plain, Path("plain.py"))
    other = load_text("other", f"{line}\n\n\n{plain}", Path("other.py"))

    assert (behaviour(policy) != behaviour(other)) == differs


def test_keys_of_nan_come_last_as_in_an_engine():
    text = "def waiting_key(request, engine):\n    return {} if request.priority else 0.0\n"
    nan, most = (
        load_text("x", "import math\n\n\n" + text.format(key), Path("x.py"))
        for key in ("math.nan", "math.inf")
    )

    assert behaviour(nan) == behaviour(most)


def test_a_hook_that_raises_is_named():
    text = "def waiting_key(request, engine):\n    return 1 / request.num_output_tokens\n"

    with pytest.raises(Exception, match=r"x: waiting_key raises ZeroDivisionError.*guard"):
        behaviour(load_text("x", text, Path("x.py")))


def test_the_fixed_queues_tell_the_built_in_policies_apart():
    names = policy_names()

    assert len({behaviour(get_policy(name)) for name in names}) == len(names)


# The table


def test_the_table_shows_whom_a_policy_puts_first():
    rows = situations(get_policy("sjf"))

    assert {row.load for row in rows} == {"low", "high"}
    for load in ("low", "high"):
        shown = [row for row in rows if row.load == load]
        assert [row.place for row in shown] == list(range(1, len(shown) + 1))
        assert [row.num_prompt_tokens for row in shown] == sorted(
            row.num_prompt_tokens for row in shown
        )
        assert all(row.place == row.place_by_prompt for row in shown)
        assert shown[0].request == "a short prompt that is overdue"


def test_the_table_agrees_with_fcfs_and_shows_a_guard_at_work():
    assert all(row.place == row.place_by_arrival for row in situations(get_policy("fcfs")))

    guarded = situations(load(CLASSICS["sjf_within_backlog"]))
    first = [row for row in guarded if row.load == "high"][:6]
    assert {row.request for row in first} == {
        f"a {size} prompt that {what}"
        for size in ("short", "usual", "long")
        for what in ("is overdue", "has waited long")
    }
    assert [row.place_by_arrival for row in first] == sorted(row.place_by_arrival for row in first)


def test_the_table_shows_what_changes_with_the_load():
    program = waiting(["if", "backlog_steps", 20, "relative_work", ["mul", -1, "wait_share"]])
    rows = situations(load(program))

    assert all(row.place == row.place_by_arrival for row in rows if row.load == "low")
    assert all(row.place == row.place_by_prompt for row in rows if row.load == "high")

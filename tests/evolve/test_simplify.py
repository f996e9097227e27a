"""Simplification: smaller programs that order every queue as before."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings

from evolve.programs import programs, seeds, tree, waiting
from queuesmith.evolve.gp.behaviour import behaviour, fixed_queues
from queuesmith.evolve.gp.intervals import interval, surely_at_least
from queuesmith.evolve.gp.program import Node, Program, evaluate
from queuesmith.evolve.gp.rewrite_rules import reduce_tree
from queuesmith.evolve.gp.simplify import is_common, simplify, simplify_key
from queuesmith.evolve.gp.terminals import TERMS
from queuesmith.evolve.gp.variation import CLASSICS, map_constants

LEAST = Fraction(1, 10**9)


def exactly(part: Node, known: dict[str, float]) -> Fraction:
    """Compute a tree on one row without rounding; no log1p."""
    if part.is_constant:
        return Fraction(part.value)
    if not part.children:
        return Fraction(known[part.name])
    operands = [exactly(child, known) for child in part.children]
    if part.name == "if":
        return operands[2] if operands[0] > operands[1] else operands[3]
    return {
        "add": lambda a, b: a + b,
        "sub": lambda a, b: a - b,
        "mul": lambda a, b: a * b,
        "div": lambda a, b: a / max(b, LEAST),
        "min": min,
        "max": max,
        "clip": lambda a, low, high: min(max(a, low), high),
    }[part.name](*operands)


def power_of_two(value: float) -> float:
    """Return a constant near another with which arithmetic rounds nothing."""
    return float(np.copysign(2.0 ** round(np.log2(max(abs(value), 0.25))), value))


def signs(keys: list[Fraction]) -> list[list[int]]:
    """Return who comes before whom."""
    return [[(one > other) - (one < other) for other in keys] for one in keys]


# By algebra


@given(programs)
@settings(max_examples=300)
def test_without_rounding_the_order_is_the_same_ties_included(program):
    """The oracle is rational arithmetic, and knows nothing of intervals or rules."""
    assume(not any(node.name == "log1p" for part in program.trees.values() for node in part.walk()))
    queues = fixed_queues()
    for hook, part in program.trees.items():
        part = map_constants(part, power_of_two)
        simpler = simplify_key(part)
        rows = queues.rows(hook)
        for queue in (3, 17, 40):
            members = np.flatnonzero(rows.queue == queue)[:7]
            known = [
                {name: float(column[row]) for name, column in rows.values.items()}
                for row in members
            ]
            before = [exactly(part, row) for row in known]
            after = [exactly(simpler, row) for row in known]
            assert signs(after) == signs(before)


@given(programs)
@settings(max_examples=300)
def test_with_rounding_no_two_keys_that_are_apart_change_places(program):
    queues = fixed_queues()
    simpler = simplify(program)
    for hook, part in program.trees.items():
        rows = queues.rows(hook)
        before = evaluate(part, rows.values, len(rows.queue))
        after = np.zeros(len(before))
        if hook in simpler.trees:
            after = evaluate(simpler.trees[hook], rows.values, len(rows.queue))
        noise = 1e-9 * largest(part, rows)
        for queue in np.unique(rows.queue):
            members = rows.queue == queue
            keys, simple = before[members], after[members]
            apart = keys[:, None] - keys[None, :] > noise
            assert (simple[:, None] >= simple[None, :])[apart].all()


def largest(part: Node, rows) -> float:
    """Return the largest number met on the way, and in the steepest of its divisions."""
    sizes = [np.abs(evaluate(node, rows.values, len(rows.queue))).max() for node in part.walk()]
    return max(sizes) * max(1.0, max(sizes))


@given(programs)
def test_the_exact_rules_keep_every_bit_of_what_an_if_compares(program):
    rows = fixed_queues().waiting
    part = Node("if", (program.waiting_key, tree("relative_work"), tree(1), tree(0)))
    before = evaluate(part, rows.values, len(rows.queue))

    np.testing.assert_array_equal(evaluate(reduce_tree(part), rows.values, len(rows.queue)), before)


@given(programs)
def test_simplifying_adds_nothing_and_is_done_at_once(program):
    simpler = simplify(program)

    assert simpler.size <= program.size
    assert simplify(simpler) == simpler
    Program.from_json(simpler.to_json())


@pytest.mark.parametrize(
    ("part", "simpler"),
    [
        # Arithmetic
        (["add", "relative_work", 0], "relative_work"),
        (["mul", ["sub", 3, 2], "relative_work"], "relative_work"),
        (["add", "relative_work", ["sub", "wait_share", "wait_share"]], "relative_work"),
        (["sub", ["add", "relative_work", "wait_share"], "wait_share"], "relative_work"),
        (["sub", "usual_waits", ["sub", "usual_waits", "relative_work"]], "relative_work"),
        (["mul", "relative_work", ["div", "relative_prompt", "relative_prompt"]], "relative_work"),
        (["sub", 0, ["sub", "wait_share", "usual_waits"]], ["sub", "usual_waits", "wait_share"]),
        (["min", "wait_share", ["max", "wait_share", "relative_work"]], "wait_share"),
        (["add", ["mul", 2, "relative_work"], ["mul", -3, "wait_share"]],
         ["sub", ["mul", 2, "relative_work"], ["mul", 3, "wait_share"]]),
        # Ranges
        (["min", "wait_share", 1.5], "wait_share"),
        (["clip", "relative_work", -1, 2], ["min", "relative_work", 2]),
        (["if", "wait_share", 1.0, "usual_waits", "relative_work"], "relative_work"),
        (["if", "relative_work", -1, "usual_waits", "relative_prompt"], "usual_waits"),
        (["log1p", ["sub", "wait_share", 2]], 0),
        # What a comparison has told
        (["if", "kv_use", 0.9, ["if", "kv_use", 0.5, "relative_work", "usual_waits"], "wait_share"],
         ["if", "kv_use", 0.9, "relative_work", "wait_share"]),
        (["if", "wait_share", "kv_use",
          ["if", "kv_use", "wait_share", "relative_work", "usual_waits"], "relative_work"],
         ["if", "wait_share", "kv_use", "usual_waits", "relative_work"]),
        (["if", "relative_work", "usual_waits", "relative_work", "usual_waits"],
         ["max", "relative_work", "usual_waits"]),
        (["if", ["mul", -1, "wait_share"], ["mul", -1, "kv_use"], "usual_waits", "wait_share"],
         ["if", "kv_use", "wait_share", "usual_waits", "wait_share"]),
        # Only the order matters
        (["add", "kv_use", ["mul", 5, ["log1p", "relative_work"]]], "relative_work"),
        (["mul", ["sub", 1, "seats_taken"], "relative_work"],
         ["mul", "relative_work", ["sub", 1, "seats_taken"]]),  # 0 where all seats are taken
        (["mul", ["sub", 1.5, "seats_taken"], "relative_work"], "relative_work"),
        (["mul", ["sub", "seats_taken", 1.5], "relative_work"], ["mul", -1, "relative_work"]),
        (["div", 2, "relative_work"], ["mul", -1, "relative_work"]),
        (["div", "relative_work", "queue_ratio"], "relative_work"),
        (["mul", "kv_use", "backlog_steps"], 0),
        (["if", "queue_ratio", 2, ["mul", 3, "relative_work"], ["add", "kv_use", "usual_waits"]],
         ["if", "queue_ratio", 2, "relative_work", "usual_waits"]),
        # Whoever takes one branch comes first anyway, so the branches need no common scale.
        (["if", "wait_share", 0.9, ["mul", -3, "wait_share"], ["mul", 5, "relative_work"]],
         ["if", "wait_share", 0.9, ["mul", -1, "wait_share"], "relative_work"]),
        # But here they do.
        (["if", "wait_share", 0.9, ["mul", 3, "wait_share"], ["mul", 5, "relative_work"]],
         ["if", "wait_share", 0.9, ["mul", 3, "wait_share"], ["mul", 5, "relative_work"]]),
    ],
)  # fmt: skip
def test_a_known_case_becomes_what_a_person_would_write(part, simpler):
    assert simplify(waiting(part)).to_json() == waiting(simpler).to_json()


def test_a_victim_key_that_is_the_same_for_all_is_left_to_vllm():
    program = Program(tree("relative_work"), tree(["mul", "kv_use", 2]))

    assert simplify(program) == waiting("relative_work")


def test_classics_are_as_simple_as_they_come():
    for name, program in CLASSICS.items():
        assert behaviour(simplify(program)) == behaviour(program), name
        assert simplify(program).size == program.size, name


# Intervals


@given(programs)
@settings(max_examples=200)
def test_every_part_stays_in_its_interval_in_any_queue(program):
    queues = fixed_queues()
    for hook, part in program.trees.items():
        rows = queues.rows(hook)
        for node in part.walk():
            values, inside = evaluate(node, rows.values, len(rows.queue)), interval(node)
            assert inside.low <= values.min()
            assert values.max() <= inside.high


@given(programs, seeds)
def test_a_guard_is_left_out_only_where_it_holds_on_any_rows(program, seed):
    """Terms drawn from their least value on, beyond what an engine would show."""
    rng = np.random.default_rng(seed)
    values = {
        name: max(term.low, -1e6) + rng.choice([0.0, 1e-8, 0.5, 3.0, 1e9], 50)
        for name, term in TERMS.items()
    }
    for part in program.trees.values():
        for node in part.walk():
            for least in (0.0, 1e-9):
                if surely_at_least(node, least):
                    assert evaluate(node, values, 50).min() >= least


@given(programs)
def test_what_is_called_common_does_not_differ_within_a_queue(program):
    queues = fixed_queues()
    for hook, part in program.trees.items():
        if is_common(part):
            rows = queues.rows(hook)
            keys = evaluate(part, rows.values, len(rows.queue))
            assert rows.order(keys) == rows.order(np.zeros(len(keys)))

"""Programs and terms: genomes, and what a tree comes out as."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evolve.programs import programs, tree
from queuesmith.errors import PolicyError
from queuesmith.evolve.gp.behaviour import fixed_queues
from queuesmith.evolve.gp.program import (
    ARITY,
    LEAST_DIVISOR,
    MAX_DEPTH,
    MAX_NODES,
    Node,
    Program,
    evaluate,
    rounded,
)
from queuesmith.evolve.gp.terminals import HOOKS, TERMS, term_values, usable_terms
from queuesmith.testing import _plain, _reachable_rows


@pytest.fixture(scope="module")
def edge_rows():
    """Return waiting and running rows at the edges of every field."""
    rng = np.random.default_rng(0)
    found = {}
    for hook, is_running in (("waiting_key", False), ("victim_key", True)):
        rows = _reachable_rows(rng, "running" if is_running else "waiting")
        found[hook] = [_plain(row) for row in rows.requests], [_plain(row) for row in rows.engines]
    return found


def obviously(part: Node, known: dict[str, float]) -> float:
    """Compute a tree on one row, in the plainest way."""
    if part.is_constant:
        return part.value
    if not part.children:
        return known[part.name]
    operands = [obviously(child, known) for child in part.children]
    if part.name == "if":
        first, second, above, below = operands
        return above if first > second else below
    return {
        "add": lambda a, b: a + b,
        "sub": lambda a, b: a - b,
        "mul": lambda a, b: a * b,
        "div": lambda a, b: a / max(b, LEAST_DIVISOR),
        "min": min,
        "max": max,
        "clip": lambda a, low, high: min(max(a, low), high),
        "log1p": lambda a: math.log1p(max(a, 0.0)),
    }[part.name](*operands)


# Genomes


@given(programs)
def test_a_genome_survives_json(program):
    genome = json.loads(json.dumps(program.to_json()))

    assert Program.from_json(genome) == program


@pytest.mark.parametrize(
    ("genome", "reason"),
    [
        (None, "an object with a waiting_key"),
        ([], "an object with a waiting_key"),
        ({"victim_key": "progress"}, "an object with a waiting_key"),
        ({"waiting_key": "wait_share", "admit": 1.0}, "not 'admit'"),
        ({"waiting_key": "shoe_size"}, "no term 'shoe_size'"),
        ({"waiting_key": "progress"}, "no term 'progress' in waiting_key"),
        ({"waiting_key": "wait_share", "victim_key": "wait_share"}, "in victim_key"),
        ({"waiting_key": ["pow", 2, "wait_share"]}, "no operation 'pow'"),
        ({"waiting_key": ["add", "wait_share"]}, "add takes 2"),
        ({"waiting_key": ["constant"]}, "no operation 'constant'"),
        ({"waiting_key": []}, "made of numbers, names and lists"),
        ({"waiting_key": [1, 2]}, "made of numbers, names and lists"),
        ({"waiting_key": True}, "made of numbers, names and lists"),
        ({"waiting_key": None}, "made of numbers, names and lists"),
        ({"waiting_key": math.nan}, "at most"),
        ({"waiting_key": math.inf}, "at most"),
        ({"waiting_key": 10**400}, "at most"),
        ({"waiting_key": ["clip", 1, "wait_share", 2]}, "limits as constants"),
    ],
)
def test_what_is_no_genome_is_refused_with_the_reason(genome, reason):
    with pytest.raises(PolicyError, match=reason):
        Program.from_json(genome)


scraps = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5) | st.sampled_from([*TERMS]),
    lambda part: (
        st.lists(part, max_size=4)
        | st.tuples(st.sampled_from([*ARITY]), part, part).map(list)
        | st.dictionaries(st.sampled_from([*HOOKS, "x"]), part, max_size=3)
    ),
    max_leaves=12,
)


@given(scraps)
def test_any_json_is_a_program_or_refused(scrap):
    try:
        program = Program.from_json({"waiting_key": scrap})
    except PolicyError:
        return
    assert program.fits


def test_a_genome_too_deep_or_too_large_is_refused():
    deep = "wait_share"
    for _ in range(10_000):
        deep = ["log1p", deep]
    three = ["if", "wait_share", "kv_use", "wait_share", "kv_use"]
    large = ["if", three, three, three, three]

    with pytest.raises(PolicyError, match="deeper"):
        Program.from_json({"waiting_key": deep})
    Program.from_json({"waiting_key": large})
    Program.from_json({"waiting_key": ["mul", large, ["add", 2, "kv_use"]]})
    with pytest.raises(PolicyError, match=r"26 nodes"):
        Program.from_json({"waiting_key": ["add", ["log1p", large], ["add", 2, "kv_use"]]})
    # Both trees count.
    with pytest.raises(PolicyError, match=r"too large"):
        Program.from_json({"waiting_key": large, "victim_key": ["if", 1, 2, 3, "kv_use"]})


def test_size_and_depth_count_nodes():
    program = Program(tree(["add", 1, ["log1p", "wait_share"]]), tree("progress"))

    assert (program.size, program.depth) == (5, 3)
    assert (MAX_NODES, MAX_DEPTH) == (25, 6)


def test_a_part_is_replaced_where_walking_finds_it():
    whole = tree(["if", "wait_share", ["add", 1, "kv_use"], "queue_ratio", ["log1p", 2]])

    for place, part in enumerate(whole.walk()):
        changed = list(whole.replaced(place, Node("seats_taken")).walk())
        assert changed[place] == Node("seats_taken")
        assert len(changed) == whole.size - part.size + 1
    with pytest.raises(IndexError):
        whole.replaced(whole.size, Node("seats_taken"))


@pytest.mark.parametrize(
    ("value", "kept"),
    [(0.123456, 0.123), (-98765.0, -98800.0), (0.0, 0.0), (1e300, 1e6), (-1e300, -1e6)],
)
def test_constants_are_kept_short_and_small(value, kept):
    assert rounded(value) == kept


# Values


@given(programs)
def test_a_tree_comes_out_on_many_rows_as_it_does_on_each(program):
    queues = fixed_queues()
    for hook, part in program.trees.items():
        rows = queues.rows(hook)
        at_once = evaluate(part, rows.values, len(rows.queue))
        for row in range(0, len(rows.queue), 41):
            known = {name: float(column[row]) for name, column in rows.values.items()}
            assert at_once[row] == obviously(part, known)


@given(programs, st.randoms(use_true_random=False))
def test_no_tree_leaves_the_finite_numbers(program, random):
    # As large and as small as terms can be on any rows within the contract.
    extremes = [0.0, 1e-8, 1.0, 1e12, 1e19]
    values = {name: np.array([random.choice(extremes) for _ in range(20)]) for name in TERMS}
    values["time_left"] = -values["time_left"]

    for part in program.trees.values():
        assert np.isfinite(evaluate(part, values, 20)).all()


def test_a_constant_tree_has_a_value_for_every_row():
    assert evaluate(tree(["add", 1, 2]), {}, 3).tolist() == [3.0, 3.0, 3.0]


# Terms


@pytest.mark.parametrize("hook", HOOKS)
def test_terms_keep_their_range_in_any_queue(hook):
    for name, values in fixed_queues().rows(hook).values.items():
        term = TERMS[name]
        assert term.low <= values.min(), name
        assert values.max() <= term.high * (1 + 1e-12), name


@pytest.mark.parametrize("hook", HOOKS)
def test_terms_are_finite_and_above_their_least_on_any_rows_within_the_contract(hook, edge_rows):
    for name, values in term_values(hook, *edge_rows[hook]).items():
        assert np.isfinite(values).all(), name
        assert np.abs(values).max() <= 1e19, name
        assert values.min() >= TERMS[name].low, name


@pytest.mark.parametrize("hook", HOOKS)
def test_terms_are_common_just_where_they_say_so(hook):
    rows = fixed_queues().rows(hook)
    for name, values in rows.values.items():
        differs = [np.ptp(values[rows.queue == queue]) > 0 for queue in np.unique(rows.queue)]
        assert any(differs) != TERMS[name].is_common, name


def test_terms_do_not_depend_on_the_units_of_time_and_of_tokens():
    """On an engine twice as fast, or with a tokenizer twice as fine, all looks the same."""
    queues = fixed_queues()
    for hook in HOOKS:
        rows = queues.rows(hook)
        scaled = [
            (scale(request, _TIMES_OF_REQUEST, 2.0), scale(engine, _TIMES_OF_ENGINE, 2.0))
            for request, engine in zip(rows.requests, rows.engines, strict=True)
        ]
        for _, engine in scaled:
            engine.token_rate /= 2.0
        again = term_values(hook, *zip(*scaled, strict=True))
        for name, values in rows.values.items():
            np.testing.assert_allclose(again[name], values, rtol=1e-9, err_msg=name)


_TIMES_OF_REQUEST = ("arrival_time", "deadline", "last_token_ts")
_TIMES_OF_ENGINE = (
    "now", "mean_wait", "oldest_wait", "step_time", "recent_ttft", "backlog_time",
    "peak_backlog_time",
)  # fmt: skip


def scale(row, names, factor):
    fields = dict(vars(row))
    for name in names:
        fields[name] *= factor
    return type(row)(**fields)


def test_terms_that_need_knowledge_are_left_out_without_it():
    plain = {term.name for hook in HOOKS for term in usable_terms(hook)}
    told = {term.name for term in usable_terms("waiting_key", ["deadlines", "predictions"])}

    assert {"time_left", "expected_output"} & plain == set()
    assert {"time_left", "expected_output"} <= told
    reads = {name: TERMS[name].expression for name in plain}
    assert not any("deadline" in text or "predicted" in text for text in reads.values())

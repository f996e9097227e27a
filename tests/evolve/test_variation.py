"""New programs: within the limits, of all kinds, and the same for the same generator."""

import json
import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import given

from evolve.programs import EVERYTHING, draw_program, programs, seeds, vary, waiting
from queuesmith.errors import ConfigError, PolicyError
from queuesmith.evolve.gp import constants, variation
from queuesmith.evolve.gp.behaviour import behaviour
from queuesmith.evolve.gp.program import ARITY, MAX_DEPTH, Program
from queuesmith.evolve.gp.terminals import TERMS, usable_terms
from queuesmith.evolve.gp.variation import CLASSICS, Space
from queuesmith.policies import get_policy


def parts(program):
    return [node for part in program.trees.values() for node in part.walk()]


# All operators


@given(seeds)
def test_one_seed_gives_one_program(seed):
    assert draw_program(seed) == draw_program(seed)


@given(seeds)
def test_whatever_is_done_to_a_program_it_stays_one(seed):
    rng = np.random.default_rng(seed)
    program = variation.ramped(EVERYTHING, rng)
    for _ in range(8):
        program = vary(program, EVERYTHING, rng)
        # Among other things this refuses clips without constant limits, and terms of other hooks.
        assert Program.from_json(program.to_json()) == program


def test_no_operator_touches_the_global_generator():
    np.random.seed(7)  # noqa: NPY002
    before = np.random.get_state()[1].tolist()  # noqa: NPY002
    for seed in range(50):
        draw_program(seed)

    assert np.random.get_state()[1].tolist() == before  # noqa: NPY002


@pytest.mark.parametrize(
    "operator",
    [
        lambda program, rng: variation.mutate_subtree(program, Space(), rng),
        lambda program, rng: variation.mutate_wrap(program, Space(), rng),
        lambda program, rng: variation.mutate_point(program, Space(), rng),
        lambda program, rng: variation.mutate_constants(program, rng),
        lambda program, rng: variation.hoist(program, rng),
        lambda program, rng: variation.crossover(program, CLASSICS["hrrn_by_wait"], rng),
    ],
)
def test_every_operator_makes_something_new_more_often_than_not(operator):
    program = CLASSICS["residual_sjf"]
    rng = np.random.default_rng(0)

    assert sum(operator(program, rng) != program for _ in range(100)) > 50


# From nothing


def test_random_programs_are_of_all_kinds():
    rng = np.random.default_rng(0)
    drawn = [variation.ramped(EVERYTHING, rng) for _ in range(2_000)]
    names = Counter(node.name for program in drawn for node in parts(program))
    depths = Counter(program.waiting_key.depth for program in drawn)

    assert set(ARITY) | set(TERMS) <= set(names)
    assert min(names[name] for name in ARITY) > 100
    assert set(depths) >= set(range(1, MAX_DEPTH))
    assert 200 < sum(program.victim_key is not None for program in drawn) < 600


@given(seeds)
def test_a_full_tree_has_its_whole_depth_and_a_grown_one_no_more(seed):
    rng = np.random.default_rng(seed)

    full = variation.random_tree(Space(), "waiting_key", rng, 3, full=True)
    grown = variation.random_tree(Space(), "waiting_key", rng, 3, full=False)

    assert full.depth == 3
    assert grown.depth <= 3


@given(seeds)
def test_a_space_without_knowledge_and_victims_has_neither(seed):
    space = Space(victims=False)
    program = draw_program(seed, space)
    known = {term.name for term in usable_terms("waiting_key")}

    assert {node.name for node in parts(program)} & set(TERMS) <= known
    assert set(program.trees) == {"waiting_key"}


@pytest.mark.parametrize("name", ["fcfs", "sjf", "hrrn"])
def test_a_classic_orders_every_queue_as_the_policy_of_its_name(name):
    assert behaviour(CLASSICS[name]) == behaviour(get_policy(name))


def test_all_classics_are_different_and_fit():
    assert len({behaviour(program) for program in CLASSICS.values()}) == len(CLASSICS)
    assert all(program.fits for program in CLASSICS.values())


# From others


@given(seeds)
def test_a_child_is_made_of_its_parents(seed):
    rng = np.random.default_rng(seed)
    mother, father = draw_program(seed), draw_program(seed + 1)

    child = variation.crossover(mother, father, rng)

    inherited = {(node.name, node.value) for node in [*parts(mother), *parts(father)]}
    assert {(node.name, node.value) for node in parts(child)} <= inherited


@given(programs, seeds)
def test_hoisting_leaves_a_part(program, seed):
    child = variation.hoist(program, np.random.default_rng(seed))

    for hook, part in child.trees.items():
        assert part in list(program.trees[hook].walk())


@given(programs, seeds)
def test_other_constants_leave_the_shape(program, seed):
    child = variation.mutate_constants(program, np.random.default_rng(seed))

    assert [node.name for node in parts(child)] == [node.name for node in parts(program)]


@given(programs)
def test_what_is_settled_is_simple_and_has_short_constants(program):
    settled = variation.settled(program)

    assert variation.settled(settled) == settled
    for node in parts(settled):
        if node.is_constant:
            assert float(f"{node.value:.3g}") == node.value


# Constants


GUARDED = waiting(
    ["if", "backlogs_waited", 0.9, ["mul", -2.0, "wait_share"], ["add", "relative_work", 1.0]]
)


def test_only_constants_that_are_numbers_of_their_own_are_tuned():
    assert np.exp(constants.tunable(GUARDED)).round(6).tolist() == [0.9, 2.0]

    changed = constants.with_constants(GUARDED, np.log([0.5, 4.0]))

    assert changed == waiting(
        ["if", "backlogs_waited", 0.5, ["mul", -4.0, "wait_share"], ["add", "relative_work", 1.0]]
    )


@given(programs)
def test_tuning_with_its_own_constants_changes_nothing(program):
    program = variation.settled(program)

    assert constants.with_constants(program, constants.tunable(program)) == program


@given(programs, seeds)
def test_tuning_keeps_the_shape(program, seed):
    rng = np.random.default_rng(seed)

    tuned = constants.tune(program, [], 3, rng, "gaussian")

    assert len(tuned) == (3 if len(constants.tunable(program)) else 0)
    for other, _ in tuned:
        if 1.0 not in np.exp(constants.tunable(other)):
            assert [node.name for node in parts(other)] == [node.name for node in parts(program)]


def distance(program):
    """Return how far the constants are from 0.3 and 20, with a narrow valley."""
    if len(logarithms := constants.tunable(program)) != 2:
        return np.inf
    first, second = logarithms - np.log([0.3, 20.0])
    return (first + second) ** 2 + 25.0 * (first - second) ** 2


@pytest.mark.parametrize("method", constants.METHODS)
def test_tuning_finds_constants_that_score_better(method):
    if method == "cmaes":
        pytest.importorskip("cmaes")
    rng = np.random.default_rng(0)
    scored = [constants.Scored(GUARDED, -distance(GUARDED))]
    for _ in range(20):
        tuned = constants.tune(scored[0].program, scored, 12, rng, method)
        tuned = json.loads(json.dumps([memory for _, memory in tuned])), tuned
        scored += [
            constants.Scored(program, -distance(program), memory)
            for memory, (program, _) in zip(*tuned, strict=True)
        ]
        scored = sorted(scored, key=lambda item: -item.score)[:20]  # as a loop keeps survivors

    assert distance(GUARDED) > 5
    assert -scored[0].score < 0.02


def test_cmaes_goes_on_where_its_archive_left_off():
    """Told in one go what two calls were told, the package asks for the same."""
    cmaes = pytest.importorskip("cmaes")
    first = constants.tune(GUARDED, [], 6, np.random.default_rng(0), "cmaes")
    kept = {1: 5.0, 4: 3.0}
    scored = [
        constants.Scored(first[place].program, kept[place], first[place].memory) for place in kept
    ]
    other = np.random.default_rng(99)  # which must not matter any more
    second = constants.tune(GUARDED, scored, 6, other, "cmaes")

    memory = first[0].memory
    optimizer = cmaes.CMA(
        mean=np.array(memory["mean"]),
        sigma=constants.FIRST_STEP,
        seed=memory["seed"],
        population_size=6,
    )
    asked = [optimizer.ask() for _ in range(6)]
    optimizer.tell([(step, -kept.get(place, -1e12)) for place, step in enumerate(asked)])
    expected = [constants.with_constants(GUARDED, optimizer.ask()) for _ in range(6)]
    assert [program for program, _ in second] == expected


def test_cmaes_begins_anew_for_another_shape():
    pytest.importorskip("cmaes")
    other = waiting(["sub", ["mul", 5.0, "relative_work"], ["min", 3.0, "usual_waits"]])
    tuned = constants.tune(GUARDED, [], 6, np.random.default_rng(0), "cmaes")
    scored = [constants.Scored(program, 1.0, memory) for program, memory in tuned]

    begun = constants.tune(other, scored, 6, np.random.default_rng(1), "cmaes")

    assert all(item.memory["told"] == [] for item in begun)
    assert begun == constants.tune(other, [], 6, np.random.default_rng(1), "cmaes")


@pytest.mark.parametrize(
    "memory", [{"told": []}, {"told": 3, "index": 0}, {"seed": "x", "told": [], "index": 0}]
)
def test_a_damaged_memory_is_refused(memory):
    pytest.importorskip("cmaes")
    scored = [constants.Scored(GUARDED, 1.0, memory)]

    with pytest.raises(PolicyError, match="damaged"):
        constants.tune(GUARDED, scored, 6, np.random.default_rng(0), "cmaes")


def test_without_the_package_cmaes_the_message_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "cmaes", None)

    with pytest.raises(ConfigError, match=r"needs the package cmaes.*gaussian"):
        constants.check_method("cmaes")
    assert constants.check_method("gaussian") == "gaussian"


def test_an_unknown_method_is_refused():
    with pytest.raises(ConfigError, match="gaussian or cmaes"):
        constants.check_method("bayes")


def test_a_shape_tells_programs_apart_by_all_but_the_size_of_constants():
    assert constants.shape(waiting(["mul", 3.0, "kv_use"])) == constants.shape(
        waiting(["mul", 5.0, "kv_use"])
    )
    assert constants.shape(waiting(["mul", -3.0, "kv_use"])) != constants.shape(
        waiting(["mul", 3.0, "kv_use"])
    )

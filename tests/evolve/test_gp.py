"""Proposers: what they write, from whom, and that breeding is worth its while."""

import json
import math
import time
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from evolve.programs import waiting
from queuesmith.errors import ConfigError, PolicyError
from queuesmith.evolve.candidate import Candidate
from queuesmith.evolve.gp.behaviour import behaviour, fixed_queues
from queuesmith.evolve.gp.codegen import write
from queuesmith.evolve.gp.program import Program, evaluate
from queuesmith.evolve.gp.proposer import Gp, RandomSearch, lexicase, select
from queuesmith.evolve.gp.variation import CLASSICS, Space
from queuesmith.evolve.proposers import Files
from queuesmith.policies import get_policy

PROPOSERS = [Gp(), RandomSearch()]


def rng(seed=0):
    return np.random.default_rng(seed)


def score_all(proposals, score, first=0):
    """Return proposals as the parents of the next generation, through JSON as an archive does."""
    parents = []
    for number, proposal in enumerate(proposals, first):
        meta = json.loads(json.dumps(dict(proposal.meta)))
        scores = score(Program.from_json(meta["genome"]))
        parents.append(
            Candidate(number, proposal.text, float(np.mean(scores)), tuple(scores), meta)
        )
    return parents


def by_size(program):
    return [-float(program.size)]


# What every proposer of programs does


@pytest.mark.parametrize("proposer", PROPOSERS)
def test_the_first_generation_has_the_classics_and_random_programs(proposer):
    proposals = proposer.propose([], 40, rng())
    shown = {proposal.meta["behaviour"] for proposal in proposals}

    assert len(proposals) == 40
    assert {behaviour(program) for program in CLASSICS.values()} <= shown
    assert {proposal.proposer for proposal in proposals} == {proposer.name}


def test_the_control_starts_from_what_the_search_starts_from():
    first, control = (proposer.propose([], 40, rng()) for proposer in PROPOSERS)

    assert [proposal.text for proposal in first] == [proposal.text for proposal in control]


@pytest.mark.parametrize("proposer", PROPOSERS)
def test_a_text_is_what_its_genome_is_written_out_as(proposer):
    for proposal in proposer.propose([], 40, rng()):
        program = Program.from_json(proposal.meta["genome"])
        assert proposal.text == write(program)
        assert proposal.size == program.size
        assert proposal.meta["behaviour"] == behaviour(program)


@pytest.mark.parametrize("proposer", PROPOSERS)
def test_no_two_candidates_behave_alike_nor_like_a_parent(proposer):
    parents = score_all(proposer.propose([], 30, rng()), by_size)

    children = proposer.propose(parents, 60, rng(1))

    shown = [one.meta["behaviour"] for one in (*parents, *children)]
    assert len(set(shown)) == len(shown) == 90


@pytest.mark.parametrize("proposer", PROPOSERS)
def test_the_same_parents_count_and_generator_give_the_same_candidates(proposer):
    parents = score_all(proposer.propose([], 30, rng()), by_size)

    assert proposer.propose(parents, 20, rng(1)) == proposer.propose(parents, 20, rng(1))
    assert proposer.propose(parents, 20, rng(1)) != proposer.propose(parents, 20, rng(2))


@pytest.mark.parametrize("proposer", PROPOSERS)
def test_a_space_without_victims_has_none(proposer):
    without = type(proposer)(space=Space(victims=False))
    parents = score_all(without.propose([], 30, rng()), by_size)

    for proposal in (*parents, *without.propose(parents, 60, rng(1))):
        assert "victim_key" not in proposal.meta["genome"]


def test_a_hundred_children_take_less_than_a_third_of_a_second():
    parents = score_all(Gp().propose([], 100, rng()), by_size)

    best = math.inf
    for seed in range(3):  # of three, as the machine may be busy
        start = time.process_time()
        assert len(Gp().propose(parents, 100, rng(seed))) == 100
        best = min(best, time.process_time() - start)

    assert best < 0.33


def test_nothing_asked_for_is_nothing():
    assert Gp().propose([], 0, rng()) == []
    assert RandomSearch().propose([], 0, rng()) == []


# Breeding


def test_children_name_the_parents_they_are_bred_from():
    parents = score_all(Gp().propose([], 30, rng()), by_size, first=100)

    children = Gp().propose(parents, 80, rng(1))

    numbers = {parent.number for parent in parents}
    kinds = Counter(len(child.parents) for child in children)
    assert set(kinds) == {0, 1, 2}  # drawn anew, mutated, crossed
    for child in children:
        assert set(child.parents) <= numbers
        assert all(str(number) in child.note for number in child.parents)


def test_the_control_has_no_parents_and_looks_at_no_score():
    first = RandomSearch().propose([], 30, rng())
    good, bad = score_all(first, by_size), score_all(first, lambda program: [0.0])

    children = RandomSearch().propose(good, 30, rng(1))

    assert children == RandomSearch().propose(bad, 30, rng(1))
    assert all(child.parents == () for child in children)
    assert {child.meta["behaviour"] for child in children}.isdisjoint(
        {behaviour(program) for program in CLASSICS.values()}
    )


def test_parents_without_a_genome_are_not_bred_from():
    stranger = Candidate(1, "def waiting_key(request, engine):\n    return 0\n", 9.0, (9.0,), {})
    parents = score_all(Gp().propose([], 20, rng()), by_size, first=5)

    children = Gp().propose([stranger, *parents], 20, rng(1))

    assert children == Gp().propose(parents, 20, rng(1))
    assert len(Gp().propose([stranger], 20, rng(1))) == 20


def test_a_damaged_genome_is_refused():
    with pytest.raises(PolicyError, match="genome"):
        Gp().propose([Candidate(1, "", 0.0, (), {"genome": ["mul"]})], 5, rng())


def test_parents_without_a_score_are_bred_from_last():
    parents = score_all(Gp().propose([], 20, rng()), lambda program: [math.nan])
    best = score_all(Gp().propose([], 1, rng()), lambda program: [1.0], first=50)

    chosen = Counter(select(pool([*parents, *best]), rng(seed))[1].number for seed in range(200))

    assert chosen[50] > 60
    assert len(Gp().propose(parents, 20, rng(1))) == 20


def pool(parents):
    return [(Program.from_json(parent.meta["genome"]), parent) for parent in parents]


def agreement(target):
    """Return a score: how alike a program and a target order each of some groups of queues."""
    rows = fixed_queues().waiting

    def places(program):
        keys = evaluate(program.waiting_key, rows.values, len(rows.queue))
        return np.argsort(np.lexsort((keys, rows.queue)))

    wanted = places(target)

    def score(program):
        misplaced = np.abs(places(program) - wanted)
        return [-float(misplaced[rows.queue % 8 == group].mean()) for group in range(8)]

    return score


TARGET = waiting(
    ["if", "backlogs_waited", 0.6, ["mul", -1, "usual_waits"],
     ["sub", ["mul", 0.5, "relative_work"], ["mul", "wait_share", "kv_use"]]]
)  # fmt: skip


def test_breeding_comes_nearer_to_a_hidden_policy_than_as_many_random_programs():
    """Searches of 8 x 30 candidates; the unit is the seed."""
    score = agreement(TARGET)

    def best_of(proposer, seed):
        generator, parents = rng(seed), []
        for generation in range(8):
            proposals = proposer.propose(parents, 30, generator)
            parents += score_all(proposals, score, first=1000 * generation)
            parents = sorted(parents, key=lambda parent: -parent.score)[:30]
        return parents[0].score

    bred = [best_of(Gp(), seed) for seed in range(5)]
    drawn = [best_of(RandomSearch(), seed) for seed in range(5)]

    assert np.mean(bred) > 0.75 * np.mean(drawn)  # both are below 0
    assert sum(one > other for one, other in zip(bred, drawn, strict=True)) >= 4


def test_cmaes_is_carried_on_over_generations_by_what_candidates_carry():
    pytest.importorskip("cmaes")
    best = waiting(["if", "backlogs_waited", 0.9, ["mul", -1, "wait_share"],
                    ["sub", ["mul", 0.5, "relative_work"], "usual_waits"]])  # fmt: skip
    breeder = Gp(constants="cmaes", tuned_share=0.5)
    score = agreement(TARGET)
    first = Candidate(0, write(best), 0.0, (0.0,), {"genome": best.to_json()})
    parents, told = [first], []
    for generation in range(3):
        children = breeder.propose(parents, 12, rng(generation))
        tuned = [child for child in children if "tuning" in child.meta]
        told.append({len(child.meta["tuning"]["told"]) for child in tuned})
        parents = [first, *score_all(tuned, score, first=10 * generation + 1)]

    assert told == [{0}, {1}, {2}]


# Selection


def test_of_equal_scores_a_tournament_takes_the_smaller_program():
    small = Candidate(1, "", 1.0, (), {})
    large = Candidate(2, "", 1.0005, (), {})  # within the margin
    better = Candidate(3, "", 1.1, (), {})
    little, much = waiting("wait_share"), waiting(["add", "wait_share", "relative_work"])

    against_large = Counter(
        select([(little, small), (much, large)], rng(seed))[1].number for seed in range(200)
    )
    against_better = Counter(
        select([(little, small), (much, better)], rng(seed))[1].number for seed in range(200)
    )

    assert against_large[1] > 170
    assert against_better[3] > 170


def test_lexicase_keeps_specialists_that_no_mean_would():
    scores = np.array([[5.0, 0.0, 0.0, 0.0], [0.0, 5.0, 0.0, 0.0], [2.0, 2.0, 2.0, 2.0]])

    chosen = Counter(lexicase(scores, rng(seed)) for seed in range(300))

    assert min(chosen[row] for row in range(3)) > 30


@given(
    arrays(np.float64, (5, 3), elements=st.floats(-10, 10) | st.just(math.nan)),
    st.integers(0, 1000),
)
def test_lexicase_never_takes_what_another_beats_by_far_on_every_window(scores, seed):
    scores[0] = 1000.0

    assert lexicase(scores, rng(seed)) == 0


# Files


@pytest.fixture
def folder(tmp_path):
    for name in ("sjf", "fcfs", "hrrn"):
        (tmp_path / f"{name}.py").write_text(get_policy(name).source)
    (tmp_path / "notes.txt").write_text("not a policy")
    return tmp_path


def test_files_are_proposed_as_they_are(folder):
    outside = folder.parent / "outside.py"
    outside.write_text("SECRET = 1\n")
    (folder / "link.py").symlink_to(outside)
    proposals = Files(folder).propose([], 10, rng())
    assert not any("SECRET" in one.text for one in proposals)

    assert {proposal.text for proposal in proposals} == {
        get_policy(name).source for name in ("sjf", "fcfs", "hrrn")
    }
    assert {proposal.meta["file"] for proposal in proposals} == {"sjf.py", "fcfs.py", "hrrn.py"}
    assert Files(folder).propose([], 10, rng()) == proposals


def test_no_more_files_are_proposed_than_asked_for_and_none_that_a_parent_is(folder):
    parent = Candidate(1, get_policy("sjf").source, 0.0, (), {})
    found = [Files(folder).propose([parent], 1, rng(seed)) for seed in range(20)]

    assert {len(proposals) for proposals in found} == {1}
    assert {proposals[0].meta["file"] for proposals in found} == {"fcfs.py", "hrrn.py"}


def test_files_added_later_are_found(folder):
    proposer = Files(folder)
    (folder / "late.py").write_text("# later\n")

    assert "# later\n" in [proposal.text for proposal in proposer.propose([], 10, rng())]


def test_a_file_that_cannot_be_read_is_proposed_as_the_reason(folder):
    (folder / "sjf.py").write_bytes(b"\xff\xfe\x00")
    texts = [proposal.text for proposal in Files(folder).propose([], 10, rng())]

    assert len(texts) == 3
    assert any(text.startswith("# ") and "not UTF-8" in text for text in texts)


@pytest.mark.parametrize("what", ["missing", "a_file", "empty"])
def test_what_is_no_folder_of_policies_is_refused(tmp_path, what):
    (tmp_path / "a_file").write_text("")
    (tmp_path / "empty").mkdir()

    with pytest.raises(ConfigError, match=what):
        Files(tmp_path / what)

"""The loop: reproducible, equal budgets, nobody lost who would have survived."""

import json
from dataclasses import replace

import pytest

from queuesmith.evolve import run
from queuesmith.evolve.archive.archive import Archive
from queuesmith.evolve.candidate import Proposal
from queuesmith.evolve.loop import TRACKS
from queuesmith.evolve.selection import split

from .toy import TEXT, Aged, evaluator, read, toy_config, use_toys

#: Two loads and all windows at a time: enough cells for stopping early to be worth it.
MANY_CELLS = (
    ('loads = ["heavy"]', 'loads = ["knee", "heavy"]'),
    ("per_generation = 2", "per_generation = 4"),
    ("islands = 2", "islands = 1"),
    ("depth = 2", "depth = 1"),
    ("children = 6", "children = 12"),
)


#: Finished runs by what was changed of the toy, for tests that only read them.
FINISHED = {}


@pytest.fixture
def make_run(tmp_path_factory, monkeypatch):
    """Bring a toy run to its end; return its folder and document."""
    use_toys(monkeypatch)
    toys = run.make_proposer, run.make_control

    def make_run(*changes, name="run", make=None, **options):
        usual = (run.make_proposer, run.make_control) == toys
        plain = usual and name == "run" and make is None and not options
        if plain and changes in FINISHED:
            return FINISHED[changes]
        folder = tmp_path_factory.mktemp(name)
        run.begin(toy_config(*changes), folder)
        found = folder, run.go_on(folder, make_evaluator=make or evaluator(**options))
        if plain:
            FINISHED[changes] = found
        return found

    return make_run


def candidates(folder):
    with Archive.read(folder) as archive:
        return archive.candidates()


def rows(folder, query):
    with Archive.read(folder) as archive:
        return archive.rows(query)


def test_one_seed_reproduces_a_run_exactly(make_run):
    first, _ = make_run()
    second, _ = make_run(name="second")
    other, _ = make_run(("seeds = [3]", "seeds = [4]"))

    assert read(first) == read(second)
    assert {one.text for one in candidates(first)} != {one.text for one in candidates(other)}


def test_a_seed_does_the_same_alone_and_beside_others(make_run):
    alone, _ = make_run()
    beside, _ = make_run(("seeds = [3]", "seeds = [8, 3]"), name="beside")
    query = (
        "SELECT track, generation, island, text, status, score, verdict FROM candidates "
        "WHERE seed = 3 ORDER BY number"
    )

    assert rows(alone, query) == rows(beside, query)


def test_candidates_that_are_fenced_in_give_the_very_same_run(make_run):
    """Two child processes, and one process without walls or early stopping."""
    short = (("generations = 3", "generations = 2"), ("islands = 2", "islands = 1"))

    def sandbox(config, traffic, scale, _, stack):
        return run.make_sandbox(config, traffic, scale, 2, stack)

    fenced, _ = make_run(*short, name="fenced", make=sandbox)
    bare, _ = make_run(*short, name="bare", stop_early=False)

    for table in ("members", "champions"):
        assert read(fenced)[table] == read(bare)[table]
    query = "SELECT text, verdict FROM candidates ORDER BY number"
    assert rows(fenced, query) == rows(bare, query)


def test_stopping_early_saves_work_and_changes_nobody_who_survives(make_run):
    seen = []
    early, document = make_run(*MANY_CELLS, name="early", seen=seen)
    full, whole = make_run(*MANY_CELLS, name="full", seen=seen, stop_early=False)

    stopped = [one for one in candidates(early) if one.status == "stopped"]
    assert len(stopped) >= 5
    assert seen[0].num_cells <= seen[1].num_cells - len(stopped)
    assert read(early)["members"] == read(full)["members"]
    assert read(early)["champions"] == read(full)["champions"]
    query = "SELECT number, text, verdict FROM candidates ORDER BY number"
    assert rows(early, query) == rows(full, query)
    finals = {one.number: one.score for one in candidates(full)}
    assert all(one.score >= finals[one.number] - 1e-9 for one in stopped)
    assert document["best"] == whole["best"]


def test_early_stopping_can_be_switched_off(make_run):
    off = ("[search]", "[search]\nstop_early = false")
    folder, _ = make_run(*MANY_CELLS, off)

    assert not [one for one in candidates(folder) if one.status == "stopped"]


def test_search_and_control_get_the_same_evaluations(make_run):
    folder, document = make_run()
    counts = dict(
        rows(
            folder,
            "SELECT track, count(*) FROM candidates WHERE status NOT IN ('duplicate', 'form') "
            "GROUP BY track",
        )
    )

    assert counts["search"] == counts["control"] == document["evaluations"]["search"]
    assert document["evaluations"] == counts
    assert counts["search"] == 3 * 6


def test_the_control_learns_nothing_and_serves_the_same_windows(make_run):
    folder, _ = make_run()
    control = [one for one in candidates(folder) if one.track == "control"]

    assert {one.proposer for one in control} == {"random"}
    assert all(one.parents == () for one in control)
    windows = rows(folder, "SELECT track, number, windows FROM generations ORDER BY track, number")
    by_track = {track: [row[1:] for row in windows if row[0] == track] for track in TRACKS}
    assert by_track["search"] == by_track["control"]


def test_windows_rotate_and_all_are_used(make_run):
    folder, _ = make_run()
    found = rows(folder, "SELECT windows FROM generations WHERE track = 'search' ORDER BY number")
    each = [set(json.loads(windows)) for (windows,) in found]

    assert each[0] | each[1] == {0, 1, 2, 3}
    assert [len(windows) for windows in each] == [2, 2, 2]


def test_a_cap_on_evaluations_holds_exactly(make_run):
    capped = ("[search]", "[budget]\nevaluations = 11\n\n[search]")
    _, document = make_run(capped)

    assert document["evaluations"] == {"search": 11, "control": 11}
    assert document["stopped"] == "the budget of evaluations is used up"


@pytest.mark.parametrize("currency", ["wall_seconds", "cpu_seconds"])
def test_a_cap_on_seconds_ends_the_run_between_generations(make_run, currency):
    capped = ("[search]", f"[budget]\n{currency} = 0.001\n\n[search]")
    folder, document = make_run(capped)

    assert document["stopped"].startswith(f"the budget of {currency} is used up")
    assert {row[0] for row in rows(folder, "SELECT number FROM generations")} == {0}
    assert document["best"] is not None


def test_everyone_gets_a_verdict_and_a_sentence(make_run):
    folder, _ = make_run(*MANY_CELLS)
    found = candidates(folder)

    assert {one.verdict for one in found} == {"keep", "discard", "crash"}
    assert all(len(one.sentence) > 10 for one in found)
    for one in found:
        assert (one.verdict == "crash") == (one.status not in ("ok", "stopped", "duplicate"))
    kept = {one.number for one in found if one.verdict == "keep"}
    members = {row[4] for row in read(folder)["members"]}
    assert members == kept


def test_nothing_of_a_bad_form_is_run(make_run):
    texts = []

    def watching(config, traffic, scale, workers, stack):
        inner = evaluator()(config, traffic, scale, workers, stack)

        class Watching:
            def evaluate(self, given, windows, limits):
                texts.extend(given)
                return inner.evaluate(given, windows, limits)

        return Watching()

    folder, _ = make_run(make=watching)
    refused = [one for one in candidates(folder) if one.status == "form"]

    assert refused
    assert all("import os" in one.text for one in refused)
    assert not any("import os" in text for text in texts)
    assert "imports 'os'" in refused[0].sentence


def test_who_decides_alike_is_run_once(make_run, monkeypatch):
    """Other text, other constants, the same order: the second is a duplicate of the first."""

    class Twins(Aged):
        def propose(self, parents, count, rng):
            plain = TEXT.format(value=0.01)
            return [
                Proposal(plain, self.name),
                Proposal(plain, self.name),
                Proposal(plain.replace("return ", "return 5.0 + "), self.name),
                Proposal(plain.replace("return ", "return -"), self.name),
            ]

    monkeypatch.setattr(run, "make_proposer", lambda share: Twins())
    seen = []
    folder, _ = make_run(("islands = 2", "islands = 1"), seen=seen)
    search = [one for one in candidates(folder) if one.track == "search"]

    assert [one.status for one in search[:4]] == ["ok", "duplicate", "duplicate", "ok"]
    assert search[2].sentence == f"decides as candidate {search[0].number}"
    assert sum(one.status == "ok" for one in search) == 2  # in later generations, too


def test_whoever_breaks_a_guard_is_scored_and_may_live_but_not_win(make_run, monkeypatch):
    """Last come, first served starves somebody; with enough reward for the mean it would win."""
    lcfs = "def waiting_key(request, engine):\n    return -request.arrival_time\n"
    near = "def waiting_key(request, engine):\n    return request.arrival_time + 1.0\n"

    class Two(Aged):
        def propose(self, parents, count, rng):
            return [Proposal(lcfs, self.name, size=1), Proposal(near, self.name, size=9)]

    monkeypatch.setattr(run, "make_proposer", lambda share: Two())
    folder, document = make_run(("islands = 2", "islands = 1"))
    starving, fair = (
        one for one in candidates(folder) if one.track == "search" and one.status == "ok"
    )

    assert starving.score is not None
    assert not starving.clean
    assert "of fcfs (azure_2023_code@model at heavy)" in starving.sentence
    assert fair.clean
    assert document["best"]["candidate"] == fair.number
    assert document["best"]["clean"]


def test_a_seed_without_survivors_has_no_champion(make_run, monkeypatch):
    class Hopeless(Aged):
        def propose(self, parents, count, rng):
            return [Proposal("def nothing():\n", self.name)]

    monkeypatch.setattr(run, "make_proposer", lambda share: Hopeless())
    _, document = make_run()

    assert document["best"] is None
    assert document["evaluations"] == {"search": 0, "control": 0}


def test_proposers_share_the_candidates(make_run, monkeypatch):
    monkeypatch.setattr(run, "make_proposer", lambda share: Aged(share.name))
    shares = "".join(
        f'[[proposer]]\nname = "{name}"\nshare = {share}\n\n'
        for name, share in (("gp", 0.67), ("files", 0.33))
    )
    folder, _ = make_run(("[search]", f"{shares}[search]"), ("islands = 2", "islands = 1"))
    counts = dict(
        rows(
            folder,
            "SELECT proposer, count(*) FROM candidates WHERE track = 'search' AND status NOT IN "
            "('duplicate', 'form') GROUP BY proposer",
        )
    )

    assert counts == {"gp": 12, "files": 6}


def test_more_answers_than_asked_for_are_not_taken(make_run, monkeypatch):
    class Eager(Aged):
        def propose(self, parents, count, rng):
            return super().propose(parents, 3 * count, rng)

    monkeypatch.setattr(run, "make_proposer", lambda share: Eager())
    _, document = make_run()

    assert document["evaluations"] == {"search": 18, "control": 18}


@pytest.mark.parametrize(("cap", "spent"), [(1, 1.0), (2, 1.5), (4, 3.0)])
def test_money_is_added_up_and_never_goes_over_its_cap(make_run, monkeypatch, cap, spent):
    """A generation asks six times; one that does not fit as a whole is not begun."""

    class Paid(Aged):
        left = None

        def propose(self, parents, count, rng):
            usage = {"llm_calls": 1, "llm_tokens": 500, "llm_money": 0.25}
            extra = {"usage": usage, "prompt": "write one", "answer": "here"}
            return [
                replace(one, meta={**one.meta, **extra})
                for one in super().propose(parents, count, rng)
            ]

    monkeypatch.setattr(run, "make_proposer", lambda share: Paid())
    capped = ("[search]", f"[budget]\nllm_money = {cap}\n\n[search]")
    folder, document = make_run(capped)

    asked = rows(folder, "SELECT count(*) FROM candidates WHERE prompt = 'write one'")[0][0]
    assert document["spent"]["llm_money"] == 0.25 * asked == spent
    assert document["spent"]["llm_tokens"] == 500 * asked
    assert document["stopped"].startswith("the budget of llm_money is used up")
    assert candidates(folder)[0].meta["answer"] == "here"


def test_tails_are_kept_of_survivors_only(make_run):
    folder, _ = make_run()
    found = rows(
        folder,
        "SELECT verdict, kept IS NULL, count(*) FROM scores JOIN candidates ON number = candidate "
        "GROUP BY 1, 2",
    )

    assert {(verdict, bool(dropped)) for verdict, dropped, _ in found} == {
        ("keep", False),
        ("discard", True),
    }


def test_the_best_is_written_as_a_policy_that_runs(make_run):
    from queuesmith.policies import get_policy

    folder, document = make_run(("seeds = [3]", "seeds = [3, 4]"))

    best = get_policy(folder / "best.py")
    assert best.sha256 == document["best"]["text_sha256"]
    for row in document["seeds"]:
        path = folder / f"best_seed_{row['seed']}.py"
        assert get_policy(path).sha256 == row["search"]["text_sha256"]
    json.dumps(document, allow_nan=False)


def test_whole_numbers_that_never_end_are_stopped(make_run, monkeypatch):
    """Each line squares a number: compiled it wraps around, in plain Python it grows."""
    lines = ["    x = request.num_prompt_tokens + 2", *["    x = x * x"] * 60, "    return x * 0.0"]
    bomb = "\n".join(["def waiting_key(request, engine):", *lines, ""])

    class Bomber(Aged):
        def propose(self, parents, count, rng):
            return [Proposal(bomb, self.name), *super().propose(parents, count - 1, rng)]

    monkeypatch.setattr(run, "make_proposer", lambda share: Bomber())
    folder, _ = make_run(("generations = 3", "generations = 1"))
    first = candidates(folder)[0]

    assert first.verdict == "crash"
    assert "whole number" in first.sentence


def test_text_that_is_no_text_is_archived(make_run, monkeypatch):
    class Strange(Aged):
        def propose(self, parents, count, rng):
            texts = ["\ud800", "", "\0", "(" * 5_000, "x" * 200_000]
            return [Proposal(text, self.name) for text in texts]

    monkeypatch.setattr(run, "make_proposer", lambda share: Strange())
    folder, document = make_run(("generations = 3", "generations = 1"))

    assert document["best"] is None
    found = [one for one in candidates(folder) if one.status == "form"]
    assert [one.text[:6] for one in found] == ["\\ud800", "", "\0", "((((((", "xxxxxx"]
    assert {one.verdict for one in found} == {"crash"}


def test_odd_candidates_go_to_islands_and_proposers_in_turn():
    plans = [split(7, 3, [0.5, 0.5], generation) for generation in range(3)]

    assert [[sum(parts) for parts in plan] for plan in plans] == [[3, 2, 2], [2, 2, 3], [2, 3, 2]]
    assert all(sum(map(sum, plan)) == 7 for plan in plans)
    assert split(10, 1, [0.7, 0.2, 0.1], 0) == [[7, 2, 1]]
    assert split(0, 2, [1.0], 0) == [[0], [0]]

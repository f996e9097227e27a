"""What is told of a run: read from its archive, and checked against the engine."""

import json
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from queuesmith.errors import ConfigError, PolicyError, TraceError
from queuesmith.evolve import run
from queuesmith.evolve.archive.archive import FILE, Archive
from queuesmith.evolve.candidate import text_sha256
from queuesmith.evolve.champion import contenders
from queuesmith.evolve.diagnosis import evolution
from queuesmith.evolve.diagnosis.evolution import (
    find_champion,
    judgement_of,
    load_champion,
    read_judgements,
    tell,
)
from queuesmith.evolve.diagnosis.progress import generations, lineage, population, stalled, verdicts
from queuesmith.evolve.gates.case import Case
from queuesmith.evolve.scoring.scale import make_scale
from queuesmith.evolve.scoring.traffic import tuning_traffic
from queuesmith.policies import get_policy
from queuesmith.policies.policy import load_text

from .told import TWO_LOADS, finished_run
from .toy import toy_config


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return finished_run(
        tmp_path_factory.mktemp("progress") / "run", ("seeds = [3]", "seeds = [3, 8]")
    )


@pytest.fixture(scope="module")
def traffic(folder):
    case = Case.of_run(folder)
    return tuning_traffic(case.config, case.window_set)


@pytest.fixture(scope="module")
def scale(traffic):
    return make_scale(traffic)


@pytest.fixture
def archive(folder):
    with Archive.read(folder) as opened:
        yield opened


def policy(text):
    return load_text("candidate", text, Path("candidate.py"))


def test_each_generation_has_its_evaluations_and_its_best_clean_survivor(archive, scale):
    rows = generations(archive, scale)

    assert len(rows) == 2 * 2 * 3
    for row in rows:
        assert row["evaluations"] == 6 * (row["generation"] + 1)
        members = archive.members((row["seed"], row["track"], row["generation"]))
        clean = [one for one in members if one.clean]
        assert row["score"] == max((one.score for one in clean), default=None)
        if row["candidate"] is not None:
            assert row["candidate"] in [one.candidate for one in clean]


def test_the_score_on_all_windows_is_that_of_running_it_on_them(archive, scale, traffic):
    known = [row for row in generations(archive, scale) if row["score_all"] is not None]
    assert len(known) >= 6

    for row in known[::3]:
        text = archive.candidate(row["candidate"]).text
        anew = scale.stand(traffic.measure(policy(text)), sorted(scale.sources))
        assert row["score_all"] == pytest.approx(anew.score)
    assert all(row["score_all"] is None for row in generations(archive, None))


def test_the_population_is_everybody_who_was_scored_to_the_end(archive, scale):
    found = population(archive, scale.reference)
    scored = [one for one in archive.candidates() if one.status == "ok"]

    assert found["number"] == [one.number for one in scored]
    assert found["score"] == [one.score for one in scored]
    assert found["kept"] == [one.verdict == "keep" for one in scored]
    assert {len(values) for values in found.values()} == {len(scored)}


def test_mean_and_p99_over_fcfs_are_those_of_the_engine(archive, scale, traffic):
    number = contenders(archive, 3, "search")[0]  # it was run on all windows
    found = population(archive, scale.reference)
    place = found["number"].index(number)
    mine, fcfs = (
        traffic.measure(one) for one in (policy(archive.candidate(number).text), get_policy("fcfs"))
    )
    means = np.log([mine[cell].mean / fcfs[cell].mean for cell in traffic.cells])
    p99s = np.log([mine[cell].p99 / fcfs[cell].p99 for cell in traffic.cells])

    assert found["mean_ratio"][place] == pytest.approx(np.exp(means.mean()))
    assert found["p99_ratio"][place] == pytest.approx(np.exp(p99s.mean()))
    assert set(population(archive, None)["mean_ratio"]) == {None}


def test_a_lineage_leads_from_a_beginning_to_the_champion(archive):
    with_parents = [one for one in archive.candidates() if one.parents and one.status == "ok"]
    youngest = with_parents[-1]
    found = lineage(archive, youngest.number)
    line = [found["origin"]["candidate"], *(step["child"] for step in found["steps"])]

    assert line[-1] == youngest.number
    assert archive.candidate(line[0]).parents == ()
    for step, before in zip(found["steps"], line, strict=False):
        assert step["parent"] == before
        assert before in archive.candidate(step["child"]).parents
        parent, child = (archive.candidate(step[key]).text for key in ("parent", "child"))
        for text, sign, other in ((parent, "-", "+++"), (child, "+", "---")):
            shown = [
                line[1:]
                for line in step["diff"]
                if line[:1] in (sign, " ") and not line.startswith((other, sign * 3))
            ]
            assert set(shown) <= set(text.splitlines())
    known = {node["candidate"] for node in found["nodes"]}
    assert all(set(node["parents"]) <= known for node in found["nodes"])
    assert {node["candidate"] for node in found["nodes"] if node["main_line"]} == set(line)


def test_verdicts_count_everybody(archive):
    rows = verdicts(archive)

    assert sum(row["count"] for row in rows) == len(archive.candidates())
    for row in rows:
        assert sum(one["count"] for one in row["sentences"]) <= row["count"]
        times = [one["count"] for one in row["sentences"]]
        assert times == sorted(times, reverse=True)
        for one in row["sentences"]:
            assert archive.candidate(one["candidate"]).sentence == one["sentence"]


def test_a_trend_is_the_end_beside_two_thirds_of_the_way():
    def row(track, generation, score):
        return {
            "seed": 0, "track": track, "generation": generation, "score": score, "score_all": score
        }  # fmt: skip

    scores = [0.1, 0.2, 0.3, 0.4, 0.5, 0.9]
    rows = [row("search", place, value) for place, value in enumerate(scores)]
    found = stalled([*rows, row("control", 0, 0.2)])

    assert found["search"] == {"last": 0.9, "two_thirds": 0.4}
    assert found["control"] == {"last": 0.2, "two_thirds": 0.2}
    assert stalled([])["search"] == {"last": None, "two_thirds": None}


# The document.


@pytest.fixture(scope="module")
def document(folder):
    return tell(folder, workers=1, command="queuesmith evolve report run")


def test_a_document_is_json_and_has_every_part(document, folder):
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    with Archive.read(folder) as archive:
        number = document["champion"]["candidate"]
        assert document["champion"]["text"] == archive.candidate(number).text
        assert number == run.summary(archive, folder)["best"]["candidate"]
    assert document["champion"]["sha256"] == document["diagnosis"]["policy"]["sha256"]
    assert len(document["champion"]["situations"]) == 24
    assert document["judgement"] is None
    assert document["judgements"] == []
    assert document["warnings"] == []


def test_the_champion_scores_in_its_diagnosis_what_the_run_said(document):
    said = document["run"]["best"]
    row = document["diagnosis"]["parts"]["tuning"]["leaderboard"][0]

    assert row["score"] == pytest.approx(said["score"])
    assert (row["broken_guards"] == 0) == said["clean"]


def judged(sha256, *passed, spent=False):
    gates = [{"passed": one} for one in passed]
    return {"policy": {"sha256": sha256}, "gates": gates, "spent": spent}


def test_whoever_went_furthest_through_the_gates_is_the_champion(archive):
    rows = archive.rows("SELECT candidate FROM champions WHERE track = 'search' ORDER BY score")
    shas = {number: text_sha256(archive.candidate(number).text) for (number,) in rows}
    first, second = shas
    assert len(set(shas.values())) == 2

    for better, worse in ((first, second), (second, first)):
        judgements = [judged(shas[worse], True, False), judged(shas[better], True, True, None)]
        assert find_champion(archive, judgements) == better
        assert find_champion(archive, judgements[:1]) == worse
    stranger = judged("0" * 64, True, True)
    assert find_champion(archive, [stranger]) == find_champion(archive)


def test_the_judgement_of_a_policy_is_the_furthest_and_the_unspent_one():
    short, spent, fresh = (
        judged("a", True),
        judged("a", True, True, spent=True),
        judged("a", True, True),
    )

    assert judgement_of("a", [short, spent, fresh]) is fresh
    assert judgement_of("a", [short, spent]) is spent
    assert judgement_of("b", [short]) is None


def test_a_candidate_is_told_of_in_place_of_the_champion(folder):
    document = tell(folder, get_policy("sjf"), workers=1)

    assert document["champion"]["name"] == document["diagnosis"]["policy"]["name"] == "sjf"
    assert document["champion"]["candidate"] is None
    assert document["lineage"] is None


def test_without_its_traffic_a_run_is_told_of_from_its_archive(folder, monkeypatch):
    def gone(*_):
        raise TraceError("there is no file azure.csv; fetch it")

    monkeypatch.setattr(evolution, "tuning_traffic", gone)
    document = tell(folder)

    assert document["diagnosis"] is None
    assert document["champion"]["candidate"] is not None
    assert document["lineage"]["steps"] is not None
    assert "there is no file azure.csv" in document["warnings"][0]


def test_a_run_that_has_only_begun_is_told_of(tmp_path):
    run.begin(toy_config(TWO_LOADS), tmp_path)
    document = tell(tmp_path)

    assert document["champion"] is document["diagnosis"] is document["lineage"] is None
    assert document["generations"] == []
    assert len(document["warnings"]) == 2
    with pytest.raises(ConfigError, match="has no champion yet; go on with"):
        load_champion(tmp_path)


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"schema": "other"}', '{"schema": "queuesmith.judgement/1"}', "[" * 99_999]
)
def test_what_is_no_judgement_is_refused(tmp_path, text):
    folder = tmp_path / "judged" / "mine-12345678"
    folder.mkdir(parents=True)
    (folder / "judgement.json").write_text(text)

    with pytest.raises(ConfigError, match="is no judgement of `queuesmith evolve judge`"):
        read_judgements(tmp_path)


def test_a_text_that_was_put_into_an_archive_is_not_run(folder, tmp_path):
    copy = tmp_path / "run"
    copy.mkdir()
    for path in folder.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    loop = "    for _ in range(9):\n        pass\n"
    text = f"def waiting_key(request, engine):\n{loop}    return 0.0\n"
    with sqlite3.connect(copy / FILE) as connection:
        connection.execute(
            "UPDATE candidates SET text = ?, text_sha256 = ?", (text, text_sha256(text))
        )
    connection.close()

    with pytest.raises(PolicyError, match="a loop"):
        load_champion(copy)
    with pytest.raises(PolicyError, match="a loop"):
        tell(copy)

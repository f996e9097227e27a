"""The page of a run: what is in it, that it shows the document's numbers, and harms nobody."""

import json
import re
from copy import deepcopy
from html import unescape
from itertools import accumulate

import plotly.graph_objects as go
import pytest
from rich.console import Console

from evolve.told import finished_run
from queuesmith.errors import ConfigError
from queuesmith.evolve.diagnosis.evolution import tell
from queuesmith.evolve.page.dots import _front, _label_places, thinned
from queuesmith.evolve.page.evolution import _sections, render_evolution, write_evolution
from queuesmith.evolve.page.figures import label, progress_figure, short
from queuesmith.evolve.page.text import headline, print_diagnosis, sentences


@pytest.fixture(scope="module")
def document(tmp_path_factory):
    return tell(finished_run(tmp_path_factory.mktemp("page") / "run"), workers=1, command="again")


@pytest.fixture(scope="module")
def page(document):
    return render_evolution(document)


@pytest.fixture(scope="module")
def figures(document):
    return {figure.name: figure for figure in _sections(document)[0]}


def text_of(html):
    plain = unescape(re.sub("<[^>]+>", " ", html))
    return " ".join(plain.replace("\N{MINUS SIGN}", "-").replace("\xa0", " ").split())


def rows_of(html, name):
    """Return the cells of a table, as text, by rows."""
    table = re.search(f'<table id="{name}"[^>]*>(.*?)</table>', html, re.S)[1]
    return [
        [text_of(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.S)]
        for row in re.findall(r"<tr[^>]*>(.*?)</tr>", table, re.S)
    ]


def shown_gates(document):
    """The same run once judged."""
    judged = deepcopy(document)
    judged["judgements"] = [{"policy": "best_seed_3", "verdict": "fell short"}]
    judged["judgement"] = {
        "schema": "queuesmith.judgement/1",
        "verdict": "fell short at G3 validation: too little",
        "policy": {"name": "best_seed_3", "sha256": document["champion"]["sha256"]},
        "gates": [
            {"gate": "G2", "name": "tuning", "passed": True, "sentence": "+0.3 <b>"},
            {"gate": "G3", "name": "validation", "passed": False, "sentence": "too little"},
            {
                "gate": "G6",
                "name": "held-out",
                "passed": None,
                "sentence": "seen",
                "saw": {
                    "standings": [
                        {
                            "policy": "best_seed_3",
                            "policy_sha256": document["champion"]["sha256"],
                            "score": 0.123,
                            "low": None,
                            "high": None,
                            "broken_guards": 0,
                            "reasons": [],
                            "worse": 0,
                            "num_configurations": 2,
                        }
                    ]
                },
            },
        ],
    }
    return judged


def test_every_part_of_a_run_is_on_the_page(page):
    assert re.findall(r'<h2 id="([a-z-]+)">', page) == [
        *("progress", "leaderboard", "diagnosis", "tried", "policy", "lineage", "spent"),
        *("how-to-read", "again"),
    ]
    for name in ("progress", "windows", "population", "frontier", "descent"):
        assert f'<figure id="{name}">' in page
    assert "modelled traffic" in text_of(page[page.index("<body") : page.index("<main")])


def test_the_answer_and_all_sentences_come_first(page, document):
    head = text_of(page[page.index("<body") : page.index("<main")])

    for text in (headline(document), *sentences(document)):
        assert text in head


def test_leaderboards_show_gains_and_broken_guards_those_that_break_none_first(page, document):
    for part, values in document["diagnosis"]["parts"].items():
        _, *rows = rows_of(page, f"board-{part}")
        ordered = sorted(
            values["leaderboard"], key=lambda row: (row["broken_guards"] > 0, -row["score"])
        )
        assert len(rows) == len(ordered) >= 15
        for row, known in zip(rows, ordered, strict=True):
            assert row[2].startswith(f"{known['score']:+.3f} ")
            assert row[3] == str(known["broken_guards"])
        assert {"aged_sjf 0.001", "aged_sjf 0.1", "sjf", "hrrn", "edf", "fcfs"} <= {
            row[1] for row in rows
        }


def test_suggestions_are_on_the_page(page, document):
    shown = text_of(re.search('<ul class="answers" id="suggestions">(.*?)</ul>', page, re.S)[1])

    assert document["diagnosis"]["suggestions"]
    for one in document["diagnosis"]["suggestions"]:
        assert one["text"] in shown


def test_tables_of_the_diagnosis_have_a_row_for_each_configuration(page, document):
    for part, values in document["diagnosis"]["parts"].items():
        assert len(rows_of(page, f"paid-{part}")) == 1 + len(values["configurations"])
        assert len(rows_of(page, f"nearest-{part}")) == 1 + len(values["configurations"])
    won = rows_of(page, "wins")
    assert won[1][1].endswith(f"of {len(document['diagnosis']['parts']['tuning']['cells'])}")


def test_the_policy_its_table_and_its_steps_are_shown(page, document):
    assert document["champion"]["text"] in unescape(page)
    assert len(rows_of(page, "situations-low")) == len(rows_of(page, "situations-high")) == 13
    for step in document["lineage"]["steps"]:
        assert f"no. {step['parent']} → no. {step['child']}" in text_of(page)


def test_budget_and_verdicts_are_shown(page, document):
    budget = {row[0]: row[1:] for row in rows_of(page, "budget")}

    assert budget["evaluations"] == ["36.0", "no cap"]
    assert sum(int(row[3]) for row in rows_of(page, "verdicts")[1:]) == sum(
        one["count"] for one in document["verdicts"]
    )


def test_gates_and_held_out_scores_are_shown_once_there_are_any(page, document):
    judged = render_evolution(shown_gates(document))

    assert 'id="gates"' not in page
    assert "fell short at G3 validation" in text_of(judged[: judged.index("<main")])
    assert rows_of(judged, "gates")[1:] == [
        ["G2 tuning", "✓ passed", "+0.3 <b>"],
        ["G3 validation", "▲ fell short", "too little"],
        ["G6 held-out", "not run", "seen"],
    ]
    place, name, score, *_ = rows_of(judged, "board-held-out")[1]
    assert (place, name, score) == ("1", "best_seed_3", "+0.123 \N{EN DASH}")
    assert "What was judged is not the policy" not in judged


def test_a_judgement_of_another_policy_is_told_apart(document):
    other = {**document, "judgements": [{"policy": "mine", "verdict": "fell short at G0"}]}
    text = render_evolution(other)

    assert "What was judged is not the policy of this page" in text
    assert rows_of(text, "judged")[1:] == [["mine", "fell short at G0"]]
    assert "has not been judged" in headline(other)


def test_every_figure_is_what_plotly_takes(figures):
    for figure in figures.values():
        for panel in figure.panels:
            traces = [{**panel["styles"][trace["style"]], **trace} for trace in panel["data"]]
            for trace in traces:
                del trace["style"]
            go.Figure({"data": traces, "layout": panel["layout"]})


def test_progress_has_a_line_for_each_seed_and_track_and_the_best_classic(figures, document):
    lines = {trace["name"]: trace for trace in figures["progress"].panels[0]["data"]}

    assert {"search, seed 3", "control, seed 3"} <= set(lines)
    rows = [
        row
        for row in document["generations"]
        if row["track"] == "search" and row["score_all"] is not None
    ]
    assert lines["search, seed 3"]["x"] == [row["evaluations"] for row in rows]
    best_so_far = list(accumulate((row["score_all"] for row in rows), max))
    assert lines["search, seed 3"]["y"] == pytest.approx(best_so_far, rel=1e-3)
    clean = [
        row
        for row in document["diagnosis"]["parts"]["tuning"]["leaderboard"][1:]
        if not row["broken_guards"]
    ]
    [best] = [name for name in lines if name.startswith("best classic")]
    assert lines[best]["y"][0] == pytest.approx(max(row["score"] for row in clean), rel=1e-3)


def test_the_best_so_far_never_falls():
    row = {"track": "search", "seed": 1, "score": 0.0, "classic": 0.0}
    rows = [
        {**row, "evaluations": place, "candidate": place, "score_all": score}
        for place, score in enumerate([0.1, 0.3, None, 0.2, 0.4])
    ]

    [line] = progress_figure(rows, ()).panels[0]["data"]

    assert line["y"] == [0.1, 0.3, 0.3, 0.4]
    assert line["customdata"] == [0, 1, 1, 4]


def test_every_scored_candidate_is_a_dot(figures, document):
    for name in ("population", "frontier"):
        dots = [
            number
            for trace in figures[name].panels[0]["data"]
            if trace["style"] in (0, 1)
            for number in trace["customdata"]
        ]
        assert sorted(dots) == document["population"]["number"]


def test_the_heat_map_has_the_candidate_on_top(figures, document):
    cells = document["diagnosis"]["parts"]["validation"]["cells"]
    for panel, load in zip(figures["windows"].panels, ("knee", "heavy"), strict=True):
        trace = next(one for one in panel["data"] if one["meta"] == {"part": "validation"})
        mine = [cell["score"] for cell in cells if cell["load"] == load]
        assert trace["y"][0].startswith("champion")
        assert trace["z"][0] == pytest.approx(mine, rel=1e-2)
        assert len(trace["z"]) == len(trace["y"]) == 1 + len(document["diagnosis"]["classics"])


def test_a_front_leaves_out_what_is_beaten_in_both():
    points = [(3.0, 1.0), (1.0, 3.0), (2.0, 3.0), (2.0, 2.0), (4.0, 1.0), (1.0, 4.0)]

    assert _front(points) == [(1.0, 3.0), (2.0, 2.0), (3.0, 1.0)]
    assert _front([]) == []


def test_many_candidates_are_thinned_but_survivors_are_not():
    columns = {"number": list(range(1_000)), "kept": [row % 100 == 0 for row in range(1_000)]}
    shown, note = thinned(columns, most=110)

    assert len(shown) == 10 + 99
    assert {row for row in range(1_000) if row % 100 == 0} <= set(shown)
    assert note == " Of those that did not survive, one in 10 is drawn."
    assert thinned(columns, most=1_000) == (list(range(1_000)), "")


def test_names_that_would_lie_on_one_another_are_moved_or_left_out():
    rows = [{"policy": "name", "mean_ratio": 0.5, "p99_ratio": 1.0}] * 6
    apart = [{"policy": "name", "mean_ratio": 0.5, "p99_ratio": value} for value in (1.0, 2.0)]

    assert _label_places(rows, (0.0, 1.0), 2.0)[4:] == ["", ""]
    assert len(set(_label_places(rows, (0.0, 1.0), 2.0)[:4])) == 4
    assert _label_places(apart, (0.0, 1.0), 2.0) == ["middle right"] * 2
    assert _label_places(apart, (0.0, 0.505), 2.0) == ["middle left"] * 2


def test_labels_are_short():
    assert label("aged_sjf(SECONDS_PER_TOKEN=0.003)") == "aged_sjf 0.003"
    assert label("two(A=1, B=2)") == "two 1, 2"
    assert short("folder/log.csv") == "log"


def test_the_same_document_is_the_same_page(page, document):
    assert render_evolution(json.loads(json.dumps(document))) == page


def test_strings_of_an_archive_are_shown_and_not_obeyed(document):
    evil = deepcopy(document)
    attack = "</script><script>document.title='got'</script><img src=x onerror=alert(1)>"
    evil["run"]["name"] = evil["command"] = evil["run"]["stopped"] = attack
    evil["run"]["windows"]["sources"][0]["file"] = attack
    evil["champion"]["text"] = evil["champion"]["situations"][0]["request"] = attack
    evil["warnings"] = [attack]
    for step in evil["lineage"]["steps"]:
        step["note"], step["diff"] = attack, [f"+{attack}"]
    for node in evil["lineage"]["nodes"]:
        node["note"] = node["proposer"] = attack
    evil["population"]["proposer"] = [attack] * len(evil["population"]["proposer"])
    for row in evil["verdicts"]:
        row["sentences"] = [{"sentence": attack, "count": 2, "candidate": 1}]
    for one in evil["diagnosis"]["suggestions"]:
        one["text"] = attack
    for part in evil["diagnosis"]["parts"].values():
        for row in (*part["cells"], *part["configurations"]):
            row["source"] = attack
    evil["judgements"] = [{"policy": attack, "verdict": attack}]
    evil["judgement"] = {
        "policy": {"name": attack, "sha256": "x"},
        "verdict": attack,
        "gates": [{"gate": attack, "name": attack, "passed": True, "sentence": attack}],
    }
    text = render_evolution(evil)

    assert "<script>document" not in text
    assert "<img src=x" not in text


def test_without_a_diagnosis_the_page_has_the_rest(document):
    less = {**document, "diagnosis": None, "warnings": ["no traffic"]}
    text = render_evolution(less)

    assert re.findall(r'<h2 id="([a-z-]+)">', text)[:3] == ["progress", "tried", "policy"]
    assert "no traffic" in text


def test_a_run_without_anybody_has_a_page(document):
    empty = {
        **document,
        **dict.fromkeys(("diagnosis", "champion", "lineage", "judgement")),
        "generations": [],
        "population": {name: [] for name in document["population"]},
        "verdicts": [],
    }

    assert "The run has found nothing yet." in render_evolution(empty)


def test_a_page_that_cannot_be_written_is_refused(document, tmp_path):
    with pytest.raises(ConfigError, match="cannot be written"):
        write_evolution(document, tmp_path)


def test_a_diagnosis_in_a_terminal_has_suggestions_totals_and_losses(document, capsys):
    print_diagnosis(document["diagnosis"], Console(width=100, highlight=False))
    said = " ".join(capsys.readouterr().out.split())

    for one in document["diagnosis"]["suggestions"]:
        assert one["text"] in said
    assert "tuning windows policy gain guards broken wins" in said
    assert "Lost to a classic on" in said
    assert said.endswith("Traffic: modelled; held-out windows were not opened.")

"""The page of a study: what is in it, and that each number is that of a table beside it."""

import json
import math
import re
from copy import deepcopy
from html import unescape

import plotly.graph_objects as go
import pytest
from pyarrow import csv, parquet

from queuesmith.errors import ConfigError
from queuesmith.report.atlas import _sections, render_atlas, write_atlas
from queuesmith.report.atlas_sums import published_tables, reversal_tables, strongest
from queuesmith.report.atlas_tables import plain_table, winner_colors, winners_table
from queuesmith.report.frame import prose
from queuesmith.report.parts import RHO
from queuesmith.study import atlas as atlas_module
from queuesmith.study.atlas import abridge, make_atlas, tables, write_tables
from queuesmith.study.published import SOURCES as PUBLISHED
from queuesmith.study.published import compare_with_published, published
from queuesmith.study.published_findings import findings_sentence, published_findings, region_table
from study.synthetic import ANALYSED, FLAT, H100, MAIN, POLICIES, SOURCES, Truth, synthetic_study

DRAWS = 400


@pytest.fixture(scope="module")
def document():
    return make_atlas(synthetic_study(), command="queuesmith study report runs/a", draws=DRAWS)


@pytest.fixture(scope="module")
def page(document):
    return render_atlas(document)


@pytest.fixture(scope="module")
def figures(document):
    return {figure.name: figure for figure in _sections(document)[0]}


def text_of(html):
    plain = unescape(re.sub("<[^>]+>", " ", re.sub("<small>|</small>|<b>|</b>", " ", html)))
    return " ".join(plain.replace("\N{MINUS SIGN}", "-").replace("\xa0", " ").split())


def rows_of(html, name):
    """Return the cells of a table, as text, by rows."""
    table = re.search(f'<table id="{name}"[^>]*>(.*?)</table>', html, re.S)[1]
    return [
        [text_of(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.S)]
        for row in re.findall(r"<tr[^>]*>(.*?)</tr>", table, re.S)
    ]


# The page.


def test_the_map_comes_first_then_what_carries_over_then_facts(page, document):
    body = page[page.index("<body") :]
    places = [body.index(f'id="{name}"') for name in ("winners", "carry-ttft_mean", "orders")]
    facts = [prose(answer["text"]) for answer in document["answers"][1:]]

    assert body.index('data-control="metric"') < places[0]
    assert places == sorted(places)
    assert all(places[1] < body.index(f"<li>{fact}") < places[2] for fact in facts)


def test_every_part_is_on_the_page(page):
    assert re.findall(r'<h2 id="([a-z-]+)">', page) == [
        *("who-wins", "carry", "orders", "reversals", "windows", "parts", "sensitivity"),
        *("how-to-read", "again"),
    ]
    for name in ("agreement", "samples", "variance"):
        assert f'<figure id="{name}">' in page
    for metric in ANALYSED:
        assert len(rows_of(page, f"carry-{metric}")) == 1 + 5
    # Once for engines with a GPU, and once more with the toy.
    assert page.count("Kendall's W over sources") == 2


def test_equal_studies_give_equal_bytes(document, page):
    again = make_atlas(synthetic_study(), command="queuesmith study report runs/a", draws=DRAWS)

    assert render_atlas(again) == page


def test_the_page_reaches_nowhere(page):
    ours = page.replace(page[page.rindex("<script>") :], "")

    assert "default-src 'none'" in page
    assert not re.search(r'(?:src|href)="(?!data:|#)', ours)


def test_names_of_strangers_stay_text(document):
    evil = "<img src=x onerror=alert(1)>"
    hostile = json.loads(json.dumps(document).replace('"chat"', json.dumps(evil)))
    hostile["study"]["title"] = hostile["study"]["name"] = evil
    hostile["command"] = hostile["answers"][0]["text"] = evil

    page = render_atlas(hostile)

    assert "<img" not in page
    assert "&lt;img" in page


def test_a_page_that_cannot_be_written_is_one_clear_line(document, tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(ConfigError, match=r"the page cannot be written to .*; name another file"):
        write_atlas(document, tmp_path / "file" / "atlas.html")


def test_the_download_is_the_answers(page, document):
    data = re.search(r'id="queuesmith-data">(.*?)</script>', page, re.S)[1]

    assert json.loads(data)["answers"] == document["answers"]


# Who wins where.


def test_winners_are_those_of_the_truth(document):
    rows = rows_of(winners_table(document["summary"]), "winners")

    heads, first = rows[0], rows[1:6]
    assert heads == ["source", f"light {RHO} 0.3", f"knee {RHO} 0.95", f"heavy {RHO} 1.5"]
    assert first[0] == ["mean TTFT H100"]
    for row, winner in zip(first[1:], ("hrrn", "hrrn", "spjf", ""), strict=True):
        assert row[1] == "idle"
        if winner:
            assert re.fullmatch(rf"(▲ )?{winner} -[45]\d %, 10/10", row[2])
            assert re.fullmatch(rf"(▲ )?{winner} -[45]\d %, 10/10", row[3])
            assert ("▲" in row[2]) == (winner == "spjf")  # its p99 TTFT is worse than fcfs's
    assert [row[0] for row in first[1:]] == [
        "chat 10 real windows",
        "chat_too 10 real windows",
        "code 10 real windows",
        "batch 10 modelled windows",
    ]


def test_each_engine_and_metric_has_a_body_of_its_own(document):
    html = winners_table(document["summary"])

    conditions = [json.loads(unescape(one)) for one in re.findall(r'data-when="([^"]+)"', html)]
    assert [one["engine"] for one in conditions] == [H100] * 5 + [FLAT] * 5


def test_modelled_windows_are_dashed_and_unsure_ones_pale(document):
    html = winners_table(document["summary"])

    for row in re.findall(r"<tr><th.*?</tr>", html, re.S):
        for classes in re.findall(r'<td class="([^"]*)" ', row):
            if classes != "none":
                assert ("dashed" in classes) == ("batch" in row)
    assert 'class="won"' in html
    assert "pale" in html


def test_ties_with_the_reference_are_nobodys_win(document):
    summary = deepcopy(document["summary"])
    for cell in summary["cells"]:
        mean = cell["metrics"]["ttft_mean"]["mean"]
        mean[POLICIES.index("fcfs")] = mean[POLICIES.index("hrrn")]

    rows = rows_of(winners_table(summary), "winners")

    assert rows[2][2].startswith("fcfs = hrrn")
    assert (
        "won"
        not in re.search(r'<td[^>]*class="([^"]*)"[^>]*>fcfs = hrrn', winners_table(summary))[1]
    )


def test_a_bundle_that_is_better_is_told_beside_the_best_order(document):
    summary = deepcopy(document["summary"])
    summary["policies"]["hrrn"] = "bundle"

    rows = rows_of(winners_table(summary), "winners")

    assert re.fullmatch(r"▲ spjf -3\d %, \d+/10 hrrn \(bundle\) better", rows[2][2])
    assert "hrrn" not in winner_colors(summary)


def test_what_was_not_run_or_is_undefined_says_so(document):
    summary = deepcopy(document["summary"])
    summary["cells"] = [
        cell for cell in summary["cells"] if (cell["load"], cell["source"]) != ("knee", "chat")
    ]
    for cell in summary["cells"]:
        if cell["source"] == "code" and cell["load"] != "light":
            cell["metrics"]["ttft_mean"]["mean"] = [None] * len(POLICIES)

    rows = rows_of(winners_table(summary), "winners")

    assert rows[2][2] == "not run"
    assert rows[4][2:] == ["undefined", "undefined"]


# Figures.


def test_plotly_accepts_every_figure(figures):
    for figure in figures.values():
        for panel in figure.panels:
            for trace in panel["data"][:20]:
                whole = {**panel["styles"][trace["style"]], **trace}
                del whole["style"]
                shown = {
                    name: figure.columns[value["column"]]
                    if isinstance(value, dict) and "column" in value
                    else value
                    for name, value in whole.items()
                }
                go.Figure(data=[shown], layout=panel["layout"])


def test_heat_maps_show_each_pair_once_with_the_number_of_the_table(figures, document):
    panel = figures["agreement"].panels[0]
    columns = figures["agreement"].columns
    style = panel["styles"][0]
    across, down = (columns[style[name]["column"]] for name in "xy")
    rows = {
        (row["engine"], row["load"], row["metric"], row["a"], row["b"]): row
        for row in document["analysis"]["agreement"]
        if row["axis"] == "source" and row["tau_b"] is not None
    }

    seen = 0
    assert (across, down) == (list(SOURCES[:-1]), list(SOURCES[1:]))
    for trace in panel["data"]:
        meta = trace["meta"]
        for y, line in enumerate(trace["z"]):
            for x, value in enumerate(line):
                assert value is None or x <= y
                if value is not None:
                    key = (meta["engine"], meta["load"], meta["metric"], across[x], down[y])
                    assert value == pytest.approx(rows[key]["tau_b"], abs=0.005)
                    assert trace["customdata"][y][x][3] == 10
                    seen += 1
    assert seen == len(rows) > 0


def test_panels_follow_what_they_are_not_about(figures):
    assert [panel["follows"] for panel in figures["agreement"].panels] == [
        ["engine", "metric", "load"],
        ["engine", "metric", "source"],
        ["metric", "load", "source"],
        ["engine", "load", "source"],
    ]


def test_a_study_of_one_engine_has_no_heat_map_of_engines():
    lone = make_atlas(
        synthetic_study(Truth(num_windows=3, engines=(H100,), predictions=(MAIN,))), draws=100
    )

    panels = _sections(lone)[0][0].panels
    assert [panel["layout"]["title"]["text"] for panel in panels] == [
        "Between sources",
        "Between loads",
        "Between metrics",
    ]


def test_variance_bars_add_up_to_the_whole(figures):
    bars = figures["variance"].panels[0]["data"]

    for place in range(len(bars[0]["y"])):
        assert sum(bar["x"][place] or 0 for bar in bars) == pytest.approx(1, abs=0.01)


def test_curves_end_where_all_windows_recover_all(figures):
    figure = figures["samples"]
    best = figure.panels[0]["data"]

    assert len(best) > 0
    for trace in best:
        assert figure.columns[trace["y"]["column"]][-1] == 1
        assert figure.columns[trace["x"]["column"]][-1] == 10


# Reversals.


def test_a_line_of_a_reversal_has_both_sides(document):
    record = next(
        record
        for record in document["analysis"]["reversals"]
        if record["class"] == "supported"
        and record["metric"] == "ttft_mean"
        and (record["axis"], record["a"], record["b"]) == ("source", "chat", "code")
        and (record["engine"], record["load"]) == (H100, "knee")
    )
    html = reversal_tables([record | {"sure": True, "p_adjusted": 0.004}])

    line = rows_of(html, "reversals-source")[1]
    assert line[:3] == ["chat and code", "knee, H100", "mean TTFT"]
    for side, winner, shown in (("in_a", "hrrn", line[3]), ("in_b", "spjf", line[4])):
        assert shown.startswith(f"{winner} by {100 * record[side]['margin']:.1f}")
        assert shown.endswith("10/10 windows")
    assert "1 sure, 0 not sure" in html


def test_only_sure_reversals_are_shown_each_metric_in_turn(document):
    records = [
        record | {"sure": record["class"] == "supported" and record["policy_b"] != "ljf"}
        for record in document["analysis"]["reversals"]
    ]
    shown = strongest(records, "source", limit=100)

    metrics = [record["metric"] for record in shown]
    assert len(set(metrics)) > 1
    assert len(set(metrics[: len(set(metrics))])) == len(set(metrics))
    pairs = [
        (record["metric"], frozenset((record["policy_a"], record["policy_b"]))) for record in shown
    ]
    assert len(set(pairs)) == len(pairs)
    assert all(record["sure"] for record in shown)


def test_without_reversals_the_page_says_so():
    assert reversal_tables([]).count("0 sure, 0 not sure") == 3


# Against what was published.


@pytest.fixture(scope="module")
def same_sources():
    """A study of the published sources, in which Azure and Bailian are alike, BurstGPT is code."""
    study = synthetic_study(Truth(sources=("chat", "chat_too", "code")))
    names = dict(zip(("chat", "chat_too", "code"), PUBLISHED, strict=True))
    for name in ("runs", "windows"):
        table = getattr(study, name)
        column = [names[source] for source in table["source"].to_pylist()]
        place = table.column_names.index("source")
        setattr(study, name, table.set_column(place, "source", [column]))
    study.document = json.loads(
        re.sub(r'"(chat_too|chat|code)"', lambda m: f'"{names[m[1]]}"', json.dumps(study.document))
    )
    return make_atlas(study, draws=DRAWS)


def test_published_findings_are_checked_against_the_runs(same_sources):
    found = {
        (one["finding"], one["metric"]): one["survives"]
        for one in published_findings(same_sources["analysis"])
    }

    assert found["Azure and Bailian agree, BurstGPT is different", "ttft_mean"] is True
    assert found["Every reversal involves BurstGPT", "ttft_mean"] is True
    assert found["Some policies change places between sources", "ttft_mean"] is True
    assert same_sources["answers"][1]["topic"] == "published"


def test_a_finding_that_does_not_hold_is_named(same_sources):
    """With the names of two sources exchanged it is Azure that is different."""
    first, last = PUBLISHED[0], PUBLISHED[2]
    text = json.dumps(same_sources["analysis"])
    swapped = json.loads(text.replace(first, "!").replace(last, first).replace("!", last))

    found = published_findings(swapped)

    lost = {one["finding"] for one in found if one["survives"] is False}
    assert {
        "Azure and Bailian agree, BurstGPT is different",
        "Every reversal involves BurstGPT",
    } <= lost
    assert "not: 'Azure and Bailian agree, BurstGPT is different' by mean TTFT" in (
        findings_sentence(found, [])
    )


def test_published_numbers_stand_beside_ours():
    ours = {key: value for key, value in published().items() if key[0].startswith("tau_b")}
    ours["tau_b", "KNEE", "azure-bailian"] = 0.5
    rows = compare_with_published(ours)
    rows = [row | {"ours": None if math.isnan(row["ours"]) else row["ours"]} for row in rows]

    heads, lines = region_table(rows)
    html = published_tables([], rows)

    assert heads == ["region", "azure-bailian", "azure-burstgpt", "bailian-burstgpt"]
    assert dict(zip(heads, lines[2], strict=True))["azure-bailian"] == "+0.96 / +0.50"
    assert "+0.96 / +0.50" in rows_of(html, "published-regions")[3]
    assert "17 of 18 tau-b lie within the published intervals" in (findings_sentence([], rows))


def test_a_study_of_other_sources_is_not_compared(document, page):
    assert document["findings"] == document["published"] == []
    assert 'id="published"' not in page


# Tables.


def test_tables_hold_what_the_page_shows(tmp_path, monkeypatch):
    monkeypatch.setattr(atlas_module, "LONGEST", 100)
    atlas = make_atlas(synthetic_study(Truth(num_windows=4)), draws=100)

    paths = {path.name: path for path in write_tables(atlas, tmp_path)}

    assert set(paths) == set(atlas["tables"].values())
    agreement = parquet.read_table(paths["agreement.parquet"]).to_pylist()
    assert len(agreement) == len(atlas["analysis"]["agreement"])
    assert agreement[0]["tau_b"] == atlas["analysis"]["agreement"][0]["tau_b"]
    counts = csv.read_csv(paths["reversal_counts.csv"]).to_pylist()
    assert [row["supported"] for row in counts] == [
        row["supported"] for row in atlas["analysis"]["reversal_counts"]
    ]
    short = abridge(atlas)
    assert "agreement" not in short["analysis"]
    assert "reversal_counts" in short["analysis"]
    assert json.loads(json.dumps(short, allow_nan=False)) == short


def test_sides_of_a_reversal_are_columns(document):
    table = tables(document)["reversals"]

    assert {"in_a.margin", "in_b.low", "drivers.prompt_len.share"} <= set(table.column_names)


def test_a_folder_that_cannot_be_written_is_one_clear_line(document, tmp_path):
    with pytest.raises(ConfigError, match=r"cannot be written: .*; choose another folder"):
        write_tables(document, tmp_path / "missing")


def test_tables_escape_what_they_show():
    html = plain_table(("a", "b"), [["<i>", "-3 %"]], "t")

    assert "<i>" not in html
    assert "&minus;3&nbsp;%" in html
    assert plain_table(("a",), [], "t") == '<p class="none">Nothing of the kind in this study.</p>'

"""The page of a plan: what it says, what plotly makes of it, and what a browser draws."""

import json
import re
from dataclasses import replace
from html import unescape
from io import StringIO

import numpy as np
import plotly.graph_objects as go
import pytest
from rich.console import Console

from queuesmith.config import EngineConfig, Slo
from queuesmith.engine.presets.step_time import Preset, StepTime
from queuesmith.planning import plan
from queuesmith.report.plan import cells, looks, print_plan, render_plan, write_plan
from queuesmith.report.plan_figures import build_plan_figures
from queuesmith.traces.trace import Origin, Trace

ONE_SEAT = Preset(
    "one_seat",
    "One seat, 1 s a step",
    StepTime(a=1.0, provenance="made up"),
    EngineConfig(
        max_num_seqs=1, max_num_batched_tokens=64, max_model_len=1000, instant_prefill=True
    ),
)
FOUR_SEATS = replace(ONE_SEAT, name="four_seats", config=replace(ONE_SEAT.config, max_num_seqs=4))


def make_plan(slo, source="<i>log</i>.csv", **options):
    rng = np.random.default_rng(0)
    length = rng.integers(1, 12, 480)
    times = np.cumsum(rng.exponential(size=480))
    trace = Trace(times, 5 * length, length, origin=Origin(source=source, sha256="ab" * 32))
    given = {"engine": [ONE_SEAT, FOUR_SEATS], "policies": "fcfs,sjf,srpt_oracle", **options}
    return plan(trace, slo=slo, attainment=0.9, window_len=60, **given).document


@pytest.fixture(scope="module")
def documents():
    """Return a plan with capacities, one without any, and one that nothing breaks."""
    return {
        "found": make_plan(Slo(ttft=12.0, e2el=30.0)),
        "unreachable": make_plan(Slo(e2el=2.0), policies="sjf", engine=ONE_SEAT),
        "above": make_plan(Slo(ttft=1e6), policies="sjf", engine=ONE_SEAT, num_windows=1),
    }


def figures_of(document):
    return build_plan_figures(document, looks(document)[1])


@pytest.mark.parametrize("name", ["found", "unreachable", "above"])
def test_plotly_takes_every_figure(documents, name):
    for figure in figures_of(documents[name]):
        assert len(figure.panels) == len(documents[name]["config"]["engines"])
        for panel in figure.panels:
            go.Figure(panel)


@pytest.mark.parametrize("name", ["found", "unreachable", "above"])
def test_the_same_plan_gives_the_same_bytes_and_the_answer_comes_first(documents, name, tmp_path):
    document = documents[name]
    page = render_plan(document)
    write_plan(document, tmp_path / "page.html")

    assert (tmp_path / "page.html").read_bytes() == page.encode()
    heading = unescape(re.search("<h1>(.*?)</h1>", page)[1]).replace("\xa0", " ")
    assert heading == document["answer"]["sentences"][0]


def test_the_page_fetches_nothing_and_shows_markup_as_text(documents):
    page = render_plan(documents["found"])
    shell = page[: page.index("<script>")] + page[page.index("<body") : page.index("<script type")]

    assert "<i>log</i>" not in page
    assert "&lt;i&gt;log&lt;/i&gt;.csv" in page
    assert not re.search(r'(src|href)="(?!data:)', shell)
    assert "default-src 'none'" in page


def test_the_document_in_the_page_is_the_document(documents):
    page = render_plan(documents["found"])
    data = re.search('id="queuesmith-data">(.*?)</script>', page)[1]

    assert json.loads(data) == documents["found"]


def test_attainment_is_drawn_at_every_load_that_was_probed(documents):
    document = documents["found"]
    attainment = figures_of(document)[1]

    for engine, panel in zip(document["config"]["engines"], attainment.panels, strict=True):
        for line in panel["data"]:
            mine = [
                point
                for point in document["probes"]
                if (point["engine"], point["policy"]) == (engine["name"], line["meta"]["policy"])
            ]
            assert line["x"] == pytest.approx([point["rate"] for point in mine], rel=1e-3)
            assert line["y"] == pytest.approx([point["attainment"] for point in mine], rel=1e-4)


def test_a_capacity_that_was_not_found_is_none_or_more_and_a_star_marks_what_does_not_last(
    documents,
):
    none, more = (cells(documents[name]["capacities"][0]) for name in ("unreachable", "above"))

    assert none[0] == "at no rate"
    assert none[-1] == "e2el 100 %"
    assert more[0] == f"*>{documents['above']['capacities'][0]['held']:.3f}"
    assert more[-1] == "-"


@pytest.mark.parametrize("width", [60, 80, 140])
def test_the_terminal_shows_the_answer_and_every_policy_in_its_width(documents, width):
    console = Console(file=StringIO(), width=width, force_terminal=False)
    print_plan(documents["found"], console)
    lines = console.file.getvalue().splitlines()

    assert max(map(len, lines)) <= width
    for row in documents["found"]["capacities"]:
        assert any(line.startswith(row["policy"][:6]) for line in lines)
    words = " ".join(" ".join(lines).split())
    answer = documents["found"]["answer"]
    assert words.startswith(" ".join(answer["traffic"]))
    assert words.index(answer["sentences"][0]) < words.index("real traffic: ")


# In a browser


@pytest.mark.browser
@pytest.mark.parametrize("name", ["found", "unreachable", "above"])
def test_everything_is_drawn_and_nothing_goes_wrong(documents, open_in_browser, name):
    dom = open_in_browser(render_plan(documents[name]))
    root = re.search("<html[^>]*>", dom)[0]
    body = dom[dom.index("<body") : dom.index('id="queuesmith-data"')]
    panels = re.split(r'data-figure="[a-z]+" data-panel="\d"', body)[1:]

    assert "data-errors" not in root
    assert len(panels) == 3 * len(documents[name]["config"]["engines"])
    assert f'data-drawn="{len(panels)}"' in root
    for panel in panels:
        assert "xtick" in panel


@pytest.mark.browser
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_nothing_looks_wrong(documents, complaints, width, dark):
    assert complaints(render_plan(documents["found"]), width, dark) == {}

"""The page of a check and its table in a terminal: only what the document says, and all of it."""

import json
import re
from dataclasses import replace
from html import unescape
from io import StringIO

import numpy as np
import plotly.graph_objects as go
import pytest
from rich.console import Console

from queuesmith.checking import check
from queuesmith.config import EngineConfig
from queuesmith.engine import simulate
from queuesmith.engine.presets.step_time import Preset, StepTime
from queuesmith.report.check import (
    build_check_figures,
    print_check,
    render_check,
    table_rows,
    write_check,
)
from queuesmith.traces.measured import clean_measured
from queuesmith.traces.trace import Origin, Trace

ENGINE = Preset(
    "made_up",
    "Made up",
    StepTime(a=0.01, b2=1e-4, provenance="made up"),
    EngineConfig(max_num_seqs=8, max_num_batched_tokens=512, max_model_len=4000),
)


def make_check(num_requests, factor=2.0, source="<i>log</i>.csv"):
    rng = np.random.default_rng(0)
    gaps = rng.exponential(0.4, num_requests)
    gaps[num_requests // 2 :] /= 3
    trace = Trace(
        np.cumsum(gaps),
        rng.integers(20, 900, num_requests),
        rng.integers(1, 20, num_requests),
        origin=Origin(source=source, sha256="ab" * 32, reader="table"),
    )
    rows = simulate(trace, engine=ENGINE).requests
    ttft, e2el = rows.first_token_ts - rows.arrival_time, rows.last_token_ts - rows.arrival_time
    measured, _ = clean_measured(
        trace.output_len,
        ttft=factor * ttft,
        e2el=factor * e2el,
        queued_time=rows.scheduled_ts - rows.arrival_time,
    )
    return check(replace(trace, measured=measured), engine=ENGINE, within=0.1)


@pytest.fixture(scope="module")
def checks():
    """Return a check of a long log, of a very short one, and of one that fits."""
    return {"long": make_check(2400), "short": make_check(2), "fits": make_check(300, 1.0)}


@pytest.mark.parametrize("name", ["long", "short", "fits"])
def test_plotly_takes_every_figure(checks, name):
    figures = build_check_figures(checks[name].document, checks[name].requests)

    for figure in figures:
        assert len(figure.panels) >= 2
        for panel in figure.panels:
            go.Figure(panel)


def test_a_point_is_a_request_and_large_clouds_are_thinned_and_say_so(checks):
    requests = checks["fits"].requests
    _, clouds = build_check_figures(checks["fits"].document, requests)
    points = clouds.panels[0]["data"][0]

    assert points["x"] == pytest.approx(requests["measured_ttft"].to_pylist(), rel=5e-3)
    assert points["x"] == points["y"]
    assert "are drawn" not in clouds.caption
    _, thinned = build_check_figures(checks["long"].document, checks["long"].requests)
    assert len(thinned.panels[0]["data"][0]["x"]) == 2000
    assert "2,000 of 2,400 requests are drawn" in thinned.caption


def test_distributions_end_at_the_least_and_the_largest(checks):
    requests = checks["long"].requests
    distributions, _ = build_check_figures(checks["long"].document, requests)

    for line, side in zip(distributions.panels[0]["data"], ("measured", "simulated"), strict=True):
        values = requests[f"{side}_ttft"].to_numpy()
        assert line["name"] == side
        assert [line["x"][0], line["x"][-1]] == pytest.approx(
            [values.min(), values.max()], rel=1e-3
        )


@pytest.mark.parametrize("name", ["long", "short", "fits"])
def test_the_same_check_gives_the_same_bytes_and_the_verdict_comes_first(checks, name, tmp_path):
    document, requests = checks[name].document, checks[name].requests
    page = render_check(document, requests)
    write_check(document, requests, tmp_path / "page.html")

    assert (tmp_path / "page.html").read_bytes() == page.encode()
    heading = unescape(re.search("<h1>(.*?)</h1>", page)[1]).replace("\xa0", " ")
    assert heading.replace("\N{MINUS SIGN}", "-") == document["answer"]["sentences"][0]


def test_the_page_fetches_nothing_and_shows_markup_as_text(checks):
    page = render_check(checks["long"].document, checks["long"].requests)
    shell = page[: page.index("<script>")] + page[page.index("<body") : page.index("<script type")]

    assert "<i>log</i>" not in page
    assert "&lt;i&gt;log&lt;/i&gt;.csv" in page
    assert not re.search(r'(src|href)="(?!data:)', shell)
    assert "default-src 'none'" in page


def test_the_document_in_the_page_is_the_document(checks):
    page = render_check(checks["long"].document, checks["long"].requests)
    data = re.search('id="queuesmith-data">(.*?)</script>', page)[1]

    assert json.loads(data) == checks["long"].document


def test_every_error_has_its_line_in_the_page(checks):
    document = checks["long"].document
    page = render_check(document, checks["long"].requests)

    assert len(document["loads"]) == 4
    assert page.count('<th scope="row">') >= len(document["errors"])
    for load in document["loads"]:
        for cells in table_rows(document, load["load"]):
            assert f'<th scope="row">{cells[0]}</th>' in page


def test_a_log_that_is_too_short_shows_dashes_and_no_interval(checks):
    rows = {cells[0]: cells[1:] for cells in table_rows(checks["short"].document, "all")}

    assert rows["TTFT mean"][3] == "-50 %"
    assert rows["TTFT mean"][4] == ""
    assert rows["TTFT p99"] == ("2", "-", "-", "-", "")


@pytest.mark.parametrize("width", [72, 80, 140])
@pytest.mark.parametrize("name", ["long", "short", "fits"])
def test_the_terminal_shows_the_verdict_and_every_number_in_its_width(checks, name, width):
    document = checks[name].document
    console = Console(file=StringIO(), width=width, force_terminal=False)
    print_check(document, console)
    lines = console.file.getvalue().splitlines()

    assert max(map(len, lines)) <= width
    assert " ".join(lines[:6]).startswith(document["answer"]["sentences"][0][:60])
    for cells in table_rows(document, "all"):
        assert any(line.startswith(cells[0]) and line.count(cells[3]) for line in lines)
    for warning in document["warnings"]:
        assert f"warning: {warning[:40]}" in "\n".join(lines)


@pytest.mark.browser
@pytest.mark.parametrize("name", ["long", "short"])
def test_everything_is_drawn_and_nothing_goes_wrong(checks, open_in_browser, name):
    one = checks[name]
    dom = open_in_browser(render_check(one.document, one.requests))
    root = re.search("<html[^>]*>", dom)[0]
    body = dom[dom.index("<body") : dom.index('id="queuesmith-data"')]
    panels = re.split(r'data-figure="[a-z-]+" data-panel="\d"', body)[1:]

    figures = build_check_figures(one.document, one.requests)
    assert "data-errors" not in root
    assert len(panels) == sum(len(figure.panels) for figure in figures)
    assert f'data-drawn="{len(panels)}"' in root
    for panel in panels:
        assert "xtick" in panel


@pytest.mark.browser
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_nothing_looks_wrong(checks, complaints, width, dark):
    one = checks["long"]
    assert complaints(render_check(one.document, one.requests), width, dark) == {}

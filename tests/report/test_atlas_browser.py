"""The page of a study in a real browser: figures are drawn, tables filled, choices followed."""

import re

import pytest

from queuesmith.report.atlas import render_atlas
from queuesmith.study.atlas import make_atlas
from study.synthetic import FLAT, H100, synthetic_study

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def html():
    return render_atlas(make_atlas(synthetic_study(), draws=400))


@pytest.fixture(scope="module")
def dom(html, open_in_browser):
    return open_in_browser(html)


def panels(dom):
    """Return the drawn part of each panel by (figure, panel)."""
    body = dom[dom.index("<body") : dom.index('id="queuesmith-data"')]
    pieces = re.split(r'data-figure="([a-z]+)" data-panel="(\d)"', body)[1:]
    return {
        (pieces[row], int(pieces[row + 1])): pieces[row + 2].split("<figcaption>")[0]
        for row in range(0, len(pieces), 3)
    }


def pressed(html, presses):
    """Return the page without its policy, so that a script of ours may press its buttons."""
    html = re.sub('<meta http-equiv="Content-Security-Policy"[^>]*>', "", html)
    script = (
        f"<script>addEventListener('load', () => setTimeout(() => {{{presses}}}, 200))</script>"
    )
    return html.replace("</body>", f"{script}</body>")


def test_nothing_goes_wrong(dom):
    root = re.search("<html[^>]*>", dom)[0]

    assert "data-errors" not in root
    assert 'data-drawn="7"' in root


def test_every_panel_is_drawn(dom):
    drawn = panels(dom)

    assert set(drawn) == {
        *(("agreement", panel) for panel in range(4)),
        *(("samples", panel) for panel in range(2)),
        ("variance", 0),
    }
    for place, piece in drawn.items():
        assert piece.count('class="main-svg"') >= 2, place
        assert re.search(r'class="(?:hm|trace (?:scatter|bars))', piece), place
        assert "nothing to show here" not in piece, place


def test_heat_maps_print_their_numbers(dom):
    """chat and chat_too rank alike by construction."""
    sources = panels(dom)["agreement", 0]

    assert re.search(r">1\.00</text>", sources)
    assert "H100, mean TTFT, knee" in sources


@pytest.fixture(scope="module")
def chosen(html, open_in_browser):
    """The page after another engine, and then a load at which nothing queues, were chosen."""
    presses = "".join(
        f"const {choice} = document.querySelector('#agreement select[data-choice={choice}]');"
        f"{choice}.value = '{value}'; {choice}.dispatchEvent(new Event('change'));"
        for choice, value in (("engine", FLAT), ("load", "light"))
    )
    return open_in_browser(pressed(html, presses))


def test_the_map_shows_the_engine_that_is_chosen(dom, chosen):
    def shown(page):
        bodies = re.findall(r"<tbody([^>]*data-when[^>]*)>", page)
        return ["other" not in attributes for attributes in bodies]

    # one body for each metric of each engine
    assert shown(dom) == [True] + [False] * 9
    assert shown(chosen) == [False] * 5 + [True] + [False] * 4
    assert "data-errors" not in re.search("<html[^>]*>", chosen)[0]


def test_figures_follow_what_they_are_not_about(chosen):
    assert "constant_1ms, mean TTFT, light" in panels(chosen)["agreement", 0]
    assert "constant_1ms, mean TTFT, chat" in panels(chosen)["agreement", 1]
    # what compares engines does not follow the engine
    assert "constant_1ms, " not in panels(chosen)["agreement", 2]
    values = re.findall(r"<select[^>]*data-choice=\"engine\"", chosen)
    assert len(values) == 3


def test_where_there_is_nothing_to_compare_the_figure_says_so(chosen):
    assert "nothing to show here" in panels(chosen)["agreement", 0]
    assert "nothing to show here" not in panels(chosen)["agreement", 1]


def test_tables_are_filled(dom):
    for name in ("winners", "carry-ttft_mean"):
        table = re.search(f'<table id="{name}"[^>]*>(.*?)</table>', dom, re.S)[1]
        assert table.count("<tr") > 1, name
    for choice in ("engine", "metric", "load", "source"):
        assert f'data-choice="{choice}"' in dom
    assert f'value="{H100}"' in dom


def test_an_error_in_the_page_is_seen(html, open_in_browser):
    broken = html.replace('id="queuesmith-drawing">', 'id="queuesmith-drawing">{', 1)

    root = re.search("<html[^>]*>", open_in_browser(broken))[0]

    assert "data-errors" in root
    assert "data-drawn" not in root


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_nothing_looks_wrong(html, complaints, width, dark):
    assert complaints(html, width, dark) == {}

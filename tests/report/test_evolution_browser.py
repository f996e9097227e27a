"""The page of a run in a real browser: figures are drawn, tables filled, choices followed."""

import re

import pytest

from evolve.told import finished_run
from queuesmith.evolve.diagnosis.evolution import tell
from queuesmith.evolve.page.evolution import render_evolution

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def html(tmp_path_factory):
    return render_evolution(tell(finished_run(tmp_path_factory.mktemp("page") / "run"), workers=1))


@pytest.fixture(scope="module")
def dom(html, open_in_browser):
    return open_in_browser(html)


@pytest.fixture(scope="module")
def chosen(html, open_in_browser):
    """The page after validation windows were chosen, without its policy against scripts of ours."""
    html = re.sub('<meta http-equiv="Content-Security-Policy"[^>]*>', "", html)
    presses = (
        "const part = document.querySelector('#windows select');"
        "part.value = 'validation'; part.dispatchEvent(new Event('change'));"
    )
    script = (
        f"<script>addEventListener('load', () => setTimeout(() => {{{presses}}}, 200))</script>"
    )
    return open_in_browser(html.replace("</body>", f"{script}</body>"))


def panels(dom):
    """Return the drawn part of each panel by (figure, panel)."""
    body = dom[dom.index("<body") : dom.index('id="queuesmith-data"')]
    pieces = re.split(r'data-figure="([a-z]+)" data-panel="(\d)"', body)[1:]
    return {
        (pieces[row], int(pieces[row + 1])): pieces[row + 2].split("<figcaption>")[0]
        for row in range(0, len(pieces), 3)
    }


def test_nothing_goes_wrong_and_every_panel_is_drawn(dom):
    root = re.search("<html[^>]*>", dom)[0]
    drawn = panels(dom)

    assert "data-errors" not in root
    assert 'data-drawn="7"' in root
    assert set(drawn) == {
        *(("progress", panel) for panel in range(2)),
        *(("windows", panel) for panel in range(2)),
        ("population", 0),
        ("frontier", 0),
        ("descent", 0),
    }
    for place, piece in drawn.items():
        assert piece.count('class="main-svg"') >= 2, place
        assert re.search(r'class="(?:hm|trace scatter)', piece), place
        assert "nothing to show here" not in piece, place


def test_the_frontier_names_classics_and_the_champion(dom):
    frontier = panels(dom)["frontier", 0]

    assert re.search(r">fcfs</text>", frontier)
    assert "champion (no. " in frontier


def test_figures_and_tables_follow_the_choice_of_windows(dom, chosen):
    def shown(page):
        return {
            name: "other" not in classes
            for classes, name in re.findall(
                r'<div([^>]*)><div class="scroll"><table id="(paid-[a-z]+)"', page
            )
        }

    assert shown(dom) == {"paid-tuning": True, "paid-validation": False}
    assert shown(chosen) == {"paid-tuning": False, "paid-validation": True}
    assert ">tuning<" in panels(dom)["windows", 0]
    assert ">validation<" in panels(chosen)["windows", 0]
    assert "data-errors" not in re.search("<html[^>]*>", chosen)[0]


def test_an_error_in_the_page_is_seen(html, open_in_browser):
    broken = html.replace('id="queuesmith-drawing">', 'id="queuesmith-drawing">{', 1)
    root = re.search("<html[^>]*>", open_in_browser(broken))[0]

    assert "data-errors" in root
    assert "data-drawn" not in root


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_nothing_looks_wrong(html, complaints, width, dark):
    assert complaints(html, width, dark) == {}

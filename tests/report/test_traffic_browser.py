"""The page of a workload in a real browser: everything is drawn and nothing goes wrong."""

import re

import numpy as np
import pytest

from queuesmith.report.traffic.page import write_traffic
from queuesmith.traces import BlockHashes, Trace
from queuesmith.traces.describe import describe

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def html(tmp_path_factory):
    """The page about a trace that knows everything."""
    rng = np.random.default_rng(0)
    rows = np.stack([np.arange(600) % 7, 100 + np.arange(600) % 50, 1000 + np.arange(600)], 1)
    trace = Trace(
        np.cumsum(rng.gamma(0.3, 3, 600)),
        rng.geometric(0.01, 600),
        rng.geometric(0.02, 600),
        client=rng.integers(0, 9, 600),
        session=rng.integers(0, 99, 600),
        block_hashes=BlockHashes(np.arange(601) * 3, rows.ravel(), 16),
    )
    page = tmp_path_factory.mktemp("traffic") / "page.html"
    return write_traffic(describe(trace), trace, page).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def dom(html, open_in_browser):
    return open_in_browser(html)


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_nothing_looks_wrong(html, complaints, width, dark):
    assert complaints(html, width, dark) == {}


def test_nothing_goes_wrong(dom):
    root = re.search("<html[^>]*>", dom)[0]

    assert "data-errors" not in root
    assert 'data-drawn="11"' in root


def test_every_panel_has_axes_and_lines(dom):
    body = dom[dom.index("<body") : dom.index('id="queuesmith-data"')]
    panels = re.split(r'data-figure="[a-z]+" data-panel="\d"', body)[1:]

    assert len(panels) == 11
    for panel in panels:
        assert "xtick" in panel
        assert 'class="trace scatter' in panel or 'class="hm"' in panel

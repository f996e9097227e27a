"""The page of a workload in a real browser: everything is drawn and nothing goes wrong."""

import os
import re
import shutil
import subprocess

import numpy as np
import pytest

from queuesmith.report.traffic import write_traffic
from queuesmith.traces import BlockHashes, Trace
from queuesmith.traces.describe import describe

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def dom(tmp_path_factory):
    """Return the elements of a page about a trace that knows everything."""
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    browser = next((found for name in names if (found := shutil.which(name))), None)
    if browser is None:
        pytest.skip("no chromium or chrome on the path")
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
    folder = tmp_path_factory.mktemp("browser")
    page = write_traffic(describe(trace), trace, folder / "page.html")
    command = [
        browser,
        "--headless",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
        f"--user-data-dir={folder / 'profile'}",
        "--host-resolver-rules=MAP * ~NOTFOUND",
        "--virtual-time-budget=10000",
        "--dump-dom",
    ]
    if os.name == "posix" and os.geteuid() == 0:
        command.append("--no-sandbox")  # Chromium refuses to run as root with it
    done = subprocess.run(
        [*command, page.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    return done.stdout


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

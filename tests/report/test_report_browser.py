"""The report in a real browser: everything is drawn, nothing is fetched, nothing goes wrong."""

import json
import os
import re
import shutil
import subprocess
from html import unescape
from typing import NamedTuple

import pytest
from compared import LOADS

from queuesmith.evaluation.describe import describe_load
from queuesmith.evaluation.evaluate import Offered
from queuesmith.report import render_html, write_html
from queuesmith.report.tables import METRIC_GROUPS

pytestmark = pytest.mark.browser


class Visit(NamedTuple):
    """What a browser made of a page."""

    dom: str
    requests: list[str]

    @property
    def root(self):
        return re.search("<html[^>]*>", self.dom)[0]

    @property
    def errors(self):
        found = re.search('data-errors="([^"]*)"', self.root)
        return unescape(found[1]).splitlines() if found else []

    def panels(self):
        """Return the drawn part of each panel by (figure, panel)."""
        body = self.dom[self.dom.index("<body") : self.dom.index('id="queuesmith-data"')]
        pieces = re.split(r'data-figure="([a-z-]+)" data-panel="(\d)"', body)[1:]
        return {
            (pieces[row], int(pieces[row + 1])): pieces[row + 2].split("<figcaption>")[0]
            for row in range(0, len(pieces), 3)
        }


@pytest.fixture(scope="module")
def visit(tmp_path_factory):
    """Return a function that opens a page and comes back with its elements and its requests."""
    browser = next(
        (
            found
            for name in ("chromium", "chromium-browser", "google-chrome", "chrome")
            if (found := shutil.which(name))
        ),
        None,
    )
    if browser is None:
        pytest.skip("no chromium or chrome on the path")

    def open_page(path):
        folder = tmp_path_factory.mktemp("browser")
        log = folder / "net.json"
        command = [
            browser,
            "--headless",
            "--disable-gpu",
            "--disable-background-networking",
            "--disable-component-update",
            "--no-first-run",
            f"--user-data-dir={folder / 'profile'}",
            f"--log-net-log={log}",
            # A page that tried would find no host, here as on a plane.
            "--host-resolver-rules=MAP * ~NOTFOUND",
            "--virtual-time-budget=10000",
            "--dump-dom",
        ]
        if os.name == "posix" and os.geteuid() == 0:
            command.append("--no-sandbox")  # Chromium refuses to run as root with it
        done = subprocess.run(
            [*command, path.as_uri()], capture_output=True, text=True, timeout=120, check=True
        )
        return Visit(done.stdout, requests_in(json.loads(log.read_text())))

    return open_page


def requests_in(log):
    """Return what a page asked for, by a Chromium network log, besides files and inline data.

    What Chromium asks for by itself, such as updates, has no page as its initiator.
    """
    asked = [event.get("params", {}) for event in log["events"]]
    addresses = {
        params["url"]
        for params in asked
        if params.get("initiator", "not an origin") != "not an origin"
    }
    return sorted(url for url in addresses if not url.startswith(("file:", "data:", "blob:")))


@pytest.fixture(scope="module")
def report(comparison, visit, tmp_path_factory):
    return visit(write_html(comparison, tmp_path_factory.mktemp("report") / "report.html"))


def test_nothing_goes_wrong(report):
    assert report.errors == []
    assert 'data-drawn="9"' in report.root


def test_every_panel_is_drawn(report):
    panels = report.panels()

    assert len(panels) == 9
    for place, drawn in panels.items():
        assert drawn.count('class="main-svg"') >= 2, place
        assert "xtick" in drawn, place


def test_what_is_shown_at_first_is_drawn(report, comparison):
    """Every policy beside the reference; elsewhere the reference, four policies, an oracle."""
    drawn = {
        place: len(re.findall(r'class="trace (?:scatter|bars)', piece)) + piece.count('class="hm"')
        for place, piece in report.panels().items()
    }

    assert drawn == {
        ("changes", 0): 6,
        ("changes", 1): 6,
        ("ttft-distribution", 0): 6,
        ("ttft-distribution", 1): 6,
        ("who-pays", 0): 6,
        ("who-pays", 1): 6,
        ("request-by-request", 0): 2,
        ("workload", 0): 1,
        ("workload", 1): 3,
    }
    points = report.panels()["request-by-request", 0].count('<path class="point ')
    assert points == len(comparison.trace)


def test_the_controls_offer_every_load_and_policy(report, comparison):
    assert report.dom.count('<input type="radio"') == 5 * len(LOADS) + len(METRIC_GROUPS)
    for policy in comparison.config["policies"]:
        assert report.dom.count(f'data-policy="{policy}"') == 2
    assert report.dom.count("<option") == len(comparison.config["policies"]) - 1


def bodies(dom):
    """Return the classes of the bodies of the tables of loads, by load."""
    found = re.findall(r'<tbody data-load="(\w+)"(?: class="(\w*)")?>', dom)
    assert len(set(found)) == len(LOADS)  # all groups alike
    return dict(found)


def test_the_load_where_the_answer_acts_is_shown_first_with_the_metrics_of_the_goal(report):
    groups = dict(re.findall(r'<div class="metrics ?(\w*)" data-metrics="([^"]+)">', report.dom))

    assert bodies(report.dom) == {"own": "other", "knee": "", "heavy": "other"}
    assert groups[""] == "TTFT"


def test_every_figure_follows_what_the_reader_chooses(comparison, visit, tmp_path):
    """A copy without the page's policy, so that a script of ours may press its buttons."""
    presses = """<script>addEventListener("load", () => setTimeout(() => {
        document.querySelector("#who-pays input[data-load=heavy]").click();
        document.querySelector("#who-pays button[data-policy=vllm_unchunked]").click();
        document.querySelector("#ttft-distribution button[data-policy=sjf]").click();
        const select = document.querySelector("#request-by-request select");
        select.value = "las";
        select.dispatchEvent(new Event("change"));
    }, 200))</script>"""
    html = re.sub('<meta http-equiv="Content-Security-Policy"[^>]*>', "", render_html(comparison))
    path = tmp_path / "pressed.html"
    path.write_text(html.replace("</body>", f"{presses}</body>"), encoding="utf-8")
    row = next(row for row in comparison.loads if row.load == "heavy")
    heavy = describe_load(Offered(row.load, row.rho, row.rate))

    pressed = visit(path)

    assert pressed.errors == []
    for (name, _), drawn in pressed.panels().items():
        assert (heavy in drawn) == (name != "workload")
    assert f"{heavy}, las" in pressed.panels()["request-by-request", 0]
    chips = re.findall(r'<button [^>]*class="chip"[^>]*>', pressed.dom)
    shown = {
        re.search('data-policy="([^"]+)"', chip)[1]
        for chip in chips
        if 'aria-pressed="true"' in chip
    }
    assert "vllm_unchunked" in shown
    assert "sjf" not in shown
    assert bodies(pressed.dom) == {"own": "other", "knee": "other", "heavy": ""}


def test_no_request_leaves_the_page(report):
    assert report.requests == []


def test_a_request_would_have_been_seen_and_refused(comparison, visit, tmp_path):
    """The check before this one can fail, and the page's policy stops what it would report."""
    html = render_html(comparison)
    picture = '<img src="http://example.invalid/x.png" alt="">'
    tampered = tmp_path / "tampered.html"
    tampered.write_text(html.replace("<body>", f"<body>{picture}"), encoding="utf-8")
    plain = tmp_path / "plain.html"
    plain.write_text(f"<!DOCTYPE html><body>{picture}", encoding="utf-8")

    stopped = visit(tampered)

    assert visit(plain).requests == ["http://example.invalid/x.png"]
    assert stopped.requests == []
    assert any("img-src" in error for error in stopped.errors)


def test_a_script_that_is_not_the_reports_does_not_run(comparison, visit, tmp_path):
    script = "<script>document.documentElement.dataset.ran = 'yes'</script>"
    path = tmp_path / "tampered.html"
    html = render_html(comparison).replace("<body>", f"<body>{script}")
    path.write_text(html, encoding="utf-8")

    result = visit(path)

    assert "data-ran" not in result.root
    assert any("script-src" in error for error in result.errors)


def test_an_error_in_the_page_is_seen(comparison, visit, tmp_path):
    path = tmp_path / "broken.html"
    html = render_html(comparison).replace('"type":"heatmap"', '"type":7', 1)
    html = html.replace('id="queuesmith-drawing">', 'id="queuesmith-drawing">{', 1)
    path.write_text(html, encoding="utf-8")

    result = visit(path)

    assert result.errors
    assert "data-drawn" not in result.root

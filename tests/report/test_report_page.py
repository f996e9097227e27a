"""The HTML report: complete, safe, small, and the same every time."""

import base64
import copy
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from queuesmith.errors import ConfigError
from queuesmith.report import render_html, write_html

EVIL = "</script><script>alert('x')</script><b>&\"'"


class Page(HTMLParser):
    """What a browser would find: elements, the text of scripts, and the cells of tables."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements = []
        self.scripts = []
        self.rows = {}
        self.text = ""
        self._tables = []
        self._inside = None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.elements.append((tag, attrs))
        self._inside = tag
        if tag == "script":
            self.scripts.append([attrs, ""])
        if tag == "table":
            self._tables.append(attrs.get("id", "settings"))
            self.rows.setdefault(self._tables[-1], [])
        if tag == "tr":
            self.rows[self._tables[-1]].append([])
        if tag in ("td", "th"):
            self.rows[self._tables[-1]][-1].append("")

    def handle_endtag(self, tag):
        self._inside = None
        if tag == "table":
            self._tables.pop()

    def handle_data(self, data):
        if self._inside == "script":
            self.scripts[-1][1] += data
        elif self._inside != "style":
            self.text += data
            if self._tables and self.rows[self._tables[-1]]:
                self.rows[self._tables[-1]][-1][-1] += data

    def script(self, name):
        return next(text for attrs, text in self.scripts if attrs.get("id") == name)


@pytest.fixture(scope="module")
def html(comparison):
    return render_html(*comparison)


@pytest.fixture(scope="module")
def page(html):
    return Page(html)


@pytest.fixture
def document(comparison):
    """A copy that a test may change."""
    return copy.deepcopy(comparison.document)


def test_the_answer_and_where_it_comes_from_stand_first(page, comparison):
    text = page.text
    answer = text.index("Run aged_sjf: its mean TTFT is lower")

    for fact in (
        "real traffic",
        "AzureLLMInferenceTrace_conv.csv",
        "llama-3.1-8b/h100_sxm (fitted to kernel tables, unmeasured)",
        "4 windows of 250 requests",
        "2 rows were out of order",
        "1,000 (12 left out: 12 longer than max_model_len)",
        comparison.document["origin"]["sha256"][:16],
    ):
        assert text.index(fact) < text.index("Leaderboard")
    assert answer < text.index("Leaderboard")


def test_modelled_traffic_is_called_modelled(comparison, document):
    document["origin"]["kind"] = "modelled"

    text = Page(render_html(document, comparison.samples, comparison.trace)).text

    assert "modelled traffic" in text
    assert "real traffic" not in text


def test_the_leaderboard_shows_every_policy_with_its_score_and_its_tail(page, comparison):
    rows = page.rows["leaderboard"][1:]
    board = comparison.document["leaderboard"]

    assert len(rows) == len(board)
    for cells, row in zip(rows, board, strict=True):
        assert cells[0] == str(row["rank"])
        assert cells[1].startswith(row["policy"])
        assert cells[2] == f"{row['score']:+.2f}".replace("-", "\N{MINUS SIGN}")
        assert str(row["wins"]) in cells[4]
        assert ("none" in cells[5]) == (row["tail_violations"] == 0)
        assert all(reason in cells[5] for reason in row["tail_reasons"])
    marks = {row["policy"]: row["kind"] for row in board if row["kind"] != "policy"}
    for policy, kind in marks.items():
        assert next(cells for cells in rows if policy in cells[1])[1].count(kind) >= 1


def test_every_load_and_policy_has_a_row(page, comparison):
    rows = page.rows["loads"][2:]
    loads, policies = (comparison.document["config"][key] for key in ("loads", "policies"))

    assert len(rows) == len(loads) * (len(policies) + 1)
    busy = next(row for row, cells in enumerate(rows) if cells[0].startswith("busy"))
    fcfs = next(cells for cells in rows[busy:] if cells[0] == "fcfs")
    expected = next(
        row
        for row in comparison.document["loads"]
        if row["policy"] == "fcfs" and row["load"] == "busy"
    )
    assert fcfs[1] == "\N{EN DASH}"  # no change against itself
    assert float(fcfs[4]) == pytest.approx(expected["ttft_mean"], rel=0.01)


def test_a_column_without_a_defined_value_is_left_out(comparison, document):
    assert "goodput (/s)" in str(Page(render_html(*comparison)).rows["loads"][1])
    for row in document["loads"]:
        row["goodput"] = row["slo_attainment"] = None

    rows = Page(render_html(document, comparison.samples, comparison.trace)).rows["loads"]

    assert "goodput (/s)" not in str(rows[1])
    assert len({len(cells) for cells in rows[2:] if len(cells) > 1}) == 1


def test_the_whole_document_is_in_the_page(page, comparison):
    assert json.loads(page.script("queuesmith-data")) == comparison.document


def test_undefined_numbers_are_dashes(comparison, document):
    for row in document["loads"] + document["cells"]:
        row.update({key: None for key in row if key not in ("policy", "load", "window")})
    for row in document["leaderboard"]:
        row.update(score=None, score_low=None, score_high=None)
    for load in document["config"]["loads"]:
        load["rho"] = None
    document["config"]["slo"] = None

    page = Page(render_html(document, comparison.samples, comparison.trace))

    assert {cells[2] for cells in page.rows["leaderboard"][1:]} == {"\N{EN DASH}"}
    assert json.loads(page.script("queuesmith-data")) == document


def test_no_string_can_become_markup(comparison, document):
    """A policy, a file, a note: whoever names it does not write our page."""
    plain = Page(render_html(*comparison))
    names = {name: f"{name}{EVIL}" for name in document["config"]["policies"]}
    document["config"]["policies"] = list(names.values())
    document["config"]["reference"] = names["fcfs"]
    for row in document["leaderboard"] + document["loads"] + document["cells"]:
        row["policy"] = names[row["policy"]]
    for row in document["leaderboard"]:
        row["summary"] = EVIL
        row["tail_reasons"] = [EVIL] * len(row["tail_reasons"])
    for load in document["config"]["loads"]:
        load["name"] += EVIL
    for row in document["loads"] + document["cells"]:
        row["load"] += EVIL
    document["answer"] = {"policy": names["aged_sjf"], "sentences": [EVIL, EVIL]}
    document["origin"] |= {"source": EVIL, "reader": EVIL, "notes": [EVIL], "kind": EVIL}
    document["origin"]["dropped"] = {EVIL: 3}
    document["warnings"] = [EVIL]
    document["version"] = EVIL
    for key in ("preset", "provenance", "output_length", "command"):
        document["config"][key] = EVIL
    document["config"]["engine"] = {EVIL: EVIL}
    samples = {
        (names[policy], load + EVIL): sample
        for (policy, load), sample in comparison.samples.items()
    }

    html = render_html(document, samples, comparison.trace)
    page = Page(html)

    def tags(page):
        return {tag for tag, _ in page.elements}

    assert len(page.scripts) == len(plain.scripts)
    assert tags(page) <= tags(plain)
    assert not any(key.startswith("on") for _, attrs in page.elements for key in attrs)
    assert json.loads(page.script("queuesmith-data")) == document
    assert "alert('x')" in page.text  # shown, as text


def test_the_page_reaches_for_nothing(page):
    for tag, attrs in page.elements:
        assert tag not in ("link", "img", "iframe", "object", "embed") or attrs["href"] == "data:,"
        assert "src" not in attrs
    policy = next(
        attrs["content"]
        for _, attrs in page.elements
        if attrs.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none'; ")
    assert "http" not in policy
    assert "'unsafe-eval'" not in policy


def test_only_the_scripts_of_this_page_may_run(page):
    policy = str(page.elements)
    code = [text for attrs, text in page.scripts if "type" not in attrs]

    assert len(code) == 2
    for text in code:
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert len(re.findall("'sha256-", policy)) == 2


def test_equal_comparisons_are_equal_bytes(html, comparison):
    assert render_html(*copy.deepcopy(comparison)) == html


def test_the_largest_report_stays_small(large_comparison, tmp_path):
    path = write_html(*large_comparison, tmp_path / "report.html")

    assert path.stat().st_size < 8e6


def test_the_report_makes_its_folder_and_replaces_its_file(comparison, html, tmp_path):
    path = tmp_path / "runs" / "today" / "report.html"

    assert write_html(*comparison, path) == path
    assert write_html(*comparison, path).read_text(encoding="utf-8") == html


def test_a_report_that_cannot_be_written_is_a_mistake_in_one_line(comparison, tmp_path):
    with pytest.raises(ConfigError, match=r"cannot be written to '.*'.*name another file"):
        write_html(*comparison, tmp_path)


def test_unfinished_requests_and_missing_samples_do_not_stop_the_report(comparison):
    samples = dict(comparison.samples)
    some = samples["spjf", "busy"]
    lost = np.where(np.arange(len(some.ttft)) % 3 == 0, np.nan, some.ttft)
    samples["spjf", "busy"] = SimpleNamespace(**{**vars(some), "ttft": lost, "slowdown": lost})
    samples["lcfs", "busy"] = SimpleNamespace(
        **{**vars(some), "ttft": lost * np.nan, "slowdown": lost * np.nan}
    )
    del samples["ljf", "busy"]

    assert "Run aged_sjf" in render_html(comparison.document, samples, comparison.trace)


def test_the_template_is_a_file_of_the_package():
    import queuesmith.report

    folder = Path(queuesmith.report.__file__).parent
    assert {"frame.html", "frame.css", "frame.js", "compare.html", "page.js"} <= {
        path.name for path in folder.iterdir()
    }
